"""Local refinement of placements by the native core (cpp_ext/refine.hpp).

Moves after Fiduccia and Mattheyses (DAC 1982) on coarse groups and on colocation groups, accepted by the simulator,
then iterated local search from perturbed placements.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.placers.settings import SearchSettings
from ov_hsdag.problem.problem import PlacementProblem

# Moves that are tried by default: about 15 ms on one core for a model of 500 groups. Larger models get more in
# proportion, since every pass over their groups takes more.
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
    """Improves placements, each on its own and then the best of them together. None is worse than it was.

    placements: device numbers, [batch, groups] or one placement [groups]. max_moves: tried for the whole batch. None:
    `default_moves`. 0: no limit; each is improved until no step of the search improves it, and none is perturbed.
    budget_ms: limit of time, ms; 0 for none. With a limit, results depend on the machine; without, equal arguments give
    equal results. seed: of the perturbations. settings: groups "moves" and "local" of `search_settings`.

    Returns placements, uint8 [batch, groups], and their scores (`PlacementProblem.scores`), µs, float64 [batch]. Raises
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
    """Moves that suffice for a few good placements of a problem."""
    return max(_MOVES, _MOVES_PER_GROUP * problem.group_count)
