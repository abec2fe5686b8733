"""What the learning rivals share: rewards, moving baselines, draws from a policy, seeds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

FAILED = 25.0
"""Run time that an infeasible placement counts as, in units of the reference: a large constant, whose root is 5."""

LARGEST_ADVANTAGE = 3.0
"""Deviations beyond which an advantage counts no more."""

SMALLEST_DEVIATION = 1e-2
"""Least deviation that advantages are divided by: that of placements which are all alike is noise."""


def rewards(costs: NDArray[np.float64], reference: float) -> NDArray[np.float64]:
    """-√(run time), of infeasible placements -√FAILED, float64 [batch].

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
        """Rewards less the baseline, which begins with the first mean and then takes each mean in."""
        mean = float(rewards.mean())
        before = mean if self.value is None else self.value
        self.value = self.decay * before + (1 - self.decay) * mean
        return rewards - before


def scaled(advantages: NDArray[np.float64], costs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Advantages in units of the feasible ones' deviation, float64 [batch].

    Without it, one infeasible placement among the draws leaves nothing of the differences between all others.

    Args:
        advantages: float64 [batch].
        costs: of the same placements, inf where infeasible, float64 [batch].
    """
    feasible = advantages[np.isfinite(costs)]
    deviation = float(feasible.std()) if len(feasible) > 1 else 0.0
    return np.clip(advantages / max(deviation, SMALLEST_DEVIATION), -LARGEST_ADVANTAGE, LARGEST_ADVANTAGE)


def masked(logits: Tensor, supported: Tensor) -> Tensor:
    """Log-probabilities over the devices that support a unit.

    Args:
        logits: float32 [..., units, devices].
        supported: bool [units, devices].
    """
    return torch.log_softmax(logits.masked_fill(~supported, -1e9), -1)


def draw(log_probability: Tensor, greedy: bool = False) -> Tensor:
    """Draws an action for each row of log-probabilities [..., actions] from torch's generator, int64 [...].

    Args:
        log_probability: float32 [..., actions].
        greedy: takes the likeliest instead.
    """
    detached = log_probability.detach()
    if greedy:
        return detached.argmax(-1)
    return torch.multinomial(detached.exp().flatten(0, -2), 1).view(detached.shape[:-1])


def taken(log_probability: Tensor, actions: Tensor) -> Tensor:
    """The log-probabilities of the actions that were taken, [..., actions], [...] → [...]."""
    return log_probability.gather(-1, actions[..., None]).squeeze(-1)


def entropy(log_probability: Tensor) -> Tensor:
    """The mean entropy of the rows [..., actions], nats, a scalar."""
    return -(log_probability.exp() * log_probability).sum(-1).mean()


def step(optimizer: torch.optim.Optimizer, module: nn.Module, loss: Tensor, norm: float) -> None:
    """Makes one step of an optimizer on a loss, with the gradient's norm clipped to `norm`."""
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(module.parameters(), norm)
    optimizer.step()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds torch's generator for a while and leaves it as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
