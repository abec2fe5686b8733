"""Settings of a pretraining, with the usual names of the field (CleanRL's where it has one)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from ov_hsdag.training.corpus import MAX_COARSE
from ov_hsdag.training.run import ANEW, check_settings
from ov_hsdag.utils.errors import UserError


@dataclass(frozen=True)
class Settings:
    """All settings of a pretraining; together with the corpus they determine its result.

    Attributes:
        seed: seed of problems, initial weights, batches and samples.
        problems: number of problems that are drawn; most of those whose best placement is a single device are left out.
        first_problems: number of problems that the first step draws from; all are in play when imitation ends.
        validation: number of problems for validation, drawn from the same distribution.
        levels: numbers of merges of parsing; each step draws one of them.
        imitation_steps: number of steps of behaviour cloning of searched placements.
        reinforce_steps: number of steps of policy gradients after those.
        batch_size: number of problems in a step.
        samples: number of placements of each problem in a step of policy gradients.
        learning_rate: largest learning rate of Adam; it falls to a tenth along a cosine over all steps.
        warmup_steps: number of steps in which the learning rate rises from 0.
        ent_coef: weight of the entropy bonus, in all steps.
        target_entropy: entropy up to which the bonus grows, nats; without the bonus, counterfactual advantages would
            reduce the entropy to 0.
        pg_coef: weight of the policy gradient of whole placements.
        cf_coef: weight of the policy gradient of single clusters (`counterfactual_loss`).
        bc_coef: weight of behaviour cloning in steps of policy gradients.
        edge_coef: weight of behaviour cloning by edge scores, relative to that by devices.
        clip_coef: ε of PPO; None for REINFORCE.
        update_epochs: number of updates from the same samples (PPO).
        max_grad_norm: largest norm of the gradient.
        baseline_rate: weight of the latest mean return in a problem's moving average, the baseline.
        config: fields of `HSDAGConfig` that differ from `HSDAGConfig.base`.
        validate_every: number of steps between validations.
        max_coarse: largest number of coarse groups of a graph; larger graphs are left out.
    """

    seed: int = 0
    problems: int = 4096
    first_problems: int = 2048
    validation: int = 256
    levels: tuple[int, ...] = (0, 1, 1, 1, 2)
    imitation_steps: int = 1500
    reinforce_steps: int = 3500
    batch_size: int = 16
    samples: int = 8
    learning_rate: float = 1e-3
    warmup_steps: int = 100
    ent_coef: float = 4.0
    target_entropy: float = 0.2
    pg_coef: float = 0.1
    cf_coef: float = 4.0
    bc_coef: float = 0.1
    edge_coef: float = 0.5
    clip_coef: float | None = None
    update_epochs: int = 1
    max_grad_norm: float = 1.0
    baseline_rate: float = 0.3
    config: dict[str, Any] = field(default_factory=dict)
    validate_every: int = 500
    max_coarse: int = MAX_COARSE

    @property
    def steps(self) -> int:
        """The number of steps of both phases."""
        return self.imitation_steps + self.reinforce_steps

    def rate(self, step: int) -> float:
        """The learning rate of a step (from 0): a linear warmup, and a cosine to a tenth."""
        rise = min(1.0, (step + 1) / max(self.warmup_steps, 1))
        return self.learning_rate * rise * (0.55 + 0.45 * math.cos(math.pi * step / max(self.steps, 1)))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Settings:
        """Reads settings from a checkpoint's JSON. Raises UserError where this version does not know one of them."""
        values = dict(values)
        if (parts := values.pop("parts", 1)) != 1:
            raise UserError(f"the run computes its steps in {parts!r:.20} parts, as this version does not; {ANEW}")
        values = check_settings(values, cls())
        return cls(**{**values, "levels": tuple(values["levels"])})
