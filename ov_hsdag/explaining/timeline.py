"""When each submodel and each transfer of a placement runs, by the costs and the rules of the simulator."""

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
    """What a request waits for: a submodel that runs, or a tensor that moves."""

    submodel: int  # its number, -1 for a transfer
    cut: int  # number among `Explanation.cuts`, -1 for a submodel
    us: float  # how long it takes, µs
    busy: dict[int, float]  # device number → µs of this stage during which the device can do nothing else


def submodel_us(explained: Explanation) -> list[float]:
    """What one request spends in each submodel, with its start, transfers left out, µs, [submodels]."""
    return list(_busy_us(explained).sum(axis=1).tolist())


def _busy_us(explained: Explanation) -> NDArray[np.float64]:
    """What each submodel takes of each device, µs, float64 [submodels, devices].

    All but nothing is of the submodel's own device: a Result has a device of its own, which HETERO does not ask for.
    """
    busy = np.zeros((len(explained.submodel_device), len(explained.problem.devices)))
    inside = explained.submodel >= 0
    np.add.at(busy, (explained.submodel[inside], explained.device[inside]), explained.node_us[inside])
    device = explained.submodel_device
    busy[np.arange(len(device)), device] += explained.problem.submodel_us[device]
    return busy


def stages(explained: Explanation) -> list[Stage]:
    """What one request goes through, one after another: each submodel, and before it the tensors that move to it.

    The times sum up to the simulator's latency, and those in which a device is busy to its work.
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
    own = _busy_us(explained)
    found = []
    for place, submodel in enumerate(order):
        for number in arriving[place]:
            cut = explained.cuts[number]
            found.append(Stage(-1, number, cut.us, {cut.source: cut.source_us, cut.target: cut.target_us}))
        busy = {one: us for one, us in enumerate(own[submodel].tolist()) if us}
        found.append(Stage(submodel, -1, sum(busy.values()), busy))
    return found


def one_request(stages: list[Stage]) -> list[float]:
    """When the stages of a single request begin, µs, [stages]: each after the one before it."""
    return list(accumulate((stage.us for stage in stages[:-1]), initial=0.0)) if stages else []


def pipelined(stages: list[Stage], requests: int) -> list[list[float]]:
    """When the stages of requests begin that follow each other in a steady state, µs, [requests][stages].

    Each stage has a fixed slot in a period that repeats, and a request waits for the slots of its stages, so that no
    device works at two stages at once. On two devices the period is the work of the busiest one, which is the
    simulator's; on more, transfers between different pairs may need a little longer.
    """
    slots, period = _slots(stages)
    begins: list[float] = []
    ready = 0.0
    for stage, slot in zip(stages, slots, strict=True):
        wait = 0.0 if slot is None else (slot - ready) % period
        begins.append(ready + (wait if period - wait > _ROUNDING * period else 0.0))
        ready = begins[-1] + stage.us
    return [[begin + request * period for begin in begins] for request in range(requests)]


_ROUNDING = 1e-9  # share of a period that sums of times may be off by


def _slots(stages: list[Stage]) -> tuple[list[float | None], float]:
    """When each stage begins within a period, µs, None for one that keeps no device busy; and the period."""
    slots: list[float | None] = [None] * len(stages)
    end: dict[int, float] = defaultdict(float)
    gaps: dict[int, list[tuple[float, float]]] = defaultdict(list)
    busy = [{device: us for device, us in stage.busy.items() if us > 0} for stage in stages]
    # What occupies several devices comes first: the devices' own stages then fill the gaps that are left.
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
    """Submodels in an order in which they can run: of those that can, and in cycles, what begins first in the model."""
    graph, submodel = explained.problem.graph, explained.submodel
    source, target = submodel[graph.input_source], submodel[graph.input_node]
    between = (source >= 0) & (target >= 0) & (source != target)
    count = len(explained.submodel_device)
    first = np.full(count, graph.nodes)
    inside = np.flatnonzero(submodel >= 0)
    np.minimum.at(first, submodel[inside], inside)
    waits, follow = [0] * count, defaultdict(list)
    for one, other in np.unique(np.stack([source[between], target[between]], axis=1), axis=0).tolist():
        waits[other] += 1
        follow[one].append(other)
    ready = [(int(first[one]), one) for one in range(count) if not waits[one]]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, one = heapq.heappop(ready)
        order.append(one)
        for other in follow[one]:
            waits[other] -= 1
            if not waits[other]:
                heapq.heappush(ready, (int(first[other]), other))
    missing = set(range(count)) - set(order)
    return order + sorted(missing, key=lambda one: int(first[one]))
