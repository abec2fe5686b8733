"""The learned baselines: each reaches the optimum of a small problem, and does what its paper says it does."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ov_hsdag.problem.problem import PlacementProblem
from research.baselines import learning, placeto, rnn
from research.baselines.budget import Budget, Environment
from research.baselines.graph import UnitGraph, colocated
from tests.graphs import problem_of, random_problem


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def together(problem: PlacementProblem) -> PlacementProblem:
    """The problem with its Parameter in the first operation's group."""
    return replace(problem, groups=np.maximum(problem.groups - 1, 0).astype(np.int32))


@cache
def small() -> PlacementProblem:
    """Two branches of operations, each faster on one of two devices; the best placement uses both, in four parts."""
    us = [[10, 30], [12, 28], [30, 9], [28, 11], [25, 12], [9, 30], [14, 30], [28, 12], [30, 10], [16, 15]]
    sources = [[0], [1], [1], [3], [4], [2], [6], [5], [8], [7, 9]]
    return together(problem_of(sources, [[float(a), float(b)] for a, b in us]))


@cache
def optimum() -> float:
    """The least cost of all placements, seconds."""
    problem = small()
    every = np.array(list(itertools.product(range(2), repeat=problem.group_count)), np.uint8)
    costs = problem.scores(every) * 1e-6
    singles = problem.scores(problem.singles) * 1e-6
    assert (costs <= costs.min() * 1.0001).sum() == 1 and costs.min() < 0.7 * singles.min()
    return float(costs.min())


class Kept:
    """The simulator, which remembers what it said."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem, self.costs = problem, np.zeros(0)

    def __call__(self, placements: NDArray[np.uint8]) -> NDArray[np.float64]:
        found = self.problem.scores(placements) * 1e-6
        self.costs = np.append(self.costs, found)
        return found


LEARNERS = {"rnn": rnn.RNN(colocate=False), "placeto": placeto.Placeto(colocate=False)}


@pytest.mark.parametrize("name", LEARNERS)
def test_learns_a_small_problem(name: str) -> None:
    """With half as many measurements as there are placements; what is drawn gets better."""
    kept = Kept(small())
    environment = Environment(small(), Budget(evaluations=500), judge=kept)
    best = environment.run(LEARNERS[name], seed=1)
    assert environment.evaluations <= 500
    assert best is not None and best.cost == pytest.approx(optimum())
    first, last = np.median(kept.costs[:100]), np.median(kept.costs[-100:])
    assert last < first


def test_units_are_in_topological_order_and_expand_to_groups() -> None:
    problem = random_problem(4, nodes=15, devices=3, missing=0.2, grouped=True)
    graph = UnitGraph.of(problem)
    assert graph.size == problem.group_count and sorted(graph.unit) == list(range(graph.size))
    np.testing.assert_array_equal(graph.us[graph.unit], problem.group_us)
    devices = np.random.default_rng(0).integers(0, 3, (4, graph.size))
    placements = graph.expand(devices)
    np.testing.assert_array_equal(placements[:, 3], devices[:, graph.unit[3]])
    pairs = set(zip(*graph.edges.tolist(), strict=True))
    tensors = problem.tensors
    for tensor, source in enumerate(tensors.source):
        for consumer in tensors.consumers[tensors.consumer_ptr[tensor] : tensors.consumer_ptr[tensor + 1]]:
            assert (graph.unit[source], graph.unit[consumer]) in pairs
    for below, above in zip(*np.nonzero(graph.ancestors), strict=True):
        assert below != above and (
            (above, below) in pairs or any((mid, below) in pairs for mid in np.flatnonzero(graph.ancestors[:, above]))
        )


def test_ancestors_of_a_graph_with_every_edge() -> None:
    """SciPy takes another algorithm where edges are many."""
    problem = problem_of([list(range(count)) for count in range(1, 8)], [[1.0, 1.0]] * 7)
    graph = UnitGraph.of(problem)
    np.testing.assert_array_equal(graph.ancestors, np.tri(graph.size, k=-1, dtype=bool))


def test_colocation_joins_a_group_to_its_only_consumer() -> None:
    """1 → 2 → 3 → 5 and 1 → 4 → 5: 2 joins 3, 3 and 4 join 5; 1 has two consumers, and the Parameter joins it."""
    problem = problem_of([[0], [1], [2], [1], [3, 4]], [[1.0, 1.0]] * 5)
    merged = UnitGraph.of(problem, colocated(problem)).unit
    assert len(set(merged)) == 2
    assert merged[0] == merged[1] and len(set(merged[2:])) == 1


def test_colocation_keeps_a_device_for_all() -> None:
    problem = problem_of([[0], [1], [2]], [[1.0, 1.0]] * 3)
    problem.supported[1, 1] = problem.supported[3, 0] = problem.supported[4, 0] = False
    merged = colocated(problem)
    assert merged[1] != merged[3] and merged[2] == merged[3]
    assert UnitGraph.of(problem, merged).supported.any(axis=1).all()


def test_the_rnn_placer_stops_by_itself() -> None:
    environment = Environment(small())
    rnn.RNN(colocate=False, batch=5, updates=3).place(environment, 0)
    assert environment.evaluations == 15


def test_placeto_pays_for_moves_alone() -> None:
    environment = Environment(small())
    with learning.seeded(3):
        task = placeto.Task.of(environment, colocate=False)
        network = placeto.Network(task, 4, 2)
        episode = placeto.run_episode(network, task, passes=2)
    steps = len(episode.rewards)
    assert steps == 2 * task.graph.size
    moves = int((np.array(episode.rewards) != 0).sum())
    assert moves <= environment.evaluations - 1 < steps
    # Rewards add up to what the episode gained in all.
    last = episode.actions[task.graph.size :].numpy()
    start, end = environment.exact(task.graph.expand(np.stack([np.zeros_like(last), last])))
    infeasible = learning.FAILED * task.graph.reference
    gained = np.log(start) - np.log(end if np.isfinite(end) else infeasible)
    assert episode.rewards.sum() == pytest.approx(gained)


def test_placeto_sums_later_rewards() -> None:
    assert placeto.returns(np.array([1.0, 2.0, 4.0]), 0.5).tolist() == [3.0, 4.0, 4.0]
