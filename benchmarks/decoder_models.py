"""Stateful decoders of any size with random weights, built without keeping them in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ov_hsdag.utils.compat import op
from ov_hsdag.utils.compat import opset13 as ops

GROUP = 128  # weights of a row that share a scale


@dataclass(frozen=True)
class DecoderSize:
    """Sizes of a decoder in the manner of Llama.

    Attributes:
        layers: number of layers.
        heads: attention heads, each with keys and values of its own.
        head: size of a head.
        inner: width inside the feed-forward network.
        vocabulary: number of tokens.
        weights: "f32", "f16" (compressed by `openvino.save_model`), "u8" (one scale for a row) or "i4" (one for
            `GROUP` weights of a row).
    """

    layers: int
    heads: int
    head: int
    inner: int
    vocabulary: int
    weights: str = "f32"

    @property
    def hidden(self) -> int:
        """Width between layers."""
        return self.heads * self.head


SEVEN_BILLION = DecoderSize(32, 32, 128, 11008, 32000, "i4")


class _Weights:
    """Random weights in a file that is mapped: the pages of one matrix at a time are in memory."""

    def __init__(self, path: Path, kind: str, count: int) -> None:
        self._random = np.random.default_rng(0)
        self._kind = kind
        self._bits = {"f32": 32, "f16": 32, "u8": 8, "i4": 4}[kind]
        self._file: NDArray[np.uint8] = np.memmap(path, np.uint8, "w+", shape=(count * self._bits // 8,))
        self._used = 0

    def matrix(self, rows: int, columns: int) -> ov.Node:
        """[rows, columns] f32, decompressed where weights are compressed."""
        if self._kind in ("f32", "f16"):
            memory = self._take(rows * columns * 4).view(np.float32).reshape(rows, columns)
            for row in range(0, rows, 1024):
                part = memory[row : row + 1024]
                part[:] = self._random.standard_normal(part.shape, np.float32) / math.sqrt(columns)
            return op.Constant(ov.Tensor(memory, True), True)
        memory = self._take(rows * columns * self._bits // 8)
        for start in range(0, len(memory), 1 << 22):
            part = memory[start : start + (1 << 22)]
            part[:] = np.frombuffer(self._random.bytes(len(part)), np.uint8)
        group = GROUP if self._kind == "i4" else columns
        shape = [rows, columns // group, group] if group < columns else [rows, columns]
        tensor = (
            ov.Tensor(memory, ov.Shape(shape), ov.Type.i4)
            if self._kind == "i4"
            else ov.Tensor(memory.reshape(shape), True)
        )
        stored = op.Constant(tensor, True)
        amount = (8 if self._kind == "i4" else 128) * math.sqrt(columns) / 2
        scale = np.full([*shape[:-1], 1], 1 / amount, np.float16)
        wide = ops.convert(stored, "f16")
        if self._kind == "u8":
            wide = ops.subtract(wide, ops.convert(ops.constant(np.full_like(scale, 128, np.uint8)), "f16"))
        scaled = ops.multiply(wide, ops.constant(scale))
        if group < columns:
            scaled = ops.reshape(scaled, np.array([rows, columns]), False)
        return ops.convert(scaled, "f32")

    def _take(self, count: int) -> NDArray[np.uint8]:
        self._used += count
        return self._file[self._used - count : self._used]


def write_decoder(size: DecoderSize, path: Path) -> Path:
    """Writes an IR: input_ids, attention_mask, position_ids [batch, tokens], beam_idx [batch] → logits.

    Each layer has two states.

    Args:
        size: of the decoder.
        path: of the .xml file; as much again as the model lies in a file beside it for a while.
    """
    scratch = path.with_suffix(".scratch")
    count = size.layers * (4 * size.hidden**2 + 3 * size.hidden * size.inner) + 2 * size.vocabulary * size.hidden
    weights = _Weights(scratch, size.weights, count)
    try:
        ov.save_model(_decoder(size, weights), path, compress_to_fp16=size.weights == "f16")
    finally:
        scratch.unlink()
    return path


def _decoder(size: DecoderSize, weights: _Weights) -> ov.Model:
    hidden = size.hidden

    def linear(x: ov.Node, inputs: int, outputs: int) -> ov.Node:
        return ops.matmul(x, weights.matrix(outputs, inputs), False, True)

    def norm(x: ov.Node) -> ov.Node:
        mean = ops.reduce_mean(ops.power(x, np.float32(2)), np.array([-1]), True)
        return ops.multiply(ops.divide(x, ops.sqrt(ops.add(mean, np.float32(1e-6)))), np.ones(hidden, np.float32))

    ids = ops.parameter([-1, -1], ov.Type.i64, name="input_ids")
    mask = ops.parameter([-1, -1], ov.Type.i64, name="attention_mask")
    positions = ops.parameter([-1, -1], ov.Type.i64, name="position_ids")
    beams = ops.parameter([-1], ov.Type.i32, name="beam_idx")
    batch = ops.gather(ops.shape_of(ids), np.array([0]), np.int64(0))
    tokens = ops.gather(ops.shape_of(ids), np.int64(1), np.int64(0))
    x = ops.gather(weights.matrix(size.vocabulary, hidden), ops.convert(ids, "i32"), np.int64(0))
    frequencies = (1 / 1e4 ** (np.arange(size.head // 2) / (size.head // 2))).astype(np.float32)[None]
    angles = ops.matmul(ops.unsqueeze(ops.convert(positions, "f32"), np.int64(2)), frequencies, False, False)
    angles = ops.unsqueeze(ops.concat([angles, angles], 2), np.int64(1))
    cosine, sine = ops.cos(angles), ops.sin(angles)

    def rotated(x: ov.Node) -> ov.Node:
        first, second = ops.split(x, np.int64(3), 2).outputs()
        turned = ops.concat([ops.multiply(second, np.float32(-1)), first], 3)
        return ops.add(ops.multiply(x, cosine), ops.multiply(turned, sine))

    def split_heads(x: ov.Node) -> ov.Node:
        parted = ops.reshape(x, np.array([0, 0, size.heads, size.head]), True)
        return ops.transpose(parted, np.array([0, 2, 1, 3]))

    sinks: list[ov.Node] = []
    reads: list[ov.Node] = []

    def with_past(new: ov.Node, name: str) -> ov.Node:
        start = ops.concat([batch, np.array([size.heads]), np.array([0]), np.array([size.head])], 0)
        shape = ov.PartialShape([-1, size.heads, -1, size.head])
        reads.append(ops.read_value(ops.broadcast(np.float32(0), start), name, ov.Type.f32, shape))
        joined = ops.concat([ops.gather(reads[-1], beams, np.int64(0)), new], 2)
        sinks.append(ops.assign(joined, name))
        return joined

    bias: ov.Node | None = None
    for layer in range(size.layers):
        if layer:
            x.set_friendly_name(f"into_layer_{layer}")
        entered = norm(x)
        query = rotated(split_heads(linear(entered, hidden, hidden)))
        keys = with_past(rotated(split_heads(linear(entered, hidden, hidden))), f"keys.{layer}")
        values = with_past(split_heads(linear(entered, hidden, hidden)), f"values.{layer}")
        if bias is None:
            past = ops.gather(ops.shape_of(reads[0]), np.int64(2), np.int64(0))
            columns = ops.range(np.int64(0), ops.add(past, tokens), np.int64(1), "i64")
            seen = ops.less_equal(columns, ops.unsqueeze(positions, np.array([1, 3])))
            kept = ops.unsqueeze(ops.convert(mask, "boolean"), np.array([1, 2]))
            bias = ops.select(ops.logical_and(seen, kept), np.float32(0), np.float32(-1e4))
        attended = ops.scaled_dot_product_attention(query, keys, values, bias)
        joined = ops.reshape(ops.transpose(attended, np.array([0, 2, 1, 3])), np.array([0, 0, hidden]), True)
        x = ops.add(x, linear(joined, hidden, hidden))
        entered = norm(x)
        gate = ops.swish(linear(entered, hidden, size.inner))
        x = ops.add(x, linear(ops.multiply(gate, linear(entered, hidden, size.inner)), size.inner, hidden))
    logits: Any = linear(norm(x), hidden, size.vocabulary)
    model = ov.Model([ops.result(logits)], sinks, [ids, mask, positions, beams], "decoder")
    for parameter in model.get_parameters():
        parameter.output(0).get_tensor().set_names({parameter.get_friendly_name()})
    return model
