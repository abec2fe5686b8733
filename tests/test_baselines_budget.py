"""The environment that baselines pay in: counts, limits, the best so far, noise."""

from __future__ import annotations

import time

import numpy as np
import pytest

from research.baselines.budget import Budget, BudgetSpent, Environment
from tests.graphs import random_problem


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_costs_are_the_simulators_in_seconds_and_the_best_is_kept(objective: str) -> None:
    problem = random_problem(3, objective=objective, missing=0.1)
    environment = Environment(problem)
    placements = np.random.default_rng(0).integers(0, 2, (50, problem.group_count)).astype(np.uint8)
    costs = environment.costs(placements)
    np.testing.assert_allclose(costs, problem.scores(placements) * 1e-6)
    assert np.isinf(costs).any() and np.isfinite(costs).any()
    assert environment.evaluations == 50 and environment.best is not None
    row = int(costs.argmin())
    np.testing.assert_array_equal(environment.best.placement, placements[row])
    assert (environment.best.cost, environment.best.evaluations) == (costs[row], row + 1)


def test_a_budget_of_evaluations_is_never_exceeded() -> None:
    problem = random_problem(3)
    environment = Environment(problem, Budget(evaluations=5))
    environment.costs(np.stack([problem.single(0)] * 3))
    assert environment.remaining == 2
    with pytest.raises(BudgetSpent):
        environment.costs(np.stack([problem.single(1)] * 3))
    assert environment.evaluations == 5
    with pytest.raises(BudgetSpent):
        environment.cost(problem.single(0))
    assert environment.evaluations == 5


def test_a_budget_of_seconds_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(3)
    environment = Environment(problem, Budget(seconds=100.0))
    environment.cost(problem.single(0))
    now = time.process_time()
    monkeypatch.setattr(time, "process_time", lambda: now + 100.0)
    with pytest.raises(BudgetSpent):
        environment.cost(problem.single(0))
    assert environment.evaluations == 1


def test_run_ends_a_baseline_that_never_stops() -> None:
    class Endless:
        def place(self, environment: Environment, seed: int) -> None:
            generator = np.random.default_rng(seed)
            while True:
                environment.cost(generator.integers(0, 2, environment.problem.group_count))

    environment = Environment(random_problem(3), Budget(evaluations=20))
    best = environment.run(Endless(), seed=1)
    assert environment.evaluations == 20 and best is environment.best
