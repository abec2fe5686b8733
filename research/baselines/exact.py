"""Proves the optimum of a small placement problem with CP-SAT (OR-tools) and the simulator that judges all placers.

The constraint programme has the costs of the simulator: times of operations, one transfer of a tensor for each
receiving device, penalties of broken fusions, and submodels. Submodels are the connected parts of a partition without
cycles, with as few parts as possible. HETERO's rule ends with such a partition as well, but may make more parts than
necessary where parts wait for each other. Memory includes weights, states, tensors that cross devices, and tensors that
are alive around each operation. So no placement costs less in the simulator than in the programme, and few cost more.

Therefore the solver runs in rounds, and the simulator judges the placement of each round. Where it costs more than in
the programme, or is infeasible, the next round excludes it. The rounds end when the solver proves that no remaining
placement is cheaper than the best judged one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from ov_hsdag.model.graph import NodeKind
from ov_hsdag.problem.problem import PlacementProblem

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

TOLERANCE = 1e-6
"""Accepted relative difference between the programme and the simulator, and between an optimum and its bound."""

_UNITS = 10**9
"""Integer units into which the programme divides the best known score. Costs are rounded down; with so many units a sum
of 500 costs is too small by less than `TOLERANCE`."""

_MOST_UNITS = 2 * _UNITS
"""Upper limit of a single cost in units: a placement with such a cost exceeds the best known score in any case."""

_SEED = 1  # of CP-SAT, fixed so that results can be repeated

_LEAST_SECONDS = 0.01
"""Least time charged for a round, s, so that a sequence of rounds with almost no deterministic time ends."""


@dataclass(frozen=True, eq=False)
class Optimum:
    """The best known placement of a problem and the proven lower bound."""

    placement: NDArray[np.uint8] | None
    """The best placement that was found, uint8 [groups]; None where none was."""
    score_us: float
    """Its score by the simulator, µs; inf where none was found."""
    bound_us: float
    """The lower bound of all scores, µs; inf where it is proven that no placement is feasible."""
    rounds: int
    """Number of rounds of the solver."""

    @property
    def proven(self) -> bool:
        """Whether it is proven that no placement is better, or that none is feasible."""
        return self.bound_us >= self.score_us * (1 - 2 * TOLERANCE)

    @property
    def gap(self) -> float:
        """Share of the score by which a better placement is still possible."""
        return 0.0 if self.proven else 1 - self.bound_us / self.score_us


def optimum(problem: PlacementProblem, placements: NDArray[np.uint8], *, seconds: float = 20.0) -> Optimum:
    """Finds the best placement of a problem and a lower bound of its score, as far as the time allows.

    Args:
        problem: the problem; proofs succeed for tens of groups. Shared cores (`core_share`) are not modelled.
        placements: known placements, uint8 [count, groups]. The solver looks for one that is better than all of these.
        seconds: limit of the solver's deterministic time on one core, so that equal limits give equal results. A second
            of it is some seconds of processor time.

    Returns:
        The best placement, and the proven bound.

    Raises:
        ImportError: OR-tools is not installed.
        ValueError: the problem has shared cores.
        RuntimeError: the simulator contradicts the programme, which must have a bug.
    """
    if problem.core_share is not None:
        raise ValueError("expected a problem without shared cores")
    scores = problem.scores(placements)
    best = int(scores.argmin())
    search = _Search(problem, float(scores[best]), placements[best] if np.isfinite(scores[best]) else None)
    return search.run(seconds)


class _Search:
    """The rounds, in which the solver finds a placement and the simulator judges it."""

    def __init__(self, problem: PlacementProblem, score_us: float, placement: NDArray[np.uint8] | None) -> None:
        self._problem = problem
        self._score_us, self._placement = score_us, placement
        finite = score_us if placement is not None else _most_us(problem)
        self._programme = _Programme(problem, max(finite, 1e-9) / _UNITS)
        self._rounds = 0

    def run(self, seconds: float) -> Optimum:
        """Runs rounds until no better placement is left, or the solver's deterministic time in seconds is over."""
        left, bound_us = seconds, 0.0
        while left > 0:
            self._rounds += 1
            if self._placement is not None:
                self._programme.limit_objective(self._score_us * (1 - TOLERANCE))
            answer = self._programme.solve(left, self._placement)
            left -= max(answer.seconds, _LEAST_SECONDS)
            bound_us = max(bound_us, min(answer.bound_us, self._score_us))
            if answer.placement is None:
                break
            self._judge(answer.placement, answer)
        if bound_us >= self._score_us * (1 - TOLERANCE):
            bound_us = self._score_us
        return Optimum(self._placement, self._score_us, bound_us, self._rounds)

    def _judge(self, placement: NDArray[np.uint8], answer: _Answer) -> None:
        """Scores a placement by the simulator, keeps it if it is the best, and excludes it from further rounds.

        If it exceeds memory limits, all placements with the same groups on such a device are excluded.

        Args:
            placement: the solver's placement, uint8 [groups].
            answer: the answer that has it.

        Raises:
            RuntimeError: the simulator's cost is outside of the range that the programme allows.
        """
        problem = self._problem
        evaluation = problem.evaluate(placement)
        value_us = float((evaluation.latency_us if problem.objective == "latency" else evaluation.period_us)[0])
        uncut = int(evaluation.submodels[0]) == connected_parts(problem, placement)
        most_us = answer.objective_us if answer.optimal and uncut else np.inf
        if not answer.bound_us * (1 - TOLERANCE) <= value_us <= most_us * (1 + TOLERANCE):
            counted = f"{answer.bound_us} to {most_us} µs"
            raise RuntimeError(f"the programme counts {counted}, the simulator {value_us} µs: {placement.tolist()}")
        infeasible = int(evaluation.infeasible[0])
        if not infeasible and value_us < self._score_us:
            self._score_us, self._placement = value_us, placement
        crowded = np.flatnonzero(problem.memory_excess(evaluation)[0] > 0) if infeasible and uncut else ()
        if len(crowded):
            for device in crowded:
                self._programme.forbid_groups_of(placement, int(device))
        else:
            self._programme.forbid(placement)


def connected_parts(problem: PlacementProblem, placement: NDArray[np.integer[Any]]) -> int:
    """The number of submodels if HETERO cut only where devices change; parts of constants alone do not count."""
    graph = problem.graph
    device = np.asarray(placement)[problem.groups]
    source, target = graph.input_source, graph.input_node
    joined = (device[source] == device[target]) | (graph.kinds[target] == NodeKind.RESULT)
    matrix = coo_matrix((np.ones(joined.sum()), (source[joined], target[joined])), (graph.nodes,) * 2)
    part = connected_components(matrix, directed=False)[1]
    return len(np.unique(part[graph.kinds != NodeKind.CONSTANT]))


def _most_us(problem: PlacementProblem) -> float:
    """A rough upper bound of the cost of any placement, µs."""
    group_us = np.where(np.isfinite(problem.group_us), problem.group_us, 0.0).max(axis=1).sum()
    moved = problem.tensors.bytes[:, None, None] * problem.transfer_us_per_byte + problem.transfer_us
    fusions = problem.fusions[1].max(axis=1).sum()
    return float(group_us + moved.sum() + fusions + problem.graph.nodes * problem.submodel_us.max())


@dataclass(frozen=True, eq=False)
class _Answer:
    """The solver's result for the placements that are not excluded."""

    placement: NDArray[np.uint8] | None  # None where there is none, or time was too short to find one
    objective_us: float  # cost of the placement in the programme; it may be too large unless `optimal`
    bound_us: float  # lower bound of all costs in the programme
    optimal: bool  # whether the placement is proven optimal in the programme
    seconds: float  # deterministic time of the solver


class _Programme:
    """The constraint programme: its variables, and the constraints that connect them.

    `on[group][device]` is 1 if the group is on the device. `received[tensor][sender, receiver]` is 1 if the tensor is
    transferred from one to the other. `joint[edge]` is 1 if producer and consumer share a submodel.
    """

    def __init__(self, problem: PlacementProblem, unit_us: float) -> None:
        from ortools.sat.python import cp_model

        self._problem, self._unit_us = problem, unit_us
        self._devices = range(len(problem.devices))
        self._groups = range(problem.group_count)
        self._model = cp_model.CpModel()
        self._loads: dict[int, list[Any]] = defaultdict(list)  # terms of each device's work, units
        self._latency: list[Any] = []  # terms of the latency that are not part of a device's work, units
        self._on = [[self._bool() for _ in self._devices] for _ in self._groups]
        self._place_groups()
        self._keep_equal_devices_in_order()
        self._add_operations()
        self._received = self._add_transfers()
        if self._counts_submodels:
            self._joint = self._join_submodels()
            self._count_submodels()
            self._add_fusions()
        self._limit_memory()
        self._objective = self._add_objective()

    # -- solving

    def limit_objective(self, below_us: float) -> None:
        """Excludes all placements that cost more than `below_us`."""
        self._model.add(self._objective <= math.floor(below_us / self._unit_us))

    def forbid(self, placement: NDArray[np.uint8]) -> None:
        """Excludes a placement."""
        self._model.add_bool_or([~self._on[group][int(placement[group])] for group in self._groups])

    def forbid_groups_of(self, placement: NDArray[np.uint8], device: int) -> None:
        """Excludes all placements that have exactly the same groups on this device, or on an equal one."""
        there = placement == device
        for like in np.flatnonzero(self._problem.kinds == self._problem.kinds[device]):
            row = [self._on[group][like] for group in self._groups]
            self._model.add_bool_or([~on if inside else on for on, inside in zip(row, there, strict=True)])

    def solve(self, seconds: float, hint: NDArray[np.uint8] | None) -> _Answer:
        """Runs the solver on one core.

        Args:
            seconds: limit of its deterministic time.
            hint: a placement to start from, uint8 [groups]; None for none.

        Returns:
            The best placement of those that are not excluded, and a lower bound of their costs.

        Raises:
            RuntimeError: CP-SAT refuses the programme.
        """
        from ortools.sat.python import cp_model

        solver = cp_model.CpSolver()
        solver.parameters.max_deterministic_time = seconds
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = _SEED
        solver.parameters.linearization_level = 2
        if hint is not None:
            self._hint(hint)
        status = solver.solve(self._model)
        taken = float(solver.response_proto.deterministic_time)
        if status == cp_model.MODEL_INVALID:
            raise RuntimeError(f"CP-SAT: {self._model.validate()}")
        if status == cp_model.INFEASIBLE:
            return _Answer(None, np.inf, np.inf, True, taken)
        bound_us = max(solver.best_objective_bound, 0.0) * self._unit_us
        if status == cp_model.UNKNOWN:
            return _Answer(None, np.inf, bound_us, False, taken)
        placement = [[solver.boolean_value(on) for on in row].index(True) for row in self._on]
        objective_us = solver.objective_value * self._unit_us
        return _Answer(np.array(placement, np.uint8), objective_us, bound_us, status == cp_model.OPTIMAL, taken)

    def _hint(self, placement: NDArray[np.uint8]) -> None:
        """Makes the solver start from a placement."""
        model: Any = self._model  # CP-SAT's clear_hints has no types
        model.clear_hints()
        for group in self._groups:
            for device in self._devices:
                model.add_hint(self._on[group][device], int(placement[group]) == device)

    # -- placing

    def _bool(self) -> cp_model.IntVar:
        """A new variable that is 0 or 1."""
        return self._model.new_bool_var("")

    def _place_groups(self) -> None:
        """Constrains each group to one device that supports it."""
        for group in self._groups:
            self._model.add_exactly_one(self._on[group])
            for device in self._devices:
                if not self._problem.group_supported[group, device]:
                    self._model.add(self._on[group][device] == 0)

    def _keep_equal_devices_in_order(self) -> None:
        """Breaks symmetry: the first group of each of several equal devices comes after that of the previous one."""
        kinds = self._problem.kinds
        for kind in np.unique(kinds):
            members = np.flatnonzero(kinds == kind)
            for before, device in pairwise(members):
                for group in self._groups:
                    earlier = [self._on[other][before] for other in range(group)]
                    self._model.add(sum(earlier) >= self._on[group][device])

    def _node_on(self, node: int, device: int) -> cp_model.IntVar:
        """The variable that is 1 if the group of a node is on a device."""
        return self._on[int(self._problem.groups[node])][device]

    # -- costs

    def _units(self, us: float) -> int:
        """A time in µs, in units of the programme, rounded down and limited to _MOST_UNITS."""
        return min(math.floor(us / self._unit_us), _MOST_UNITS)

    def _charge(self, device: int, us: float, chosen: Any) -> None:
        """Adds a time to the work of a device, multiplied by the variable or expression `chosen`."""
        if (units := self._units(us)) > 0:
            self._loads[device].append(units * chosen)

    def _add_operations(self) -> None:
        """Charges devices for the times of their groups."""
        for group in self._groups:
            for device in self._devices:
                us = self._problem.group_us[group, device]
                if np.isfinite(us):
                    self._charge(device, us, self._on[group][device])

    def _add_transfers(self) -> list[dict[tuple[int, int], cp_model.IntVar]]:
        """Adds one transfer of each tensor to each other device that reads it.

        Returns:
            For each tensor the variables of its transfers, by sender and receiver.
        """
        problem, tensors = self._problem, self._problem.tensors
        received = []
        for tensor in range(len(tensors)):
            source = int(tensors.source[tensor])
            begin, end = tensors.consumer_ptr[tensor : tensor + 2]
            moves = {(a, b): self._bool() for a in self._devices for b in self._devices if a != b}
            received.append(moves)
            for (a, b), move in moves.items():
                self._model.add_implication(move, self._on[source][a])
                us = problem.transfer_us[a, b] + problem.transfer_us_per_byte[a, b] * tensors.bytes[tensor]
                self._add_transfer(a, b, float(us), move)
            for b in self._devices:
                arriving = sum(moves[a, b] for a in self._devices if a != b)
                for consumer in tensors.consumers[begin:end]:
                    self._model.add(arriving >= self._on[consumer][b] - self._on[source][b])
        return received

    def _add_transfer(self, sender: int, receiver: int, us: float, move: cp_model.IntVar) -> None:
        """Adds the cost of a transfer: to the latency, or, for throughput, to the work of both of its ends."""
        if self._problem.objective == "latency":
            if (units := self._units(us)) > 0:
                self._latency.append(units * move)
            return
        shares = self._problem.transfer_shares
        self._charge(sender, us * shares[sender], move)
        self._charge(receiver, us * shares[receiver], move)

    def _add_objective(self) -> cp_model.IntVar:
        """Minimizes a new variable: the sum of all costs for latency, the largest device's work for throughput."""
        objective = self._model.new_int_var(0, 2**50, "objective")
        if self._problem.objective == "latency":
            terms = [term for load in self._loads.values() for term in load] + self._latency
            self._model.add(objective == sum(terms))
        else:
            for load in self._loads.values():
                self._model.add(objective >= sum(load))
        self._model.minimize(objective)
        return objective

    # -- submodels

    @cached_property
    def _counts_submodels(self) -> bool:
        """Whether submodels matter: they cost time, break fusions, or a Parameter must not be alone in one."""
        problem = self._problem
        parameters = (problem.graph.kinds == NodeKind.PARAMETER).any()
        return bool(problem.submodel_us.any() or problem.fusions[1].any() or parameters)

    @cached_property
    def _members(self) -> NDArray[np.int64]:
        """The node that represents each node in submodels, [nodes]: the producer for a Result, else the node itself."""
        graph = self._problem.graph
        member = np.arange(graph.nodes)
        to_result = graph.kinds[graph.input_node] == NodeKind.RESULT
        member[graph.input_node[to_result]] = graph.input_source[to_result]
        return member

    @cached_property
    def _edges(self) -> list[tuple[int, int]]:
        """Pairs of producer and consumer, each once, without Results and without constants that one node reads."""
        graph = self._problem.graph
        inner = graph.kinds[graph.input_node] != NodeKind.RESULT
        pairs = np.unique(np.column_stack([graph.input_source, graph.input_node])[inner], axis=0)
        readers = np.bincount(pairs[:, 0], minlength=graph.nodes)
        constant = graph.kinds[pairs[:, 0]] == NodeKind.CONSTANT
        return [(int(a), int(b)) for a, b in pairs[~constant | (readers[pairs[:, 0]] > 1)]]

    def _join_submodels(self) -> dict[tuple[int, int], cp_model.IntVar]:
        """Adds a variable for each edge that is 1 if the edge is inside a submodel.

        If it is 1, both ends share a device. Submodels wait for each other without a cycle.
        """
        graph = self._problem.graph
        # Position of a submodel in execution order: equal for nodes of one submodel, later for readers in another one.
        turn = {node: self._model.new_int_var(0, graph.nodes, "") for edge in self._edges for node in edge}
        joint = {}
        for producer, consumer in self._edges:
            joint[producer, consumer] = within = self._bool()
            for device in self._devices:
                ends = self._node_on(producer, device), self._node_on(consumer, device)
                self._model.add_bool_or([~within, ~ends[0], ends[1]])
            self._model.add(turn[producer] == turn[consumer]).only_enforce_if(within)
            if graph.kinds[producer] != NodeKind.CONSTANT:
                self._model.add(turn[producer] < turn[consumer]).only_enforce_if(~within)
        self._keep_inputs_with_operations(joint)
        return joint

    def _keep_inputs_with_operations(self, joint: dict[tuple[int, int], cp_model.IntVar]) -> None:
        """Constrains each Parameter to share a submodel with an operation, as one of its own would compute nothing."""
        for node in np.flatnonzero(self._problem.graph.kinds == NodeKind.PARAMETER):
            edges = [within for (producer, _), within in joint.items() if producer == node]
            if edges:
                self._model.add_bool_or(edges)

    def _count_submodels(self) -> None:
        """Charges devices for submodels: their number is that of nodes minus that of edges in a spanning forest."""
        graph = self._problem.graph
        nodes = [
            node
            for node in range(graph.nodes)
            if self._members[node] == node and graph.kinds[node] != NodeKind.CONSTANT
        ]
        joining = {node for edge in self._edges for node in edge if graph.kinds[node] == NodeKind.CONSTANT}
        charged = np.flatnonzero(self._problem.submodel_us > 0).tolist()
        if not charged:
            return
        parts: dict[int, list[Any]] = {
            device: [self._node_on(node, device) for node in nodes]
            + [self._has_joint(node, device) for node in sorted(joining)]
            for device in charged
        }
        parents: dict[int, list[Any]] = defaultdict(list)
        level = {node: self._model.new_int_var(0, graph.nodes, "") for edge in self._edges for node in edge}
        for (producer, consumer), within in self._joint.items():
            down, up = self._bool(), self._bool()
            parents[consumer].append(down)
            parents[producer].append(up)
            self._model.add(level[consumer] > level[producer]).only_enforce_if(down)
            self._model.add(level[producer] > level[consumer]).only_enforce_if(up)
            self._model.add(down + up <= within)
            spanning = {device: self._bool() for device in charged}
            self._model.add(sum(spanning.values()) <= down + up)
            for device, chosen in spanning.items():
                self._model.add_implication(chosen, self._node_on(producer, device))
                self._model.add_implication(chosen, self._node_on(consumer, device))
                parts[device].append(-chosen)
        for arcs in parents.values():
            self._model.add_at_most_one(arcs)
        for device in charged:
            self._pay_submodels(device, parts[device])

    def _pay_submodels(self, device: int, parts: list[Any]) -> None:
        """Charges a device for the sum of `parts`, and for one submodel at least where it has an operation."""
        graph = self._problem.graph
        count = self._model.new_int_var(0, graph.nodes, "")
        self._model.add(count == sum(parts))
        operations = np.isin(graph.kinds, (NodeKind.OP, NodeKind.SINK))
        for group in np.unique(self._problem.groups[operations]):
            self._model.add(count >= self._on[group][device])
        self._charge(device, self._problem.submodel_us[device], count)

    def _has_joint(self, constant: int, device: int) -> cp_model.IntVar:
        """A variable that is 1 if a constant joins nodes to a submodel on a device."""
        joins = self._bool()
        for (producer, _), within in self._joint.items():
            if producer == constant:
                self._model.add_bool_or([joins, ~within, ~self._node_on(constant, device)])
        return joins

    def _add_fusions(self) -> None:
        """Adds the penalty of a node whose partner in a fusion is in another submodel."""
        fused_with, penalty_us = self._problem.fusions
        for node, device in np.argwhere((fused_with >= 0) & (penalty_us > 0)).tolist():
            other = int(fused_with[node, device])
            within = self._joint.get((other, node), self._joint.get((node, other)))
            together = self._node_on(other, device) if within is None else within
            broken = self._bool()
            self._model.add_bool_or([broken, ~self._node_on(node, device), together])
            self._charge(device, float(penalty_us[node, device]), broken)

    # -- memory

    def _limit_memory(self) -> None:
        """Constrains weights, states and tensors of each device to its memory limit."""
        problem = self._problem
        for device in np.flatnonzero(problem.memory_bytes >= 0).tolist():
            held = [
                int(problem.group_held[group, device]) * self._on[group][device]
                for group in self._groups
                if problem.group_held[group, device]
            ]
            self._limit_tensors(device, sum(held), int(problem.memory_bytes[device]))

    def _limit_tensors(self, device: int, held: Any, limit: int) -> None:
        """Limits the memory of a device.

        Crossing tensors count at all times, and around an operation those that it reads and writes count, too.

        Args:
            device: the device.
            held: expression of the bytes of its weights and states.
            limit: its memory limit, bytes.
        """
        graph = self._problem.graph
        live = graph.output_bytes if self._problem.live_bytes is None else self._problem.live_bytes
        tensor_of = {int(output): tensor for tensor, output in enumerate(self._problem.tensors.output)}
        arriving = [
            int(live[output]) * move
            for output, tensor in tensor_of.items()
            if live[output]
            for (_, receiver), move in self._received[tensor].items()
            if receiver == device
        ]
        sent = {output: self._sent(output, tensor_of.get(output), device) for output in range(graph.outputs)}
        leaving = {
            output: int(live[output]) * chosen for output, chosen in sent.items() if chosen is not None and live[output]
        }
        self._model.add(held + sum(arriving) + sum(leaving.values()) <= limit)
        for node in range(graph.nodes):
            if graph.kinds[node] in (NodeKind.CONSTANT, NodeKind.RESULT):
                continue
            written = list(range(graph.output_ptr[node], graph.output_ptr[node + 1]))
            read = set(graph.input_output[graph.input_ptr[node] : graph.input_ptr[node + 1]].tolist())
            read = {output for output in read if graph.kinds[graph.output_node[output]] != NodeKind.CONSTANT}
            alive = [int(live[output]) * self._node_on(int(graph.output_node[output]), device) for output in read]
            earlier = [
                term for output, term in leaving.items() if output not in read and graph.output_node[output] < node
            ]
            terms = held + sum(arriving) + sum(alive) + sum(earlier) + int(live[written].sum())
            self._model.add(terms <= limit).only_enforce_if(self._node_on(node, device))

    def _sent(self, output: int, tensor: int | None, device: int) -> Any:
        """A variable that is 1 if a device has a tensor that leaves it or the model.

        Args:
            output: number of the output of the graph.
            tensor: number of the tensor among `problem.tensors`; None if all readers are in its producer's group.
            device: the device.

        Returns:
            The variable; None if the tensor cannot leave.
        """
        graph, tensors = self._problem.graph, self._problem.tensors
        producer = int(graph.output_node[output])
        if graph.kinds[producer] == NodeKind.CONSTANT:
            return None
        there = self._node_on(producer, device)
        readers = graph.input_node[graph.input_output == output]
        if (graph.kinds[readers] == NodeKind.RESULT).any():
            return there
        if tensor is None:
            return None
        leaves = self._bool()
        begin, end = tensors.consumer_ptr[tensor : tensor + 2]
        for consumer in tensors.consumers[begin:end]:
            self._model.add_bool_or([leaves, ~there, self._on[consumer][device]])
        return leaves
