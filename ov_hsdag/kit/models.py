"""Builds eight models from OpenVINO's operations, with random weights from a seed, without downloads.

They have the structures of models that people deploy, and sizes that one CPU core runs in 5 to 100 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ov_hsdag.calibration.models import Builder
from ov_hsdag.kit.decoder import DecoderSize, decoder
from ov_hsdag.utils.lazy import ov

# Side of the square images, in pixels.
_IMAGE_SIDE = 192

# Tokens of an encoder's text, and of a decoder's prompt.
_TOKENS = 128

_VOCABULARY = 8192  # tokens that texts can have: fewer than real models, so that embeddings do not dominate

_DECODER_INPUTS = ("input_ids", "attention_mask", "position_ids")


@dataclass(frozen=True)
class KitModel:
    """A model of the kit.

    Attributes:
        name: its name in tables.
        build: makes the model.
        shapes: example shapes of its dynamic inputs, by input name, for measuring.
    """

    name: str
    build: Callable[[], ov.Model]
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


class _KitBuilder(Builder):
    """Adds the blocks of the kit's models; sources and results are nodes, f32."""

    def biased(self, source: Any, channels: int, out: int, kernel: int = 1, stride: int = 1) -> Any:
        """A convolution with a bias.

        Args:
            source: images, [batch, channels, height, width].
            channels: channels of `source`.
            out: channels of the result.
            kernel: side of the kernel.
            stride: stride in both directions.

        Returns:
            The images, padded so that stride 1 keeps their size.
        """
        return self.op.add(self.conv(source, channels, out, kernel, stride), self.weights(1, out, 1, 1))

    def quantized(self, source: Any, limit: float = 4.0) -> Any:
        """A FakeQuantize with 256 levels between -limit and limit, as tools for quantization insert it."""
        low, high = np.float32(-limit), np.float32(limit)
        return self.op.fake_quantize(source, low, high, low, high, 256)

    def residual(self, source: Any, channels: int, out: int, stride: int, *, quantize: bool = False) -> Any:
        """A bottleneck block of ResNet.

        Args:
            source: images, [batch, channels, height, width].
            channels: channels of `source`.
            out: channels of the result.
            stride: stride of the middle convolution and of the skip connection.
            quantize: insert a FakeQuantize before each convolution, as int8 models have it.

        Returns:
            Images with `out` channels.
        """
        op, inner = self.op, out // 4

        def entering(x: Any) -> Any:
            """The input of a convolution, quantized if `quantize` is set."""
            return self.quantized(x) if quantize else x

        branch = op.relu(self.biased(entering(source), channels, inner))
        branch = op.relu(self.biased(entering(branch), inner, inner, 3, stride))
        branch = self.biased(entering(branch), inner, out)
        skip = self.biased(entering(source), channels, out, 1, stride) if (channels, stride) != (out, 1) else source
        return op.relu(op.add(branch, skip))

    def mobile(self, source: Any, channels: int, out: int, stride: int) -> Any:
        """An inverted residual block of MobileNet-v2: a widening, a depthwise and a narrowing convolution.

        Args:
            source: images, [batch, channels, height, width].
            channels: channels of `source`.
            out: channels of the result.
            stride: stride of the depthwise convolution.

        Returns:
            Images with `out` channels.
        """
        op, wide = self.op, 6 * channels
        node = op.clamp(self.biased(source, channels, wide), 0.0, 6.0)
        weights = self.weights(wide, 1, 1, 3, 3)
        node = op.group_convolution(node, weights, [stride] * 2, [1, 1], [1, 1], [1, 1])
        node = op.clamp(op.add(node, self.weights(1, wide, 1, 1)), 0.0, 6.0)
        node = self.biased(node, wide, out)
        return op.add(node, source) if (channels, stride) == (out, 1) else node

    def encoder_layer(self, source: Any, width: int, heads: int) -> Any:
        """A layer of BERT.

        Args:
            source: f32 [batch, tokens, width], of any batch and number of tokens.
            width: width between layers.
            heads: number of attention heads.

        Returns:
            f32 [batch, tokens, width].
        """
        op, order = self.op, np.array([0, 2, 1, 3])
        split, join = np.array([0, 0, heads, width // heads]), np.array([0, 0, width])
        projected = [self.matrix_product(source, width, width) for _ in range(3)]
        sides = [op.transpose(op.reshape(node, split, True), order) for node in projected]
        scores = op.softmax(
            op.matmul(sides[0], op.multiply(sides[1], np.float32((width // heads) ** -0.5)), False, True), 3
        )
        attended = op.reshape(op.transpose(op.matmul(scores, sides[2], False, False), order), join, True)
        node = self.norm(op.add(source, self.matrix_product(attended, width, width)), width)
        inner = op.gelu(op.add(self.matrix_product(node, width, 4 * width), self.weights(4 * width)), "erf")
        return self.norm(op.add(node, self.matrix_product(inner, 4 * width, width)), width)

    def norm(self, source: Any, width: int) -> Any:
        """A layer norm over the last axis."""
        node = self.op.mvn(source, np.array([2]), True, 1e-6, "inside_sqrt")
        return self.op.add(self.op.multiply(node, self.weights(width)), self.weights(width))

    def image(self) -> Any:
        """The input of image models, f32 [1, 3, side, side]."""
        image = self.op.parameter([1, 3, _IMAGE_SIDE, _IMAGE_SIDE], np.float32, name="image")
        image.output(0).set_names({"image"})
        return image


class _DecoderWeights:
    """Random weights of a decoder from a seed; implements `ov_hsdag.kit.decoder.DecoderWeights`."""

    def __init__(self) -> None:
        """Starts the random numbers with the seed of `Builder`."""
        self._builder = Builder()

    def table(self, *shape: int) -> ov.Node:
        """Makes an embedding or the matrices of all experts, see `DecoderWeights.table`."""
        node: ov.Node = self._builder.weights(*shape)
        return node

    def linear(self, x: ov.Node, inputs: int, outputs: int) -> ov.Node:
        """Applies a linear layer with new weights, see `DecoderWeights.linear`."""
        node: ov.Node = self._builder.matrix_product(x, inputs, outputs)
        return node

    def scale(self, width: int) -> ov.Node:
        """Makes the factors of a norm, f32 [width]."""
        node: ov.Node = self._builder.weights(width)
        return node


def _convolutional(*, quantize: bool = False) -> ov.Model:
    """Builds an image classifier like ResNet-50; `quantize` inserts a FakeQuantize before each convolution."""
    builder = _KitBuilder()
    op = builder.op
    image = builder.image()
    node, channels = op.relu(builder.biased(image, 3, 64, 7, 4)), 64
    for out, stride, blocks in ((256, 1, 2), (512, 2, 3), (1024, 2, 4), (2048, 2, 2)):
        for number in range(blocks):
            node = builder.residual(node, channels, out, stride if number == 0 else 1, quantize=quantize)
            channels = out
    logits = builder.matrix_product(op.reduce_mean(node, np.array([2, 3]), False), channels, 1000)
    return builder.model_of([op.softmax(logits, 1)], [image])


def _mobile() -> ov.Model:
    """Builds an image classifier like MobileNet-v2, of inverted residual blocks."""
    builder = _KitBuilder()
    image = builder.image()
    node, channels = builder.biased(image, 3, 32, 3, 2), 32
    for out, stride, blocks in ((24, 2, 2), (32, 2, 3), (64, 2, 4), (96, 1, 3), (160, 2, 3)):
        for number in range(blocks):
            node = builder.mobile(node, channels, out, stride if number == 0 else 1)
            channels = out
    logits = builder.matrix_product(builder.op.reduce_mean(node, np.array([2, 3]), False), channels, 1000)
    return builder.model_of([logits], [image])


def _detector() -> ov.Model:
    """Builds an object detector: a backbone, heads at two scales, and non-maximum suppression.

    The output of the suppression has a dynamic length.
    """
    builder = _KitBuilder()
    op = builder.op
    image = builder.image()
    node, channels, scales = op.relu(builder.biased(image, 3, 32, 3, 2)), 32, []
    for out, stride in ((64, 2), (128, 2), (256, 2), (512, 2)):
        node = builder.residual(builder.residual(node, channels, out, stride), out, out, 1)
        channels = out
        scales.append((node, out))
    boxes: list[Any] = []
    scores: list[Any] = []
    classes = 20
    for source, width in scales[-2:]:
        head = op.relu(builder.biased(source, width, 128, 3))
        for made, size in ((boxes, 4), (scores, classes)):
            found = op.transpose(builder.biased(head, 128, size), np.array([0, 2, 3, 1]))
            made.append(op.reshape(found, np.array([1, -1, size]), False))
    corners = op.sigmoid(op.concat(boxes, 1))
    confidence = op.transpose(op.softmax(op.concat(scores, 1), 2), np.array([0, 2, 1]))
    kept = op.non_max_suppression(corners, confidence, np.int64(10), np.float32(0.6), np.float32(0.06))
    return builder.model_of([kept.output(0), corners], [image])


def _encoder(*, tokens: int) -> ov.Model:
    """Builds a text encoder like BERT of six layers; `tokens` is the length of its text, -1 for a dynamic one."""
    builder, width = _KitBuilder(), 384
    op = builder.op
    ids = op.parameter([1, tokens], np.int64, name="input_ids")
    ids.output(0).set_names({"input_ids"})
    node = op.gather(builder.weights(_VOCABULARY, width), ids, np.int64(0))
    for _ in range(6):
        node = builder.encoder_layer(builder.norm(node, width), width, 6)
    pooled = op.reduce_mean(node, np.array([1]), False)
    return builder.model_of([op.tanh(builder.matrix_product(pooled, width, width))], [ids])


def _decoder(*, experts: int = 0) -> ov.Model:
    """Builds a stateful language model; `experts` is their number in each layer, two for each token, 0 for none."""
    size = DecoderSize(
        layers=6 if experts == 0 else 4,
        heads=8,
        head=64,
        inner=1536 if experts == 0 else 512,
        vocabulary=_VOCABULARY,
        shared=2,
        experts=experts,
    )
    return decoder(size, _DecoderWeights())


_PROMPT = {**dict.fromkeys(_DECODER_INPUTS, (1, _TOKENS)), "beam_idx": (1,)}

KIT: tuple[KitModel, ...] = (
    KitModel("convolutional", _convolutional),
    KitModel("convolutional, int8", lambda: _convolutional(quantize=True)),
    KitModel("mobile", _mobile),
    KitModel("detector", _detector),
    KitModel("encoder", lambda: _encoder(tokens=_TOKENS)),
    KitModel("encoder, open length", lambda: _encoder(tokens=-1), {"input_ids": (1, _TOKENS)}),
    KitModel("decoder", _decoder, _PROMPT),
    KitModel("mixture of experts", lambda: _decoder(experts=8), _PROMPT),
)
"""The models, in the order in which they are measured."""
