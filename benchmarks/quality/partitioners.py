"""Graph partitioners as rivals of the search: METIS and Mt-KaHyPar, with repair and local search, for so much time.

Both are optional (`pip install pymetis mtkahypar`). What they see of a problem, and how their parts become placements,
is in `research.baselines.metis`.
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
"""Placements on which HETERO's rule works longer count as infeasible, as in the search (cpp_ext/judge.cpp)."""

REFINED_SHARE = 0.5
"""Share of the time in which local search improves the best placements; the rest makes partitions of other seeds."""

MOVES = 50_000
"""Of local search before the clock is looked at: some milliseconds."""

Curve = list[tuple[float, float]]
"""When a better placement was found, s of processor time, and its score, µs."""


def mt_kahypar(vertices: Vertices, seed: int = 1) -> Partition:
    """Mt-KaHyPar on the hypergraph whose nets are the tensors: what it minimizes is the time of all transfers.

    Raises ImportError: mtkahypar is not installed.
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
    import mtkahypar

    return mtkahypar.initialize(1)  # thread


PARTITIONERS: dict[str, tuple[str, Callable[[Vertices, int], Partition]]] = {
    "METIS": ("pymetis", metis),
    "Mt-KaHyPar": ("mtkahypar", mt_kahypar),
}
"""Packages and functions of the partitioners, by what tables call them."""


def installed() -> list[str]:
    """Names of the partitioners that can be used here."""
    return [name for name, (package, _) in PARTITIONERS.items() if importlib.util.find_spec(package)]


def partitioned(problem: PlacementProblem, name: str, seconds: float) -> Curve:
    """Partitions of one seed after the other, and local search from the best ones, until the time is over.

    Args:
        problem: that is placed.
        name: of the partitioner.
        seconds: of processor time.

    Returns:
        All that was found, with times since the beginning.
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
    """The placement, repaired where HETERO could not run it.

    Repair may walk the graph for each submodel, minutes where there are hundreds: it is left out where that may take
    longer than there is time.

    Args:
        problem: of the placement.
        placement: uint8 [groups].
        end: processor time, s, until which there is time.
    """
    begin = time.process_time()
    evaluation = problem.evaluate(placement, most_work=MOST_WORK)
    now = time.process_time()
    if not evaluation.broken[0] or now + int(evaluation.submodels[0]) * (now - begin) > end:
        return placement
    return problem.repair(placement)
