"""METIS as a placer: a graph partitioner without a notion of devices.

Karypis and Kumar, "A fast and high quality multilevel scheme for partitioning irregular graphs", SIAM Journal on
Scientific Computing 20(1), 1998. Vertices are colocation groups, weighted by their work or by their weights in memory;
edges are tensors, weighted by the time of their transfer. The sizes of parts are proportional to the speed, or to the
memory, of devices. A partitioner does not know which device supports which operation, nor that parts must not wait for
each other. So parts are assigned to devices in all orders (up to four devices), unsupported groups go to a device that
supports them, and the result is repaired.

It is optional: `pip install pymetis`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.problem.problem import PlacementProblem
from research.baselines.budget import Environment

# Share by which a part may exceed its target.
IMBALANCE = 0.05
_ALL_ORDERS = 4  # largest number of devices for which all orders of parts are tried: 24 orders for four
_WEIGHT = 1_000_000  # sum of the integer weights of vertices: fine steps, and far from overflow in METIS


@dataclass(frozen=True)
class Metis:
    """Runs METIS for each target of `Vertices`, and measures its parts on the devices in each order."""

    name: str = "METIS"

    def place(self, environment: Environment, seed: int = 0) -> None:
        """Implements `Baseline.place`. ImportError: pymetis is not installed."""
        vertices = Vertices(environment.problem)
        partition = metis(vertices, seed + 1)
        for weights, share in vertices.targets():
            for placement in orders(environment.problem, partition(weights, share)):
                environment.cost(placement)


class Vertices:
    """A problem in the terms of partitioners: weights of vertices and edges, and targets of parts.

    Attributes:
        problem: the problem.
        work: weight of each group by its least time, int64 [groups].
        held: weight of each group by its bytes of weights and states, int64 [groups].
        tensor_weight: weight of each tensor by the mean time of its transfer, int64 [tensors].
        speed: share of each device in the speed of all, float64 [devices].
        room: share of the model's weights that 85% of each device's memory limit can hold, float64 [devices].
        limited: whether any device has a memory limit.
    """

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem
        us = problem.group_us
        finite = np.isfinite(us)
        least = np.where(finite, us, np.inf).min(axis=1)
        total = np.where(finite, us, least[:, None]).sum(axis=0)
        self.work = _whole(least, _WEIGHT)
        self.held = _whole(problem.group_held.max(axis=1), _WEIGHT)
        count = len(problem.devices)
        different = ~np.eye(count, dtype=bool)
        bytes_ = problem.tensors.bytes
        moved = problem.transfer_us[different].mean() + problem.transfer_us_per_byte[different].mean() * bytes_
        self.tensor_weight = _whole(moved, 1000 * max(len(bytes_), 1)) + 1
        speed = 1 / np.maximum(total, 1e-9)
        self.speed = speed / speed.sum()
        limits = problem.memory_bytes
        needed = max(problem.group_held.max(axis=1).sum(), 1.0)
        room = np.where(limits < 0, 1.0, 0.85 * limits / needed)
        self.limited = bool((limits >= 0).any())
        self.room = np.minimum(room, 1.0)

    def targets(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        """Yields weights of vertices, int64 [groups], and each device's share of their sum, float64 [devices]."""
        if self.problem.objective == "throughput":
            yield self.work, self.speed
            if self.limited:
                yield self.work, _at_most(self.speed, self.room)
                yield self.held, _at_most(self.speed, self.room)
        else:
            filled = np.zeros(len(self.room))
            for device in np.argsort(-self.speed):
                filled[device] = min(self.room[device], 1 - filled.sum())
            yield self.held if self.limited else self.work, filled
            yield self.held if self.limited else self.work, _at_most(self.speed, self.room)


def _whole(values: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Scales values so that their sum is about `total`, and rounds them up."""
    return np.asarray(np.ceil(values / max(float(values.sum()), 1e-30) * total), np.int64)


def _at_most(share: NDArray[np.float64], room: NDArray[np.float64]) -> NDArray[np.float64]:
    """Limits shares to `room` and distributes the excess over the devices that have room left.

    Both are float64 [devices]; so is the result, whose sum is 1 even if the room is too small.
    """
    result = np.minimum(share, room)
    for _ in range(len(share)):
        left = 1 - result.sum()
        free = room - result
        if left <= 1e-9 or free.sum() <= 1e-9:
            break
        result = np.minimum(room, result + left * free / free.sum())
    return np.asarray(result / result.sum())


Partition = Callable[[NDArray[np.int64], NDArray[np.float64]], NDArray[np.integer]]
"""A function from weights of vertices [groups] and shares of devices [devices] to the part of each group [groups]."""


def metis(vertices: Vertices, seed: int = 1) -> Partition:
    """Prepares METIS on the graph of groups.

    Args:
        vertices: the problem.
        seed: for METIS.

    Returns:
        A function that runs METIS with weights of vertices and shares of devices.

    Raises:
        ImportError: pymetis is not installed.
    """
    import pymetis

    tensors = vertices.problem.tensors
    fan = np.diff(tensors.consumer_ptr)
    source = tensors.source[tensors.of_consumer].astype(np.int64)
    target = tensors.consumers.astype(np.int64)
    weight = (vertices.tensor_weight // np.maximum(fan, 1) + 1)[tensors.of_consumer]
    count = vertices.problem.group_count
    key = np.concatenate([source * count + target, target * count + source])
    pairs, number = np.unique(key, return_inverse=True)
    weights = np.bincount(number, np.concatenate([weight, weight])).astype(np.int64)
    xadj = np.searchsorted(pairs, np.arange(count + 1) * count)
    options = pymetis.Options(ufactor=int(1000 * IMBALANCE), seed=seed)

    def partition(vertex_weights: NDArray[np.int64], share: NDArray[np.float64]) -> NDArray[np.integer]:
        share = np.maximum(share, 1e-4)
        _, part = pymetis.part_graph(
            len(share),
            pymetis.CSRAdjacency(xadj.tolist(), (pairs % count).tolist()),
            vweights=vertex_weights.tolist(),
            eweights=weights.tolist(),
            tpwgts=(share / share.sum()).tolist(),
            options=options,
        )
        return np.asarray(part)

    return partition


def orders(problem: PlacementProblem, part: NDArray[np.integer]) -> Iterator[NDArray[np.uint8]]:
    """Yields placements that assign the parts to devices in each order, uint8 [groups], repaired for HETERO.

    part: number of the part of each group, [groups].
    """
    for placement in permuted(problem, part):
        yield problem.legalized(placement)


def permuted(problem: PlacementProblem, part: NDArray[np.integer]) -> Iterator[NDArray[np.uint8]]:
    """Yields the same placements as `orders`, without repair. part: number of the part of each group, [groups]."""
    count = len(problem.devices)
    every = itertools.permutations(range(count)) if count <= _ALL_ORDERS else [tuple(range(count))]
    for order in every:
        yield problem.where_supported(np.asarray(order, np.uint8)[part])
