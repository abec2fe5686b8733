"""Placements with experts on another device than the rest of a decoder, as users make them by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.model.experts import experts
from ov_hsdag.problem.problem import PlacementProblem


def experts_away(problem: PlacementProblem, device: int | None = None) -> NDArray[np.uint8]:
    """Places everything on the first device, except the routed experts of the first layers.

    Args:
        problem: the problem.
        device: number of the experts' device; by default the last.

    Returns:
        One placement for each number of layers with experts away, from 0 to all, uint8 [blocks + 1, groups].
    """
    groups = [int(problem.groups[block.sum]) for block in experts(problem.graph)]
    result = np.zeros((len(groups) + 1, problem.group_count), np.uint8)
    for number, group in enumerate(groups):
        result[number + 1 :, group] = len(problem.devices) - 1 if device is None else device
    return problem.where_supported(result)


def fewest_away(
    problem: PlacementProblem, away: NDArray[np.uint8], keeps: Callable[[NDArray[np.int64]], bool] = lambda _: True
) -> int | None:
    """Finds the first feasible placement of `experts_away`.

    Evaluating one placement of a large model takes a tenth of a second. So only those are evaluated whose weights and
    states alone fit.

    Args:
        problem: the problem.
        away: the placements of `experts_away`, uint8 [count, groups].
        keeps: a further condition on the bytes on each device, int64 [devices]. If it holds for some bytes, it must
            hold for fewer.

    Returns:
        The number of the placement, or None where none is feasible.
    """
    groups = np.arange(problem.group_count)
    for number, placement in enumerate(away):
        held = np.bincount(placement, problem.group_held[groups, placement], len(problem.devices)).astype(np.int64)
        if (held <= problem.memory_limits).all() and keeps(held):
            evaluation = problem.evaluate(placement)
            if evaluation.infeasible[0] == 0 and keeps(evaluation.memory_bytes[0]):
                return number
    return None
