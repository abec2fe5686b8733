"""What a pretraining learns from, step by step: its settings, its problems, and which of them a step takes.

Batches and problems follow from the seed and the step alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.policy.features import policy_input
from ov_hsdag.training import corpus as corpora
from ov_hsdag.training.config import HSDAGConfig
from ov_hsdag.training.corpus import Corpus
from ov_hsdag.training.rollout import Example
from ov_hsdag.training.run import check_settings
from ov_hsdag.training.targets import SHARD, Target, Targets, worth_learning


@dataclass(frozen=True)
class Settings:
    """Everything that decides a run.

    Attributes:
        seed: of problems, initial weights, batches and samples.
        problems: training problems that are drawn; most of those with a single device for an answer are left out.
        first_problems: those that the first step draws from; all of them are in play when imitation ends.
        validation: problems that only measure, drawn from the same distribution.
        levels: of parsing; each step takes one of them, as placing tries several.
        imitation_steps: steps that imitate searched placements.
        reinforce_steps: steps of REINFORCE after those.
        batch: problems in a step.
        parts: into which a step's problems are dealt; the gradient of each is computed apart, here or elsewhere
            (`ov_hsdag.training.gradients`). A run depends on their number, not on where they are computed.
        samples: placements of each problem in a step of REINFORCE.
        learning_rate: of imitation; falls to a tenth along a cosine.
        reinforce_rate: learning rate of REINFORCE, likewise.
        warmup: steps in which the learning rate rises from 0.
        entropy: weight of the entropy bonus.
        sampled: weight of whole sampled placements in steps of REINFORCE; it counts for every cluster of a problem.
        switches: weight of the counterfactual advantages of single clusters in steps of REINFORCE
            (`ov_hsdag.training.rollout.counterfactual_loss`).
        imitation: weight of imitation in steps of REINFORCE.
        edges: weight of imitation by edge scores, in both.
        clip: ε of PPO; None: plain REINFORCE.
        epochs: updates from the same samples (PPO).
        gradient: largest norm of the gradient.
        baseline: weight of the latest mean reward in a problem's exponential moving average.
        config: fields of `HSDAGConfig` that differ from `HSDAGConfig.base`.
        validate_every: steps between validations.
        max_coarse: larger graphs are left out.
    """

    seed: int = 0
    problems: int = 4096
    first_problems: int = 2048
    validation: int = 256
    levels: tuple[int, ...] = (0, 1, 1, 1, 2)
    imitation_steps: int = 1500
    reinforce_steps: int = 3500
    batch: int = 16
    parts: int = 1
    samples: int = 8
    learning_rate: float = 1e-3
    reinforce_rate: float = 3e-4
    warmup: int = 100
    entropy: float = 0.02
    sampled: float = 0.1
    switches: float = 4.0
    imitation: float = 0.1
    edges: float = 0.5
    clip: float | None = None
    epochs: int = 1
    gradient: float = 1.0
    baseline: float = 0.3
    config: dict[str, Any] = field(default_factory=dict)
    validate_every: int = 500
    max_coarse: int = corpora.MAX_COARSE

    @property
    def steps(self) -> int:
        """Number of steps of both phases."""
        return self.imitation_steps + self.reinforce_steps

    def rate(self, step: int) -> float:
        """Returns the learning rate of a step (from 0): a linear warmup, then a cosine to a tenth, in each phase."""
        imitating = step < self.imitation_steps
        start, length = (0, self.imitation_steps) if imitating else (self.imitation_steps, self.reinforce_steps)
        top = self.learning_rate if imitating else self.reinforce_rate
        share = (step - start) / max(length, 1)
        rise = min(1.0, (step - start + 1) / max(self.warmup, 1))
        return top * rise * (0.1 + 0.45 * (1 + math.cos(math.pi * share)))

    def epochs_at(self, step: int) -> int:
        """Returns how many updates a step (from 0) makes."""
        return 1 if step < self.imitation_steps else self.epochs

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Settings:
        """Settings from a checkpoint's JSON.

        Raises:
            UserError: there are settings that this version does not know.
        """
        check_settings(values, cls())
        return cls(**{**values, "levels": tuple(values["levels"])})


class Pool:
    """Training problems of a corpus with their searched placements, each computed when it is first asked for."""

    def __init__(self, corpus: Corpus, targets: Targets, first_shard: int, config: HSDAGConfig) -> None:
        self._corpus = corpus
        self._targets = targets
        self._next = first_shard
        self._features = config.features
        self._problems: list[tuple[int, Target]] = []
        self._count: dict[int, int] = {0: 0}
        self._examples: dict[int, Example] = {}
        self._sizes: dict[int, tuple[int, int]] = {}

    def count(self, shards: int) -> int:
        """Returns how many problems worth learning the first `shards` shards hold; searches placements as needed."""
        while len(self._count) <= shards:
            first = self._next * SHARD
            for number, target in enumerate(self._targets.shard(self._next), start=first):
                if worth_learning(target, number):
                    self._problems.append((number, target))
            self._next += 1
            self._count[len(self._count)] = len(self._problems)
        return self._count[shards]

    def __getitem__(self, index: int) -> Example:
        if index not in self._examples:
            number, target = self._problems[index]
            problem = self._corpus.draw(number)
            assert problem is not None
            x = policy_input(problem, self._features)
            self._examples[index] = Example.of(problem, x, target.placement, target.score, target.reference)
        return self._examples[index]

    def size(self, index: int) -> tuple[int, int]:
        """Returns how many coarse groups, and edges between them, a problem's example has; without making it."""
        if index not in self._sizes:
            problem = self._corpus.draw(self._problems[index][0])
            assert problem is not None
            coarse, tensors = problem.coarse, problem.tensors
            groups = int(coarse.max()) + 1
            producer = coarse[tensors.source[tensors.of_consumer]].astype(np.int64)
            consumer = coarse[tensors.consumers]
            edges = np.unique((producer * groups + consumer)[producer != consumer])
            self._sizes[index] = groups, len(edges)
        return self._sizes[index]


def shards_at(settings: Settings, step: int) -> int:
    """Returns how many shards of problems a step draws from: more and more until imitation ends.

    So the search for placements is spread over the steps.
    """
    share = min(1.0, step / max(settings.imitation_steps, 1))
    first = min(settings.first_problems, settings.problems)
    return max(1, math.ceil((first + share * (settings.problems - first)) / SHARD))


def batch_indices(settings: Settings, pool: Pool, step: int) -> NDArray[np.int64]:
    """Returns the indices of a step's problems, which follow from seed and step; int64 [batch]."""
    available = pool.count(shards_at(settings, step))
    generator = np.random.default_rng([settings.seed, 1, step])
    return generator.permutation(available)[: settings.batch]


def levels_at(settings: Settings, step: int) -> int:
    """Returns how often parsing merges in a step."""
    return int(np.random.default_rng([settings.seed, 2, step]).choice(settings.levels))
