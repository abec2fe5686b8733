"""Experts apart from the rest of a decoder, as people place them by hand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.problem.experts_away import experts_away, fewest_away
from ov_hsdag.problem.problem import PlacementProblem


@dataclass(frozen=True)
class ExpertsApart:
    """Everything on the first device but the routed experts of the first layers, which are on another one."""

    device: int | None = None  # number of the other one; None: the last of the list
    layers: int | None = None  # how many layers; None: the fewest with which the devices' memory suffices, at least one
    name: str = "experts"

    def place(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        """See `Placer.place`. All layers where no number of them suffices, and where the model has fewer."""
        away = experts_away(problem, self.device)
        if self.layers is not None:
            return away[min(self.layers, len(away) - 1)]
        fewest = fewest_away(problem, away[1:])
        return away[-1] if fewest is None else away[1 + fewest]
