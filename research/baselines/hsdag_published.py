"""HSDAG as published: Duan et al., A Structure-Aware Framework for Learning Device Placements, NeurIPS 2024.

The paper (arXiv:2405.14185) has five steps, which are in:

    1  graph construction, with chains coarsened      `PlacementProblem.coarse`, which legality's groups join
    2  feature extraction                             `paper_features`
    3  embeddings and groups together, by levels      `Network.forward`: the hierarchy
    4  device placement                               `Network.devices`, a softmax over a fixed number of devices
    5  updates from execution times                   `learn`: REINFORCE

A level of the hierarchy (graph parsing networks: Song et al., ICLR 2024, arXiv:2402.14393) embeds the graph, scores its
edges, merges each node with the other end of its best edge, and pools merged nodes into the nodes of a smaller graph.
The next level does the same with that graph, until nothing merges.

Sizes, layers and the learning rate are those of the authors' code (github.com/hping666/HSDAG). The differences are:

- An edge has one score. In the authors' code both directions have their own while dropout is active.
- Parsing ends with `least_clusters` clusters. The authors' code continues until nothing merges, which leaves one
  cluster for each connected part of a graph, and so a single device, which it counts as failed. Here a single device
  has its measured cost.
- The return of a step is that of itself and later steps, Σ_{k ≥ t} discount^(k - t) r_k. The authors' code weights all
  steps of an episode with one sum.
- Rewards are relative to the best single device, which changes neither their order nor, with Adam, the size of an
  update. Node ids and shapes are scaled to about one.
- A cluster may go to a device that supports any of its operations; the others go to their next best device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ov_hsdag.placers.single import HeteroDefault
from ov_hsdag.policy.features import TYPE_COLUMNS, policy_input
from ov_hsdag.policy.placer import ClusterLogits
from ov_hsdag.problem.problem import PlacementProblem
from research.baselines import learning
from research.baselines.budget import Environment
from research.baselines.layers import GCNConv, gcn_norm, scatter

FEATURES = {
    "types": TYPE_COLUMNS,  # operation types, one-hot, averaged over a group
    "output shape": 6,  # its last five dimensions, and the rank
    "node id": 1,  # place in the topological order
    "structure": 5,  # in-degree, out-degree, fractal dimension, closeness and its logarithm
}
"""The paper's groups of features in order, with the number of columns of each."""


@dataclass(frozen=True)
class HSDAGPublished:
    """The baseline and its settings."""

    hidden: int = 128  # width of all layers
    scoring_layers: int = 2  # number of layers of the GNN whose embeddings score edges
    pooling_layers: int = 1  # number of layers of the GNN whose embeddings are pooled
    dropout: float = 0.2  # share of hidden units that are dropped while learning
    least_clusters: int = 4  # number of clusters at which parsing ends
    levels: int | None = None  # largest number of levels of the hierarchy; None for no limit
    without: tuple[str, ...] = ()  # groups of `FEATURES` that are left out, for the paper's ablations
    steps: int = 20  # placements in an episode
    discount: float = 0.95  # discount of the rewards of later steps
    learning_rate: float = 1e-3  # learning rate of Adam; 0 keeps the network's initial weights
    episodes: int | None = None  # number of episodes (25 in the authors' code); None for as many as the budget allows

    def place(self, environment: Environment, seed: int) -> None:
        """Learns to place the environment's problem from scratch."""
        task = Task.of(environment, self.without)
        with learning.seeded(seed):
            learn(Network(task.x.shape[1], len(environment.problem.devices), self), task, self)


@dataclass(frozen=True, eq=False)
class Task:
    """A problem as tensors."""

    environment: Environment
    x: Tensor  # features of the nodes of the coarse graph, float32 [n, F]
    edges: Tensor  # both ends of each edge, each pair once, int64 [2, E]
    coarse: NDArray[np.int32]  # coarse node of each colocation group, int32 [groups]
    reference: float  # run time with reward 1, s

    @classmethod
    def of(cls, environment: Environment, without: tuple[str, ...] = ()) -> Task:
        """The tensors of an environment's problem; `without` names `FEATURES` to leave out."""
        problem = environment.problem
        x, edges, coarse = paper_features(problem, without)
        return cls(environment, torch.from_numpy(x), torch.from_numpy(edges), coarse, _reference(problem))


def paper_features(
    problem: PlacementProblem, without: tuple[str, ...] = ()
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int32]]:
    """Steps 1 and 2: the coarse graph and the paper's features, which do not include any cost.

    Args:
        problem: a problem in which each colocation group has a device that supports it.
        without: names in `FEATURES` to leave out.

    Returns:
        Features, float32 [n, F]; edges, each pair of nodes once, int64 [2, E]; coarse node of each colocation group,
        int32 [groups].
    """
    policy_features = policy_input(problem)
    kept = np.repeat([name not in without for name in FEATURES], list(FEATURES.values()))
    edges = np.unique(np.sort(policy_features.edge_index, axis=0), axis=1)
    return policy_features.node_x[:, : len(kept)][:, kept], edges, policy_features.coarse


def _reference(problem: PlacementProblem) -> float:
    """Run time in seconds of the best single device, else of HETERO's rule, else 1."""
    us = float(problem.scores(problem.singles).min())
    if not np.isfinite(us):
        us = float(problem.scores(problem.repair(HeteroDefault().place(problem)))[0])
    return us * 1e-6 if np.isfinite(us) else 1.0


@dataclass(frozen=True, eq=False)
class Messages:
    """The undirected edges and weights of a graph convolution (Kipf & Welling, ICLR 2017): D^-½ (A + I) D^-½."""

    edge_index: Tensor  # both directions of each edge, and a loop at each node, int64 [2, 2E + n]
    weight: Tensor  # float32 [2E + n]

    @classmethod
    def along(cls, edges: Tensor, nodes: int) -> Messages:
        """Makes messages along edges, int64 [2, E], each pair of nodes once. nodes: number of nodes."""
        return cls(*gcn_norm(torch.cat([edges, edges.flip(0)], dim=1), num_nodes=nodes))


class GNN(nn.Module):
    """Graph convolutions with a residual connection around all of them."""

    def __init__(self, hidden: int, layers: int, dropout: float) -> None:
        """Makes the layers.

        Args:
            hidden: width.
            layers: number of convolutions.
            dropout: share of units that are dropped while learning.
        """
        super().__init__()
        self.convolutions = nn.ModuleList(GCNConv(hidden, hidden, normalize=False) for _ in range(layers))
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, h: Tensor, messages: Messages) -> Tensor:
        """Embeds nodes, float32 [n, hidden] → [n, hidden]."""
        x = h
        for convolution in self.convolutions:
            x = self.dropout(torch.relu(convolution(x, messages.edge_index, messages.weight)))
        result: Tensor = self.norm(h + x)
        return result


class Residual(nn.Module):
    """A linear layer with a residual connection and a layer norm."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(hidden, hidden), nn.LayerNorm(hidden)

    def forward(self, h: Tensor) -> Tensor:
        """Transforms rows, float32 [n, hidden] → [n, hidden]."""
        result: Tensor = self.norm(h + self.linear(h))
        return result


def dominant_edges(score: NDArray[np.float32], edges: NDArray[np.int64], nodes: int) -> NDArray[np.int64]:
    """The edge with the highest score at each node, the first of equal ones.

    Args:
        score: score of each edge, float32 [E].
        edges: both ends of each edge, int64 [2, E].
        nodes: number of nodes.

    Returns:
        Numbers of edges, -1 at nodes without edges, int64 [nodes].
    """
    worst_first = np.argsort(-score, kind="stable")[::-1]
    dominant = np.full(nodes, -1, np.int64)
    dominant[edges[:, worst_first].T.ravel()] = np.repeat(worst_first, 2)  # the best edge is written last and stays
    return dominant


def clusters(
    score: NDArray[np.float32], edges: NDArray[np.int64], nodes: int, least: int
) -> tuple[NDArray[np.int64], int]:
    """Merges nodes that dominant edges connect; clusters are numbered in the order of their first nodes.

    Args:
        score: score of each edge, float32 [E].
        edges: both ends of each edge, int64 [2, E].
        nodes: number of nodes.
        least: smallest number of clusters; once it is reached, the remaining, worst dominant edges merge nothing.

    Returns:
        Cluster of each node, int64 [nodes], and the number of clusters.
    """
    dominant = dominant_edges(score, edges, nodes)
    merging = np.unique(dominant[dominant >= 0])
    best_first = merging[np.argsort(-score[merging], kind="stable")]
    parent, count = list(range(nodes)), nodes

    def first(node: int) -> int:
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    for source, target in edges[:, best_first].T.tolist():
        low, high = sorted((first(source), first(target)))
        if low != high and count > least:
            parent[high] = low
            count -= 1
    _, cluster = np.unique([first(node) for node in range(nodes)], return_inverse=True)
    return cluster.astype(np.int64), count


def pooled_edges(edges: NDArray[np.int64], cluster: NDArray[np.int64]) -> NDArray[np.int64]:
    """Edges between clusters, each pair once, int64 [2, E'].

    edges: between nodes, int64 [2, E]; cluster: of each node, int64 [n].
    """
    ends = np.sort(cluster[edges], axis=0)
    return np.unique(ends[:, ends[0] != ends[1]], axis=1)


class Network(nn.Module):
    """The policy: steps 3 and 4."""

    def __init__(self, features: int, devices: int, settings: HSDAGPublished) -> None:
        """Makes a network with random weights.

        Args:
            features: number of columns of the nodes' features.
            devices: number of devices.
            settings: settings of the baseline.
        """
        super().__init__()
        hidden = settings.hidden
        self.settings = settings

        def dense(inputs: int, outputs: int, norm: bool) -> list[nn.Module]:
            layers = [nn.Linear(inputs, outputs), *[nn.LayerNorm(outputs)] * norm]
            return [*layers, nn.ReLU(), nn.Dropout(settings.dropout)]

        self.input = nn.Sequential(*dense(features, hidden, True), *dense(hidden, hidden, True))
        self.scoring = GNN(hidden, settings.scoring_layers, settings.dropout)
        self.edge_score = nn.Sequential(*dense(hidden, hidden, True), nn.Linear(hidden, 1))
        self.pooling = GNN(hidden, settings.pooling_layers, settings.dropout)
        self.member, self.whole = Residual(hidden), Residual(hidden)
        self.output = nn.Sequential(*dense(hidden, hidden, False), *dense(hidden, features, False))
        self.devices = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, devices))

    def forward(self, x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        """Embeds and groups a graph's nodes together, level by level.

        Args:
            x: features of nodes, float32 [n, F].
            edges: both ends of each edge, each pair once, int64 [2, E].

        Returns:
            Embeddings of clusters, float32 [c, F], from which `devices` computes logits; cluster of each node, int64
            [n].
        """
        h, level = self.input(x), 0
        cluster_of_node = torch.arange(len(x))
        while True:
            messages = Messages.along(edges, len(h))
            score = self.scores(self.scoring(h, messages), edges)
            numbers, count = clusters(score.detach().numpy(), edges.numpy(), len(h), self.settings.least_clusters)
            cluster, merged = torch.from_numpy(numbers), count < len(h)
            if count > 1 or merged:
                h = self.pool(self.pooling(h, messages), score, edges, cluster, count)
            edges = torch.from_numpy(pooled_edges(edges.numpy(), numbers))
            cluster_of_node = cluster[cluster_of_node]
            level += 1
            if not merged or level == self.settings.levels:
                return self.output(h), cluster_of_node

    def scores(self, h: Tensor, edges: Tensor) -> Tensor:
        """The edge scores sigmoid(MLP(h_i · h_j)), float32 [E]. h: embeddings of nodes, float32 [n, hidden]."""
        return torch.sigmoid(self.edge_score(h[edges[0]] * h[edges[1]]).squeeze(-1))

    def pool(self, h: Tensor, score: Tensor, edges: Tensor, cluster: Tensor, count: int) -> Tensor:
        """The features of clusters: DeepSets over their members, times mean score and number of the edges inside.

        The factors let gradients reach the scores. Both directions of an edge count; both factors are 1 for a cluster
        without edges inside.

        Args:
            h: embeddings of nodes, float32 [n, hidden].
            score: score of each edge, float32 [E].
            edges: both ends of each edge, int64 [2, E].
            cluster: cluster of each node, int64 [n].
            count: number of clusters.

        Returns:
            float32 [count, hidden].
        """
        pooled = self.whole(scatter(self.member(h), cluster, dim_size=count, reduce="sum"))
        inside = cluster[edges[0]] == cluster[edges[1]]
        of_edge = cluster[edges[0][inside]]
        links = 2.0 * torch.bincount(of_edge, minlength=count)
        mean_score = scatter(score[inside], of_edge, dim_size=count, reduce="mean")
        factor = torch.where(links > 0, mean_score * links, 1.0)
        return pooled * factor[:, None]


def learn(network: Network, task: Task, settings: HSDAGPublished) -> None:
    """Step 5: learns from the execution times of placements until the budget is spent.

    Args:
        network: the policy, which is changed.
        task: the problem, and the environment that measures.
        settings: settings of the baseline.

    Raises:
        BudgetSpent: the budget is spent.
    """
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.learning_rate)
    episode = 0
    while settings.episodes is None or episode < settings.episodes:
        x, log_probabilities, rewards = task.x, [], []
        for _ in range(settings.steps):
            z, cluster = network(x, task.edges)
            log_probability, placement = choose(task, network.devices(z), cluster.numpy())
            # The reward is 1 / execution time, and 0 where infeasible.
            cost = task.environment.cost(placement)
            rewards.append(task.reference / cost)
            log_probabilities.append(log_probability)
            # In the next step, the embeddings of clusters are added to the features of their nodes.
            x = x + z.detach()[cluster]
        gains = torch.from_numpy(discounted(np.array(rewards), settings.discount).astype(np.float32))
        # REINFORCE, without a baseline.
        loss = -(gains * torch.stack(log_probabilities)).sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        episode += 1


def choose(task: Task, logits: Tensor, cluster: NDArray[np.int64]) -> tuple[Tensor, NDArray[np.uint8]]:
    """Draws a device for each cluster.

    Args:
        task: the problem.
        logits: logits of devices for each cluster, float32 [c, devices].
        cluster: cluster of each node, int64 [n].

    Returns:
        The joint log-probability, a scalar with a gradient; the placement, uint8 [groups].
    """
    problem = task.environment.problem
    of_group = cluster[task.coarse]
    supported = np.zeros(logits.shape, bool)
    np.logical_or.at(supported, of_group, problem.group_supported)
    log_probability = learning.masked(logits, torch.from_numpy(supported))
    devices = learning.draw(log_probability)
    choice = devices.numpy().astype(np.uint8)[None]
    placement = ClusterLogits(logits.detach().numpy(), of_group, None).expanded(problem, choice)[0]
    return learning.taken(log_probability, devices).sum(), placement


def discounted(rewards: NDArray[np.float64], discount: float) -> NDArray[np.float64]:
    """The returns Σ_{k ≥ t} discount^(k - t) r_k of the steps t of an episode, float64 [steps]."""
    result = np.array(rewards, np.float64)
    for step in range(len(result) - 2, -1, -1):
        result[step] += discount * result[step + 1]
    return result
