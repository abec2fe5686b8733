"""Memory of a model on each device: bytes held as long as it is loaded, and bytes of tensors while they are alive.

Held bytes are weights and states. A state of a decoder is mostly a KV cache: the keys or the values of one attention
for all tokens so far. Its Concat joins past and new keys or values, and assigns the result to the state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.costs.experts import ExecutedGraphs
from ov_hsdag.costs.profile import DeviceProfile, Profile
from ov_hsdag.devices import discovery
from ov_hsdag.devices.runtime_options import runtime_options
from ov_hsdag.model.graph import ComputationGraph, NodeKind
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import ov

# Precisions of KV caches that plugins have.
KV_PRECISIONS = ("u8", "f16", "bf16", "f32")

# Bytes of an element, by precision.
_ELEMENT_BYTES = {"u8": 1.0, "f16": 2.0, "bf16": 2.0, "f32": 4.0}

# Bytes that a quantised KV cache takes for each head of each token beside the elements: a scale and a zero point of 32
# bits each (CPU plugin).
_BYTES_PER_QUANTISED_HEAD = 8.0

# Buffers of a state that is not a KV cache: the CPU plugin reads one while it writes another.
_STATE_BUFFERS = {"CPU": 2}

# Operations between a KV cache and its attention, and their largest number: heads that several queries share are
# repeated. The plugin repeats them while it reads, so the repeated tensors take no memory.
_REPEATING = frozenset({"Unsqueeze", "Broadcast", "Tile", "Multiply", "Reshape", "Transpose", "Convert"})
_MOST_REPEATING = 6

_SCORE_TENSORS = 6
"""Tensors of the size of an attention's scores that the CPU plugin needs if it does not fuse the attention.

Scores of two attentions are alive at once, and each takes two to three tensors (measured: 4.1 to 6.5 together,
docs/reference/facts.md).
"""

_SCORE_BYTES = 4
"""Bytes of a score, which is f32."""


@dataclass(frozen=True, eq=False)
class States:
    """The states of a graph."""

    node: NDArray[np.int64]  # the ReadValue of each state, int64 [states]
    elements: NDArray[np.float64]  # number of elements that each holds after an inference, float64 [states]
    bytes: NDArray[np.float64]  # bytes of these in the model's element type, float64 [states]
    cache: NDArray[np.bool_]  # whether an attention reads it as its keys or values (a KV cache), bool [states]
    heads: NDArray[np.float64]  # number of rows, each of which is quantised as a whole, float64 [states]
    # whether an output is a KV cache itself, or its repeated heads, and takes no further memory, bool [outputs]
    alias: NDArray[np.bool_]
    joined: NDArray[np.bool_]  # whether an output joins past and new keys or values of a KV cache, bool [outputs]

    @classmethod
    def of(cls, graph: ComputationGraph) -> States:
        """Finds the states of a graph. A state has the size of the tensor that is assigned to it."""
        reads, assigns = (
            {graph.variables[node]: node for node, kind in enumerate(graph.types) if kind == wanted}
            for wanted in ("ReadValue", "Assign")
        )
        assigned = {name: int(graph.input_output[graph.input_ptr[node]]) for name, node in assigns.items()}
        states = [(reads[name], assigned[name]) for name in reads if name in assigned]
        alias, joined = np.zeros(graph.outputs, bool), np.zeros(graph.outputs, bool)
        shapes = [graph.output_shapes[output] for _, output in states]
        sizes = np.array([graph.output_bytes[output] for _, output in states], np.float64)
        # The graph of a workload has the bytes of its largest inference and the shapes of another one, so the number of
        # elements follows from the bytes.
        width = np.array([_ELEMENT_BYTES.get(graph.output_types[output], 4.0) for _, output in states])
        elements = sizes / width
        rows = np.array([max(shape[-1], 1) if shape else 1 for shape in shapes], np.float64)
        cache = np.array([_mark_cache(graph, read, output, alias) for read, output in states], bool)
        joined[[output for (_, output), is_cache in zip(states, cache, strict=True) if is_cache]] = True
        nodes = np.array([read for read, _ in states], np.int64)
        return cls(nodes, elements, sizes, cache, elements / rows, alias, joined)


def _mark_cache(graph: ComputationGraph, read: int, assigned: int, alias: NDArray[np.bool_]) -> bool:
    """Recognises a state as a KV cache, and marks the outputs that take no memory beside it.

    In a KV cache, the assigned tensor is a Concat of the state's old value (perhaps reordered by a Gather for beam
    search) and new values, and an attention reads it.

    Args:
        graph: the graph.
        read: the ReadValue of the state.
        assigned: number of the output that is assigned to the state.
        alias: `States.alias`, bool [outputs]; changed in place if the state is a KV cache.

    Returns:
        Whether the state is a KV cache.
    """
    joined = int(graph.output_node[assigned])
    if graph.types[joined] != "Concat":
        return False
    cache_outputs = [int(graph.output_ptr[read]), assigned]
    for output in graph.input_output[graph.input_ptr[joined] : graph.input_ptr[joined + 1]].tolist():
        source = int(graph.output_node[output])
        if graph.types[source] == "Gather" and graph.input_source[graph.input_ptr[source]] == read:  # beams
            cache_outputs.append(output)
            break
        if source == read:
            break
    else:
        return False
    repeated, attentions = _attentions(graph, assigned)
    if not attentions:
        return False
    alias[[*cache_outputs, *repeated]] = True
    return True


def _attentions(graph: ComputationGraph, output: int) -> tuple[list[int], list[int]]:
    """Finds the attentions that read keys or values, directly or through operations of `_REPEATING`.

    Args:
        graph: the graph.
        output: number of the output with the keys or values.

    Returns:
        repeated: numbers of the outputs between `output` and the attentions.
        attentions: the attention nodes; a node that reads keys or values several times is there as often.
    """
    front, attentions = [output], list[int]()
    repeated: list[int] = []
    for _ in range(_MOST_REPEATING):
        following = []
        for front_output in front:
            for node in graph.consumers(front_output).tolist():
                if graph.types[node] == "ScaledDotProductAttention":
                    attentions.append(node)
                elif graph.types[node] in _REPEATING and graph.input_output[graph.input_ptr[node]] == front_output:
                    following.append(int(graph.output_ptr[node]))
        repeated += following
        front = following
    return repeated, attentions


def attention_scores(graph: ComputationGraph, states: States) -> dict[int, int]:
    """Computes the bytes of attention scores that the CPU plugin stores as tensors, by attention node.

    Attentions that the plugin fuses are left out, as their scores take no memory.

    The plugin fuses an attention with its states if no other attention reads these, and then stores no scores of a
    first prompt. If several attentions read one KV cache, as in models that share caches between layers, each becomes
    products and a softmax, with `_SCORE_TENSORS` tensors of f32. Each tensor has an element per head, new token and
    token (docs/reference/facts.md).
    """
    scores: dict[int, int] = {}
    for joined in np.flatnonzero(states.joined).tolist():
        attentions = _attentions(graph, joined)[1]
        if len(set(attentions)) > 1:
            scores |= {node: _score_bytes(graph, node) for node in attentions}
    return scores


def _score_bytes(graph: ComputationGraph, attention: int) -> int:
    """Bytes of all tensors of an attention's scores, from the bytes of its keys and of its output."""
    keys, output = int(graph.input_output[graph.input_ptr[attention] + 1]), int(graph.output_ptr[attention])
    key_shape, width = graph.output_shapes[keys], graph.output_shapes[output][-1]
    rows = graph.output_bytes[output] / max(width * _ELEMENT_BYTES.get(graph.output_types[output], 4.0), 1)
    of_token = math.prod((*key_shape[:-2], key_shape[-1])) * _ELEMENT_BYTES.get(graph.output_types[keys], 4.0)
    return int(_SCORE_TENSORS * _SCORE_BYTES * rows * graph.output_bytes[keys] / max(of_token, 1))


def check_kv_precision(precision: str | None) -> None:
    """Raises UserError where `precision` is neither None nor one of `KV_PRECISIONS`."""
    if precision is not None and precision not in KV_PRECISIONS:
        raise UserError(f"unknown precision of KV caches '{precision}'; choose one of {', '.join(KV_PRECISIONS)}")


def kv_precisions(model: ov.Model, core: ov.Core, profile: Profile, names: Sequence[str]) -> tuple[str, ...]:
    """Determines the precision in which each device keeps KV caches.

    The profile takes precedence over the model's own choice (`runtime_options`), and that over the device's property.

    Args:
        model: the model.
        core: the Core, whose devices are asked for the property.
        profile: profile of the devices.
        names: names of the devices.

    Returns:
        A precision of `KV_PRECISIONS` for each device.
    """
    model_choice = _valid_kv_precision(runtime_options(model).get("KV_CACHE_PRECISION", ""))
    devices = [profile.device(name) for name in names]
    return tuple(
        device.kv_precision
        or model_choice
        or _valid_kv_precision(discovery.property_text(core, name, "KV_CACHE_PRECISION"))
        or _default_kv_precision(device)
        for name, device in zip(names, devices, strict=True)
    )


def _valid_kv_precision(text: str | None) -> str | None:
    """Returns a property's text if it is a precision of `KV_PRECISIONS`, else None."""
    text = "u8" if text == "i8" else text  # the GPU plugin has i8, which takes the same memory
    return text if text in KV_PRECISIONS else None


def _default_kv_precision(device: DeviceProfile) -> str:
    """The plugin's default precision of KV caches, since 2025.0.

    GPUs without matrix engines keep them in 8 bits, as CPUs do
    (src/plugins/intel_gpu/src/runtime/execution_config.cpp).
    """
    return "u8" if device.kind == "CPU" or (device.kind == "GPU" and not device.has_matrix_engines) else "f16"


def memory_needs(
    model: ov.Model,
    graph: ComputationGraph,
    core: ov.Core,
    profile: Profile,
    names: Sequence[str],
    storage_ratio: NDArray[np.float64],
) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None]:
    """Computes `held_bytes` and `live_bytes` of `PlacementProblem`, in bytes of the graph.

    A problem counts memory in bytes of the graph, and multiplies by `storage_ratio` to get bytes that a device stores
    (0.5 where f32 tensors become f16). The bytes that a device keeps for weights and states are known as stored bytes,
    so they are divided by that ratio here. Live tensors are counted in bytes of the graph to begin with.

    Args:
        model: the model.
        graph: the graph of the model, with the sizes that count for memory.
        core: the Core.
        profile: profile of the devices.
        names: names of the devices.
        storage_ratio: bytes that a device stores for each byte of the graph, float64 [devices].

    Returns:
        `held_bytes`, int64 [nodes, devices], and `live_bytes`, int64 [outputs]. For a model without states `held_bytes`
        is None: the problem then counts the graph's weights. `live_bytes` is None as well, which means all tensors as
        the graph has them, unless all devices compute only the routed experts.
    """
    states = States.of(graph)
    computed = ExecutedGraphs.of(profile, graph, names).for_memory
    if not len(states.node):
        return None, None if computed is graph else live_bytes(computed, states)
    held = held_bytes(graph, profile, names, kv_precisions(model, core, profile, names), states)
    live = live_bytes(computed, states)
    # Outputs of the model are in the request's own tensors, whose memory no other tensor uses.
    returned = returned_outputs(graph)
    np.add.at(held, graph.output_node[returned], live[returned, None])
    live[returned] = 0
    if scores_are_tensors(profile, names):
        for node, size in attention_scores(graph, states).items():
            live[graph.output_ptr[node]] += size
    return np.ceil(held / storage_ratio).astype(np.int64), live


def returned_outputs(graph: ComputationGraph) -> NDArray[np.int64]:
    """Numbers of the graph's outputs that Results return, int64 [returned], each once."""
    results = np.flatnonzero(graph.kinds == NodeKind.RESULT)
    return np.unique(graph.input_output[graph.input_ptr[results]]).astype(np.int64)


def scores_are_tensors(profile: Profile, names: Sequence[str]) -> bool:
    """Whether scores of attention count as tensors, which count for all devices: only if all devices are CPUs."""
    return all(profile.device(name).kind == "CPU" for name in names)


def held_bytes(
    graph: ComputationGraph, profile: Profile, names: Sequence[str], precisions: Sequence[str], states: States
) -> NDArray[np.int64]:
    """Computes the bytes that each device keeps for each node as long as the model is loaded.

    Weights keep their element type; f32 ones are kept in 16 bits where a device infers in 16 bits.

    Args:
        graph: the graph of the model.
        profile: profile of the devices.
        names: names of the devices.
        precisions: precision of KV caches on each device, [devices].
        states: the states of the graph.

    Returns:
        Bytes, int64 [nodes, devices].
    """
    result = np.repeat(graph.weight_bytes[:, None], len(names), axis=1)
    for column, (name, precision) in enumerate(zip(names, precisions, strict=True)):
        device = profile.device(name)
        if device.precision != "f32":
            result[_constants_kept_in_16_bits(graph, device.kind), column] //= 2
        size = states.elements * _ELEMENT_BYTES[precision] + (
            states.heads * _BYTES_PER_QUANTISED_HEAD if precision == "u8" else 0.0
        )
        size = np.where(states.cache, size, states.bytes * _STATE_BUFFERS.get(device.kind, 1))
        result[states.node, column] += np.ceil(size).astype(np.int64)
    return result


def _constants_kept_in_16_bits(graph: ComputationGraph, kind: str) -> NDArray[np.intp]:
    """Node numbers of the f32 constants that a device of this kind keeps in 16 bits if it infers in 16 bits."""
    constants = np.flatnonzero(graph.weight_bytes)
    outputs = graph.output_ptr[constants]
    narrow = np.array([graph.output_types[output] == "f32" for output in outputs], bool)
    if kind == "CPU":  # its plugin converts weights of products, and reads tables from the mapped file
        multiplies = np.isin(graph.types, ("MatMul", "Convolution"))
        narrow &= np.isin(outputs, graph.input_output[multiplies[graph.input_node]])
    return constants[narrow]


def live_bytes(graph: ComputationGraph, states: States) -> NDArray[np.int64]:
    """Bytes that each tensor takes while it is alive, beyond the bytes that are held, int64 [outputs].

    Results of constants alone take nothing: they are computed once or, for compressed weights, inside the operation
    that reads them.
    """
    result = np.where(states.alias | graph.legality.constant[graph.output_node], 0, graph.output_bytes)
    result[graph.output_ptr[states.node]] = 0  # a state is read where it is kept
    return result
