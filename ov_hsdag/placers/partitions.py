"""Contiguous partitions of several orders, refined: starts that multilevel search does not have, and no learning."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.devices.cpu import usable_cores
from ov_hsdag.placers.base import by_structure
from ov_hsdag.placers.filling import crowded
from ov_hsdag.placers.refine import default_moves, refine
from ov_hsdag.problem.problem import PlacementProblem

# Where a device cannot hold the model, few placements are feasible, and good ones are far from each other: more of them
# are refined, for longer. (Still more moves earn more in multilevel search.)
_CROWDED_REFINED = 8
_CROWDED_MOVES = 1_000_000

# Cuts of a topological order for each two devices, and for all pairs together: those of eight devices.
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

# Nodes that the simulator may walk for all starts together: the best by a rough estimate are simulated. Thousands of
# scattered groups make thousands of submodels, which take seconds to tell apart.
_SIMULATED_NODES = 200_000


@dataclass(frozen=True)
class Partitions:
    """The best of contiguous partitions of several orders after local search from each.

    For throughput, random orders are tried as well; where no partition is feasible, so are cuts of a topological order
    for each two devices, and partitions that leave room in memory.
    """

    refined: int = 4  # how many of the best partitions are refined; 0: none is
    seed: int = 0  # of the orders and the refinement; the same problem always gets the same placement
    name: str = "partitions"

    def place(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        """See `Placer.place`. Never worse than a single device."""
        return by_structure(self._find, problem)[0]

    def _find(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        threads = usable_cores()
        full = crowded(problem)
        kept = max(_CROWDED_REFINED if full and self.refined else self.refined, 1)
        starts = [problem.singles, _partitions(problem, problem.search_space.orders(), _SEQUENCES)]
        orders = min(_ORDERED_GROUPS // (int(problem.coarse.max()) + 1), _ORDERS)
        if problem.objective == "throughput" and orders:
            branches = problem.search_space.orders(orders, self.seed)[-orders:]
            starts.append(_partitions(problem, branches, _ORDERED_SEQUENCES))
        candidates = ranked(problem, np.concatenate(starts), threads)[:kept]
        if problem.evaluate(candidates[0]).infeasible[0]:
            main = problem.search_space.orders()[:1]
            partitions = [_partitions(problem, main, _SEQUENCES, filled) for filled in _ROOMS]
            candidates = np.concatenate([candidates, _splits(problem), *partitions])
            repaired = [problem.repair(candidate) for candidate in ranked(problem, candidates, threads)[:kept]]
            candidates = ranked(problem, np.stack(repaired), threads)
        if not self.refined:
            return candidates[:1]
        moves = max(_CROWDED_MOVES, default_moves(problem)) if full else None
        refined, scores = refine(problem, candidates, threads=threads, seed=self.seed, max_moves=moves)
        return refined[[int(scores.argmin())]]


def _partitions(
    problem: PlacementProblem, orders: NDArray[np.int32], sequences: int, filled: float = 1.0
) -> NDArray[np.uint8]:
    """The best partition of each order [orders, groups] for each of the best sequences of devices; filled: share."""
    throughput = problem.objective == "throughput"
    best = problem.search_space.partitions
    return np.concatenate([best(o, throughput, sequences=sequences, per_sequence=1, filled=filled) for o in orders])


def _splits(problem: PlacementProblem) -> NDArray[np.uint8]:
    """A topological order cut in two, for each two devices: feasible where few other placements are."""
    place = np.argsort(problem.search_space.orders()[0])
    found = [problem.where_supported(single) for single in problem.singles]
    pairs = list(permutations(range(len(problem.devices)), 2))
    each = min(_CUTS, _SPLITS // max(len(pairs), 1))
    cuts = np.unique(np.linspace(0, problem.group_count, each + 2, dtype=np.int64)[1:-1])
    return np.stack([np.where(place < cut, found[a], found[b]) for a, b in pairs for cut in cuts]).astype(np.uint8)


def ranked(
    problem: PlacementProblem,
    placements: NDArray[np.uint8],
    threads: int,
    most_work: int | None = None,
    nodes: int = _SIMULATED_NODES,
) -> NDArray[np.uint8]:
    """Best first; then those that only lack memory, the least first, which refinement may bring within the limits.

    most_work: see `PlacementProblem.evaluate`; nodes: that the simulator may walk for all of them.
    """
    most = max(2, nodes // problem.graph.nodes)
    if len(placements) > most:
        # Single devices come first, and what is returned must not be worse than they are.
        promising = np.argsort(_estimate(problem, placements), kind="stable")[:most]
        placements = placements[np.union1d(promising, np.arange(len(problem.devices)))]
    result = problem.evaluate(placements, threads, most_work)
    excess = problem.memory_excess(result).sum(axis=1)
    return placements[np.lexsort((excess, result.broken, result.score(problem.objective)))]


def _estimate(problem: PlacementProblem, placements: NDArray[np.uint8]) -> NDArray[np.float64]:
    """The objective if each consumer of a tensor paid for its transfer and were a submodel, µs, float64 [batch]."""
    busy = np.zeros((len(placements), len(problem.devices)))
    for device in range(len(problem.devices)):
        busy[:, device] = np.where(placements == device, problem.group_us[:, device], 0.0).sum(axis=1)
    tensors = problem.tensors
    of_consumer = tensors.of_consumer
    start, end = placements[:, tensors.source[of_consumer]], placements[:, tensors.consumers]
    fixed = problem.transfer_us + problem.submodel_us
    us = fixed[start, end] + problem.transfer_us_per_byte[start, end] * tensors.bytes[of_consumer]
    transfers = np.where(start == end, 0.0, us).sum(axis=1)
    if problem.objective == "latency":
        return busy.sum(axis=1) + transfers
    return busy.max(axis=1) + transfers / len(problem.devices)
