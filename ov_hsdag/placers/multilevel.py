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

from ov_hsdag.devices.cpu import usable_cores
from ov_hsdag.placers.base import by_structure, distinct
from ov_hsdag.placers.contiguous import Contiguous
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

    # to search; results then depend on the machine. None: until independent searches agree (`search_until_agreed`), a
    # tenth of a second to two seconds on two cores, always with the same result
    seconds: float | None = None
    seed: int = 0  # of the random numbers
    threads: int = 1  # searches at the same time where `seconds` are given, each with a seed of its own
    settings: SearchSettings = "default"  # of the search, see `ov_hsdag.placers.settings`
    name: str = "search"

    def place(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        """See `Placer.place`. Never worse than a single device."""
        return _in_list_order(problem, by_structure(self._find, problem)[0])

    def elites(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        """The placement that `place` returns and the others that the search kept, each once, uint8 [elites, groups]."""
        found = by_structure(self._find, problem)
        return distinct(np.stack([_in_list_order(problem, placement) for placement in found]))

    def _find(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        """The best placement, then the search's elites, uint8 [count, groups]."""
        full, effort = crowded(problem), search_settings(self.settings)["effort"]
        if self.seconds is None:
            found = search_until_agreed(problem, seed=self.seed, settings=self.settings)
        else:
            found = search(
                problem,
                seconds=self.seconds,
                seed=self.seed,
                starts=Contiguous().place(problem),
                threads=self.threads,
                settings=self.settings,
            )
        best = found.placement
        if full:
            simple = np.stack([found.placement, Filling().place(problem)])
            starts = found.elites[: int(effort["refined_in_little_memory"])] if len(found.elites) else simple
            refined, scores = refine(problem, starts, threads=self.threads, seed=self.seed, settings=self.settings)
            best = refined[scores.argmin()] if scores.min() < found.score else best
        return np.concatenate([best[None], found.elites])


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
    of the two: `first_moves`. starts: placements that are tried as well, device numbers [count, groups]. threads: so
    many searches with seeds from `seed` on and the limits each; the first of the best ones counts.

    Raises ValueError: arrays of another shape, device numbers that the problem lacks, or a negative limit.
    """
    if seconds is None and max_moves is None:
        max_moves = first_moves(problem, settings)
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


def search_until_agreed(
    problem: PlacementProblem, *, seed: int = 0, threads: int | None = None, settings: SearchSettings = "default"
) -> Found:
    """Four independent searches, in turns that become longer, until one more would hardly gain anything.

    They end when a quarter of the difference between the two best scores, which is the expected gain of a fifth one,
    and what the last turn has gained, are 0.01% at most. Where they never agree they exchange what they have found, and
    end after 6 million moves each (the group "effort" of the settings). Graphs of more than 4,000 groups have one.

    seed: equal seeds give equal results on every machine. threads: at most; None: usable cores. settings: of the
    searches.
    """
    space, throughput = problem.search_space, problem.objective == "throughput"
    found = space.search_until_agreed(
        throughput,
        max_moves=first_moves(problem, settings),
        seed=seed,
        threads=threads or usable_cores(),
        starts=Contiguous().place(problem)[None],
        settings=search_settings(settings),
    )
    return Found(**found)


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


def first_moves(problem: PlacementProblem, settings: SearchSettings = "default") -> int:
    """Moves of the first turn of each search in `search_until_agreed`; of the only one in large graphs."""
    effort = search_settings(settings)["effort"]
    moves = effort["moves"] + effort["moves_per_group"] * problem.group_count
    if len(problem.devices) > 2:
        moves += min(effort["more_per_group"] * problem.group_count, effort["most_more"])
    if crowded(problem):
        moves = max(effort["moves_in_little_memory"], effort["times_in_little_memory"] * moves)
    if problem.group_count > effort["most_groups"]:
        moves *= effort["descents"]
    return int(moves)
