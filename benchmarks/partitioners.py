"""Graph partitioners as rivals of the search: METIS and Mt-KaHyPar, with repair, and with local search afterwards.

Both are optional (`pip install pymetis mtkahypar`). Vertices are colocation groups, weighted by their work or by their
weights in memory; edges are tensors, weighted by the time of their transfer; parts are as large as devices are fast, or
as their memory is large. A partitioner knows neither which device runs what nor that parts must not wait for each
other: parts go to devices in all orders (up to four devices), unsupported groups to a device that runs them, and the
result is repaired.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.placers.refine import refine
from ov_hsdag.problem.problem import PlacementProblem

Curve = list[tuple[float, float]]
"""When a better placement was found, s of processor time, and its score, µs."""

# A part may be so much larger than its target.
_IMBALANCE = 0.05
_ALL_ORDERS = 4
_WEIGHT = 1_000_000


class Vertices:
    """A problem as partitioners see it."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem
        us = problem.group_us
        finite = np.isfinite(us)
        least = np.where(finite, us, np.inf).min(axis=1)
        total = np.where(finite, us, least[:, None]).sum(axis=0)
        self.work = _whole(least, _WEIGHT)
        self.held = _whole(problem.group_held.max(axis=1), _WEIGHT)
        count = len(problem.devices)
        apart = ~np.eye(count, dtype=bool)
        bytes_ = problem.tensors.bytes
        moved = problem.transfer_us[apart].mean() + problem.transfer_us_per_byte[apart].mean() * bytes_
        self.tensor_weight = _whole(moved, 1000 * max(len(bytes_), 1)) + 1
        speed = 1 / np.maximum(total, 1e-9)
        self.speed = speed / speed.sum()
        limits = problem.memory_bytes
        needed = max(problem.group_held.max(axis=1).sum(), 1.0)
        room = np.where(limits < 0, 1.0, 0.85 * limits / needed)
        self.limited = bool((limits >= 0).any())
        self.room = np.minimum(room, 1.0)

    def targets(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        """Vertex weights, and the share of them that each device should have."""
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
    return np.asarray(np.ceil(values / max(float(values.sum()), 1e-30) * total), np.int64)


def _at_most(share: NDArray[np.float64], room: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shares where none is above its room, as far as there is room."""
    result = np.minimum(share, room)
    for _ in range(len(share)):
        left = 1 - result.sum()
        free = room - result
        if left <= 1e-9 or free.sum() <= 1e-9:
            break
        result = np.minimum(room, result + left * free / free.sum())
    return np.asarray(result / result.sum())


Partition = Callable[[NDArray[np.int64], NDArray[np.float64]], NDArray[np.integer]]


def metis(vertices: Vertices) -> Partition:
    """METIS on the graph of pairs of groups.

    Raises:
        ImportError: pymetis is not installed.
    """
    import pymetis

    tensors = vertices.problem.tensors
    fan = np.diff(tensors.consumer_ptr)
    source = np.repeat(tensors.source, fan).astype(np.int64)
    target = tensors.consumers.astype(np.int64)
    weight = np.repeat(vertices.tensor_weight // np.maximum(fan, 1) + 1, fan)
    count = vertices.problem.group_count
    key = np.concatenate([source * count + target, target * count + source])
    pairs, number = np.unique(key, return_inverse=True)
    weights = np.bincount(number, np.concatenate([weight, weight])).astype(np.int64)
    xadj = np.searchsorted(pairs, np.arange(count + 1) * count)
    options = pymetis.Options(ufactor=int(1000 * _IMBALANCE), seed=1)

    def partition(vertex_weights: NDArray[np.int64], share: NDArray[np.float64]) -> NDArray[np.integer]:
        share = np.maximum(share, 1e-4)
        _, part = pymetis.part_graph(
            len(share),
            xadj=xadj.tolist(),
            adjncy=(pairs % count).tolist(),
            vweights=vertex_weights.tolist(),
            eweights=weights.tolist(),
            tpwgts=(share / share.sum()).tolist(),
            options=options,
        )
        return np.asarray(part)

    return partition


def mt_kahypar(vertices: Vertices) -> Partition:
    """Mt-KaHyPar on the hypergraph whose nets are the tensors: what it minimizes is the time of all transfers.

    Raises:
        ImportError: mtkahypar is not installed.
    """
    import mtkahypar

    global _initialized
    if _initialized is None:
        _initialized = mtkahypar.initialize(1)
    tensors = vertices.problem.tensors
    ends = [
        [int(tensors.source[t]), *tensors.consumers[tensors.consumer_ptr[t] : tensors.consumer_ptr[t + 1]].tolist()]
        for t in range(len(tensors))
    ]

    def partition(vertex_weights: NDArray[np.int64], share: NDArray[np.float64]) -> NDArray[np.integer]:
        context = _initialized.context_from_preset(mtkahypar.PresetType.DEFAULT)
        context.set_partitioning_parameters(len(share), _IMBALANCE, mtkahypar.Objective.KM1)
        context.logging = False
        mtkahypar.set_seed(1)
        most = np.ceil((1 + _IMBALANCE) * np.maximum(share, 1e-4) * vertex_weights.sum()).astype(int)
        context.set_individual_target_block_weights((most + int(vertex_weights.max())).tolist())
        graph = _initialized.create_hypergraph(
            context,
            vertices.problem.group_count,
            len(ends),
            ends,
            vertex_weights.tolist(),
            vertices.tensor_weight.tolist(),
        )
        return np.asarray(graph.partition(context).get_partition())

    return partition


_initialized = None

PARTITIONERS: dict[str, Callable[[Vertices], Partition]] = {"METIS": metis, "Mt-KaHyPar": mt_kahypar}


def installed(name: str) -> bool:
    """Whether a partitioner can be used here."""
    try:
        __import__({"METIS": "pymetis", "Mt-KaHyPar": "mtkahypar"}[name])
    except ImportError:
        return False
    return True


def run(problem: PlacementProblem, name: str, seconds: float, times: tuple[float, ...]) -> Curve:
    """Partitions, and local search from all of them for the rest of each time.

    Args:
        problem: what is placed.
        name: of `PARTITIONERS`.
        seconds: of processor time.
        times: at which local search ends; for each it runs anew.
    """
    curve: Curve = []
    begin = time.process_time()
    vertices = Vertices(problem)
    partition = PARTITIONERS[name](vertices)
    starts = [problem.where_supported(problem.single(device)) for device in range(len(problem.devices))]
    curve.append((time.process_time() - begin, float(problem.scores(np.stack(starts)).min())))
    for weights, share in vertices.targets():
        part = partition(weights, share)
        best = np.inf
        chosen = None
        for placement in _orders(problem, part):
            score = float(problem.scores(placement)[0])
            if score < best or chosen is None:
                best, chosen = score, placement
                curve.append((time.process_time() - begin, score))
            if time.process_time() - begin > seconds:
                return curve
        assert chosen is not None
        starts.append(chosen)
    return curve + local_search(problem, starts, begin, [limit for limit in times if limit <= seconds])


def local_search(
    problem: PlacementProblem, starts: Sequence[NDArray[np.uint8]], begin: float, times: Sequence[float]
) -> list[tuple[float, float]]:
    """What local search makes of placements in the rest of each time.

    Args:
        problem: of the placements.
        starts: placements, uint8 [groups] each.
        begin: processor time, s, from which times count.
        times: limits, s; those that have passed are left out.

    Returns:
        Each limit and the best score, µs.
    """
    used = time.process_time() - begin
    found = []
    for limit in times:
        if used < limit:
            ms = 1e3 * (limit - used)
            scores = refine(problem, np.stack(starts), max_moves=10**12, budget_ms=ms, processor_time=True)[1]
            found.append((limit, float(scores.min())))
    return found


def _orders(problem: PlacementProblem, part: NDArray[np.integer]) -> Iterator[NDArray[np.uint8]]:
    count = len(problem.devices)
    orders = itertools.permutations(range(count)) if count <= _ALL_ORDERS else [tuple(range(count))]
    for order in orders:
        placement = problem.where_supported(np.asarray(order, np.uint8)[part])
        if problem.evaluate(placement).broken[0]:
            placement = problem.repair(placement)
        yield placement
