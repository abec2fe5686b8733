"""Two small probe networks, built as real models are: residual blocks of convolutions, and layers of a transformer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import openvino as ov

# [channels, side] of residual blocks, two of each.
_STAGES = ((256, 56), (512, 28), (1024, 14))

_ROWS, _COLUMNS, _HEADS, _LAYERS = 128, 512, 8, 3


def image_network() -> ov.Model:
    """Residual blocks; input [1, 64, 56, 56] f32."""
    builder = _Builder()
    op = builder.op
    image = op.parameter([1, 64, 56, 56], np.float32)
    node, channels = image, 64
    for wide, side in _STAGES:
        for number in range(2):
            stride = 2 if number == 0 and side < 56 else 1
            inner = wide // 4
            branch = op.relu(builder.convolution(node, channels, inner, 1, 1))
            branch = op.relu(builder.convolution(branch, inner, inner, 3, stride))
            branch = builder.convolution(branch, inner, wide, 1, 1)
            skip = builder.convolution(node, channels, wide, 1, stride) if number == 0 else node
            node, channels = op.relu(op.add(branch, skip)), wide
    node = op.reduce_mean(node, np.array([2, 3]), False)
    return builder.model(op.softmax(builder.product(node, channels, 100), 1), image)


def token_network() -> ov.Model:
    """Layers of a transformer; input [1, 128, 512] f32."""
    builder = _Builder()
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
    return builder.model(node, tokens)


class _Builder:
    def __init__(self) -> None:
        from ov_hsdag.utils.compat import opset13 as opset

        self.op = opset
        self._random = np.random.default_rng(0)

    def convolution(self, source: Any, channels: int, out: int, kernel: int, stride: int) -> Any:
        pad = [kernel // 2] * 2
        weights = self._weights((out, channels, kernel, kernel), channels * kernel**2)
        node = self.op.convolution(source, weights, [stride] * 2, pad, pad, [1, 1])
        return self.op.add(node, self._weights((1, out, 1, 1), 1))

    def product(self, source: Any, inner: int, out: int) -> Any:
        node = self.op.matmul(source, self._weights((inner, out), inner), False, False)
        return self.op.add(node, self._weights((out,), 1))

    def norm(self, source: Any) -> Any:
        node = self.op.mvn(source, np.array([2]), True, 1e-6, "inside_sqrt")
        return self.op.add(self.op.multiply(node, self._weights((_COLUMNS,), 1)), self._weights((_COLUMNS,), 1))

    def model(self, node: Any, parameter: Any) -> ov.Model:
        import openvino as ov

        return ov.Model([self.op.result(node)], [parameter], "ov_hsdag probe network")

    def _weights(self, shape: tuple[int, ...], inner: int) -> Any:
        values = self._random.standard_normal(shape, np.float32) / np.float32(np.sqrt(inner))
        return self.op.constant(values)
