"""The loss of a step of pretraining, and its gradient in parts, wherever they are computed.

With `Settings.parts`, the problems of a step are dealt into parts, and the gradient of the step is the sum of theirs:
synchronous data parallelism (Chen et al. 2016, arXiv:1604.00981, "Revisiting Distributed Synchronous SGD"), without its
backup workers, which drop what comes last. A part samples, judges and differentiates for itself, with draws that follow
from the seed, the step and the number of the part. So a run is a function of its settings, whoever computes the parts.

What a loss is a mean over decides what a part counts for in the sum (`Share`):

- Imitation and whole placements are means over problems, their advantages are relative to samples of the same problem:
  the sum is the whole batch's.
- The loss of edge scores is a mean over edges: their numbers are known beforehand, and the sum is the whole batch's.
- Entropy and counterfactual advantages are means over clusters, whose number no part knows of the others. A part counts
  as much as its coarse groups, which clusters are made of: exactly so where parsing merges nothing, nearly otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ov_hsdag.training.config import HSDAGConfig
from ov_hsdag.training.network import HSDAGNetwork
from ov_hsdag.training.pool import Pool, Settings, levels_at
from ov_hsdag.training.rollout import (
    Batch,
    Policy,
    Rollouts,
    counterfactual_advantages,
    counterfactual_loss,
    edge_loss,
    imitation_loss,
    reinforce_loss,
    run_policy,
    sample,
)
from ov_hsdag.utils.errors import UserError


@dataclass(frozen=True)
class Share:
    """What a part is of its batch, 0 … 1.

    Attributes:
        problems: its share of the problems.
        groups: of their coarse groups.
        edges: of the edges between those.
    """

    problems: float = 1.0
    groups: float = 1.0
    edges: float = 1.0


@dataclass(frozen=True, eq=False)
class Drawn:
    """What the first update of a step of REINFORCE has drawn, which later updates learn from again.

    Attributes:
        rollouts: the samples.
        advantages: of single clusters, see `counterfactual_advantages`.
    """

    rollouts: Rollouts
    advantages: Tensor


@dataclass(frozen=True, eq=False)
class Loss:
    """The loss of a step, of a batch or a part of it.

    Attributes:
        value: a scalar, with a gradient.
        drawn: see `Drawn`; None in steps of imitation.
        scalars: by their names in TensorBoard; those of all parts add up to those of the batch.
    """

    value: Tensor
    drawn: Drawn | None
    scalars: dict[str, float]


WHOLE = Share()
"""A batch that is its only part."""


def step_loss(
    network: HSDAGNetwork,
    settings: Settings,
    step: int,
    examples: Batch,
    baselines: NDArray[np.float64],
    generator: torch.Generator,
    drawn: Drawn | None = None,
    share: Share = WHOLE,
) -> Loss:
    """Returns the loss of a step: imitation at first, then REINFORCE or PPO with imitation besides.

    Args:
        network: the policy.
        settings: of the run.
        step: its number, from 0.
        examples: the problems.
        baselines: their moving mean rewards, nan for new ones, float64 [problems].
        generator: of all draws.
        drawn: by the first update of the step; None: this is the first.
        share: what the problems are of the step's.
    """
    policy = run_policy(network, examples, None if drawn is None else drawn.rollouts.cluster, levels_at(settings, step))
    if step < settings.imitation_steps:
        imitate, scalars = _imitate(settings, examples, policy, share)
        loss = share.problems * imitate
    else:
        if drawn is None:
            rollouts = sample(policy, examples, settings.samples, generator, baselines)
            # Around the greedy choice, which is what counts in the end, and every other step around a draw.
            actions = policy.log_probability.argmax(-1) if step % 2 else rollouts.actions[0]
            drawn = Drawn(rollouts, counterfactual_advantages(policy, examples, actions, generator))
        reinforce = reinforce_loss(policy, examples, drawn.rollouts, settings.clip)
        imitate, scalars = _imitate(settings, examples, policy, share)
        loss = share.problems * settings.sampled * reinforce - share.groups * settings.entropy * policy.entropy
        loss = loss + share.problems * settings.imitation * imitate
        loss = loss + share.groups * settings.switches * counterfactual_loss(policy, drawn.advantages)
        mean = drawn.rollouts.rewards.mean(axis=0)
        best = np.log([example.reference / example.target_score for example in examples.examples])
        scalars["charts/reward"] = share.problems * float(mean.mean())
        scalars["charts/regret"] = share.problems * float((best - mean).mean())
    scalars["losses/entropy"] = share.groups * float(policy.entropy.detach())
    scalars["charts/clusters"] = share.problems * len(policy.log_probability) / len(examples.examples)
    return Loss(loss, drawn, scalars)


def _imitate(settings: Settings, examples: Batch, policy: Policy, share: Share) -> tuple[Tensor, dict[str, float]]:
    """The loss of imitation, a mean over problems, and its scalars."""
    imitation, edges = imitation_loss(policy, examples), edge_loss(policy, examples)
    scalars = {
        "losses/imitation": share.problems * float(imitation.detach()),
        "losses/edges": share.edges * float(edges.detach()),
    }
    # What is multiplied by the share of problems afterwards counts by that of edges.
    return imitation + settings.edges * share.edges / share.problems * edges, scalars


# --- parts ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Update:
    """What all parts of an update share.

    Attributes:
        step: number of the step, from 0.
        epoch: number of the update in the step, from 0.
        weights: of the network, one parameter after the other, float32 [parameters].
    """

    step: int
    epoch: int
    weights: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Part:
    """Some problems of a step.

    Attributes:
        number: of the part, from 0.
        indices: of its problems in the pool, int64 [problems].
        baselines: their moving mean rewards, nan for new ones, float64 [problems].
        share: what they are of the step's.
        drawn: by the first update of the step; None: this is the first.
    """

    number: int
    indices: NDArray[np.int64]
    baselines: NDArray[np.float64]
    share: Share
    drawn: Drawn | None = None


@dataclass(frozen=True, eq=False)
class PartGradient:
    """What a part adds to an update.

    Attributes:
        gradient: of its share of the loss, by the weights, float32 [parameters].
        rewards: mean reward of each of its problems, float64 [problems]; none in steps of imitation.
        drawn: where later updates need it and have it not.
        scalars: see `Loss`.
    """

    gradient: NDArray[np.float32]
    rewards: NDArray[np.float64]
    drawn: Drawn | None
    scalars: dict[str, float]


Compute = Callable[[Update, Sequence[Part]], Sequence[PartGradient]]
"""Computes all parts of an update; results in the order of the parts."""

Spread = Callable[[Callable[[Update, Part], PartGradient]], Compute]
"""Says who computes parts, given how (`ov_hsdag.fleet.cluster.Cluster.rounds`)."""


def here(function: Callable[[Update, Part], PartGradient]) -> Compute:
    """Computes parts in this process, one after the other."""
    return lambda update, parts: [function(update, part) for part in parts]


def deal(settings: Settings, pool: Pool, indices: NDArray[np.int64], baselines: NDArray[np.float64]) -> list[Part]:
    """Deals the problems of a step into parts that take about as long: the largest first, to the part with least.

    Args:
        settings: of the run; there are fewer parts where there are fewer problems.
        pool: of the problems.
        indices: of the step's problems, int64 [problems].
        baselines: of all problems of the pool, float64.
    """
    sizes = np.array([pool.size(int(index)) for index in indices])
    groups, edges = sizes.T
    count = min(settings.parts, len(indices))
    dealt: list[list[int]] = [[] for _ in range(count)]
    load = np.zeros(count)
    for place in np.argsort(-groups, kind="stable").tolist():
        # One with nothing comes before all others.
        least = int(load.argmin())
        dealt[least].append(place)
        load[least] += groups[place]
    return [
        Part(
            number,
            indices[places],
            baselines[indices[places]],
            Share(
                len(places) / len(indices),
                float(groups[places].sum() / groups.sum()),
                float(edges[places].sum() / max(edges.sum(), 1)),
            ),
        )
        for number, places in enumerate(map(sorted, dealt))
    ]


class Gradients:
    """Computes gradients of parts. Each process that does so has one, and in it the examples that it has made."""

    def __init__(self, pool: Pool, settings: Settings, config: HSDAGConfig) -> None:
        """Takes what it needs in other processes.

        Args:
            pool: of all problems of the run, where parts are computed elsewhere.
            settings: of the run.
            config: of its network.
        """
        self._pool, self._settings, self._config = pool, settings, config
        self._torch, self._threads = str(torch.__version__), torch.get_num_threads()
        self._network: HSDAGNetwork | None = None

    def __call__(self, update: Update, part: Part) -> PartGradient:
        """Returns the gradient of a part.

        Raises:
            UserError: this process has another torch than the one that asks.
        """
        network = self._prepared()
        set_weights(network, update.weights)
        examples = Batch.of([self._pool[int(index)] for index in part.indices])
        origin = [self._settings.seed, 3, update.step, update.epoch, part.number]
        with torch.random.fork_rng(devices=[]):
            # Of all draws, those of dropout among them, which has no generator of its own.
            generator = torch.manual_seed(int(np.random.default_rng(origin).integers(2**62)))
            loss = step_loss(
                network, self._settings, update.step, examples, part.baselines, generator, part.drawn, part.share
            )
            network.zero_grad(set_to_none=True)
            loss.value.backward()  # type: ignore[no-untyped-call]
        again = update.epoch + 1 < self._settings.epochs_at(update.step)
        return PartGradient(
            gradient=gradient(network),
            rewards=np.zeros(0) if loss.drawn is None else loss.drawn.rollouts.rewards.mean(axis=0),
            drawn=loss.drawn if again and part.drawn is None else None,
            scalars=loss.scalars,
        )

    def _prepared(self) -> HSDAGNetwork:
        if self._network is None:
            if str(torch.__version__) != self._torch:
                raise UserError(
                    f"a node of the cluster has torch {torch.__version__}, this run torch {self._torch}:"
                    " what it learns would depend on who computes"
                )
            torch.set_flush_denormal(True)
            torch.set_num_threads(self._threads)
            with torch.random.fork_rng(devices=[]):
                self._network = HSDAGNetwork(self._config)
        return self._network


def weights(network: nn.Module) -> NDArray[np.float32]:
    """Returns the parameters one after the other, float32 [parameters]. Networks here have no other state."""
    return np.concatenate([parameter.detach().numpy().ravel() for parameter in network.parameters()])


def set_weights(network: nn.Module, values: NDArray[np.float32]) -> None:
    """Sets the parameters to what `weights` has returned."""
    for parameter, value in _split(network, values):
        parameter.detach().copy_(value)


def gradient(network: nn.Module) -> NDArray[np.float32]:
    """Returns the gradients of the parameters one after the other, 0 where there is none, float32 [parameters]."""
    found = [(torch.zeros_like(p) if p.grad is None else p.grad).numpy().ravel() for p in network.parameters()]
    return np.concatenate(found)


def set_gradient(network: nn.Module, values: NDArray[np.float32]) -> None:
    """Sets the gradients of the parameters to what `gradient` has returned."""
    for parameter, value in _split(network, values):
        parameter.grad = value


def _split(network: nn.Module, values: NDArray[np.float32]) -> list[tuple[Tensor, Tensor]]:
    """Each parameter with its values."""
    parameters = list(network.parameters())
    # A copy: what comes from other processes cannot be written to.
    parts = np.split(values.copy(), np.cumsum([parameter.numel() for parameter in parameters])[:-1])
    pairs = zip(parameters, parts, strict=True)
    return [(parameter, torch.from_numpy(part).view_as(parameter)) for parameter, part in pairs]
