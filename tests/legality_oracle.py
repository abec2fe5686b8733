"""The rules of legality, completion and repair once more, as plain Python that can be read beside the native core.

Written before the core had them; the tests compare the two on random graphs. Slow, and used by tests alone.

Lists of bool or int have an item for each node, unless a docstring says otherwise. A pair is two nodes, or the ends of
an edge, that a rule binds together. Replicable nodes are cheap ones, such as constants and shape arithmetic, of which
each device may have a copy. A host is a group of nodes that must share a device whatever the replicable nodes do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from ov_hsdag import _native
from ov_hsdag.model.graph import ComputationGraph, NodeKind

# Input ports, by type of the operation, whose values decide a shape.
SHAPE_INPUTS: dict[str, tuple[int, ...]] = {
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
OF_OPEN_VALUES = {
    "Add", "Concat", "Convert", "Gather", "Maximum", "Minimum", "Multiply", "Reshape", "Squeeze", "Subtract",
    "Unsqueeze",
}  # fmt: skip
OF_MASKS = {
    "Add", "BitwiseAnd", "Broadcast", "Convert", "Equal", "Greater", "GreaterEqual", "Less", "LessEqual", "LogicalAnd",
    "LogicalNot", "LogicalOr", "Maximum", "Minimum", "Multiply", "NotEqual", "Reshape", "Select", "Squeeze", "Subtract",
    "Unsqueeze",
}  # fmt: skip
OF_CACHES = {
    "Broadcast", "Concat", "Convert", "Gather", "Multiply", "Reshape", "Slice", "StridedSlice", "Split", "Squeeze",
    "Tile", "Transpose", "Unsqueeze", "VariadicSplit",
}  # fmt: skip
OF_SCORES = {
    "Add", "Clamp", "Convert", "Divide", "Maximum", "Minimum", "Multiply", "Reshape", "Select", "Subtract", "Tanh",
}  # fmt: skip
OF_EXPERTS = {
    "Add", "Clamp", "Convert", "Gelu", "Maximum", "Minimum", "Multiply", "Relu", "Reshape", "Sigmoid", "Slice",
    "Subtract", "Split", "Swish", "Tanh", "VariadicSplit",
}  # fmt: skip
OF_ROUTING = {"Convert", "Reshape", "Transpose", "Unsqueeze"}
SHAPE_VECTOR = 32
NEVER_COPIED = {"ReadValue", "RandomUniform", "Multinomial"}

Pair = tuple[int, int]


def inputs_of(graph: ComputationGraph, node: int) -> list[int]:
    """Lists the nodes that feed a node, in the order of its input ports."""
    return graph.input_source[graph.input_ptr[node] : graph.input_ptr[node + 1]].tolist()


def edges_of(graph: ComputationGraph) -> list[tuple[int, int, int]]:
    """Lists the edges, one for each input port: source node, target node, number of the output among all outputs."""
    return list(zip(graph.input_source.tolist(), graph.input_node.tolist(), graph.input_output.tolist(), strict=True))


def constant_nodes(graph: ComputationGraph) -> list[bool]:
    """Whether a node is a constant, or is computed from constants alone and is no state and not random."""
    constant: list[bool] = []
    for node, type_name in enumerate(graph.types):
        inputs = inputs_of(graph, node)
        computed = graph.kinds[node] == NodeKind.OP and inputs and type_name not in NEVER_COPIED
        constant.append(bool(graph.kinds[node] == NodeKind.CONSTANT or (computed and all(constant[i] for i in inputs))))
    return constant


def open_values(graph: ComputationGraph) -> list[bool]:
    """Whether a node's value is a length of which the model knows nothing, or arithmetic of such lengths."""
    constant = constant_nodes(graph)
    found = [False] * graph.nodes if graph.open_lengths is None else graph.open_lengths.tolist()
    for node, type_name in enumerate(graph.types):
        if found[node] or type_name not in OF_OPEN_VALUES or not is_short(graph, int(graph.output_ptr[node])):
            continue
        live = [source for source in inputs_of(graph, node) if not constant[source]]
        mixed = type_name == "Concat" and len(live) < len(inputs_of(graph, node))
        found[node] = bool(live) and all(found[source] for source in live) and not mixed
    return found


def is_short(graph: ComputationGraph, output: int) -> bool:
    """Whether an output is a scalar or a vector of at most `SHAPE_VECTOR` values, as shapes are."""
    rank = graph.output_ranks[output]
    return bool(rank == 0 or (rank == 1 and graph.output_shapes[output][0] <= SHAPE_VECTOR))


def shape_arithmetic(graph: ComputationGraph) -> list[bool]:
    """Whether a node computes a shape that another node reads, back to the ShapeOf where that begins."""
    opened = open_values(graph)
    wanted = [False] * graph.nodes
    for node in reversed(range(graph.nodes)):
        count = len(inputs_of(graph, node))
        ports: Iterable[int] = SHAPE_INPUTS.get(graph.types[node], ())
        if wanted[node]:
            ports = () if graph.types[node] == "ShapeOf" else range(count)
        for port in ports:
            if port >= count:
                continue
            output = graph.input_output[graph.input_ptr[node] + port]
            owner = graph.output_node[output]
            copied = graph.kinds[owner] == NodeKind.OP and graph.types[owner] not in NEVER_COPIED
            if copied and is_short(graph, output) and not opened[owner]:
                wanted[owner] = True
    return wanted


def before_masks(graph: ComputationGraph) -> list[bool]:
    """Whether a node is replicable, masks aside.

    These are constants, shape arithmetic, and Broadcasts of constants to the first value of states, with the
    lengths that those need.
    """
    constant = constant_nodes(graph)
    found = [a or b for a, b in zip(constant, shape_arithmetic(graph), strict=True)]
    initial = []
    for node, type_name in enumerate(graph.types):
        readers = {graph.types[target] for source, target, _ in edges_of(graph) if source == node}
        data, *sizes = inputs_of(graph, node) or [node]
        cheap = constant[data] and all(found[size] for size in sizes)
        initial.append(type_name == "Broadcast" and readers == {"ReadValue"} and cheap)
    found = [a or b for a, b in zip(found, initial, strict=True)]
    open_ = open_values(graph)

    def with_open(node: int) -> None:
        """Adds the open lengths that feed a node, back to their ShapeOf, to `found`."""
        for source in inputs_of(graph, node):
            if not found[source] and (open_[source] or graph.types[source] == "ShapeOf"):
                found[source] = True
                if graph.types[source] != "ShapeOf":
                    with_open(source)

    for node in np.flatnonzero(initial).tolist():
        for size in inputs_of(graph, node)[1:]:
            ports = range(graph.input_ptr[size], graph.input_ptr[size + 1])
            outputs = [graph.input_output[port] for port in ports if constant[graph.input_source[port]]]
            several = any(graph.output_ranks[o] == 1 and graph.output_shapes[o][0] > 1 for o in outputs)
            if graph.types[size] == "Concat" and several:
                with_open(size)
    return found


def shared_masks(graph: ComputationGraph) -> list[bool]:
    """Whether a node is a mask to copy.

    That is a cheap node whose tensor cannot be handed over and has several readers, or a cheap one that feeds it.
    """
    before = before_masks(graph)
    edges = edges_of(graph)
    fixed = set(graph.output_node[~graph.output_movable].tolist())
    bound = {node for pair in state_paths(graph) for node in pair}
    bound |= {source for source, target, _ in edges if graph.kinds[target] == NodeKind.RESULT}
    cheap: set[int] = set()
    for node, type_name in enumerate(graph.types):
        if node not in fixed or node in bound or before[node] or type_name not in OF_MASKS:
            continue
        feeders = [(a, output) for a, b, output in edges if b == node]
        if graph.kinds[node] == NodeKind.OP and all(graph.output_movable[o] or a in cheap for a, o in feeders):
            cheap.add(node)
    shared: set[int] = set()
    for node in sorted(cheap, reverse=True):
        if node in shared or sum(source == node for source, _, _ in edges) > 1:
            shared |= {node, *(cheap & set(inputs_of(graph, node)))}
    return [node in shared for node in range(graph.nodes)]


def replicable_producers(graph: ComputationGraph) -> list[bool]:
    """Whether a node is replicable."""
    return [a or b for a, b in zip(before_masks(graph), shared_masks(graph), strict=True)]


def states(graph: ComputationGraph) -> list[Pair]:
    """Pairs of a state's ReadValue and its Assign."""
    readers = {v: node for node, v in enumerate(graph.variables) if v and graph.kinds[node] != NodeKind.SINK}
    assigns = np.flatnonzero(graph.kinds == NodeKind.SINK).tolist()
    return [(readers[graph.variables[n]], n) for n in assigns if graph.variables[n] in readers]


def state_paths(graph: ComputationGraph) -> list[Pair]:
    """Pairs of a state's ReadValue and each node on a path from it to its Assign, without the Assign."""
    network = nx.MultiDiGraph([(a, b) for a, b, _ in edges_of(graph)])
    network.add_nodes_from(range(graph.nodes))
    found = []
    for read, assign in states(graph):
        between = nx.descendants(network, read) & nx.ancestors(network, assign)
        found += [(read, node) for node in between]
    return found


def cached_attention(graph: ComputationGraph) -> list[Pair]:
    """Edges between the states of keys and values and the end of the attention that reads them.

    `part` has what a node holds on the way: "cache" (keys or values), "scores", or "weights" (after the Softmax).
    """
    held = {node for pair in state_paths(graph) for node in pair}
    part: dict[int, str] = {}
    found: set[Pair] = set()

    def bind(node: int) -> None:
        """Adds the edges into a node from nodes of its attention to `found`, back to the states."""
        for source in part.keys() & set(inputs_of(graph, node)):
            if (source, node) not in found:
                found.add((source, node))
                if source not in held:
                    bind(source)

    for node, type_name in enumerate(graph.types):
        of_inputs = {part.get(source) for source in inputs_of(graph, node)}
        if type_name == "ScaledDotProductAttention" and "cache" in of_inputs:
            bind(node)
        if type_name == "MatMul" and "cache" in of_inputs:
            if "weights" in of_inputs:
                bind(node)
            else:
                part[node] = "scores"
        elif "scores" in of_inputs and (type_name in OF_SCORES or type_name == "Softmax"):
            part[node] = "weights" if type_name == "Softmax" else "scores"
        elif "weights" in of_inputs and type_name in OF_SCORES:
            part[node] = "weights"
        elif node in held or ("cache" in of_inputs and type_name in OF_CACHES):
            part[node] = "cache"
    return sorted(found)


def experts(graph: ComputationGraph) -> list[tuple[int, int, int, list[int]]]:  # noqa: C901 one rule in one piece
    """Finds the blocks of experts, one for each layer with experts.

    Returns:
        Of each block, the Tile that repeats the tokens for each expert, the ScatterElementsUpdate of the routing
        weights, the ReduceSum over experts, and all nodes of the block, ascending.
    """
    constant, types = constant_nodes(graph), graph.types
    network = nx.MultiDiGraph([(a, b) for a, b, _ in edges_of(graph)])
    network.add_nodes_from(range(graph.nodes))
    blocks = []

    def multiplies(node: int) -> bool:
        """Whether a node multiplies by the constant matrices of all experts, of rank 3."""
        sources = inputs_of(graph, node)
        if types[node] != "MatMul" or len(sources) < 2 or not constant[sources[1]]:
            return False
        return bool(graph.output_ranks[graph.input_output[graph.input_ptr[node] + 1]] == 3)

    def routed(node: int) -> list[int]:
        """Lists the nodes from `node` back to the ScatterElementsUpdate of the routing; [] where there is none."""
        found = []
        while types[node] in OF_ROUTING and inputs_of(graph, node):
            found.append(node)
            node = inputs_of(graph, node)[0]
        return [*found, node] if types[node] == "ScatterElementsUpdate" else []

    def computed(node: int, found: set[int]) -> bool:
        """Whether experts compute a node from a Tile; adds the nodes on the way, without constants, to `found`."""
        if constant[node] or node in found:
            return True
        found.add(node)
        if types[node] == "Tile":
            return bool(inputs_of(graph, node))
        if multiplies(node) or (types[node] == "Reshape" and inputs_of(graph, node)):
            return computed(inputs_of(graph, node)[0], found)
        return types[node] in OF_EXPERTS and all(computed(one, found) for one in inputs_of(graph, node))

    for end, kind in enumerate(types):
        if kind != "ReduceSum" or not inputs_of(graph, end):
            continue
        weighted = inputs_of(graph, end)[0]
        factors = inputs_of(graph, weighted)[:2] if types[weighted] == "Multiply" else []
        for side in range(len(factors) if len(factors) == 2 else 0):
            inside: set[int] = set()
            route = routed(factors[1 - side])
            tiles = []
            if route and computed(factors[side], inside):
                tiles = [node for node in inside if types[node] == "Tile"]
            products = sum(multiplies(node) for node in inside)
            beta = any(types[node] == "Swish" and len(inputs_of(graph, node)) > 1 for node in inside)
            if len(tiles) != 1 or products < 2 or (products > 2 and beta):
                continue
            nodes = {end, weighted, *route, *inside}
            readers = [target for source, target, _ in edges_of(graph) if source == end]
            ends = [target for target in readers if types[target] == "Reshape" and inputs_of(graph, target)[0] == end]
            if len(readers) == len(ends) == 1 and graph.output_node.tolist().count(end) == 1:
                nodes.add(readers[0])
            tokens = inputs_of(graph, tiles[0])[0]
            for node in sorted(nx.descendants(network, tokens) | {tokens}, reverse=True):
                begins = node == tokens and types[node] != "Reshape"
                reads = set(network.successors(node))
                if node < end and not begins and reads and reads <= nodes:
                    nodes.add(node)
            blocks.append((tiles[0], route[-1], end, sorted(nodes)))
            break
    return blocks


def expert_pairs(graph: ComputationGraph) -> list[Pair]:
    """Pairs of each node in a block of experts, if it is not replicable, and the block's sum."""
    replicable = replicable_producers(graph)
    return [
        (node, end) for _, _, end, nodes in experts(graph) for node in nodes if node != end and not replicable[node]
    ]


def crossing(graph: ComputationGraph) -> NDArray[np.bool_]:
    """Whether an output may go from submodel to submodel, perhaps with its shape relaxed, bool [outputs]."""
    return graph.output_movable if graph.output_relaxable is None else graph.output_movable | graph.output_relaxable


def colocation_constraints(graph: ComputationGraph) -> list[Pair]:  # noqa: C901, PLR0912 a block for each rule
    """Pairs of nodes that must share a device, by all rules but that of replicable nodes."""
    replicable, masks = replicable_producers(graph), shared_masks(graph)
    pairs: list[Pair] = []
    first: dict[str, int] = {}
    for node, variable in enumerate(graph.variables):
        if variable:
            pairs.append((first.setdefault(variable, node), node))
    for source, target, output in edges_of(graph):
        if graph.kinds[target] == NodeKind.RESULT or not (crossing(graph)[output] or masks[source]):
            pairs.append((source, target))
    network = nx.MultiDiGraph([(a, b) for a, b, _ in edges_of(graph)])
    network.add_nodes_from(range(graph.nodes))
    pairs += state_paths(graph) + cached_attention(graph)
    for node, type_name in enumerate(graph.types):
        inputs = inputs_of(graph, node)
        if type_name == "ScaledDotProductAttention":
            read = [(one, node) for one in inputs[:3]]
        elif type_name == "MatMul" and inputs and graph.types[inputs[0]] == "Softmax":
            above = inputs_of(graph, inputs[0])[:1]
            while above and graph.types[above[0]] in OF_SCORES:
                above = inputs_of(graph, above[0])[:1]
            scores = above and graph.types[above[0]] == "MatMul"
            read = [(one, node) for one in inputs[1:2]]
            read += [(one, above[0]) for one in inputs_of(graph, above[0])[:2]] if scores else []
        else:
            continue
        for one, to in read:
            while graph.kinds[one] == NodeKind.OP:
                pairs.append((one, to))
                if graph.types[one] != "Transpose" or not inputs_of(graph, one):
                    break
                one, to = inputs_of(graph, one)[0], one
        pairs += [(node, to) for source, to, _ in edges_of(graph) if source == node and graph.types[to] == "Transpose"]
    for source, target, _ in edges_of(graph):
        if graph.types[target] == "ShapeOf" and not replicable[target]:
            pairs.append((source, target))
        open_length = graph.open_lengths is not None and graph.open_lengths[target] and not replicable[target]
        if graph.types[source] == "ShapeOf" and open_length:
            pairs.append((inputs_of(graph, source)[0], target))
    height = dict.fromkeys(network, 0)
    for node in reversed(range(graph.nodes)):
        height[node] = max((height[after] + 1 for after in network.successors(node)), default=0)
    for node in np.flatnonzero(graph.kinds == NodeKind.PARAMETER).tolist():
        users = [target for source, target, _ in edges_of(graph) if source == node]
        computing = [user for user in users if graph.kinds[user] != NodeKind.RESULT and not replicable[user]]
        hosts = sorted(computing or users, key=lambda user: -height[user])
        pairs += [(node, user) for user in hosts[:1]]
    return pairs + expert_pairs(graph)


def same_submodel_constraints(graph: ComputationGraph) -> list[Pair]:
    """Pairs of nodes that must be in one submodel of HETERO, not only on one device."""
    replicable = replicable_producers(graph)
    return (
        [
            (source, target)
            for source, target, output in edges_of(graph)
            if graph.kinds[source] != NodeKind.CONSTANT and (replicable[source] or not crossing(graph)[output])
        ]
        + states(graph)
        + cached_attention(graph)
        + expert_pairs(graph)
    )


def merged(graph: ComputationGraph, pairs: Sequence[Pair]) -> list[int]:
    """Merges the nodes that pairs connect to groups.

    Returns:
        The group of each node; groups are numbered from 0 in the order of their first nodes.
    """
    network = nx.Graph(list(pairs))
    network.add_nodes_from(range(graph.nodes))
    groups = [0] * graph.nodes
    for number, members in enumerate(sorted(nx.connected_components(network), key=min)):
        for node in members:
            groups[node] = number
    return groups


def hosts(graph: ComputationGraph) -> list[int]:
    """The host of each node."""
    return merged(graph, colocation_constraints(graph))


def colocation(graph: ComputationGraph) -> list[int]:
    """The co-location group of each node: replicable nodes are in the groups of all their readers, joined."""
    replicable = replicable_producers(graph)
    followed = [(source, target) for source, target, _ in edges_of(graph) if replicable[source]]
    return merged(graph, colocation_constraints(graph) + followed)


def votes(graph: ComputationGraph, groups: Sequence[int], device: Sequence[int], devices: int) -> NDArray[np.int64]:
    """Counts the votes of nodes for the device of their group; an operation outweighs all other nodes together.

    Args:
        graph: the graph.
        groups: group of each node.
        device: device number that each node votes for; -1 for no vote.
        devices: number of devices.

    Returns:
        int64 [groups, devices].
    """
    counts = np.zeros((max(groups) + 1, devices), np.int64)
    for node, one in enumerate(device):
        if one >= 0:
            counts[groups[node], one] += graph.nodes if graph.kinds[node] == NodeKind.OP else 1
    return counts


def host_devices(graph: ComputationGraph, known: Sequence[int], devices: int) -> list[int]:
    """Completes a placement: the device of each node's host.

    Hosts without a vote take the device of what they read; if that has none, of what reads them; else 0.

    Args:
        graph: the graph.
        known: device number of each node; -1 where it is not known.
        devices: number of devices.
    """
    replicable, groups = replicable_producers(graph), hosts(graph)
    told = [-1 if replicable[node] else one for node, one in enumerate(known)]
    counts = votes(graph, groups, told, devices)
    chosen = np.where(counts.any(axis=1), counts.argmax(axis=1), -1)
    edges = [(a, groups[a], groups[b]) for a, b, _ in edges_of(graph) if not replicable[a] and groups[a] != groups[b]]
    given, last = chosen >= 0, np.full(len(chosen), -1)
    for node, source, target in edges:
        if chosen[source] >= 0 and not given[target] and node > last[target]:
            chosen[target], last[target] = chosen[source], node
    given = chosen >= 0
    for _, source, target in reversed(edges):
        if chosen[target] >= 0 and not given[source]:
            chosen[source] = chosen[target]
    return [max(0, int(chosen[group])) for group in groups]


def replication(
    graph: ComputationGraph, homes: Sequence[int], copyable: Sequence[bool]
) -> tuple[list[int], list[tuple[int, int, list[Pair]]]]:
    """Decides on which devices replicable nodes run.

    Args:
        graph: the graph.
        homes: device number of each node.
        copyable: whether a node may have replicas on further devices.

    Returns:
        The device number of each node, that of most of its readers for a replicable node. And the replicas, each with
        its node, its device and its readers: pairs of an instance and an input port. An instance is a node, or
        `graph.nodes` plus the number of a replica.
    """
    replicable, constant = replicable_producers(graph), constant_nodes(graph)
    consumers: list[dict[int, list[Pair]]] = [defaultdict(list) for _ in range(graph.nodes)]
    result, replicas = list(homes), []

    def note(node: int, instance: int, home: int) -> None:
        """Notes that an instance of a node, on the device `home`, reads the replicable nodes among its inputs."""
        for port, source in enumerate(inputs_of(graph, node)):
            if replicable[source]:
                consumers[source][home].append((instance, port))

    for node in reversed(range(graph.nodes)):
        others: list[int] = []
        if consumers[node]:
            result[node], *others = sorted(consumers[node], key=lambda home: -len(consumers[node][home]))
        note(node, node, result[node])
        for home in others if copyable[node] else ():
            replicas.append((node, home, consumers[node][home]))
            if not constant[node]:
                note(node, graph.nodes + len(replicas) - 1, home)
    return result, replicas


def settle(graph: ComputationGraph, device: Sequence[int], devices: int, rule: int) -> list[int]:
    """Makes a placement of nodes legal: each group takes the device of most votes, and `repair` does the rest.

    Args:
        graph: the graph.
        device: device number of each node; -1 for no vote.
        devices: number of devices; each supports all operations.
        rule: HETERO's splitting rule, a number of the native core.

    Returns:
        The device number of each node.
    """
    groups = colocation(graph)
    placement = votes(graph, groups, device, devices).argmax(axis=1)
    pairs = np.array(same_submodel_constraints(graph), np.int32).reshape(-1, 2)
    everywhere = np.ones((len(placement), devices), bool)
    settled = repair(graph, np.array(groups, np.int32), pairs, placement, everywhere, rule)
    return settled[np.array(groups)].tolist()


def repair(
    graph: ComputationGraph,
    groups: NDArray[np.int32],
    same_submodel: NDArray[np.int32],
    placement: NDArray[np.integer[Any]],
    supported: NDArray[np.bool_],
    rule: int,
) -> NDArray[np.uint8]:
    """Moves submodels to other devices until HETERO can run the placement.

    In each round one submodel that computes nothing, separates a pair, or is in a cycle of submodels moves to the
    device of most of its neighbours.

    Args:
        graph: the graph.
        groups: group of each node, int32 [nodes].
        same_submodel: pairs of nodes that must be in one submodel, int32 [pairs, 2].
        placement: device number of each group, [groups].
        supported: whether a device supports a group, bool [groups, devices].
        rule: HETERO's splitting rule, a number of the native core.

    Returns:
        Device number of each group, uint8 [groups]. Where no move helps, all are on the first device that supports all
        groups; without such a device, the placement as far as it was repaired.
    """
    result = np.array(placement, np.uint8)
    source, target = graph.input_source, graph.input_node
    for _ in range(len(supported)):
        split = _native.split(graph.native, result[groups], rule)
        submodel = split["submodel"]
        trivial = np.append(split["trivial"], False)[submodel]
        separated = submodel[same_submodel[:, 0]] != submodel[same_submodel[:, 1]]
        if trivial.any():
            moving = submodel[trivial.argmax()]
        elif separated.any():
            end = submodel[same_submodel[separated.argmax(), 1]]
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
        counts = np.bincount(result[groups[outside]], minlength=supported.shape[1]).astype(float)
        counts[result[moved[0]]] = -1
        counts[~supported[moved].all(axis=0)] = -1
        if counts.max() < 0:
            break
        result[moved] = counts.argmax()
    everywhere = np.flatnonzero(supported.all(axis=0))
    return np.full(len(supported), everywhere[0], np.uint8) if len(everywhere) else result
