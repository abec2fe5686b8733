"""Baechi's list schedulers: memory-constrained earliest task first (m-ETF) and small communication times (m-SCT).

Jeon et al., "Baechi: fast device placement of machine learning graphs", SoCC 2020 (arXiv:2301.08695), sections on m-ETF
and m-SCT. Both schedule ready tasks one after the other; a device without room for a task's weights does not get it.

- m-ETF gives the pair of a ready task and a device with the earliest start its turn.
- m-SCT first solves Hanen and Munier's linear programme (Journal of Scheduling 4(3), 2001), whose solution names for
  each task at most one favourite child, which should follow on the same device. A device whose last task has a
  favourite child that would start here first waits for it, and takes meanwhile only urgent tasks: those that could have
  started on every device by then.

    min w   s_j ≥ s_i + p_i + c_ij x_ij,   w ≥ s_i + p_i,   Σ_j x_ij ≥ out(i) - 1,   Σ_i x_ij ≥ in(j) - 1,   0 ≤ x ≤ 1

Child j of i is its favourite where x_ij is below a half (the authors' code, github.com/beomyeol/baechi, m_sct.py).

The paper's devices are equal. On unequal ones a start says nothing about an end, so that both also run with the
earliest end in place of the earliest start, and the better placement counts: two evaluations. Memory is counted by
weights and states, and where live tensors then exceed it, less of it is filled. The linear programme has
times as means over devices. Both minimise the end of the last task with devices at work at the same time, which is
neither of HETERO's objectives: within one request its submodels run one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import linprog

from research.baselines.budget import Environment
from research.baselines.task_graph import Floats, Ints, TaskGraph

# Above it, x_ij = 1: the child is no favourite.
_THRESHOLD = 0.5


@dataclass(frozen=True)
class MEtf:
    """m-ETF."""

    name: str = "m-ETF"

    def place(self, environment: Environment, seed: int = 0) -> None:
        """See `Baseline.place`; deterministic, two evaluations, more where memory is short."""
        _both(environment, TaskGraph.of(environment.problem), None)


@dataclass(frozen=True)
class MSct:
    """m-SCT."""

    name: str = "m-SCT"

    def place(self, environment: Environment, seed: int = 0) -> None:
        """See `Baseline.place`; deterministic, two evaluations, more where memory is short."""
        tasks = TaskGraph.of(environment.problem)
        _both(environment, tasks, favourite_children(tasks))


def _both(environment: Environment, tasks: TaskGraph, favourite: Ints | None) -> None:
    for filled in tasks.fillings():
        for by_end in (False, True):
            environment.cost(tasks.placement(schedule(filled, favourite, by_end=by_end).device))
        if environment.best is not None:
            return


@dataclass(frozen=True, eq=False)
class Schedule:
    """When and where tasks run.

    Attributes:
        device: of each task, int64 [tasks].
        start: µs, float64 [tasks].
        end: µs, float64 [tasks].
    """

    device: Ints
    start: Floats
    end: Floats


def schedule(tasks: TaskGraph, favourite: Ints | None = None, *, by_end: bool = False) -> Schedule:
    """Earliest task first, with favourite children where they are given (section "m-SCT").

    Args:
        tasks: to place.
        favourite: of each task, -1 for none, int64 [tasks]. None: m-ETF.
        by_end: the earliest end has its turn, not the earliest start.

    Returns:
        A schedule. Where no device has room, a task goes where most room is left, which breaks a limit.
    """
    count, devices = tasks.us.shape
    device, start, end = np.full(count, -1), np.zeros(count), np.zeros(count)
    free_at, room, last = np.zeros(devices), tasks.room.copy(), np.full(devices, -1)
    arrival = np.zeros((count, devices))
    waits = np.bincount(tasks.target, minlength=count)
    ready = np.flatnonzero(waits == 0)
    while len(ready):
        fits = np.isfinite(tasks.us[ready]) & (tasks.held[ready] <= room)
        stuck = ~fits.any(axis=1)
        if stuck.any():
            roomiest = np.where(np.isfinite(tasks.us[ready]), room, -np.inf).argmax(axis=1)
            fits[stuck, roomiest[stuck]] = True
        begin = np.where(fits, np.maximum(arrival[ready], free_at), np.inf)
        if favourite is not None:
            begin = _waiting(begin, ready, arrival, favourite, last, free_at)
        key = begin + np.where(fits, tasks.us[ready], 0.0) if by_end else begin
        row, chosen = np.unravel_index(int(key.argmin()), key.shape)
        task = int(ready[row])
        device[task], start[task] = chosen, begin[row, chosen]
        end[task] = start[task] + tasks.us[task, chosen]
        free_at[chosen], last[chosen] = end[task], task
        room[chosen] -= tasks.held[task, chosen]
        messages = tasks.outgoing[task]
        receivers = tasks.target[messages]
        np.maximum.at(arrival, receivers, end[task] + tasks.message_us[messages, chosen])
        np.subtract.at(waits, receivers, 1)
        fresh = np.unique(receivers)
        ready = np.union1d(np.delete(ready, row), fresh[waits[fresh] == 0])
    return Schedule(device, start, end)


def _waiting(begin: Floats, ready: Ints, arrival: Floats, favourite: Ints, last: Ints, free_at: Floats) -> Floats:
    """Starts of ready tasks where devices wait for favourite children, µs [ready, devices]."""
    begin = begin.copy()
    earliest = begin.min(axis=1)
    for device in np.flatnonzero(last >= 0).tolist():
        row = np.flatnonzero(ready == favourite[last[device]])
        if not len(row) or begin[row[0], device] > earliest[row[0]]:
            continue
        # An urgent task has all that it needs on whatever device: it may go before.
        urgent = np.maximum(free_at[device], arrival[ready].max(axis=1))
        held_back = np.where(np.isfinite(begin[:, device]), np.maximum(begin[:, device], urgent), np.inf)
        held_back[row[0]] = begin[row[0], device]
        begin[:, device] = held_back
    return begin


def favourite_children(tasks: TaskGraph) -> NDArray[np.int64]:
    """Solves the linear programme of section "m-SCT".

    Args:
        tasks: to place.

    Returns:
        The favourite child of each task, -1 for none; each is so of one parent at most. int64 [tasks].

    Raises:
        RuntimeError: HiGHS ended without a solution.
    """
    # Between two tasks there may be several messages; the slowest decides.
    pairs, number = np.unique(np.stack([tasks.source, tasks.target], axis=1), axis=0, return_inverse=True)
    favourite = np.full(tasks.count, -1)
    if not len(pairs):
        return favourite
    cost = np.zeros(len(pairs))
    np.maximum.at(cost, number.ravel(), tasks.mean_message_us)
    unit = max(float(tasks.mean_us.sum()), 1e-9)
    edge, task, edges, count = np.arange(len(pairs)), np.arange(tasks.count), len(pairs), tasks.count
    ones = np.ones(edges)
    work = tasks.mean_us / unit
    columns = edges + count + 1
    rows = [
        sparse.csr_matrix(
            (
                np.concatenate([ones, -ones, cost / unit]),
                (np.tile(edge, 3), np.concatenate([edges + pairs[:, 0], edges + pairs[:, 1], edge])),
            ),
            (edges, columns),
        ),
        sparse.csr_matrix(
            (
                np.concatenate([np.ones(count), -np.ones(count)]),
                (np.tile(task, 2), np.append(edges + task, [columns - 1] * count)),
            ),
            (count, columns),
        ),
    ]
    limits = [-work[pairs[:, 0]], -work]
    for end in (0, 1):
        degree = np.bincount(pairs[:, end], minlength=count)
        rows.append(sparse.csr_matrix((-ones, (pairs[:, end], edge)), (count, columns)))
        limits.append(np.where(degree > 0, 1.0 - degree, 0.0))
    result = linprog(
        np.append(np.zeros(edges + count), 1.0),
        A_ub=sparse.vstack(rows).tocsr(),
        b_ub=np.concatenate(limits),
        bounds=[(0.0, 1.0)] * edges + [(0.0, None)] * (count + 1),
        method="highs",
    )
    if result.status != 0:
        raise RuntimeError(f"HiGHS: {result.message}")
    parent_taken = np.zeros(count, bool)
    # Rounding may leave several below the threshold: the clearest one counts.
    for number_ in np.argsort(result.x[:edges], kind="stable").tolist():
        parent, child = pairs[number_]
        if result.x[number_] < _THRESHOLD and favourite[parent] < 0 and not parent_taken[child]:
            favourite[parent], parent_taken[child] = child, True
    return favourite
