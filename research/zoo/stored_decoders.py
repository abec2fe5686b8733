"""Writes stateful decoders of any size with random weights, without holding them in memory."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ov_hsdag.kit.decoder import DecoderSize, decoder
from ov_hsdag.model.clean_up import clean_up
from ov_hsdag.utils.lazy import op
from ov_hsdag.utils.lazy import opset13 as ops

GROUP = 128  # weights of a row that share a scale, the usual group size of int4 compression


class _Weights:
    """Random weights in a memory-mapped file, so that only the pages of one matrix need memory at a time.

    It implements `ov_hsdag.kit.decoder.DecoderWeights`.
    """

    def __init__(self, path: Path, kind: str, count: int) -> None:
        """Makes the file.

        Args:
            path: the file.
            kind: see `write_decoder`; f16 weights are f32 until the model is saved.
            count: number of all weights.
        """
        self._random = np.random.default_rng(0)
        self._kind = kind
        self._bits = {"f32": 32, "f16": 32, "u8": 8, "i4": 4}[kind]
        self._file: NDArray[np.uint8] = np.memmap(path, np.uint8, "w+", shape=(count * self._bits // 8,))
        self._used = 0

    def linear(self, x: ov.Node, inputs: int, outputs: int) -> ov.Node:
        """A linear layer without a bias."""
        return ops.matmul(x, self.table(outputs, inputs), False, True)

    def scale(self, width: int) -> ov.Node:
        """The scale of a normalization, [width]."""
        return ops.constant(np.ones(width, np.float32))

    def table(self, *shape: int) -> ov.Node:
        """Weights [..., columns] as f32, with nodes that decompress them where they are compressed."""
        *outer, columns = shape
        rows = math.prod(outer)
        if self._kind in ("f32", "f16"):
            values = self._take(rows * columns * 4).view(np.float32).reshape(rows, columns)
            for row in range(0, rows, 1024):
                part = values[row : row + 1024]
                part[:] = self._random.standard_normal(part.shape, np.float32) / math.sqrt(columns)
            return op.Constant(ov.Tensor(values.reshape(shape), True), True)
        memory = self._take(rows * columns * self._bits // 8)
        for start in range(0, len(memory), 1 << 22):
            drawn = memory[start : start + (1 << 22)]
            drawn[:] = np.frombuffer(self._random.bytes(len(drawn)), np.uint8)
        group = GROUP if self._kind == "i4" else columns
        grouped = [*outer, columns // group, group] if group < columns else [*outer, columns]
        tensor = (
            ov.Tensor(memory, ov.Shape(grouped), ov.Type.i4)
            if self._kind == "i4"
            else ov.Tensor(memory.reshape(grouped), True)
        )
        stored = op.Constant(tensor, True)
        amount = (8 if self._kind == "i4" else 128) * math.sqrt(columns) / 2
        scale = np.full([*grouped[:-1], 1], 1 / amount, np.float16)
        wide = ops.convert(stored, "f16")
        if self._kind == "u8":
            wide = ops.subtract(wide, ops.convert(ops.constant(np.full_like(scale, 128, np.uint8)), "f16"))
        scaled = ops.multiply(wide, ops.constant(scale))
        if group < columns:
            scaled = ops.reshape(scaled, np.array(shape), False)
        return ops.convert(scaled, "f32")

    def _take(self, count: int) -> NDArray[np.uint8]:
        """The next `count` bytes of the file."""
        self._used += count
        return self._file[self._used - count : self._used]


def write_decoder(size: DecoderSize, path: Path, weights: str = "f32") -> Path:
    """Writes the IR of a decoder, see `ov_hsdag.kit.decoder.decoder`, after OpenVINO's common transformations.

    Args:
        size: the sizes of the decoder.
        path: the .xml file; while it is written, the folder also holds a temporary file with all weights.
        weights: "f32", "f16" (by `openvino.save_model`), "u8" (a scale per row) or "i4" (a scale per `GROUP` weights).

    Returns:
        `path`.
    """
    scratch = path.with_suffix(".scratch")
    wide = max(size.experts, 1) * size.inner + (size.common if size.experts else 0)
    layer = 4 * size.hidden**2 + 3 * size.hidden * wide + size.experts * size.hidden
    count = size.layers * layer + 2 * size.vocabulary * size.hidden
    mapped = _Weights(scratch, weights, count)
    try:
        model = decoder(size, mapped)
        clean_up(model)
        ov.save_model(model, path, compress_to_fp16=weights == "f16")
    finally:
        scratch.unlink()
    return path
