"""Placements with experts on another device than the rest of a decoder, as users make them by hand.

In a mixture of experts, each layer has a block of experts (`ov_hsdag.model.experts`). A block is away if its experts
are on the other device.
"""

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
        device: number of the device for the experts that are away; by default the last one.

    Returns:
        Placement k has the first k blocks away, uint8 [blocks + 1, groups]. Groups that their device does not run are
        on the first device that does.
    """
    groups = [int(problem.groups[block.sum]) for block in experts(problem.graph)]
    result = np.zeros((len(groups) + 1, problem.group_count), np.uint8)
    for number, group in enumerate(groups):
        result[number + 1 :, group] = len(problem.devices) - 1 if device is None else device
    return problem.where_supported(result)


def fewest_away(
    problem: PlacementProblem, away: NDArray[np.uint8], keeps: Callable[[NDArray[np.int64]], bool] = lambda _: True
) -> int | None:
    """Finds the placement of `experts_away` that is feasible with the fewest blocks away.

    Evaluating one placement of a large model takes a tenth of a second. So only those are evaluated whose weights and
    states fit into the memory limits without any tensors.

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
