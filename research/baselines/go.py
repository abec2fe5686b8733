"""GO: Zhou et al., Transferable Graph Optimizers for ML Compilers, NeurIPS 2020; GDP: Zhou et al., arXiv:1910.01578.

A graph network embeds the nodes, and recurrent attention over segments of them decides all devices at once. The parts
of the paper's section 3 are in:

    graph embedding            `GraphEmbedding`: GraphSAGE, the maximum over transformed neighbours
    scalable attention         `Attention`: segments in topological order, each with a view of the one before
    feature modulation         `Modulation`: parameter superposition
    learning                   `learn`: PPO on -√(run time)

Of the paper's tasks only placement is learned. The other two, scheduling and fusion, cannot be chosen in a deployment
or in the simulator: HETERO runs the submodels of a request one after the other in the order of the graph, and plugins
decide about fusions.

The papers' features of a node are its operation, output shape and neighbours (GDP uses their numbers; here it is the
position in the order). Times on the devices and bytes sent are added, as a policy has to tell unequal devices apart.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from research.baselines import learning
from research.baselines.budget import Environment
from research.baselines.layers import SAGEConv
from research.baselines.units import UnitGraph, units


@dataclass(frozen=True)
class GO:
    """The baseline and its settings."""

    # Whether colocation groups are joined by the RNN placer's rule of co-location. The papers place single operations,
    # with a hundred times as many measurements.
    colocate: bool = True
    hidden: int = 64  # width of embeddings
    hops: int = 3  # number of GraphSAGE layers
    layers: int = 2  # number of attention layers
    heads: int = 4  # number of attention heads
    segment: int = 64  # nodes in a segment; attention sees it and the previous one
    batch: int = 10  # placements that are drawn for each update
    epochs: int = 2  # steps of PPO on each batch
    clip: float = 0.2  # PPO's ratios are clipped to 1 ± this
    learning_rate: float = 1e-3  # learning rate of Adam
    entropy: float = 2.0  # weight of the entropy bonus, divided by √N for N nodes, which share one reward
    settles: int = 200  # updates until the bonus is 0; fewer if the budget is spent earlier
    decay: float = 0.9  # decay of the moving average of rewards
    norm: float = 1.0  # largest norm of the gradient

    def place(self, environment: Environment, seed: int) -> None:
        """Learns on the graph from scratch until the budget is spent."""
        with learning.seeded(seed):
            task = Task.of(environment, units(environment.problem, self.colocate))
            learn(Network(task, self), task, self)


@dataclass(frozen=True, eq=False)
class Task:
    """A graph as tensors."""

    environment: Environment
    graph: UnitGraph
    x: Tensor  # features of nodes, float32 [N, F]
    edge_index: Tensor  # edges in both directions, int64 [2, 2E]
    supported: Tensor  # bool [N, devices]

    @classmethod
    def of(cls, environment: Environment, graph: UnitGraph) -> Task:
        """The tensors of a graph."""
        position = np.linspace(-1, 1, graph.size)[:, None]
        x = np.concatenate([graph.type_shares, graph.shapes, graph.costs, position], axis=1).astype(np.float32)
        both = np.concatenate([graph.edges, graph.edges[::-1]], axis=1)
        return cls(environment, graph, torch.from_numpy(x), torch.from_numpy(both), torch.from_numpy(graph.supported))


class Modulation(nn.Module):
    """Feature modulation: scales features by a function of the graph's mean embedding.

    This parameter superposition lets one set of parameters serve different graphs.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.condition = nn.Linear(size, size)

    def forward(self, x: Tensor, summary: Tensor) -> Tensor:
        """Scales features. x: [..., N, size]; summary: [size]; result: [..., N, size]."""
        return x * 2 * torch.sigmoid(self.condition(summary))


class GraphEmbedding(nn.Module):
    """GraphSAGE (Hamilton et al., NeurIPS 2017) with the maximum over transformed neighbours."""

    def __init__(self, features: int, settings: GO) -> None:
        super().__init__()
        size = settings.hidden
        self.input = nn.Linear(features, size)
        self.convolutions = nn.ModuleList(SAGEConv(size, size, aggr="max", project=True) for _ in range(settings.hops))
        self.modulations = nn.ModuleList(Modulation(size) for _ in range(settings.hops))

    def forward(self, task: Task) -> tuple[Tensor, Tensor]:
        """Embeddings of nodes [N, hidden], and of the graph [hidden]."""
        h = torch.relu(self.input(task.x))
        for convolution, modulation in zip(self.convolutions, self.modulations, strict=True):
            h = torch.relu(convolution(modulation(h, h.mean(0)), task.edge_index))
        return h, h.mean(0)


class Attention(nn.Module):
    """One layer of attention with segment-level recurrence (Transformer-XL), and its feed-forward part.

    It has no positional encoding (as in GDP), and no gradient reaches the previous segment.
    """

    def __init__(self, settings: GO) -> None:
        super().__init__()
        size = settings.hidden
        self.heads, self.segment = settings.heads, settings.segment
        self.modulation = Modulation(size)
        self.query, self.key, self.value, self.output = (nn.Linear(size, size) for _ in range(4))
        self.feed_forward = nn.Sequential(nn.Linear(size, 2 * size), nn.ReLU(), nn.Linear(2 * size, size))
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(2))

    def forward(self, x: Tensor, summary: Tensor) -> Tensor:
        """Transforms embeddings of nodes in topological order, float32 [N, hidden]; summary: [hidden]."""
        count, size = x.shape
        length = min(self.segment, count)
        segments = -(-count // length)
        padded = nn.functional.pad(self.modulation(x, summary), (0, 0, 0, segments * length - count))
        present = padded.view(segments, length, size)
        # Keys and values come from a segment and the previous one; the latter is detached from the gradient.
        before = nn.functional.pad(padded.detach()[:-length], (0, 0, length, 0)).view_as(present)
        seen = torch.cat([before, present], dim=1)
        exists = torch.arange(segments * length) < count
        existed = nn.functional.pad(exists[:-length], (length, 0)).view(segments, length)
        mask = torch.cat([existed, exists.view(segments, length)], dim=1)
        attended = nn.functional.scaled_dot_product_attention(
            self._split(self.query(present)),
            self._split(self.key(seen)),
            self._split(self.value(seen)),
            mask[:, None, None],
        )
        attended = attended.transpose(1, 2).reshape(segments * length, size)[:count]
        x = self.norms[0](x + self.output(attended))
        result: Tensor = self.norms[1](x + self.feed_forward(x))
        return result

    def _split(self, x: Tensor) -> Tensor:
        """Splits [segments, length, size] into heads, [segments, heads, length, size / heads]."""
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


class Network(nn.Module):
    """The policy: a distribution of devices for each node of any graph with the same number of devices."""

    def __init__(self, task: Task, settings: GO) -> None:
        super().__init__()
        self.embedding = GraphEmbedding(task.x.shape[1], settings)
        self.attention = nn.ModuleList(Attention(settings) for _ in range(settings.layers))
        self.head = nn.Linear(settings.hidden, task.supported.shape[1])
        with torch.no_grad():
            # With small weights, a new policy draws all devices with nearly the same probability.
            self.head.weight.mul_(0.1)
            self.head.bias.mul_(0.1)

    def forward(self, task: Task) -> Tensor:
        """The log-probabilities of the devices of each node, float32 [N, devices]."""
        x, summary = self.embedding(task)
        for layer in self.attention:
            x = layer(x, summary)
        return learning.masked(self.head(x), task.supported)


def learn(network: Network, task: Task, settings: GO) -> None:
    """Learns on one graph by PPO.

    Args:
        network: the policy, which is changed.
        task: the graph, and the environment that measures.
        settings: settings of the baseline.

    Raises:
        BudgetSpent: the budget is spent.
    """
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.learning_rate)
    baseline = learning.MovingAverage(settings.decay)
    for update in itertools.count():
        # Draw a batch of placements, all nodes at once, and measure them.
        with torch.no_grad():
            before = network(task).expand(settings.batch, -1, -1)
        actions = learning.draw(before)
        costs = task.environment.costs(task.graph.expand(actions.numpy()))
        # The reward is -√(run time), or a constant where infeasible, minus a moving average.
        rewards = learning.rewards(costs, task.graph.reference)
        advantages = torch.from_numpy(learning.scaled(baseline.advantage(rewards), costs).astype(np.float32))[:, None]
        late = max(update / settings.settles, task.environment.spent)
        bonus = settings.entropy * max(1 - late, 0.0) / math.sqrt(task.graph.size)
        # PPO's clipped objective, over several epochs.
        old = learning.taken(before, actions)
        for _ in range(settings.epochs):
            log_probability = network(task)
            new = learning.taken(log_probability.expand(settings.batch, -1, -1), actions)
            ratio = (new - old).exp()
            clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
            gain = torch.minimum(ratio * advantages, clipped * advantages).mean()
            learning.step(optimizer, network, -(gain + bonus * learning.entropy(log_probability)), settings.norm)
