"""A placer that puts routed experts of a decoder on another device than the rest, as people do by hand.

Routed experts are the feed-forward networks of a mixture of experts, of which a layer chooses a few for each token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.problem.experts_away import experts_away, fewest_away
from ov_hsdag.problem.problem import PlacementProblem


@dataclass(frozen=True)
class ExpertsApart:
    """Puts the routed experts of the first layers on one device, and everything else on the first device.

    Attributes:
        device: number of the experts' device; None for the last of the list.
        layers: number of layers whose experts move; None for the fewest with which the devices' memory suffices, at
            least one.
        name: name of the placer.
    """

    device: int | None = None
    layers: int | None = None
    name: str = "experts"

    def place(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        """Finds a placement, see `Placer.place`.

        The experts of all layers move where the model has fewer layers than `layers`. They also all move where `layers`
        is None and no number of layers makes the model fit.
        """
        away = experts_away(problem, self.device)
        if self.layers is not None:
            return away[min(self.layers, len(away) - 1)]
        fewest = fewest_away(problem, away[1:])
        return away[-1] if fewest is None else away[1 + fewest]
