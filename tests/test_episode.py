"""Learning one problem by the paper's algorithm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from ov_hsdag.placers.mincut import MinCut
from ov_hsdag.policy.config import Widths
from ov_hsdag.problem.problem import PlacementProblem
from research.baselines import published
from research.baselines.published import Network, Task, loss, paper_input, run_episode, train
from tests.graphs import random_problem


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """The graphs are small: threads would wait for each other longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def paper(problem: PlacementProblem) -> published.Config:
    return published.paper(Widths.of(paper_input(problem)), len(problem.devices))


def second_is_faster() -> PlacementProblem:
    """Everything takes a tenth of the time on the second device, and leaving it never pays."""
    problem = random_problem(3, nodes=30)
    node_us = np.tile([10.0, 1.0], (problem.graph.nodes, 1))
    return replace(problem, node_us=node_us, transfer_us=np.full((2, 2), 0.5), transfer_us_per_byte=np.zeros((2, 2)))


def test_reward_is_the_inverse_of_the_latency() -> None:
    problem = random_problem(5, nodes=20)
    task = Task.of(problem)
    assert task.reference == problem.scores(problem.singles).min()
    scores = np.array([task.reference, 2 * task.reference, np.inf])
    np.testing.assert_allclose(task.rewards(scores), [1, 0.5, 0])


def test_reward_has_a_reference_where_no_device_runs_everything() -> None:
    problem = random_problem(5, nodes=20, missing=0.3)
    assert np.isinf(problem.scores(problem.singles)).all()
    task = Task.of(problem)
    assert task.rewards(np.array([task.reference])) == 1
    assert 0 < task.reference < 1e6


def test_gradient_reaches_edge_scores_and_carried_features() -> None:
    problem = random_problem(5, nodes=40)
    config = paper(problem)
    torch.manual_seed(0)
    network = Network(config)
    episode = run_episode(network, Task.of(problem))
    assert len(episode.log_probability) == len(episode.scores) == config.steps
    loss(episode, config.discount).backward()
    assert network.output is not None
    for part in (network.edge_scorer, network.output, network.encoder, network.placer):
        gradients = [p.grad for p in part.parameters() if p.grad is not None]
        assert gradients and max(float(g.abs().max()) for g in gradients) > 0


def test_loss_weighs_each_step_by_what_follows() -> None:
    problem = random_problem(6, nodes=20)
    config = replace(paper(problem), steps=3)
    torch.manual_seed(0)
    episode = run_episode(Network(config), Task.of(problem))
    first, second, third = episode.rewards
    gains = np.array([first + 0.95 * second + 0.95**2 * third, second + 0.95 * third, third])
    expected = -(gains * episode.log_probability.detach().numpy()).sum()
    assert config.discount == 0.95
    assert float(loss(episode, config.discount).detach()) == pytest.approx(expected, rel=1e-5)


def test_each_step_sees_what_earlier_ones_added(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(7, nodes=25)
    config = replace(paper(problem), steps=4)
    torch.manual_seed(0)
    network = Network(config).eval()
    seen: list[torch.Tensor] = []
    added: list[torch.Tensor] = []
    encode, pool = network.encode, network.pool

    def watched_encode(x):  # type: ignore[no-untyped-def]
        seen.append(x.node_x)
        return encode(x)

    def watched_pool(x, h, edge_score, cluster):  # type: ignore[no-untyped-def]
        z = pool(x, h, edge_score, cluster)
        added.append(network.linear("output", z)[cluster])
        return z

    monkeypatch.setattr(network, "encode", watched_encode)
    monkeypatch.setattr(network, "pool", watched_pool)
    task = Task.of(problem)
    with torch.no_grad():
        run_episode(network, task, greedy=True)
    for step in range(4):
        torch.testing.assert_close(seen[step], task.inputs.node_x + sum(added[:step]))
    assert float(added[0].abs().max()) > 0


def test_every_placement_respects_support() -> None:
    problem = random_problem(8, nodes=40, missing=0.3)
    config = paper(problem)
    torch.manual_seed(0)
    episode = run_episode(Network(config), Task.of(problem))
    groups = np.arange(problem.group_count)
    assert all(problem.group_supported[groups, placement].all() for placement in episode.placements)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_learns_a_known_answer(seed: int) -> None:
    problem = second_is_faster()
    optimum = MinCut().place(problem)
    np.testing.assert_array_equal(optimum, problem.single(1))
    config = paper(problem)
    task = Task.of(problem)
    untrained = train(task, config, episodes=15, learning_rate=0.0, seed=seed)
    trained = train(task, config, episodes=50, learning_rate=3e-3, seed=seed)
    assert untrained.mean_reward.mean() < 0.7
    assert trained.mean_reward[-10:].mean() > 0.9
    np.testing.assert_array_equal(trained.greedy, optimum)
    assert trained.best_score == trained.greedy_score == problem.scores(optimum)[0] == task.reference


def test_same_seed_same_result() -> None:
    problem = random_problem(10, nodes=30, missing=0.1)
    config = replace(paper(problem), steps=5)
    task = Task.of(problem)
    torch.manual_seed(123)
    state = torch.get_rng_state()
    first, again, other = (train(task, config, episodes=4, learning_rate=1e-3, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    np.testing.assert_array_equal(first.mean_reward, again.mean_reward)
    np.testing.assert_array_equal(first.best, again.best)
    np.testing.assert_array_equal(first.greedy, again.greedy)
    assert (first.best_score, first.greedy_score) == (again.best_score, again.greedy_score)
    assert not np.array_equal(first.mean_reward, other.mean_reward)


def test_best_is_what_was_drawn_best(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(11, nodes=40)
    config = replace(paper(problem), steps=5)
    task = Task.of(problem)
    drawn: list[float] = []

    def watched(*given, **how):  # type: ignore[no-untyped-def]
        episode = run_episode(*given, **how)
        drawn.append(float(episode.scores.min()))
        return episode

    monkeypatch.setattr(published, "run_episode", watched)
    result = train(task, config, episodes=5, seed=2)
    assert result.best_score == min(drawn[:5]) and drawn.index(result.best_score) == result.best_episode
    assert problem.scores(result.best)[0] == result.best_score


def test_the_papers_features_know_no_costs() -> None:
    problem = random_problem(5, nodes=40)
    x = paper_input(problem)
    costlier = replace(problem, node_us=problem.node_us[:, ::-1] * 3, submodel_us=np.full(2, 9.0))
    for part in ("node_x", "pair_x", "device_x"):
        np.testing.assert_allclose(getattr(paper_input(costlier), part), getattr(x, part), atol=1e-5)
    assert not x.edge_x.any()
    assert x.pair_x[:, :, 0].all() and not x.pair_x[:, :, 1:].any()
