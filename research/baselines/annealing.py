"""Simulated annealing of placements.

Kirkpatrick, Gelatt and Vecchi, "Optimization by simulated annealing", Science 220, 1983; on device placement it is what
Mirhoseini et al. (2017) and Placeto compare themselves with, too. A move gives a coarse group, or a run of coarse
groups of the topological order, to another device that runs it. A move that makes the placement worse by a share of
Δ is kept with probability exp(-Δ / T); T falls geometrically from what half of the first moves would need to be
kept to a thousandth of it. What HETERO would not run is repaired before it is measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.problem.problem import PlacementProblem, topological_groups
from research.baselines.budget import Environment
from research.baselines.task_graph import runnable


@dataclass(frozen=True)
class Annealing:
    """Simulated annealing from the best single device.

    Attributes:
        evaluations: planned for where the budget counts none.
        longest: run of coarse groups that a move takes, as a share of all, at most.
        probes: moves that decide the first temperature.
    """

    evaluations: int = 2000
    longest: float = 0.5
    probes: int = 20
    name: str = "simulated annealing"

    def place(self, environment: Environment, seed: int = 0) -> None:
        """See `Baseline.place`."""
        problem = environment.problem
        planned = environment.remaining or self.evaluations
        if environment.budget.evaluations is None:
            planned = self.evaluations
        generator = np.random.default_rng(seed)
        coarse, order = problem.coarse, _coarse_order(problem)
        current, cost = runnable(problem, problem.single(0)), math.inf
        for device in range(len(problem.devices)):
            start = runnable(problem, problem.single(device))
            measured = environment.cost(start)
            if measured < cost:
                current, cost = start, measured
        worse: list[float] = []
        temperature, cooling = 0.0, 1.0
        left = max(planned - len(problem.devices), 1)
        for number in range(left):
            moved = self._moved(problem, current, coarse, order, generator)
            measured = environment.cost(moved)
            change = _change(cost, measured)
            if number < self.probes:
                worse += [change] if 0 < change < math.inf else []
                if number == self.probes - 1:
                    temperature = float(np.median(worse)) / math.log(2) if worse else 0.01
                    cooling = 1e-3 ** (1 / max(left - self.probes, 1))
            else:
                temperature *= cooling
            if change <= 0 or (temperature > 0 and generator.random() < math.exp(-change / temperature)):
                current, cost = moved, measured

    def _moved(
        self,
        problem: PlacementProblem,
        placement: NDArray[np.uint8],
        coarse: NDArray[np.int32],
        order: NDArray[np.int64],
        generator: np.random.Generator,
    ) -> NDArray[np.uint8]:
        count = len(order)
        begin = int(generator.integers(count))
        length = 1 if generator.random() < 0.5 else int(count * self.longest * generator.random() ** 2) + 1
        device = int(generator.integers(len(problem.devices)))
        members = np.isin(coarse, order[begin : begin + length])
        moved = np.where(members & problem.group_supported[:, device], device, placement).astype(np.uint8)
        return runnable(problem, moved)


def _coarse_order(problem: PlacementProblem) -> NDArray[np.int64]:
    """Coarse groups in the order in which their first group runs, int64 [coarse groups]."""
    of_order = problem.coarse[topological_groups(problem)]
    _, first = np.unique(of_order, return_index=True)
    return np.asarray(of_order[np.sort(first)], np.int64)


def _change(before: float, after: float) -> float:
    """By what share a placement became worse; what is infeasible is never better, and infinitely worse."""
    if not math.isfinite(before):
        return 0.0 if not math.isfinite(after) else -1.0
    return after / before - 1 if math.isfinite(after) else math.inf
