"""Multilevel search by the native core (cpp_ext/multilevel.hpp): the best placement that is found without learning.

Edges are contracted until some hundred items are left, the coarsest graph is placed, and each finer one is refined by
moves after Fiduccia and Mattheyses (DAC 1982); the simulator judges. Further cycles begin with what was found.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.placers.base import distinct
from ov_hsdag.placers.filling import Filling, crowded
from ov_hsdag.placers.refine import refine
from ov_hsdag.placers.settings import SearchSettings, search_settings
from ov_hsdag.problem.problem import PlacementProblem, topological_groups


@dataclass(frozen=True)
class Multilevel:
    """Multilevel search from single devices and contiguous partitions.

    Where a device cannot hold the model, the best of what was found go through local search by the simulator: live
    tensors count for limits, and moves on coarse graphs know nothing of them.
    """

    # to search; results then depend on the machine. None: as many moves as are tried in one to three tenths of a second
    # for models of a thousand groups (half a second where memory is short), always with the same result
    seconds: float | None = None
    seed: int = 0  # of the random numbers
    threads: int = 1  # searches at the same time, each with a seed of its own
    settings: SearchSettings = "default"  # of the search, see `ov_hsdag.placers.settings`
    name: str = "search"

    def place(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        """See `Placer.place`. Never worse than a single device."""
        best, _ = self._found(problem)
        return _in_list_order(problem, best)

    def elites(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        """The placement that `place` returns and the others that the search kept, each once, uint8 [elites, groups]."""
        best, others = self._found(problem)
        return distinct(np.stack([_in_list_order(problem, placement) for placement in (best, *others)]))

    def _found(self, problem: PlacementProblem) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """The best placement, and the search's elites."""
        full, effort = crowded(problem), search_settings(self.settings)["effort"]
        most: float | None = None
        if self.seconds is None:
            most = default_moves(problem, self.settings)
            if full:
                most = max(effort["moves_in_little_memory"], effort["times_in_little_memory"] * most)
        found = search(
            problem,
            seconds=self.seconds,
            max_moves=None if most is None else int(most),
            seed=self.seed,
            threads=self.threads,
            settings=self.settings,
        )
        best = found.placement
        if full:
            simple = np.stack([found.placement, Filling().place(problem)])
            starts = found.elites[: int(effort["refined_in_little_memory"])] if len(found.elites) else simple
            refined, scores = refine(problem, starts, threads=self.threads, seed=self.seed, settings=self.settings)
            best = refined[scores.argmin()] if scores.min() < found.score else best
        return best, found.elites


@dataclass(frozen=True, eq=False)
class Found:
    """What a search found."""

    placement: NDArray[np.uint8]  # uint8 [groups]
    score: float  # as `PlacementProblem.scores` gives it, µs, inf where nothing feasible was found
    # when a better placement was found, ms since the beginning, and its score, µs; float64 [improvements, 2]
    progress: NDArray[np.float64]
    cycles: int  # how often the search went from the coarsest to the finest graph
    elites: NDArray[np.uint8]  # the best feasible placements that were found, the best first, uint8 [count, groups]
    elite_scores: NDArray[np.float64]  # their scores, µs, float64 [count]
    # ms spent on "coarsen" (contracting edges), "place" (partitions, single devices, the coarsest graphs) and "refine"
    # (finer graphs, local search)
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
    """Searches for the best placement of a problem, whose objective is minimized.

    seconds: limit of time; with it, results depend on the machine; of the process with `processor_time`, and so are
    `Found.progress` and `Found.phases`. Without, equal arguments give equal results. max_moves: limit of moves. Neither
    of the two: `default_moves`. starts: placements that are tried as well, device numbers [count, groups]. threads: so
    many searches with seeds from `seed` on and the limits each; the first of the best ones counts.

    Raises ValueError: arrays of another shape, device numbers that the problem lacks, or a negative limit.
    """
    if seconds is None and max_moves is None:
        max_moves = default_moves(problem, settings)
    space = problem.search_space

    def one(number: int) -> Found:
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
        return one(seed)
    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(one, range(seed, seed + threads)))
    return min(found, key=lambda result: result.score)


def _in_list_order(problem: PlacementProblem, placement: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The placement in which equal devices begin in the order of the list: which of them does what is the same."""
    device = np.arange(len(problem.devices))
    used, first = np.unique(placement[topological_groups(problem)], return_index=True)
    begins = np.full(len(device), len(placement))
    begins[used] = first
    renamed = device.copy()
    for number in np.unique(problem.kinds):
        members = device[problem.kinds == number]
        renamed[members[np.argsort(begins[members], kind="stable")]] = members
    return renamed[placement].astype(np.uint8)


def default_moves(problem: PlacementProblem, settings: SearchSettings = "default") -> int:
    """Moves that are tried by default."""
    effort = search_settings(settings)["effort"]
    moves = effort["moves"] + effort["moves_per_group"] * problem.group_count
    if len(problem.devices) > 2:
        moves += min(effort["more_per_group"] * problem.group_count, effort["most_more"])
    return int(moves)
