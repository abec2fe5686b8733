"""A placer that cuts the model into contiguous parts which fill the memory of all devices to the same share.

It keeps the memory limits where a model just fits. A gap is a place between two neighbouring groups of an order, or
before the first or after the last one; parts end at gaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.placers.base import by_structure
from ov_hsdag.problem.coarse import crossing
from ov_hsdag.problem.problem import PlacementProblem, topological_groups

# A part may end only at a gap that no more bytes cross than any other gap within 1 / `_WINDOWS` of the model.
_WINDOWS = 100

# Bisection steps for the filled share; after 40, it is known to 1e-12.
_ROUNDS = 40


@dataclass(frozen=True)
class Filling:
    """Cuts a topological order into parts, one for each device in the list's order, that fill equal shares of limits.

    Costs are ignored. The memory of live tensors is an estimate, so the last part may turn out too large.
    """

    name: str = "filling"

    def place(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        """Finds a placement, see `Placer.place`."""
        return by_structure(self._find, problem)[0]

    def _find(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        """Fills several orders in turn, and returns the first feasible placement, else the last; uint8 [1, groups]."""
        for order in (*problem.search_space.orders(), topological_groups(problem)):
            best = self._fill(problem, order)
            if not problem.evaluate(best).infeasible[0]:
                break
        return best[None]

    @staticmethod
    def _fill(problem: PlacementProblem, order: NDArray[np.integer[Any]]) -> NDArray[np.uint8]:
        """Cuts one order into parts that fill the same share of each device's memory.

        Bisection finds the smallest share with which all groups have a place. Memory is reserved for live tensors:
        first as much as they would need if the whole model ran on the device, then half of it, then none. The first of
        these three results that is feasible is returned.

        Args:
            problem: the problem.
            order: topological order of the co-location groups, [groups].

        Returns:
            The placement, uint8 [groups]; infeasible where none of the three is feasible.
        """
        cut_bytes = _crossing_bytes(problem, order)
        reach = max(len(cut_bytes) // _WINDOWS, 1)
        around = np.lib.stride_tricks.sliding_window_view(np.pad(cut_bytes, reach, "edge"), 2 * reach + 1)
        allowed = cut_bytes <= around.min(axis=1)
        allowed[[0, -1]] = True
        held = np.concatenate([np.zeros((1, len(problem.devices))), problem.group_held[order].cumsum(axis=0)])
        alone = problem.evaluate(problem.singles)
        live = np.maximum(np.diag(alone.memory_bytes) - held[-1], 0.0)
        cuts = np.flatnonzero(allowed)
        best = problem.single(0)
        for reserve in (live, live / 2, np.zeros_like(live)):
            low, high, fitting_ends = 0.0, 1.0, None
            for _ in range(_ROUNDS):
                share = (low + high) / 2 if fitting_ends is not None else high
                ends = _part_ends(held, cuts, share * np.maximum(problem.memory_limits - reserve, 0.0))
                if ends[-1] == len(order):
                    fitting_ends, high = ends, share
                elif fitting_ends is None:
                    break
                else:
                    low = share
            if fitting_ends is None:
                continue
            device = np.searchsorted(fitting_ends, np.arange(len(order)), side="right")
            best = np.empty(problem.group_count, np.uint8)
            best[order] = np.minimum(device, len(problem.devices) - 1)
            best = problem.where_supported(best)
            if not problem.evaluate(best).infeasible[0]:
                break
        return best


def _crossing_bytes(problem: PlacementProblem, order: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
    """Counts the bytes of the tensors that cross each gap of an order.

    Args:
        problem: the problem.
        order: topological order of the co-location groups, [groups].

    Returns:
        Bytes at each gap, float64 [groups + 1]. Gap i is before the i-th group of the order; the last gap is after all
        groups.
    """
    tensors, position = problem.tensors, np.argsort(order)
    first, last = position[tensors.source], position[tensors.source]
    if len(tensors):
        first = np.minimum(first, np.minimum.reduceat(position[tensors.consumers], tensors.consumer_ptr[:-1]))
        last = np.maximum(last, np.maximum.reduceat(position[tensors.consumers], tensors.consumer_ptr[:-1]))
    return crossing(tensors.bytes.astype(np.float64), first, last, len(order))


def _part_ends(held: NDArray[np.float64], cuts: NDArray[np.int64], room: NDArray[np.float64]) -> NDArray[np.int64]:
    """Gives each device in turn as many groups as fit.

    Args:
        held: bytes that each device would keep for all groups before each gap, float64 [groups + 1, devices].
        cuts: gaps where parts may end, ascending, int64; the last gap is one of them.
        room: bytes that fit on each device, float64 [devices].

    Returns:
        The gap where each device's part ends, int64 [devices]. All groups have a place where the last one is the gap
        after all groups.
    """
    end, ends = 0, []
    for device, device_room in enumerate(room):
        part_bytes = held[cuts, device] - held[end, device]
        end = max(int(cuts[max(np.searchsorted(part_bytes, device_room, side="right") - 1, 0)]), end)
        ends.append(end)
    return np.array(ends, np.int64)


def crowded(problem: PlacementProblem) -> bool:
    """Whether the memory limit of some device is too small for the whole model."""
    return problem.search_space.little_memory
