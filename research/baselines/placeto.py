"""Placeto: Addanki et al., Learning Generalizable Device Placement Algorithms, NeurIPS 2019.

A placement is improved node by node; the reward of each step is its gain. The paper's sections are in:

    3.1  Markov decision process   `run_episode`
    3.2  policy network            `Network`
    3.3  training                  `learn`

The authors' code (github.com/aravic/generalizable-device-placement) has options that the paper does not name. Two of
them are used here, logarithms of run times and scaled summaries; operations are grouped first, as there. Advantages are
divided by their standard deviation in an episode. A step that does not move its node is not measured or counted. An
infeasible placement has the run time `learning.FAILED`.
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
from research.baselines.units import UnitGraph, units


@dataclass(frozen=True)
class Placeto:
    """The baseline and its settings."""

    colocate: bool = True  # whether colocation groups are joined by the RNN placer's rule of co-location
    random_start: bool = False  # whether an episode begins with random devices, rather than with HETERO's rule
    hidden: int = 16  # width of embeddings
    rounds: int = 8  # rounds of message passing
    passes: int = 1  # visits of each node in an episode
    learning_rate: float = 5e-3  # initial learning rate of Adam; it falls to a tenth
    entropy: float = 0.3  # initial weight of the entropy bonus; it falls to 0
    decay_episodes: int = 100  # episodes in which these two fall; fewer if the budget is spent earlier
    discount: float = 0.95  # discount of later rewards
    history: int = 10  # number of episodes whose mean return is the baseline
    norm: float = 1.0  # largest norm of the gradient
    chunk: int = 64  # steps of an episode in one backward pass; more take more memory
    idle_episodes: int = 10  # episodes without a move after which learning ends

    def place(self, environment: Environment, seed: int) -> None:
        """Learns on the graph from scratch until the budget is spent or the policy moves nothing any more."""
        with learning.seeded(seed):
            task = Task.of(environment, units(environment.problem, self.colocate))
            learn(Network(task, self), task, self)


@dataclass(frozen=True, eq=False)
class Task:
    """A graph as tensors."""

    environment: Environment
    graph: UnitGraph
    static: Tensor  # features that no step changes: run times and bytes sent, float32 [N, F]
    supported: Tensor  # bool [N, devices]
    parents: Tensor  # whether column is a parent of row, float32 [N, N]; its transpose are the children
    above: Tensor  # whether column is an ancestor of row, float32 [N, N]
    parallel: Tensor  # whether column is neither above nor below row, nor row itself, float32 [N, N]

    @classmethod
    def of(cls, environment: Environment, graph: UnitGraph) -> Task:
        """The tensors of a graph."""
        parents = np.zeros((graph.size, graph.size), np.float32)
        parents[graph.edges[1], graph.edges[0]] = 1
        above = graph.ancestors
        parallel = ~(above | above.T | np.eye(graph.size, dtype=bool))
        return cls(
            environment,
            graph,
            torch.from_numpy(graph.costs.astype(np.float32)),
            torch.from_numpy(graph.supported),
            torch.from_numpy(parents),
            torch.from_numpy(above.astype(np.float32)),
            torch.from_numpy(parallel.astype(np.float32)),
        )

    def state(self, devices: Tensor, visited: Tensor, node: int) -> Tensor:
        """The features of all nodes in a step (section 3.1).

        Args:
            devices: device of each node in the present placement, int64 [N].
            visited: whether a node was visited in this pass, float32 [N].
            node: the current node.

        Returns:
            float32 [N, F + devices + 2].
        """
        present = nn.functional.one_hot(devices, self.supported.shape[1]).float()
        current = torch.zeros(len(devices))
        current[node] = 1
        return torch.cat([self.static, present, current[:, None], visited[:, None]], dim=1)


def _mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Two linear layers with ReLU; the arguments are widths."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs), nn.ReLU())


class Aggregator(nn.Module):
    """Computes g(Σ f(x)), summing over the nodes that a mask selects; f and g are small networks."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.f, self.g = _mlp(size, size, size), _mlp(size, size, size)

    def forward(self, mask: Tensor, x: Tensor) -> Tensor:
        """Aggregates. mask: [..., rows, N]; x: [T, N, size]; result: [T, rows, size]."""
        result: Tensor = self.g(mask @ self.f(x))
        return result


class Network(nn.Module):
    """The policy of section 3.2."""

    def __init__(self, task: Task, settings: Placeto) -> None:
        super().__init__()
        device_count, hidden = task.supported.shape[1], settings.hidden
        self.rounds = settings.rounds
        self.node = _mlp(task.static.shape[1] + device_count + 2, hidden, hidden)
        self.down, self.up = Aggregator(hidden), Aggregator(hidden)
        self.ancestors, self.descendants, self.others = (Aggregator(2 * hidden) for _ in range(3))
        self.classifier = nn.Sequential(
            nn.Linear(8 * hidden, 4 * hidden), nn.ReLU(), nn.Linear(4 * hidden, device_count)
        )

    def forward(self, task: Task, states: Tensor, nodes: Tensor) -> Tensor:
        """The log-probabilities of the current nodes' devices.

        Args:
            task: the graph.
            states: features of all nodes in T steps, float32 [T, N, F].
            nodes: current node of each step, int64 [T].

        Returns:
            float32 [T, devices].
        """
        # Step 1 of the paper's figure: messages along the edges and against them.
        node = self.node(states)
        down, up = self._messages(self.down, task.parents, node), self._messages(self.up, task.parents.T, node)
        x = torch.cat([down, up], dim=-1)
        # Step 2: summaries of the nodes above, below and parallel to the current one.
        sets = (task.above[nodes], task.above.T[nodes], task.parallel[nodes])
        summaries = [
            aggregator(mask[:, None] / len(task.static), x).squeeze(1)
            for aggregator, mask in zip((self.ancestors, self.descendants, self.others), sets, strict=True)
        ]
        # Step 3: a classifier gives the current node's device.
        current = x[torch.arange(len(nodes)), nodes]
        logits = self.classifier(torch.cat([*summaries, current], dim=1))
        return learning.masked(logits, task.supported[nodes])

    def _messages(self, aggregator: Aggregator, adjacency: Tensor, node: Tensor) -> Tensor:
        """Passes messages for several rounds; nodes without senders keep their own embedding."""
        receives = (adjacency.sum(1, keepdim=True) > 0).float()
        x = node
        for _ in range(self.rounds):
            x = node + receives * aggregator(adjacency, x)
        return x


@dataclass(frozen=True, eq=False)
class Episode:
    """The states, actions and rewards of an episode's steps."""

    states: Tensor  # features of all nodes, float32 [T, N, F]
    nodes: Tensor  # current nodes, int64 [T]
    actions: Tensor  # chosen devices, int64 [T]
    rewards: NDArray[np.float64]  # gains of the steps, float64 [T]


def run_episode(network: Network, task: Task, settings: Placeto, greedy: bool = False) -> Episode:
    """Improves a placement node by node (section 3.1).

    Args:
        network: the policy.
        task: the graph, and the environment that measures.
        settings: settings of the baseline; `passes` and `random_start` are used.
        greedy: take the most probable device in each step.

    Returns:
        The steps of the episode.
    """
    environment, graph = task.environment, task.graph
    supported = task.supported.float()
    devices = torch.multinomial(supported, 1).squeeze(1) if settings.random_start else supported.argmax(1)
    cost = _log_time(environment, graph, devices)
    states, nodes, actions, rewards = [], [], [], []
    for _ in range(settings.passes):
        visited = torch.zeros(graph.size)
        for node in range(graph.size):
            states.append(task.state(devices, visited, node))
            nodes.append(node)
            with torch.no_grad():
                action = int(learning.draw(network(task, states[-1][None], torch.tensor([node])), greedy))
            actions.append(action)
            # The reward of a step is the decrease of the logarithmic run time.
            reward = 0.0
            if action != int(devices[node]):
                devices[node] = action
                after = _log_time(environment, graph, devices)
                reward, cost = cost - after, after
            rewards.append(reward)
            visited[node] = 1
    return Episode(torch.stack(states), torch.tensor(nodes), torch.tensor(actions), np.array(rewards))


def _log_time(environment: Environment, graph: UnitGraph, devices: Tensor) -> float:
    """Measures a placement of units, int64 [N]: the logarithm of its run time relative to the graph's reference."""
    cost = environment.cost(graph.expand(devices.numpy()))
    return float(np.log(cost / graph.reference if np.isfinite(cost) else learning.FAILED))


def returns(rewards: NDArray[np.float64], discount: float) -> NDArray[np.float64]:
    """The discounted sum of the rewards from each step on, float64 [T]."""
    result = rewards.copy()
    for step in range(len(result) - 2, -1, -1):
        result[step] += discount * result[step + 1]
    return result


def learn(network: Network, task: Task, settings: Placeto) -> None:
    """Learns on one graph (section 3.3) by REINFORCE with a baseline for each step of an episode and an entropy bonus.

    Args:
        network: the policy, which is changed.
        task: the graph, and the environment that measures.
        settings: settings of the baseline.

    Raises:
        BudgetSpent: the budget is spent.
    """
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.learning_rate)
    history: deque[NDArray[np.float64]] = deque(maxlen=settings.history)
    number = idle = 0
    while idle < settings.idle_episodes:
        # Learning rate and entropy bonus fall as the budget is spent.
        late = min(max(number / settings.decay_episodes, task.environment.spent), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * (1 - 0.9 * late)
        evaluations = task.environment.evaluations
        episode = run_episode(network, task, settings)
        # The baseline of a step is the mean return of that step in the last episodes.
        gains = returns(episode.rewards, settings.discount)
        history.append(gains)
        advantages = gains - np.mean(history, axis=0)
        advantages /= max(float(advantages.std()), learning.SMALLEST_DEVIATION)
        _update(network, optimizer, task, episode, advantages, settings, settings.entropy * (1 - late))
        # The first measurement is of the initial placement; an episode with no other one moved nothing.
        idle = idle + 1 if task.environment.evaluations <= evaluations + 1 else 0
        number += 1


def _update(
    network: Network,
    optimizer: torch.optim.Optimizer,
    task: Task,
    episode: Episode,
    advantages: NDArray[np.float64],
    settings: Placeto,
    entropy: float,
) -> None:
    """Makes one step of the optimizer on an episode; the gradient is accumulated over chunks of steps.

    Args:
        network: the policy, which is changed.
        optimizer: optimizer of its parameters.
        task: the graph.
        episode: the steps.
        advantages: advantage of each step, float64 [T].
        settings: settings of the baseline; `chunk` and `norm` are used.
        entropy: weight of the entropy bonus.
    """
    optimizer.zero_grad()
    steps = len(advantages)
    gains = torch.from_numpy(advantages.astype(np.float32))
    for begin in range(0, steps, settings.chunk):
        part = slice(begin, begin + settings.chunk)
        log_probability = network(task, episode.states[part], episode.nodes[part])
        chosen = learning.taken(log_probability, episode.actions[part])
        bonus = entropy * learning.entropy(log_probability) * len(chosen)
        loss = -((gains[part] * chosen).sum() + bonus) / steps
        loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(network.parameters(), settings.norm)
    optimizer.step()
