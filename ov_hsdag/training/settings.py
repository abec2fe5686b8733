"""Settings of a pretraining, with the field's names for them (CleanRL's where it has one)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from ov_hsdag.training.corpus import MAX_COARSE
from ov_hsdag.training.run import ANEW, check_settings
from ov_hsdag.utils.errors import UserError


@dataclass(frozen=True)
class Settings:
    """Everything that decides a run."""

    seed: int = 0  # of problems, initial weights, batches and samples
    problems: int = 4096  # that are drawn; most of those with a single device for an answer are left out
    first_problems: int = 2048  # those that the first step draws from; all of them are in play when imitation ends
    validation: int = 256  # problems that only measure, drawn from the same distribution
    levels: tuple[int, ...] = (0, 1, 1, 1, 2)  # of parsing; each step takes one of them
    imitation_steps: int = 1500  # of behaviour cloning of searched placements
    reinforce_steps: int = 3500  # of policy gradients after those
    batch_size: int = 16  # problems in a step
    samples: int = 8  # placements of each problem in a step of policy gradients
    learning_rate: float = 1e-3  # of Adam; falls to a tenth along a cosine over all steps
    warmup_steps: int = 100  # in which it rises from 0
    ent_coef: float = 4.0  # weight of the entropy bonus, in all steps
    # nats up to which entropy earns the bonus: counterfactual advantages would end all of it
    target_entropy: float = 0.2
    pg_coef: float = 0.1  # weight of the policy gradient of whole placements
    cf_coef: float = 4.0  # weight of that of single clusters (`counterfactual_loss`)
    bc_coef: float = 0.1  # weight of behaviour cloning in steps of policy gradients
    edge_coef: float = 0.5  # weight of behaviour cloning by edge scores, relative to that by devices
    clip_coef: float | None = None  # ε of PPO; None: REINFORCE
    update_epochs: int = 1  # updates from the same samples (PPO)
    max_grad_norm: float = 1.0  # largest norm of the gradient
    baseline_rate: float = 0.3  # weight of the latest mean return in a problem's moving average, the baseline
    config: dict[str, Any] = field(default_factory=dict)  # fields of `HSDAGConfig` that differ from `HSDAGConfig.base`
    validate_every: int = 500  # steps
    max_coarse: int = MAX_COARSE  # larger graphs are left out

    @property
    def steps(self) -> int:
        """Number of steps of both phases."""
        return self.imitation_steps + self.reinforce_steps

    def rate(self, step: int) -> float:
        """The learning rate of a step (from 0): a linear warmup, and a cosine to a tenth."""
        rise = min(1.0, (step + 1) / max(self.warmup_steps, 1))
        return self.learning_rate * rise * (0.55 + 0.45 * math.cos(math.pi * step / max(self.steps, 1)))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Settings:
        """Settings from a checkpoint's JSON. Raises UserError where this version does not know one."""
        values = dict(values)
        if (parts := values.pop("parts", 1)) != 1:
            raise UserError(f"the run computes its steps in {parts!r:.20} parts, as this version does not; {ANEW}")
        values = check_settings(values, cls())
        return cls(**{**values, "levels": tuple(values["levels"])})
