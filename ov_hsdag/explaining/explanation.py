"""Explains a placement by the costs of its operations, and by the change of the objective when groups move.

A move gives one co-location group to another device. All figures come from the simulator, which evaluates the placement
again for each move. A cut here is one tensor that is transferred between two devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.costs.terms import PARTS
from ov_hsdag.devices.cpu import usable_cores
from ov_hsdag.explaining.dominant_group import dominant_group
from ov_hsdag.model.graph import NodeKind
from ov_hsdag.problem.problem import OVER_MEMORY, Breakdown, Evaluation, PlacementProblem
from ov_hsdag.utils.byte_sizes import format_bytes

# Share of the objective below which a change counts as rounding error.
_ROUNDING = 1e-6

# Characters of a name in a text; generated names of fused nodes may be much longer.
_LONGEST_NAME = 160

# Limits on separating submodels in cycles, in steps of some nanoseconds: for all moves of a placement together, which
# is a few seconds, and at least for each move.
_ALL_WORK, _LEAST_WORK = 5 * 10**8, 10**5

_BATCH = 256  # placements in one call of the simulator, which spreads them over the cores


@dataclass(frozen=True)
class Cut:
    """A tensor that is transferred from one device to another."""

    node: int  # the node that computes it
    output: int  # its number among the graph's outputs
    source: int  # device number
    target: int  # device number
    bytes: int  # bytes transferred
    us: float  # time of the transfer, µs
    source_us: float  # part of it that keeps the source busy, µs
    target_us: float  # part of it that keeps the target busy, µs


@dataclass(frozen=True)
class Parts:
    """The time of one request in µs, by the terms of the cost model; for a move, the change of each term."""

    nodes: float
    fusions: float
    submodels: float
    transfers: float

    @property
    def total(self) -> float:
        """The sum of all terms, µs."""
        return self.nodes + self.fusions + self.submodels + self.transfers


@dataclass(frozen=True)
class Move:
    """A change of the placement: one colocation group goes to another device."""

    group: int  # the group that moves
    device: int  # number of its new device
    cost_us: float  # change of the objective, µs; negative for an improvement, inf where it is infeasible
    parts: Parts  # change of the time of one request, feasible or not
    infeasible: int  # as in `Evaluation.infeasible`


@dataclass(frozen=True)
class Reason:
    """The reason for a node's device."""

    # One of:
    # "pinned": a pin keeps the node here, or keeps `other`, which must share its device
    # "consumer": it must be on the device of its consumer `other`
    # "only": no other device runs it
    # "shared": no other device runs `other`, which must share its device
    # "submodel": on another device it would not share a submodel with `other`
    # "order": on another device HETERO could not order the submodels
    # "nothing": on another device a submodel would compute nothing
    # "memory": it does not fit on another device
    # "dearer": every move takes longer
    # "together": a move takes most of the model with it, and is no improvement
    # "equal": a move changes nothing
    # "better": a move is an improvement
    kind: str
    text: str  # the reason as a phrase for people
    other: int = -1  # the node that the reason refers to, -1 for none
    move: Move | None = None  # the best move; None where moves are impossible for another reason than memory


@dataclass(frozen=True, eq=False)
class Explanation:
    """A placement of a problem, feasible or not, with everything that can be derived about it on demand.

    Results are computed when they are first asked for, and kept: properties and methods fill caches of the object.
    """

    problem: PlacementProblem
    placement: NDArray[np.uint8]  # device numbers, uint8 [groups]
    pinned: Mapping[int, str] = field(default_factory=dict)  # pins, as people type them, by the numbers of their nodes
    # Caches: results of `move` and of `_evaluate_move` by group and device, and of `_separated_by` by group.
    _moves: dict[tuple[int, int], Move] = field(default_factory=dict, init=False, repr=False)
    _outcomes: dict[tuple[int, int], tuple[float, int, int]] = field(default_factory=dict, init=False, repr=False)
    _parted: dict[int, tuple[int, int]] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def breakdown(self) -> Breakdown:
        """The simulator's result for the placement, split by terms; a batch of one."""
        return self.problem.breakdown(self.placement)

    @property
    def evaluation(self) -> Evaluation:
        """The simulator's result for the placement; a batch of one."""
        return self.breakdown.evaluation

    @cached_property
    def score_us(self) -> float:
        """The value of the objective in µs, even where the placement is infeasible."""
        result = self.evaluation
        return float((result.latency_us if self.problem.objective == "latency" else result.period_us)[0])

    @cached_property
    def submodel(self) -> NDArray[np.int32]:
        """Submodel of each node, -1 for a node in none, int32 [nodes]."""
        return np.asarray(self._split["submodel"], np.int32)

    @cached_property
    def submodel_device(self) -> NDArray[np.uint8]:
        """Device number of each submodel, uint8 [submodels]."""
        return np.asarray(self._split["submodel_device"], np.uint8)

    @cached_property
    def node_us(self) -> NDArray[np.float64]:
        """Time of each node on its device, including penalties of broken fusions, µs, float64 [nodes]."""
        return self.breakdown.node_us[0] + self.breakdown.fusion_us[0]

    @cached_property
    def device(self) -> NDArray[np.uint8]:
        """Device number of each node, uint8 [nodes]."""
        return self.placement[self.problem.groups]

    @cached_property
    def cuts(self) -> tuple[Cut, ...]:
        """The tensors that move between devices, in the order of the graph."""
        nodes = self.problem.graph.output_node[self.breakdown.transfer_output]
        names = ("output", "source", "target", "bytes", "us", "source_us", "target_us")
        columns = (nodes, *(getattr(self.breakdown, f"transfer_{name}") for name in names))
        return tuple(Cut(*cut) for cut in zip(*(column.tolist() for column in columns), strict=True))

    @cached_property
    def parts(self) -> Parts:
        """The time of one request by terms of the cost model."""
        return Parts(*self.breakdown.latency_us[0].tolist())

    def move(self, group: int, device: int) -> Move:
        """Evaluates the move of a co-location group to another device, once for each such move.

        Args:
            group: number of the group.
            device: number of the device.

        Raises:
            ValueError: the group is on that device already.
        """
        if self.placement[group] == device:
            raise ValueError(f"group {group} is on device {device} already")
        if (group, device) in self._moves:
            return self._moves[group, device]
        problem = self.problem
        breakdown = problem.breakdown(self._with(group, device))
        result = breakdown.evaluation
        cost = float(result.score(problem.objective)[0]) - self.score_us
        parts = Parts(*(breakdown.latency_us[0] - self.breakdown.latency_us[0]).tolist())
        self._moves[group, device] = Move(group, device, cost, parts, int(result.infeasible[0]))
        return self._moves[group, device]

    @cached_property
    def move_us(self) -> NDArray[np.float64]:
        """Change of the objective for each move of one group, µs, inf where infeasible, float64 [groups, devices].

        It is 0 for the device of the group. Computing it takes one simulation per group and other device.
        """
        cost = np.full((self.problem.group_count, len(self.problem.devices)), np.inf)
        cost[np.arange(len(cost)), self.placement] = 0.0
        pairs = np.argwhere(self.problem.group_supported & ~np.isfinite(cost))
        for begin in range(0, len(pairs), _BATCH):
            group, device = pairs[begin : begin + _BATCH].T
            cost[group, device] = self._try_moves(group, device)
        return cost

    def _try_moves(self, groups: NDArray[np.int64], devices: NDArray[np.int64]) -> NDArray[np.float64]:
        """Simulates moves of single groups as one batch, and caches the results for `_evaluate_move`.

        Where a move makes so many submodels with cycles that separating them takes too long, it counts as one that
        HETERO cannot order. In a decoder of thousands of operations nearly every move does.

        Args:
            groups: number of the group of each move, int64 [moves].
            devices: number of its new device, int64 [moves].

        Returns:
            Change of the objective for each move alone, µs, inf where it is infeasible, float64 [moves].
        """
        problem = self.problem
        moved = np.repeat(self.placement[None], len(groups), axis=0)
        moved[np.arange(len(groups)), groups] = devices
        work = _ALL_WORK // (problem.group_count * max(len(problem.devices) - 1, 1))
        result = problem.evaluate(moved, min(usable_cores(), len(groups)), max(work, _LEAST_WORK))
        over = problem.memory_excess(result).max(axis=1).astype(np.int64)
        cost = result.score(problem.objective) - self.score_us
        found = zip(cost.tolist(), result.infeasible.tolist(), over.tolist(), strict=True)
        self._outcomes.update(zip(zip(groups.tolist(), devices.tolist(), strict=True), found, strict=True))
        return cost

    def _evaluate_move(self, group: int, device: int) -> tuple[float, int, int]:
        """Looks up or simulates a move.

        Args:
            group: number of the group.
            device: number of its new device.

        Returns:
            Change of the objective, µs, inf where infeasible; `Evaluation.infeasible`; and the bytes by which a device
            exceeds its memory limit, the largest of all devices.
        """
        if (group, device) not in self._outcomes:
            self._try_moves(np.array([group]), np.array([device]))
        return self._outcomes[group, device]

    def closest_moves(self, count: int = 3) -> list[Move]:
        """Finds the feasible moves of single groups that cost least or gain most.

        Groups that are pinned, or have no operation, are left out.

        Args:
            count: largest number of moves.

        Returns:
            The moves, best first.
        """
        operations = np.zeros(self.problem.group_count, bool)
        operations[self.problem.groups[self.problem.graph.kinds == NodeKind.OP]] = True
        operations[list(self._pinned_groups)] = False
        cost = np.where(operations[:, None], self.move_us, np.inf)
        cost[np.arange(len(cost)), self.placement] = np.inf
        order = np.argsort(cost, axis=None, kind="stable")[:count]
        found = [divmod(int(one), cost.shape[1]) for one in order if np.isfinite(cost.flat[one])]
        return [self.move(group, device) for group, device in found]

    def reason(self, node: int) -> Reason:
        """The reason for a node's device: the first rule that leaves no choice, or else the cost of the best move."""
        problem, graph = self.problem, self.problem.graph
        group, here = int(problem.groups[node]), int(self.device[node])
        name = problem.devices[here]
        members = np.flatnonzero(problem.groups == group)
        others = [d for d in range(len(problem.devices)) if d != here]
        if not others:
            return Reason("only", f"{name} is the only device of the list")
        if group in self._pinned_groups:
            return self._pinned_by(node, self._pinned_groups[group])
        able = [d for d in others if problem.group_supported[group, d]]
        if not able:
            if not problem.supported[node, others].any():
                return Reason("only", f"only {name} runs {graph.types[node]} here")
            lacking = members[~problem.supported[members][:, others].all(axis=1)]
            other = int(lacking[np.argmin(np.abs(lacking - node))])
            phrase = f"it must share a device with {self.called(other)}, which"
            lacks = [problem.devices[d] for d in others if not problem.supported[other, d]]
            return Reason("shared", f"{phrase} {' and '.join(lacks)} cannot run", other)
        if graph.legality.replicable[node]:
            outputs = range(graph.output_ptr[node], graph.output_ptr[node + 1])
            consumers = {one for output in outputs for one in graph.consumers(output).tolist()}
            if inside := consumers.intersection(members.tolist()):
                other = min(inside)
                return Reason("consumer", f"it is where its consumer is, {self.called(other)}", other)
        tried = {d: self._evaluate_move(group, d) for d in able}
        nearest = min(tried, key=lambda d: (tried[d][0], bool(tried[d][1] & ~int(OVER_MEMORY)), tried[d][2]))
        if tried[nearest][1]:
            return self._infeasible(node, group, nearest, tried[nearest][1])
        best = self.move(group, nearest)
        there = problem.devices[best.device]
        share = best.cost_us / max(self.score_us, 1e-30)
        if share < -_ROUNDING:
            text = f"on {there} the {self._objective} would be {-best.cost_us:,.1f} µs ({-share:.2%}) shorter"
            return Reason("better", f"{text}: {describe_parts(best.parts)}", move=best)
        if node in self._together:
            return Reason("together", f"it must share a device with {len(self._together) - 1:,} others", move=best)
        if share <= _ROUNDING:
            return Reason("equal", f"on {there} the {self._objective} would be the same", move=best)
        text = f"on {there} the {self._objective} would be {best.cost_us:,.1f} µs ({share:.2%}) longer"
        return Reason("dearer", f"{text}: {describe_parts(best.parts)}", move=best)

    def called(self, node: int) -> str:
        """A node's name for people, shortened if it is long, with its type where the name does not contain that."""
        name, kind = self.problem.graph.names[node], self.problem.graph.types[node]
        if len(name) > _LONGEST_NAME:
            name = f"{name[: _LONGEST_NAME // 4]}…{name[-3 * _LONGEST_NAME // 4 :]}"
        return name if kind.lower() in name.lower() else f"{name} ({kind})"

    @cached_property
    def _pinned_groups(self) -> dict[int, int]:
        """The first pinned node of each co-location group that has one, by the group's number."""
        return {int(self.problem.groups[node]): node for node in sorted(self.pinned, reverse=True)}

    def _pinned_by(self, node: int, first: int) -> Reason:
        """The reason for a node that is pinned itself, or shares a co-location group with the pinned node `first`."""
        if node in self.pinned:
            return Reason(
                "pinned", f"the pin {self.pinned[node]} keeps it on {self.problem.devices[self.device[node]]}"
            )
        text = f"it must share a device with {self.called(first)}, which the pin {self.pinned[first]} keeps there"
        return Reason("pinned", text, first)

    @cached_property
    def _together(self) -> frozenset[int]:
        """The operations of the dominant co-location group (`dominant_group`); empty where there is none."""
        return frozenset(dominant_group(self.problem.graph, self.problem.groups)[0].tolist())

    @property
    def _objective(self) -> str:
        """The objective as texts name it."""
        return "latency" if self.problem.objective == "latency" else "time between results"

    @cached_property
    def _split(self) -> dict[str, Any]:
        """The submodels of the placement, see `PlacementProblem.split`."""
        return self.problem.split(self.placement)

    def _infeasible(self, node: int, group: int, device: int, infeasible: int) -> Reason:
        """Gives the reason for a node whose group can go to no other device.

        Args:
            node: number of the node.
            group: its co-location group.
            device: number of the device that the group comes closest to being able to go to.
            infeasible: why it cannot go there, as in `Evaluation.infeasible`.
        """
        problem, there = self.problem, self.problem.devices[device]
        if infeasible & 1:
            text = (
                "submodels would wait for each other, or HETERO would cut so often that it was not followed to the end"
            )
            return Reason("order", f"on {there} {text}")
        if infeasible & 16:
            one, other = self._separated_by(group, device)
            text = f"on {there} HETERO would part {self.called(one)} and {self.called(other)}, which share a submodel"
            return Reason("submodel", text, other if node == one else one)
        if infeasible & 8:
            return Reason("nothing", f"on {there} a submodel would compute nothing")
        move = self.move(group, device)
        over = problem.evaluate(self._with(group, device)).memory_bytes[0] - problem.memory_limits
        full = int(np.argmax(over))
        scale = 1.0 if problem.storage_ratio is None else float(problem.storage_ratio[full])
        missing = format_bytes(int(over[full]) * scale)
        text = f"on {there}, {problem.devices[full]} would need {missing} more than it may have"
        saved = -move.parts.total
        return Reason("memory", f"{text} (and {saved:,.1f} µs less)" if saved > 0 else text, move=move)

    def _separated_by(self, group: int, device: int) -> tuple[int, int]:
        """Finds two nodes that must share a submodel, and would not if `group` were on `device`."""
        if group not in self._parted:
            submodel = self.problem.split(self._with(group, device))["submodel"]
            pairs = self.problem.same_submodel
            parted = pairs[submodel[pairs[:, 0]] != submodel[pairs[:, 1]]]
            self._parted[group] = (int(parted[0, 0]), int(parted[0, 1]))
        return self._parted[group]

    def _with(self, group: int, device: int) -> NDArray[np.uint8]:
        """A copy of the placement with one group on another device, uint8 [groups]."""
        moved = self.placement.copy()
        moved[group] = device
        return moved


def describe_parts(parts: Parts) -> str:
    """The changes of a move for people: "operations +3.0 µs, transfers -1.2 µs"; unchanged terms are left out."""
    changes = zip(PARTS.values(), astuple(parts), strict=True)
    texts = [f"{name} {value:+,.1f} µs" for name, value in changes if abs(value) >= 0.05]
    return ", ".join(texts) if texts else "less than 0.1 µs in all"
