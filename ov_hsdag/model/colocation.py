"""Which nodes must share a device, so that every placement compiles and computes the same outputs.

HETERO cuts a model into submodels at every edge between devices. Three kinds of nodes do not survive a cut from their
consumers and follow them ("followers"): constants, nodes that rest on constants alone (decompressed weights), and shape
arithmetic (ShapeOf … Gather … Concat → Reshape), without which the consumer's submodel has no static shapes, or not
even a rank. A follower with consumers on several devices is copied, one for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ov_hsdag import _native
from ov_hsdag.model.graph import ComputationGraph, NodeKind

if TYPE_CHECKING:
    pass

# Inputs whose values decide the shape of the output (OpenVINO operation specifications). Constants follow anyway.
_SHAPE_INPUTS: dict[str, tuple[int, ...]] = {
    "Reshape": (1,), "Squeeze": (1,), "Unsqueeze": (1,), "Broadcast": (1, 2), "Tile": (1,), "StridedSlice": (1, 2, 3),
    "Slice": (1, 2, 3, 4), "Gather": (2,), "Range": (0, 1, 2), "Interpolate": (1, 2, 3), "Pad": (1, 2), "TopK": (1,),
    "Split": (1,), "VariadicSplit": (1, 2), "Transpose": (1,), "OneHot": (1,), "ConvolutionBackpropData": (2,),
    "GroupConvolutionBackpropData": (2,), "RandomUniform": (0,), "BatchToSpace": (1, 2, 3), "SpaceToBatch": (1, 2, 3),
    "NonMaxSuppression": (2,), "AdaptiveAvgPool": (1,), "AdaptiveMaxPool": (1,), "DFT": (1, 2), "IDFT": (1, 2),
    "RDFT": (1, 2), "IRDFT": (1, 2), "Eye": (0, 1, 2, 3), "Multinomial": (1,), "PriorBox": (0, 1), "Col2Im": (1, 2),
    "PriorBoxClustered": (0, 1), "STFT": (2, 3), "ISTFT": (2, 3, 4), "EmbeddingSegmentsSum": (3,), "SegmentMax": (2,),
    "ReduceMax": (1,), "ReduceMin": (1,), "ReduceMean": (1,), "ReduceSum": (1,), "ReduceProd": (1,), "ReduceL1": (1,),
    "ReduceL2": (1,), "ReduceLogicalAnd": (1,), "ReduceLogicalOr": (1,), "Roll": (1, 2), "MVN": (1,), "CumSum": (1,),
    "NormalizeL2": (1,), "Loop": (0,),
}  # fmt: skip

# A list of dimensions, axes or scales is no longer than this; longer vectors are data.
_SHAPE_VECTOR = 32


# A copy would have a state of its own, or draw other numbers.
_NEVER_COPIED = frozenset({"ReadValue", "RandomUniform", "Multinomial"})


def followers(graph: ComputationGraph) -> NDArray[np.bool_]:
    """Nodes that must be where their consumers are. Returns bool [nodes]."""
    return constant_nodes(graph) | _shape_arithmetic(graph)


def constant_nodes(graph: ComputationGraph) -> NDArray[np.bool_]:
    """Constants and operations that rest on constants alone and give the same at each run."""
    # Plain lists: elements of arrays cost ten times as much, and this runs over every node.
    constant = (graph.kinds == NodeKind.CONSTANT).tolist()
    operation = (graph.kinds == NodeKind.OP).tolist()
    sources, pointer = graph.input_source.tolist(), graph.input_ptr.tolist()
    for node, type_name in enumerate(graph.types):
        first, last = pointer[node], pointer[node + 1]
        if operation[node] and first < last and type_name not in _NEVER_COPIED:
            constant[node] = all(constant[source] for source in sources[first:last])
    return np.array(constant, bool)


def _shape_arithmetic(graph: ComputationGraph) -> NDArray[np.bool_]:
    """Nodes that compute what a shape input needs, from there upwards to a ShapeOf or to where the values are data."""
    operation = (graph.kinds == NodeKind.OP).tolist()
    pointer, outputs = graph.input_ptr.tolist(), graph.input_output.tolist()
    owner, ranks = graph.output_node.tolist(), graph.output_ranks.tolist()
    wanted = [False] * graph.nodes
    for node in reversed(range(graph.nodes)):
        type_name = graph.types[node]
        ports: Sequence[int]
        if wanted[node]:
            ports = () if type_name == "ShapeOf" else range(pointer[node + 1] - pointer[node])
        else:
            ports = _SHAPE_INPUTS.get(type_name, ())
        for edge in (pointer[node] + port for port in ports):
            if edge >= pointer[node + 1]:
                continue
            output = outputs[edge]
            rank = ranks[output]
            short = rank == 0 or (rank == 1 and graph.output_shapes[output][0] <= _SHAPE_VECTOR)
            if short and operation[owner[output]] and graph.types[owner[output]] not in _NEVER_COPIED:
                wanted[owner[output]] = True
    return np.array(wanted, bool)


def _tied(graph: ComputationGraph, follows: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Pairs of nodes that must share a device, those of followers with their consumers left out."""
    pairs: list[tuple[int, int]] = []
    states: dict[str, int] = {}
    for node, variable in enumerate(graph.variables):
        if variable:
            pairs.append((states.setdefault(variable, node), node))
    into_result = graph.kinds[graph.input_node] == NodeKind.RESULT
    pairs += zip(graph.input_source[into_result].tolist(), graph.input_node[into_result].tolist(), strict=True)
    stuck = ~graph.output_movable[graph.input_output]
    pairs += zip(graph.input_source[stuck].tolist(), graph.input_node[stuck].tolist(), strict=True)
    pairs += _state_paths(graph)
    pairs += _ambiguous_attention(graph)
    for node in np.flatnonzero(graph.kinds == NodeKind.PARAMETER).tolist():
        # Its submodel would hold nothing but Parameter → Result otherwise. A computing consumer is the better host.
        users = graph.input_node[graph.input_source == node]
        computing = users[(graph.kinds[users] != NodeKind.RESULT) & ~follows[users]]
        pairs += [(node, int(user)) for user in (computing if len(computing) else users)[:1]]
    return pairs


def _ambiguous_attention(graph: ComputationGraph) -> list[tuple[int, int]]:
    """Attention with as many tokens as heads, [batch, heads, tokens, size], and the Transpose that puts tokens first.

    The CPU plugin (2026.4; docs/facts.md) fuses the Transposes around attention into it, and takes heads for tokens
    where the last of them is in another submodel and the shape would not tell.
    """
    pairs = []
    for node, kind in enumerate(graph.types):
        if kind != "Transpose":
            continue
        edge = graph.input_ptr[node]
        source, shape = int(graph.input_source[edge]), graph.output_shapes[graph.input_output[edge]]
        attends = graph.types[source] == "ScaledDotProductAttention"
        if graph.types[source] == "MatMul":
            attends = graph.types[graph.input_source[graph.input_ptr[source]]] == "Softmax"
        if attends and len(shape) == 4 and shape[1] == shape[2]:
            pairs.append((source, node))
    return pairs


def _states(graph: ComputationGraph) -> list[tuple[int, int]]:
    """The ReadValue and the Assign of each variable that has both."""
    readers = {v: node for node, v in enumerate(graph.variables) if v and graph.kinds[node] != NodeKind.SINK}
    assigns = np.flatnonzero(graph.kinds == NodeKind.SINK).tolist()
    return [(readers[graph.variables[n]], n) for n in assigns if graph.variables[n] in readers]


def _state_paths(graph: ComputationGraph) -> list[tuple[int, int]]:
    """Pairs that tie every node between a ReadValue and the Assign of its variable to them.

    The plugin that holds the state needs both in one submodel, so no tensor between them may be cut.
    """
    pairs: list[tuple[int, int]] = []
    sources, pointer = graph.input_source.tolist(), graph.input_ptr.tolist()
    for read, assign in _states(graph):
        ahead = [False] * graph.nodes
        ahead[assign] = True
        for node in range(assign, read, -1):
            if ahead[node]:
                for source in sources[pointer[node] : pointer[node + 1]]:
                    ahead[source] = True
        after = [False] * graph.nodes
        after[read] = True
        for node in range(read + 1, assign):
            after[node] = any(after[source] for source in sources[pointer[node] : pointer[node + 1]])
            if after[node] and ahead[node]:
                pairs.append((read, node))
    return pairs


def bonds(graph: ComputationGraph) -> NDArray[np.int32]:
    """Pairs of nodes that must share a submodel, not only a device: HETERO splits devices further against cycles.

    Shape arithmetic and decompressed weights with their consumers (constants alone are never torn off), tensors that
    HETERO cannot hand over with theirs, and each ReadValue with its Assign. Returns int32 [pairs, 2].
    """
    torn = followers(graph)[graph.input_source] | ~graph.output_movable[graph.input_output]
    torn &= graph.kinds[graph.input_source] != NodeKind.CONSTANT
    pairs = np.stack([graph.input_source[torn], graph.input_node[torn]], axis=1)
    return np.concatenate([pairs, np.array(_states(graph), np.int32).reshape(-1, 2)]).astype(np.int32)


def colocation(graph: ComputationGraph) -> NDArray[np.int32]:
    """Groups of nodes that must share a device ("atoms"): any assignment of devices to groups is legal.

    Followers are in the group of their consumers; `normalize` has copied those whose consumers are in several groups,
    otherwise they tie these groups together.

    Returns:
        Dense group numbers, int32 [nodes].
    """
    follows = followers(graph)
    pairs = _tied(graph, follows)
    edges = follows[graph.input_source]
    pairs += zip(graph.input_source[edges].tolist(), graph.input_node[edges].tolist(), strict=True)
    return _merged(graph, pairs)


def _merged(graph: ComputationGraph, pairs: Sequence[tuple[int, int]]) -> NDArray[np.int32]:
    """Dense groups in which the nodes of every pair are together, int32 [nodes]."""
    a, b = np.array(pairs, np.int32).reshape(-1, 2).T
    return _native.merge_groups(graph.nodes, a, b)


def coarsen(
    graph: ComputationGraph,
    groups: NDArray[np.int32],
    supported: NDArray[np.bool_] | None = None,
    weight: NDArray[np.float64] | None = None,
    most: float = np.inf,
) -> NDArray[np.int32]:
    """HSDAG's co-location of chains on top of legality groups.

    Args:
        graph: the graph.
        groups: dense legality groups, int32 [nodes].
        supported: devices that each node can run on, bool [nodes, devices]; chains join only groups that agree in it.
        weight: of each legality group, float64 [groups]; nothing weighs anything by default.
        most: what a chain may weigh; longer ones become several coarse groups.

    Returns:
        Dense coarse groups, int32 [nodes].
    """
    labels = np.zeros(int(groups.max()) + 1, np.int64)
    if supported is not None:
        allowed = group_support(groups, supported)
        labels = allowed @ (np.int64(1) << np.arange(allowed.shape[1], dtype=np.int64))
    return _native.colocate_chains(
        graph.native, groups, labels, np.zeros(len(labels)) if weight is None else weight, most
    )


def group_support(groups: NDArray[np.int32], supported: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Devices that support every node of a group. [nodes], [nodes, devices] → bool [groups, devices]."""
    allowed = np.ones((int(groups.max()) + 1, supported.shape[1]), bool)
    np.logical_and.at(allowed, groups, supported)
    return allowed
