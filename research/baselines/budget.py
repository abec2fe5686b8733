"""The environment of all baselines: it measures placements, counts them against a budget, and keeps the best.

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
"""A function that computes costs of placements: uint8 [batch, groups] → seconds, inf where infeasible, [batch]."""


class BudgetSpent(Exception):
    """The budget has no evaluation left. `Environment.run` catches it."""


@dataclass(frozen=True)
class Budget:
    """The limits of a baseline; the first one that is reached ends it."""

    evaluations: int | None = None  # evaluations of placements; None for no limit
    seconds: float | None = None  # processor time including learning, s; None for no limit


@dataclass(frozen=True, eq=False)
class Best:
    """The best placement so far."""

    placement: Placements  # device numbers, uint8 [groups]
    cost: float  # measured cost, s
    evaluations: int  # number of evaluations up to this one
    seconds: float  # processor time up to this one, s


class Baseline(Protocol):
    """A method of placement."""

    def place(self, environment: Environment, seed: int) -> None:
        """Evaluates placements in the environment, whose `best` is the result. seed: for random numbers."""


class Environment:
    """A placement problem for baselines: an objective whose evaluations are limited by a budget."""

    def __init__(self, problem: PlacementProblem, budget: Budget | None = None, *, judge: Judge | None = None) -> None:
        """Makes an environment; its processor time begins now.

        Args:
            problem: the problem to place.
            budget: the limits; None for none.
            judge: computes costs of placements; None for the simulator with the problem's objective, which gives
                seconds of a request for latency, and seconds between results for throughput.
        """
        self.problem = problem  # reading its graph, costs and limits does not count against the budget
        self.budget = budget or Budget()
        self.evaluations = 0  # evaluations so far
        self.best: Best | None = None  # the best feasible placement so far
        self._judge: Judge = judge or (lambda placements: problem.scores(placements) * 1e-6)
        self._begin = time.process_time()
        self._elsewhere = 0.0  # processor seconds of other processes

    @property
    def seconds(self) -> float:
        """Processor time of this process since the environment was made, plus that of `charge`, s."""
        return time.process_time() - self._begin + self._elsewhere

    @property
    def remaining(self) -> int | None:
        """Evaluations left in the budget, 0 once its seconds are spent; None for no limit."""
        if self.budget.seconds is not None and self.seconds >= self.budget.seconds:
            return 0
        return None if self.budget.evaluations is None else max(self.budget.evaluations - self.evaluations, 0)

    @property
    def spent(self) -> float:
        """Share of the budget that is spent, 0 to 1; 0 where there is no limit."""
        evaluations, seconds = self.budget.evaluations, self.budget.seconds
        shares = [self.evaluations / max(evaluations, 1)] if evaluations is not None else []
        shares += [self.seconds / max(seconds, 1e-9)] if seconds is not None else []
        return min(max(shares, default=0.0), 1.0)

    def charge(self, seconds: float) -> None:
        """Adds processor time in seconds that a baseline has spent in other processes."""
        self._elsewhere += seconds

    def cost(self, placement: NDArray[np.integer[Any]]) -> float:
        """The cost of one placement [groups] in seconds, inf where infeasible. Raises BudgetSpent."""
        return float(self.costs(np.asarray(placement)[None])[0])

    def costs(self, placements: NDArray[np.integer[Any]]) -> Floats:
        """Measures placements; each counts as one evaluation.

        Args:
            placements: device numbers, [batch, groups].

        Returns:
            Seconds (per inference for throughput), inf where infeasible, float64 [batch].

        Raises:
            BudgetSpent: the budget has fewer evaluations left than placements; only the first ones were measured.
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
        """Counts an evaluation, and keeps the placement if it is the best so far."""
        self.evaluations += 1
        if cost < (math.inf if self.best is None else self.best.cost):
            self.best = Best(placement.copy(), cost, self.evaluations, self.seconds)

    def run(self, baseline: Baseline, seed: int = 0) -> Best | None:
        """Runs a baseline until it returns or the budget is spent.

        Args:
            baseline: the method.
            seed: for its random numbers.

        Returns:
            The best placement, None where none was feasible.
        """
        with contextlib.suppress(BudgetSpent):
            baseline.place(self, seed)
        return self.best
