"""Dynamic and integer programming after Tarnawski et al.

"Efficient algorithms for device placement of DNN graph operators", NeurIPS 2020 (arXiv:2006.16423); their programmes
and instances: github.com/msr-fiddle/dnn-partitioning.

- `DynamicProgramme` (section 5.1.1): the optimum of contiguous splits, in which each device has the difference of two
  ideals (sets of tasks that have with each task all that it needs). Over all ideals, as long as they are few; otherwise
  over the prefixes of linear orders, their heuristic DPL. With D devices of K kinds,

      best(ideal, devices used) = min over smaller ideals, kinds of  max(best(smaller, one fewer of the kind),
                                                                         load(ideal - smaller on that kind))

  for throughput; for latency the sum in place of the maximum, as HETERO runs the parts of a request one after the
  other. What a part receives is counted as from the mean of the other devices.
- `IntegerProgramme` (section 5.1.2): splits that need not be contiguous, by HiGHS in place of Gurobi, within a limit of
  time (`research.baselines.relaxation`, whose objective leaves out what is not additive).

The simulator judges what either finds.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.placers.contiguous import interchangeable_devices
from ov_hsdag.problem.problem import PlacementProblem
from research.baselines.budget import Environment
from research.baselines.celeritas import order
from research.baselines.relaxation import bracket
from research.baselines.task_graph import Floats, Ints, TaskGraph, runnable

Bits = NDArray[np.bool_]


@dataclass(frozen=True)
class DynamicProgramme:
    """The best contiguous split.

    Attributes:
        most_ideals: with more ideals than these, only prefixes of two linear orders count.
        most_prefixes: of these, at equal steps of the work.
    """

    most_ideals: int = 1500
    most_prefixes: int = 500
    name: str = "dynamic programme"

    def place(self, environment: Environment, seed: int = 0) -> None:
        """See `Baseline.place`; deterministic, an evaluation for each set of ideals, more where memory is short."""
        tasks = TaskGraph.of(environment.problem)
        found = ideals(tasks, self.most_ideals)
        orders = () if found is not None else (np.arange(tasks.count), order(tasks))
        every = [found] if found is not None else [prefixes(tasks, one, self.most_prefixes) for one in orders]
        for filled in tasks.fillings():
            for members in every:
                device = contiguous_split(filled, members)
                if device is not None:
                    environment.cost(tasks.placement(device))
            if environment.best is not None:
                return


@dataclass(frozen=True)
class IntegerProgramme:
    """What HiGHS finds within a limit of time.

    Attributes:
        seconds: of the solver; less where the budget has less left.
    """

    seconds: float = 10.0
    name: str = "integer programme"

    def place(self, environment: Environment, seed: int = 0) -> None:
        """See `Baseline.place`; one evaluation, none where HiGHS found nothing in time."""
        limit = environment.budget.seconds
        left = self.seconds if limit is None else min(self.seconds, max(limit - environment.seconds, 0.0))
        found = bracket(environment.problem, seconds=left).placement
        if found is not None:
            environment.cost(runnable(environment.problem, found))


def ideals(tasks: TaskGraph, most: int) -> Bits | None:
    """All ideals of the tasks, smaller ones first, bool [ideals, tasks]; None where there are more than `most`."""
    pairs = np.unique(np.stack([tasks.source, tasks.target], axis=1), axis=0)
    needs = [0] * tasks.count
    for source, target in pairs.tolist():
        needs[target] |= 1 << source
    found, layer = [0], {0}
    while layer:
        following = set()
        for ideal in layer:
            for task in range(tasks.count):
                if not ideal >> task & 1 and needs[task] & ~ideal == 0:
                    following.add(ideal | 1 << task)
            if len(found) + len(following) > most:
                return None
        found += sorted(following)
        layer = following
    width = (tasks.count + 7) // 8
    packed = np.array([list(ideal.to_bytes(width, "little")) for ideal in found], np.uint8)
    return np.unpackbits(packed, axis=1, bitorder="little")[:, : tasks.count].astype(bool)


def prefixes(tasks: TaskGraph, sequence: Ints, most: int) -> Bits:
    """Prefixes of a linear order, the empty one and the whole included; of many, those at equal steps of the work."""
    if tasks.count < most:
        ends = np.arange(tasks.count + 1)
    else:
        work = tasks.mean_us[sequence].cumsum()
        steps = np.searchsorted(work, np.linspace(0, work[-1], most))
        ends = np.unique(np.concatenate([[0], steps, [tasks.count]])).clip(0, tasks.count)
    place = np.empty(tasks.count, np.int64)
    place[sequence] = np.arange(tasks.count)
    return place[None] < ends[:, None]


def contiguous_split(tasks: TaskGraph, members: Bits) -> Ints | None:
    """The best split into differences of ideals.

    Args:
        tasks: to place.
        members: ideals, the empty one first and all tasks last, bool [ideals, tasks].

    Returns:
        The device of each task, int64 [tasks]; None where no split keeps the limits.
    """
    problem = tasks.problem
    kind = interchangeable_devices(problem)
    kinds = np.unique(kind)
    available = [int((kind == one).sum()) for one in kinds]
    load = _loads(tasks, members, [int(np.flatnonzero(kind == one)[0]) for one in kinds])
    add = problem.objective == "latency"
    size = len(members)
    start = np.full(size, np.inf)
    start[0] = 0.0
    best = {tuple([0] * len(kinds)): start}
    came: dict[tuple[int, ...], tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
    for used in sorted(itertools.product(*(range(count + 1) for count in available)), key=sum)[1:]:
        value = np.full(size, np.inf)
        smaller, by = np.zeros(size, np.int64), np.zeros(size, np.int64)
        for number in range(len(kinds)):
            if not used[number]:
                continue
            fewer = tuple(one - (k == number) for k, one in enumerate(used))
            before = best[fewer][:, None]
            total = before + load[number] if add else np.maximum(before, load[number])
            choice = total.argmin(axis=0)
            reached = total[choice, np.arange(size)]
            better = reached < value
            value[better], smaller[better], by[better] = reached[better], choice[better], number
        best[used], came[used] = value, (smaller, by)
    used = min(best, key=lambda one: (best[one][-1], sum(one)))
    if not np.isfinite(best[used][-1]):
        return None
    device = np.zeros(tasks.count, np.int64)
    at, left = size - 1, list(used)
    while sum(left):
        smaller, by = came[tuple(left)]
        number = int(by[at])
        one = np.flatnonzero(kind == kinds[number])[left[number] - 1]
        device[members[at] & ~members[smaller[at]]] = one
        left[number] -= 1
        at = int(smaller[at])
    return device


def _loads(tasks: TaskGraph, members: Bits, devices: list[int]) -> list[Floats]:
    """Load of each difference of ideals on each of the devices, µs, inf where it cannot be, [ideals, ideals] each.

    Rows are the smaller ideals.
    """
    problem, size = tasks.problem, len(members)
    inside = members.astype(np.float32)
    nested = inside @ (1 - inside).T == 0
    count_in, bytes_in, count_out, bytes_out = _crossings(tasks, members)
    fixed, rate = _transfer_means(problem)
    found = []
    for device in devices:
        runs = np.isfinite(tasks.us[:, device])
        work = members @ np.where(runs, tasks.us[:, device], 0.0)
        refused = members @ (~runs).astype(float)
        held = members @ tasks.held[:, device]
        load: Floats = work[None] - work[:, None]
        throughput = problem.objective == "throughput"
        share = float(problem.transfer_shares[device]) if throughput else 1.0
        load += share * (fixed[0][device] * count_in + rate[0][device] * bytes_in)
        if throughput:
            load += share * (fixed[1][device] * count_out + rate[1][device] * bytes_out)
        load += problem.submodel_us[device]
        load[np.arange(size), np.arange(size)] = 0.0  # no part
        blocked = (refused[None] - refused[:, None] > 0) | (held[None] - held[:, None] > tasks.room[device])
        found.append(np.where(nested & ~blocked, load, np.inf))
    return found


def _crossings(tasks: TaskGraph, members: Bits) -> tuple[Floats, Floats, Floats, Floats]:
    """Tensors that each difference of ideals receives and sends, each once: number and bytes, [ideals, ideals] each."""
    size = len(members)
    used, number = np.unique(tasks.tensor, return_inverse=True)
    if not len(used):
        return (np.zeros((size, size)),) * 4
    width = len(used)
    source = np.zeros(width, np.int64)
    source[number] = tasks.source
    readers = np.bincount(number, minlength=width)
    read = np.zeros((size, width), np.int32)
    for message in range(len(number)):
        read[:, number[message]] += members[:, tasks.target[message]]
    made = members[:, source]
    weights = np.stack([np.ones(width), tasks.problem.tensors.bytes[used].astype(float)], axis=1)
    entering = np.empty((2, size, size))
    for larger in range(size):
        entering[:, :, larger] = (((read[larger] > read) & made).astype(np.float64) @ weights).T
    open_ = (read < readers).astype(np.float64)
    leaving = []
    for weight in weights.T:
        alone = (made * open_) @ weight
        leaving.append(alone[None] - (made * weight) @ open_.T)
    return entering[0], entering[1], leaving[0], leaving[1]


def _transfer_means(problem: PlacementProblem) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    """Fixed time and time per byte of what a device receives and sends, means over the others, µs [devices] each."""
    others = max(len(problem.devices) - 1, 1)
    found = []
    for matrix in (problem.transfer_us, problem.transfer_us_per_byte):
        apart = matrix - np.diag(np.diag(matrix))
        found.append((apart.sum(axis=0) / others, apart.sum(axis=1) / others))
    return found[0], found[1]
