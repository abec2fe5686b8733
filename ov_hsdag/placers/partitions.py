"""Contiguous partitions of several orders, refined: starts that multilevel search does not have, and no learning."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.devices.cpu import usable_cores
from ov_hsdag.placers.contiguous import CoarsePartitions
from ov_hsdag.placers.filling import crowded
from ov_hsdag.placers.refine import default_moves, refine
from ov_hsdag.problem.problem import PlacementProblem, topological_groups

# Where a device cannot hold the model, few placements are feasible, and good ones are far from each other: more of them
# are refined, for longer. (Still more moves earn more in multilevel search.)
_CROWDED_REFINED = 8
_CROWDED_MOVES = 1_000_000

# Cuts of the topological order for each two devices, and for all pairs together: those of eight devices.
_CUTS = 64
_SPLITS = 8 * 7 * _CUTS

# For throughput, contiguous partitions of random orders are tried besides other starts: of so many orders,
# with at most so many coarse groups in all, and of so many sequences of devices each.
_ORDERS = 24
_ORDERED_GROUPS = 1000
_ORDERED_SEQUENCES = 2

# Shares of the memory that contiguous partitions may fill, by estimates of what they need; and sequences of devices.
_ROOMS = (1.0, 0.85, 0.7, 0.5)
_SEQUENCES = 8

# Coarse groups; above, partitions of random orders take long.
_LARGE = 4000

# Nodes that the simulator may walk for all starts together (but so many starts at least): the best by a rough estimate
# are simulated. Thousands of scattered groups make thousands of submodels, which take seconds to tell apart.
_SIMULATED_NODES = 200_000
_SIMULATED = 8


@dataclass(frozen=True)
class Partitions:
    """The best of contiguous partitions of several orders after local search from each.

    Attributes:
        refined: how many of the best partitions are refined.
        seed: of the orders and the refinement; the same problem always gets the same placement.
    """

    refined: int = 4
    seed: int = 0
    name: str = "partitions"

    def place(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        """See `Placer.place`. Never worse than a single device."""
        threads = usable_cores()
        partitions = CoarsePartitions.of(problem, threads)
        singles = np.stack([problem.single(device) for device in range(len(problem.devices))])
        starts = np.concatenate([singles, partitions.placements((1.0,), _SEQUENCES)])
        return refined_best(problem, starts, partitions, self.refined, self.seed, threads)


def refined_best(
    problem: PlacementProblem,
    starts: NDArray[np.uint8],
    partitions: CoarsePartitions,
    count: int,
    seed: int,
    threads: int,
) -> NDArray[np.uint8]:
    """Returns the best placement after local search from the best of some starts, uint8 [groups].

    Contiguous partitions of random orders are starts as well, for throughput; where no start is feasible, so are cuts
    of the topological order for each two devices, and partitions that leave room in memory.

    Args:
        problem: to place.
        starts: single devices first, uint8 [starts, groups].
        partitions: of the problem.
        count: how many of the best starts are refined; 0: none is, and the best start is returned.
        seed: of the orders and the refinement.
        threads: of the simulator and of the refinement.
    """
    full = crowded(problem)
    kept = max(_CROWDED_REFINED if full and count else count, 1)
    if problem.objective == "throughput" and partitions.view.size <= _LARGE:
        orders = min(_ORDERED_GROUPS // partitions.view.size, _ORDERS)
        starts = np.concatenate([starts, partitions.placements((1.0,), _ORDERED_SEQUENCES, orders, seed)])
    candidates = ranked(problem, starts, threads)[:kept]
    if problem.evaluate(candidates[0]).infeasible[0]:
        candidates = np.concatenate([candidates, _splits(problem), partitions.placements(_ROOMS, _SEQUENCES)])
        repaired = [problem.repair(candidate) for candidate in ranked(problem, candidates, threads)[:kept]]
        candidates = ranked(problem, np.stack(repaired), threads)
    if not count:
        return candidates[0]
    moves = max(_CROWDED_MOVES, default_moves(problem)) if full else None
    refined, scores = refine(problem, candidates, threads=threads, seed=seed, max_moves=moves)
    return np.asarray(refined[int(scores.argmin())])


def _splits(problem: PlacementProblem) -> NDArray[np.uint8]:
    """The topological order cut in two, for each two devices: feasible where few other placements are."""
    order = topological_groups(problem)
    place = np.empty(problem.group_count, np.int64)
    place[order] = np.arange(problem.group_count)
    found = [problem.where_supported(problem.single(device)) for device in range(len(problem.devices))]
    pairs = list(permutations(range(len(problem.devices)), 2))
    each = min(_CUTS, _SPLITS // max(len(pairs), 1))
    cuts = np.unique(np.linspace(0, problem.group_count, each + 2, dtype=np.int64)[1:-1])
    return np.stack([np.where(place < cut, found[a], found[b]) for a, b in pairs for cut in cuts]).astype(np.uint8)


def ranked(
    problem: PlacementProblem, placements: NDArray[np.uint8], threads: int, most_work: int | None = None
) -> NDArray[np.uint8]:
    """Best first; then those that only lack memory, the least first, which refinement may bring within the limits.

    most_work: see `PlacementProblem.evaluate`.
    """
    most = max(_SIMULATED, _SIMULATED_NODES // problem.graph.nodes)
    if len(placements) > most:
        # Single devices come first, and what is returned must not be worse than they are.
        promising = np.argsort(_estimate(problem, placements), kind="stable")[:most]
        placements = placements[np.union1d(promising, np.arange(len(problem.devices)))]
    result = problem.evaluate(placements, threads, most_work)
    excess = np.maximum(result.memory_bytes - problem.memory_limits, 0).sum(axis=1)
    return placements[np.lexsort((excess, result.broken, result.score(problem.objective)))]


def _estimate(problem: PlacementProblem, placements: NDArray[np.uint8]) -> NDArray[np.float64]:
    """The objective if each consumer of a tensor paid for its transfer and were a submodel, µs, float64 [batch]."""
    busy = np.zeros((len(placements), len(problem.devices)))
    for device in range(len(problem.devices)):
        busy[:, device] = np.where(placements == device, problem.group_us[:, device], 0.0).sum(axis=1)
    tensors = problem.tensors
    of_consumer = np.repeat(np.arange(len(tensors)), np.diff(tensors.consumer_ptr))
    start, end = placements[:, tensors.source[of_consumer]], placements[:, tensors.consumers]
    fixed = problem.transfer_us + problem.submodel_us
    us = fixed[start, end] + problem.transfer_us_per_byte[start, end] * tensors.bytes[of_consumer]
    transfers = np.where(start == end, 0.0, us).sum(axis=1)
    if problem.objective == "latency":
        return busy.sum(axis=1) + transfers
    return busy.max(axis=1) + transfers / len(problem.devices)
