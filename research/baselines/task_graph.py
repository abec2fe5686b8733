"""A placement problem as list schedulers see it: an acyclic graph of tasks, their times, their memory, their messages.

A task is a colocation group, or several that wait for each other (a strongly connected component of the graph between
groups): no order starts one of these before the other has begun.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph

from ov_hsdag.problem.problem import PlacementProblem, topological_groups

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FILLED = (0.9, 0.75, 0.6)
"""Shares of memory limits that are tried where placements that count weights alone exceed them."""


@dataclass(frozen=True, eq=False)
class TaskGraph:
    """Tasks are numbered in a topological order, in which they run in OpenVINO's order where that is free.

    Attributes:
        problem: whose groups are the tasks.
        task: of each group, int64 [groups].
        us: time on each device, inf where it does not run there, float64 [tasks, devices], µs. What no device runs
            altogether has the times of its runnable groups, so that schedulers go on.
        held: bytes that each device keeps, float64 [tasks, devices].
        source: sending task of each message, int64 [messages].
        target: its receiving task, int64 [messages].
        tensor: the tensor (of `problem.tensors`) that it carries, int64 [messages].
        filled: share of the devices' memory limits that schedulers may fill with what is kept: live tensors need some.
    """

    problem: PlacementProblem
    task: Ints
    us: Floats
    held: Floats
    source: Ints
    target: Ints
    tensor: Ints
    filled: float = 1.0

    @classmethod
    def of(cls, problem: PlacementProblem) -> TaskGraph:
        """The tasks of a problem."""
        tensors, groups = problem.tensors, problem.group_count
        number = np.repeat(np.arange(len(tensors)), np.diff(tensors.consumer_ptr))
        start, end = tensors.source[number].astype(np.int64), tensors.consumers.astype(np.int64)
        # Constants and Results make no message, but order groups as well.
        graph = problem.graph
        a, b = problem.groups[graph.input_source], problem.groups[graph.input_node]
        links = sparse.csr_matrix((np.ones(len(a)), (a, b)), (groups, groups))
        count, component = csgraph.connected_components(links, directed=True, connection="strong")
        place = np.empty(groups, np.int64)
        place[topological_groups(problem)] = np.arange(groups)
        task = _in_order(count, component[a], component[b], _first(component, place, count))[component]
        us = sums(problem.group_us, task, count)
        runnable = np.isfinite(us).any(axis=1)
        if not runnable.all():
            us[~runnable] = sums(np.where(problem.group_supported, problem.group_us, 0.0), task, count)[~runnable]
        between = task[start] != task[end]
        pairs = np.unique(np.stack([number[between], task[start[between]], task[end[between]]], axis=1), axis=0)
        return cls(problem, task, us, sums(problem.group_held, task, count), pairs[:, 1], pairs[:, 2], pairs[:, 0])

    @property
    def count(self) -> int:
        """Number of tasks."""
        return len(self.us)

    @cached_property
    def room(self) -> Floats:
        """Memory of each device that may be filled, inf where it has no limit, float64 [devices]."""
        return self.filled * self.problem.memory_limits

    def fillings(self) -> Iterator[TaskGraph]:
        """The same tasks with less and less memory: for who counts weights alone, until a placement is feasible."""
        yield self
        if np.isfinite(self.problem.memory_limits).any():
            yield from (replace(self, filled=share) for share in FILLED)

    @cached_property
    def message_us(self) -> Floats:
        """Time of each message from each device to each other, µs, float64 [messages, devices, devices]."""
        problem = self.problem
        bytes_ = problem.tensors.bytes[self.tensor]
        return problem.transfer_us + problem.transfer_us_per_byte * bytes_[:, None, None]

    @cached_property
    def mean_us(self) -> Floats:
        """Time of each task in the mean over devices that run it, µs, float64 [tasks]."""
        runs = np.isfinite(self.us)
        return np.where(runs, self.us, 0.0).sum(axis=1) / np.maximum(runs.sum(axis=1), 1)

    @cached_property
    def mean_message_us(self) -> Floats:
        """Time of each message in the mean over pairs of different devices, µs, float64 [messages]."""
        apart = ~np.eye(len(self.problem.devices), dtype=bool)
        return self.message_us[:, apart].mean(axis=1) if apart.any() else np.zeros(len(self.source))

    @cached_property
    def incoming(self) -> list[NDArray[np.int64]]:
        """Messages that each task receives."""
        return by_owner(self.target, self.count)

    @cached_property
    def outgoing(self) -> list[NDArray[np.int64]]:
        """Messages that each task sends."""
        return by_owner(self.source, self.count)

    def placement(self, device: NDArray[np.integer[Any]]) -> NDArray[np.uint8]:
        """Devices of tasks as a placement that HETERO runs, memory aside, uint8 [groups].

        Args:
            device: of each task, [tasks].
        """
        return runnable(self.problem, np.asarray(device, np.uint8)[self.task])


def runnable(problem: PlacementProblem, placement: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The placement with groups on devices that run them, repaired where HETERO would not run it, uint8 [groups]."""
    placement = problem.where_supported(placement)
    return problem.repair(placement) if problem.evaluate(placement).broken[0] else placement


def sums(values: Floats, task: Ints, count: int) -> Floats:
    """Sums of rows that belong together, float64 [count, columns]."""
    total = np.zeros((count, values.shape[1]))
    np.add.at(total, task, values)
    return total


def _first(component: NDArray[np.integer[Any]], place: Ints, count: int) -> Ints:
    """The earliest place of each component's groups, [count]."""
    first = np.full(count, len(place))
    np.minimum.at(first, component, place)
    return first


def _in_order(count: int, source: Ints, target: Ints, wish: Ints) -> Ints:
    """Place of each component in a topological order that takes the least wish of what is ready, [count]."""
    pairs = np.unique(np.stack([source, target], axis=1)[source != target], axis=0)
    followers = by_owner(pairs[:, 0], count)
    waits = np.bincount(pairs[:, 1], minlength=count)
    ready = [(int(wish[k]), int(k)) for k in np.flatnonzero(waits == 0)]
    heapq.heapify(ready)
    place = np.empty(count, np.int64)
    for number in range(count):
        _, component = heapq.heappop(ready)
        place[component] = number
        for follower in pairs[followers[component], 1].tolist():
            waits[follower] -= 1
            if not waits[follower]:
                heapq.heappush(ready, (int(wish[follower]), follower))
    return place


def by_owner(owner: NDArray[np.integer[Any]], count: int) -> list[Ints]:
    """Numbers of the items of each of `count` owners, int64 each."""
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.searchsorted(owner[order], np.arange(1, count)))
