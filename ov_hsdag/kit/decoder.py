"""Builds a stateful decoder like Llama in the form that optimum-intel exports: beams, rotary positions, a mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ov_hsdag.utils.lazy import opset13 as ops
from ov_hsdag.utils.lazy import ov


@dataclass(frozen=True)
class DecoderSize:
    """The sizes of a decoder."""

    layers: int  # number of layers, each with two states, keys and values [batch, shared, past tokens, head]
    heads: int  # number of attention heads
    head: int  # width of a head
    inner: int  # width inside the feed-forward network
    vocabulary: int  # number of tokens
    # number of heads of keys and values, each for heads / shared queries; 0 for as many as `heads`. The CPU plugin
    # fuses states and attention of this form, and stores states in KV_CACHE_PRECISION.
    shared: int = 0
    base: float = 1e4  # base of the wavelengths of rotary positions
    # number of feed-forward networks of a layer, `chosen` of which process each token; 0 for one network. Plugins fuse
    # this form.
    experts: int = 0
    chosen: int = 2  # number of experts for each token
    common: int = 0  # width inside a feed-forward network that processes all tokens besides the experts; 0 for none

    @property
    def hidden(self) -> int:
        """Width between layers."""
        return self.heads * self.head


class DecoderWeights(Protocol):
    """The source of a decoder's weights, called in the order of its layers."""

    def table(self, *shape: int) -> ov.Node:
        """The embedding, f32 [rows, columns], or the matrices of all experts, f32 [experts, outputs, inputs]."""

    def linear(self, x: ov.Node, inputs: int, outputs: int) -> ov.Node:
        """Applies a linear layer with weights of its own.

        Args:
            x: f32 [..., inputs].
            inputs: width of `x`.
            outputs: width of the result.

        Returns:
            f32 [..., outputs].
        """

    def scale(self, width: int) -> ov.Node:
        """The factors of a norm, f32 [width]."""


def decoder(size: DecoderSize, weights: DecoderWeights) -> ov.Model:
    """Builds the model.

    Its inputs are input_ids, attention_mask and position_ids, i64 [batch, tokens], and beam_idx, i32 [batch]. The input
    of each layer but the first has a friendly name: "into_layer_1" and so on.

    Args:
        size: the sizes of the decoder.
        weights: the source of weights, asked once for each.

    Returns:
        The model; its output is logits, f32 [batch, tokens, vocabulary].
    """
    heads, hidden, shared = size.heads, size.hidden, size.shared or size.heads
    linear = weights.linear

    def norm(x: ov.Node) -> ov.Node:
        mean = ops.reduce_mean(ops.power(x, np.float32(2)), np.array([-1]), True)
        return ops.multiply(ops.divide(x, ops.sqrt(ops.add(mean, np.float32(1e-6)))), weights.scale(hidden))

    ids = ops.parameter([-1, -1], ov.Type.i64, name="input_ids")
    mask = ops.parameter([-1, -1], ov.Type.i64, name="attention_mask")
    positions = ops.parameter([-1, -1], ov.Type.i64, name="position_ids")
    beams = ops.parameter([-1], ov.Type.i32, name="beam_idx")

    batch = ops.gather(ops.shape_of(ids), np.array([0]), np.int64(0))
    tokens = ops.gather(ops.shape_of(ids), np.int64(1), np.int64(0))
    x = ops.gather(weights.table(size.vocabulary, hidden), ops.convert(ids, "i32"), np.int64(0))
    frequencies = (1 / size.base ** (np.arange(size.head // 2) / (size.head // 2))).astype(np.float32)[None]
    angles = ops.matmul(ops.unsqueeze(ops.convert(positions, "f32"), np.int64(2)), frequencies, False, False)
    angles = ops.unsqueeze(ops.concat([angles, angles], 2), np.int64(1))
    cosine, sine = ops.cos(angles), ops.sin(angles)

    def rotated(x: ov.Node) -> ov.Node:
        first, second = ops.split(x, np.int64(3), 2).outputs()
        turned = ops.concat([ops.multiply(second, np.float32(-1)), first], 3)
        return ops.add(ops.multiply(x, cosine), ops.multiply(turned, sine))

    def split_heads(x: ov.Node, count: int) -> ov.Node:
        return ops.transpose(ops.reshape(x, np.array([0, 0, count, size.head]), True), np.array([0, 2, 1, 3]))

    sinks: list[ov.Node] = []
    first_state: list[ov.Node] = []

    def with_past(new: ov.Node, name: str) -> ov.Node:
        empty = ops.broadcast(
            np.float32(0), ops.concat([batch, np.array([shared]), np.array([0]), np.array([size.head])], 0)
        )
        read = ops.read_value(empty, name, ov.Type.f32, ov.PartialShape([-1, shared, -1, size.head]))
        first_state.append(read)
        joined = ops.concat([ops.gather(read, beams, np.int64(0)), new], 2)
        sinks.append(ops.assign(joined, name))
        return joined

    bias: ov.Node | None = None
    repeated_shapes: list[ov.Node] = []

    def repeated(x: ov.Node) -> ov.Node:
        """Repeats keys or values for each query; all layers read the length from the first, as traced models do."""
        if shared == heads:
            return x
        if not repeated_shapes:
            shape = ops.shape_of(x)
            known, length = (ops.gather(shape, np.array(at), np.int64(0)) for at in ([0, 1], [2]))
            repeated_shapes.append(ops.concat([known, np.array([heads // shared]), length, np.array([size.head])], 0))
            outer = ops.gather(shape, np.array([0]), np.int64(0))
            repeated_shapes.append(ops.concat([outer, np.array([heads]), length, np.array([size.head])], 0))
        wide = ops.broadcast(ops.unsqueeze(x, np.int64(2)), repeated_shapes[0], broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(wide, repeated_shapes[1], False)

    def feed_forward(entered: ov.Node, inner: int) -> ov.Node:
        gate = ops.swish(linear(entered, hidden, inner))
        return linear(ops.multiply(gate, linear(entered, hidden, inner)), inner, hidden)

    def of_experts(entered: ov.Node) -> ov.Node:
        count = size.experts
        tokens = ops.reshape(entered, np.array([-1, hidden]), False)
        probable = ops.softmax(linear(tokens, hidden, count), -1)
        best = ops.topk(probable, np.int64(size.chosen), -1, "max", "value", index_element_type="i64")
        shares = ops.divide(best.output(0), ops.reduce_sum(best.output(0), np.array([-1]), True))
        length = ops.gather(ops.shape_of(best.output(1)), np.array([0]), np.int64(0))
        none = ops.broadcast(np.float32(0), ops.concat([length, np.array([count])], 0))
        routed = ops.scatter_elements_update(none, best.output(1), shares, np.int64(1))
        copies = ops.reshape(ops.tile(tokens, np.array([count, 1])), np.array([count, -1, hidden]), False)
        gate = ops.matmul(copies, weights.table(count, size.inner, hidden), False, True)
        up = ops.matmul(copies, weights.table(count, size.inner, hidden), False, True)
        # A product with a sigmoid becomes a Swish without a second input, the only form that plugins recognise.
        gated = ops.multiply(ops.multiply(gate, ops.sigmoid(gate)), up)
        down = ops.matmul(gated, weights.table(count, hidden, size.inner), False, True)
        share = ops.reshape(ops.transpose(routed, np.array([1, 0])), np.array([count, -1]), False)
        weighted = ops.multiply(
            ops.reshape(down, np.array([count, 0, hidden]), True), ops.unsqueeze(share, np.array([-1]))
        )
        added = ops.reshape(ops.reduce_sum(weighted, np.array([0]), False), ops.shape_of(entered), False)
        return ops.add(added, feed_forward(entered, size.common)) if size.common else added

    for layer in range(size.layers):
        if layer:
            x.set_friendly_name(f"into_layer_{layer}")
        entered = norm(x)
        query = rotated(split_heads(linear(entered, hidden, hidden), heads))
        keys = with_past(rotated(split_heads(linear(entered, hidden, shared * size.head), shared)), f"keys.{layer}")
        values = with_past(split_heads(linear(entered, hidden, shared * size.head), shared), f"values.{layer}")
        if bias is None:
            past = ops.gather(ops.shape_of(first_state[0]), np.int64(2), np.int64(0))
            columns = ops.range(np.int64(0), ops.add(past, tokens), np.int64(1), "i64")
            seen = ops.less_equal(columns, ops.unsqueeze(positions, np.array([1, 3])))
            kept = ops.unsqueeze(ops.convert(mask, "boolean"), np.array([1, 2]))
            bias = ops.select(ops.logical_and(seen, kept), np.float32(0), np.float32(-1e4))
        attended = ops.scaled_dot_product_attention(query, repeated(keys), repeated(values), bias)
        joined = ops.reshape(ops.transpose(attended, np.array([0, 2, 1, 3])), np.array([0, 0, hidden]), True)
        x = ops.add(x, linear(joined, hidden, hidden))
        entered = norm(x)
        x = ops.add(x, of_experts(entered) if size.experts else feed_forward(entered, size.inner))
    logits = linear(norm(x), hidden, size.vocabulary)
    model = ov.Model([ops.result(logits)], sinks, [ids, mask, positions, beams], "decoder")
    for parameter in model.get_parameters():
        parameter.output(0).get_tensor().set_names({parameter.get_friendly_name()})
    return model
