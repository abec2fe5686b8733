"""Devices in turn along a topological order: the best contiguous stretches, by dynamic programming.

What a placement looks like where work is balanced or memory is short. It is rough (transfers are means over devices,
operations that a device lacks are guessed), and tells a policy where a good placement begins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Places where a stretch may end; of more, the cheapest of equal slices of the work are taken.
_MAX_PLACES = 96

# Answers this much worse are taken if the devices come in the order of the list: it often hardly matters who begins,
# and answers that begin now here, now there, have nothing in common.
_IN_LIST_ORDER = 1.05

# Cost of what exceeds a memory limit, in times of all work for all of the model's memory.
_EXCESS = 10.0


@dataclass(frozen=True, eq=False)
class Stretches:
    """Who has what: device d the items begin[d] … end[d] - 1 of the order; where both are equal, none.

    Attributes:
        begin, end: int64 [D].
        turn: place of each device in the sequence of devices, int64 [D].
        value: estimate of the objective, µs.
    """

    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    turn: NDArray[np.int64]
    value: float


def best_stretches(devices: int, found: list[Stretches]) -> Stretches:
    """The best of all, or the one in the order of the list where that is about as good."""
    (listed,) = (item for item in found if item.turn.tolist() == list(range(devices)))
    return listed if listed.value <= found[0].value * _IN_LIST_ORDER else found[0]


def all_stretches(
    us: Floats,
    crossing: tuple[Floats, Floats],
    transfer: tuple[Floats, Floats],
    submodel_us: Floats,
    weights: Floats,
    alive: Floats,
    room: Floats,
    throughput: bool,
) -> list[Stretches]:
    """The best stretches for each sequence of the devices, best first.

    Args:
        us: time of each item on each device, finite, µs [n, D], items in topological order.
        crossing: number and bytes of the tensors that cross each place between items, [n + 1] each.
        transfer: µs of a transfer and µs per byte from device to device, [D, D] each.
        submodel_us: µs of each submodel [D].
        weights: of each item, as shares of what the model needs of memory [n].
        alive: tensors that are alive at once while each item runs, likewise [n]. A stretch needs the most of its items.
        room: what of that each device has, inf without a limit [D].
        throughput: the busiest device counts; otherwise the sum.
    """
    devices = us.shape[1]
    places = _places(us.mean(axis=1), crossing[1])
    work = np.concatenate([np.zeros((1, devices)), us.cumsum(axis=0)])[places]
    held = np.concatenate([[0.0], weights.cumsum()])[places]
    others = max(devices - 1, 1)
    off = ~np.eye(devices, dtype=bool)
    need = held[None, :] - held[:, None] + _most(np.maximum.reduceat(alive, places[:-1]))
    load = np.empty((devices, len(places), len(places)))
    before = np.tri(len(places), dtype=bool)
    for device in range(devices):
        fixed, rate = (np.where(off, matrix, 0.0) for matrix in transfer)
        enter = (crossing[0] * fixed[:, device].sum() + crossing[1] * rate[:, device].sum())[places] / others
        leave = (crossing[0] * fixed[device].sum() + crossing[1] * rate[device].sum())[places] / others
        cost = work[None, :, device] - work[:, None, device] + enter[:, None] + submodel_us[device]
        if throughput:
            cost = cost + leave[None, :]
        excess = np.maximum(need - room[device], 0.0)
        cost = cost + _EXCESS * work[-1].min() * excess
        load[device] = np.where(before, np.inf, cost)

    combine = np.maximum if throughput else np.add
    start = np.full(len(places), np.inf)
    start[0] = 0.0
    found: list[Stretches] = []

    def extend(cost: Floats, sequence: tuple[int, ...], steps: list[NDArray[np.int64]]) -> None:
        if len(sequence) == devices:
            found.append(_traced(float(cost[-1]), sequence, steps, places))
            return
        for device in range(devices):
            if device in sequence:
                continue
            total = combine(cost[:, None], load[device])
            step = total.argmin(axis=0)
            after = total[step, np.arange(len(places))]
            # Without a stretch the device leaves things as they are.
            skipped = cost <= after
            step = np.where(skipped, np.arange(len(places)), step)
            extend(np.where(skipped, cost, after), (*sequence, device), [*steps, step])

    extend(start, (), [])
    return sorted(found, key=lambda item: item.value)


def _traced(
    value: float, sequence: tuple[int, ...], steps: list[NDArray[np.int64]], places: NDArray[np.int64]
) -> Stretches:
    """The stretches from the last place back to the first. steps: where each device's stretch that ends there began."""
    begin, end, turn = (np.empty(len(sequence), np.int64) for _ in range(3))
    at = len(places) - 1
    for number in reversed(range(len(sequence))):
        device = sequence[number]
        first = int(steps[number][at])
        begin[device], end[device], turn[device] = places[first], places[at], number
        at = first
    return Stretches(begin, end, turn, value)


def _most(values: Floats) -> Floats:
    """Maxima of values[i:j], [n + 1, n + 1]; 0 where there are none."""
    count = len(values)
    most = np.zeros((count + 1, count + 1))
    for first in range(count):
        most[first, first + 1 :] = np.maximum.accumulate(values[first:])
    return most


def _places(work: Floats, crossing_bytes: Floats) -> NDArray[np.int64]:
    """Where stretches may end: 0 … n."""
    count = len(work)
    if count < _MAX_PLACES:
        return np.arange(count + 1)
    slices = (work.cumsum() / max(work.sum(), 1e-30) * (_MAX_PLACES - 1)).astype(np.int64)
    places = np.lexsort((crossing_bytes[1:], slices)) + 1
    cheapest = places[np.unique(slices[places - 1], return_index=True)[1]]
    return np.unique(np.concatenate([[0], cheapest, [count]]))
