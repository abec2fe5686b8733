"""Fusions: savings that a device makes only where two nodes are in the same submodel.

There are two kinds. A plugin executes several operations as one, such as a convolution and its activation. And a device
keeps tensors of images in its own layout (channels last, in blocks) from one convolution to the next, while submodels
exchange them in the plain layout. A fusion is broken where its two nodes are in different submodels. The penalty counts
at the later node: `PlacementProblem.fused_with` names the earlier node, and `fusion_penalty_us` is the time that the
later one takes longer if the fusion is broken. So costs of fusions are not sums over single nodes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.costs.op_types import ANCHORS, ELEMENTWISE
from ov_hsdag.model.graph import ComputationGraph, Floats, NodeKind

# Operations that compute in the device's own layout (channels last, in blocks), and those that keep the layout.
_CONVOLUTIONS = (ANCHORS - {"MatMul"}) | {"DeformableConvolution"}
_CARRIERS = ELEMENTWISE | {
    "AdaptiveAvgPool", "AvgPool", "BatchNormInference", "Concat", "DepthToSpace", "Interpolate", "LRN", "MaxPool",
    "Pad", "ReduceMean", "ReduceMax", "SpaceToDepth", "Split", "VariadicSplit", "GroupNormalization", "Softmax", "MVN",
}  # fmt: skip

# Operations at which a path of images ends and a new one begins: a convolution reads one tensor, and a Concat joins
# several and rewrites each.
_LAYOUT_ENDS = _CONVOLUTIONS | {"Concat"}


def main_inputs(graph: ComputationGraph) -> NDArray[np.int32]:
    """Finds the main input of each node: the largest that is not a Constant, the first of equal ones.

    Returns:
        The edge number of the main input, -1 where there is none, int32 [nodes].
    """
    result = np.full(graph.nodes, -1, np.int32)
    live = np.flatnonzero(graph.kinds[graph.input_source] != NodeKind.CONSTANT)
    # Later edges overwrite earlier ones, so the first among the largest comes last.
    order = live[np.lexsort((-live, graph.output_bytes[graph.input_output[live]]))]
    result[graph.input_node[order]] = order
    return result


def own_layout(graph: ComputationGraph) -> NDArray[np.bool_]:
    """Predicts for which nodes a device keeps the first output in its own layout, from the graph alone, bool [nodes].

    These are convolutions, and operations behind them that keep the layout (`_CARRIERS`), with outputs of rank 4 or
    more.
    """
    # Lists, because reading and comparing an element of an array takes ten times as long.
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
    """Finds convolutions and Concats, bool [nodes].

    Their penalties of `with_layouts` are for rewriting tensors; penalties of other nodes are for operations that are no
    longer executed as one.
    """
    return np.asarray(np.isin(np.asarray(graph.types), list(_LAYOUT_ENDS)))


def fusions(
    graph: ComputationGraph, parts: NDArray[np.int32], us: Floats, alone_us: Floats
) -> tuple[NDArray[np.int32], Floats]:
    """Derives the fusions of one device from the nodes that it executed.

    Args:
        graph: the graph of the model.
        parts: executed node that each operation is part of, -1 for none, int32 [nodes].
        us: measured time of each node within its executed node, µs, float64 [nodes].
        alone_us: time of each node when it is executed alone, µs, float64 [nodes].

    Returns:
        fused_with: the input's node that each node is executed together with, the last one of several, -1 for none,
            int32 [nodes].
        fusion_penalty_us: time that the node takes longer when it is executed alone, µs, float64 [nodes].
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
    """Adds the penalties of rewriting a tensor where a convolution and the one before it are in different submodels.

    The operations between the two take tensors in any layout. So it does not matter where the path between them is cut,
    or how often: the tensor is rewritten once on leaving and once on entering.

    Args:
        graph: the graph of the model.
        fused_with: fusions of operations, int32 [nodes, devices]; nodes with a fusion keep it.
        fusion_penalty_us: penalties of these fusions, µs, float64 [nodes, devices].
        own: whether a device keeps a node's result in its own layout, bool [nodes, devices].
        us_per_byte: time of rewriting a byte, 0 for devices that need no rewriting, float64 [devices].

    Returns:
        Copies of `fused_with` and `fusion_penalty_us` with the added entries.
    """
    fused_with, fusion_penalty_us = fused_with.copy(), fusion_penalty_us.copy()
    edges = main_inputs(graph)
    ends = layout_ends(graph)
    for device in np.flatnonzero(us_per_byte > 0):
        convolution_before: dict[int, int] = {}
        for node in np.flatnonzero(ends & own[:, device] & (fused_with[:, device] < 0)):
            source = _main_source(graph, edges, int(node))
            while source >= 0 and own[source, device] and not ends[source]:
                source = _main_source(graph, edges, source)
            if source >= 0 and own[source, device]:
                convolution_before[int(node)] = source
        shared = np.bincount(list(convolution_before.values()), minlength=graph.nodes)
        for target, source in convolution_before.items():
            size = float(graph.output_bytes[graph.input_output[edges[target]]])
            leaving_bytes = float(graph.output_bytes[graph.output_ptr[source]]) / shared[source]
            fused_with[target, device] = source
            fusion_penalty_us[target, device] = size * us_per_byte[device] + leaving_bytes * us_per_byte.mean()
    return fused_with, fusion_penalty_us


def _main_source(graph: ComputationGraph, edges: NDArray[np.int32], node: int) -> int:
    """The node that computes a node's main input, -1 if there is none; `edges` are those of `main_inputs`."""
    return int(graph.input_source[edges[node]]) if edges[node] >= 0 else -1
