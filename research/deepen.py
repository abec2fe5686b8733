"""Makes large graphs of small ones by repeating layers or chaining models; sizes, types and costs stay real."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.model.graph import ComputationGraph, NodeKind
from ov_hsdag.problem.problem import PlacementProblem

# Number of candidates for the begin and end of a stretch: the places that the fewest tensors cross. All pairs of them
# are tried, so that the time grows with the square.
_PLACES = 240

# Largest number of tensors from one copy of a stretch to the next; a layer has few.
_MOST_HANDED_ON = 12


@dataclass(frozen=True)
class Stretch:
    """A part of the topological order that can be repeated: nodes from `first` on, `last` excluded."""

    first: int
    last: int
    entering: tuple[int, ...]  # outputs of nodes before it that it reads; in a copy, `leaving` of the copy before
    leaving: tuple[int, ...]  # outputs that nodes after it read, of the same kinds and in the same order as `entering`


def deepen(template: PlacementProblem, operations: int) -> PlacementProblem:
    """Repeats the layers of a template until it has about a given number of operations.

    Args:
        template: the template whose graph is used.
        operations: wanted number of nodes other than constants, Parameters and Results.

    Returns:
        A template on the same devices, without costs; `template` itself where nothing can be repeated, or it is large
        enough.
    """
    graph = template.graph
    present = int((graph.kinds == NodeKind.OP).sum())
    stretch = repeatable(graph)
    if stretch is None:
        return template
    in_stretch = int((graph.kinds[stretch.first : stretch.last] == NodeKind.OP).sum())
    copies = round((operations - present) / in_stretch)
    return _template(_repeated(graph, stretch, copies), template) if copies > 0 else template


def joined(templates: Sequence[PlacementProblem]) -> PlacementProblem:
    """Chains models: the first output of each becomes the first input of the next.

    Args:
        templates: at least one. Sizes of the tensors need not fit together, as only costs count.

    Returns:
        A template on the devices of the first one, without costs.
    """
    builder = _Copies()
    end: int | None = None
    for number, template in enumerate(templates):
        graph = template.graph
        inputs = np.flatnonzero(graph.kinds == NodeKind.PARAMETER)
        renamed: dict[int, int] = {}
        skipped = set()
        if end is not None and len(inputs):
            renamed[int(graph.output_ptr[inputs[0]])] = end
            skipped.add(int(inputs[0]))
        results = np.flatnonzero(graph.kinds == NodeKind.RESULT)
        builder.add(graph, [node for node in range(graph.nodes) if node not in skipped], renamed, f"m{number}/")
        if len(results):
            end = renamed[int(graph.input_output[graph.input_ptr[results[0]]])]
    return _template(builder.graph(), templates[0])


def repeatable(graph: ComputationGraph) -> Stretch | None:
    """Finds the stretch with the most operations per leaving tensor.

    The tensors that enter and leave a stretch must be of the same types and sizes. Tensors from before it that are read
    inside and after it (masks, rotary tables) do not count, as all copies share them.

    Returns:
        The stretch; None if no stretch can be repeated.
    """
    made = graph.output_node
    last_read = np.full(graph.outputs, -1)
    np.maximum.at(last_read, graph.input_output, graph.input_node)
    moving = np.flatnonzero(~np.isin(graph.kinds[made], (NodeKind.CONSTANT,)) & (last_read > made))
    crossing = np.zeros(graph.nodes + 1, np.int64)
    np.add.at(crossing, made[moving] + 1, 1)
    np.add.at(crossing, last_read[moving] + 1, -1)
    crossing = crossing.cumsum()[: graph.nodes]
    operation = np.isin(graph.kinds, (NodeKind.OP, NodeKind.SINK))
    places = np.flatnonzero(operation & (crossing > 0))
    places = np.sort(places[np.argsort(crossing[places], kind="stable")[:_PLACES]])
    alive = [moving[(made[moving] < place) & (last_read[moving] >= place)] for place in places]
    best: tuple[float, Stretch] | None = None
    work = np.cumsum(np.append(0, operation))
    for a, first in enumerate(places):
        for b in range(len(places) - 1, a, -1):
            length = float(work[places[b]] - work[first])
            handed = len(alive[b]) - np.isin(alive[b], alive[a]).sum()
            if handed == 0 or handed > _MOST_HANDED_ON or (best is not None and length / handed <= best[0]):
                continue
            found = _stretch(graph, int(first), int(places[b]), alive[a], alive[b])
            if found is not None:
                best = (length / handed, found)
    return None if best is None else best[1]


def _stretch(
    graph: ComputationGraph, first: int, last: int, before: NDArray[np.int64], behind: NDArray[np.int64]
) -> Stretch | None:
    """Makes a stretch if it can be repeated.

    Args:
        graph: the graph.
        first: first node of the stretch.
        last: first node behind it.
        before: outputs of nodes before `first` that `first` or later nodes read, int64.
        behind: outputs of nodes before `last` that `last` or later nodes read, int64.

    Returns:
        The stretch; None if the tensors that enter and leave it differ in type or size.
    """
    shared = np.intersect1d(before, behind)
    entering = _by_kind(graph, np.setdiff1d(before, shared))
    leaving = _by_kind(graph, np.setdiff1d(behind, shared))
    if [kind for kind, _ in entering] != [kind for kind, _ in leaving]:
        return None
    return Stretch(first, last, tuple(output for _, output in entering), tuple(output for _, output in leaving))


def _by_kind(graph: ComputationGraph, outputs: NDArray[np.int64]) -> list[tuple[tuple[str, int], int]]:
    """Sorts outputs by kind: pairs ((element type, bytes), output)."""
    return sorted(((graph.output_types[output], int(graph.output_bytes[output])), int(output)) for output in outputs)


def _repeated(graph: ComputationGraph, stretch: Stretch, copies: int) -> ComputationGraph:
    """The graph with a number of copies of a stretch inserted behind it."""
    inside = np.zeros(graph.nodes, bool)
    inside[stretch.first : stretch.last] = True
    # Constants that only the stretch reads belong to it, wherever they are in the order.
    reads_inside = np.bincount(graph.input_source, inside[graph.input_node], graph.nodes) > 0
    reads_outside = np.bincount(graph.input_source, ~inside[graph.input_node], graph.nodes) > 0
    constant = graph.legality.constant
    repeated = inside | (constant & reads_inside & ~reads_outside)
    for node in range(graph.nodes - 1, -1, -1):
        # So do the constants from which a decompressed weight is computed.
        if not repeated[node] and constant[node] and reads_outside[node] and not reads_inside[node]:
            readers = np.concatenate(
                [graph.consumers(output) for output in range(graph.output_ptr[node], graph.output_ptr[node + 1])]
            )
            repeated[node] = bool(len(readers)) and bool(repeated[readers].all())
    repeated &= ~((graph.kinds == NodeKind.RESULT) & ~inside)
    copied = [int(node) for node in np.flatnonzero(repeated)]
    head, tail = list(range(stretch.last)), list(range(stretch.last, graph.nodes))
    builder = _Copies()
    renamed: dict[int, int] = {}
    builder.add(graph, head, renamed, "")
    leaving = [renamed[output] for output in stretch.leaving]
    for number in range(copies):
        of_copy = dict(renamed) | dict(zip(stretch.entering, leaving, strict=True))
        builder.add(graph, copied, of_copy, f"copy{number + 1}/")
        leaving = [of_copy[output] for output in stretch.leaving]
    renamed |= dict(zip(stretch.leaving, leaving, strict=True))
    builder.add(graph, tail, renamed, "")
    return builder.graph()


class _Copies:
    """A graph that is assembled from nodes of other graphs."""

    def __init__(self) -> None:
        self.nodes: list[tuple[ComputationGraph, int, str]] = []
        self.inputs: list[list[int]] = []
        self.outputs = 0

    def add(self, graph: ComputationGraph, nodes: Sequence[int], renamed: dict[int, int], prefix: str) -> None:
        """Appends copies of nodes.

        Args:
            graph: the graph of the nodes.
            nodes: the nodes, in topological order.
            renamed: number in the new graph by output of `graph`, for all outputs that the nodes read; those of the
                copies are added.
            prefix: put in front of the nodes' names.
        """
        for node in nodes:
            self.nodes.append((graph, node, prefix))
            read = graph.input_output[graph.input_ptr[node] : graph.input_ptr[node + 1]]
            self.inputs.append([renamed[int(output)] for output in read])
            for output in range(graph.output_ptr[node], graph.output_ptr[node + 1]):
                renamed[output] = self.outputs
                self.outputs += 1

    def graph(self) -> ComputationGraph:
        """The assembled graph."""
        ports = [
            (graph, output)
            for graph, node, _ in self.nodes
            for output in range(graph.output_ptr[node], graph.output_ptr[node + 1])
        ]
        return ComputationGraph(
            names=tuple(prefix + graph.names[node] for graph, node, prefix in self.nodes),
            types=tuple(graph.types[node] for graph, node, _ in self.nodes),
            kinds=np.array([graph.kinds[node] for graph, node, _ in self.nodes], np.uint8),
            input_ptr=np.cumsum([0, *map(len, self.inputs)]).astype(np.int32),
            input_output=np.array([output for inputs in self.inputs for output in inputs], np.int32),
            output_ptr=np.cumsum(
                [0, *(int(graph.output_ptr[node + 1] - graph.output_ptr[node]) for graph, node, _ in self.nodes)]
            ).astype(np.int32),
            output_bytes=np.array([graph.output_bytes[output] for graph, output in ports], np.int64),
            output_shapes=tuple(graph.output_shapes[output] for graph, output in ports),
            output_ranks=np.array([graph.output_ranks[output] for graph, output in ports], np.int16),
            output_movable=np.array([graph.output_movable[output] for graph, output in ports], bool),
            output_types=tuple(graph.output_types[output] for graph, output in ports),
            flops=np.array([graph.flops[node] for graph, node, _ in self.nodes], np.float64),
            weight_bytes=np.array([graph.weight_bytes[node] for graph, node, _ in self.nodes], np.int64),
            variables=tuple(
                prefix + graph.variables[node] if graph.variables[node] else "" for graph, node, prefix in self.nodes
            ),
            open_lengths=np.array(
                [graph.open_lengths is not None and graph.open_lengths[node] for graph, node, _ in self.nodes], bool
            ),
            output_relaxable=np.array(
                [graph.output_relaxable is not None and graph.output_relaxable[output] for graph, output in ports], bool
            ),
        )


def _template(graph: ComputationGraph, like: PlacementProblem) -> PlacementProblem:
    """A template of a graph on the devices of another template: without times, every node supported everywhere."""
    shape = (graph.nodes, len(like.devices))
    return replace(
        like,
        graph=graph,
        node_us=np.zeros(shape),
        supported=np.ones(shape, bool),
        groups=graph.legality.groups,
        fused_with=None,
        fusion_penalty_us=None,
        moved_bytes=None,
        held_bytes=None,
        live_bytes=None,
    )
