"""Multilevel search by the native core (cpp_ext/multilevel.hpp), the strongest placer without learning.

A cycle contracts edges until the graph has some hundred nodes, places this coarsest graph, and refines each finer graph
by moves after Fiduccia and Mattheyses (DAC 1982). The simulator scores the results. Further cycles start from the
placements that were found before. A move gives one node of such a graph to another device; searches are limited by the
number of moves that they try. The elites of a search are the best feasible placements that it met.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.devices.cpu import usable_cores
from ov_hsdag.placers.base import Placer, by_structure, distinct
from ov_hsdag.placers.contiguous import Contiguous
from ov_hsdag.placers.filling import Filling, crowded
from ov_hsdag.placers.mincut import MinCut
from ov_hsdag.placers.refine import refine
from ov_hsdag.placers.settings import SearchSettings, search_settings
from ov_hsdag.problem.problem import PlacementProblem, topological_groups


@dataclass(frozen=True)
class Multilevel:
    """Multilevel search from single devices, contiguous partitions and, on two devices, minimum cuts.

    Where a device cannot hold the model, the best placements are refined by local search with the simulator. Memory
    limits count live tensors, which moves on coarse graphs ignore.

    Attributes:
        seconds: time of the search, seconds; results then depend on the machine. By default the search ends when
            independent searches agree or have made a fixed number of moves (`search_until_agreed`), always with the
            same result.
        seed: seed of the random numbers.
        threads: number of simultaneous searches where `seconds` is given, each with a seed of its own.
        settings: settings of the search, see `ov_hsdag.placers.settings`.
        name: name of the placer.
    """

    seconds: float | None = None
    seed: int = 0
    threads: int = 1
    settings: SearchSettings = "default"
    name: str = "search"

    def place(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        """Finds a placement, see `Placer.place`; it is never worse than a single device."""
        return _in_list_order(problem, by_structure(self._find, problem)[0])

    def elites(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        """Runs the search of `place`, and returns all good placements that it met.

        Returns:
            First the placement of `place`, then the elites, without duplicates, uint8 [placements, groups].
        """
        found = by_structure(self._find, problem)
        return distinct(np.stack([_in_list_order(problem, placement) for placement in found]))

    def _find(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        """Searches, and refines the elites where some device cannot hold the model.

        Returns:
            The best placement, then the elites of the search, uint8 [1 + elites, groups].
        """
        crowded_memory, effort = crowded(problem), search_settings(self.settings)["effort"]
        if self.seconds is None:
            result = search_until_agreed(problem, seed=self.seed, settings=self.settings)
        else:
            result = search(
                problem,
                seconds=self.seconds,
                seed=self.seed,
                starts=_starts(problem),
                threads=self.threads,
                settings=self.settings,
            )
        best = result.placement
        if crowded_memory:
            simple = np.stack([result.placement, Filling().place(problem)])
            starts = result.elites[: int(effort["refined_in_little_memory"])] if len(result.elites) else simple
            refined, scores = refine(problem, starts, threads=self.threads, seed=self.seed, settings=self.settings)
            best = refined[scores.argmin()] if scores.min() < result.score else best
        return np.concatenate([best[None], result.elites])


@dataclass(frozen=True, eq=False)
class Found:
    """The result of a search.

    Attributes:
        placement: the best placement, uint8 [groups].
        score: its score, see `PlacementProblem.scores`, µs, inf where nothing feasible was found.
        progress: time of each improvement, ms since the beginning, and its score, µs; float64 [improvements, 2].
        cycles: number of cycles from the coarsest to the finest graph.
        elites: the best feasible placements that were found, the best first, uint8 [count, groups].
        elite_scores: their scores, µs, float64 [count].
        phases: time spent on "coarsen" (contracting edges), "place" (partitions, single devices, the coarsest graphs)
            and "refine" (finer graphs, local search), ms.
    """

    placement: NDArray[np.uint8]
    score: float
    progress: NDArray[np.float64]
    cycles: int
    elites: NDArray[np.uint8]
    elite_scores: NDArray[np.float64]
    phases: dict[str, float]


def search(
    problem: PlacementProblem,
    *,
    seconds: float | None = None,
    max_moves: int | None = None,
    seed: int = 0,
    starts: NDArray[np.integer[Any]] | None = None,
    threads: int = 1,
    processor_time: bool = False,
    settings: SearchSettings = "default",
) -> Found:
    """Searches for the placement with the least objective.

    Args:
        problem: the problem.
        seconds: limit of time, seconds; results then depend on the machine. Without it, equal arguments give equal
            results.
        max_moves: limit of moves; where neither limit is given, `first_moves`.
        seed: seed of the random numbers.
        starts: placements to start from as well, device numbers, uint8 [count, groups].
        threads: number of simultaneous searches with seeds from `seed` on, each with the given limits; the first of
            the best results counts.
        processor_time: whether `seconds`, `Found.progress` and `Found.phases` are processor time of the process rather
            than wall time.
        settings: settings of the search, see `ov_hsdag.placers.settings`.

    Returns:
        The best placement, and how it was found.

    Raises:
        ValueError: arrays of another shape, unknown device numbers, or a negative limit.
    """
    if seconds is None and max_moves is None:
        max_moves = first_moves(problem, settings)
    space = problem.search_space

    def search_once(number: int) -> Found:
        """Runs one search; `number` is its seed."""
        return Found(
            **space.search(
                problem.objective == "throughput",
                max_moves=max_moves or 0,
                budget_ms=1e3 * (seconds or 0.0),
                seed=number,
                starts=None if starts is None else np.atleast_2d(np.asarray(starts, np.uint8)),
                processor_time=processor_time,
                settings=settings,
            )
        )

    if threads <= 1:
        return search_once(seed)
    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(search_once, range(seed, seed + threads)))
    return min(found, key=lambda result: result.score)


def search_until_agreed(
    problem: PlacementProblem, *, seed: int = 0, threads: int | None = None, settings: SearchSettings = "default"
) -> Found:
    """Runs four independent searches in turns until another search would hardly gain anything.

    In each turn every search tries the same number of moves, as many as in all turns before it. The searches end when
    two numbers are 0.01% at most: the gain of the last turn, and a quarter of the difference between the best score and
    the third best, which is the most that a fifth search is expected to gain. Where they do not agree they exchange
    placements, and end after 8 million moves each, or after 16 million where half of these leave the second number at
    0.5% or more (the group "effort" of the settings). Graphs of more than 4,000 groups have two searches of one turn,
    which exchange placements and have a second turn where they differ by 1% or more, or where a hard problem is still
    where the first turn began, and up to three more while nothing is feasible
    (docs/contributing/decisions/0012-searches-end-when-they-agree.md).

    Args:
        problem: the problem.
        seed: seed of the random numbers; equal seeds give equal results on every machine.
        threads: largest number of threads; by default that of the usable cores.
        settings: settings of the searches, see `ov_hsdag.placers.settings`.

    Returns:
        The best placement, and how it was found.
    """
    space, throughput = problem.search_space, problem.objective == "throughput"
    result = space.search_until_agreed(
        throughput,
        max_moves=first_moves(problem, settings),
        seed=seed,
        threads=threads or usable_cores(),
        starts=_starts(problem),
        settings=search_settings(settings),
    )
    return Found(**result)


def _starts(problem: PlacementProblem) -> NDArray[np.uint8]:
    """Returns the placements of other placers from which the search starts, without duplicates, uint8 [count, groups].

    Minimum cuts are exact on two devices. On more devices, the search finds by itself what they find. A cut needs a
    device for each group.
    """
    cuts = len(problem.devices) == 2 and problem.group_supported.any(axis=1).all()
    placers: list[Placer] = [Contiguous(), *([MinCut()] if cuts else [])]
    return distinct(np.stack([placer.place(problem) for placer in placers]))


def _in_list_order(problem: PlacementProblem, placement: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Exchanges devices of one kind so that their first groups come in the order of the device list.

    The costs do not change: devices are of one kind where every exchange of them leaves all costs as they are
    (`PlacementProblem.kinds`).

    Args:
        problem: the problem.
        placement: the placement, uint8 [groups].

    Returns:
        The placement after the exchange, uint8 [groups].
    """
    device = np.arange(len(problem.devices))
    used, first = np.unique(placement[topological_groups(problem)], return_index=True)
    begins = np.full(len(device), len(placement))
    begins[used] = first
    renamed = device.copy()
    for number in np.unique(problem.kinds):
        members = device[problem.kinds == number]
        renamed[members[np.argsort(begins[members], kind="stable")]] = members
    return renamed[placement].astype(np.uint8)


def first_moves(problem: PlacementProblem, settings: SearchSettings = "default") -> int:
    """Number of moves of each search in the first turn of `search_until_agreed`.

    It follows from the numbers of groups and devices, and whether memory is short (cpp_ext/settings.hpp, `Effort`). For
    a graph of more than `most_groups` groups, which has fewer searches, it is the number of moves of eight first turns,
    or of four where memory is short.
    """
    effort = search_settings(settings)["effort"]
    moves = effort["moves"] + effort["moves_per_group"] * problem.group_count
    if len(problem.devices) > 2:
        moves += min(effort["more_per_group"] * problem.group_count, effort["most_more"])
    short = crowded(problem)
    if short:
        moves = max(effort["moves_in_little_memory"], effort["times_in_little_memory"] * moves)
    if problem.group_count > effort["most_groups"]:
        moves *= effort["large_turn"] / (2 if short else 1)
    return int(moves)
