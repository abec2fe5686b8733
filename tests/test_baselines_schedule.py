"""The scheduling simulator: hand-computed schedules, and the package's own simulator where both mean the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ov_hsdag.model.graph import NodeKind
from ov_hsdag.problem.problem import PlacementProblem
from research.baselines.schedule import Scheduler, Units
from tests.graphs import problem_of, random_problem


def two_branches() -> PlacementProblem:
    """Operation 1 feeds 2 and 3, operation 4 reads both; 10 µs on A and 20 µs on B each."""
    return problem_of([[0], [1], [1], [2, 3]], [[10.0, 20.0]] * 4)


def test_branches_on_two_devices_run_at_once() -> None:
    """On A: 1 takes 1 + 10; 2 takes 1 + 10 until 22; 3 on B takes 2 + 1 + 20 until 34; 4 on A takes 2 + 1 + 10."""
    found = Scheduler(two_branches(), 1).schedule(np.array([0, 0, 0, 1, 0], np.uint8), fused=np.zeros(5, np.uint8))
    assert found.units.device.tolist() == [0, 0, 1, 0]
    assert found.start.tolist() == [[0, 11, 11, 34]] and found.end.tolist() == [[11, 22, 34, 47]]


def test_one_device_keeps_all_fusions_in_one_unit() -> None:
    scheduler = Scheduler(two_branches(), 3)
    found = scheduler.schedule(np.zeros(5, np.uint8))
    assert found.start.tolist() == [[0], [41], [82]] and found.makespan_us == 123
    assert scheduler.costs(np.zeros((1, 5), np.uint8)) == pytest.approx(41e-6)


def test_two_requests_fill_the_gaps_of_a_chain() -> None:
    """A runs 1 (11 µs), B runs 2 (23 µs with the transfer): the second request waits for B alone."""
    problem = problem_of([[0], [1]], [[10.0, 20.0]] * 2)
    found = Scheduler(problem, 2).schedule(np.array([0, 0, 1], np.uint8))
    assert found.start.tolist() == [[0, 11], [11, 34]] and found.end.tolist() == [[11, 34], [22, 57]]


def test_priorities_decide_what_runs_first() -> None:
    """Of two branches on A, the second feeds the long operation on B: with priority it begins 11 µs earlier."""
    problem = problem_of([[0], [0], [2]], [[10.0, 99.0], [10.0, 99.0], [99.0, 50.0]])
    placement, fused = np.array([0, 0, 0, 1], np.uint8), np.zeros(4, np.uint8)
    scheduler = Scheduler(problem, 1)
    assert scheduler.schedule(placement, None, fused).makespan_us == 22 + 2 + 1 + 50
    assert scheduler.schedule(placement, np.array([0, 0, 3, 0], np.uint8), fused).makespan_us == 11 + 2 + 1 + 50


def test_cutting_breaks_fusions_and_costs_a_submodel_each() -> None:
    base = problem_of([[0], [1], [2]], [[10.0, 20.0]] * 3)
    fused_with, penalty = np.full((5, 2), -1, np.int32), np.zeros((5, 2))
    fused_with[2, 0], penalty[2, 0] = 1, 4.0
    problem = replace(base, fused_with=fused_with, fusion_penalty_us=penalty)
    scheduler, placement = Scheduler(problem, 1), np.zeros(4, np.uint8)
    for fused, expected in (([1, 1, 1, 1], 31), ([1, 1, 0, 1], 32 + 4), ([1, 1, 1, 0], 32), ([1, 1, 0, 0], 33 + 4)):
        assert scheduler.schedule(placement, None, np.array(fused, np.uint8)).makespan_us == expected


def test_a_tensor_moves_once_to_each_device() -> None:
    """1 on A feeds 2 and 3 on B, which are two units: the first pays for the transfer."""
    problem = problem_of([[0], [1], [1]], [[10.0, 20.0]] * 3)
    found = Scheduler(problem, 1).schedule(np.array([0, 0, 1, 1], np.uint8), fused=np.zeros(4, np.uint8))
    assert sorted((found.end - found.start)[0].tolist()) == [11, 21, 23]


@pytest.mark.parametrize("seed", range(12))
def test_work_of_whole_submodels_is_the_latency_of_the_simulator(seed: int) -> None:
    problem = random_problem(seed, nodes=14, devices=3, submodel_us=7.0, fusing=True)
    # What a request brings has no time in models.
    problem.node_us[problem.graph.kinds == NodeKind.PARAMETER] = 0
    for placement in np.random.default_rng(seed).integers(0, 3, (10, problem.group_count)).astype(np.uint8):
        evaluation = problem.evaluate(placement)
        scheduler = Scheduler(problem, 1)
        if evaluation.infeasible[0]:
            assert np.isinf(scheduler.costs(placement[None]))
            continue
        found = scheduler.schedule(placement)
        work = found.end - found.start
        assert work.sum() == pytest.approx(evaluation.latency_us[0])
        assert found.makespan_us <= evaluation.latency_us[0] + 1e-9
        same = scheduler.schedule(placement, fused=np.ones(problem.group_count, np.uint8))
        assert same.makespan_us == found.makespan_us


@pytest.mark.parametrize("seed", range(6))
def test_schedules_are_possible(seed: int) -> None:
    """No device runs two units at once, and none begins before what it waits for has ended."""
    problem = random_problem(seed, nodes=20, devices=2, submodel_us=3.0, fusing=True)
    generator = np.random.default_rng(seed)
    for placement in problem.random(generator, 5):
        decisions = generator.integers(0, 4, (2, problem.group_count)).astype(np.uint8)
        found = Scheduler(problem, 3).schedule(placement, decisions[0], decisions[1] % 2)
        units: Units = found.units
        for unit, others in enumerate(units.waits_for):
            for other in others:
                assert (found.start[:, unit] >= found.end[:, other]).all()
        for device in range(2):
            mine = units.device == device
            order = np.argsort(found.start[:, mine], axis=None)
            start, end = found.start[:, mine].ravel()[order], found.end[:, mine].ravel()[order]
            assert (start[1:] >= end[:-1] - 1e-9).all()
