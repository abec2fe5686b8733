"""What the learned baselines share: rewards, moving baselines, draws from a policy, seeds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

FAILED = 25.0
"""Run time that an infeasible placement counts as, in units of the reference."""


# Deviations beyond which an advantage counts no more.
_FURTHEST = 3.0


def rewards(costs: NDArray[np.float64], reference: float) -> NDArray[np.float64]:
    """Returns -√(run time), -5 for what is infeasible, float64 [batch].

    costs: seconds, inf where infeasible. reference: seconds that count as 1, so that one learning rate serves models of
    all sizes.
    """
    return -np.sqrt(np.where(np.isfinite(costs), costs / reference, FAILED))


@dataclass
class MovingAverage:
    """The moving-average baseline of REINFORCE."""

    decay: float = 0.9  # weight of the past in each update
    value: float | None = None  # None before the first update

    def advantage(self, rewards: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns rewards less the baseline, which begins with the first mean and then takes each mean in."""
        mean = float(rewards.mean())
        before = mean if self.value is None else self.value
        self.value = self.decay * before + (1 - self.decay) * mean
        return rewards - before


def scaled(gains: NDArray[np.float64], costs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns advantages in units of the feasible ones' deviation, float64 [batch].

    Without it, one infeasible placement among the draws leaves nothing of the differences between all others.

    gains: advantages, float64 [batch]. costs: of the same placements, inf where infeasible, float64 [batch].
    """
    feasible = gains[np.isfinite(costs)]
    deviation = float(feasible.std()) if len(feasible) > 1 else 0.0
    return np.clip(gains / max(deviation, 1e-2), -_FURTHEST, _FURTHEST)


def masked(logits: Tensor, supported: Tensor) -> Tensor:
    """Returns log-probabilities over the devices that support a unit.

    logits: [..., units, devices]. supported: bool [units, devices].
    """
    return torch.log_softmax(logits.masked_fill(~supported, -1e9), -1)


def draw(log_probability: Tensor, greedy: bool = False) -> Tensor:
    """Draws an action for each row of log-probabilities [..., actions] from torch's generator, int64 [...]."""
    known = log_probability.detach()
    if greedy:
        return known.argmax(-1)
    return torch.multinomial(known.exp().flatten(0, -2), 1).view(known.shape[:-1])


def taken(log_probability: Tensor, actions: Tensor) -> Tensor:
    """Returns the log-probabilities of the actions that were taken, [..., actions], [...] → [...]."""
    return log_probability.gather(-1, actions[..., None]).squeeze(-1)


def entropy(log_probability: Tensor) -> Tensor:
    """Returns the mean entropy of the rows [..., actions], a scalar."""
    return -(log_probability.exp() * log_probability).sum(-1).mean()


def step(optimizer: torch.optim.Optimizer, module: nn.Module, loss: Tensor, norm: float) -> None:
    """Makes one step of an optimizer on a loss, with the gradient's norm clipped."""
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
