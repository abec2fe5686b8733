"""Tests that the solver's optimum is the best of all placements, and that drawn problems are of their kinds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.quality import optimum as command
from ov_hsdag.problem.problem import OBJECTIVES, PlacementProblem
from tests.graphs import every_placement, problem_of, random_problem

pytest.importorskip("ortools")

from research.baselines.exact import TOLERANCE, connected_parts, optimum

SECONDS = 60.0
"""Time limit of the solver: a hundred times what these problems take."""


def small_problem(seed: int) -> PlacementProblem:
    """Up to seven nodes on two or three devices, so that all placements can be tried."""
    generator = np.random.default_rng(seed)
    problem = random_problem(
        seed,
        nodes=int(generator.integers(3, 8)),
        devices=int(generator.integers(2, 4)),
        objective=OBJECTIVES[seed % 2],
        submodel_us=float(generator.integers(0, 8)),
        missing=0.2 * (seed % 3 == 0),
        grouped=bool(generator.integers(2)),
        fusing=bool(generator.integers(2)),
    )
    limit = -1
    if seed % 5 < 2:
        limit = int(problem.evaluate(problem.singles).memory_bytes.max() * generator.uniform(0.6, 1.0))
    rule = int(generator.integers(2))
    return replace(problem, rule=rule, memory_bytes=np.full(len(problem.devices), limit))


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_the_solver_finds_the_least_of_all_placements(first: int) -> None:
    for seed in range(first, first + 10):
        problem = small_problem(seed)
        least = problem.scores(every_placement(problem)).min()
        found = optimum(problem, problem.singles, seconds=SECONDS)
        assert found.proven, seed
        assert found.score_us == pytest.approx(least, rel=TOLERANCE), seed
        assert found.bound_us == found.score_us, seed


def test_equal_devices_are_no_two_answers() -> None:
    """Four equal operations on four equal devices: one each, whatever their order."""
    problem = problem_of([[0]] * 4, [[10.0] * 4] * 4, objective="throughput", submodel_us=np.zeros(4))
    free = replace(problem, transfer_us=np.zeros((4, 4)))
    found = optimum(free, free.singles, seconds=SECONDS)
    assert found.proven and found.score_us == pytest.approx(10.0)
    assert found.placement is not None
    assert len(set(found.placement[1:5].tolist())) == 4


def test_a_part_that_waits_for_itself_is_two_submodels() -> None:
    """In a → b → c with a → c, nodes a and c cannot be one submodel without b."""
    us = [[0.0, 100.0], [100.0, 0.0], [0.0, 100.0]]
    problem = problem_of([[0], [1], [1, 2]], us)
    placement = np.array([0, 0, 1, 0], np.uint8)
    found = optimum(problem, problem.singles, seconds=SECONDS)
    assert found.placement is not None and found.placement.tolist() == placement.tolist()
    assert connected_parts(problem, placement) == 2
    assert problem.evaluate(placement).submodels[0] == 3
    # Three submodels of 1 µs, and two transfers of 2 µs.
    assert found.proven and found.score_us == pytest.approx(7.0)


def test_a_bound_holds_where_the_time_is_short() -> None:
    problem = small_problem(1)
    least = problem.scores(every_placement(problem)).min()
    found = optimum(problem, problem.singles, seconds=0.0)
    assert found.bound_us <= least <= found.score_us
    assert 0 <= found.gap <= 1


def test_problems_are_of_their_kinds() -> None:
    kinds = [command.Kind.of(number) for number in range(48)]
    assert len(set(kinds)) == 48
    for number in range(0, 48, 5):
        kind, problem = command.Kind.of(number), command.draw(number)
        assert len(problem.devices) == kind.devices
        assert problem.objective == kind.objective
        assert problem.group_supported.all() != kind.lacking
        exceeds = problem.evaluate(problem.singles).memory_bytes.max() > problem.memory_limits
        assert exceeds.all() if kind.limited else not exceeds.any()
        assert problem.group_count <= command.MOST_OPERATIONS + 4


def test_a_default_that_is_far_behind_misses_the_floor() -> None:
    def cell(default_us: float | None) -> dict[str, object]:
        return {"default_us": default_us, "best_us": 100.0, "bound_us": 100.0, "proven": True}

    assert not command.missed({str(number): cell(100.05) for number in range(20)})
    assert not command.missed({"0": cell(100.5), **{str(number): cell(100.0) for number in range(1, 20)}})
    assert len(command.missed({str(number): cell(100.5) for number in range(20)})) == 1
    assert len(command.missed({"0": cell(None), "1": cell(None)})) == 2
    lines = command.table({"0": cell(100.5), "1": cell(100.0)}).splitlines()
    assert lines[2].startswith("| all | 2 | 2 | 0 | 1 | 2 | 0.50% | – |")
