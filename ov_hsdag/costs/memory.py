"""What devices keep as long as a model is loaded: weights, and the states of decoders."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.costs.fusions import fuses_experts, has_matrix_engines
from ov_hsdag.costs.profile import DeviceProfile, Profile
from ov_hsdag.devices import discovery
from ov_hsdag.devices.runtime_options import runtime_options
from ov_hsdag.model.experts import ChosenAlone
from ov_hsdag.model.graph import ComputationGraph, NodeKind
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import ov

KV_PRECISIONS = ("u8", "f16", "bf16", "f32")

_BYTES = {"u8": 1.0, "f16": 2.0, "bf16": 2.0, "f32": 4.0}

# The CPU plugin quantises each head of each token with a scale and a zero point of 32 bits each.
_QUANTISED_EXTRA = 8.0

# The CPU plugin reads a state that is no KV cache from one buffer while it writes another.
_BUFFERS = {"CPU": 2}

# Between a KV cache and its attention: heads that queries share are repeated, and the plugin repeats as it reads.
_REPEATING = frozenset({"Unsqueeze", "Broadcast", "Tile", "Multiply", "Reshape", "Transpose", "Convert"})
_REPEATED = 6

_SCORES = 6
"""Tensors as large as an attention's scores that the CPU plugin has at most where it takes attentions apart: two are
alive at once, each takes two to three (measured: 4.1 to 6.5, docs/facts.md)."""

_SCORE_BYTES = 4
"""Bytes of a score, f32."""


@dataclass(frozen=True, eq=False)
class States:
    """The states of a graph."""

    node: NDArray[np.int64]  # the ReadValue of each state, int64 [states]
    elements: NDArray[np.float64]  # that each holds after an inference, float64 [states]
    bytes: NDArray[np.float64]  # the same in the model's element type, float64 [states]
    cache: NDArray[np.bool_]  # whether an attention reads it as its keys or values (a KV cache), bool [states]
    heads: NDArray[np.float64]  # rows of a KV cache that are quantised together, float64 [states]
    # outputs that are a KV cache itself, or its heads repeated, and take no memory beside it, bool [outputs]
    alias: NDArray[np.bool_]
    joined: NDArray[np.bool_]  # outputs that join past and new keys or values of a KV cache, bool [outputs]

    @classmethod
    def of(cls, graph: ComputationGraph) -> States:
        """The states of a graph: a state is as large as what is assigned to it."""
        reads, assigns = (
            {graph.variables[node]: node for node, kind in enumerate(graph.types) if kind == wanted}
            for wanted in ("ReadValue", "Assign")
        )
        assigned = {name: int(graph.input_output[graph.input_ptr[node]]) for name, node in assigns.items()}
        found = [(reads[name], assigned[name]) for name in reads if name in assigned]
        alias, joined = np.zeros(graph.outputs, bool), np.zeros(graph.outputs, bool)
        shapes = [graph.output_shapes[output] for _, output in found]
        sizes = np.array([graph.output_bytes[output] for _, output in found], np.float64)
        # Of several sizes of inference the graph has the largest bytes, and the shapes of one of them.
        width = np.array([_BYTES.get(graph.output_types[output], 4.0) for _, output in found])
        elements = sizes / width
        rows = np.array([max(shape[-1], 1) if shape else 1 for shape in shapes], np.float64)
        cache = np.array([_mark_cache(graph, read, output, alias) for read, output in found], bool)
        joined[[output for (_, output), is_cache in zip(found, cache, strict=True) if is_cache]] = True
        nodes = np.array([read for read, _ in found], np.int64)
        return cls(nodes, elements, sizes, cache, elements / rows, alias, joined)


def _mark_cache(graph: ComputationGraph, read: int, assigned: int, alias: NDArray[np.bool_]) -> bool:
    """Whether the state that `read` reads is a KV cache; if so, marks its outputs in `alias`."""
    joined = int(graph.output_node[assigned])
    if graph.types[joined] != "Concat":
        return False
    own = [int(graph.output_ptr[read]), assigned]
    for output in graph.input_output[graph.input_ptr[joined] : graph.input_ptr[joined + 1]].tolist():
        source = int(graph.output_node[output])
        if graph.types[source] == "Gather" and graph.input_source[graph.input_ptr[source]] == read:  # beams
            own.append(output)
            break
        if source == read:
            break
    else:
        return False
    repeated, attentions = _attentions(graph, assigned)
    if not attentions:
        return False
    alias[[*own, *repeated]] = True
    return True


def _attentions(graph: ComputationGraph, output: int) -> tuple[list[int], list[int]]:
    """Outputs on the way from keys or values to the attentions that read them, and these nodes."""
    level, attentions = [output], list[int]()
    passed: list[int] = []
    for _ in range(_REPEATED):
        following = []
        for one in level:
            for node in graph.consumers(one).tolist():
                if graph.types[node] == "ScaledDotProductAttention":
                    attentions.append(node)
                elif graph.types[node] in _REPEATING and graph.input_output[graph.input_ptr[node]] == one:
                    following.append(int(graph.output_ptr[node]))
        passed += following
        level = following
    return passed, attentions


def attention_scores(graph: ComputationGraph, states: States) -> dict[int, int]:
    """Bytes of the scores of attentions that the CPU plugin takes apart, by their nodes.

    It fuses an attention with its states where no other attention reads these, and then makes no scores of a first
    prompt. Where several attentions read one KV cache, as in models that share caches between layers, each becomes
    products and a softmax, with `_SCORES` tensors of f32 for each head, new token and token (docs/facts.md).
    """
    found: dict[int, int] = {}
    for joined in np.flatnonzero(states.joined).tolist():
        attentions = _attentions(graph, joined)[1]
        if len(set(attentions)) > 1:
            found |= {node: _score_bytes(graph, node) for node in attentions}
    return found


def _score_bytes(graph: ComputationGraph, attention: int) -> int:
    """Bytes of all tensors of scores of an attention, by the bytes of its keys and of its output."""
    keys, output = int(graph.input_output[graph.input_ptr[attention] + 1]), int(graph.output_ptr[attention])
    key_shape, width = graph.output_shapes[keys], graph.output_shapes[output][-1]
    rows = graph.output_bytes[output] / max(width * _BYTES.get(graph.output_types[output], 4.0), 1)
    of_token = math.prod((*key_shape[:-2], key_shape[-1])) * _BYTES.get(graph.output_types[keys], 4.0)
    return int(_SCORES * _SCORE_BYTES * rows * graph.output_bytes[keys] / max(of_token, 1))


def check_kv_precision(precision: str | None) -> None:
    """Raises UserError where it is neither None nor one of `KV_PRECISIONS`."""
    if precision is not None and precision not in KV_PRECISIONS:
        raise UserError(f"unknown precision of KV caches '{precision}'; choose one of {', '.join(KV_PRECISIONS)}")


def kv_precisions(model: ov.Model, core: ov.Core, profile: Profile, names: Sequence[str]) -> tuple[str, ...]:
    """The precision in which each device keeps KV caches, [devices].

    The profile goes before the model's own choice (`runtime_options`), and that before what a device says.
    """
    own = _known(runtime_options(model).get("KV_CACHE_PRECISION", ""))
    devices = [profile.device(name) for name in names]
    return tuple(
        device.kv_precision
        or own
        or _known(discovery.property_text(core, name, "KV_CACHE_PRECISION"))
        or _default(device)
        for name, device in zip(names, devices, strict=True)
    )


def _known(text: str | None) -> str | None:
    text = "u8" if text == "i8" else text  # the GPU plugin's, as large
    return text if text in KV_PRECISIONS else None


def _default(device: DeviceProfile) -> str:
    """What a plugin keeps a KV cache in by default (2025.0 and later): GPUs without matrix engines in 8 bits as well
    (src/plugins/intel_gpu/src/runtime/execution_config.cpp)."""
    return "u8" if device.kind == "CPU" or (device.kind == "GPU" and not has_matrix_engines(device)) else "f16"


def memory_needs(
    model: ov.Model,
    graph: ComputationGraph,
    core: ov.Core,
    profile: Profile,
    names: Sequence[str],
    stored: NDArray[np.float64],
) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None]:
    """`held_bytes` and `live_bytes` of `PlacementProblem`, by the graph's sizes; None for a model without states."""
    states = States.of(graph)
    # Tensors are counted once for all devices: where one computes all experts, for all of them.
    computed = ChosenAlone.of(graph).graph if all(fuses_experts(profile, graph, names)) else graph
    if not len(states.node):
        return None, None if computed is graph else live_bytes(computed, states)
    held = held_bytes(graph, profile, names, kv_precisions(model, core, profile, names), states)
    live = live_bytes(computed, states)
    # Outputs of the model lie in the request's own tensors, in which no other tensor of an inference lies.
    returned = returned_outputs(graph)
    np.add.at(held, graph.output_node[returned], live[returned, None])
    live[returned] = 0
    if scores_are_tensors(profile, names):
        for node, size in attention_scores(graph, states).items():
            live[graph.output_ptr[node]] += size
    return np.ceil(held / stored).astype(np.int64), live


def returned_outputs(graph: ComputationGraph) -> NDArray[np.int64]:
    """Numbers of the graph's outputs that Results return, int64 [returned], each once."""
    results = np.flatnonzero(graph.kinds == NodeKind.RESULT)
    return np.unique(graph.input_output[graph.input_ptr[results]]).astype(np.int64)


def scores_are_tensors(profile: Profile, names: Sequence[str]) -> bool:
    """Whether scores of attention count as tensors, which count alike on all devices: where all are CPU devices."""
    return all(profile.device(name).kind == "CPU" for name in names)


def held_bytes(
    graph: ComputationGraph, profile: Profile, names: Sequence[str], precisions: Sequence[str], states: States
) -> NDArray[np.int64]:
    """Bytes that each device keeps for each node as long as the model is loaded, int64 [nodes, devices].

    Weights are kept as they are, but of 32 bits in 16 where a device infers in 16. precisions: of KV caches, [devices].
    """
    result = np.repeat(graph.weight_bytes[:, None], len(names), axis=1)
    for column, (name, precision) in enumerate(zip(names, precisions, strict=True)):
        device = profile.device(name)
        if device.precision != "f32":
            result[_converted(graph, device.kind), column] //= 2
        size = states.elements * _BYTES[precision] + (states.heads * _QUANTISED_EXTRA if precision == "u8" else 0.0)
        size = np.where(states.cache, size, states.bytes * _BUFFERS.get(device.kind, 1))
        result[states.node, column] += np.ceil(size).astype(np.int64)
    return result


def _converted(graph: ComputationGraph, kind: str) -> NDArray[np.intp]:
    """Constants that a device of a kind that infers in 16 bits keeps in 16 bits, and the model in 32."""
    constants = np.flatnonzero(graph.weight_bytes)
    outputs = graph.output_ptr[constants]
    narrow = np.array([graph.output_types[output] == "f32" for output in outputs], bool)
    if kind == "CPU":  # its plugin converts what it multiplies by, and leaves tables in the file that is mapped
        multiplies = np.isin(graph.types, ("MatMul", "Convolution"))
        narrow &= np.isin(outputs, graph.input_output[multiplies[graph.input_node]])
    return constants[narrow]


def live_bytes(graph: ComputationGraph, states: States) -> NDArray[np.int64]:
    """Bytes that each tensor takes while it is alive, beside what is kept, int64 [outputs].

    What constants alone give is computed once or, of compressed weights, inside the operation that reads them.
    """
    result = np.where(states.alias | graph.legality.constant[graph.output_node], 0, graph.output_bytes)
    result[graph.output_ptr[states.node]] = 0  # a state is read where it is kept
    return result
