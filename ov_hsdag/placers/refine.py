"""Local refinement of placements by the native core (cpp_ext/refine.hpp).

Moves after Fiduccia and Mattheyses (DAC 1982) on coarse groups and on colocation groups improve a placement; the
simulator accepts or rejects them. Iterated local search from perturbed placements follows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.placers.settings import SearchSettings
from ov_hsdag.problem.problem import PlacementProblem

# Default number of moves, which take about 15 ms on one core for a model of 500 groups. Larger models get more moves in
# proportion to their groups, as every pass over the groups takes more.
_MOVES = 200_000
_MOVES_PER_GROUP = 200


def refine(
    problem: PlacementProblem,
    placements: NDArray[np.integer[Any]],
    *,
    max_moves: int | None = None,
    budget_ms: float = 0.0,
    threads: int = 1,
    seed: int = 0,
    settings: SearchSettings = "default",
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Improves placements, each on its own and then the best of them together; none becomes worse.

    Args:
        problem: the problem.
        placements: device numbers, [batch, groups] or one placement [groups].
        max_moves: number of moves for the whole batch; by default `default_moves`. With 0 there is no limit: each
            placement is improved until no step of the search improves it, and none is perturbed.
        budget_ms: limit of time, ms; 0 for none. Results with a limit depend on the machine; without one, equal
            arguments give equal results.
        threads: number of threads.
        seed: seed of the perturbations.
        settings: settings of the search, see `search_settings`; the groups "moves" and "local" count.

    Returns:
        The placements, uint8 [batch, groups], and their scores (`PlacementProblem.scores`), µs, float64 [batch].

    Raises:
        ValueError: placements of another shape, unknown device numbers, or a negative budget.
    """
    batch = np.atleast_2d(np.asarray(placements, np.uint8))
    if max_moves is None:
        max_moves = default_moves(problem)
    return problem.search_space.refine(
        batch,
        problem.objective == "throughput",
        max_moves=max_moves,
        budget_ms=budget_ms,
        threads=threads,
        seed=seed,
        settings=settings,
    )


def default_moves(problem: PlacementProblem) -> int:
    """Number of moves that suffice to refine a few good placements of a problem."""
    return max(_MOVES, _MOVES_PER_GROUP * problem.group_count)
