"""Training problems of a corpus with what the teacher found for them: searched once, kept in shards on disk.

The teacher is the multilevel search. All of its elites are targets, as they are: a policy imitates the one that it
finds likeliest. Which problems a step takes follows from the seed and the step alone.
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
"""Problems in one file."""

TRIVIAL_SHARE = 3
"""One in so many problems whose answer is a single device is learned from: half of all draws are such."""

ELITES = 4
"""Placements of the teacher that a problem has, at most, and how much worse than the best they may be."""
CLOSE = 0.01

Each = Callable[[Callable[[int], "list[Target]"], Sequence[int]], "Iterable[list[Target]]"]
"""Calls a function for each number, in their order, as `map` does."""


@dataclass(frozen=True, eq=False)
class Target:
    """What the teacher found for a training problem."""

    # best first, uint8 [elites, groups]; none without a problem, or where nothing feasible was found
    elites: NDArray[np.uint8]
    score: float  # of the best, µs
    # what returns are relative to, µs: the best single device, or the teacher's where none is feasible
    reference: float

    @classmethod
    def of(cls, problem: PlacementProblem | None, seed: int) -> Target:
        """Searches a problem's placements."""
        if problem is None:
            return cls(np.zeros((0, 0), np.uint8), np.inf, np.inf)
        found = Multilevel(seed=seed).elites(problem)
        scores = problem.scores(found)
        best = float(scores.min())
        if not np.isfinite(best):
            return cls(found[:0], np.inf, np.inf)
        order = np.argsort(scores, kind="stable")
        close = order[scores[order] <= best * (1 + CLOSE)][:ELITES]
        reference = float(problem.scores(problem.singles).min())
        return cls(found[close], best, reference if np.isfinite(reference) else best)

    @property
    def trivial(self) -> bool:
        """Whether one device takes all."""
        return bool((self.elites[0] == self.elites[0, 0]).all())


@dataclass(frozen=True)
class Targets:
    """Targets by problem number, in `folder`; a corpus of another fingerprint has files of another name."""

    corpus: Corpus
    folder: Path

    def shard(self, number: int) -> list[Target]:
        """The targets of problems number · SHARD …, from disk, or searched and written."""
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
        """Searches those of the first shards that are not there. each: see `Each`."""
        lacking = [number for number in range(shards) if not self._path(number).exists()]
        found = each(functools.partial(searched, self.corpus), lacking)
        for number, targets in zip(lacking, found, strict=True):
            self._write(self._path(number), targets)

    def _path(self, number: int) -> Path:
        return self.folder / f"targets-{self.corpus.fingerprint}-{number:05d}.npz"

    def _write(self, path: Path, targets: Sequence[Target]) -> None:
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
    """The targets of a shard, which follow from the corpus and the number alone."""
    return [Target.of(corpus.draw(index), index) for index in range(number * SHARD, (number + 1) * SHARD)]


def _read(path: Path) -> list[Target]:
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
    """Problems worth learning (a split answer, or one in some with a trivial one), each made when it is needed."""

    def __init__(self, corpus: Corpus, targets: Targets, first_shard: int) -> None:
        self._corpus = corpus
        self._targets = targets
        self._next = first_shard
        self._problems: list[tuple[int, Target]] = []
        self._count: dict[int, int] = {0: 0}
        self._examples: dict[int, Example] = {}

    def count(self, shards: int) -> int:
        """How many problems worth learning the first `shards` shards hold; searches placements as needed."""
        while len(self._count) <= shards:
            for number, target in enumerate(self._targets.shard(self._next), start=self._next * SHARD):
                if len(target.elites) and (not target.trivial or number % TRIVIAL_SHARE == 0):
                    self._problems.append((number, target))
            self._next += 1
            self._count[len(self._count)] = len(self._problems)
        return self._count[shards]

    def __getitem__(self, index: int) -> Example:
        if index not in self._examples:
            number, target = self._problems[index]
            problem = self._corpus.draw(number)
            assert problem is not None
            x = policy_input(problem)
            elites = weighted(problem, x, target.elites)
            self._examples[index] = Example.of(problem, x, elites, target.score, target.reference)
        return self._examples[index]


def shards_at(settings: Settings, step: int) -> int:
    """How many shards a step draws from: more and more until imitation ends, so that searching is spread over steps."""
    share = min(1.0, step / max(settings.imitation_steps, 1))
    first = min(settings.first_problems, settings.problems)
    return max(1, math.ceil((first + share * (settings.problems - first)) / SHARD))


def batch_indices(settings: Settings, pool: Pool, step: int) -> NDArray[np.int64]:
    """The indices of a step's problems, int64 [batch]."""
    generator = np.random.default_rng([settings.seed, 1, step])
    return generator.permutation(pool.count(shards_at(settings, step)))[: settings.batch_size]


def levels_at(settings: Settings, step: int) -> int:
    """How often parsing merges in a step."""
    return int(np.random.default_rng([settings.seed, 2, step]).choice(settings.levels))
