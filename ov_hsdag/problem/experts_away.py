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
    problem: PlacementProblem, away: NDArray[np.uint8], keeps: Callable[[NDArray[np.int64]], bool] = lambda _: True
) -> int | None:
    """Number of the first feasible placement of `experts_away`, None where none is.

    keeps: what else has to hold of the bytes on each device, int64 [devices]; of fewer bytes, too, where it does.
    Evaluating one of a large model takes a tenth of a second: only those are whose weights and states alone fit.
    """
    groups = np.arange(problem.group_count)
    for number, placement in enumerate(away):
        held = np.bincount(placement, problem.group_held[groups, placement], len(problem.devices)).astype(np.int64)
        if (held <= problem.memory_limits).all() and keeps(held):
            found = problem.evaluate(placement)
            if found.infeasible[0] == 0 and keeps(found.memory_bytes[0]):
                return number
    return None
