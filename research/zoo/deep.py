"""Builds models of any number of operations with small weights: a stateful decoder, an encoder, a convolutional net.

They have the form that OpenVINO's converter produces: its common transformations find nothing to change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import openvino as ov

from ov_hsdag.kit import decoder as decoders
from ov_hsdag.utils.lazy import opset13 as ops

# Width, heads and width of the feed-forward network of transformers, and tokens of the encoder; channels and side of
# the image of the convolutional network. All are small, as only the number of operations matters.
HIDDEN, HEADS, INNER, TOKENS = 32, 4, 64, 16
CHANNELS, IMAGE = 16, 32

_NO_OPERATIONS = frozenset({"Constant", "Parameter", "Result"})


def operations(model: ov.Model) -> int:
    """The number of nodes other than Constants, Parameters and Results."""
    return sum(node.get_type_name() not in _NO_OPERATIONS for node in model.get_ops())


class _Weights:
    """Random weights of a decoder; implements `ov_hsdag.kit.decoder.DecoderWeights`."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)

    def table(self, *shape: int) -> ov.Node:
        """A constant of a shape."""
        return ops.constant(self._random.standard_normal(shape, np.float32))

    def linear(self, x: ov.Node, inputs: int, outputs: int) -> ov.Node:
        """A linear layer without a bias."""
        weights = self._random.standard_normal((outputs, inputs), np.float32) / np.float32(np.sqrt(inputs))
        return ops.matmul(x, weights, False, True)

    def scale(self, width: int) -> ov.Node:
        """The scale of a normalization, [1, 1, width]."""
        return ops.constant(self._random.standard_normal((1, 1, width), np.float32))


def decoder(layers: int) -> ov.Model:
    """A stateful decoder like Llama, with dynamic shapes and two states for each layer."""
    model = decoders.decoder(decoders.DecoderSize(layers, HEADS, HIDDEN // HEADS, INNER, 64), _Weights())
    # Does what the transformations would do: shares equal initial states and lengths, and transposes MatMul constants.
    nodes = model.get_ordered_ops()
    reads = [node for node in nodes if node.get_type_name() == "ReadValue"]
    for read in reads[1:]:
        read.input(0).replace_source_output(reads[0].input_value(0))
    lengths: dict[int, ov.Node] = {}
    for node in nodes:
        if node.get_type_name() == "ShapeOf":
            first = lengths.setdefault(node.input_value(0).get_node().get_instance_id(), node)
            for reader in node.output(0).get_target_inputs() if first is not node else ():
                reader.replace_source_output(first.output(0))
        elif node.get_type_name() == "MatMul" and not node.get_attributes()["transpose_b"]:
            constant = node.input_value(1).get_node().get_data()
            turned = ops.matmul(node.input_value(0), np.ascontiguousarray(constant.T), False, True)
            for reader in node.output(0).get_target_inputs():
                reader.replace_source_output(turned.output(0))
    return model


def encoder(layers: int) -> ov.Model:
    """An encoder like BERT, with static shapes."""
    random = np.random.default_rng(0)

    def linear(x: ov.Node, inputs: int, outputs: int) -> ov.Node:
        weights = random.standard_normal((outputs, inputs), np.float32) / np.float32(np.sqrt(inputs))
        return ops.add(ops.matmul(x, weights, False, True), random.standard_normal((1, 1, outputs), np.float32))

    def norm(x: ov.Node) -> ov.Node:
        scaled = ops.mvn(x, np.array([-1]), True, 1e-6, "INSIDE_SQRT")
        scale, shift = random.standard_normal((2, 1, 1, HIDDEN), np.float32)
        return ops.add(ops.multiply(scaled, scale), shift)

    def heads(x: ov.Node) -> ov.Node:
        parted = ops.reshape(x, np.array([0, 0, HEADS, HIDDEN // HEADS]), True)
        return ops.transpose(parted, np.array([0, 2, 1, 3]))

    def layer(x: ov.Node) -> ov.Node:
        query, key, value = (heads(linear(x, HIDDEN, HIDDEN)) for _ in range(3))
        mixed = ops.transpose(ops.scaled_dot_product_attention(query, key, value), np.array([0, 2, 1, 3]))
        joined = ops.reshape(mixed, np.array([0, 0, HIDDEN]), True)
        x = norm(ops.add(x, linear(joined, HIDDEN, HIDDEN)))
        return norm(ops.add(x, linear(ops.gelu(linear(x, HIDDEN, INNER), "ERF"), INNER, HIDDEN)))

    hidden = ops.parameter([1, TOKENS, HIDDEN], ov.Type.f32, name="hidden")
    x: ov.Node = hidden
    for _ in range(layers):
        x = layer(x)
    return ov.Model([ops.result(x)], [hidden], "encoder")


def convolutional(blocks: int) -> ov.Model:
    """Residual blocks of inverted bottlenecks with squeeze and excitation, like EfficientNet, with static shapes."""
    random = np.random.default_rng(0)

    def convolution(x: ov.Node, inputs: int, outputs: int) -> ov.Node:
        weights = random.standard_normal((outputs, inputs, 1, 1), np.float32) / np.float32(np.sqrt(inputs))
        product = ops.convolution(x, weights, [1, 1], [0, 0], [0, 0], [1, 1])
        return ops.add(product, random.standard_normal((1, outputs, 1, 1), np.float32))

    def depthwise(x: ov.Node, channels: int) -> ov.Node:
        weights = random.standard_normal((channels, 1, 1, 3, 3), np.float32) / np.float32(3)
        product = ops.group_convolution(x, weights, [1, 1], [1, 1], [1, 1], [1, 1])
        return ops.add(product, random.standard_normal((1, channels, 1, 1), np.float32))

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
    """A model of a family with about `wanted` operations, as counted by `operations`, and at least one layer."""
    one, three = (operations(FAMILIES[family](layers)) for layers in (1, 3))
    return FAMILIES[family](max(1, round(1 + 2 * (wanted - one) / (three - one))))
