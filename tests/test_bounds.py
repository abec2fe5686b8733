"""Lower bounds against all placements, one by one."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from numpy.typing import NDArray

from ov_hsdag.problem.problem import OBJECTIVES, PlacementProblem
from research.baselines.relaxation import lower_bound, relaxed
from tests.graphs import every_placement, random_problem


def every_supported(problem: PlacementProblem) -> NDArray[np.uint8]:
    found = every_placement(problem)
    return found[problem.group_supported[np.arange(problem.group_count), found].all(axis=1)]


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("seed", range(6))
def test_what_adds_up_is_solved_exactly(objective: str, seed: int) -> None:
    """Without costs of submodels nothing else counts; HETERO's refusals aside."""
    devices = 2 + seed % 2
    problem = random_problem(seed, nodes=8, devices=devices, objective=objective, missing=0.2, grouped=True)
    problem = dataclasses.replace(problem, transfer_share=np.arange(devices) / 2)
    result = problem.evaluate(every_supported(problem))
    best = (result.latency_us if objective == "latency" else result.period_us).min()
    found = lower_bound(problem)
    assert found == pytest.approx(best, rel=1e-4)
    assert relaxed(problem) <= found <= best


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("seed", range(6))
def test_no_placement_is_below_the_bound(objective: str, seed: int) -> None:
    problem = random_problem(seed, nodes=8, devices=2, objective=objective, submodel_us=9.0, fusing=True)
    weights = problem.group_held.max(axis=1).sum()
    problem = dataclasses.replace(problem, memory_bytes=np.array([int(0.7 * weights) + 150, -1]))
    assert lower_bound(problem) <= problem.scores(every_supported(problem)).min()


def test_equal_devices_are_not_told_apart() -> None:
    problem = random_problem(4, nodes=8, devices=3, objective="throughput")
    equal = np.array([0, 0, 2])
    problem = dataclasses.replace(
        problem,
        node_us=problem.node_us[:, equal],
        supported=problem.supported[:, equal],
        transfer_us=np.where(np.eye(3, dtype=bool), 0.0, 2.0),
        transfer_us_per_byte=np.zeros((3, 3)),
    )
    best = problem.evaluate(every_supported(problem)).period_us.min()
    assert lower_bound(problem) == pytest.approx(best, rel=1e-4)


def test_what_does_not_fit_has_no_finite_bound() -> None:
    problem = random_problem(5, nodes=9, devices=2, objective="throughput")
    weights = int(problem.group_held[:, 0].sum())
    small = dataclasses.replace(problem, memory_bytes=np.full(2, weights // 2 - 2))
    assert np.isinf(lower_bound(small))
    # Halves that add up to enough, but into which no division of the groups fits.
    one = int(problem.group_held[:, 0].max())
    uneven = dataclasses.replace(problem, memory_bytes=np.array([one - 1, weights - one]))
    assert np.isinf(lower_bound(uneven)) == bool(np.isinf(problem_best(uneven)))


def problem_best(problem: PlacementProblem) -> float:
    """The least period of placements whose weights fit, inf where none does."""
    placements = every_supported(problem)
    held = np.stack(
        [np.where(placements == d, problem.group_held[:, d], 0.0).sum(axis=1) for d in range(len(problem.devices))], 1
    )
    fits = (held <= problem.memory_bytes).all(axis=1)
    return float(np.where(fits, problem.evaluate(placements).period_us, np.inf).min())
