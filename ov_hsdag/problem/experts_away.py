"""Experts on another device than the rest of a decoder, as people place them by hand."""

from __future__ import annotations

from collections.abc import Callable

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


def fewest_away(
    problem: PlacementProblem, away: NDArray[np.uint8], feasible: Callable[[NDArray[np.uint8]], NDArray[np.bool_]]
) -> int | None:
    """Number of the first feasible placement of `experts_away`, None where none is; feasible: tells it of several.

    Few are tried where what the first device holds falls from one to the next, as evaluating one of a large model takes
    a tenth of a second. It may grow where experts are small beside tensors: each layer that leaves adds a submodel.
    """
    low, high = 0, len(away) - 1
    while low < high:
        middle = (low + high) // 2
        fits = problem.memory_excess(problem.evaluate(away[middle]))[0, 0] == 0
        low, high = (low, middle) if fits else (middle + 1, high)
    for some in (slice(0, 1), slice(low, low + 1), slice(0, None)):
        if len(away[some]) and (found := feasible(away[some])).any():
            return int(some.start + found.argmax())
    return None
