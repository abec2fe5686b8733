"""Experts on another device than the rest of a decoder, as people place them by hand."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.model.experts import experts
from ov_hsdag.problem.problem import PlacementProblem


def experts_away(problem: PlacementProblem, device: int | None = None) -> NDArray[np.uint8]:
    """Everything on the first device but the routed experts of no layer, of the first one, and so on, which are on
    the device of this number, by default the last: uint8 [blocks + 1, groups]."""
    groups = [int(problem.groups[block.sum]) for block in experts(problem.graph)]
    result = np.zeros((len(groups) + 1, problem.group_count), np.uint8)
    for number, group in enumerate(groups):
        result[number + 1 :, group] = len(problem.devices) - 1 if device is None else device
    return problem.where_supported(result)
