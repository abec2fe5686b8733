"""Celeritas' heuristics: an order of the operations that keeps neighbours together, fusion along it, placement.

Xu et al., "Celeritas: fast optimizer for large dataflow graphs", arXiv:2208.00184. Its steps:

1. *Order* (`order`): a topological order that goes on with what the last operation feeds, the largest tensor first, so
   that what communicates is near.
2. *Fuse* (`fuse`): the order is cut into clusters of bounded work and bounded weights with the least communication
   between clusters, which dynamic programming does exactly (Kernighan, "Optimal sequential partitions of graphs",
   Journal of the ACM 18(1), 1971).
3. *Place* (`spread`): clusters go, in the order, to the device on which they end first and which has room.

How coarse clusters should be depends on the devices: several bounds are tried, each an evaluation. The paper measures
times of operations by its Standard Evaluation; here they are the problem's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from research.baselines.budget import Environment
from research.baselines.task_graph import Floats, Ints, TaskGraph, by_owner, sums


@dataclass(frozen=True)
class Celeritas:
    """Order, fuse, place.

    Attributes:
        bounds: of a cluster's work, and of its weights, as shares of the model's; each is tried.
    """

    bounds: tuple[float, ...] = (1 / 200, 1 / 100, 1 / 50, 1 / 25, 1 / 12, 1 / 6, 1 / 3, 1 / 2)
    name: str = "Celeritas"

    def place(self, environment: Environment, seed: int = 0) -> None:
        """See `Baseline.place`; deterministic, an evaluation for each bound, more where memory is short."""
        tasks = TaskGraph.of(environment.problem)
        sequence = order(tasks)
        clusters = [fuse(tasks, sequence, bound) for bound in self.bounds]
        for filled in tasks.fillings():
            for cluster in clusters:
                environment.cost(tasks.placement(spread(filled, sequence, cluster)))
            if environment.best is not None:
                return


def order(tasks: TaskGraph) -> Ints:
    """Tasks in an order that goes on with what the last one feeds, int64 [tasks]."""
    waits = np.bincount(tasks.target, minlength=tasks.count)
    weight = tasks.mean_message_us
    stack = np.flatnonzero(waits == 0)[::-1].tolist()
    found = []
    while stack:
        task = stack.pop()
        found.append(task)
        fed = []
        for message in tasks.outgoing[task].tolist():
            follower = int(tasks.target[message])
            waits[follower] -= 1
            if not waits[follower]:
                fed.append((float(weight[message]), -follower))
        # The largest message's receiver comes next.
        stack += [-follower for _, follower in sorted(fed)]
    return np.array(found, np.int64)


def fuse(tasks: TaskGraph, sequence: Ints, bound: float) -> Ints:
    """Cuts an order into clusters with the least communication between them.

    Args:
        tasks: to place.
        sequence: of `order`.
        bound: of a cluster's work and weights, as a share of all; a single task may exceed it.

    Returns:
        The cluster of each task, numbered in the order, int64 [tasks].
    """
    count = tasks.count
    place = np.empty(count, np.int64)
    place[sequence] = np.arange(count)
    size = np.maximum(_share(tasks.mean_us), _share(tasks.held.max(axis=1)))[sequence]
    weight = tasks.mean_message_us
    incoming = [
        [(int(place[tasks.source[m]]), float(weight[m])) for m in tasks.incoming[task].tolist()]
        for task in sequence.tolist()
    ]
    outgoing = [
        [(int(place[tasks.target[m]]), float(weight[m])) for m in tasks.outgoing[task].tolist()]
        for task in sequence.tolist()
    ]
    best = np.full(count + 1, np.inf)
    best[0], cut = 0.0, np.zeros(count + 1, np.int64)
    for end in range(1, count + 1):
        load = entering = 0.0
        for begin in range(end - 1, -1, -1):
            load += float(size[begin])
            if load > bound and begin < end - 1:
                break
            # The cluster gains this task: what it reads enters, what it feeds in the cluster does so no more.
            entering += sum(us for _, us in incoming[begin])
            entering -= sum(us for receiver, us in outgoing[begin] if receiver < end)
            # Of equally good cuts the one with fewer clusters: they are found later.
            if best[begin] + entering <= best[end]:
                best[end], cut[end] = best[begin] + entering, begin
    clusters = np.zeros(count, np.int64)
    end = count
    while end > 0:
        clusters[cut[end]] += 1  # a cluster begins here
        end = int(cut[end])
    number = np.empty(count, np.int64)
    number[sequence] = clusters.cumsum() - 1
    return number


def spread(tasks: TaskGraph, sequence: Ints, cluster: Ints) -> Ints:
    """Places clusters in their order, each where it ends first and there is room.

    Args:
        tasks: to place.
        sequence: of `order`.
        cluster: of `fuse`, [tasks].

    Returns:
        The device of each task, int64 [tasks]; where no device has room, the one with most room left.
    """
    count, devices = int(cluster.max()) + 1, tasks.us.shape[1]
    us, held = sums(tasks.us, cluster, count), sums(tasks.held, cluster, count)
    device, end = np.zeros(count, np.int64), np.zeros(count)
    free_at, room = np.zeros(devices), tasks.room.copy()
    apart = cluster[tasks.source] != cluster[tasks.target]
    receiver = cluster[tasks.target[apart]]
    sender, message = cluster[tasks.source[apart]], np.flatnonzero(apart)
    by_receiver = by_owner(receiver, count)
    for number in range(count):
        mine = by_receiver[number]
        arrival = np.zeros(devices)
        if len(mine):
            moved = tasks.message_us[message[mine], device[sender[mine]]]
            arrival = (end[sender[mine]][:, None] + moved).max(axis=0)
        runs = np.isfinite(us[number])
        fits = runs & (held[number] <= room)
        if not fits.any():
            fits = np.arange(devices) == np.where(runs if runs.any() else True, room, -np.inf).argmax()
        done = np.maximum(arrival, free_at) + np.where(runs, us[number], 0.0)
        chosen = int(np.where(fits, done, np.inf).argmin())
        device[number], end[number] = chosen, done[chosen]
        free_at[chosen] = done[chosen]
        room[chosen] -= held[number, chosen]
    return device[cluster]


def _share(values: Floats) -> Floats:
    return values / max(float(values.sum()), 1e-30)
