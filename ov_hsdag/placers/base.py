"""What every placer is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.problem.problem import MOST_WORK, PlacementProblem


class Placer(Protocol):
    """Finds a placement for a problem."""

    @property
    def name(self) -> str:
        """Name in results and on the command line."""

    def place(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        """Device number of each legality group, uint8 [groups]. It may be infeasible: the simulator tells."""


def best_of(problem: PlacementProblem, placements: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """The first of the best placements by the simulator."""
    batch = np.stack(placements)
    best: NDArray[np.uint8] = batch[problem.evaluate(batch, most_work=MOST_WORK).score(problem.objective).argmin()]
    return best


WORSE_IN_ORDER = 0.0005
"""Share of the score by which HETERO's own order of the nodes may make a placement worse than the canonical order."""


def by_structure(find: Callable[[PlacementProblem], NDArray[np.uint8]], problem: PlacementProblem) -> NDArray[np.uint8]:
    """What a placer finds, whatever the numbers of the problem's nodes: placements of its canonical form.

    Numbers decide only where HETERO itself goes by them: which tensors are alive at the same time, and where it splits
    parts that wait for each other. Where these make the placement worse, the placer is asked once more, with the nodes
    in their own order, and the better placement counts.

    Args:
        find: placements of a problem, best first, uint8 [count, groups].
        problem: the problem, whose nodes have any topological order.

    Returns:
        The placements, uint8 [count, groups], the first one the best of them by the simulator.
    """
    canonical = problem.canonical
    if canonical.problem is problem:
        return find(problem)
    found = find(canonical.problem)
    expected = _score(canonical.problem, found[0])
    placements = _best_first(problem, canonical.as_given(found), expected)
    score = _score(problem, placements[0])
    if not np.isfinite(score) or score > expected * (1 + WORSE_IN_ORDER):
        return _best_first(problem, np.concatenate([placements, find(problem)]), 0.0)
    return placements


def _best_first(problem: PlacementProblem, placements: NDArray[np.uint8], expected: float) -> NDArray[np.uint8]:
    """The placements with the best one first, if the first one's score is not the expected one; [count, groups]."""
    if len(placements) == 1 or _score(problem, placements[0]) <= expected * (1 + WORSE_IN_ORDER):
        return placements
    scores = problem.evaluate(placements, most_work=MOST_WORK).score(problem.objective)
    best = int(scores.argmin())
    return np.concatenate([placements[[best]], np.delete(placements, best, axis=0)])


def _score(problem: PlacementProblem, placement: NDArray[np.uint8]) -> float:
    return float(problem.evaluate(placement, most_work=MOST_WORK).score(problem.objective)[0])


def distinct(placements: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Each placement once, in the order of first occurrence, uint8 [distinct, groups]."""
    first = {row.tobytes(): number for number, row in reversed(list(enumerate(placements)))}
    return placements[sorted(first.values())]
