"""Builds a stateful decoder like Llama in the form that optimum-intel exports: beams, rotary positions, a mask.

Methods add operations of OpenVINO to the model and return their outputs; comments and docstrings give the shapes. In
shapes, `shared` is the number of heads of keys and values, and `head` the width of a head.
"""

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
    """Builds the model of a decoder.

    Its inputs are input_ids, attention_mask and position_ids, i64 [batch, tokens], and beam_idx, i32 [batch]. The input
    of each layer but the first has a friendly name: "into_layer_1" and so on.

    Args:
        size: the sizes of the decoder.
        weights: the source of weights, asked once for each.

    Returns:
        The model; its output is logits, f32 [batch, tokens, vocabulary].
    """
    built = _Decoder(size, weights)
    x = built.embedded
    for layer in range(size.layers):
        if layer:
            x.set_friendly_name(f"into_layer_{layer}")
        x = ops.add(x, built.attention(built.norm(x), layer))
        entered = built.norm(x)
        x = ops.add(x, built.experts(entered) if size.experts else built.feed_forward(entered, size.inner))
    logits = weights.linear(built.norm(x), size.hidden, size.vocabulary)
    inputs = [built.ids, built.mask, built.positions, built.beams]
    model = ov.Model([ops.result(logits)], built.sinks, inputs, "decoder")
    for parameter in model.get_parameters():
        parameter.output(0).get_tensor().set_names({parameter.get_friendly_name()})
    return model


class _Decoder:
    """A decoder under construction: its inputs, the nodes that all layers read, and the parts that layers consist of.

    Attributes:
        ids: the input input_ids.
        mask: the input attention_mask.
        positions: the input position_ids.
        beams: the input beam_idx.
        embedded: embeddings of the tokens, f32 [batch, tokens, hidden], the input of the first layer.
        sinks: the Assigns of the states so far.
    """

    def __init__(self, size: DecoderSize, weights: DecoderWeights) -> None:
        """Makes the inputs, the embeddings, and the sines and cosines of the rotary positions."""
        self.size, self.weights = size, weights
        self.heads, self.hidden, self.shared = size.heads, size.hidden, size.shared or size.heads
        self.ids = ops.parameter([-1, -1], ov.Type.i64, name="input_ids")
        self.mask = ops.parameter([-1, -1], ov.Type.i64, name="attention_mask")
        self.positions = ops.parameter([-1, -1], ov.Type.i64, name="position_ids")
        self.beams = ops.parameter([-1], ov.Type.i32, name="beam_idx")
        self.sinks: list[ov.Node] = []

        self._batch = ops.gather(ops.shape_of(self.ids), np.array([0]), np.int64(0))
        self._tokens = ops.gather(ops.shape_of(self.ids), np.int64(1), np.int64(0))
        table = weights.table(size.vocabulary, self.hidden)
        self.embedded = ops.gather(table, ops.convert(self.ids, "i32"), np.int64(0))
        frequencies = (1 / size.base ** (np.arange(size.head // 2) / (size.head // 2))).astype(np.float32)[None]
        positions = ops.unsqueeze(ops.convert(self.positions, "f32"), np.int64(2))
        angles = ops.matmul(positions, frequencies, False, False)
        angles = ops.unsqueeze(ops.concat([angles, angles], 2), np.int64(1))
        self._cosine, self._sine = ops.cos(angles), ops.sin(angles)
        # The first layer makes these, and the others read them.
        self._bias: ov.Node | None = None
        self._repeated_shapes: list[ov.Node] = []

    def norm(self, x: ov.Node) -> ov.Node:
        """Adds an RMS norm over the last axis, with new weights."""
        mean = ops.reduce_mean(ops.power(x, np.float32(2)), np.array([-1]), True)
        normalized = ops.divide(x, ops.sqrt(ops.add(mean, np.float32(1e-6))))
        return ops.multiply(normalized, self.weights.scale(self.hidden))

    def attention(self, entered: ov.Node, layer: int) -> ov.Node:
        """Adds the attention of a layer to all tokens so far.

        Args:
            entered: input of the attention, f32 [batch, tokens, hidden].
            layer: number of the layer, which names its states.

        Returns:
            f32 [batch, tokens, hidden].
        """
        linear, hidden, width = self.weights.linear, self.hidden, self.shared * self.size.head
        query = self._rotated(self._split_heads(linear(entered, hidden, hidden), self.heads))
        keys = self._rotated(self._split_heads(linear(entered, hidden, width), self.shared))
        all_keys, past_keys = self._with_past(keys, f"keys.{layer}")
        values = self._split_heads(linear(entered, hidden, width), self.shared)
        all_values, _ = self._with_past(values, f"values.{layer}")
        if self._bias is None:
            self._bias = self._new_bias(past_keys)
        attended = ops.scaled_dot_product_attention(
            query, self._repeated(all_keys), self._repeated(all_values), self._bias
        )
        joined = ops.reshape(ops.transpose(attended, np.array([0, 2, 1, 3])), np.array([0, 0, hidden]), True)
        return linear(joined, hidden, hidden)

    def feed_forward(self, entered: ov.Node, inner: int) -> ov.Node:
        """Adds a gated feed-forward network from and to f32 [batch, tokens, hidden]; `inner` is the width inside it."""
        linear, hidden = self.weights.linear, self.hidden
        gate = ops.swish(linear(entered, hidden, inner))
        return linear(ops.multiply(gate, linear(entered, hidden, inner)), inner, hidden)

    def experts(self, entered: ov.Node) -> ov.Node:
        """Adds a mixture of experts, of which each token chooses some, from and to f32 [batch, tokens, hidden]."""
        size, table, hidden = self.size, self.weights.table, self.hidden
        count = size.experts
        tokens = ops.reshape(entered, np.array([-1, hidden]), False)
        probable = ops.softmax(self.weights.linear(tokens, hidden, count), -1)
        best = ops.topk(probable, np.int64(size.chosen), -1, "max", "value", index_element_type="i64")
        shares = ops.divide(best.output(0), ops.reduce_sum(best.output(0), np.array([-1]), True))
        length = ops.gather(ops.shape_of(best.output(1)), np.array([0]), np.int64(0))
        none = ops.broadcast(np.float32(0), ops.concat([length, np.array([count])], 0))
        routed = ops.scatter_elements_update(none, best.output(1), shares, np.int64(1))
        copies = ops.reshape(ops.tile(tokens, np.array([count, 1])), np.array([count, -1, hidden]), False)
        gate = ops.matmul(copies, table(count, size.inner, hidden), False, True)
        up = ops.matmul(copies, table(count, size.inner, hidden), False, True)
        # A product with a sigmoid becomes a Swish without a second input, the only form that plugins recognise.
        gated = ops.multiply(ops.multiply(gate, ops.sigmoid(gate)), up)
        down = ops.matmul(gated, table(count, hidden, size.inner), False, True)
        share = ops.reshape(ops.transpose(routed, np.array([1, 0])), np.array([count, -1]), False)
        weighted = ops.multiply(
            ops.reshape(down, np.array([count, 0, hidden]), True), ops.unsqueeze(share, np.array([-1]))
        )
        added = ops.reshape(ops.reduce_sum(weighted, np.array([0]), False), ops.shape_of(entered), False)
        return ops.add(added, self.feed_forward(entered, size.common)) if size.common else added

    def _rotated(self, x: ov.Node) -> ov.Node:
        """Applies the rotary positions to queries or keys, f32 [batch, heads, tokens, head]."""
        first, second = ops.split(x, np.int64(3), 2).outputs()
        turned = ops.concat([ops.multiply(second, np.float32(-1)), first], 3)
        return ops.add(ops.multiply(x, self._cosine), ops.multiply(turned, self._sine))

    def _split_heads(self, x: ov.Node, count: int) -> ov.Node:
        """Splits [batch, tokens, count · head] into [batch, count, tokens, head]."""
        return ops.transpose(ops.reshape(x, np.array([0, 0, count, self.size.head]), True), np.array([0, 2, 1, 3]))

    def _with_past(self, new: ov.Node, name: str) -> tuple[ov.Node, ov.Node]:
        """Appends keys or values to those of a state.

        Args:
            new: keys or values of the new tokens, f32 [batch, shared, tokens, head].
            name: name of the state.

        Returns:
            Keys or values of all tokens, which the state keeps, and the ReadValue of the state.
        """
        head = self.size.head
        empty = ops.broadcast(
            np.float32(0), ops.concat([self._batch, np.array([self.shared]), np.array([0]), np.array([head])], 0)
        )
        read = ops.read_value(empty, name, ov.Type.f32, ov.PartialShape([-1, self.shared, -1, head]))
        joined = ops.concat([ops.gather(read, self.beams, np.int64(0)), new], 2)
        self.sinks.append(ops.assign(joined, name))
        return joined, read

    def _repeated(self, x: ov.Node) -> ov.Node:
        """Repeats keys or values, f32 [batch, shared, all tokens, head], so that each head of queries has its own.

        The first call makes the nodes that compute the new shapes from the number of tokens. All later layers read
        them, as in traced models.

        Returns:
            f32 [batch, heads, all tokens, head].
        """
        heads, shared, head = self.heads, self.shared, self.size.head
        if shared == heads:
            return x
        if not self._repeated_shapes:
            shape = ops.shape_of(x)
            known, length = (ops.gather(shape, np.array(at), np.int64(0)) for at in ([0, 1], [2]))
            by_query = ops.concat([known, np.array([heads // shared]), length, np.array([head])], 0)
            outer = ops.gather(shape, np.array([0]), np.int64(0))
            joined = ops.concat([outer, np.array([heads]), length, np.array([head])], 0)
            self._repeated_shapes += [by_query, joined]
        wide = ops.broadcast(ops.unsqueeze(x, np.int64(2)), self._repeated_shapes[0], broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(wide, self._repeated_shapes[1], False)

    def _new_bias(self, past_keys: ov.Node) -> ov.Node:
        """Makes the bias of attention: 0 for tokens that a token sees, -10,000 for others.

        A token sees itself and those before it that the mask keeps.

        Args:
            past_keys: state whose shape has the number of past tokens, f32 [batch, shared, past tokens, head].

        Returns:
            The bias, f32 [batch, 1, tokens, all tokens].
        """
        past = ops.gather(ops.shape_of(past_keys), np.int64(2), np.int64(0))
        columns = ops.range(np.int64(0), ops.add(past, self._tokens), np.int64(1), "i64")
        seen = ops.less_equal(columns, ops.unsqueeze(self.positions, np.array([1, 3])))
        kept = ops.unsqueeze(ops.convert(self.mask, "boolean"), np.array([1, 2]))
        return ops.select(ops.logical_and(seen, kept), np.float32(0), np.float32(-1e4))
