"""The RNN placer: Mirhoseini et al., Device Placement Optimization with Reinforcement Learning, ICML 2017.

Where its sections are:

- 3.1 (policy gradients): `learn`. REINFORCE on -√(run time) of a batch of drawn placements, less a moving average;
  infeasible placements count as a large constant (`learning.FAILED`), and are not learned from after `settled` updates.
- 3.2 (architecture): `Network`. An LSTM reads the operations in topological order as embeddings of their type, output
  shapes and adjacency; an LSTM with content-based attention (Bahdanau et al., 2015) emits a device for each, and reads
  an embedding of it in the next step.
- 3.3 (co-locating operations): `research.baselines.graph.colocated`. To the colocation groups that the framework
  demands, here legality's, comes the paper's own rule: an operation joins the only one that consumes its output.
- 3.4 (distributed training) is left out: one controller, whose results follow from its seed.

What the paper leaves to TensorFlow or to its machines is chosen here: run times are in units of the graph's fastest
devices, so that one constant and one learning rate serve models of all sizes; devices that lack an operation of a group
are masked; in its step, the decoder also reads what the encoder said of the operation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from research.baselines import learning
from research.baselines.budget import Environment
from research.baselines.graph import SHAPE, UnitGraph, colocated

Ask = Callable[[NDArray[np.uint8]], NDArray[np.float64]]
"""Measures placements, uint8 [batch, groups] → seconds [batch]; raises BudgetSpent."""


@dataclass(frozen=True)
class RNN:
    """The baseline."""

    hidden: int = 64  # size of both LSTMs
    embedding: int = 16  # size of the embeddings of types and devices
    batch: int = 10  # placements that are drawn for each update
    learning_rate: float = 3e-3  # of Adam
    decay: float = 0.9  # of the moving average
    # weight of an entropy bonus, which the paper lacks; without it, few measurements end in one device
    entropy: float = 0.3
    norm: float = 1.0  # largest norm of the gradient
    settled: int = 5000  # updates after which infeasible placements are not learned from
    colocate: bool = True  # whether the paper's rule of co-location applies
    updates: int | None = None  # None: as many as the budget allows

    def place(self, environment: Environment, seed: int) -> None:
        """Learns to place the environment's problem, from scratch."""
        problem = environment.problem
        graph = UnitGraph.of(problem, colocated(problem) if self.colocate else None)
        with learning.seeded(seed):
            learn(Network(graph, self), graph, environment.costs, self)


class Network(nn.Module):
    """The sequence-to-sequence model of section 3.2, for one graph."""

    def __init__(self, graph: UnitGraph, settings: RNN) -> None:
        super().__init__()
        hidden, embedding = settings.hidden, settings.embedding
        devices = graph.supported.shape[1]
        kinds, kind = np.unique(graph.kind, return_inverse=True)
        adjacency = np.zeros((graph.size, graph.size), np.float32)
        adjacency[graph.edges[0], graph.edges[1]] = adjacency[graph.edges[1], graph.edges[0]] = 1
        known = np.concatenate([graph.shapes, adjacency], axis=1).astype(np.float32)
        self.kind: Tensor
        self.known: Tensor
        self.supported: Tensor
        self.register_buffer("kind", torch.from_numpy(kind))
        self.register_buffer("known", torch.from_numpy(known))
        self.register_buffer("supported", torch.from_numpy(graph.supported))
        self.types = nn.Embedding(len(kinds), embedding)
        # The last one stands for what comes before the first operation.
        self.devices = nn.Embedding(devices + 1, embedding)
        self.encoder = nn.LSTM(embedding + SHAPE + graph.size, hidden)
        self.decoder = nn.LSTMCell(embedding + hidden, hidden)
        self.of_encoder = nn.Linear(hidden, hidden, bias=False)
        self.of_decoder = nn.Linear(hidden, hidden)
        self.score = nn.Linear(hidden, 1, bias=False)
        self.output = nn.Linear(2 * hidden, devices)

    def forward(self, batch: int, greedy: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Draws placements.

        batch: number of placements. greedy: takes the likeliest device in each step. Returns devices, int64 [batch,
        units]; their joint log-probability [batch]; the mean entropy of what they were drawn from, summed over steps, a
        scalar.
        """
        states, (h, c) = self.encoder(torch.cat([self.types(self.kind), self.known], dim=1))
        keys = self.of_encoder(states)
        h, c = h.expand(batch, -1), c.expand(batch, -1)
        device = torch.full((batch,), self.devices.num_embeddings - 1)
        chosen, total, entropy = [], torch.zeros(batch), torch.zeros(())
        for state, supported in zip(states, self.supported, strict=True):
            h, c = self.decoder(torch.cat([self.devices(device), state.expand(batch, -1)], dim=1), (h, c))
            weight = torch.softmax(self.score(torch.tanh(keys + self.of_decoder(h)[:, None])).squeeze(-1), dim=1)
            logits = self.output(torch.cat([h, weight @ states], dim=1))
            log_probability = learning.masked(logits, supported)
            device = learning.draw(log_probability, greedy)
            chosen.append(device)
            total = total + learning.taken(log_probability, device)
            entropy = entropy + learning.entropy(log_probability)
        return torch.stack(chosen, dim=1), total, entropy


def learn(network: Network, graph: UnitGraph, ask: Ask, settings: RNN) -> None:
    """Learns until the budget is spent (section 3.1).

    network: is changed. graph: of the network. ask: measures placements. settings: of the baseline. Raises BudgetSpent:
    as `ask` does.
    """
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.learning_rate)
    baseline = learning.MovingAverage(settings.decay)
    done = 0
    while settings.updates is None or done < settings.updates:
        devices, log_probability, entropy = network(settings.batch)
        costs = ask(graph.expand(devices.numpy()))
        advantage = baseline.advantage(learning.rewards(costs, graph.reference))
        advantage = learning.scaled(advantage, costs)
        if done >= settings.settled:
            advantage = np.where(np.isfinite(costs), advantage, 0.0)
        loss = -(torch.from_numpy(advantage.astype(np.float32)) * log_probability).mean() - settings.entropy * entropy
        learning.step(optimizer, network, loss, settings.norm)
        done += 1
