"""Training problems of a corpus with the placements of a teacher, which are searched once and kept on disk in shards.

The teacher is the multilevel search. Its elites are its best placements of a problem, which are all targets: a policy
imitates the one that it finds likeliest. A problem is trivial if the best of them has everything on one device. A shard
is `SHARD` problems with consecutive numbers. The problems of a step follow from the seed and the step alone.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.placers.multilevel import Multilevel
from ov_hsdag.policy.features import policy_input
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.storage.files import atomic_file
from ov_hsdag.training.corpus import Corpus
from ov_hsdag.training.rollout import Example, weighted
from ov_hsdag.training.settings import Settings
from ov_hsdag.utils.reading import ARRAYS, read_arrays

SHARD = 16
"""Number of problems in one file."""

TRIVIAL_SHARE = 3
"""One trivial problem in this many is learned from, because they are half of all draws."""

ELITES = 4
"""Largest number of elites of a problem."""

CLOSE = 0.01
"""Share of the best score by which the score of an elite may be worse."""

Each = Callable[[Callable[[int], "list[Target]"], Sequence[int]], "Iterable[list[Target]]"]
"""Calls a function for each number and returns the results in their order, as `map` does."""


@dataclass(frozen=True, eq=False)
class Target:
    """The teacher's placements of a training problem.

    Attributes:
        elites: placements, the best first, uint8 [elites, groups]; none where there is no problem, or nothing feasible
            was found.
        score: score of the best one, µs.
        reference: score that returns are relative to, µs: that of the best single device, or the teacher's where no
            single device is feasible.
    """

    elites: NDArray[np.uint8]
    score: float
    reference: float

    @classmethod
    def of(cls, problem: PlacementProblem | None, seed: int) -> Target:
        """Searches placements of a problem.

        Args:
            problem: the problem; None for a number without a problem, which gets no placements.
            seed: seed of the search.

        Returns:
            At most `ELITES` feasible placements within `CLOSE` of the best. Without any, the scores are inf.
        """
        if problem is None:
            return cls(np.zeros((0, 0), np.uint8), np.inf, np.inf)
        elites = Multilevel(seed=seed).elites(problem)
        scores = problem.scores(elites)
        best = float(scores.min())
        if not np.isfinite(best):
            return cls(elites[:0], np.inf, np.inf)
        order = np.argsort(scores, kind="stable")
        close = order[scores[order] <= best * (1 + CLOSE)][:ELITES]
        reference = float(problem.scores(problem.singles).min())
        return cls(elites[close], best, reference if np.isfinite(reference) else best)

    @property
    def trivial(self) -> bool:
        """Whether the best placement has everything on one device; there must be a placement."""
        return bool((self.elites[0] == self.elites[0, 0]).all())


@dataclass(frozen=True)
class Targets:
    """The targets of a corpus, by problem number.

    Attributes:
        corpus: the corpus.
        folder: folder of the files; their names have the corpus's fingerprint, so that several corpora may share it.
    """

    corpus: Corpus
    folder: Path

    def shard(self, number: int) -> list[Target]:
        """Returns the targets of a shard: of the problems number · SHARD … (number + 1) · SHARD - 1.

        They are read from disk. If the file is missing or damaged, they are searched, and the file is written.
        """
        path = self._path(number)
        try:
            return _read(path)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError):
            path.unlink()
        targets = searched(self.corpus, number)
        self._write(path, targets)
        return targets

    def fill(self, shards: int, each: Each) -> None:
        """Searches and writes the shards that are missing on disk.

        Args:
            shards: number of shards, from the first.
            each: runs the searches, one for each missing shard.
        """
        lacking = [number for number in range(shards) if not self._path(number).exists()]
        found = each(functools.partial(searched, self.corpus), lacking)
        for number, targets in zip(lacking, found, strict=True):
            self._write(self._path(number), targets)

    def _path(self, number: int) -> Path:
        """The file of a shard."""
        return self.folder / f"targets-{self.corpus.fingerprint}-{number:05d}.npz"

    def _write(self, path: Path, targets: Sequence[Target]) -> None:
        """Writes the file of a shard, whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(path, "wb") as file:
            np.savez_compressed(
                file,
                elites=np.concatenate([target.elites.ravel() for target in targets]),
                shape=np.array([target.elites.shape for target in targets], np.int64),
                score=np.array([target.score for target in targets]),
                reference=np.array([target.reference for target in targets]),
            )


def searched(corpus: Corpus, number: int) -> list[Target]:
    """Searches the targets of a shard; they follow from the corpus and the shard's number alone."""
    return [Target.of(corpus.draw(index), index) for index in range(number * SHARD, (number + 1) * SHARD)]


def _read(path: Path) -> list[Target]:
    """Reads a shard. Raises FileNotFoundError, or OSError, ValueError, KeyError or TypeError where it is damaged."""
    data = read_arrays(path, ARRAYS)
    elites, shapes = data["elites"], data["shape"]
    if elites.dtype != np.uint8 or shapes.shape != (SHARD, 2) or (shapes < 0).any():
        raise ValueError("placements that do not fit together")
    parts = np.split(elites, shapes.prod(axis=1).cumsum()[:-1])
    return [
        Target(placements.reshape(shape), float(score), float(reference))
        for placements, shape, score, reference in zip(parts, shapes, data["score"], data["reference"], strict=True)
    ]


class Pool:
    """The problems of a corpus that are worth learning: those that are not trivial, and one in `TRIVIAL_SHARE` others.

    A pool numbers its problems from 0, in the order of the corpus from `first_shard` on. It grows by whole shards when
    `count` is called. A problem is prepared when it is first asked for, and kept.
    """

    def __init__(self, corpus: Corpus, targets: Targets, first_shard: int) -> None:
        """Makes an empty pool; `count` adds problems.

        Args:
            corpus: the corpus.
            targets: its targets.
            first_shard: number of the first shard that the pool takes problems from.
        """
        self._corpus = corpus
        self._targets = targets
        self._next = first_shard
        self._problems: list[tuple[int, Target]] = []
        self._count: dict[int, int] = {0: 0}
        self._examples: dict[int, Example] = {}

    def count(self, shards: int) -> int:
        """Adds shards to the pool until it has `shards`, and returns the number of problems in that many.

        Placements that are not on disk are searched, which takes seconds for each shard.
        """
        while len(self._count) <= shards:
            for number, target in enumerate(self._targets.shard(self._next), start=self._next * SHARD):
                if len(target.elites) and (not target.trivial or number % TRIVIAL_SHARE == 0):
                    self._problems.append((number, target))
            self._next += 1
            self._count[len(self._count)] = len(self._problems)
        return self._count[shards]

    def __getitem__(self, index: int) -> Example:
        """Problem number `index` of the pool; `count` must have been called for its shard."""
        if index not in self._examples:
            number, target = self._problems[index]
            problem = self._corpus.draw(number)
            assert problem is not None
            x = policy_input(problem)
            elites = weighted(problem, x, target.elites)
            self._examples[index] = Example.of(problem, x, elites, target.score, target.reference)
        return self._examples[index]


def shards_at(settings: Settings, step: int) -> int:
    """The number of shards that a step draws from.

    It grows until imitation ends, so that the time for searching placements is spread over steps.
    """
    share = min(1.0, step / max(settings.imitation_steps, 1))
    first = min(settings.first_problems, settings.problems)
    return max(1, math.ceil((first + share * (settings.problems - first)) / SHARD))


def batch_indices(settings: Settings, pool: Pool, step: int) -> NDArray[np.int64]:
    """Draws the problems of a step.

    Args:
        settings: settings of the run, which supply the seed and the size of the batch.
        pool: the problems.
        step: number of the step, from 0.

    Returns:
        Indices in the pool, int64 [batch].
    """
    generator = np.random.default_rng([settings.seed, 1, step])
    return generator.permutation(pool.count(shards_at(settings, step)))[: settings.batch_size]


def levels_at(settings: Settings, step: int) -> int:
    """Draws how often parsing merges in a step (from 0), from `Settings.levels`."""
    return int(np.random.default_rng([settings.seed, 2, step]).choice(settings.levels))
