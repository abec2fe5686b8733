"""Which nodes must share a device, so that every placement compiles and computes the same outputs.

HETERO cuts a model into submodels at every edge between devices. Three kinds of nodes do not survive a cut from their
consumers and follow them ("followers"): constants, nodes that rest on constants alone (decompressed weights), and shape
arithmetic (ShapeOf … Gather … Concat → Reshape), without which the consumer's submodel has no static shapes, or not
even a rank. A follower with consumers on several devices is copied, one for each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag import _native
from ov_hsdag.errors import UserError
from ov_hsdag.graph import ComputationGraph, NodeKind

if TYPE_CHECKING:
    import openvino as ov

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

# What keeps OpenVINO from folding a node (DisableConstantFolding of its transformations).
_UNFOLDED = frozenset({"can_be_folded", "DisableConstantFolding_0"})

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


def repair(
    graph: ComputationGraph,
    groups: NDArray[np.int32],
    bonds: NDArray[np.int32],
    placement: NDArray[np.integer[Any]],
    supported: NDArray[np.bool_],
    rule: int,
) -> NDArray[np.uint8]:
    """Moves groups until HETERO can order the submodels, each of them computes something, and no bond is torn.

    Args:
        graph: the graph.
        groups: legality groups, int32 [nodes].
        bonds: pairs of nodes that must share a submodel, int32 [pairs, 2].
        placement: device of each group, [groups].
        supported: devices that each group can be on, bool [groups, devices].
        rule: HETERO's splitting rule.

    Returns:
        uint8 [groups]; as it was where nothing is wrong, and everything on one device where nothing else helps.
    """
    result = np.array(placement, np.uint8)
    source, target = graph.input_source, graph.input_node
    for _ in range(len(supported)):
        split = _native.split(graph.native, result[groups], rule)
        submodel = split["submodel"]
        trivial = np.append(split["trivial"], False)[submodel]
        torn = submodel[bonds[:, 0]] != submodel[bonds[:, 1]]
        if trivial.any():
            moving = submodel[trivial.argmax()]
        elif torn.any():
            # What tears it is a submodel elsewhere that feeds one end of the bond; the smallest of them comes over.
            end = submodel[bonds[torn.argmax(), 1]]
            feeders = submodel[source[(submodel[target] == end) & (result[groups[source]] != result[groups[target]])]]
            numbers, sizes = np.unique(submodel[np.isin(submodel, feeders)], return_counts=True)
            moving = numbers[sizes.argmin()] if len(numbers) else end
        elif not split["sortable"]:
            numbers, sizes = np.unique(submodel[split["cyclic"]], return_counts=True)
            moving = numbers[sizes.argmin()]
        else:
            return result
        inside = submodel == moving
        border = inside[source] != inside[target]
        outside = np.where(inside[source], target, source)[border]
        moved = np.unique(groups[inside])
        votes = np.bincount(result[groups[outside]], minlength=supported.shape[1]).astype(float)
        votes[result[moved[0]]] = -1
        votes[~supported[moved].all(axis=0)] = -1
        if votes.max() < 0:
            break
        result[moved] = votes.argmax()
    everywhere = np.flatnonzero(supported.all(axis=0))
    return np.full(len(supported), everywhere[0], np.uint8) if len(everywhere) else result


def colocation(graph: ComputationGraph) -> NDArray[np.int32]:
    """Groups of nodes that must share a device ("atoms"): any assignment of devices to groups is legal.

    Followers are in the group of their consumers; `normalise` has copied those whose consumers are in several groups,
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


def require_support(
    graph: ComputationGraph, groups: NDArray[np.int32], supported: NDArray[np.bool_], devices: Sequence[str]
) -> None:
    """Raises UserError when an operation runs on none of the devices, or operations that must share one have none."""
    alone = np.flatnonzero(~supported.any(axis=1))
    if len(alone):
        node = alone[0]
        more = f" (and {len(alone) - 1} more)" if len(alone) > 1 else ""
        raise UserError(
            f"operation '{graph.names[node]}' of type {graph.types[node]}{more} is supported by none of"
            f" {', '.join(devices)}; add a device that runs it"
        )
    stuck = np.flatnonzero(~group_support(groups, supported).any(axis=1))
    if len(stuck):
        members = [f"'{graph.names[n]}' ({graph.types[n]})" for n in np.flatnonzero(groups == stuck[0])[:4]]
        raise UserError(
            f"operations that must share a device find none of {', '.join(devices)} that runs them all:"
            f" {', '.join(members)}"
        )


def normalise(model: ov.Model) -> None:
    """Makes `model` safe to place, in place: same inputs, outputs and results, fewer ways to break.

    OpenVINO's own common transformations fold shape arithmetic away where shapes are static; friendly names become
    unique; followers with consumers in several groups are copied.
    """
    from openvino._offline_transformations import apply_moc_transformations

    # Folding is there for shape arithmetic. Elsewhere it would unpack weights that were compressed to f16.
    measured = [node for node in model.get_ops() if node.get_type_name() == "ShapeOf"]
    for node in measured:
        # Marks that converters leave in memory, and not in files: static shapes would stay unfolded because of them.
        info = node.get_rt_info()
        for mark in [key for key in info if key in _UNFOLDED]:
            del info[mark]
    folds = bool(measured)
    apply_moc_transformations(model, cf=folds, smart_reshape=True)
    unique_names(model)
    graph = ComputationGraph.from_model(model)
    follows = followers(graph)
    _copy_followers(model, graph, follows, _merged(graph, _tied(graph, follows)))


def unique_names(model: ov.Model) -> None:
    """Gives nodes whose friendly name another node has already a name of their own: HETERO finds nodes by name."""
    nodes = model.get_ordered_ops()
    taken = {node.get_friendly_name() for node in nodes}
    seen: set[str] = set()
    for node in nodes:
        name = node.get_friendly_name()
        if name in seen:
            name = _free_name(name, taken)
            node.set_friendly_name(name)
        seen.add(name)


def _free_name(name: str, taken: set[str]) -> str:
    number = 1
    while f"{name}/copy_{number}" in taken:
        number += 1
    taken.add(f"{name}/copy_{number}")
    return f"{name}/copy_{number}"


def _copy_followers(
    model: ov.Model, graph: ComputationGraph, follows: NDArray[np.bool_], homes: NDArray[Any]
) -> dict[str, Any]:
    """Copies followers so that all consumers of each share a home.

    Args:
        model: the model of `graph`; changed.
        follows: bool [nodes].
        homes: where each node is that does not follow: a group or a device; [nodes].

    Returns:
        Home of every node of the changed model, by friendly name.
    """
    nodes = model.get_ordered_ops()
    constant = constant_nodes(graph)
    taken = set(graph.names)
    # Consumers are handled before producers, so that a copy's own inputs are copied in turn.
    consumers: list[dict[Any, list[Any]]] = [defaultdict(list) for _ in range(graph.nodes)]
    result: dict[str, Any] = {}

    def note_inputs(node: Any, index: int, home: Any) -> None:
        for port in range(graph.input_ptr[index + 1] - graph.input_ptr[index]):
            source = int(graph.input_source[graph.input_ptr[index] + port])
            if follows[source]:
                consumers[source][home].append(node.input(port))

    for index in reversed(range(graph.nodes)):
        node = nodes[index]
        if not follows[index] or not consumers[index]:
            result[graph.names[index]] = homes[index]
            note_inputs(node, index, homes[index])
            continue
        # The original stays where most of its consumers are (ties: where the first in the graph is).
        first, *others = sorted(consumers[index], key=lambda home: -len(consumers[index][home]))
        result[graph.names[index]] = first
        note_inputs(node, index, first)
        for home in others:
            copies = _copy_constants(node) if constant[index] else _copy_operation(node)
            if not copies:
                # An operation that cannot be rebuilt: its consumers keep sharing it and are tied together instead.
                continue
            for copy in copies:
                copy.set_friendly_name(_free_name(copy.get_friendly_name(), taken))
                result[copy.get_friendly_name()] = home
            for target in consumers[index][home]:
                port = target.get_source_output().get_index()
                target.replace_source_output(copies[-1].output(port))
            if not constant[index]:
                note_inputs(copies[-1], index, home)
    return result


def _copy_constants(node: ov.Node) -> list[ov.Node]:
    """Copies of a node that rests on constants alone and of all that it rests on, in topological order.

    A model's clone shares its constants' memory and keeps all runtime attributes (those that say that a conversion
    decompresses weights, above all); the Python API has no other copy that does.
    """
    import openvino as ov

    from ov_hsdag.compat import op

    holder = ov.Model([op.Result(node.output(0))], [], "constants").clone()
    return [copy for copy in holder.get_ordered_ops() if copy.get_type_name() != "Result"]


def _copy_operation(node: ov.Node) -> list[ov.Node]:
    """The same operation on the same inputs once more; empty where it cannot be made."""
    from ov_hsdag.compat import NodeFactory

    info = node.get_type_info()
    try:
        copy = NodeFactory(info.version_id).create(info.name, node.input_values(), node.get_attributes())
    except (RuntimeError, TypeError, ValueError):
        return []
    copy.set_friendly_name(node.get_friendly_name())
    return [copy]


def split_rule(openvino_version: str) -> int:
    """Which of HETERO's splitting rules a release of OpenVINO has (native `SplitRule`).

    Source: the plugin's subgraph_collector.cpp, openvinotoolkit/openvino pull request 36126. Checked against the
    plugins of 2025.4, 2026.2 and 2026.4 on random graphs.
    """
    year, minor = (int(part) for part in openvino_version.split("-")[0].split(".")[:2])
    return 1 if (year, minor) >= (2026, 3) else 0


def complete(model: ov.Model, affinity: Mapping[str, str], devices: Sequence[str]) -> dict[str, str]:
    """A legal affinity for every node of `model`, from those of the nodes that are known.

    Nodes that appeared after the placement (preprocessing, decompressed weights, other passes) follow the nodes that
    they must share a device with, else their producers, else their consumers. Where known nodes that must share a
    device have different ones (the model was changed), the device of most of them wins. Followers with consumers on
    several devices are copied: `model` is changed.

    Args:
        model: the model that will be compiled; friendly names that repeat are made unique.
        affinity: device by friendly name; unknown names and names of devices not in `devices` are ignored.
        devices: devices to choose from; the first takes what is left.

    Returns:
        Device by friendly name, for every node of the model as it is afterwards.
    """
    unique_names(model)
    graph = ComputationGraph.from_model(model)
    follows = followers(graph)
    number = {device: index for index, device in enumerate(devices)}
    known = np.array([number.get(affinity.get(name, ""), -1) for name in graph.names], np.int64)

    groups = _merged(graph, _tied(graph, follows))
    votes = np.zeros((int(groups.max()) + 1, len(devices)), np.int64)
    # Operations decide; a Parameter or Result that was placed decides only where no operation does.
    weight = np.where(graph.kinds == NodeKind.OP, graph.nodes, 1) * ~follows
    np.add.at(votes, (groups[known >= 0], known[known >= 0]), weight[known >= 0])
    chosen = np.where(votes.any(axis=1), votes.argmax(axis=1), -1)

    edges = [
        (int(groups[a]), int(groups[b]))
        for a, b in zip(graph.input_source, graph.input_node, strict=True)
        if not follows[a] and groups[a] != groups[b]
    ]
    for forward in (True, False):
        for a, b in edges if forward else reversed(edges):
            source, target = (a, b) if forward else (b, a)
            if chosen[target] < 0:
                chosen[target] = chosen[source]
    chosen[chosen < 0] = 0
    homes = _copy_followers(model, graph, follows, chosen[groups])
    return _settle(model, {name: devices[home] for name, home in homes.items()}, devices)


def _settle(model: ov.Model, affinity: Mapping[str, str], devices: Sequence[str]) -> dict[str, str]:
    """Gives every legality group one device (most of its operations' choice) and repairs what HETERO would refuse.

    Followers that could not be copied, and changes of the model after its placement, leave something to do here.
    """
    import openvino as ov

    graph = ComputationGraph.from_model(model)
    groups = colocation(graph)
    number = {device: index for index, device in enumerate(devices)}
    votes = np.zeros((int(groups.max()) + 1, len(devices)), np.int64)
    weight = np.where(graph.kinds == NodeKind.OP, graph.nodes, 1)
    np.add.at(votes, (groups, np.array([number[affinity[name]] for name in graph.names])), weight)
    everywhere = np.ones_like(votes, bool)
    settled = repair(graph, groups, bonds(graph), votes.argmax(axis=1), everywhere, split_rule(ov.__version__))
    return {name: devices[home] for name, home in zip(graph.names, settled[groups].tolist(), strict=True)}
