"""HSDAG as published, step by step beside a plain reimplementation of what the authors describe."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ov_hsdag.placers.mincut import MinCut
from ov_hsdag.problem.problem import PlacementProblem
from research.baselines import hsdag_published, learning
from research.baselines.budget import Budget, Environment
from research.baselines.hsdag_published import (
    FEATURES,
    GNN,
    HSDAGPublished,
    Messages,
    Network,
    Task,
    clusters,
    discounted,
    dominant_edges,
    paper_features,
    pooled_edges,
)
from tests.graphs import random_problem

SMALL = HSDAGPublished(hidden=16)
NODES = 40


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def random_edges(seed: int, nodes: int = NODES, count: int = 55) -> NDArray[np.int64]:
    """Edges of a random graph, each pair once; node 0 has none."""
    ends = np.sort(np.random.default_rng(seed).integers(1, nodes, (2, count)), axis=0)
    return np.unique(ends[:, ends[0] < ends[1]], axis=1).astype(np.int64)


def random_scores(seed: int, edges: NDArray[np.int64]) -> NDArray[np.float32]:
    return np.random.default_rng(seed).uniform(0.1, 0.9, (edges.shape[1],)).astype(np.float32)


def network(seed: int = 0, features: int = 6, settings: HSDAGPublished = SMALL) -> Network:
    with learning.seeded(seed):
        return Network(features, 2, settings).eval()


def neighbours(edges: NDArray[np.int64], node: int) -> list[tuple[int, int]]:
    """(edge, other end) of each edge at a node."""
    ends = enumerate(edges.T.tolist())
    return [(number, b if a == node else a) for number, (a, b) in ends if node in (a, b)]


def plain_clusters(score: NDArray[np.float32], edges: NDArray[np.int64], nodes: int) -> list[set[int]]:
    """A node and the other end of its best edge share a cluster, for all nodes."""
    sets = [{node} for node in range(nodes)]
    for node in range(nodes):
        if at := neighbours(edges, node):
            _, other = max(at, key=lambda edge: score[edge[0]])
            whole = sets[node] | sets[other]
            for member in whole:
                sets[member] = whole
    return sets


def plain_numbers(sets: list[set[int]]) -> NDArray[np.int64]:
    """Number of each node's cluster, in the order of their first nodes."""
    firsts = sorted({min(members) for members in sets})
    return np.array([firsts.index(min(members)) for members in sets])


def plain_convolution(convolution: nn.Module, h: Tensor, edges: NDArray[np.int64]) -> Tensor:
    """D^-½ (A + I) D^-½ h W + b, with a dense matrix."""
    adjacency = torch.eye(len(h))
    for a, b in edges.T.tolist():
        adjacency[a, b] = adjacency[b, a] = 1.0
    root = adjacency.sum(1).rsqrt()
    result: Tensor = (root[:, None] * adjacency * root) @ h @ convolution.lin.weight.T + convolution.bias
    return result


def plain_gnn(gnn: GNN, h: Tensor, edges: NDArray[np.int64]) -> Tensor:
    """Convolutions, what went in added, normalized."""
    x = h
    for convolution in gnn.convolutions:
        x = plain_convolution(convolution, x, edges).clip(0)
    result: Tensor = gnn.norm(h + x)
    return result


def plain_scores(net: Network, h: Tensor, edges: NDArray[np.int64]) -> Tensor:
    """sigmoid(MLP(h_a · h_b)) of each edge."""
    linear, norm, _, _, last = net.edge_score
    scores = [torch.sigmoid(last(norm(linear(h[a] * h[b])).clip(0)))[0] for a, b in edges.T.tolist()]
    return torch.stack(scores)


def plain_pooled(
    net: Network, h: Tensor, score: Tensor, edges: NDArray[np.int64], cluster: NDArray[np.int64]
) -> Tensor:
    """DeepSets of each cluster's members, times the mean score of the edges inside and their number, both ways."""
    member = net.member.norm(h + net.member.linear(h))
    rows = []
    for number in range(int(cluster.max()) + 1):
        total = member[np.flatnonzero(cluster == number)].sum(0)
        whole = net.whole.norm(total + net.whole.linear(total))
        inside = np.flatnonzero((cluster[edges] == number).all(axis=0))
        rows.append(whole * score[inside].mean() * 2 * len(inside) if len(inside) else whole)
    return torch.stack(rows)


def plain_pooled_edges(edges: NDArray[np.int64], cluster: NDArray[np.int64]) -> set[tuple[int, int]]:
    """Pairs of clusters that an edge joins."""
    ends = cluster[edges].T.tolist()
    return {(min(a, b), max(a, b)) for a, b in ends if a != b}


def test_a_convolution_is_the_normalized_sum_over_neighbours_and_itself() -> None:
    edges, net = random_edges(0), network()
    h = torch.randn(NODES, SMALL.hidden, generator=torch.Generator().manual_seed(1))
    (convolution,) = net.pooling.convolutions
    messages = Messages.along(torch.from_numpy(edges), NODES)
    found = convolution(h, messages.edge_index, messages.weight)
    torch.testing.assert_close(found, plain_convolution(convolution, h, edges))


def test_a_gnn_adds_what_goes_in_and_normalizes() -> None:
    edges, net = random_edges(0), network()
    h = torch.randn(NODES, SMALL.hidden, generator=torch.Generator().manual_seed(1))
    messages = Messages.along(torch.from_numpy(edges), NODES)
    for gnn in (net.scoring, net.pooling):
        torch.testing.assert_close(gnn(h, messages), plain_gnn(gnn, h, edges))


def test_edge_scores_are_of_the_product_of_both_ends() -> None:
    edges, net = random_edges(0), network()
    h = torch.randn(NODES, SMALL.hidden, generator=torch.Generator().manual_seed(2))
    found = net.scores(h, torch.from_numpy(edges))
    assert found.shape == (edges.shape[1],)
    torch.testing.assert_close(found, plain_scores(net, h, edges))
    torch.testing.assert_close(found, net.scores(h, torch.from_numpy(edges[::-1].copy())))


def test_the_dominant_edge_of_a_node_has_the_highest_score() -> None:
    edges = random_edges(3)
    score = random_scores(3, edges)
    score[5] = score[6] = score.max()  # of equal ones the first counts
    found = dominant_edges(score, edges, NODES)
    for node in range(NODES):
        at = [number for number, _ in neighbours(edges, node)]
        assert found[node] == (max(at, key=lambda number: score[number]) if at else -1)
    assert found[0] == -1


@pytest.mark.parametrize("seed", range(5))
def test_nodes_that_dominant_edges_connect_are_a_cluster(seed: int) -> None:
    edges = random_edges(seed)
    score = random_scores(seed, edges)
    cluster, count = clusters(score, edges, NODES, least=1)
    sets = plain_clusters(score, edges, NODES)
    for node in range(NODES):
        assert {other for other in range(NODES) if cluster[other] == cluster[node]} == sets[node]
    assert sorted(set(cluster)) == list(range(count)) and count < NODES
    assert (cluster == cluster[0]).sum() == 1  # a node without edges stays alone


def test_parsing_ends_with_the_least_number_of_clusters() -> None:
    edges = np.array([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]])
    score = np.array([0.5, 0.6, 0.7, 0.8, 0.9], np.float32)
    assert clusters(score, edges, 6, least=1)[1] == 1
    cluster, count = clusters(score, edges, 6, least=3)
    assert count == 3 and cluster.tolist() == [0, 1, 2, 2, 2, 2]  # the best edges merged
    assert clusters(score, edges, 6, least=9)[1] == 6


def test_pooled_features_are_sums_times_mean_score_and_links() -> None:
    edges, net = random_edges(4), network()
    score = torch.from_numpy(random_scores(4, edges)).requires_grad_()
    cluster, count = clusters(score.detach().numpy(), edges, NODES, least=1)
    h = torch.randn(NODES, SMALL.hidden, generator=torch.Generator().manual_seed(3))
    found = net.pool(h, score, torch.from_numpy(edges), torch.from_numpy(cluster), count)
    torch.testing.assert_close(found, plain_pooled(net, h, score, edges, cluster))
    assert len(found) == count
    found.square().sum().backward()
    assert score.grad is not None
    inside = (cluster[edges[0]] == cluster[edges[1]]).tolist()
    assert (score.grad != 0).tolist() == inside


def test_pooled_edges_join_the_clusters_of_their_ends() -> None:
    edges = random_edges(5)
    cluster, _ = clusters(random_scores(5, edges), edges, NODES, least=1)
    found = list(map(tuple, pooled_edges(edges, cluster).T.tolist()))
    assert len(found) == len(set(found)) and set(found) == plain_pooled_edges(edges, cluster)


def test_the_next_level_embeds_the_pooled_graph_again() -> None:
    """Two levels, plainly; the edges of the second are scored on embeddings of what the first pooled."""
    settings = replace(SMALL, levels=2, least_clusters=1)
    net, edges = network(settings=settings), random_edges(6)
    x = torch.randn(NODES, 6, generator=torch.Generator().manual_seed(4))
    h, of_node, at = net.input(x), np.arange(NODES), edges
    for _ in range(2):
        score = plain_scores(net, plain_gnn(net.scoring, h, at), at)
        cluster = plain_numbers(plain_clusters(score.detach().numpy(), at, len(h)))
        h = plain_pooled(net, plain_gnn(net.pooling, h, at), score, at, cluster)
        at, of_node = np.array(sorted(plain_pooled_edges(at, cluster))).T, cluster[of_node]
    z, found = net(x, torch.from_numpy(edges))
    np.testing.assert_array_equal(found.numpy(), of_node)
    torch.testing.assert_close(z, net.output(h))
    assert len(z) < len(network(settings=replace(settings, levels=1))(x, torch.from_numpy(edges))[0])


def test_levels_go_on_until_nothing_merges() -> None:
    edges = random_edges(7)
    x = torch.randn(NODES, 6, generator=torch.Generator().manual_seed(5))
    z, cluster = network(settings=replace(SMALL, least_clusters=1))(x, torch.from_numpy(edges))
    # One cluster for each connected part: no edge is left between two.
    assert pooled_edges(edges, cluster.numpy()).shape == (2, 0)
    assert len(z) == int(cluster.max()) + 1 > 1
    assert len(network(settings=replace(SMALL, least_clusters=12))(x, torch.from_numpy(edges))[0]) == 12


def test_every_weight_learns() -> None:
    net, edges = network(), torch.from_numpy(random_edges(8))
    z, _ = net(torch.randn(NODES, 6, generator=torch.Generator().manual_seed(6)), edges)
    torch.log_softmax(net.devices(z), 1)[:, 0].sum().backward()
    idle = [name for name, p in net.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert not idle


def second_is_faster(times: float = 10.0, nodes: int = 30) -> PlacementProblem:
    """Everything is so many times faster on the second device, and leaving it never pays."""
    problem = random_problem(3, nodes=nodes)
    node_us = np.tile([times, 1.0], (problem.graph.nodes, 1))
    return replace(problem, node_us=node_us, transfer_us=np.full((2, 2), 0.5), transfer_us_per_byte=np.zeros((2, 2)))


@pytest.mark.slow
def test_learns_a_known_answer() -> None:
    """Nearly all that it draws in the end is the best placement.

    Without a baseline REINFORCE makes whatever it draws likelier, by what it earns, so that what it learns from
    placements which earn alike, or from what later ones earned, is mostly chance. Here all but the best one earn next
    to nothing, and each step earns what its own placement does.
    """
    problem = second_is_faster(times=100.0, nodes=12)
    np.testing.assert_array_equal(MinCut().place(problem), problem.single(1))
    costs: list[float] = []

    def judge(placements: NDArray[np.uint8]) -> NDArray[np.float64]:
        found = problem.scores(placements) * 1e-6
        costs.extend(found)
        return found

    settings = HSDAGPublished(hidden=32, learning_rate=1e-2, least_clusters=3, discount=0.0)
    Environment(problem, Budget(250), judge=judge).run(settings, seed=0)
    share = float(problem.scores(problem.single(1))[0]) * 1e-6 / np.array(costs)
    assert share[:50].mean() < 0.5 and share[-50:].mean() > 0.9


def test_every_placement_is_paid_for_and_respects_support() -> None:
    problem = random_problem(8, nodes=40, missing=0.3)
    placed: list[NDArray[np.uint8]] = []

    def judge(placements: NDArray[np.uint8]) -> NDArray[np.float64]:
        placed.extend(placements)
        return problem.scores(placements) * 1e-6

    environment = Environment(problem, Budget(50), judge=judge)
    environment.run(SMALL, seed=0)
    assert environment.evaluations == len(placed) == 50
    groups = np.arange(problem.group_count)
    assert all(problem.group_supported[groups, placement].all() for placement in placed)


def test_the_same_seed_places_the_same() -> None:
    problem = random_problem(10, nodes=30, missing=0.1)

    def drawn(seed: int) -> list[bytes]:
        found: list[bytes] = []
        judge = lambda batch: found.extend(one.tobytes() for one in batch) or problem.scores(batch) * 1e-6  # noqa: E731
        Environment(problem, Budget(45), judge=judge).run(SMALL, seed)
        return found

    state = torch.get_rng_state()
    assert drawn(0) == drawn(0) != drawn(1)
    assert torch.equal(torch.get_rng_state(), state)


def test_each_step_sees_what_earlier_ones_added(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(7, nodes=25)
    task = Task.of(Environment(problem))
    net = network(features=task.x.shape[1])
    seen, added, forward = [], [], net.forward

    def watched(x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        z, cluster = forward(x, edges)
        seen.append(x)
        added.append(z.detach()[cluster])
        return z, cluster

    monkeypatch.setattr(net, "forward", watched)
    hsdag_published.learn(net, task, replace(SMALL, steps=4, episodes=1))
    assert len(seen) == 4 and float(added[0].abs().max()) > 0
    for step in range(4):
        torch.testing.assert_close(seen[step], task.x + sum(added[:step]))


def test_a_step_earns_what_follows_it() -> None:
    np.testing.assert_allclose(discounted(np.array([1.0, 2.0, 4.0]), 0.5), [3.0, 4.0, 4.0])


def test_an_update_follows_the_gradient_of_reinforce(monkeypatch: pytest.MonkeyPatch) -> None:
    """-Σ_t Σ_{k ≥ t} discount^(k - t) r_k ∇ log π(a_t), of the placements that were drawn, plainly."""
    problem = second_is_faster()
    settings = replace(SMALL, steps=3, episodes=1, dropout=0.0)
    costs: list[float] = []
    drawn: list[Tensor] = []

    def judge(placements: NDArray[np.uint8]) -> NDArray[np.float64]:
        costs.extend(problem.scores(placements) * 1e-6)
        return np.array(costs[-len(placements) :])

    def draw(log_probability: Tensor) -> Tensor:
        drawn.append(torch.multinomial(log_probability.detach().exp(), 1)[:, 0])
        return drawn[-1]

    monkeypatch.setattr(learning, "draw", draw)
    task = Task.of(Environment(problem, judge=judge))
    net = network(features=task.x.shape[1], settings=settings)
    before = deepcopy(net)
    hsdag_published.learn(net, task, settings)
    reward = [task.reference / cost for cost in costs]
    x, loss = task.x, torch.zeros(())
    for step, devices in enumerate(drawn):
        z, cluster = before(x, task.edges)
        log_probability = torch.log_softmax(before.devices(z), 1)[torch.arange(len(devices)), devices].sum()
        gain = sum(settings.discount ** (later - step) * reward[later] for later in range(step, 3))
        loss, x = loss - gain * log_probability, x + z.detach()[cluster]
    loss.backward()
    for name, parameter in before.named_parameters():
        torch.testing.assert_close(net.get_parameter(name).grad, parameter.grad, msg=name)


def test_rewards_have_a_reference_where_no_device_runs_everything() -> None:
    problem = random_problem(5, nodes=20, missing=0.3)
    assert np.isinf(problem.scores(problem.singles)).all()
    assert 0 < Task.of(Environment(problem)).reference < 1


def test_the_papers_features_know_no_costs() -> None:
    problem = random_problem(5, nodes=40)
    costlier = replace(problem, node_us=problem.node_us[:, ::-1] * 3, submodel_us=np.full(2, 9.0))
    for one, other in zip(paper_features(problem), paper_features(costlier), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_ablations_take_away_their_columns() -> None:
    problem = random_problem(12, nodes=25)
    whole = paper_features(problem)[0]
    assert whole.shape[1] == sum(FEATURES.values())
    begin = 0
    for name, width in FEATURES.items():
        rest = paper_features(problem, (name,))[0]
        np.testing.assert_array_equal(rest, np.delete(whole, np.s_[begin : begin + width], axis=1))
        begin += width
