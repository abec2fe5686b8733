"""A runtime that runs independent parts of several requests at once: what GO decides on a model beside its placement.

HETERO runs the submodels of a request one after the other and overlaps requests only as a pipeline. Here, a model is a
graph of *units*, and each device takes one unit of any request at a time, the ready one with the highest priority (list
scheduling, without preemption). A unit is a submodel of HETERO, or a part of one: fusion decides where those are cut.
Whole submodels keep all fusions and cost `submodel_us` once; parts run earlier, but pay it each, and the penalties of
the fusions that are broken between them.

A unit takes the time of its operations, its broken fusions, `submodel_us`, and of the transfers of the tensors that its
device does not have yet; the receiver is busy with a transfer, the sender is not. What a request brings (Parameters) is
there from its beginning. With one request and whole submodels, the work of all devices is the latency of
`PlacementProblem.evaluate`, and so is the makespan where nothing overlaps.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from ov_hsdag.model.graph import NodeKind
from ov_hsdag.problem.problem import PlacementProblem

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Units:
    """A model cut into units, numbered in topological order of their first node.

    Attributes:
        unit: of each node, -1 for a node in none, int64 [nodes].
        device: of each unit, int64 [units].
        us: time of each unit without transfers, µs, float64 [units].
        priority: of each unit, int64 [units].
        waits_for: units that each unit waits for.
        reads: outputs that each unit reads from other devices, and the time of their transfers, µs.
    """

    unit: NDArray[np.int64]
    device: NDArray[np.int64]
    us: NDArray[np.float64]
    priority: NDArray[np.int64]
    waits_for: list[set[int]]
    reads: list[dict[int, float]]


@dataclass(frozen=True, eq=False)
class Schedule:
    """When each unit of each request runs.

    Attributes:
        units: of the model.
        start: µs, float64 [requests, units].
        end: µs, float64 [requests, units].
    """

    units: Units
    start: NDArray[np.float64]
    end: NDArray[np.float64]

    @property
    def makespan_us(self) -> float:
        """Time until the last request is done, µs."""
        return float(self.end.max(initial=0.0))


@dataclass(frozen=True, eq=False)
class Scheduler:
    """Schedules requests that all come at time 0.

    Attributes:
        problem: graph, costs and limits; its objective does not matter.
        requests: in flight.
    """

    problem: PlacementProblem
    requests: int = 4

    def costs(self, decisions: Bytes) -> NDArray[np.float64]:
        """A `Judge` for `research.baselines.budget.Environment`.

        Args:
            decisions: placements, uint8 [batch, groups], of whole submodels with equal priorities; or placement,
                priority and fusion of each group, uint8 [batch, 3, groups].

        Returns:
            Makespan over requests, seconds per inference, inf where the placement is infeasible, float64 [batch].
        """
        placements = decisions if decisions.ndim == 2 else decisions[:, 0]
        feasible = self.problem.evaluate(placements).infeasible == 0
        result = np.full(len(decisions), np.inf)
        for row in np.flatnonzero(feasible):
            chosen = (decisions[row],) if decisions.ndim == 2 else tuple(decisions[row])
            result[row] = self.schedule(*chosen).makespan_us * 1e-6 / self.requests
        return result

    def schedule(self, placement: Bytes, priority: Bytes | None = None, fused: Bytes | None = None) -> Schedule:
        """Schedules one placement.

        Args:
            placement: device numbers, one that HETERO can order, uint8 [groups].
            priority: of each group; a unit has the highest of its groups'. None: all alike. uint8 [groups].
            fused: 0 where a unit begins at the group's first operation in each submodel, 1 where it goes on with what
                runs before. None: submodels stay whole. uint8 [groups].

        Returns:
            The schedule. Of ready units with equal priorities the one of the earliest request and, there, the first in
            topological order runs first.
        """
        units = self.units(placement, priority, fused)
        count, requests = len(units.device), self.requests
        start, end = np.zeros((requests, count)), np.zeros((requests, count))
        waiting = [[len(others) for others in units.waits_for] for _ in range(requests)]
        next_units: list[list[int]] = [[] for _ in range(count)]
        for unit, others in enumerate(units.waits_for):
            for other in others:
                next_units[other].append(unit)
        devices = len(self.problem.devices)
        ready: list[list[tuple[int, int, int]]] = [[] for _ in range(devices)]
        idle = [True] * devices
        moved: set[tuple[int, int, int]] = set()
        running: list[tuple[float, int, int]] = []

        def offer(request: int, unit: int) -> None:
            heapq.heappush(ready[units.device[unit]], (-int(units.priority[unit]), request, unit))

        for request in range(requests):
            for unit in range(count):
                if not waiting[request][unit]:
                    offer(request, unit)
        now = 0.0
        while True:
            for device in range(devices):
                if not idle[device] or not ready[device]:
                    continue
                _, request, unit = heapq.heappop(ready[device])
                time = float(units.us[unit])
                for output, us in units.reads[unit].items():
                    if (request, device, output) not in moved:
                        moved.add((request, device, output))
                        time += us
                start[request, unit], end[request, unit] = now, now + time
                idle[device] = False
                heapq.heappush(running, (now + time, request, unit))
            if not running:
                return Schedule(units, start, end)
            now = running[0][0]
            # All that ends now is known before anything begins.
            while running and running[0][0] == now:
                _, request, unit = heapq.heappop(running)
                idle[units.device[unit]] = True
                for other in next_units[unit]:
                    waiting[request][other] -= 1
                    if not waiting[request][other]:
                        offer(request, other)

    def units(self, placement: Bytes, priority: Bytes | None = None, fused: Bytes | None = None) -> Units:
        """Cuts the model into units; see `schedule`."""
        problem, graph = self.problem, self.problem.graph
        placement = np.asarray(placement, np.uint8)
        split = problem.split(placement)
        submodel: NDArray[np.int32] = split["submodel"]
        device = placement[problem.groups].astype(np.int64)
        unit = submodel.astype(np.int64) if fused is None else self._cut(submodel, np.asarray(fused))
        # Numbered by their first node.
        inside = unit >= 0
        numbers, first, dense = np.unique(unit[inside], return_index=True, return_inverse=True)
        rank = np.empty(len(numbers), np.int64)
        rank[np.argsort(first)] = np.arange(len(numbers))
        unit = np.full(graph.nodes, -1)
        unit[inside] = rank[dense]
        count = len(numbers)
        of_unit = np.zeros(count, np.int64)
        of_unit[unit[inside]] = np.asarray(split["submodel_device"])[submodel[inside]]

        rows = np.arange(graph.nodes)
        fused_with, penalty_us = (array[rows, device] for array in problem.fusions)
        broken = (fused_with >= 0) & (unit[fused_with] != unit)
        node_us = problem.node_us[rows, device] + np.where(broken, penalty_us, 0.0)
        us = np.bincount(unit[inside], node_us[inside], count) + problem.submodel_us[of_unit]
        levels = np.zeros(count, np.int64)
        if priority is not None:
            np.maximum.at(levels, unit[inside], np.asarray(priority, np.int64)[problem.groups[inside]])
        waits_for, reads = self._edges(unit, device, count)
        return Units(unit, of_unit, us, levels, waits_for, reads)

    def _cut(self, submodel: NDArray[np.int32], fused: Bytes) -> NDArray[np.int64]:
        """Units of nodes, -1 for none: connected parts of stretches of the topological order of each submodel."""
        graph, groups = self.problem.graph, self.problem.groups
        nodes = np.flatnonzero((submodel >= 0) & np.isin(graph.kinds, (NodeKind.OP, NodeKind.SINK)))
        nodes = nodes[np.argsort(submodel[nodes], kind="stable")]
        first = np.zeros(len(nodes), bool)
        pairs = np.stack([submodel[nodes], groups[nodes]])
        first[np.unique(pairs, axis=1, return_index=True)[1]] = True
        begins = np.diff(submodel[nodes], prepend=-1) != 0
        cut = first & (fused[groups[nodes]] == 0) & ~begins
        stretch = np.full(graph.nodes, -1)
        stretch[nodes] = np.cumsum(cut | begins)
        source, target = graph.input_source, graph.input_node
        joins = (stretch[source] == stretch[target]) & (stretch[source] >= 0)
        matrix = coo_matrix((np.ones(joins.sum()), (source[joins], target[joins])), (graph.nodes, graph.nodes))
        parts = connected_components(matrix, directed=False)[1]
        # What is not cut stays as it is, the Parameters, Results and constants in it included; those of others go.
        of_cut = np.isin(submodel, submodel[nodes[cut]])
        parts = np.where(stretch >= 0, len(submodel) + parts, -1)
        return np.where(of_cut, parts, submodel).astype(np.int64)

    def _edges(
        self, unit: NDArray[np.int64], device: NDArray[np.int64], count: int
    ) -> tuple[list[set[int]], list[dict[int, float]]]:
        problem, graph = self.problem, self.problem.graph
        source, target = unit[graph.input_source], unit[graph.input_node]
        kind = graph.kinds[graph.input_source]
        moves = (kind != NodeKind.CONSTANT) & (graph.kinds[graph.input_node] != NodeKind.RESULT) & (target >= 0)
        given = kind == NodeKind.PARAMETER
        waits_for: list[set[int]] = [set() for _ in range(count)]
        reads: list[dict[int, float]] = [{} for _ in range(count)]
        moved = graph.output_bytes if problem.moved_bytes is None else problem.moved_bytes
        for edge in np.flatnonzero(moves & (source != target) & (given | (source >= 0))).tolist():
            if not given[edge]:
                waits_for[target[edge]].add(int(source[edge]))
            sender, receiver = device[graph.input_source[edge]], device[graph.input_node[edge]]
            if sender != receiver:
                output = int(graph.input_output[edge])
                us = problem.transfer_us[sender, receiver]
                us += problem.transfer_us_per_byte[sender, receiver] * moved[output]
                reads[target[edge]][output] = float(us)
        return waits_for, reads
