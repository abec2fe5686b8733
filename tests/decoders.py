"""Builds small stateful decoders with random weights, runs them, and places their layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ov_hsdag.kit.decoder import DecoderSize, decoder
from ov_hsdag.model.affinities import set_affinities
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.utils.lazy import opset13 as ops

VOCABULARY = 64
# The CPU plugin keeps states in u8 by default, and HETERO hands the option to no device.
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}


class RandomWeights:
    """Makes weights of normal numbers, for `ov_hsdag.kit.decoder`."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def table(self, *shape: int) -> ov.Node:
        """A constant of this shape, f32."""
        return _weight(self._random, *shape)

    def linear(self, x: ov.Node, inputs: int, outputs: int) -> ov.Node:
        """The product of x, [..., inputs], and a matrix of weights: [..., outputs]."""
        return ops.matmul(x, _weight(self._random, inputs, outputs), False, False)

    def scale(self, width: int) -> ov.Node:
        """A constant of [width], f32, by which a normalization multiplies."""
        return _weight(self._random, width)


def stateful_decoder(layers: int = 4, *, heads: int = 4, shared: int = 2, size: int = 8, seed: int = 0) -> ov.Model:
    """Builds the decoder of `ov_hsdag.kit.decoder` with a vocabulary of 64 and normal weights.

    Args:
        layers: number of layers.
        heads: heads of queries.
        shared: heads of keys and values, see `DecoderSize`.
        size: width of a head.
        seed: of the weights.
    """
    sizes = DecoderSize(layers, heads, size, 2 * heads * size, VOCABULARY, shared=shared, base=100)
    return decoder(sizes, RandomWeights(seed))


def share_states(model: ov.Model) -> None:
    """Makes the last two attentions of a decoder read the keys and values of the two before them, in place."""
    attentions = [node for node in model.get_ordered_ops() if node.get_type_name() == "ScaledDotProductAttention"]
    for reader, owner in zip(attentions[-2:], attentions[-4:-2], strict=True):
        for port in (1, 2):
            reader.input(port).replace_source_output(owner.input_value(port))


def decoder_of_experts(
    layers: int = 3,
    *,
    experts: int = 8,
    chosen: int = 2,
    inner: int = 32,
    common: int = 0,
    heads: int = 4,
    size: int = 8,
) -> ov.Model:
    """Builds the decoder of `stateful_decoder` with experts in each layer.

    Args:
        layers: number of layers.
        experts: experts of a layer.
        chosen: experts that each token goes to.
        inner: inner width of an expert.
        common: width of a feed-forward network that all tokens go through besides; 0 for none.
        heads: heads of queries.
        size: width of a head.
    """
    sizes = DecoderSize(
        layers, heads, size, inner, VOCABULARY, shared=2, base=100, experts=experts, chosen=chosen, common=common
    )
    return decoder(sizes, RandomWeights(0))


def compiled(
    core: ov.Core, model: ov.Model, problem: PlacementProblem, placement: NDArray[np.uint8]
) -> ov.CompiledModel:
    """Compiles a model on HETERO with a placement, with one thread for each device and in f32.

    Args:
        core: has the devices.
        model: the model; it is not changed.
        problem: its problem on these devices.
        placement: device number of each group, uint8 [groups].
    """
    copy, devices = model.clone(), problem.devices
    set_affinities(copy, problem.affinity(placement))
    of_each = {"EXCLUSIVE_ASYNC_REQUESTS": False, "INFERENCE_NUM_THREADS": 1, **EXACT}
    return core.compile_model(
        copy, f"HETERO:{','.join(devices)}", {"DEVICE_PROPERTIES": dict.fromkeys(devices, of_each)}
    )


def generate(compiled: ov.CompiledModel, steps: int = 6, *, batch: int = 2, prompt: int = 5) -> list[NDArray[Any]]:
    """Runs a decoder on two seeded conversations, each with a prompt and further tokens, and resets states after each.

    The order of the beams is reversed once in each conversation.

    Args:
        compiled: the decoder.
        steps: inferences of a conversation: one for the prompt, the others for a token each.
        batch: sequences.
        prompt: tokens of the prompt.

    Returns:
        The first output, the logits, of each inference.
    """
    random = np.random.default_rng(0)
    request = compiled.create_infer_request()
    found = []
    for _ in range(2):
        total = 0
        for step in range(steps):
            count = 1 if step else prompt
            total += count
            request.infer(
                {
                    "input_ids": random.integers(0, VOCABULARY, (batch, count)),
                    "attention_mask": np.ones((batch, total), np.int64),
                    "position_ids": np.tile(np.arange(total - count, total), (batch, 1)),
                    "beam_idx": np.arange(batch, dtype=np.int32)[:: -1 if step == 3 else 1],
                }
            )
            found.append(request.get_output_tensor(0).data.copy())
        request.reset_state()
    return found


def _weight(random: np.random.Generator, *shape: int) -> ov.Node:
    """A constant of normal numbers, f32, with a variance of 1 over its first size."""
    return ops.constant((random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32))


def _named(model: ov.Model) -> ov.Model:
    """Gives the tensors of a model's inputs the names of their nodes, in place, and returns the model."""
    for parameter in model.get_parameters():
        parameter.output(0).get_tensor().set_names({parameter.get_friendly_name()})
    return model


def cross_attention_decoder(layers: int = 4, *, heads: int = 2, size: int = 8, seed: int = 0) -> ov.Model:
    """Builds a decoder like Whisper's. Half of its states are of its own tokens, half of another model's output.

    The latter are computed once.

    input_ids [batch, tokens] i64, encoder_hidden_states [batch, frames, heads * size] f32, beam_idx [batch] i32 →
    logits [batch, tokens, 64]. All layers read one mask with a bias for each head, of which OpenVINO knows no shape
    that does not depend on values, so that HETERO cannot hand it over.
    """
    random = np.random.default_rng(seed)
    hidden = heads * size
    ids = ops.parameter([-1, -1], ov.Type.i64, name="input_ids")
    encoded = ops.parameter([-1, -1, hidden], ov.Type.f32, name="encoder_hidden_states")
    beams = ops.parameter([-1], ov.Type.i32, name="beam_idx")
    batch = ops.gather(ops.shape_of(ids), np.array([0]), np.int64(0))
    tokens = ops.gather(ops.shape_of(ids), np.array([1]), np.int64(0))
    x = ops.gather(_weight(random, VOCABULARY, hidden), ops.convert(ids, "i32"), np.int64(0))
    sinks: list[ov.Node] = []
    lengths: list[ov.Node] = []

    def linear(x: ov.Node) -> ov.Node:
        return ops.matmul(x, _weight(random, hidden, hidden), False, False)

    def split_heads(x: ov.Node) -> ov.Node:
        return ops.transpose(ops.reshape(x, np.array([0, 0, heads, size]), True), np.array([0, 2, 1, 3]))

    def own(new: ov.Node, name: str) -> ov.Node:
        """Appends keys or values of new tokens to a state; returns all of them, [batch, heads, past + new, size]."""
        sizes = [batch, np.array([heads]), np.array([0]), np.array([size])]
        empty = ops.broadcast(np.float32(0), ops.concat(sizes, 0))
        read = ops.read_value(empty, name, ov.Type.f32, ov.PartialShape([-1, heads, -1, size]))
        if not lengths:
            lengths.append(ops.gather(ops.shape_of(read), np.array([2]), np.int64(0)))
        joined = ops.concat([ops.gather(read, beams, np.int64(0)), new], 2)
        sinks.append(ops.assign(joined, name))
        return joined

    def of_encoder(name: str) -> ov.Node:
        """Keeps keys or values of the encoder's frames in a state, from the first inference to a reset."""
        read = ops.read_value(split_heads(linear(encoded)), name, ov.Type.f32, ov.PartialShape([-1, heads, -1, size]))
        sinks.append(ops.assign(read, name))
        return read

    mask: ov.Node | None = None

    def attend(query: ov.Node, keys: ov.Node, values: ov.Node, seen: ov.Node | None) -> ov.Node:
        """Attention without a scale, [batch, tokens, hidden]. seen: is added to the scores; None for nothing."""
        scores = ops.matmul(query, keys, False, True)
        weights = ops.softmax(scores if seen is None else ops.add(scores, seen), -1)
        attended = ops.transpose(ops.matmul(weights, values, False, False), np.array([0, 2, 1, 3]))
        return ops.reshape(attended, np.array([0, 0, hidden]), True)

    for layer in range(layers):
        if layer:
            x.set_friendly_name(f"into_layer_{layer}")
        keys, values = (own(split_heads(linear(x)), f"{kind}.{layer}") for kind in ("keys", "values"))
        if mask is None:
            total = ops.add(lengths[0], tokens)
            columns = ops.range(np.int64(0), ops.squeeze(total, np.int64(0)), np.int64(1), "i64")
            rows = ops.unsqueeze(ops.range(ops.squeeze(lengths[0], np.int64(0)), ops.squeeze(total, np.int64(0)),
                                           np.int64(1), "i64"), np.array([1]))  # fmt: skip
            biases = ops.constant(np.linspace(0, 1, heads, dtype=np.float32).reshape(heads, 1, 1))
            sizes = ops.concat([batch, np.array([heads]), tokens, total], 0)
            alike = ops.broadcast(biases, ops.maximum(sizes, np.array([1, heads, 1, 1])), "BIDIRECTIONAL")
            mask = ops.select(ops.less_equal(columns, rows), alike, np.float32(-1e4))
        x = ops.add(x, linear(attend(split_heads(linear(x)), keys, values, mask)))
        crossed = attend(split_heads(linear(x)), of_encoder(f"361.{layer}"), of_encoder(f"244.{layer}"), None)
        x = ops.add(x, linear(ops.add(crossed, ops.tanh(linear(x)))))
    logits = ops.matmul(x, _weight(random, hidden, VOCABULARY), False, False)
    return _named(ov.Model([ops.result(logits)], sinks, [ids, encoded, beams], "cross_attention_decoder"))


def convolution_decoder(layers: int = 4, *, window: int = 4, hidden: int = 16, seed: int = 0) -> ov.Model:
    """Builds a decoder whose states do not grow, with a Mamba's inputs: each layer stores the last `window` inputs.

    input_ids, attention_mask [batch, tokens] i64, cache_position [window] with a prompt and [1] after it i64, beam_idx
    [batch] i32 → logits [batch, tokens, 64].
    """
    random = np.random.default_rng(seed)
    ids = ops.parameter([-1, -1], ov.Type.i64, name="input_ids")
    mask = ops.parameter([-1, -1], ov.Type.i64, name="attention_mask")
    position = ops.parameter([-1], ov.Type.i64, name="cache_position")
    beams = ops.parameter([-1], ov.Type.i32, name="beam_idx")
    batch = ops.gather(ops.shape_of(ids), np.array([0]), np.int64(0))
    count = ops.gather(ops.shape_of(position), np.array([0]), np.int64(0))
    kept = ops.unsqueeze(ops.convert(mask, "f32"), np.int64(2))
    x = ops.gather(_weight(random, VOCABULARY, hidden), ops.convert(ids, "i32"), np.int64(0))
    columns = ops.unsqueeze(ops.minimum(position, np.int64(window - 1)), np.int64(1))
    sinks = []
    for layer in range(layers):
        if layer:
            x.set_friendly_name(f"into_layer_{layer}")
        start = ops.broadcast(np.float32(0), ops.concat([batch, np.array([hidden]), np.array([window])], 0))
        name = f"cache_params.past.conv.{layer}"
        read = ops.read_value(start, name, ov.Type.f32, ov.PartialShape([-1, hidden, window]))
        past = ops.roll(ops.gather(read, beams, np.int64(0)), np.int64(-1), np.int64(-1))
        # The newest inputs, as many as there are cache positions: a prompt is longer than the window here.
        entered = ops.multiply(ops.matmul(x, _weight(random, hidden, hidden), False, False), kept)
        newest = ops.slice(
            entered, ops.multiply(count, np.array([-1])), np.array([2**31 - 1]), np.array([1]), np.array([1])
        )
        updates = ops.transpose(newest, np.array([1, 0, 2]))
        updated = ops.scatter_nd_update(ops.transpose(past, np.array([2, 0, 1])), columns, updates)
        state = ops.transpose(updated, np.array([1, 2, 0]))
        sinks.append(ops.assign(state, name))
        summed = ops.reduce_sum(ops.multiply(state, _weight(random, window)), np.array([2]), False)
        x = ops.add(x, ops.tanh(ops.add(entered, ops.unsqueeze(summed, np.int64(1)))))
    logits = ops.matmul(x, _weight(random, hidden, VOCABULARY), False, False)
    return _named(ov.Model([ops.result(logits)], sinks, [ids, mask, position, beams], "convolution_decoder"))


def layered(problem: PlacementProblem, boundary: int) -> NDArray[np.uint8]:
    """Splits a decoder of this module into two parts, at the hidden state "into_layer_N" of one layer.

    Args:
        problem: its problem on two devices.
        boundary: the first layer of the second part, 1 at least.

    Returns:
        Device number of each group, uint8 [groups]: 1 for all that depends on that state, else 0.
    """
    graph = problem.graph
    later = np.zeros(graph.nodes, bool)
    later[graph.input_node[graph.input_source == graph.index(f"into_layer_{boundary}")]] = True
    for node in range(graph.nodes):
        sources = graph.input_source[graph.input_ptr[node] : graph.input_ptr[node + 1]]
        later[node] |= bool(later[sources].any())
    placement = np.zeros(problem.group_count, np.uint8)
    placement[problem.groups[later]] = 1
    return placement
