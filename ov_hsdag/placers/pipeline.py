"""Contiguous stages along a topological order: what balances work over devices when many requests are in flight.

A minimum cut cannot: on equal devices everything on one of them is as good a cut as any. Stages are found exactly for
the given order by dynamic programming over the places where the next device takes over.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, permutations

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.placers.base import best_of
from ov_hsdag.problem.problem import PlacementProblem, topological_groups

# Places where a stage can end; beyond that many groups the cheapest cuts of equal slices of the work are taken.
_MAX_CUTS = 600
# Cuts that the simulator judges for every order of devices.
_JUDGED = 24


@dataclass(frozen=True)
class Pipeline:
    """The best stages over all orders of all subsets of the devices."""

    name: str = "pipeline"

    def place(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        """See `Placer.place`."""
        order = topological_groups(problem)
        candidates = [problem.single(device) for device in range(len(problem.devices))]
        for count in range(2, len(problem.devices) + 1):
            for devices in permutations(range(len(problem.devices)), count):
                candidates += stages(problem, order, devices)
        return best_of(problem, candidates)


def _crossing(
    problem: PlacementProblem, order: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """What crosses each place of the order: bytes and number of tensors, int64 [groups + 1] each; what a device behind
    it pays for torn fusions, µs, float64 [groups + 1, devices].
    """
    tensors = problem.tensors
    place = np.empty(problem.group_count, np.int64)
    place[order] = np.arange(problem.group_count)
    size, count = np.zeros(problem.group_count + 1, np.int64), np.zeros(problem.group_count + 1, np.int64)
    torn = np.zeros((problem.group_count + 1, len(problem.devices)))
    if len(tensors):
        last = np.maximum.reduceat(place[tensors.consumers], tensors.consumer_ptr[:-1])
        first = np.minimum(
            place[tensors.source], np.minimum.reduceat(place[tensors.consumers], tensors.consumer_ptr[:-1])
        )
        last = np.maximum(last, place[tensors.source])
        amounts = (tensors.bytes, np.ones(len(tensors), np.int64), problem.tensor_fusion_penalty_us)
        for total, amount in zip((size, count, torn), amounts, strict=True):
            np.add.at(total, first + 1, amount)
            np.add.at(total, last + 1, -amount)
    return size.cumsum(), count.cumsum(), torn.cumsum(axis=0)


def stages(problem: PlacementProblem, order: NDArray[np.int64], devices: tuple[int, ...]) -> list[NDArray[np.uint8]]:
    """Good placements of contiguous stages on `devices` in turn."""
    cuts = _places(problem, order)
    size, count, torn = _crossing(problem, order)
    work = np.concatenate([np.zeros((1, len(problem.devices))), problem.group_us[order].cumsum(axis=0)])[cuts]

    def crossing(a: int, b: int) -> NDArray[np.float64]:
        return count[cuts] * problem.transfer_us[a, b] + size[cuts] * problem.transfer_us_per_byte[a, b]

    combine = np.maximum if problem.objective == "throughput" else np.add
    # best[i]: cost of the stages so far when the latest ends at cuts[i]; transfers load both of their ends.
    with np.errstate(invalid="ignore"):
        best = work[:, devices[0]] + problem.submodel_us[devices[0]]
        if problem.objective == "throughput":
            best = best + crossing(devices[0], devices[1])
        steps: list[NDArray[np.int64]] = []
        for number, (previous, device) in enumerate(pairwise(devices)):
            span = work[None, :, device] - work[:, None, device]
            span = np.where(np.isfinite(span) & (span >= 0), span, np.inf)
            cost = span + (crossing(previous, device) + torn[cuts, device])[:, None] + problem.submodel_us[device]
            if problem.objective == "throughput" and number + 2 < len(devices):
                cost = cost + crossing(device, devices[number + 2])[None, :]
            total = combine(best[:, None], cost)
            total[np.tril_indices(len(cuts))] = np.inf
            if number + 2 == len(devices):
                return _placements(problem, order, devices, cuts, total[:, -1], steps)
            steps.append(total.argmin(axis=0))
            best = total.min(axis=0)
    return []


def _places(problem: PlacementProblem, order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Candidate places for the ends of stages, from 0 to the number of groups."""
    if problem.group_count < _MAX_CUTS:
        return np.arange(problem.group_count + 1)
    size, _, _ = _crossing(problem, order)
    finite = np.where(np.isfinite(problem.group_us), problem.group_us, 0.0).mean(axis=1)[order]
    slices = (finite.cumsum() / max(finite.sum(), 1e-30) * (_MAX_CUTS - 1)).astype(np.int64)
    places = np.lexsort((size[1:], slices)) + 1
    cheapest = places[np.unique(slices[places - 1], return_index=True)[1]]
    return np.unique(np.concatenate([[0], cheapest, [problem.group_count]]))


def _placements(
    problem: PlacementProblem,
    order: NDArray[np.int64],
    devices: tuple[int, ...],
    cuts: NDArray[np.int64],
    total: NDArray[np.float64],
    steps: list[NDArray[np.int64]],
) -> list[NDArray[np.uint8]]:
    """The placements of the best places for the last takeover, traced back to the first stage."""
    result = []
    for last in np.argsort(total)[:_JUDGED]:
        if not np.isfinite(total[last]):
            break
        ends = [int(last)]
        for step in reversed(steps):
            ends.insert(0, int(step[ends[0]]))
        placement = problem.single(devices[-1])
        begin = 0
        for device, end in zip(devices, ends, strict=False):
            placement[order[begin : cuts[end]]] = device
            begin = int(cuts[end])
        result.append(placement)
    return result
