"""Searched placements of a corpus's problems: computed once, kept in shards on disk."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.storage.files import atomic_file
from ov_hsdag.training.corpus import Corpus
from ov_hsdag.training.search import SEARCH, simple, teacher
from ov_hsdag.utils.reading import ARRAYS, read_arrays

SHARD = 16
"""Problems in one file."""

TRIVIAL_SHARE = 3
"""One in so many problems whose answer is a single device is learned from: half of all draws are such."""


Each = Callable[[Callable[[int], "list[Target]"], Iterable[int]], "Iterable[list[Target]]"]
"""Calls a function for each number, in their order, as `map` does."""


@dataclass(frozen=True, eq=False)
class Target:
    """What is known of a training problem.

    Attributes:
        placement: the teacher's, uint8 [groups]; empty where there is no problem, or nothing feasible was found.
        score: of that placement, µs.
        reference: what rewards are relative to, µs: the best single device, or the teacher's where none is feasible.
    """

    placement: NDArray[np.uint8]
    score: float
    reference: float

    @property
    def trivial(self) -> bool:
        """Whether one device takes all, or there is nothing to place."""
        return len(self.placement) == 0 or bool((self.placement == self.placement[0]).all())


@dataclass(frozen=True)
class Targets:
    """Targets by problem number, in `folder`; a corpus of another fingerprint has files of another name."""

    corpus: Corpus
    folder: Path

    def shard(self, number: int) -> list[Target]:
        """The targets of problems number · SHARD …, from disk, or computed and written."""
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

    def fill(self, shards: int, each: Each) -> Iterator[int]:
        """Searches the placements of the first shards, as far as they are not there.

        Args:
            shards: how many.
            each: calls a function for each number, here or elsewhere (`ov_hsdag.fleet.cluster.Cluster.map`).

        Yields:
            The number of shards that are there, after each that was searched.
        """
        lacking = [number for number in range(shards) if not self._path(number).exists()]
        found = each(functools.partial(searched, self.corpus), lacking)
        for done, (number, targets) in enumerate(zip(lacking, found, strict=True), start=shards - len(lacking) + 1):
            self._write(self._path(number), targets)
            yield done

    def _path(self, number: int) -> Path:
        return self.folder / f"targets-{self.corpus.fingerprint}-{SEARCH}-{number:05d}.npz"

    def _write(self, path: Path, targets: Sequence[Target]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(path, "wb") as file:
            np.savez_compressed(
                file,
                placement=np.concatenate([target.placement for target in targets]),
                groups=np.array([len(target.placement) for target in targets], np.int64),
                score=np.array([target.score for target in targets]),
                reference=np.array([target.reference for target in targets]),
            )


def searched(corpus: Corpus, number: int) -> list[Target]:
    """The targets of a shard, which follow from the corpus and the number alone."""
    return [compute(corpus.draw(index), index) for index in range(number * SHARD, (number + 1) * SHARD)]


def _read(path: Path) -> list[Target]:
    data = read_arrays(path, ARRAYS)
    placements, groups = data["placement"], data["groups"]
    if placements.dtype != np.uint8 or (groups < 0).any() or groups.sum() != len(placements):
        raise ValueError("placements that do not fit together")
    parts = np.split(placements, groups.cumsum()[:-1])
    return [
        Target(placement, float(score), float(reference))
        for placement, score, reference in zip(parts, data["score"], data["reference"], strict=True)
    ]


def compute(problem: PlacementProblem | None, seed: int) -> Target:
    """The target of one problem; an empty one where nothing feasible was found."""
    nothing = Target(np.zeros(0, np.uint8), np.inf, np.inf)
    if problem is None:
        return nothing
    found = teacher(problem, seed)
    if not np.isfinite(found.score):
        return nothing
    singles = [placement for name, placement in simple(problem) if name in problem.devices]
    reference = float(problem.scores(np.stack(singles)).min())
    return Target(found.placement, found.score, reference if np.isfinite(reference) else found.score)


def worth_learning(target: Target, index: int) -> bool:
    """Whether a problem is trained on: all with an answer that splits, some of those with a trivial one."""
    if len(target.placement) == 0:
        return False
    return not target.trivial or index % TRIVIAL_SHARE == 0
