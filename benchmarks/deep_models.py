"""Models of any number of operations and small weights: a decoder with states, an encoder and a convolutional network."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import openvino as ov

from benchmarks.decoder_models import DecoderSize, write_decoder
from ov_hsdag.utils.compat import opset13 as ops

HIDDEN, HEADS, INNER, TOKENS = 32, 4, 64, 16
CHANNELS, IMAGE = 16, 32

_NO_OPERATIONS = frozenset({"Constant", "Parameter", "Result"})


def operations(model: ov.Model) -> int:
    """Nodes other than Constants, Parameters and Results."""
    return sum(node.get_type_name() not in _NO_OPERATIONS for node in model.get_ops())


def decoder(layers: int) -> ov.Model:
    """A stateful decoder in the manner of Llama, with dynamic shapes and two states for each layer."""
    with tempfile.TemporaryDirectory() as folder:
        size = DecoderSize(layers, HEADS, HIDDEN // HEADS, INNER, 64)
        return ov.Core().read_model(write_decoder(size, Path(folder) / "decoder.xml")).clone()


def encoder(layers: int) -> ov.Model:
    """An encoder in the manner of BERT: static shapes, attention and GELU written out, layer normalisation."""
    random = np.random.default_rng(0)

    def linear(x: ov.Node, inputs: int, outputs: int) -> ov.Node:
        weights = random.standard_normal((outputs, inputs), np.float32) / np.float32(np.sqrt(inputs))
        return ops.add(ops.matmul(x, weights, False, True), np.zeros((1, 1, outputs), np.float32))

    def norm(x: ov.Node) -> ov.Node:
        scaled = ops.mvn(x, np.array([-1]), True, 1e-6, "INSIDE_SQRT")
        return ops.add(ops.multiply(scaled, np.ones(HIDDEN, np.float32)), np.zeros(HIDDEN, np.float32))

    def heads(x: ov.Node) -> ov.Node:
        parted = ops.reshape(x, np.array([0, 0, HEADS, HIDDEN // HEADS]), True)
        return ops.transpose(parted, np.array([0, 2, 1, 3]))

    def layer(x: ov.Node) -> ov.Node:
        query, key, value = (heads(linear(x, HIDDEN, HIDDEN)) for _ in range(3))
        scores = ops.divide(ops.matmul(query, key, False, True), np.float32(np.sqrt(HIDDEN / HEADS)))
        mixed = ops.transpose(ops.matmul(ops.softmax(scores, -1), value, False, False), np.array([0, 2, 1, 3]))
        joined = ops.reshape(mixed, np.array([0, 0, HIDDEN]), True)
        x = norm(ops.add(x, linear(joined, HIDDEN, HIDDEN)))
        inner = linear(x, HIDDEN, INNER)
        gelu = ops.multiply(
            inner, ops.multiply(ops.add(ops.erf(ops.divide(inner, np.float32(2**0.5))), np.float32(1)), np.float32(0.5))
        )
        return norm(ops.add(x, linear(gelu, INNER, HIDDEN)))

    given = ops.parameter([1, TOKENS, HIDDEN], ov.Type.f32, name="hidden")
    x: ov.Node = given
    for _ in range(layers):
        x = layer(x)
    return ov.Model([ops.result(x)], [given], "encoder")


def convolutional(blocks: int) -> ov.Model:
    """Residual blocks of inverted bottlenecks with squeeze and excitation, in the manner of EfficientNet; static."""
    random = np.random.default_rng(0)

    def convolution(x: ov.Node, inputs: int, outputs: int) -> ov.Node:
        weights = random.standard_normal((outputs, inputs, 1, 1), np.float32) / np.float32(np.sqrt(inputs))
        found = ops.convolution(x, weights, [1, 1], [0, 0], [0, 0], [1, 1])
        return ops.add(found, np.zeros((1, outputs, 1, 1), np.float32))

    def depthwise(x: ov.Node, channels: int) -> ov.Node:
        weights = random.standard_normal((channels, 1, 1, 3, 3), np.float32) / np.float32(3)
        found = ops.group_convolution(x, weights, [1, 1], [1, 1], [1, 1], [1, 1])
        return ops.add(found, np.zeros((1, channels, 1, 1), np.float32))

    def block(x: ov.Node) -> ov.Node:
        wide = ops.swish(depthwise(ops.swish(convolution(x, CHANNELS, 2 * CHANNELS)), 2 * CHANNELS))
        squeezed = ops.swish(convolution(ops.reduce_mean(wide, np.array([2, 3]), True), 2 * CHANNELS, 4))
        wide = ops.multiply(wide, ops.sigmoid(convolution(squeezed, 4, 2 * CHANNELS)))
        return ops.add(x, convolution(wide, 2 * CHANNELS, CHANNELS))

    image = ops.parameter([1, CHANNELS, IMAGE, IMAGE], ov.Type.f32, name="image")
    x: ov.Node = image
    for _ in range(blocks):
        x = block(x)
    return ov.Model([ops.result(x)], [image], "convolutional")


FAMILIES: Mapping[str, Callable[[int], ov.Model]] = MappingProxyType(
    {"decoder": decoder, "encoder": encoder, "convolutional": convolutional}
)


def build(family: str, wanted: int) -> ov.Model:
    """A model of the family with about so many operations, as `operations` counts them; at least of one layer."""
    one, three = (operations(FAMILIES[family](layers)) for layers in (1, 3))
    return FAMILIES[family](max(1, round(1 + 2 * (wanted - one) / (three - one))))
