"""GO: Zhou et al., Transferable Graph Optimizers for ML Compilers, NeurIPS 2020; GDP: Zhou et al., arXiv:1910.01578.

Where the parts of its section 3 are:

- graph embedding: `GraphEmbedding`, GraphSAGE whose aggregator is the maximum over transformed neighbours;
- scalable attention: `Attention`, over nodes in topological order, a segment at a time, which also sees the segment
  before, without gradients into it (Transformer-XL), and has no positions (GDP). All nodes are decided at once;
- one task, placement: HETERO decides neither schedule nor fusion, the paper's other two;
- feature modulation (parameter superposition): `Attention` and `GraphEmbedding` scale each layer's input by what a
  layer makes of the graph's mean embedding, so that one set of parameters serves graphs of all kinds;
- learning: PPO, on -√(run time) and a constant for infeasible decisions, from scratch on the graph.

The papers show a node's operation, output shape and neighbours (GDP by their numbers, here a node's place in the
order); times on the devices and the bytes that are sent are added, as a policy has to know unequal devices.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from research.baselines import learning
from research.baselines.budget import Environment
from research.baselines.graph import UnitGraph, colocated


@dataclass(eq=False)
class GO:
    """The baseline.

    Attributes:
        colocate: nodes are what the RNN placer's rule of co-location leaves of colocation groups; otherwise those. The
            papers have single operations, and a hundred times as many measurements.
        hidden: size of embeddings.
        hops: GraphSAGE layers.
        layers: attention layers.
        heads: of attention.
        segment: nodes that attention sees at once, beside those of the segment before.
        batch: decisions that are drawn for each update and graph.
        epochs: steps on each batch.
        clip: of PPO's ratios.
        learning_rate: of Adam.
        entropy: weight of the entropy bonus of placement over √N in a graph of N nodes, which all earn one reward.
            It falls to nothing in `settles` updates, or sooner as the budget is spent.
        settles: see above.
        decay: of each graph's moving-average baseline.
        norm: largest norm of the gradient.
    """

    colocate: bool = True
    hidden: int = 64
    hops: int = 3
    layers: int = 2
    heads: int = 4
    segment: int = 64
    batch: int = 10
    epochs: int = 2
    clip: float = 0.2
    learning_rate: float = 1e-3
    entropy: float = 2.0
    settles: int = 200
    decay: float = 0.9
    norm: float = 1.0

    def place(self, environment: Environment, seed: int) -> None:
        """See `Baseline.place`: learns on the graph until the budget is spent."""
        with learning.seeded(seed):
            task = Task.of(environment, self.colocate)
            self._learn(Network(task, self), task)

    def _learn(self, network: Network, task: Task) -> None:
        optimizer = torch.optim.Adam(network.parameters(), lr=self.learning_rate)
        baseline = learning.MovingAverage(self.decay)
        for done in itertools.count():
            actions = network.draw(task, self.batch)
            costs = task.costs(actions)
            gains = learning.scaled(baseline.advantage(learning.rewards(costs, task.graph.reference)), costs)
            late = max(done / self.settles, task.environment.spent)
            gain = torch.from_numpy(gains.astype(np.float32))
            self._update(network, optimizer, task, actions, gain, self.entropy * max(1 - late, 0.0))

    def _update(
        self,
        network: Network,
        optimizer: torch.optim.Optimizer,
        task: Task,
        actions: Tensor,
        gains: Tensor,
        bonus: float,
    ) -> None:
        """Steps of PPO on a batch, int64 [batch, N], with its advantages, [batch]."""
        with torch.no_grad():
            old = network.taken(task, actions)[0]
        for _ in range(self.epochs):
            new, entropy = network.taken(task, actions)
            ratio, gain = (new - old).exp(), gains[:, None]
            better = torch.minimum(ratio * gain, ratio.clamp(1 - self.clip, 1 + self.clip) * gain)
            weight = bonus / math.sqrt(task.graph.size)
            learning.step(optimizer, network, -(better.mean() + weight * entropy), self.norm)


@dataclass(frozen=True, eq=False)
class Task:
    """A graph as tensors.

    Attributes:
        environment: to place.
        graph: what is placed.
        x: features, float32 [N, F].
        neighbours: edges in both directions, int64 [2, 2E].
        supported: bool [N, devices].
    """

    environment: Environment
    graph: UnitGraph
    x: Tensor
    neighbours: Tensor
    supported: Tensor

    @classmethod
    def of(cls, environment: Environment, colocate: bool) -> Task:
        problem = environment.problem
        graph = UnitGraph.of(problem, colocated(problem) if colocate else None)
        place = np.linspace(-1, 1, graph.size)[:, None]
        x = np.concatenate([graph.types, graph.shapes, graph.costs, place], axis=1).astype(np.float32)
        both = np.concatenate([graph.edges, graph.edges[::-1]], axis=1)
        return cls(environment, graph, torch.from_numpy(x), torch.from_numpy(both), torch.from_numpy(graph.supported))

    def costs(self, actions: Tensor) -> NDArray[np.float64]:
        """Measures decisions, int64 [batch, N]: seconds, float64 [batch]."""
        return self.environment.costs(self.graph.expand(actions.numpy()))


class Modulation(nn.Module):
    """Scales features by what a layer makes of the graph's embedding: parameter superposition."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.condition = nn.Linear(size, size)

    def forward(self, x: Tensor, summary: Tensor) -> Tensor:
        return x * 2 * torch.sigmoid(self.condition(summary))


class GraphEmbedding(nn.Module):
    """GraphSAGE with the maximum over transformed neighbours."""

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
            h = torch.relu(convolution(modulation(h, h.mean(0)), task.neighbours))
        return h, h.mean(0)


class Attention(nn.Module):
    """One layer of attention with segment-level recurrence, and its feed-forward part."""

    def __init__(self, settings: GO) -> None:
        super().__init__()
        size = settings.hidden
        self.heads, self.segment = settings.heads, settings.segment
        self.modulation = Modulation(size)
        self.query, self.key, self.value, self.output = (nn.Linear(size, size) for _ in range(4))
        self.forward_part = nn.Sequential(nn.Linear(size, 2 * size), nn.ReLU(), nn.Linear(2 * size, size))
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(2))

    def forward(self, x: Tensor, summary: Tensor) -> Tensor:
        """Nodes in topological order, [batch, N, hidden] → the same."""
        batch, count, size = x.shape
        length = min(self.segment, count)
        segments = -(-count // length)
        padded = nn.functional.pad(self.modulation(x, summary), (0, 0, 0, segments * length - count))
        now = padded.view(batch * segments, length, size)
        # The segment before each, which is not learned through; the first has none.
        before = nn.functional.pad(padded.detach()[:, :-length], (0, 0, length, 0)).view_as(now)
        there = torch.arange(segments * length) < count
        known = nn.functional.pad(there[:-length], (length, 0)).view(segments, length)
        mask = torch.cat([known, there.view(segments, length)], dim=1).repeat(batch, 1)
        seen = torch.cat([before, now], dim=1)

        def split(tensor: Tensor) -> Tensor:
            return tensor.view(len(tensor), -1, self.heads, size // self.heads).transpose(1, 2)

        found = nn.functional.scaled_dot_product_attention(
            split(self.query(now)), split(self.key(seen)), split(self.value(seen)), mask[:, None, None]
        )
        found = found.transpose(1, 2).reshape(batch, segments * length, size)[:, :count]
        x = self.norms[0](x + self.output(found))
        result: Tensor = self.norms[1](x + self.forward_part(x))
        return result


class Network(nn.Module):
    """The policy: a device for each node of any graph."""

    def __init__(self, task: Task, settings: GO) -> None:
        """
        Args:
            task: any with as many devices as all that will be placed.
            settings: sizes.
        """
        super().__init__()
        self.embedding = GraphEmbedding(task.x.shape[1], settings)
        self.attention = nn.ModuleList(Attention(settings) for _ in range(settings.layers))
        self.head = nn.Linear(settings.hidden, task.supported.shape[1])
        with torch.no_grad():
            # A new policy draws all devices alike.
            self.head.weight.mul_(0.1)
            self.head.bias.mul_(0.1)

    def forward(self, task: Task) -> Tensor:
        """Returns the log-probabilities of the devices of each node, [1, N, devices]."""
        nodes, summary = self.embedding(task)
        x = nodes[None]
        for layer in self.attention:
            x = layer(x, summary)
        return learning.masked(self.head(x), task.supported)

    def draw(self, task: Task, batch: int, greedy: bool = False) -> Tensor:
        """Decides a graph `batch` times: int64 [batch, N]."""
        with torch.no_grad():
            return learning.draw(self(task).expand(batch, -1, -1), greedy)

    def taken(self, task: Task, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the log-probabilities of decisions [batch, N], and their mean entropy, a scalar."""
        log_probability = self(task)
        return learning.taken(log_probability.expand(len(actions), -1, -1), actions), learning.entropy(log_probability)
