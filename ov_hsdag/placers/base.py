"""The interface of placers, and functions that several of them share.

A placement is an array of device numbers, one for each co-location group, uint8 [groups]. Its score is the objective
that the simulator predicts for it, in µs: lower is better, and inf means that the placement is infeasible.
"""

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
        """Finds a placement: the device number of each colocation group, uint8 [groups].

        The placement may be infeasible; the caller checks it with the simulator.
        """


def best_of(problem: PlacementProblem, placements: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Simulates placements and returns the one with the best score; if several are equally good, the first of these.

    Args:
        problem: the problem.
        placements: the placements, uint8 [groups] each, at least one.

    Returns:
        The best placement, uint8 [groups].
    """
    batch = np.stack(placements)
    best: NDArray[np.uint8] = batch[problem.evaluate(batch, most_work=MOST_WORK).score(problem.objective).argmin()]
    return best


WORSE_IN_ORDER = 0.0005
"""Share by which a placement's score may be worse in the given order of the nodes than in the canonical order.

Beyond it, a placer runs a second time, on the nodes in their given order."""


def by_structure(find: Callable[[PlacementProblem], NDArray[np.uint8]], problem: PlacementProblem) -> NDArray[np.uint8]:
    """Runs a placer on the canonical form of a problem, so that its result does not depend on how nodes are numbered.

    The canonical form is the same problem with its nodes in an order that follows from the structure of the graph
    alone (`PlacementProblem.canonical`). HETERO itself depends on the order of the nodes in two respects: which tensors
    are alive at the same time, and where it splits parts that wait for each other. Where the given order makes the
    placement worse than in the canonical form, the placer runs a second time with the nodes in their given order, and
    the better placement counts.

    Args:
        find: the placer: takes a problem and returns placements of it, best first, uint8 [count, groups].
        problem: the problem; its nodes are in any topological order.

    Returns:
        The placements, uint8 [count, groups]; the first is the best by the simulator.
    """
    canonical = problem.canonical
    if canonical.problem is problem:
        return find(problem)
    canonical_placements = find(canonical.problem)
    expected = _score(canonical.problem, canonical_placements[0])
    placements = _best_first(problem, canonical.as_given(canonical_placements), expected)
    score = _score(problem, placements[0])
    if not np.isfinite(score) or score > expected * (1 + WORSE_IN_ORDER):
        return _best_first(problem, np.concatenate([placements, find(problem)]), 0.0)
    return placements


def placed_once(
    name: str, find: Callable[[PlacementProblem], NDArray[np.uint8]], problem: PlacementProblem
) -> NDArray[np.uint8]:
    """Runs a placer that draws nothing at random like `by_structure`, once for each problem.

    The search begins with its placement. It works on the canonical form, whose placement is kept as well.

    Args:
        name: the placer's name, under which `PlacementProblem.found` keeps the placements.
        find: the placer: takes a problem and returns its placement, uint8 [groups].
        problem: the problem; its nodes are in any topological order.

    Returns:
        The placement, uint8 [groups].
    """

    def kept(form: PlacementProblem) -> NDArray[np.uint8]:
        """The placement for one order of the nodes, uint8 [1, groups]."""
        if name not in form.found:
            form.found[name] = find(form)
        return form.found[name][None]

    if name not in problem.found:
        problem.found[name] = by_structure(kept, problem)[0]
    return problem.found[name]


def _best_first(problem: PlacementProblem, placements: NDArray[np.uint8], expected: float) -> NDArray[np.uint8]:
    """Moves the placement with the best score to the front.

    If the first placement scores as well as expected (within `WORSE_IN_ORDER`), the others are not simulated and the
    order stays.

    Args:
        problem: the problem.
        placements: the placements, uint8 [count, groups].
        expected: expected score of the first one, µs; 0 to simulate all placements in any case.

    Returns:
        The same placements, uint8 [count, groups].
    """
    if len(placements) == 1 or _score(problem, placements[0]) <= expected * (1 + WORSE_IN_ORDER):
        return placements
    scores = problem.evaluate(placements, most_work=MOST_WORK).score(problem.objective)
    best = int(scores.argmin())
    return np.concatenate([placements[[best]], np.delete(placements, best, axis=0)])


def _score(problem: PlacementProblem, placement: NDArray[np.uint8]) -> float:
    """The score of one placement, µs; inf where it is infeasible."""
    return float(problem.evaluate(placement, most_work=MOST_WORK).score(problem.objective)[0])


def distinct(placements: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Removes duplicates from placements and keeps the order of first occurrence, uint8 [distinct, groups]."""
    first = {row.tobytes(): number for number, row in reversed(list(enumerate(placements)))}
    return placements[sorted(first.values())]
