"""The policy network: what it must not depend on, what it must depend on, and where its gradients go."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from ov_hsdag.policy.config import HSDAGConfig, Widths
from ov_hsdag.policy.features import PolicyInput
from ov_hsdag.training.network import GraphBatch, HSDAGNetwork, tensors
from tests.policy_inputs import WIDTHS, random_clusters, random_input

BASE = dataclasses.replace(HSDAGConfig.base(Widths(**WIDTHS)), residual=False)
SMALL = dataclasses.replace(BASE, hidden=16, layers=2, context=1)


@pytest.fixture(autouse=True)
def _torch() -> None:
    torch.manual_seed(0)


def network(config: HSDAGConfig) -> HSDAGNetwork:
    return HSDAGNetwork(config).eval()


def logits(net: HSDAGNetwork, item: PolicyInput, cluster: np.ndarray) -> Tensor:
    x = tensors(item)
    return net.logits(x, *net.encode(x), torch.from_numpy(cluster).long())


@pytest.mark.parametrize("config", [BASE, SMALL])
def test_graphs_in_a_batch_know_nothing_of_each_other(config: HSDAGConfig) -> None:
    generator = np.random.default_rng(5)
    items = [random_input(generator, nodes, 3) for nodes in (30, 7, 19)]
    clusters = [random_clusters(generator, len(item.node_x)) for item in items]
    net, x = network(config), GraphBatch.of([tensors(item) for item in items])
    counts = [int(cluster.max()) + 1 for cluster in clusters]
    firsts = np.cumsum([0, *counts[:-1]])
    joined = np.concatenate([cluster + first for cluster, first in zip(clusters, firsts, strict=True)])
    together = net.logits(x, *net.encode(x), torch.from_numpy(joined).long()).split(counts)
    for item, cluster, found in zip(items, clusters, together, strict=True):
        torch.testing.assert_close(found, logits(net, item, cluster), atol=1e-5, rtol=1e-4)


def test_the_order_of_devices_does_not_matter() -> None:
    generator = np.random.default_rng(2)
    item, cluster, order = random_input(generator, 30, 4), random_clusters(generator, 30), [2, 0, 3, 1]
    swapped = dataclasses.replace(item, pair_x=item.pair_x[:, order], device_x=item.device_x[order])
    net = network(BASE)
    torch.testing.assert_close(logits(net, swapped, cluster), logits(net, item, cluster)[:, order])


def test_the_order_of_nodes_and_clusters_does_not_matter() -> None:
    generator = np.random.default_rng(3)
    item, cluster = random_input(generator, 30, 2), random_clusters(generator, 30)
    order = generator.permutation(30)
    renumbered = np.argsort(order)
    moved = dataclasses.replace(
        item, node_x=item.node_x[order], pair_x=item.pair_x[order], edge_index=renumbered[item.edge_index]
    )
    names = generator.permutation(cluster.max() + 1)
    net = network(BASE)
    expected = logits(net, item, cluster)
    torch.testing.assert_close(logits(net, moved, names[cluster[order]])[names], expected, atol=1e-5, rtol=1e-4)


def test_the_direction_of_edges_is_known() -> None:
    item = random_input(np.random.default_rng(4), 30, 2)
    back = dataclasses.replace(item, edge_index=item.edge_index[::-1].copy())
    net = network(BASE)
    h, turned = (net.encode(tensors(graph))[0] for graph in (item, back))
    assert (h - turned).abs().max() > 1e-3


def test_edge_scores_know_what_devices_cost() -> None:
    generator = np.random.default_rng(5)
    item = random_input(generator, 30, 2)
    other = dataclasses.replace(item, pair_x=item.pair_x + generator.standard_normal(item.pair_x.shape, np.float32))
    net = network(BASE)
    scores = [net.encode(tensors(graph))[1] for graph in (item, other)]
    assert (scores[0] - scores[1]).abs().max() > 1e-3
    assert all(0 < score < 1 for score in scores[0].tolist())


def test_a_cluster_is_scaled_by_the_mean_score_of_the_edges_inside_it() -> None:
    net = network(BASE)
    h = torch.randn(5, BASE.hidden)
    cluster = torch.tensor([0, 0, 0, 1, 2])
    edge_index = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])  # two inside cluster 0, none inside 1 and 2
    x = SimpleNamespace(edge_index=edge_index)
    one = net.pool(x, h, torch.ones(4), cluster)
    scores = torch.tensor([0.2, 0.6, 0.5, 0.5], requires_grad=True)
    scaled = net.pool(x, h, scores, cluster)
    torch.testing.assert_close(scaled, one * torch.tensor([[0.4], [1.0], [1.0]]))
    scaled.square().sum().backward()
    assert scores.grad is not None
    assert (scores.grad != 0).tolist() == [True, True, False, False]


def test_a_policy_gradient_reaches_every_weight() -> None:
    generator = np.random.default_rng(6)
    net = network(BASE)
    values = logits(net, random_input(generator, 80, 3), random_clusters(generator, 80))
    distribution = torch.distributions.Categorical(logits=values)
    distribution.log_prob(distribution.sample()).sum().backward()
    idle = [key for key, p in net.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    # Adding the same to all logits of a cluster changes no probability.
    assert idle == [] or idle == ["placer.head.out.bias"]
    assert net.edge_scorer.out.weight.grad is not None


def _learn(config: HSDAGConfig, item: PolicyInput, wanted: np.ndarray, steps: int = 80) -> float:
    """Share of nodes, each its own cluster, that are placed as wanted after some imitation."""
    net, target = HSDAGNetwork(config).train(), torch.from_numpy(wanted)
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    cluster = np.arange(len(wanted))
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(logits(net, item, cluster), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float((logits(net.eval(), item, cluster).argmax(1) == target).float().mean())


@pytest.mark.slow
def test_it_learns_to_place_by_costs() -> None:
    item = random_input(np.random.default_rng(9), 60, 3)
    assert _learn(SMALL, item, item.pair_x[:, :, 0].argmin(1)) > 0.95


@pytest.mark.slow
def test_context_tells_a_cluster_what_its_neighbours_prefer() -> None:
    """On a chain, node i has to follow the preference of node i + 1: nothing about i itself tells it."""
    generator = np.random.default_rng(10)
    item = random_input(generator, 64, 2)
    prefers = generator.integers(0, 2, 64)
    pair_x = np.zeros_like(item.pair_x)
    pair_x[np.arange(64), prefers, 0] = 1
    item = dataclasses.replace(
        item,
        edge_index=np.stack([np.arange(63), np.arange(1, 64)]),
        edge_x=np.ones((63, WIDTHS["edge"]), np.float32),
        node_x=np.ones_like(item.node_x),
        pair_x=pair_x,
    )
    alone = dataclasses.replace(SMALL, layers=0, context=0)
    assert _learn(alone, item, np.roll(prefers, -1)) < 0.75
    assert _learn(dataclasses.replace(alone, context=1), item, np.roll(prefers, -1)) > 0.95
