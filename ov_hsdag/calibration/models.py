"""Models for calibrating devices: microbenchmarks, and two probe networks.

Microbenchmarks are a built-in set of layers that show the times of each type of operation. They are side by side in one
model, with the sizes that real models have. Some operations would be fused, or computed in another precision at the end
of a model; these stand between small layers that keep them as they are in real models. Probe networks are built as real
models are: residual blocks of convolutions, and layers of a transformer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ov_hsdag.utils.lazy import opset1, opset13, ov

PREFIX = "layer:"
"""Prefix of the names of the layers that are measured."""

# Sizes of layers, as real models have them. A layer here is any operation that is measured. Convolutions:
# [channels in, channels out, height and width of the kernel, height and width of the input, stride]
CONVOLUTIONS = (
    (3, 32, 3, 112, 2), (3, 64, 7, 112, 2), (32, 64, 3, 56, 1), (64, 64, 1, 56, 1), (64, 64, 3, 56, 1),
    (64, 256, 1, 56, 1), (256, 64, 1, 56, 1), (24, 144, 1, 56, 1), (96, 24, 1, 56, 1), (128, 32, 3, 28, 1),
    (128, 128, 3, 28, 1), (512, 128, 1, 28, 1), (128, 512, 1, 28, 1), (256, 128, 1, 28, 1), (32, 192, 1, 28, 1),
    (128, 32, 3, 14, 1), (256, 256, 3, 14, 1), (1024, 256, 1, 14, 1), (256, 1024, 1, 14, 1), (512, 128, 1, 14, 1),
    (96, 576, 1, 14, 1), (512, 512, 3, 7, 1), (2048, 512, 1, 7, 1), (512, 2048, 1, 7, 1), (960, 160, 1, 7, 1),
    (128, 32, 3, 7, 1),
)  # fmt: skip

# Depthwise convolutions: [channels, height and width of the kernel, height and width of the input, stride]
DEPTHWISE = (
    (32, 3, 112, 1), (96, 3, 112, 2), (144, 3, 56, 1), (192, 3, 28, 1), (384, 3, 14, 1), (96, 7, 28, 1), (960, 3, 7, 1),
)  # fmt: skip

# Matrix products: [rows (tokens), columns of the input, columns of the output]
PRODUCTS = (
    (1, 1024, 1000), (16, 512, 512), (64, 128, 512), (128, 256, 256), (128, 256, 1024), (128, 768, 768),
    (128, 768, 3072), (128, 3072, 768), (197, 384, 384), (784, 96, 384),
)  # fmt: skip

# [heads, rows, size of a head]
ATTENTIONS = ((4, 64, 32), (12, 128, 64), (6, 197, 64))

# [rows, columns] of operations on tokens, and [channels, side] of operations on images.
TOKENS = ((16, 128), (128, 256), (128, 768), (197, 1536))
IMAGES = ((64, 7), (128, 14), (256, 28), (64, 56), (256, 56))


def microbenchmark_model() -> ov.Model:
    """Builds the model of all layers. Inputs are f32; weights are random, with a fixed seed."""
    builder = _Microbenchmarks()
    layers: tuple[tuple[Callable[..., None], tuple[tuple[int, ...], ...]], ...] = (
        (builder.convolution, CONVOLUTIONS),
        (builder.depthwise, DEPTHWISE),
        (builder.product, PRODUCTS),
        (builder.attention, ATTENTIONS),
        (builder.on_tokens, TOKENS),
        (builder.on_images, IMAGES),
    )
    for make, sizes in layers:
        for index, size in enumerate(sizes):
            make(index, *size)
    return builder.model_of(builder.outputs, builder.parameters.values())


class Builder:
    """Makes layers with random weights from a fixed seed.

    Attributes:
        op: OpenVINO's operations.
    """

    def __init__(self) -> None:
        self.op: Any = opset13
        self._random = np.random.default_rng(0)

    def weights(self, *shape: int) -> Any:
        """Makes a constant of random f32 weights."""
        values = self._random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) if len(shape) > 1 else 1.0)
        return self.op.constant(values.astype(np.float32))

    def conv(self, source: Any, channels: int, out: int, kernel: int = 1, stride: int = 1) -> Any:
        """Makes a convolution of images, padded so that a stride of 1 keeps their size.

        Args:
            source: the input, [1, channels, height, width].
            channels: channels of the input.
            out: channels of the output.
            kernel: height and width of the kernel.
            stride: stride in both directions.

        Returns:
            The node.
        """
        pad = [kernel // 2] * 2
        weights = self.weights(out, channels, kernel, kernel)
        return self.op.convolution(source, weights, [stride] * 2, pad, pad, [1, 1])

    def matrix_product(self, source: Any, inner: int, out: int) -> Any:
        """Makes a product of rows (tokens) with a matrix.

        Args:
            source: the input, [..., inner].
            inner: last dimension of the input.
            out: last dimension of the output.

        Returns:
            The node.
        """
        return self.op.matmul(source, self.weights(inner, out), False, False)

    def model_of(self, outputs: Iterable[Any], parameters: Iterable[Any]) -> ov.Model:
        """Makes the model that computes the outputs."""
        return ov.Model([self.op.result(node) for node in outputs], [*parameters], "ov_hsdag calibration")


class _Microbenchmarks(Builder):
    """Collects measured layers side by side, each with its index in the names, and their inputs and outputs.

    Attributes:
        parameters: inputs of the model, by shape; layers of one input shape share it.
        outputs: last node of each layer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.parameters: dict[tuple[int, ...], Any] = {}
        self.outputs: list[Any] = []

    def convolution(self, index: int, channels: int, out: int, kernel: int, side: int, stride: int) -> None:
        """Adds a convolution of `CONVOLUTIONS`."""
        node = self.conv(self._input(1, channels, side, side), channels, out, kernel, stride)
        self.outputs.append(self._named(f"Convolution/{index}", node))

    def depthwise(self, index: int, channels: int, kernel: int, side: int, stride: int) -> None:
        """Adds a depthwise convolution of `DEPTHWISE`."""
        weights = self.weights(channels, 1, 1, kernel, kernel)
        pad = [kernel // 2] * 2
        node = self.op.group_convolution(self._image(channels, side), weights, [stride] * 2, pad, pad, [1, 1])
        self._end_image(self._named(f"GroupConvolution/{index}", node))

    def product(self, index: int, rows: int, inner: int, out: int) -> None:
        """Adds a matrix product of `PRODUCTS`."""
        node = self.matrix_product(self._input(1, rows, inner), inner, out)
        self.outputs.append(self._named(f"MatMul/{index}", node))

    def attention(self, index: int, heads: int, rows: int, size: int) -> None:
        """Adds an attention of `ATTENTIONS`."""
        op, order = self.op, np.array([0, 2, 1, 3])
        split, joined = np.array((1, rows, heads, size)), np.array((1, rows, heads * size))
        sides = [op.transpose(op.reshape(self._tokens(rows, heads * size), split, False), order) for _ in range(3)]
        node = op.scaled_dot_product_attention(*sides, causal=False)
        self._named(f"ScaledDotProductAttention/{index}", node)
        self._end_tokens(op.reshape(op.transpose(node, order), joined, False))

    def on_tokens(self, index: int, rows: int, columns: int) -> None:
        """Adds an operation of each kind on tokens of a size of `TOKENS`."""
        op = self.op
        scale, shift = self.weights(columns), self.weights(columns)
        axes = np.array([2])
        heads = np.array((1, rows, columns // 32, 32))

        def norm(x: Any) -> Any:
            return op.mvn(x, axes, True, 1e-6, "inside_sqrt")

        table: dict[str, Callable[[Any], Any]] = {
            "MVN": norm,
            "Transpose": lambda x: op.transpose(op.reshape(x, heads, False), np.array([0, 2, 1, 3])),
            "ReduceMean": lambda x: op.reduce_mean(x, np.array([1]), True),
        }
        for kind, make in table.items():
            self._end_tokens(self._named(f"{kind}/tokens{index}", make(self._tokens(rows, columns))))
        # A matrix product would be fused with an operation that reads it, so there is a norm between them.
        fused: dict[str, Callable[[Any], Any]] = {
            "Softmax": lambda x: op.softmax(x, 2),
            "Add": lambda x: op.add(x, norm(self._tokens(rows, columns))),
            "Multiply": lambda x: op.add(op.multiply(x, scale), shift),
            "Gelu": lambda x: op.gelu(x, "erf"),
        }
        for kind, make in fused.items():
            self._end_tokens(norm(self._named(f"{kind}/tokens{index}", make(norm(self._tokens(rows, columns))))))

    def on_images(self, index: int, channels: int, side: int) -> None:
        """Adds an operation of each kind on images of a size of `IMAGES`."""
        op = self.op
        kernel, pad = [3, 3], [1, 1]
        table: dict[str, Callable[[Any], Any]] = {
            "MaxPool": self._pool,
            "AvgPool": lambda x: op.avg_pool(x, [1, 1], pad, pad, kernel, True),
            "ReduceMean": lambda x: op.reduce_mean(x, np.array([2, 3]), True),
            "Concat": lambda x: op.concat([x, self._image(32, side)], 1),
        }
        for kind, make in table.items():
            self._end_image(self._named(f"{kind}/image{index}", make(self._image(channels, side))))
        fused: dict[str, Callable[[Any], Any]] = {
            "Relu": op.relu,
            "Swish": op.swish,
            "Add": lambda x: op.add(x, self._pooled(channels, side)),
        }
        for kind, make in fused.items():
            self._end_image(self._named(f"{kind}/image{index}", make(self._pooled(channels, side))))

    def _input(self, *shape: int) -> Any:
        """The input of the model with this shape, which is made at the first call."""
        if shape not in self.parameters:
            self.parameters[shape] = self.op.parameter(list(shape), np.float32)
        return self.parameters[shape]

    def _image(self, channels: int, side: int) -> Any:
        """Makes an image that a small convolution computes, so that it has the layout of convolutions."""
        return self.conv(self._input(1, 16, side, side), 16, channels)

    def _pooled(self, channels: int, side: int) -> Any:
        """Makes an image that a pooling computes, so that no convolution is fused with the operation that reads it."""
        return self._pool(self._image(channels, side))

    def _pool(self, source: Any) -> Any:
        return opset1.max_pool(source, [1, 1], [1, 1], [1, 1], [3, 3])  # later versions have a second result

    def _tokens(self, rows: int, columns: int) -> Any:
        """Makes tokens that a small matrix product computes, [1, rows, columns]."""
        return self.matrix_product(self._input(1, rows, 16), 16, columns)

    def _end_tokens(self, node: Any) -> None:
        """Ends a layer of tokens with a small matrix product, so that it is not at the end of the model."""
        self.outputs.append(self.matrix_product(node, int(node.get_output_shape(0)[-1]), 16))

    def _end_image(self, node: Any) -> None:
        """Ends a layer of images with a small convolution, so that it is not at the end of the model."""
        self.outputs.append(self.conv(node, int(node.get_output_shape(0)[1]), 16))

    def _named(self, name: str, node: Any) -> Any:
        """Marks a node as measured, by a name with `PREFIX`, and returns it."""
        node.set_friendly_name(PREFIX + name)
        return node


# [channels, side] of residual blocks, as in ResNet-50; there are two of each.
_STAGES = ((256, 56), (512, 28), (1024, 14))

# Tokens, their size, attention heads and layers of the transformer.
_ROWS, _COLUMNS, _HEADS, _LAYERS = 128, 512, 8, 3


def image_network() -> ov.Model:
    """Builds residual blocks; the input is [1, 64, 56, 56] f32."""
    builder = _Probe()
    op = builder.op
    image = op.parameter([1, 64, 56, 56], np.float32)
    node, channels = image, 64
    for wide, side in _STAGES:
        for number in range(2):
            stride = 2 if number == 0 and side < 56 else 1
            inner = wide // 4
            branch = op.relu(builder.convolution(node, channels, inner))
            branch = op.relu(builder.convolution(branch, inner, inner, 3, stride))
            branch = builder.convolution(branch, inner, wide)
            skip = builder.convolution(node, channels, wide, 1, stride) if number == 0 else node
            node, channels = op.relu(op.add(branch, skip)), wide
    node = op.reduce_mean(node, np.array([2, 3]), False)
    return builder.model_of([op.softmax(builder.product(node, channels, 100), 1)], [image])


def token_network() -> ov.Model:
    """Builds layers of a transformer; the input is [1, 128, 512] f32."""
    builder = _Probe()
    op = builder.op
    tokens = op.parameter([1, _ROWS, _COLUMNS], np.float32)
    node = tokens
    split, join = np.array([0, 2, 1, 3]), np.array((1, _ROWS, _COLUMNS))
    heads = np.array((1, _ROWS, _HEADS, _COLUMNS // _HEADS))
    for _ in range(_LAYERS):
        sides = [
            op.transpose(op.reshape(builder.product(node, _COLUMNS, _COLUMNS), heads, False), split) for _ in range(3)
        ]
        attention = op.transpose(op.scaled_dot_product_attention(*sides, causal=False), split)
        joined = builder.product(op.reshape(attention, join, False), _COLUMNS, _COLUMNS)
        node = builder.norm(op.add(node, joined))
        inner = op.gelu(builder.product(node, _COLUMNS, 4 * _COLUMNS), "erf")
        node = builder.norm(op.add(node, builder.product(inner, 4 * _COLUMNS, _COLUMNS)))
    return builder.model_of([node], [tokens])


class _Probe(Builder):
    """Layers with biases, as real models have them."""

    def convolution(self, source: Any, channels: int, out: int, kernel: int = 1, stride: int = 1) -> Any:
        """Makes a convolution with a bias, see `conv`."""
        return self.op.add(self.conv(source, channels, out, kernel, stride), self.weights(1, out, 1, 1))

    def product(self, source: Any, inner: int, out: int) -> Any:
        """Makes a matrix product with a bias, see `matrix_product`."""
        return self.op.add(self.matrix_product(source, inner, out), self.weights(out))

    def norm(self, source: Any) -> Any:
        """Makes a layer normalization of tokens with `_COLUMNS` columns."""
        node = self.op.mvn(source, np.array([2]), True, 1e-6, "inside_sqrt")
        return self.op.add(self.op.multiply(node, self.weights(_COLUMNS)), self.weights(_COLUMNS))
