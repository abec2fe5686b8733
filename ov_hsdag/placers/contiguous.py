"""Contiguous partitions: an order of the operations is cut into parts, and each device has one of them at most.

They balance work over devices when many requests are in flight, and fill their memory; minimum cuts do neither. For a
given order the best ones are found by one dynamic programme over the devices that are left, the last device and the cut
(cpp_ext/contiguous.hpp), after Bokhari, "Partitioning problems in parallel, pipeline, and distributed computing", IEEE
Transactions on Computers 37(1), 1988. It is used in two ways:

- `Contiguous` is a placer. It cuts the order of colocation groups, knows the transfers between neighbouring devices,
  and lets the simulator choose among the best partitions.
- `CoarsePartitions` estimates: it cuts orders of coarse groups, counts transfers as means over devices, and guesses
  the time of what a device does not run. Policies see what it finds, and placers begin with it.

Partitions are optimal among those that end parts at candidate cuts (all cuts, up to some hundred groups), whatever the
order of the devices; with more than eight devices that differ (`_MOST_STATES`), in the order of the device list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag import _native
from ov_hsdag.model.graph import Floats, NodeKind
from ov_hsdag.placers.base import best_of, by_structure
from ov_hsdag.problem.coarse import CoarseView, crossing, off_diagonal
from ov_hsdag.problem.problem import MOST_WORK, PlacementProblem, topological_groups

# Places where parts may end; of more, the cheapest of equal slices of the work are taken. `Contiguous` may take so many
# times as long as the partitions that search begins with. Coarse groups: every pair of places is looked at.
_MOST_CUTS = 600
_EFFORT = 16.0
_MOST_CUTS_IN_PAIRS = 96

# Pairs of a device and a set of devices behind it, up to which all orders of devices are looked at: eight devices that
# differ have 1,024, nine 2,304.
_MOST_STATES = 2048

# What the simulator judges: sequences of devices (all of up to four devices), partitions of each.
_SEQUENCES = 64
_PER_SEQUENCE = 24

# Estimates this much worse are taken if the devices come in the order of the list: it often hardly matters who begins,
# and answers that begin now here, now there, have nothing in common.
_IN_LIST_ORDER = 1.05

# Cost of what exceeds a memory limit, in times of all work for all of the model's memory.
_EXCESS = 10.0


@dataclass(frozen=True, eq=False)
class ContiguousPartition:
    """Parts of an order of items, and their devices."""

    value: float  # estimate of the objective, µs
    sequence: NDArray[np.int64]  # devices in the order of their parts, each at most once, int64 [parts]
    bounds: NDArray[np.int64]  # part k has the items bounds[k] … bounds[k + 1] - 1, perhaps none; int64 [parts + 1]

    @property
    def devices(self) -> NDArray[np.int64]:
        """Device of each item, int64 [items]."""
        return np.repeat(self.sequence, np.diff(self.bounds))


@dataclass(frozen=True)
class Contiguous:
    """The best contiguous partition of the topological order, over all orders of all subsets of the devices."""

    name: str = "pipeline"

    def place(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        """See `Placer.place`. Never worse than a single device."""
        if self.name not in problem.found:
            problem.found[self.name] = by_structure(self._find, problem)[0]
        return problem.found[self.name]

    @staticmethod
    def _find(problem: PlacementProblem) -> NDArray[np.uint8]:
        return best_of(problem, [*problem.singles, *contiguous_placements(problem)])[None]


def contiguous_placements(problem: PlacementProblem, *, in_list_order: bool = False) -> list[NDArray[np.uint8]]:
    """Placements of the best contiguous partitions of that order of colocation groups which has the best one.

    At most `_SEQUENCES` of devices, and `_PER_SEQUENCE` partitions of each with different cuts before the last device;
    uint8 [groups] each, those on fewer devices first. What a device does not run is in none of its parts.
    """

    def best(order: NDArray[np.int32], sequences: int, per_sequence: int) -> NDArray[np.uint8]:
        return problem.search_space.partitions(
            order,
            problem.objective == "throughput",
            cuts=_MOST_CUTS,
            effort=_EFFORT,
            sequences=sequences,
            per_sequence=per_sequence,
            whole=not problem.group_supported.all(),
            in_list_order=in_list_order,
        )

    orders = problem.search_space.orders()
    found = [best(order, 1, 1) for order in orders] if len(orders) > 1 else []
    judged = [problem.evaluate(placements, most_work=MOST_WORK).score(problem.objective) for placements in found]
    scores = [each.min(initial=np.inf) for each in judged]
    if len(orders) > 1 and np.isinf(scores).all():
        # In the order in which the nodes run it is known best which tensors are alive at the same time.
        found += [best(order, _SEQUENCES, 1) for order in (*orders, topological_groups(problem))]
    else:
        found.append(best(orders[int(np.argmin(scores)) if scores else 0], _SEQUENCES, _PER_SEQUENCE))
    placements = np.concatenate(found)
    used = np.stack([(placements == device).any(axis=1) for device in range(len(problem.devices))])
    # Of equally good placements, `best_of` takes the first: the one on fewer devices.
    return list(placements[np.argsort(used.sum(axis=0), kind="stable")])


@dataclass(frozen=True, eq=False)
class CoarsePartitions:
    """What contiguous partitions of any topological order of a problem's coarse groups are made of."""

    view: CoarseView  # the problem by coarse groups
    # times with guesses for what a device lacks: the fastest does it, with transfers in and out; µs [size, D]
    us: Floats
    # of each group, states included, as a share of what the model needs of memory on one device [size, D]
    weights: Floats
    largest: Floats  # bytes of the largest operation's inputs and outputs of each group [size]
    room: Floats  # what of that need each device has memory for, inf where there is no limit [D]
    kind: NDArray[np.int32]  # `PlacementProblem.kinds` [D]

    @classmethod
    def of(cls, problem: PlacementProblem, coarse: NDArray[np.int32] | None = None) -> CoarsePartitions:
        """The partitions of a problem; for the arguments see `CoarseView.of`."""
        view = CoarseView.of(problem, coarse)
        need = max(float(problem.evaluate(problem.single(0)).memory_bytes[0].sum()), 1.0)
        us = np.where(np.isfinite(view.us), view.us, view.best[:, None] + view.into + view.out_of)
        return cls(
            view=view,
            us=us,
            weights=np.stack([view.sums(column) for column in problem.node_held.T], axis=1) / need,
            largest=_largest(problem, view.node, view.size),
            room=problem.memory_limits / need,
            kind=problem.kinds,
        )

    def best(self, position: NDArray[np.int32]) -> ContiguousPartition:
        """The best partition of a topological order, or one that is about as good and in the order of the device list.

        All devices are in its sequence, some perhaps without items. position: place of each group in the order [size].
        """
        span, cuts = self._parts(position)
        (listed,) = self._find(span, cuts, in_list_order=True)
        found = self._find(span, cuts)
        return found[0] if found and listed.value > found[0].value * _IN_LIST_ORDER else listed

    def _parts(self, position: NDArray[np.int32]) -> tuple[Floats, NDArray[np.int64]]:
        """Time of a part of an order between each two cuts, µs [D, P, P], and the cuts [P]."""
        problem, view = self.view.problem, self.view
        order = np.argsort(position)
        first, last = view.spans(position)
        forward = last > first
        count, size = (
            crossing(amount[forward], first[forward], last[forward], view.size)
            for amount in (np.ones(len(first)), view.tensor_bytes)
        )
        us = self.us[order]
        cuts = _candidate_cuts(us.mean(axis=1), size, _MOST_CUTS_IN_PAIRS)
        work = _before(us)[cuts].T
        others = max(len(problem.devices) - 1, 1)
        fixed, rate = (off_diagonal(matrix) for matrix in (problem.transfer_us, problem.transfer_us_per_byte))
        enter, leave = (
            (count[cuts] * fixed.sum(axis=axis)[:, None] + size[cuts] * rate.sum(axis=axis)[:, None]) / others
            for axis in (0, 1)
        )
        if problem.objective == "latency":
            leave = np.zeros_like(leave)
        else:
            enter, leave = (moved * problem.transfer_shares[:, None] for moved in (enter, leave))
        excess: Floats | float = 0.0
        if np.isfinite(self.room).any():
            weights = self.weights[order]
            alive = _alive(self.largest[order], size, weights)
            excess = _excess(weights, alive, self.room, cuts, work)
        cost = work[:, None, :] - work[:, :, None] + enter[:, :, None] + problem.submodel_us[:, None, None]
        # Infinite where a part would be empty or end before it begins.
        return np.where(np.tri(len(cuts), dtype=bool), np.inf, cost + leave[:, None, :] + excess), cuts

    def _find(
        self, span: Floats, cuts: NDArray[np.int64], sequences: int = 1, *, in_list_order: bool = False
    ) -> list[ContiguousPartition]:
        """The best partition for each of the best sequences of all devices; span, cuts: of `_parts`."""
        problem, kind = self.view.problem, self.kind
        if in_list_order or _states(kind) > _MOST_STATES:
            kind, in_list_order = np.arange(len(problem.devices), dtype=np.int32), True
        values, devices, bounds = _native.contiguous_partitions(
            kind,
            problem.objective == "throughput",
            span=span[np.unique(kind, return_index=True)[1]],
            any_order=not in_list_order,
            skip=True,
            sequences=sequences,
        )
        parts = (devices >= 0).sum(axis=1).tolist()
        return [
            ContiguousPartition(value, sequence[:count].astype(np.int64), cuts[bound[: count + 1]])
            for value, sequence, bound, count in zip(values.tolist(), devices, bounds, parts, strict=True)
        ]


def _states(kind: NDArray[np.int32]) -> float:
    """Pairs of a device's kind and what is left behind it: Σ_k m_k Π_{j ≠ k} (m_j + 1) for m_k devices of kind k."""
    members = np.bincount(kind).astype(np.float64)
    return float((members / (members + 1)).sum() * (members + 1).prod())


def _candidate_cuts(work: Floats, crossing_bytes: Floats, most: int) -> NDArray[np.int64]:
    """Where parts may end: all of 0 … n, or the cut that the least bytes cross of each of `most` slices of the work."""
    count = len(work)
    if count < most:
        return np.arange(count + 1)
    slices = (work.cumsum() / max(work.sum(), 1e-30) * (most - 1)).astype(np.int64)
    places = np.lexsort((crossing_bytes[1:], slices)) + 1
    cheapest = places[np.unique(slices[places - 1], return_index=True)[1]]
    return np.unique(np.concatenate([[0], cheapest, [count]]))


def _before(values: NDArray[Any]) -> NDArray[Any]:
    """Sums of all rows before each, and of all: [n + 1, …]."""
    return np.concatenate([np.zeros((1, *values.shape[1:]), values.dtype), values.cumsum(axis=0)])


def _largest(problem: PlacementProblem, group: NDArray[np.int32], size: int) -> Floats:
    """Bytes of the largest operation's inputs and outputs, constants aside, of each group [size]; group: [nodes]."""
    graph = problem.graph
    bytes_ = graph.output_bytes if problem.live_bytes is None else problem.live_bytes
    moved = np.where(graph.kinds[graph.output_node] == NodeKind.CONSTANT, 0, bytes_).astype(np.float64)
    of_node = np.bincount(graph.output_node, moved, graph.nodes)
    of_node += np.bincount(graph.input_node, moved[graph.input_output], graph.nodes)
    largest = np.zeros(size)
    np.maximum.at(largest, group, of_node)
    return largest


def _alive(largest: Floats, crossing_bytes: Floats, weights: Floats) -> Floats:
    """Tensors that are alive at once while each item runs, as shares of what the model needs [n].

    Roughly: what crosses the places around an item, or an operation's inputs and outputs inside it; all of the model
    needs what its weights do not.
    """
    alive = np.maximum(largest, np.maximum(crossing_bytes[:-1], crossing_bytes[1:]))
    alive *= (1 - weights.sum(axis=0).min()) / max(alive.max(), 1e-30)
    return alive


def _excess(weights: Floats, alive: Floats, room: Floats, cuts: NDArray[np.int64], work: Floats) -> Floats:
    """Cost of what parts between two cuts exceed memory by, µs [D, P, P]. work: of all before each cut, µs [D, P].

    Shares of what the model needs: weights [n, D], `_alive` [n] (a part needs the most of its items), room [D].
    """
    held = _before(weights)[cuts]
    most = np.zeros((len(cuts), len(cuts)))
    of_slice = np.maximum.reduceat(alive, cuts[:-1])
    for first in range(len(cuts) - 1):
        most[first, first + 1 :] = np.maximum.accumulate(of_slice[first:])
    need = held.T[:, None, :] - held.T[:, :, None] + most
    scale: float = _EXCESS * work[:, -1].min()
    return np.asarray(scale * np.maximum(need - room[:, None, None], 0.0))
