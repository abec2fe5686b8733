"""Schedules the submodels and transfers of a placement in time, with the costs and rules of the simulator.

A stage is one step of a request, a submodel or a transfer. The period is the time between two results with many
requests in flight.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ov_hsdag.explaining.explanation import Explanation


@dataclass(frozen=True)
class Stage:
    """A step of a request: a submodel that runs, or a tensor that is transferred."""

    submodel: int  # number of the submodel, -1 for a transfer
    cut: int  # number among `Explanation.cuts`, -1 for a submodel
    us: float  # duration, µs
    busy: dict[int, float]  # device number → µs of this stage that keep the device busy


def submodel_us(explained: Explanation) -> list[float]:
    """Computes the time of one request in each submodel, with its call and without transfers, µs, [submodels]."""
    return list(_busy_us(explained).sum(axis=1).tolist())


def _busy_us(explained: Explanation) -> NDArray[np.float64]:
    """Computes how long each submodel keeps each device busy, µs, float64 [submodels, devices].

    Nearly all of it is on the submodel's device. A Result may have another one, which HETERO ignores.
    """
    busy = np.zeros((len(explained.submodel_device), len(explained.problem.devices)))
    inside = explained.submodel >= 0
    np.add.at(busy, (explained.submodel[inside], explained.device[inside]), explained.node_us[inside])
    device = explained.submodel_device
    busy[np.arange(len(device)), device] += explained.problem.submodel_us[device]
    return busy


def stages(explained: Explanation) -> list[Stage]:
    """Lists the stages of one request in sequence: each submodel, preceded by the transfers of tensors that it reads.

    The durations sum to the simulator's latency, and the times in `busy` to the busy time of each device.
    """
    problem = explained.problem
    device = explained.submodel_device.tolist()
    order = execution_order(explained)
    position = {submodel: place for place, submodel in enumerate(order)}
    arriving: dict[int, list[int]] = defaultdict(list)
    for number, cut in enumerate(explained.cuts):
        readers = np.unique(explained.submodel[problem.graph.consumers(cut.output)])
        first = [position[one] for one in readers.tolist() if one >= 0 and device[one] == cut.target]
        arriving[min(first, default=len(order) - 1)].append(number)
    busy_us = _busy_us(explained)
    sequence = []
    for place, submodel in enumerate(order):
        for number in arriving[place]:
            cut = explained.cuts[number]
            sequence.append(Stage(-1, number, cut.us, {cut.source: cut.source_us, cut.target: cut.target_us}))
        busy = {one: us for one, us in enumerate(busy_us[submodel].tolist()) if us}
        sequence.append(Stage(submodel, -1, sum(busy.values()), busy))
    return sequence


def one_request(stages: list[Stage]) -> list[float]:
    """Computes when each stage of a single request begins, µs, [stages]: as soon as the stage before it ends."""
    return list(accumulate((stage.us for stage in stages[:-1]), initial=0.0)) if stages else []


def pipelined(stages: list[Stage], requests: int) -> list[list[float]]:
    """Computes when each stage begins if requests follow each other in a steady state.

    Each stage has a fixed slot in a repeating period, and a request waits for the slots of its stages, so that no
    device works on two stages at once. With two devices the period equals the simulator's, the work of the busiest
    device; with more, transfers between different pairs of devices may make it slightly longer.

    Args:
        stages: the stages of one request, see `stages`.
        requests: number of requests.

    Returns:
        Begin of each stage of each request, µs, [requests][stages].
    """
    slots, period = _slots(stages)
    begins: list[float] = []
    ready = 0.0
    for stage, slot in zip(stages, slots, strict=True):
        wait = 0.0 if slot is None else (slot - ready) % period
        begins.append(ready + (wait if period - wait > _ROUNDING * period else 0.0))
        ready = begins[-1] + stage.us
    return [[begin + request * period for begin in begins] for request in range(requests)]


_ROUNDING = 1e-9  # share of a period that counts as rounding error of summed times


def _slots(stages: list[Stage]) -> tuple[list[float | None], float]:
    """Gives each stage a slot in a repeating period, so that no device has two stages at once.

    Args:
        stages: the stages of one request, see `stages`.

    Returns:
        Begin of each stage's slot within the period, µs, [stages], None for a stage that keeps no device busy; and the
        length of the period, µs.
    """
    slots: list[float | None] = [None] * len(stages)
    end: dict[int, float] = defaultdict(float)
    gaps: dict[int, list[tuple[float, float]]] = defaultdict(list)
    busy = [{device: us for device, us in stage.busy.items() if us > 0} for stage in stages]
    # Stages on several devices come first; those on a single device then fill the gaps between them.
    for number in sorted(range(len(stages)), key=lambda one: (len(busy[one]) == 1, one)):
        needs = busy[number]
        if not needs:
            continue
        device, us = next(iter(needs.items()))
        fitting = [gap for gap in gaps[device] if gap[1] - gap[0] >= us] if len(needs) == 1 else []
        if fitting:
            begin, until = fitting[0]
            gaps[device][gaps[device].index(fitting[0])] = (begin + us, until)
        else:
            begin = max(end[one] for one in needs)
            for one, own in needs.items():
                gaps[one].append((end[one], begin))
                end[one] = begin + own
        slots[number] = begin
    return slots, max(end.values(), default=0.0) or 1.0


def execution_order(explained: Explanation) -> list[int]:
    """Finds an order in which the submodels can run, as numbers of submodels.

    Among submodels that could run next, the one whose first node comes first in the model runs first. Submodels that
    wait for each other in a cycle, and those that wait for these, come last, in the order of their first nodes.
    """
    graph, submodel = explained.problem.graph, explained.submodel
    source, target = submodel[graph.input_source], submodel[graph.input_node]
    between = (source >= 0) & (target >= 0) & (source != target)
    count = len(explained.submodel_device)
    first = np.full(count, graph.nodes)
    inside = np.flatnonzero(submodel >= 0)
    np.minimum.at(first, submodel[inside], inside)
    waits, follow = [0] * count, defaultdict(list)
    for current, other in np.unique(np.stack([source[between], target[between]], axis=1), axis=0).tolist():
        waits[other] += 1
        follow[current].append(other)
    ready = [(int(first[current]), current) for current in range(count) if not waits[current]]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, current = heapq.heappop(ready)
        order.append(current)
        for other in follow[current]:
            waits[other] -= 1
            if not waits[other]:
                heapq.heappush(ready, (int(first[other]), other))
    missing = set(range(count)) - set(order)
    return order + sorted(missing, key=lambda one: int(first[one]))
