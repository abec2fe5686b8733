"""What does not add up: operations that are executed as one, and tensors that are kept in a device's own layout.

Both are priced with the node whose execution changes where a fusion is broken: `PlacementProblem.fused_with` names the
node that it has to share a submodel with, and `fusion_penalty_us` what it costs more where it does not.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.costs.op_types import ANCHORS, ELEMENTWISE
from ov_hsdag.costs.profile import DeviceProfile, Profile
from ov_hsdag.model.experts import experts
from ov_hsdag.model.graph import ComputationGraph, Floats, NodeKind
from ov_hsdag.utils.lazy import ov

# Operations that work in a layout of the device's own (channels last, in blocks), and those that keep the layout.
_CONVOLUTIONS = (ANCHORS - {"MatMul"}) | {"DeformableConvolution"}
_CARRIERS = ELEMENTWISE | {
    "AdaptiveAvgPool", "AvgPool", "BatchNormInference", "Concat", "DepthToSpace", "Interpolate", "LRN", "MaxPool",
    "Pad", "ReduceMean", "ReduceMax", "SpaceToDepth", "Split", "VariadicSplit", "GroupNormalization", "Softmax", "MVN",
}  # fmt: skip

# Where a path of images begins anew: a convolution reads one tensor, a Concat joins several, and rewrites each.
_ENDS = _CONVOLUTIONS | {"Concat"}

# The first release whose plugins compute the chosen experts of a block alone (docs/facts.md).
_EXPERTS_SINCE = (2025, 4)

# GPU plugins fuse such blocks of weights of these types, on GPUs with matrix engines: those whose rate with f16 is at
# least so many times that with f32 (without, it is twice that).
_GPU_EXPERTS, _MATRIX_ENGINES = frozenset({"u4", "i4", "u8", "i8"}), 4.0


def fuses_experts(profile: Profile, graph: ComputationGraph, names: Sequence[str]) -> list[bool]:
    """Whether each device computes of blocks of experts those alone that are chosen, [devices].

    CPU plugins on x86-64 do, and those of GPUs with matrix engines where the weights have 4 or 8 bits, both since
    2025.4. False where the graph has no such blocks.
    """
    blocks = experts(graph)
    release = tuple(int(number) for number in re.findall(r"\d+", ov.__version__)[:2])  # (2026, 4)
    if not blocks or release < _EXPERTS_SINCE:
        return [False] * len(names)
    low = {output for output, name in enumerate(graph.output_types) if name in _GPU_EXPERTS}
    outputs = [range(graph.output_ptr[node], graph.output_ptr[node + 1]) for node in blocks[0].weights(graph)]
    compressed = any(low.intersection(ports) for ports in outputs)
    on_x86 = platform.machine().lower() in ("x86_64", "amd64")
    devices = [profile.device(name) for name in names]
    return [
        (one.kind == "CPU" and on_x86) or (one.kind == "GPU" and compressed and has_matrix_engines(one))
        for one in devices
    ]


def has_matrix_engines(gpu: DeviceProfile) -> bool:
    """Whether a GPU multiplies matrices in units of their own."""
    return gpu.peak_gflops.get("f16", 0.0) >= _MATRIX_ENGINES * gpu.peak_gflops.get("f32", 0.0)


def main_inputs(graph: ComputationGraph) -> NDArray[np.int32]:
    """The edge of each node's largest input that is no constant, -1 where there is none, int32 [nodes]."""
    result = np.full(graph.nodes, -1, np.int32)
    live = np.flatnonzero(graph.kinds[graph.input_source] != NodeKind.CONSTANT)
    # The first of several that are equally large comes last, and stays.
    order = live[np.lexsort((-live, graph.output_bytes[graph.input_output[live]]))]
    result[graph.input_node[order]] = order
    return result


def own_layout(graph: ComputationGraph) -> NDArray[np.bool_]:
    """Whether a device is likely to keep a node's result in its own layout: from the graph alone, bool [nodes]."""
    # Lists: an element of an array takes ten times as long to read and to compare.
    operation = (graph.kinds == NodeKind.OP).tolist()
    sources, first_output = graph.input_source.tolist(), graph.output_ptr.tolist()
    result = [False] * graph.nodes
    for node, edge in enumerate(main_inputs(graph).tolist()):
        if not operation[node] or len(graph.output_shapes[first_output[node]]) < 4:
            continue
        type_name = graph.types[node]
        carried = type_name in _CARRIERS and edge >= 0 and result[sources[edge]]
        result[node] = type_name in _CONVOLUTIONS or carried
    return np.array(result, bool)


def layout_ends(graph: ComputationGraph) -> NDArray[np.bool_]:
    """Nodes that pay a fusion penalty for rewriting tensors; others pay for what is executed as one. bool [nodes]."""
    return np.asarray(np.isin(np.asarray(graph.types), list(_ENDS)))


def fusions(
    graph: ComputationGraph, parts: NDArray[np.int32], us: Floats, alone_us: Floats
) -> tuple[NDArray[np.int32], Floats]:
    """Fusions of one device from what it was seen to execute as one.

    parts: executed node that each operation is part of, -1 for none, int32 [nodes]. us: measured time of each node
    within its executed node; alone_us: by itself, µs, float64 [nodes]. Returns the node that each is executed with, -1
    for none, int32 [nodes], and what it costs more where that is broken, µs, float64 [nodes].
    """
    fused_with, fusion_penalty_us = np.full(graph.nodes, -1, np.int32), np.zeros(graph.nodes)
    together = (parts[graph.input_node] >= 0) & (parts[graph.input_node] == parts[graph.input_source])
    np.maximum.at(fused_with, graph.input_node[together], graph.input_source[together])
    fused = fused_with >= 0
    fusion_penalty_us[fused] = np.maximum(alone_us - us, 0.0)[fused]
    return fused_with, fusion_penalty_us


def with_layouts(
    graph: ComputationGraph,
    fused_with: NDArray[np.int32],
    fusion_penalty_us: Floats,
    own: NDArray[np.bool_],
    us_per_byte: Floats,
) -> tuple[NDArray[np.int32], Floats]:
    """Copies with what rewriting tensors costs where a convolution and the one before it are in different submodels.

    Whatever stands between the two takes tensors as they come. So it does not matter where the path between them is
    cut, or how often: the tensor is rewritten once on leaving and once on entering.

    fused_with: int32 [nodes, devices]; nodes that have one keep it. fusion_penalty_us: µs, float64 [nodes, devices].
    own: whether a device keeps a node's result in its own layout, bool [nodes, devices]. us_per_byte: of rewriting, 0
    where it costs nothing, float64 [devices].
    """
    fused_with, fusion_penalty_us = fused_with.copy(), fusion_penalty_us.copy()
    edges = main_inputs(graph)
    ends = layout_ends(graph)
    for device in np.flatnonzero(us_per_byte > 0):
        before: dict[int, int] = {}
        for node in np.flatnonzero(ends & own[:, device] & (fused_with[:, device] < 0)):
            source = _source(graph, edges, int(node))
            while source >= 0 and own[source, device] and not ends[source]:
                source = _source(graph, edges, source)
            if source >= 0 and own[source, device]:
                before[int(node)] = source
        shared = np.bincount(list(before.values()), minlength=graph.nodes)
        for target, source in before.items():
            size = float(graph.output_bytes[graph.input_output[edges[target]]])
            left = float(graph.output_bytes[graph.output_ptr[source]]) / shared[source]
            fused_with[target, device] = source
            fusion_penalty_us[target, device] = size * us_per_byte[device] + left * us_per_byte.mean()
    return fused_with, fusion_penalty_us


def _source(graph: ComputationGraph, edges: NDArray[np.int32], node: int) -> int:
    """The node that computes the largest input, -1 where there is none."""
    return int(graph.input_source[edges[node]]) if edges[node] >= 0 else -1
