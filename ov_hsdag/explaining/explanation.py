"""Why a placement is as it is: what operations cost here and elsewhere, and what moving them would cost.

Every figure is the simulator's: a move is judged by evaluating the placement with the move made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.devices.cpu import usable_cores
from ov_hsdag.explaining.dominant_group import dominant_group
from ov_hsdag.model.graph import NodeKind
from ov_hsdag.problem.problem import OVER_MEMORY, Breakdown, Evaluation, PlacementProblem
from ov_hsdag.utils.byte_sizes import format_bytes

# Moves that change the objective by less than this share of it make no difference.
_NOTHING = 1e-6

# Characters of a name that people still read; those of nodes that nobody named grow with the model.
_LONGEST_NAME = 160

# Steps (some nanoseconds each) that the cycles of all moves of a placement may take, and the least that each has.
_ALL_WORK, _LEAST_WORK = 5 * 10**8, 10**5

_BATCH = 256  # placements that are simulated at a time


@dataclass(frozen=True)
class Cut:
    """A tensor that goes from one device to another."""

    node: int  # that computes it
    output: int  # its number among the graph's outputs
    source: int  # device number
    target: int  # device number
    bytes: int  # that move
    us: float  # time of the transfer, µs
    source_us: float  # in which the source is busy with it, µs
    target_us: float  # in which the target is, µs


@dataclass(frozen=True)
class Parts:
    """The time of one request, µs, by what it is spent on; for a move, what each part grows by."""

    nodes: float
    fusions: float
    submodels: float
    transfers: float

    @property
    def total(self) -> float:
        return self.nodes + self.fusions + self.submodels + self.transfers


@dataclass(frozen=True)
class Move:
    """A colocation group on another device, everything else where it is."""

    group: int  # that moves
    device: int  # where it goes, a device number
    cost_us: float  # what the objective grows by, µs; negative where the move pays, inf where it is infeasible
    parts: Parts  # what the time of one request grows by, feasible or not
    infeasible: int  # as in `Evaluation.infeasible`


@dataclass(frozen=True)
class Reason:
    """Why a node is on its device."""

    # "pinned" (a pin keeps it, or `other` with which it must share a device), "consumer" (it must be where its consumer
    # is), "only" (no other device runs it), "shared" (no other device runs `other`, with which it must share a device),
    # "submodel" (elsewhere it would not share a submodel with `other`), "order" (elsewhere HETERO could not order the
    # submodels), "nothing" (elsewhere a submodel would compute nothing), "memory" (it would not fit elsewhere),
    # "dearer" (every move costs time), "together" (a move takes most of the model with it, and does not pay), "equal"
    # (a move changes nothing) or "better" (a move pays)
    kind: str
    text: str  # the same for people
    other: int = -1  # a node that the reason is about, -1 for none
    move: Move | None = None  # the best other device; None where no move is possible but for memory


@dataclass(frozen=True, eq=False)
class Explanation:
    """One feasible or infeasible placement of a problem, and all that can be said of it."""

    problem: PlacementProblem
    placement: NDArray[np.uint8]  # device numbers, uint8 [groups]
    pinned: Mapping[int, str] = field(default_factory=dict)  # pins, as people type them, by the numbers of their nodes
    # What was worked out, by group and device, as nodes of a group share it: moves that were asked for, what `_tried`
    # returns, and what `_parted_by` does, by group alone.
    _moves: dict[tuple[int, int], Move] = field(default_factory=dict, init=False, repr=False)
    _outcomes: dict[tuple[int, int], tuple[float, int, int]] = field(default_factory=dict, init=False, repr=False)
    _parted: dict[int, tuple[int, int]] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def breakdown(self) -> Breakdown:
        """The terms of what the simulator says of the placement, of a batch of one."""
        return self.problem.breakdown(self.placement)

    @property
    def evaluation(self) -> Evaluation:
        """What the simulator says of the placement, of a batch of one."""
        return self.breakdown.evaluation

    @cached_property
    def score_us(self) -> float:
        """The objective, feasible or not, µs."""
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
        """Time of each node where it is, penalties of broken fusions included, µs, float64 [nodes]."""
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
        """The time of one request by what it is spent on."""
        return Parts(*self.breakdown.latency_us[0].tolist())

    def move(self, group: int, device: int) -> Move:
        """What moving a colocation group would change. Raises ValueError for the device that it is on."""
        if self.placement[group] == device:
            raise ValueError(f"group {group} is on device {device} already")
        if (group, device) in self._moves:
            return self._moves[group, device]
        problem = self.problem
        found = problem.breakdown(self._with(group, device))
        result = found.evaluation
        cost = float(result.score(problem.objective)[0]) - self.score_us
        parts = Parts(*(found.latency_us[0] - self.breakdown.latency_us[0]).tolist())
        self._moves[group, device] = Move(group, device, cost, parts, int(result.infeasible[0]))
        return self._moves[group, device]

    @cached_property
    def move_us(self) -> NDArray[np.float64]:
        """What the objective grows by where one group moves, µs, inf where infeasible, float64 [groups, devices].

        The device that a group is on has 0. Takes a simulation for each group and other device.
        """
        cost = np.full((self.problem.group_count, len(self.problem.devices)), np.inf)
        cost[np.arange(len(cost)), self.placement] = 0.0
        pairs = np.argwhere(self.problem.group_supported & ~np.isfinite(cost))
        for begin in range(0, len(pairs), _BATCH):
            group, device = pairs[begin : begin + _BATCH].T
            cost[group, device] = self._try_moves(group, device)
        return cost

    def _try_moves(self, groups: NDArray[np.int64], devices: NDArray[np.int64]) -> NDArray[np.float64]:
        """What the objective grows by where a group moves to a device, µs, inf where infeasible, float64 [moves].

        A move with so many submodels in cycles that separating them takes long counts as one that HETERO cannot order:
        of a decoder of thousands of operations nearly every move is like that.
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

    def _tried(self, group: int, device: int) -> tuple[float, int, int]:
        """Of a move: what the objective grows by, µs, why it is infeasible, and bytes that exceed a limit."""
        if (group, device) not in self._outcomes:
            self._try_moves(np.array([group]), np.array([device]))
        return self._outcomes[group, device]

    def closest_moves(self, count: int = 3) -> list[Move]:
        """The feasible moves of single groups that cost least, best first; those of constants alone left out."""
        operations = np.zeros(self.problem.group_count, bool)
        operations[self.problem.groups[self.problem.graph.kinds == NodeKind.OP]] = True
        operations[list(self._pinned_groups)] = False
        cost = np.where(operations[:, None], self.move_us, np.inf)
        cost[np.arange(len(cost)), self.placement] = np.inf
        order = np.argsort(cost, axis=None, kind="stable")[:count]
        found = [divmod(int(one), cost.shape[1]) for one in order if np.isfinite(cost.flat[one])]
        return [self.move(group, device) for group, device in found]

    def reason(self, node: int) -> Reason:
        """Why a node is where it is: the first rule that leaves no choice, or what the best move would cost."""
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
        tried = {d: self._tried(group, d) for d in able}
        nearest = min(tried, key=lambda d: (tried[d][0], bool(tried[d][1] & ~int(OVER_MEMORY)), tried[d][2]))
        if tried[nearest][1]:
            return self._infeasible(node, group, nearest, tried[nearest][1])
        best = self.move(group, nearest)
        there = problem.devices[best.device]
        share = best.cost_us / max(self.score_us, 1e-30)
        if share < -_NOTHING:
            text = f"on {there} the {self._objective} would be {-best.cost_us:,.1f} µs ({-share:.2%}) shorter"
            return Reason("better", f"{text}: {describe_parts(best.parts)}", move=best)
        if node in self._together:
            return Reason("together", f"it must share a device with {len(self._together) - 1:,} others", move=best)
        if share <= _NOTHING:
            return Reason("equal", f"on {there} the {self._objective} would be the same", move=best)
        text = f"on {there} the {self._objective} would be {best.cost_us:,.1f} µs ({share:.2%}) longer"
        return Reason("dearer", f"{text}: {describe_parts(best.parts)}", move=best)

    def called(self, node: int) -> str:
        """A node as people read it: its name, with its type where the name does not have it."""
        name, kind = self.problem.graph.names[node], self.problem.graph.types[node]
        if len(name) > _LONGEST_NAME:
            name = f"{name[: _LONGEST_NAME // 4]}…{name[-3 * _LONGEST_NAME // 4 :]}"
        return name if kind.lower() in name.lower() else f"{name} ({kind})"

    @cached_property
    def _pinned_groups(self) -> dict[int, int]:
        """The first pinned node of each colocation group that has one."""
        return {int(self.problem.groups[node]): node for node in sorted(self.pinned, reverse=True)}

    def _pinned_by(self, node: int, first: int) -> Reason:
        """The reason where a node is pinned, or is in the colocation group of `first`, which is."""
        if node in self.pinned:
            return Reason(
                "pinned", f"the pin {self.pinned[node]} keeps it on {self.problem.devices[self.device[node]]}"
            )
        text = f"it must share a device with {self.called(first)}, which the pin {self.pinned[first]} keeps there"
        return Reason("pinned", text, first)

    @cached_property
    def _together(self) -> frozenset[int]:
        """The operations that must share a device where they are more than half of the model."""
        return frozenset(dominant_group(self.problem.graph, self.problem.groups)[0].tolist())

    @property
    def _objective(self) -> str:
        return "latency" if self.problem.objective == "latency" else "time between results"

    @cached_property
    def _split(self) -> dict[str, Any]:
        return self.problem.split(self.placement)

    def _infeasible(self, node: int, group: int, device: int, infeasible: int) -> Reason:
        """The reason where no other device may have the node's group, and `device` would be the nearest to one."""
        problem, there = self.problem, self.problem.devices[device]
        if infeasible & 1:
            text = (
                "submodels would wait for each other, or HETERO would cut so often that it was not followed to the end"
            )
            return Reason("order", f"on {there} {text}")
        if infeasible & 16:
            one, other = self._parted_by(group, device)
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

    def _parted_by(self, group: int, device: int) -> tuple[int, int]:
        """Two nodes that share a submodel, and would not with a group on another device."""
        if group not in self._parted:
            submodel = self.problem.split(self._with(group, device))["submodel"]
            pairs = self.problem.same_submodel
            parted = pairs[submodel[pairs[:, 0]] != submodel[pairs[:, 1]]]
            self._parted[group] = (int(parted[0, 0]), int(parted[0, 1]))
        return self._parted[group]

    def _with(self, group: int, device: int) -> NDArray[np.uint8]:
        """The placement with one group elsewhere, uint8 [groups]."""
        moved = self.placement.copy()
        moved[group] = device
        return moved


def describe_parts(parts: Parts) -> str:
    """What a move changes, for people: "operations +3.0 µs, transfers -1.2 µs"; parts that stay are left out."""
    names = ("operations", "broken fusions", "calls of submodels", "transfers")
    changes = zip(names, astuple(parts), strict=True)
    texts = [f"{name} {value:+,.1f} µs" for name, value in changes if abs(value) >= 0.05]
    return ", ".join(texts) if texts else "less than 0.1 µs in all"
