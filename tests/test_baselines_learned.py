"""The rivals that learn: each finds the optimum of a small problem, and does what its paper says it does."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ov_hsdag.problem.problem import PlacementProblem
from research.baselines import go, learning, placeto, rnn
from research.baselines.budget import Baseline, Budget, BudgetSpent, Environment
from research.baselines.hsdag_published import HSDAGPublished
from research.baselines.units import UnitGraph, colocated, units
from tests.graphs import problem_of, random_problem


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@cache
def small() -> PlacementProblem:
    """Two branches of operations, each faster on one of two devices; the best placement uses both, in four parts."""
    us = [[10, 30], [12, 28], [30, 9], [28, 11], [25, 12], [9, 30], [14, 30], [28, 12], [30, 10], [16, 15]]
    sources = [[0], [1], [1], [3], [4], [2], [6], [5], [8], [7, 9]]
    problem = problem_of(sources, [[float(a), float(b)] for a, b in us])
    return replace(problem, groups=np.maximum(problem.groups - 1, 0).astype(np.int32))  # the Parameter joins the first


@cache
def optimum() -> float:
    """The least cost of all placements, seconds."""
    problem = small()
    every = np.array(list(itertools.product(range(2), repeat=problem.group_count)), np.uint8)
    costs = problem.scores(every) * 1e-6
    singles = problem.scores(problem.singles) * 1e-6
    assert (costs <= costs.min() * 1.0001).sum() == 1 and costs.min() < 0.7 * singles.min()
    return float(costs.min())


class Recorded:
    """The simulator, which remembers the costs that it gave."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem, self.costs = problem, np.zeros(0)

    def __call__(self, placements: NDArray[np.uint8]) -> NDArray[np.float64]:
        costs = self.problem.scores(placements) * 1e-6
        self.costs = np.append(self.costs, costs)
        return costs


LEARNERS: dict[str, Baseline] = {
    "rnn": rnn.RNN(colocate=False),
    "placeto": placeto.Placeto(colocate=False),
    "go": go.GO(colocate=False),
    # Chains are one node of its graph: the best of what it can say is not the optimum of all groups.
    "hsdag": HSDAGPublished(least_clusters=12),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNERS)
def test_learns_a_small_problem(name: str) -> None:
    """With half as many measurements as there are placements; what is drawn gets better."""
    judge = Recorded(small())
    environment = Environment(small(), Budget(evaluations=500), judge=judge)
    best = environment.run(LEARNERS[name], seed=1)
    assert environment.evaluations <= 500
    assert best is not None and best.cost == pytest.approx(optimum())
    assert np.median(judge.costs[-100:]) < np.median(judge.costs[:100])


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
        between = np.flatnonzero(graph.ancestors[:, above])
        assert below != above and ((above, below) in pairs or any((middle, below) in pairs for middle in between))


def test_ancestors_of_a_graph_with_every_edge() -> None:
    """SciPy takes another algorithm where edges are many."""
    problem = problem_of([list(range(count)) for count in range(1, 8)], [[1.0, 1.0]] * 7)
    graph = UnitGraph.of(problem)
    np.testing.assert_array_equal(graph.ancestors, np.tri(graph.size, k=-1, dtype=bool))


def test_colocation_joins_a_group_to_its_only_consumer() -> None:
    """1 → 2 → 3 → 5 and 1 → 4 → 5: 2 joins 3, 3 and 4 join 5; 1 has two consumers, and the Parameter joins it."""
    problem = problem_of([[0], [1], [2], [1], [3, 4]], [[1.0, 1.0]] * 5)
    merged = units(problem, colocate=True).unit
    assert len(set(merged)) == 2
    assert merged[0] == merged[1] and len(set(merged[2:])) == 1


def test_colocation_leaves_a_device_for_every_unit() -> None:
    problem = problem_of([[0], [1], [2]], [[1.0, 1.0]] * 3)
    problem.supported[1, 1] = problem.supported[3, 0] = problem.supported[4, 0] = False
    merged = colocated(problem)
    assert merged[1] != merged[3] and merged[2] == merged[3]
    assert UnitGraph.of(problem, merged).supported.any(axis=1).all()


def test_the_rnn_placer_stops_after_its_updates() -> None:
    environment = Environment(small())
    rnn.RNN(colocate=False, batch=5, updates=3).place(environment, 0)
    assert environment.evaluations == 15


@pytest.mark.slow  # each process imports torch
def test_several_controllers_share_parameters_and_one_budget() -> None:
    environment = Environment(small(), Budget(evaluations=90))
    settings = rnn.RNN(colocate=False, controllers=2, hidden=8, embedding=4, batch=5)
    graph = UnitGraph.of(small())
    with learning.seeded(0):
        network = rnn.Network(graph, settings)
    before = {name: value.clone() for name, value in network.named_parameters()}
    distributed = rnn.Distributed(environment, graph, network, settings)
    with pytest.raises(BudgetSpent):
        distributed.run(0)
    assert environment.evaluations == 90 and environment.best is not None
    assert all(count > 0 for count in distributed.served)
    assert all(not torch.equal(value, before[name]) for name, value in network.named_parameters())
    # What controllers compute in their processes counts, importing torch included.
    assert environment.seconds > 0.5


def test_placeto_pays_for_moves_alone() -> None:
    environment, settings = Environment(small()), placeto.Placeto(passes=2, hidden=4, rounds=2)
    with learning.seeded(3):
        task = placeto.Task.of(environment, units(small(), colocate=False))
        episode = placeto.run_episode(placeto.Network(task, settings), task, settings)
    steps = len(episode.rewards)
    assert steps == 2 * task.graph.size
    moves = int((episode.rewards != 0).sum())
    assert moves <= environment.evaluations - 1 < steps
    # Rewards add up to what the episode gained in all.
    last = episode.actions[task.graph.size :].numpy()
    start, end = small().scores(task.graph.expand(np.stack([np.zeros_like(last), last])))
    assert episode.rewards.sum() == pytest.approx(np.log(start) - np.log(end))


def test_placeto_sums_later_rewards() -> None:
    assert placeto.returns(np.array([1.0, 2.0, 4.0]), 0.5).tolist() == [3.0, 4.0, 4.0]


def test_go_attends_to_a_segment_and_the_one_before() -> None:
    """Node 9 of segments of four is in the third one: it sees nodes from 4 on, and nothing of the first segment."""
    with learning.seeded(0):
        layer = go.Attention(go.GO(hidden=8, heads=2, segment=4))
        x, summary = torch.randn(10, 8), torch.randn(8)
        base = layer(x, summary)
        seen = []
        for node in range(10):
            changed = x.clone()
            changed[node] += 1
            seen.append(bool((layer(changed, summary)[9] - base[9]).abs().max() > 1e-6))
    assert seen == [False] * 4 + [True] * 6


def test_go_takes_no_gradient_through_the_segment_before() -> None:
    with learning.seeded(0):
        layer = go.Attention(go.GO(hidden=8, heads=2, segment=4))
        x = torch.randn(10, 8, requires_grad=True)
        layer(x, torch.randn(8))[9, 0].backward()
    assert x.grad is not None
    assert (x.grad.abs().sum(1) > 0).tolist() == [False] * 8 + [True] * 2


def test_gos_modulation_depends_on_the_graph() -> None:
    with learning.seeded(0):
        modulation = go.Modulation(4)
        x = torch.randn(3, 4)
        one, other = modulation(x, torch.zeros(4)), modulation(x, torch.ones(4))
    ratio = other / one
    torch.testing.assert_close(ratio, ratio[:1].expand(3, -1))
    assert (ratio - 1).abs().max() > 1e-3
