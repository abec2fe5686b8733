"""A placer that refines contiguous partitions of several orders by local search.

It starts from other placements than the multilevel search, and so finds other local optima. A sequence is the order in
which devices get the parts of a contiguous partition.
"""

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

# Where memory is crowded (some device cannot hold the whole model), few placements are feasible and good ones are far
# apart, so more of them are refined, each with more moves. Beyond a million moves, multilevel search makes better use
# of the time.
_CROWDED_REFINED = 8
_CROWDED_MOVES = 1_000_000

# Places where a topological order is cut in two: for each ordered pair of devices, and at most for all pairs together,
# which is what 8 devices (56 ordered pairs) have.
_CUTS_OF_A_PAIR = 64
_CUTS_OF_ALL_PAIRS = 8 * 7 * _CUTS_OF_A_PAIR

# For throughput, contiguous partitions of random orders are starts as well: of at most 24 orders, and of so few that
# number of orders times number of coarse groups is at most 1,000. Each order has partitions of two device sequences.
_RANDOM_ORDERS = 24
_GROUPS_OF_RANDOM_ORDERS = 1000
_SEQUENCES_OF_RANDOM_ORDERS = 2

# Shares of the memory limits that contiguous partitions may fill where nothing is feasible. Partitions only estimate
# their memory, so that some that fill the limits exceed them when they are simulated.
_FILLED_SHARES = (1.0, 0.85, 0.7, 0.5)

# Sequences of devices for each of the deterministic orders.
_SEQUENCES = 8

# Nodes that the simulator may visit for all starts together: number of starts times nodes of the graph. Of more starts,
# only the best by a rough estimate are simulated. Thousands of scattered groups make thousands of submodels, which take
# seconds to evaluate.
_SIMULATED_NODES = 200_000


@dataclass(frozen=True)
class Partitions:
    """Refines contiguous partitions of several orders by local search, and takes the best result.

    For throughput, random orders are used as well. Where no partition is feasible, further starts are cuts of a
    topological order in two for each pair of devices, and partitions that leave memory free.

    Attributes:
        refined: number of the best partitions that are refined; it becomes 8 where some device cannot hold the whole
            model. With 0, none is.
        seed: seed of the random orders and the refinement; the same problem always gets the same placement.
        name: name of the placer.
    """

    refined: int = 4
    seed: int = 0
    name: str = "partitions"

    def place(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        """Finds a placement, see `Placer.place`; it is never worse than a single device."""
        return by_structure(self._find, problem)[0]

    def _find(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        """The best refined start, uint8 [1, groups]; it is infeasible where no start could be made feasible."""
        threads = usable_cores()
        crowded_memory = crowded(problem)
        kept_count = max(_CROWDED_REFINED if crowded_memory and self.refined else self.refined, 1)
        starts = [problem.singles, _partitions(problem, problem.search_space.orders(), _SEQUENCES)]
        coarse_groups = int(problem.coarse.max()) + 1
        order_count = min(_GROUPS_OF_RANDOM_ORDERS // coarse_groups, _RANDOM_ORDERS)
        if problem.objective == "throughput" and order_count:
            # The deterministic orders come first; the random ones keep branches together, as these do.
            random_orders = problem.search_space.orders(order_count, self.seed)[-order_count:]
            starts.append(_partitions(problem, random_orders, _SEQUENCES_OF_RANDOM_ORDERS))
        candidates = ranked(problem, np.concatenate(starts), threads)[:kept_count]
        if problem.evaluate(candidates[0]).infeasible[0]:
            first_order = problem.search_space.orders()[:1]
            partitions = [_partitions(problem, first_order, _SEQUENCES, filled) for filled in _FILLED_SHARES]
            candidates = np.concatenate([candidates, _cut_in_two(problem), *partitions])
            # Repaired placements are ones that HETERO can run; they may still exceed memory limits.
            repaired = [problem.repair(candidate) for candidate in ranked(problem, candidates, threads)[:kept_count]]
            candidates = ranked(problem, np.stack(repaired), threads)
        if not self.refined:
            return candidates[:1]
        moves = max(_CROWDED_MOVES, default_moves(problem)) if crowded_memory else None
        refined, scores = refine(problem, candidates, threads=threads, seed=self.seed, max_moves=moves)
        return refined[[int(scores.argmin())]]


def _partitions(
    problem: PlacementProblem, orders: NDArray[np.int32], sequences: int, filled: float = 1.0
) -> NDArray[np.uint8]:
    """Finds the best contiguous partition of each order for each of the best sequences of devices.

    Args:
        problem: the problem.
        orders: topological orders of the groups, int32 [orders, groups].
        sequences: number of sequences of devices for each order.
        filled: share of the memory limits that partitions may fill.

    Returns:
        The partitions as placements, order by order, uint8 [partitions, groups].
    """
    throughput = problem.objective == "throughput"
    best = problem.search_space.partitions
    return np.concatenate([best(o, throughput, sequences=sequences, per_sequence=1, filled=filled) for o in orders])


def _cut_in_two(problem: PlacementProblem) -> NDArray[np.uint8]:
    """Makes placements that cut a topological order in two, for each ordered pair of devices.

    They are often feasible where few other placements are.

    Returns:
        The placements, uint8 [pairs * cuts, groups].
    """
    position = np.argsort(problem.search_space.orders()[0])
    singles = [problem.where_supported(single) for single in problem.singles]
    pairs = list(permutations(range(len(problem.devices)), 2))
    cut_count = min(_CUTS_OF_A_PAIR, _CUTS_OF_ALL_PAIRS // max(len(pairs), 1))
    cuts = np.unique(np.linspace(0, problem.group_count, cut_count + 2, dtype=np.int64)[1:-1])
    split = [np.where(position < cut, singles[first], singles[second]) for first, second in pairs for cut in cuts]
    return np.stack(split).astype(np.uint8)


def ranked(
    problem: PlacementProblem,
    placements: NDArray[np.uint8],
    threads: int,
    most_work: int | None = None,
    nodes: int = _SIMULATED_NODES,
) -> NDArray[np.uint8]:
    """Sorts placements: feasible ones by score, then those that only exceed memory limits, then those that cannot run.

    Placements that only exceed memory limits are sorted by their excess, the least first: refinement may bring them
    within the limits. The last ones break another rule (`Evaluation.broken`).

    Args:
        problem: the problem.
        placements: the placements, uint8 [count, groups]. The first ones, one for each device, are always evaluated:
            callers put the single devices there, as no result may be worse than these.
        threads: threads of the simulator.
        most_work: limit of the simulator's steps for one placement, see `PlacementProblem.evaluate`. A placement that
            takes more counts as one that HETERO cannot run. None for no limit.
        nodes: nodes that the simulator may visit for all placements together. Where there are too many placements for
            it, only the best by a rough estimate and the single devices are evaluated.

    Returns:
        The evaluated placements in that order, uint8 [at most count, groups].
    """
    most_evaluated = max(2, nodes // problem.graph.nodes)
    if len(placements) > most_evaluated:
        # Single devices come first, and what is returned must not be worse than they are.
        promising = np.argsort(_estimate(problem, placements), kind="stable")[:most_evaluated]
        placements = placements[np.union1d(promising, np.arange(len(problem.devices)))]
    result = problem.evaluate(placements, threads, most_work)
    excess = problem.memory_excess(result).sum(axis=1)
    return placements[np.lexsort((excess, result.broken, result.score(problem.objective)))]


def _estimate(problem: PlacementProblem, placements: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Estimates the objective of placements roughly, without the simulator.

    The estimate counts a transfer and a submodel for each consumer of a tensor that is on another device than the
    tensor's producer.

    Args:
        problem: the problem.
        placements: the placements, uint8 [batch, groups].

    Returns:
        The estimates, µs, float64 [batch].
    """
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
