"""Learning the placement of one problem by the algorithm as published: the settings `paper`, no pretraining.

    for each episode:
        x ← the problem's features
        for each step t:  encode x, parse, pool, place
                          draw a device for each cluster; reward r_t = 1 / latency of that placement
                          x_v ← x_v + what the embedding of v's cluster adds            (`Network`)
        one step of Adam on  - Σ_t G_t log p(placement of step t),   G_t = Σ_{k ≥ t} discount^(k - t) r_k

There is no baseline, no entropy bonus and no second use of a sample. The best placement that was ever drawn is the
result; what the trained policy says by itself is the `greedy` one.

Sources: Duan et al., NeurIPS 2024 (arXiv:2405.14185); REINFORCE: Williams 1992, Machine Learning 8; the authors' code,
github.com/hping666/HSDAG, main.py. That code weighs all steps of an episode with one discounted sum of their rewards,
cuts the gradient at what a step adds to the features, and counts placements on a single device as failed.
Rewards here are relative to the best single device, which changes neither their order nor, with Adam, the size of an
update.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ov_hsdag import _native
from ov_hsdag.placers.single import HeteroDefault
from ov_hsdag.policy.config import HSDAGConfig, Widths
from ov_hsdag.policy.features import TYPE_COLUMNS, PolicyInput, policy_input
from ov_hsdag.policy.forward import Segments
from ov_hsdag.policy.placer import ClusterLogits
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.training.network import HSDAGNetwork, parameter_shapes, tensors

EPISODES = 100
LEARNING_RATE = 1e-4


@dataclass(frozen=True)
class Config(HSDAGConfig):
    """Settings of the published network, and of how it learns."""

    devices: int = 2  # a fixed number
    steps: int = 20  # placements in an episode
    discount: float = 0.95  # of the rewards of an episode's later steps


def paper(widths: Widths, devices: int = 2) -> Config:
    """Returns the algorithm as published (Duan et al., NeurIPS 2024, arXiv:2405.14185), with the authors' sizes.

    Source of the sizes: github.com/hping666/HSDAG, config.py, model.py, main.py. Its parsing has no limit, and ends
    with 1 to 4 clusters; here with 4: a single cluster can only be a single device, which that code rewards with 0.

    widths: numbers of features, of `paper_input`. devices: number of fixed devices.
    """
    return Config(widths, hidden=128, layers=2, context=0, dropout=0.2, levels=64, min_clusters=4, devices=devices)


def paper_input(problem: PlacementProblem) -> PolicyInput:
    """Returns the features that the paper has: none of costs, bytes, weights, depth and edges."""
    x = policy_input(problem)
    return replace(
        x,
        node_x=x.node_x[:, :_COLUMNS],
        edge_x=np.zeros_like(x.edge_x),
        pair_x=np.where(np.arange(x.pair_x.shape[2]) < 1, x.pair_x, 0),  # support
        device_x=np.where(
            np.arange(x.device_x.shape[1]) < 5, x.device_x, 0
        ),  # the objective and which devices there are
    )


# Columns of `node_x` that the paper has: types, dimensions and rank of the output, place in the order, degrees, fractal
# dimension and closeness.
_COLUMNS = TYPE_COLUMNS + 6 + 1 + 5


class Network(HSDAGNetwork):
    """The paper's network: a GCN (Kipf & Welling 2017, arXiv:1609.02907) and a softmax over a fixed number of devices.

    Its weights "output" are of what an embedding adds to the features of its cluster's nodes.
    """

    config: Config

    @staticmethod
    def parameter_shapes(config: HSDAGConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Names and shapes of the parameters."""
        assert isinstance(config, Config)
        ours, width = dict(parameter_shapes(config)), config.hidden

        def same(name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
            """Those of a layer of the network that ships, as far as it sees nodes."""
            for key, shape in ours.items():
                if key.startswith(f"{name}.") and not key.startswith((f"{name}.parts.1", f"{name}.parts.2")):
                    yield key, shape

        yield from same("encoder.input")
        for layer in range(config.layers):
            name = f"encoder.layers.{layer}"
            yield f"{name}.convs.0.bias", (width,)
            yield f"{name}.convs.0.lin.weight", (width, width)
            yield from same(f"{name}.norm")
        for name in ("edge_scorer", "member", "whole"):
            yield from same(name)
        for name, outputs in (
            ("output", config.widths.node),
            ("placer.head.0", width),
            ("placer.head.2", config.devices),
        ):
            yield f"{name}.weight", (outputs, width)
            yield f"{name}.bias", (outputs,)

    def encode(self, x: Any) -> tuple[Tensor, Tensor]:
        """See `HSDAGNetwork`. Messages run both ways along edges and in loops, over the square roots of the degrees."""
        h = self.mix("encoder.input", x.node_x)
        source, target = x.edge_index
        entering, leaving = Segments(self, target, len(h)), Segments(self, source, len(h))
        scale = (1 / torch.sqrt(1 + entering.count + leaving.count))[:, None]
        for layer in range(self.config.layers):
            name = f"encoder.layers.{layer}"
            scaled = scale * self.product(h, self.weights[f"{name}.convs.0.lin.weight"])
            around = entering.sum(scaled[source]) + leaving.sum(scaled[target])
            message = scale * (around + scaled) + self.bias(f"{name}.convs.0")
            h = self.norm(f"{name}.norm", h + self.dropout(message.clip(0)))
        return h, self.sigmoid(self.mix("edge_scorer", h[source] * h[target])[:, 0])

    def place(self, x: Any, h: Tensor, cluster: Tensor, z: Tensor) -> Tensor:
        """See `HSDAGNetwork`. Raises ValueError where it places on another number of devices."""
        if self.config.devices != len(x.device_x):
            raise ValueError(f"expected graphs on {self.config.devices} devices (got {len(x.device_x)})")
        return self.linear("placer.head.2", self.linear("placer.head.0", z).clip(0))


@dataclass(frozen=True, eq=False)
class Task:
    """One problem, ready for episodes."""

    problem: PlacementProblem
    x: PolicyInput  # its features, n of them nodes
    inputs: Any  # the same as tensors
    reference: float  # score of the best single device, or of HETERO's rule where none is feasible, µs

    @classmethod
    def of(cls, problem: PlacementProblem) -> Task:
        """Computes the features of the paper."""
        x = paper_input(problem)
        reference = float(problem.scores(problem.singles).min())
        if not np.isfinite(reference):
            reference = float(problem.scores(problem.repair(HeteroDefault().place(problem)))[0])
        # Where memory limits rule that out, too, the unit of rewards is a second.
        return cls(problem, x, tensors(x), reference if np.isfinite(reference) else 1e6)

    def scores(self, placements: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Returns simulated scores of placements, uint8 [batch, groups]: µs, inf where infeasible, float64 [batch]."""
        return self.problem.scores(placements)

    def rewards(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns rewards of scores, float64 [batch]: reference / score, 0 for infeasible placements (µs, inf)."""
        return np.asarray(self.reference / np.maximum(scores, 1e-9))


@dataclass(frozen=True, eq=False)
class Episode:
    """What the steps of an episode placed."""

    log_probability: Tensor  # of each step's placement, float32 [steps], with a gradient
    placements: NDArray[np.uint8]  # uint8 [steps, groups]
    scores: NDArray[np.float64]  # of the placements, µs, inf where infeasible, float64 [steps]
    rewards: NDArray[np.float64]  # float64 [steps]


def run_episode(network: Network, task: Task, greedy: bool = False) -> Episode:
    """Places a problem `config.steps` times, each time on features that the step before has changed.

    Gradients run through all steps: what a step adds to the features is learned from the rewards of later steps.

    greedy: take the likeliest device of each cluster; otherwise draw it (from torch's global generator). Returns
    placements, scores and rewards of all steps, and their log-probabilities with a gradient.
    """
    config, x = network.config, task.inputs
    log_probabilities, placements = [], []
    for _ in range(config.steps):
        h, edge_score = network.encode(x)
        numbers = _native.parse(
            len(task.x.node_x), task.x.edge_index, edge_score.detach().numpy(), config.levels, config.min_clusters
        )
        cluster = torch.from_numpy(numbers.astype(np.int64))
        z = network.pool(x, h, edge_score, cluster)
        logits = network.place(x, h, cluster, z)
        log_probability, placement = _choose(task, logits, numbers, greedy)
        log_probabilities.append(log_probability)
        placements.append(placement)
        x = replace(x, node_x=x.node_x + network.linear("output", z)[cluster])
    batch = np.stack(placements)
    scores = task.scores(batch)
    return Episode(torch.stack(log_probabilities), batch, scores, task.rewards(scores))


def _choose(task: Task, logits: Tensor, cluster: NDArray[np.int32], greedy: bool) -> tuple[Tensor, NDArray[np.uint8]]:
    """Devices of clusters from their logits [c, D]: their joint log-probability, and the placement, uint8 [groups]."""
    supported, of_group = task.problem.group_supported, cluster[task.x.coarse]
    runs = np.zeros(logits.shape, bool)
    np.logical_or.at(runs, of_group, supported)
    log_probability = torch.log_softmax(logits.masked_fill(~torch.from_numpy(runs), -1e9), -1)
    known = log_probability.detach()
    actions = known.argmax(-1) if greedy else torch.multinomial(known.exp(), 1).squeeze(-1)
    choice = actions.numpy().astype(np.uint8)[None]
    placement = ClusterLogits(logits.detach().numpy(), of_group, None).expanded(task.problem, choice)[0]
    return log_probability.gather(1, actions[:, None]).sum(), placement


def discounted(rewards: NDArray[np.float64], discount: float) -> NDArray[np.float64]:
    """Returns G_t = Σ_{k ≥ t} discount^(k - t) r_k of the rewards of an episode's steps, float64 [steps]."""
    result = np.array(rewards, np.float64)
    for step in range(len(result) - 2, -1, -1):
        result[step] += discount * result[step + 1]
    return result


def loss(episode: Episode, discount: float) -> Tensor:
    """Returns the loss of REINFORCE without a baseline: - Σ_t G_t log p(placement of step t), a scalar."""
    gains = torch.from_numpy(discounted(episode.rewards, discount).astype(np.float32))
    return -(gains * episode.log_probability).sum()


@dataclass(frozen=True, eq=False)
class Trained:
    """The result of training on one problem."""

    best: NDArray[np.uint8]  # the best placement that was drawn, uint8 [groups]
    best_score: float  # its score, µs; inf where none was feasible
    best_episode: int  # the episode that drew it, from 0
    # the placement of the last step of an episode without draws and dropout, after training, uint8 [groups]
    greedy: NDArray[np.uint8]
    greedy_score: float  # its score, µs; inf where infeasible
    mean_reward: NDArray[np.float64]  # of each episode, float64 [episodes]


def train(
    task: Task, config: Config, *, episodes: int = EPISODES, learning_rate: float = LEARNING_RATE, seed: int = 0
) -> Trained:
    """Trains a new network on one problem; the same arguments give the same result on the same machine.

    task: the problem, with the features of `config`. config: settings of the network and of the learning. episodes: at
    least 1. The paper's 100; the authors' published code has 25. learning_rate: of Adam. The paper's 1e-4; the authors'
    published code has 1e-3. 0: the network keeps its initial weights, and the best placement is that of a random
    search. seed: of weights, draws and dropout. torch's global generator is left as it was. Returns the
    best placement that it drew, and its greedy placement.
    """
    best, best_score, best_episode = task.problem.single(0), np.inf, 0
    means = np.zeros(episodes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Network(config)
        optimizer = torch.optim.Adam(network.parameters(), lr=learning_rate)
        for number in range(episodes):
            with torch.set_grad_enabled(learning_rate > 0):
                episode = run_episode(network, task)
            if learning_rate > 0:
                optimizer.zero_grad()
                loss(episode, config.discount).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            row = int(episode.scores.argmin())
            if episode.scores[row] < best_score:
                best, best_score, best_episode = episode.placements[row], float(episode.scores[row]), number
            means[number] = episode.rewards.mean()
        network.eval()
        with torch.no_grad():
            greedy = run_episode(network, task, greedy=True)
    return Trained(
        best=best,
        best_score=best_score,
        best_episode=best_episode,
        greedy=greedy.placements[-1],
        greedy_score=float(greedy.scores[-1]),
        mean_reward=means,
    )
