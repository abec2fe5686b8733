"""What every placer is."""

from __future__ import annotations

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


def distinct(placements: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Each placement once, in the order of first occurrence, uint8 [distinct, groups]."""
    first = {row.tobytes(): number for number, row in reversed(list(enumerate(placements)))}
    return placements[sorted(first.values())]
