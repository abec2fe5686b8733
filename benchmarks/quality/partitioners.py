"""Runs the graph partitioners METIS and Mt-KaHyPar with repair and local search for a given time.

They are compared with the search. Both are optional (`pip install pymetis mtkahypar`). `research.baselines.metis` says
how a problem becomes a graph for them, and how their parts become placements.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.placers.refine import refine
from ov_hsdag.problem.problem import PlacementProblem
from research.baselines.metis import IMBALANCE, Partition, Vertices, metis, permuted

MOST_WORK = 16_000_000
"""Limit of the work of HETERO's rule on a placement; beyond it, it counts as infeasible, as in cpp_ext/judge.cpp."""

REFINED_SHARE = 0.5
"""Share of the time in which local search improves the best placements; the rest makes partitions of other seeds."""

MOVES = 50_000
"""Moves of local search between two looks at the clock: some milliseconds."""

Curve = list[tuple[float, float]]
"""Placements that a method found: processor time, s, and score, µs, of each."""


def mt_kahypar(vertices: Vertices, seed: int = 1) -> Partition:
    """Prepares Mt-KaHyPar on the hypergraph whose nets are the tensors. It minimizes the time of all transfers.

    Args:
        vertices: the problem.
        seed: for Mt-KaHyPar.

    Returns:
        A function that runs it with weights of vertices and shares of devices.

    Raises:
        ImportError: mtkahypar is not installed.
    """
    import mtkahypar

    initialized = _initialized()
    tensors = vertices.problem.tensors
    ends = [
        [int(tensors.source[t]), *tensors.consumers[tensors.consumer_ptr[t] : tensors.consumer_ptr[t + 1]].tolist()]
        for t in range(len(tensors.source))
    ]

    def partition(vertex_weights: NDArray[np.int64], share: NDArray[np.float64]) -> NDArray[np.integer]:
        context = initialized.context_from_preset(mtkahypar.PresetType.DEFAULT)
        context.set_partitioning_parameters(len(share), IMBALANCE, mtkahypar.Objective.KM1)
        context.logging = False
        mtkahypar.set_seed(seed)
        most = np.ceil((1 + IMBALANCE) * np.maximum(share, 1e-4) * vertex_weights.sum()).astype(int)
        context.set_individual_target_block_weights((most + int(vertex_weights.max())).tolist())
        graph = initialized.create_hypergraph(
            context,
            vertices.problem.group_count,
            len(ends),
            ends,
            vertex_weights.tolist(),
            vertices.tensor_weight.tolist(),
        )
        return np.asarray(graph.partition(context).get_partition())

    return partition


@cache
def _initialized() -> Any:
    """Mt-KaHyPar's library with one thread; it can be initialized only once."""
    import mtkahypar

    return mtkahypar.initialize(1)  # thread


PARTITIONERS: dict[str, tuple[str, Callable[[Vertices, int], Partition]]] = {
    "METIS": ("pymetis", metis),
    "Mt-KaHyPar": ("mtkahypar", mt_kahypar),
}
"""Package and function of each partitioner, by name in tables."""


def installed() -> list[str]:
    """Names of the partitioners that can be used here."""
    return [name for name, (package, _) in PARTITIONERS.items() if importlib.util.find_spec(package)]


def partitioned(problem: PlacementProblem, name: str, seconds: float) -> Curve:
    """Makes partitions of one seed after the other, and improves the best by local search, until the time is over.

    Args:
        problem: the problem.
        name: key of `PARTITIONERS`.
        seconds: limit of processor time.

    Returns:
        All placements that were found, also those that are no better, with times since the call.
    """
    begin = time.process_time()
    curve: Curve = []
    found: list[tuple[float, bytes]] = []

    def used() -> float:
        return time.process_time() - begin

    def offer(placement: NDArray[np.uint8]) -> None:
        score = float(problem.evaluate(placement, most_work=MOST_WORK).score(problem.objective)[0])
        found.append((score, placement.tobytes()))
        curve.append((used(), score))

    for device in range(len(problem.devices)):
        offer(problem.where_supported(problem.single(device)))
    vertices = Vertices(problem)
    partition_of = PARTITIONERS[name][1]
    seed = 0
    while used() < seconds:
        seed += 1
        partition = partition_of(vertices, seed)
        for weights, share in vertices.targets():
            for placement in permuted(problem, partition(weights, share)):
                offer(repaired(problem, placement, begin + seconds))
                if used() > seconds:
                    return curve
        refined_until = min(used() / (1 - REFINED_SHARE), seconds)
        best = np.stack([np.frombuffer(row, np.uint8) for _, row in sorted(found)[: len(problem.devices)]])
        while used() < refined_until:
            seed += 1
            best, _ = refine(problem, best, max_moves=MOVES, seed=seed)
            for placement in best:
                offer(placement)
    return curve


def repaired(problem: PlacementProblem, placement: NDArray[np.uint8], end: float) -> NDArray[np.uint8]:
    """Repairs a placement that HETERO could not run, if there is time.

    Repair may walk the graph once for each submodel, which takes minutes for hundreds of them. It is left out if that
    may take longer than the time that is left.

    Args:
        problem: the problem.
        placement: the placement, uint8 [groups].
        end: processor time (`time.process_time`) by which it has to end, s.

    Returns:
        The placement, uint8 [groups], repaired or as it was.
    """
    begin = time.process_time()
    evaluation = problem.evaluate(placement, most_work=MOST_WORK)
    now = time.process_time()
    if not evaluation.broken[0] or now + int(evaluation.submodels[0]) * (now - begin) > end:
        return placement
    return problem.repair(placement)
