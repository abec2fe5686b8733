"""GO: Zhou et al., Transferable Graph Optimizers for ML Compilers, NeurIPS 2020; GDP: Zhou et al., arXiv:1910.01578.

Where the parts of its section 3 are:

- graph embedding: `GraphEmbedding`, GraphSAGE whose aggregator is the maximum over transformed neighbours;
- scalable attention: `Attention`, over nodes in topological order, a segment at a time, which also sees the segment
  before, without gradients into it (Transformer-XL), and has no positions (GDP). All nodes are decided at once;
- multi-task: `Network.logits`. The same attention layers run once for each task, reading what the tasks before decided
  of each node: placement, then scheduling priority, then fusion, judged by `research.baselines.schedule`. With
  `multi_task=False` there is the first alone;
- feature modulation (parameter superposition): `Attention` and `GraphEmbedding` scale each layer's input by what a
  layer makes of the graph's mean embedding, so that one set of parameters serves graphs of all kinds;
- learning: PPO, on -√(run time) and a constant for infeasible decisions. `train` learns on many graphs together;
  `place` takes the policy as it is (`episodes=0`, zero-shot), fine-tunes it on the graph, or learns from scratch.

The papers show a node's operation, output shape and neighbours (GDP by their numbers, here a node's place in the
order); times on the devices and the bytes that are sent are added, as a policy has to know unequal devices. A policy
places on as many devices as it was trained on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from research.baselines import learning
from research.baselines.budget import BudgetSpent, Environment
from research.baselines.graph import UnitGraph, colocated
from research.baselines.transfer import TransferablePolicy

# What the fusion head of a new policy adds for going on with a unit: the runtime's default is to fuse all.
_FUSED = 2.0


@dataclass(eq=False)
class GO(TransferablePolicy["Network", "Task"]):
    """The baseline.

    Attributes:
        multi_task: decides priorities and fusion, too; the environment's judge is a `schedule.Scheduler` then.
        colocate: nodes are what the RNN placer's rule of co-location leaves of colocation groups; otherwise those. The
            papers have single operations, and a hundred times as many measurements.
        levels: of priority.
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
        network: what `train` learned, None before.
    """

    multi_task: bool = False
    colocate: bool = True
    levels: int = 4
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
    network: Network | None = field(default=None, repr=False)

    def _task(self, environment: Environment) -> Task:
        return Task.of(environment, self.colocate)

    def _new(self, task: Task) -> Network:
        return Network(task, self)

    def _likeliest(self, network: Network, task: Task) -> None:
        task.costs(network.draw(task, 1, greedy=True), self.multi_task)

    def _learn(self, network: Network, tasks: list[Task], episodes: int | None) -> None:
        optimizer = torch.optim.Adam(network.parameters(), lr=self.learning_rate)
        baselines = [learning.MovingAverage(self.decay) for _ in tasks]
        going, done = list(range(len(tasks))), 0
        while going and (episodes is None or done < episodes):
            batches = []
            for which in list(going):
                task = tasks[which]
                actions = network.draw(task, self.batch)
                try:
                    costs = task.costs(actions, self.multi_task)
                except BudgetSpent:
                    going.remove(which)
                    continue
                gains = baselines[which].advantage(learning.rewards(costs, task.graph.reference))
                gains = learning.scaled(gains, costs)
                batches.append((task, actions, torch.from_numpy(gains.astype(np.float32))))
            if batches:
                late = max(done / self.settles, *(task.environment.spent for task in tasks))
                self._update(network, optimizer, batches, self.entropy * max(1 - late, 0.0))
            done += 1

    def _update(
        self,
        network: Network,
        optimizer: torch.optim.Optimizer,
        batches: list[tuple[Task, list[Tensor], Tensor]],
        bonus: float,
    ) -> None:
        """Steps of PPO on the batches of all graphs."""
        with torch.no_grad():
            before = [network.taken(task, actions)[0] for task, actions, _ in batches]
        for _ in range(self.epochs):
            optimizer.zero_grad()
            for (task, actions, gains), old in zip(batches, before, strict=True):
                new, entropy = network.taken(task, actions)
                ratio = (new - old).exp()
                gain = gains[:, None, None]
                better = torch.minimum(ratio * gain, ratio.clamp(1 - self.clip, 1 + self.clip) * gain)
                weight = bonus / math.sqrt(task.graph.size)
                loss = -(better.mean() + weight * entropy) / len(batches)
                loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), self.norm)
            optimizer.step()


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

    def costs(self, actions: list[Tensor], multi_task: bool) -> NDArray[np.float64]:
        """Measures decisions, int64 [batch, N] for each task: seconds, float64 [batch]."""
        decisions = [self.graph.expand(chosen.numpy()) for chosen in actions]
        return self.environment.costs(np.stack(decisions, axis=1) if multi_task else decisions[0])


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
    """The policy: decisions of all tasks for all nodes of any graph."""

    def __init__(self, task: Task, settings: GO) -> None:
        """
        Args:
            task: any with as many devices as all that will be placed.
            settings: sizes, and whether there are several tasks.
        """
        super().__init__()
        devices = task.supported.shape[1]
        actions = (devices, settings.levels, 2) if settings.multi_task else (devices,)
        self.embedding = GraphEmbedding(task.x.shape[1], settings)
        self.attention = nn.ModuleList(Attention(settings) for _ in range(settings.layers))
        self.decided = nn.ModuleList(nn.Embedding(count, settings.hidden) for count in actions[:-1])
        heads = [nn.Linear(settings.hidden, count) for count in actions]
        with torch.no_grad():
            # A new policy draws all actions alike, but for fusion.
            for head in heads:
                head.weight.mul_(0.1)
                head.bias.mul_(0.1)
            if settings.multi_task:
                heads[2].bias[1] += _FUSED
        self.heads = nn.ModuleList(heads)

    def logits(self, task: Task, embedded: tuple[Tensor, Tensor], before: list[Tensor]) -> Tensor:
        """Returns the log-probabilities of the next task's decisions, [batch or 1, N, actions].

        Args:
            task: the graph.
            embedded: of the graph, see `GraphEmbedding`.
            before: what the tasks before decided, int64 [batch, N] each.
        """
        nodes, summary = embedded
        x = nodes[None]
        for actions, embedding in zip(before, self.decided, strict=False):
            x = x + embedding(actions)
        for layer in self.attention:
            x = layer(x, summary)
        logits = self.heads[len(before)](x)
        return torch.log_softmax(logits, -1) if before else learning.masked(logits, task.supported)

    def draw(self, task: Task, batch: int, greedy: bool = False) -> list[Tensor]:
        """Decides a graph `batch` times: int64 [batch, N] for each task."""
        actions: list[Tensor] = []
        with torch.no_grad():
            embedded = self.embedding(task)
            for _ in self.heads:
                log_probability = self.logits(task, embedded, actions)
                actions.append(learning.draw(log_probability.expand(batch, -1, -1), greedy))
        return actions

    def taken(self, task: Task, actions: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Returns the log-probabilities of decisions [batch, N, tasks], and the mean entropy of placement, a scalar."""
        embedded = self.embedding(task)
        found = [self.logits(task, embedded, actions[:number]) for number in range(len(actions))]
        chosen = [
            learning.taken(log_probability.expand(len(actions[0]), -1, -1), decided)
            for log_probability, decided in zip(found, actions, strict=True)
        ]
        return torch.stack(chosen, dim=-1), learning.entropy(found[0])
