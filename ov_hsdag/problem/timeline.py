"""When each submodel and each transfer of a placement runs, by the costs and the rules of the simulator."""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ov_hsdag.problem.explanation import Explanation


@dataclass(frozen=True)
class Stage:
    """What a request waits for: a submodel that runs, or a tensor that moves.

    Attributes:
        submodel: its number, -1 for a transfer.
        cut: number among `Explanation.cuts`, -1 for a submodel.
        us: how long it takes, µs.
        busy: device number → µs of this stage during which the device can do nothing else.
    """

    submodel: int
    cut: int
    us: float
    busy: dict[int, float]


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
    order = _order(explained)
    position = {submodel: place for place, submodel in enumerate(order)}
    arriving: dict[int, list[int]] = defaultdict(list)
    for number, cut in enumerate(explained.cuts):
        readers = np.unique(explained.submodel[problem.graph.consumers(cut.output)])
        first = [position[one] for one in readers.tolist() if one >= 0 and device[one] == cut.target]
        arriving[min(first, default=len(order) - 1)].append(number)
    shares, own = problem.transfer_shares.tolist(), _busy_us(explained)
    found = []
    for place, submodel in enumerate(order):
        for number in arriving[place]:
            cut = explained.cuts[number]
            busy = {end: cut.us * shares[end] for end in (cut.source, cut.target)}
            found.append(Stage(-1, number, cut.us, busy))
        busy = {one: us for one, us in enumerate(own[submodel].tolist()) if us}
        found.append(Stage(submodel, -1, sum(busy.values()), busy))
    return found


def starts(stages: list[Stage], requests: int) -> list[list[float]]:
    """When the stages of several requests begin that are there at once, µs, [requests][stages].

    Each request takes its stages in their order, and a device works at one at a time: the one that is ready first, and
    of those that are ready together that of the earlier request.
    """
    free: dict[int, float] = defaultdict(float)
    found: list[list[float]] = [[] for _ in range(requests)]
    waiting = [(0.0, request) for request in range(requests)]
    while waiting:
        ready, request = heapq.heappop(waiting)
        stage = stages[len(found[request])]
        begin = max([ready, *(free[device] for device, us in stage.busy.items() if us > 0)])
        if waiting and begin > ready and waiting[0] < (begin, request):
            heapq.heappush(waiting, (begin, request))  # others may go before it is its turn
            continue
        found[request].append(begin)
        for device, us in stage.busy.items():
            if us > 0:
                free[device] = begin + us
        if len(found[request]) < len(stages):
            heapq.heappush(waiting, (begin + stage.us, request))
    return found


def _order(explained: Explanation) -> list[int]:
    """Submodels in an order in which they can run; of those that could run, the one that begins first in the model.

    Where they wait for each other, in the order in which they begin.
    """
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
