"""What all baselines pay with: one environment that judges placements, counts them, and keeps the best.

environment = Environment(problem, Budget(evaluations=1000))
environment.run(baseline, seed=0)          # calls baseline.place(environment, 0) until it returns or the budget ends
environment.best.placement, environment.best.cost
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.problem.problem import PlacementProblem

Floats = NDArray[np.float64]
Placements = NDArray[np.uint8]
Judge = Callable[[Placements], Floats]
"""Costs of placements, uint8 [batch, groups] → seconds, inf where infeasible, float64 [batch]."""


class BudgetSpent(Exception):
    """An evaluation was asked for that the budget does not have. `Environment.run` catches it."""


@dataclass(frozen=True)
class Budget:
    """When a baseline has to stop. Whichever limit is reached first ends it."""

    evaluations: int | None = None  # of placements; None: no limit
    seconds: float | None = None  # of processor time, learning included; None: no limit


@dataclass(frozen=True, eq=False)
class Best:
    """The best placement so far."""

    placement: Placements  # device numbers, uint8 [groups]
    cost: float  # as it was measured, seconds
    evaluations: int  # how many evaluations there had been, this one included
    seconds: float  # processor seconds until then


class Baseline(Protocol):
    """Any method of placement."""

    def place(self, environment: Environment, seed: int) -> None:
        """Asks the environment for costs of placements; the result is `environment.best`."""


class Environment:
    """A placement problem as baselines see it: an objective with a price."""

    def __init__(self, problem: PlacementProblem, budget: Budget | None = None, *, judge: Judge | None = None) -> None:
        """budget: None: no limit. judge: of placements; None: the simulator with the problem's objective: seconds of a
        request for latency, seconds between results with many requests in flight for throughput.
        """
        self.problem = problem  # graph, costs and limits may be read without a price
        self.budget = budget or Budget()
        self.evaluations = 0  # spent so far
        self.best: Best | None = None  # the best feasible placement so far
        self._judge: Judge = judge or (lambda placements: problem.scores(placements) * 1e-6)
        self._begin = time.process_time()
        self._elsewhere = 0.0  # processor seconds of other processes

    @property
    def seconds(self) -> float:
        """Processor seconds of this process since the environment was made, and those that `charge` added."""
        return time.process_time() - self._begin + self._elsewhere

    @property
    def remaining(self) -> int | None:
        """Evaluations that the budget still has, 0 where its seconds are spent; None: no limit."""
        if self.budget.seconds is not None and self.seconds >= self.budget.seconds:
            return 0
        return None if self.budget.evaluations is None else max(self.budget.evaluations - self.evaluations, 0)

    @property
    def spent(self) -> float:
        """Share of the budget that is spent, 0 … 1; 0 where there is no limit."""
        evaluations, seconds = self.budget.evaluations, self.budget.seconds
        shares = [self.evaluations / max(evaluations, 1)] if evaluations is not None else []
        shares += [self.seconds / max(seconds, 1e-9)] if seconds is not None else []
        return min(max(shares, default=0.0), 1.0)

    def charge(self, seconds: float) -> None:
        """Adds processor seconds that a baseline spent in other processes."""
        self._elsewhere += seconds

    def cost(self, placement: NDArray[np.integer[Any]]) -> float:
        """Measures one placement [groups]: seconds, inf where infeasible. BudgetSpent: no evaluation is left."""
        return float(self.costs(np.asarray(placement)[None])[0])

    def costs(self, placements: NDArray[np.integer[Any]]) -> Floats:
        """Measures placements, each one evaluation.

        placements: device numbers, [batch, groups]. Returns seconds (per inference for throughput), inf where
        infeasible, float64 [batch]. Raises BudgetSpent: the budget has not enough evaluations; the first placements are
        measured as far as it goes.
        """
        left = self.remaining
        batch = np.asarray(placements, np.uint8)[:left]
        if len(batch):
            costs = self._judge(batch)
            for placement, cost in zip(batch, costs.tolist(), strict=True):
                self._count(placement, cost)
        if len(batch) < len(placements):
            raise BudgetSpent
        return costs if len(batch) else np.zeros(0)

    def _count(self, placement: Placements, cost: float) -> None:
        self.evaluations += 1
        if cost < (math.inf if self.best is None else self.best.cost):
            self.best = Best(placement.copy(), cost, self.evaluations, self.seconds)

    def run(self, baseline: Baseline, seed: int = 0) -> Best | None:
        """Lets a baseline place until it returns or the budget is spent.

        seed: of everything random in it. Returns the best placement, None where none was feasible.
        """
        with contextlib.suppress(BudgetSpent):
            baseline.place(self, seed)
        return self.best
