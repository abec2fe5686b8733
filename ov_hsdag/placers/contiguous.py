"""Contiguous partitions: an order of the operations is cut into parts, and each device gets one of them at most.

They balance work over devices when many requests are in flight, and they fill the devices' memory; minimum cuts do
neither. For a given order, one dynamic programme finds the best partitions (cpp_ext/contiguous.hpp). Its state is the
set of devices without a part so far, the device of the latest part, and the cut where that part begins, after Bokhari,
"Partitioning problems in parallel, pipeline, and distributed computing", IEEE Transactions on Computers 37(1), 1988. It
is used in two ways:

- `Contiguous` is a placer. It cuts an order of colocation groups, knows the transfers between neighbouring devices,
  and lets the simulator choose among the best partitions.
- `CoarsePartitions` estimates. It cuts orders of coarse groups, counts transfers as means over devices, and guesses
  times of operations that a device does not run. Its partitions are features of policies, and placers start with them.

Partitions are optimal among those whose parts end at candidate cuts (all cuts, up to some hundred groups), over all
orders of the devices; with more than eight devices that differ (`_MOST_STATES`), in the order of the device list only.

In this file a cut is a place in an order where a part may end: cut i is in front of item i, and cut n after the last of
n items. A sequence is the order in which devices get their parts. A coarse group is a set of co-location groups that
are placed together (`PlacementProblem.coarse`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag import _native
from ov_hsdag.model.graph import Floats, NodeKind
from ov_hsdag.placers.base import best_of, placed_once
from ov_hsdag.problem.coarse import CoarseView, crossing, off_diagonal
from ov_hsdag.problem.problem import MOST_WORK, PlacementProblem, topological_groups

# Largest number of places where parts of colocation groups may end; where there are more, the work is cut into equal
# slices and each contributes the place that the fewest bytes cross.
_MOST_CUTS = 600

# Time that `Contiguous` may take for an order, as a multiple of that of the partitions which the search starts with.
_EFFORT = 16.0

# The same as `_MOST_CUTS` for coarse groups; smaller, as arrays have an entry for each pair of places.
_MOST_CUTS_IN_PAIRS = 96

# All orders of the devices are considered up to this number of pairs of a device and a set of devices behind it: eight
# devices that differ have 1,024 pairs, nine have 2,304.
_MOST_STATES = 2048

# Partitions that the simulator evaluates: those of 64 sequences of devices (all sequences of up to four devices), and
# 24 of each.
_SEQUENCES = 64
_PER_SEQUENCE = 24

# A partition whose devices are in the order of the list is preferred if its estimate is at most this many times the
# best. Which device begins often hardly matters, and if it changed at random, partitions of similar problems would have
# nothing in common.
_IN_LIST_ORDER = 1.05

# Penalty for exceeding memory limits: an excess as large as the model's whole memory costs this multiple of its work.
_EXCESS = 10.0


@dataclass(frozen=True, eq=False)
class ContiguousPartition:
    """Parts of an order of items, and their devices.

    Attributes:
        value: estimate of the objective, µs.
        sequence: device numbers in the order of their parts, each at most once, int64 [parts].
        bounds: part k has the items bounds[k] … bounds[k + 1] - 1, perhaps none; int64 [parts + 1].
    """

    value: float
    sequence: NDArray[np.int64]
    bounds: NDArray[np.int64]

    @property
    def devices(self) -> NDArray[np.int64]:
        """Device number of each item, int64 [items]."""
        return np.repeat(self.sequence, np.diff(self.bounds))


@dataclass(frozen=True)
class Contiguous:
    """Finds the best contiguous partition of a topological order, over all orders of all subsets of the devices."""

    name: str = "pipeline"

    def place(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        """Finds a placement, see `Placer.place`; it is never worse than a single device."""
        return placed_once(self.name, self._find, problem)

    @staticmethod
    def _find(problem: PlacementProblem) -> NDArray[np.uint8]:
        """The best of the single devices and the contiguous placements, uint8 [groups]."""
        return best_of(problem, [*problem.singles, *contiguous_placements(problem)])


def contiguous_placements(problem: PlacementProblem, *, in_list_order: bool = False) -> list[NDArray[np.uint8]]:
    """Finds good contiguous partitions of the topological order that has the best one.

    That order is partitioned for at most `_SEQUENCES` sequences of devices. Each sequence contributes at most
    `_PER_SEQUENCE` partitions, which differ in the cut before the last device. Where memory is so short that no order
    has a feasible partition, one partition of each sequence is taken from every order. No part has a group that its
    device does not run.

    Args:
        problem: the problem.
        in_list_order: whether devices stay in the order of the device list.

    Returns:
        The placements, uint8 [groups] each, those on fewer devices first.
    """

    def best(order: NDArray[np.int32], sequences: int, per_sequence: int) -> NDArray[np.uint8]:
        """Finds the best partitions of one order.

        Args:
            order: topological order of the co-location groups, int32 [groups].
            sequences: largest number of sequences of devices.
            per_sequence: largest number of partitions for each sequence.

        Returns:
            Their placements, best first, uint8 [partitions, groups].
        """
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
    batches = [best(order, 1, 1) for order in orders] if len(orders) > 1 else []
    judged = [problem.evaluate(placements, most_work=MOST_WORK).score(problem.objective) for placements in batches]
    scores = [each.min(initial=np.inf) for each in judged]
    if len(orders) > 1 and np.isinf(scores).all():
        # Memory is short. The order in which the nodes run tells best which tensors are alive at the same time.
        batches += [best(order, _SEQUENCES, 1) for order in (*orders, topological_groups(problem))]
    else:
        batches.append(best(orders[int(np.argmin(scores)) if scores else 0], _SEQUENCES, _PER_SEQUENCE))
    placements = np.concatenate(batches)
    used = np.stack([(placements == device).any(axis=1) for device in range(len(problem.devices))])
    # Of equally good placements, `best_of` takes the first: the one on fewer devices.
    return list(placements[np.argsort(used.sum(axis=0), kind="stable")])


@dataclass(frozen=True, eq=False)
class CoarsePartitions:
    """Finds contiguous partitions of a problem's coarse groups by estimated costs.

    The attributes are the figures that the estimates are made of. D is the number of devices, and `size` the number of
    coarse groups. A share of memory is relative to what the whole model needs on the first device.

    Attributes:
        view: the problem by coarse groups.
        us: time of each group on each device, µs, float64 [size, D]. Where a device does not run a group, it is the
            time on the fastest device that does, with transfers there and back.
        weights: weights and states of each group on each device, as a share of memory, float64 [size, D].
        largest: bytes of the inputs and outputs of each group's largest operation, float64 [size].
        room: limit of each device, as a share of memory, inf without a limit, float64 [D].
        kind: number of each device's kind, see `PlacementProblem.kinds`, int32 [D].
    """

    view: CoarseView
    us: Floats
    weights: Floats
    largest: Floats
    room: Floats
    kind: NDArray[np.int32]

    @classmethod
    def of(cls, problem: PlacementProblem, coarse: NDArray[np.int32] | None = None) -> CoarsePartitions:
        """Computes the figures of a problem.

        Args:
            problem: the problem, in which each co-location group has a device that supports it.
            coarse: coarse group of each co-location group, int32 [groups]; by default `problem.coarse`.
        """
        view = CoarseView.of(problem, coarse)
        need = max(float(problem.evaluate(problem.single(0)).memory_bytes[0].sum()), 1.0)
        us = np.where(np.isfinite(view.us), view.us, view.best[:, None] + view.into + view.out_of)
        return cls(
            view=view,
            us=us,
            weights=np.stack([view.sums(column) for column in problem.node_held.T], axis=1) / need,
            largest=_largest_operation_bytes(problem, view.node, view.size),
            room=problem.memory_limits / need,
            kind=problem.kinds,
        )

    def best(self, position: NDArray[np.int32]) -> ContiguousPartition:
        """The best partition of a topological order, or one about as good whose devices are in the list's order.

        Args:
            position: place of each coarse group in the order, int32 [size].

        Returns:
            The partition. Its sequence has all devices, some perhaps without items.
        """
        span, cuts = self._parts(position)
        (listed,) = self._find(span, cuts, in_list_order=True)
        found = self._find(span, cuts)
        return found[0] if found and listed.value > found[0].value * _IN_LIST_ORDER else listed

    def _parts(self, position: NDArray[np.int32]) -> tuple[Floats, NDArray[np.int64]]:
        """Computes the costs of all possible parts of an order, for P cuts.

        Args:
            position: place of each coarse group in the order, int32 [size].

        Returns:
            span: element [d, i, j] is the time of the part from cut i to cut j on device d, with transfers and a
                penalty for exceeding memory, µs, float64 [D, P, P]; inf where j is not behind i.
            cuts: place of each cut in the order, ascending, int64 [P].
        """
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
        work = _sums_before(us)[cuts].T
        other_devices = max(len(problem.devices) - 1, 1)
        fixed, rate = (off_diagonal(matrix) for matrix in (problem.transfer_us, problem.transfer_us_per_byte))
        enter, leave = (
            (count[cuts] * fixed.sum(axis=axis)[:, None] + size[cuts] * rate.sum(axis=axis)[:, None]) / other_devices
            for axis in (0, 1)
        )
        if problem.objective == "latency":
            leave = np.zeros_like(leave)
        else:
            enter, leave = (moved * problem.transfer_shares[:, None] for moved in (enter, leave))
        excess: Floats | float = 0.0
        if np.isfinite(self.room).any():
            weights = self.weights[order]
            alive = _live_shares(self.largest[order], size, weights)
            excess = _memory_penalty(weights, alive, self.room, cuts, work)
        cost = work[:, None, :] - work[:, :, None] + enter[:, :, None] + problem.submodel_us[:, None, None]
        return np.where(np.tri(len(cuts), dtype=bool), np.inf, cost + leave[:, None, :] + excess), cuts

    def _find(
        self, span: Floats, cuts: NDArray[np.int64], sequences: int = 1, *, in_list_order: bool = False
    ) -> list[ContiguousPartition]:
        """Finds the best partition for each of the best sequences of all devices.

        Args:
            span: times of parts, see `_parts`.
            cuts: cuts, see `_parts`.
            sequences: largest number of sequences that are returned.
            in_list_order: whether devices stay in the order of the device list. They also do where other orders would
                take too many states (`_MOST_STATES`).

        Returns:
            One partition for each sequence, best first; empty where no partition has a finite value.
        """
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
    """Counts the states of the dynamic programme that differ in their devices.

    A state has the kind of the present device and the number of devices of each kind that come behind it. With m_k
    devices of kind k there are Σ_k m_k Π_{j ≠ k} (m_j + 1) states.

    Args:
        kind: number of each device's kind, int32 [devices].
    """
    members = np.bincount(kind).astype(np.float64)
    return float((members / (members + 1)).sum() * (members + 1).prod())


def _candidate_cuts(work: Floats, crossing_bytes: Floats, most: int) -> NDArray[np.int64]:
    """Selects the cuts of an order where parts may end.

    Args:
        work: time of each of n items, float64 [n].
        crossing_bytes: bytes of the tensors that cross each cut, float64 [n + 1].
        most: about the largest number of cuts.

    Returns:
        All cuts 0 … n where there are at most `most`. Otherwise the order is divided into `most` slices of equal work,
        and each contributes the cut that the fewest bytes cross; 0 and n are always included. Ascending, int64.
    """
    count = len(work)
    if count < most:
        return np.arange(count + 1)
    slices = (work.cumsum() / max(work.sum(), 1e-30) * (most - 1)).astype(np.int64)
    places = np.lexsort((crossing_bytes[1:], slices)) + 1
    cheapest = places[np.unique(slices[places - 1], return_index=True)[1]]
    return np.unique(np.concatenate([[0], cheapest, [count]]))


def _sums_before(values: NDArray[Any]) -> NDArray[Any]:
    """Sums along the first axis: row i of the result is the sum of the first i rows, [n + 1, …]."""
    return np.concatenate([np.zeros((1, *values.shape[1:]), values.dtype), values.cumsum(axis=0)])


def _largest_operation_bytes(problem: PlacementProblem, group: NDArray[np.int32], size: int) -> Floats:
    """Bytes of the inputs and outputs, without constants, of each coarse group's largest operation, float64 [size].

    Args:
        problem: the problem.
        group: coarse group of each node, int32 [nodes].
        size: number of coarse groups.
    """
    graph = problem.graph
    bytes_ = graph.output_bytes if problem.live_bytes is None else problem.live_bytes
    moved = np.where(graph.kinds[graph.output_node] == NodeKind.CONSTANT, 0, bytes_).astype(np.float64)
    of_node = np.bincount(graph.output_node, moved, graph.nodes)
    of_node += np.bincount(graph.input_node, moved[graph.input_output], graph.nodes)
    largest = np.zeros(size)
    np.maximum.at(largest, group, of_node)
    return largest


def _live_shares(largest: Floats, crossing_bytes: Floats, weights: Floats) -> Floats:
    """Estimates the memory of the tensors that are alive while each of n items runs.

    The estimate is the larger of two sizes: the bytes that cross the cuts around an item, and the inputs and outputs of
    its largest operation. All estimates are scaled so that the largest one is the share of the model's memory that
    weights do not need.

    Args:
        largest: bytes of the inputs and outputs of each item's largest operation, float64 [n].
        crossing_bytes: bytes of the tensors that cross each cut, float64 [n + 1].
        weights: weights of each item on each device, as a share of the model's memory, float64 [n, D].

    Returns:
        Live tensors of each item, as a share of the model's memory, float64 [n].
    """
    alive = np.maximum(largest, np.maximum(crossing_bytes[:-1], crossing_bytes[1:]))
    alive *= (1 - weights.sum(axis=0).min()) / max(alive.max(), 1e-30)
    return alive


def _memory_penalty(weights: Floats, alive: Floats, room: Floats, cuts: NDArray[np.int64], work: Floats) -> Floats:
    """Computes the penalties of all possible parts for exceeding a device's memory.

    Args:
        weights: weights of each of n items on each device, as a share of the model's memory, float64 [n, D].
        alive: live tensors while each item runs, see `_live_shares`, float64 [n]; a part needs their maximum.
        room: memory limit of each device, as a share, float64 [D].
        cuts: the cuts, int64 [P].
        work: time of all items before each cut on each device, µs, float64 [D, P].

    Returns:
        Penalty of the part from cut i to cut j on device d, µs, float64 [D, P, P]; 0 where it fits.
    """
    held = _sums_before(weights)[cuts]
    live_maximum = np.zeros((len(cuts), len(cuts)))
    of_slice = np.maximum.reduceat(alive, cuts[:-1])
    for first in range(len(cuts) - 1):
        live_maximum[first, first + 1 :] = np.maximum.accumulate(of_slice[first:])
    need = held.T[:, None, :] - held.T[:, :, None] + live_maximum
    scale: float = _EXCESS * work[:, -1].min()
    return np.asarray(scale * np.maximum(need - room[:, None, None], 0.0))
