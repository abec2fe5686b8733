"""Placeto: Addanki et al., Learning Generalizable Device Placement Algorithms, NeurIPS 2019.

Where its sections are:

- 3.1 (Markov decision process): `run_episode`. A state is the graph with a placement; each step gives one node, in
  topological order, a device; an episode visits all nodes `passes` times. The reward of a step is how much faster the
  placement became by it.
- 3.2 (policy network): `Network`. Features of a node are its run times, the bytes that it sends, its present device,
  whether it is the current one, and whether it has been visited. Messages run along the edges and against them for
  `rounds` rounds; then the current node's embedding is joined by summaries of all nodes above it, below it, and
  parallel to it, and a classifier gives its device.
- 3.3 (training): `Placeto.place`. REINFORCE with an entropy bonus and a baseline for each step of an episode, the mean
  return of that step in the last episodes. The paper's policies also place graphs that they were not trained on.

The authors' code (github.com/aravic/generalizable-device-placement) has options that the paper does not name; of these,
logarithms of run times and scaled summaries are used here; operations are grouped first, as there. Advantages are
divided by their deviation in an episode. A step that leaves the node where it is needs no measurement and no count;
infeasible placements count as `learning.FAILED`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from research.baselines import learning
from research.baselines.budget import Environment
from research.baselines.graph import UnitGraph, colocated

# Steps of an episode that are learned from at once; more take more memory.
_CHUNK = 64

# Episodes without a move after which a policy is done with a graph.
_IDLE = 10


@dataclass(eq=False)
class Placeto:
    """The baseline."""

    # nodes are what the RNN placer's rule of co-location leaves of colocation groups; otherwise those
    colocate: bool = True
    # an episode begins with each node on any device that supports it, drawn; otherwise with HETERO's rule
    random_start: bool = False
    hidden: int = 16  # size of embeddings
    rounds: int = 8  # of message passing
    passes: int = 1  # visits of each node in an episode
    # of Adam at first; it falls to a tenth in `decay_episodes`, or sooner as the budget is spent
    learning_rate: float = 5e-3
    entropy: float = 0.3  # weight of the entropy bonus at first; it falls to nothing likewise
    decay_episodes: int = 100  # see above
    discount: float = 0.95  # of later rewards
    history: int = 10  # episodes that a baseline is the mean of
    norm: float = 1.0  # largest norm of the gradient

    def place(self, environment: Environment, seed: int) -> None:
        """See `Baseline.place`: learns on the graph until the budget is spent, or nothing moves any more."""
        with learning.seeded(seed):
            task = Task.of(environment, self.colocate)
            self._learn(Network(task, self.hidden, self.rounds), task)

    def _learn(self, network: Network, task: Task) -> None:
        optimizer = torch.optim.Adam(network.parameters(), lr=self.learning_rate)
        history: deque[NDArray[np.float64]] = deque(maxlen=self.history)
        number = idle = 0
        while idle < _IDLE:
            late = min(max(number / self.decay_episodes, task.environment.spent), 1.0)
            for group in optimizer.param_groups:
                group["lr"] = self.learning_rate * (1 - 0.9 * late)
            before = task.environment.evaluations
            episode = run_episode(network, task, self.passes, self.random_start)
            gains = returns(episode.rewards, self.discount)
            history.append(gains)
            advantage = gains - np.mean(history, axis=0)
            advantage /= max(float(advantage.std()), 1e-2)
            self._update(network, optimizer, task, episode, advantage, self.entropy * (1 - late))
            # The first measurement is that of the start: a policy that moves nothing has come to its end.
            idle = idle + 1 if task.environment.evaluations <= before + 1 else 0
            number += 1

    def _update(
        self,
        network: Network,
        optimizer: torch.optim.Optimizer,
        task: Task,
        episode: Episode,
        advantage: NDArray[np.float64],
        entropy: float,
    ) -> None:
        optimizer.zero_grad()
        steps = len(advantage)
        gains = torch.from_numpy(advantage.astype(np.float32))
        for begin in range(0, steps, _CHUNK):
            part = slice(begin, begin + _CHUNK)
            log_probability = network(task, episode.states[part], episode.nodes[part])
            chosen = learning.taken(log_probability, episode.actions[part])
            bonus = entropy * learning.entropy(log_probability) * len(chosen)
            loss = -((gains[part] * chosen).sum() + bonus) / steps
            loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(network.parameters(), self.norm)
        optimizer.step()


@dataclass(frozen=True, eq=False)
class Task:
    """A graph as tensors."""

    environment: Environment
    graph: UnitGraph
    static: Tensor  # features that no step changes, float32 [N, F]
    supported: Tensor  # bool [N, devices]
    parents: Tensor  # whether column is a parent of row, float32 [N, N]; its transpose are the children
    above: Tensor  # whether column is an ancestor of row, float32 [N, N]
    parallel: Tensor  # whether column is neither above nor below row, nor row itself, float32 [N, N]

    @classmethod
    def of(cls, environment: Environment, colocate: bool) -> Task:
        problem = environment.problem
        graph = UnitGraph.of(problem, colocated(problem) if colocate else None)
        parents = np.zeros((graph.size, graph.size), np.float32)
        parents[graph.edges[1], graph.edges[0]] = 1
        above = graph.ancestors
        parallel = ~(above | above.T | np.eye(graph.size, dtype=bool))
        arrays = (graph.costs.astype(np.float32), graph.supported, parents, above.astype(np.float32))
        static, supported, edges, reached = (torch.from_numpy(array) for array in arrays)
        return cls(environment, graph, static, supported, edges, reached, torch.from_numpy(parallel).float())

    def state(self, devices: Tensor, visited: Tensor, node: int) -> Tensor:
        """Features of all nodes in a step, float32 [N, F + devices + 2]."""
        place = nn.functional.one_hot(devices, self.supported.shape[1]).float()
        marks = torch.zeros(len(devices), 2)
        marks[node, 0] = 1
        marks[:, 1] = visited
        return torch.cat([self.static, place, marks], dim=1)


def _mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs), nn.ReLU())


class _Aggregator(nn.Module):
    """g(Σ f(x)) over the nodes that a mask names."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.f, self.g = _mlp(size, size, size), _mlp(size, size, size)

    def forward(self, mask: Tensor, x: Tensor) -> Tensor:
        result: Tensor = self.g(mask @ self.f(x))
        return result


class Network(nn.Module):
    """The policy of section 3.2."""

    def __init__(self, task: Task, hidden: int, rounds: int) -> None:
        """task: any with as many devices as all that will be placed."""
        super().__init__()
        devices = task.supported.shape[1]
        self.rounds = rounds
        self.own = _mlp(task.static.shape[1] + devices + 2, hidden, hidden)
        self.down, self.up = _Aggregator(hidden), _Aggregator(hidden)
        self.ancestors, self.descendants, self.others = (_Aggregator(2 * hidden) for _ in range(3))
        self.classifier = nn.Sequential(nn.Linear(8 * hidden, 4 * hidden), nn.ReLU(), nn.Linear(4 * hidden, devices))

    def forward(self, task: Task, states: Tensor, nodes: Tensor) -> Tensor:
        """Returns the log-probabilities of the current nodes' devices, [T, devices].

        task: the graph. states: features of all nodes in T steps, [T, N, F]. nodes: the current ones, int64 [T].
        """
        own = self.own(states)
        along = self._pass(self.down, task.parents, own)
        x = torch.cat([along, self._pass(self.up, task.parents.T, own)], dim=-1)
        sets = (task.above[nodes], task.above.T[nodes], task.parallel[nodes])
        summaries = [
            aggregator(mask[:, None] / len(task.static), x).squeeze(1)
            for aggregator, mask in zip((self.ancestors, self.descendants, self.others), sets, strict=True)
        ]
        current = x[torch.arange(len(nodes)), nodes]
        logits = self.classifier(torch.cat([*summaries, current], dim=1))
        return learning.masked(logits, task.supported[nodes])

    def _pass(self, aggregator: _Aggregator, adjacency: Tensor, own: Tensor) -> Tensor:
        """Messages of several rounds; nodes that nobody sends to keep their own embedding."""
        receives = (adjacency.sum(1, keepdim=True) > 0).float()
        x = own
        for _ in range(self.rounds):
            x = own + receives * aggregator(adjacency, x)
        return x


@dataclass(frozen=True, eq=False)
class Episode:
    """What the steps of an episode saw, did and earned."""

    states: Tensor  # float32 [T, N, F]
    nodes: Tensor  # int64 [T]
    actions: Tensor  # devices, int64 [T]
    rewards: NDArray[np.float64]  # float64 [T]


def run_episode(network: Network, task: Task, passes: int, random_start: bool = False, greedy: bool = False) -> Episode:
    """Improves a placement node by node, `passes` times."""
    environment, graph = task.environment, task.graph
    supported = task.supported.float()
    devices = torch.multinomial(supported, 1).squeeze(1) if random_start else supported.argmax(1)
    cost = _log_time(environment, graph, devices)
    states, nodes, actions, rewards = [], [], [], []
    for _ in range(passes):
        visited = torch.zeros(graph.size)
        for node in range(graph.size):
            states.append(task.state(devices, visited, node))
            nodes.append(node)
            with torch.no_grad():
                action = int(learning.draw(network(task, states[-1][None], torch.tensor([node])), greedy))
            actions.append(action)
            earned = 0.0
            if action != int(devices[node]):
                devices[node] = action
                after = _log_time(environment, graph, devices)
                earned, cost = cost - after, after
            rewards.append(earned)
            visited[node] = 1
    return Episode(torch.stack(states), torch.tensor(nodes), torch.tensor(actions), np.array(rewards))


def _log_time(environment: Environment, graph: UnitGraph, devices: Tensor) -> float:
    cost = environment.cost(graph.expand(devices.numpy()))
    return float(np.log(cost / graph.reference if np.isfinite(cost) else learning.FAILED))


def returns(rewards: NDArray[np.float64], discount: float) -> NDArray[np.float64]:
    """Sums of later rewards, discounted, float64 [T]."""
    result = rewards.copy()
    for step in range(len(result) - 2, -1, -1):
        result[step] += discount * result[step + 1]
    return result
