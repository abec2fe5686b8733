"""What devices keep as long as a model is loaded: weights, and the states of decoders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.costs.fusions import fuses_experts, has_matrix_engines
from ov_hsdag.costs.profile import DeviceProfile, Profile
from ov_hsdag.devices import discovery
from ov_hsdag.devices.runtime_options import runtime_options
from ov_hsdag.model.experts import ChosenAlone
from ov_hsdag.model.graph import ComputationGraph
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

    @classmethod
    def of(cls, graph: ComputationGraph) -> States:
        """The states of a graph: a state is as large as what is assigned to it."""
        reads, assigns = (
            {graph.variables[node]: node for node, kind in enumerate(graph.types) if kind == wanted}
            for wanted in ("ReadValue", "Assign")
        )
        assigned = {name: int(graph.input_output[graph.input_ptr[node]]) for name, node in assigns.items()}
        found = [(reads[name], assigned[name]) for name in reads if name in assigned]
        alias = np.zeros(graph.outputs, bool)
        shapes = [graph.output_shapes[output] for _, output in found]
        sizes = np.array([graph.output_bytes[output] for _, output in found], np.float64)
        # Of several sizes of inference the graph has the largest bytes, and the shapes of one of them.
        width = np.array([_BYTES.get(graph.output_types[output], 4.0) for _, output in found])
        elements = sizes / width
        rows = np.array([max(shape[-1], 1) if shape else 1 for shape in shapes], np.float64)
        cache = np.array([_mark_cache(graph, read, output, alias) for read, output in found], bool)
        return cls(np.array([read for read, _ in found], np.int64), elements, sizes, cache, elements / rows, alias)


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
    repeated = _repeated(graph, assigned)
    if repeated is None:
        return False
    alias[[*own, *repeated]] = True
    return True


def _repeated(graph: ComputationGraph, output: int) -> list[int] | None:
    """Outputs on the way from keys or values to the attention that reads them; None where none does."""
    level, attended = [output], False
    passed: list[int] = []
    for _ in range(_REPEATED):
        following = []
        for one in level:
            for node in graph.consumers(one).tolist():
                if graph.types[node] == "ScaledDotProductAttention":
                    attended = True
                elif graph.types[node] in _REPEATING and graph.input_output[graph.input_ptr[node]] == one:
                    following.append(int(graph.output_ptr[node]))
        passed += following
        level = following
    return passed if attended else None


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
    return np.ceil(held / stored).astype(np.int64), live_bytes(computed, states)


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
