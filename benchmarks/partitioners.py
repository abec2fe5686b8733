"""Graph partitioners as rivals of the search: METIS and Mt-KaHyPar, with repair, and with local search afterwards.

Both are optional (`pip install pymetis mtkahypar`). What they see of a problem, and how their parts become placements:
`research.baselines.metis`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.placers.refine import refine
from ov_hsdag.problem.problem import PlacementProblem
from research.baselines.metis import IMBALANCE, Partition, Vertices, metis, orders

# As in cpp_ext/judge.cpp: placements on which HETERO's rule works longer count as infeasible, as in the search.
_MOST_WORK = 16_000_000

Curve = list[tuple[float, float]]
"""When a better placement was found, s of processor time, and its score, µs."""


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
        context.set_partitioning_parameters(len(share), IMBALANCE, mtkahypar.Objective.KM1)
        context.logging = False
        mtkahypar.set_seed(1)
        most = np.ceil((1 + IMBALANCE) * np.maximum(share, 1e-4) * vertex_weights.sum()).astype(int)
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
    curve.append((time.process_time() - begin, min(score(problem, start) for start in starts)))
    for weights, share in vertices.targets():
        part = partition(weights, share)
        best = np.inf
        chosen = None
        for placement in orders(problem, part, lambda placement: repaired(problem, placement, begin + seconds)):
            us = score(problem, placement)
            if us < best or chosen is None:
                best, chosen = us, placement
                curve.append((time.process_time() - begin, us))
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


def score(problem: PlacementProblem, placement: NDArray[np.uint8]) -> float:
    """What the simulator says, µs; inf also where HETERO's rule works longer on it than in any search."""
    return float(problem.evaluate(placement, most_work=_MOST_WORK).score(problem.objective)[0])


def repaired(problem: PlacementProblem, placement: NDArray[np.uint8], end: float) -> NDArray[np.uint8]:
    """The placement, repaired where HETERO could not run it.

    Repair may walk the graph for each submodel, minutes where there are hundreds: it is left out where that may take
    longer than there is time.

    Args:
        problem: of the placement.
        placement: uint8 [groups].
        end: processor time, s, until which there is time.
    """
    began = time.process_time()
    evaluation = problem.evaluate(placement, most_work=_MOST_WORK)
    now = time.process_time()
    if not evaluation.broken[0] or now + int(evaluation.submodels[0]) * (now - began) > end:
        return placement
    return problem.repair(placement)
