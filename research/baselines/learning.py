"""Functions that the learning baselines share: rewards, moving averages, sampling from a policy, seeds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

FAILED = 25.0
"""Run time of an infeasible placement for the reward, in units of the reference: large, and its root is 5."""

LARGEST_ADVANTAGE = 3.0
"""Limit of advantages in standard deviations, so that a single placement does not dominate an update."""

SMALLEST_DEVIATION = 1e-2
"""Lower limit of the standard deviation that divides advantages: that of nearly equal placements is noise."""


def rewards(costs: NDArray[np.float64], reference: float) -> NDArray[np.float64]:
    """The rewards -√(run time), and -√FAILED for infeasible placements, float64 [batch].

    Args:
        costs: seconds, inf where infeasible, float64 [batch].
        reference: seconds that count as 1, so that one learning rate serves models of all sizes.
    """
    return -np.sqrt(np.where(np.isfinite(costs), costs / reference, FAILED))


@dataclass
class MovingAverage:
    """The moving-average baseline of REINFORCE."""

    decay: float = 0.9  # weight of the past in each update
    value: float | None = None  # None before the first update

    def advantage(self, rewards: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rewards minus the baseline; afterwards their mean updates the baseline, which starts with the first mean."""
        mean = float(rewards.mean())
        before = mean if self.value is None else self.value
        self.value = self.decay * before + (1 - self.decay) * mean
        return rewards - before


def scaled(advantages: NDArray[np.float64], costs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Advantages divided by the standard deviation of the feasible ones, and clipped, float64 [batch].

    Otherwise a single infeasible placement in the batch would dwarf the differences between all others.

    Args:
        advantages: float64 [batch].
        costs: of the same placements, inf where infeasible, float64 [batch].
    """
    feasible = advantages[np.isfinite(costs)]
    deviation = float(feasible.std()) if len(feasible) > 1 else 0.0
    return np.clip(advantages / max(deviation, SMALLEST_DEVIATION), -LARGEST_ADVANTAGE, LARGEST_ADVANTAGE)


def masked(logits: Tensor, supported: Tensor) -> Tensor:
    """The log-probabilities of devices, with those that do not support a unit excluded.

    Args:
        logits: float32 [..., units, devices].
        supported: bool [units, devices].
    """
    return torch.log_softmax(logits.masked_fill(~supported, -1e9), -1)


def draw(log_probability: Tensor, greedy: bool = False) -> Tensor:
    """Draws an action for each row of log-probabilities, using torch's generator, int64 [...].

    Args:
        log_probability: float32 [..., actions].
        greedy: take the most probable action instead.
    """
    detached = log_probability.detach()
    if greedy:
        return detached.argmax(-1)
    return torch.multinomial(detached.exp().flatten(0, -2), 1).view(detached.shape[:-1])


def taken(log_probability: Tensor, actions: Tensor) -> Tensor:
    """The log-probabilities of the actions taken. log_probability: [..., actions]; actions and result: [...]."""
    return log_probability.gather(-1, actions[..., None]).squeeze(-1)


def entropy(log_probability: Tensor) -> Tensor:
    """The mean entropy of the rows of log-probabilities [..., actions] in nats, a scalar."""
    return -(log_probability.exp() * log_probability).sum(-1).mean()


def step(optimizer: torch.optim.Optimizer, module: nn.Module, loss: Tensor, norm: float) -> None:
    """Makes one step of an optimizer.

    Args:
        optimizer: of the module's parameters.
        module: the network, which is changed.
        loss: the loss to minimize, a scalar.
        norm: the gradient's norm is clipped to this value.
    """
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(module.parameters(), norm)
    optimizer.step()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds torch's generator inside the block and restores its state afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
