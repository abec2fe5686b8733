"""Computes lower bounds of placement problems, with which the best known placement is compared.

The bounds come from a relaxation, the additive cost model: times of operations, transfers, penalties of fusions whose
tensor crosses, and one submodel on each used device, with memory limits for weights and states only. It leaves out
further submodels, the memory of tensors, and placements that HETERO refuses. So its minimum is a lower bound of the
simulator's objective, and a problem that is infeasible in the relaxation has no placement at all.

`lower_bound` solves the relaxation as a mixed-integer programme with HiGHS (scipy.optimize.milp), within a time limit,
after which the bound is that of the open branches. For latency on two devices without memory limits its linear
relaxation is a minimum cut, and integral. `relaxed` is for large problems: a linear programme without transfers, which
by duality is the best of all Lagrangian bounds with prices for the devices' time and memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

from ov_hsdag.model.graph import NodeKind
from ov_hsdag.problem.problem import PlacementProblem

_TOLERANCE = 1e-6  # relative accuracy of HiGHS in constraints and gaps; bounds are lowered by it

_MOST_VARIABLES = 300_000  # for larger programmes the bound is that of `relaxed`

_INFEASIBLE = 2  # status of scipy's solvers


def relaxed(problem: PlacementProblem) -> float:
    """A lower bound by a linear programme in which groups may be divided and transfers take no time.

    Args:
        problem: a problem of any size; 5,000 groups on eight devices take seconds.

    Returns:
        The bound in µs; inf where weights do not fit into the devices' memory even if they are divided.

    Raises:
        RuntimeError: HiGHS ended without a solution.
    """
    groups, devices = problem.group_count, len(problem.devices)
    us, held = problem.group_us.ravel(), problem.group_held.ravel()
    allowed = np.isfinite(us)
    scale = _scale(problem)
    columns = np.arange(groups * devices)
    by_device = sparse.csr_matrix((np.ones(len(columns)), (columns % devices, columns)), (devices, len(columns)))
    once = sparse.csr_matrix((np.ones(len(columns)), (columns // devices, columns)), (groups, len(columns) + 1))
    work = np.where(allowed, us, 0.0) / scale
    rows, limits = [], []
    if problem.objective == "throughput":
        rows.append(sparse.hstack([by_device.multiply(work[None]), -np.ones((devices, 1))]))
        limits.append(np.zeros(devices))
        cost = np.append(np.zeros(len(columns)), 1.0)
    else:
        cost = np.append(work, 0.0)
    limited = np.flatnonzero(np.isfinite(problem.memory_limits))
    if len(limited):
        unit = np.maximum(problem.memory_bytes[limited], 1).astype(float)
        memory = sparse.diags(1 / unit) @ by_device[limited].multiply(held[None])
        rows.append(sparse.hstack([memory, sparse.csr_matrix((len(limited), 1))]))
        limits.append(problem.memory_bytes[limited] / unit)
    result = linprog(
        cost,
        A_ub=sparse.vstack(rows).tocsr() if rows else None,
        b_ub=np.concatenate(limits) if limits else None,
        A_eq=once,
        b_eq=np.ones(groups),
        bounds=np.column_stack([np.zeros(len(cost)), np.append(allowed.astype(float), np.inf)]),
    )
    if result.status == _INFEASIBLE:
        return np.inf
    if result.status != 0:
        raise RuntimeError(f"HiGHS: {result.message}")
    return float(result.fun * scale * (1 - _TOLERANCE))


def lower_bound(problem: PlacementProblem, *, seconds: float = 10.0) -> float:
    """A lower bound of the objective of all placements.

    Args:
        problem: the problem; the optimum of the relaxation is usually found for tens of groups.
        seconds: time limit of the solver, about.

    Returns:
        The bound in µs, at least that of `relaxed`; inf where it is proven that no placement is feasible.

    Raises:
        RuntimeError: HiGHS ended with an unknown status.
    """
    bound = relaxed(problem)
    programme = _Programme(problem)
    if np.isfinite(bound) and programme.variables <= _MOST_VARIABLES:
        bound = max(bound, programme.solve(seconds))
    return bound


def _scale(problem: PlacementProblem) -> float:
    """The divisor of times in programmes, µs: the sum of all groups' times on their slowest devices."""
    return max(float(np.where(np.isfinite(problem.group_us), problem.group_us, 0.0).max(axis=1).sum()), 1e-9)


class _Programme:
    """The relaxation as a mixed-integer programme, whose constraints are collected as rows of a sparse matrix.

    Its variables are x[g, d], whether group g is on device d; used[d]; r[t, a, b] for a ≠ b, whether device b receives
    tensor t from a; and for throughput the period. The constraints of transfers are r[t, a, b] <= x[source, a], and for
    each consumer c: sum over a of r[t, a, b] >= x[c, b] - x[source, b].
    """

    def __init__(self, problem: PlacementProblem) -> None:
        self._problem = problem
        self._groups, self._devices = problem.group_count, len(problem.devices)
        self._links = [(a, b) for a in range(self._devices) for b in range(self._devices) if a != b]
        self._used = self._groups * self._devices
        self._received = self._used + self._devices
        self._period = self._received + len(problem.tensors) * len(self._links)
        self.variables = self._period + 1
        self._scale = _scale(problem)
        self._rows: list[NDArray[np.int64]] = []
        self._columns: list[NDArray[np.int64]] = []
        self._values: list[NDArray[np.float64]] = []
        self._lower: list[NDArray[np.float64]] = []
        self._upper: list[NDArray[np.float64]] = []
        self._count = 0

    def solve(self, seconds: float) -> float:
        """Solves the programme within a time limit in seconds; returns the bound in µs."""
        problem, scale = self._problem, self._scale
        self._add_assignment()
        self._add_transfers()
        loads = self._loads()
        cost = np.zeros(self.variables)
        if problem.objective == "throughput":
            self._add(loads, np.full(self._devices, -np.inf), np.zeros(self._devices))
            cost[self._period] = 1.0
        else:
            cost = self._latency()
        integral = np.zeros(self.variables)
        integral[: self._received] = 1
        result = milp(
            cost,
            integrality=integral,
            bounds=Bounds(0.0, self._largest()),
            constraints=LinearConstraint(
                sparse.csr_matrix(
                    (np.concatenate(self._values), (np.concatenate(self._rows), np.concatenate(self._columns))),
                    (self._count, self.variables),
                ),
                np.concatenate(self._lower),
                np.concatenate(self._upper),
            ),
            options={"time_limit": seconds, "mip_rel_gap": _TOLERANCE},
        )
        if result.status == _INFEASIBLE:
            return np.inf
        dual = getattr(result, "mip_dual_bound", None)
        if dual is None or not np.isfinite(dual):
            if result.status in (0, 1):  # out of time before there was a bound
                return 0.0
            raise RuntimeError(f"HiGHS: {result.message}")
        return float(dual * scale * (1 - _TOLERANCE))

    def _x(self, group: NDArray[np.integer[Any]] | int, device: int) -> Any:
        """The column of x[group, device], or an array of columns for an array of groups."""
        return group * self._devices + device

    def _add(self, matrix: sparse.coo_matrix, lower: NDArray[np.float64], upper: NDArray[np.float64]) -> None:
        """Adds the constraints lower <= matrix @ variables <= upper."""
        self._rows.append(matrix.row.astype(np.int64) + self._count)
        self._columns.append(matrix.col.astype(np.int64))
        self._values.append(matrix.data.astype(np.float64))
        self._lower.append(lower)
        self._upper.append(upper)
        self._count += matrix.shape[0]

    def _matrix(self, parts: list[tuple[Any, Any, Any]], rows: int) -> sparse.coo_matrix:
        """A sparse matrix from parts (row, column, value), whose elements are broadcast to each other."""
        filled = [np.broadcast_arrays(*(np.asarray(array, float) for array in part)) for part in parts]
        row, column, value = (np.concatenate([part[k].ravel() for part in filled]) for k in range(3))
        return sparse.coo_matrix((value, (row.astype(int), column.astype(int))), (rows, self.variables))

    def _largest(self) -> NDArray[np.float64]:
        """Upper bounds of the variables."""
        largest = np.ones(self.variables)
        largest[self._period] = np.inf
        largest[: self._used] = self._problem.group_supported.ravel()
        # Breaks symmetry: of several equal devices only the first may have group 0.
        kind = self._problem.kinds
        first = [int(np.flatnonzero(kind == number)[0]) for number in kind]
        for device in range(self._devices):
            if first[device] != device:
                largest[self._x(0, device)] = 0.0
        return largest

    def _add_assignment(self) -> None:
        """Constrains groups to one device each and weights to the limits, and marks devices with operations as used."""
        problem, groups, devices = self._problem, self._groups, self._devices
        group = np.repeat(np.arange(groups), devices)
        columns = np.arange(groups * devices)
        self._add(self._matrix([(group, columns, 1.0)], groups), np.ones(groups), np.ones(groups))
        # Groups of Parameters, constants and Results alone make no submodel.
        computing = np.zeros(groups, bool)
        computing[problem.groups[np.isin(problem.graph.kinds, (NodeKind.OP, NodeKind.SINK))]] = True
        columns = columns[np.repeat(computing, devices)]
        rows = np.arange(len(columns))
        self._add(
            self._matrix([(rows, columns, 1.0), (rows, self._used + columns % devices, -1.0)], len(rows)),
            np.full(len(rows), -np.inf),
            np.zeros(len(rows)),
        )
        for device in np.flatnonzero(np.isfinite(problem.memory_limits)).tolist():
            limit = float(problem.memory_bytes[device])
            unit = max(limit, 1.0)
            share = problem.group_held[:, device] / unit
            self._add(
                self._matrix([(0, self._x(np.arange(groups), device), share)], 1),
                np.array([-np.inf]),
                np.array([limit / unit]),
            )

    def _r(self, tensor: Any, link: int) -> Any:
        """The column of r[tensor, a, b] for the link number of (a, b), or an array of columns for tensors."""
        return self._received + tensor * len(self._links) + link

    def _add_transfers(self) -> None:
        """Adds the constraints of transfers."""
        tensors = self._problem.tensors
        count = len(tensors)
        if not count:
            return
        every = np.arange(count)
        for link, (sender, _) in enumerate(self._links):
            self._add(
                self._matrix(
                    [(every, self._r(every, link), 1.0), (every, self._x(tensors.source, sender), -1.0)], count
                ),
                np.full(count, -np.inf),
                np.zeros(count),
            )
        tensor = tensors.of_consumer
        rows = np.arange(len(tensor))
        for receiver in range(self._devices):
            parts: list[tuple[Any, Any, Any]] = [
                (rows, self._r(tensor, link), 1.0) for link, (_, to) in enumerate(self._links) if to == receiver
            ]
            parts.append((rows, self._x(tensors.consumers, receiver), -1.0))
            parts.append((rows, self._x(tensors.source[tensor], receiver), 1.0))
            self._add(self._matrix(parts, len(rows)), np.zeros(len(rows)), np.full(len(rows), np.inf))

    def _moved(self, link: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Time of each tensor's transfer, and the penalty of the fusion that it breaks, scaled, [tensors] each."""
        problem = self._problem
        a, b = self._links[link]
        us = problem.transfer_us[a, b] + problem.transfer_us_per_byte[a, b] * problem.tensors.bytes
        return us / self._scale, problem.tensor_fusion_penalty_us[:, b] / self._scale

    def _work(self) -> NDArray[np.float64]:
        """Time of each group on each device, scaled, 0 where unsupported, [groups, devices]."""
        us = self._problem.group_us
        return np.where(np.isfinite(us), us, 0.0) / self._scale

    def _loads(self) -> sparse.coo_matrix:
        """The rows of constraints for throughput: each device's work minus the period."""
        problem = self._problem
        every, shares, work = np.arange(len(problem.tensors)), problem.transfer_shares, self._work()
        parts: list[tuple[Any, Any, Any]] = []
        for device in range(self._devices):
            parts.append((device, self._x(np.arange(self._groups), device), work[:, device]))
            parts.append((device, self._used + device, problem.submodel_us[device] / self._scale))
            parts.append((device, self._period, -1.0))
        for link, (a, b) in enumerate(self._links):
            us, penalty = self._moved(link)
            parts.append((a, self._r(every, link), us * shares[a]))
            parts.append((b, self._r(every, link), us * shares[b] + penalty))
        return self._matrix(parts, self._devices)

    def _latency(self) -> NDArray[np.float64]:
        """The objective for latency: the cost of each variable, scaled, [variables]."""
        problem = self._problem
        cost = np.zeros(self.variables)
        cost[: self._used] = self._work().ravel()
        cost[self._used : self._received] = problem.submodel_us / self._scale
        every = np.arange(len(problem.tensors))
        for link in range(len(self._links)):
            us, penalty = self._moved(link)
            cost[self._r(every, link)] = us + penalty
        return cost
