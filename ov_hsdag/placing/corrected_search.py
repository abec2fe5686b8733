"""Searches with corrected costs: a search for a placement after trials have corrected the costs of operations.

The costs are scaled so that they agree with the trials so far. What the search then finds is worth a trial if it is new
and predicted better than the known placements.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.measuring import choice
from ov_hsdag.placers.multilevel import Multilevel
from ov_hsdag.placing.processor_times import ProcessorTime
from ov_hsdag.problem.problem import PlacementProblem

CORRECTED = "search (corrected)"
"""Name of the placement that the search finds with costs corrected by trials; later ones have a number in the name."""

# Largest number of searches that found something.
_SEARCHES = 5

# Share of the time budget in which a search may begin.
_SEARCHING = 0.6

# Least predicted gain over the known placements for which the result is measured.
_PROMISING = 0.002


@dataclass
class SearchSchedule:
    """Decides whether a search may begin.

    After a search that found nothing, the next one waits until the trials settle; after two, there is none.

    Attributes:
        latest: time of `time.monotonic` after which no search begins, seconds.
        found: number of searches that found something.
        without_gain: number of searches that found nothing, or could not begin.
    """

    latest: float
    found: int = 0
    without_gain: int = 0

    @classmethod
    def until(cls, end: float) -> SearchSchedule:
        """Makes the schedule of trials that begin now and end at a time of `time.monotonic`, seconds."""
        begin = time.monotonic()
        return cls(begin + _SEARCHING * (end - begin))

    def due(self, settled: bool) -> bool:
        """Whether it is the turn of a search; `settled` says whether the trials have settled."""
        return self.without_gain < 1 + settled

    def may_begin(self) -> bool:
        """Whether number and time allow another search."""
        return self.found < _SEARCHES and time.monotonic() <= self.latest

    def record_found(self) -> str:
        """Counts a search that found something, and returns a name for its placement."""
        self.found += 1
        return CORRECTED if self.found == 1 else f"{CORRECTED[:-1]}, {self.found})"


@dataclass(frozen=True, eq=False)
class FoundPlacement:
    """A placement that a search with corrected costs found.

    Attributes:
        placement: device number of each co-location group, uint8 [groups].
        score: its score with the corrected costs, µs, lower is better.
        known_scores: the same of the known placements that it was compared with, by name, µs.
    """

    placement: NDArray[np.uint8]
    score: float
    known_scores: Mapping[str, float]

    def predict_rate(self, name: str, rate: float) -> float:
        """Predicts the rate, in the unit of the given rate of a known candidate; scores have another unit."""
        return rate * self.known_scores[name] / self.score


def correct_costs(
    problem: PlacementProblem,
    placements: Mapping[str, NDArray[np.uint8]],
    splits: Collection[str],
    decision: choice.Decision,
    times: Mapping[str, ProcessorTime],
) -> PlacementProblem:
    """Scales the times of operations so that they agree with the trials (`ov_hsdag.calibration.correction`).

    The corrected problem predicts the measured ratios of splits to the best baseline, and the measured processor time
    of each device in an inference.

    Args:
        problem: the problem.
        placements: placements of all candidates, by name, uint8 [groups].
        splits: names of the splits that have run, at least one.
        decision: the decision by the trials; it has a best baseline (`rival`).
        times: measured processor times of some candidates.

    Returns:
        The problem with corrected costs.
    """
    from ov_hsdag.calibration.correction import Corrector  # SciPy's optimizers take half a second to import

    corrector = Corrector(problem, placements[decision.rival])
    terms = corrector.terms(np.stack([placements[name] for name in splits]))
    differences = [decision.trials.difference(name, decision.rival) for name in splits]
    ratios = np.exp([mean for mean, _ in differences])
    ratio_errors = np.sqrt([variance for _, variance in differences])
    unknown = ProcessorTime(np.full(len(problem.devices), np.nan), error=0.0, trials=0)
    of_splits = [times.get(name, unknown) for name in splits]
    busy_us = np.stack([of_split.us for of_split in of_splits])
    busy_errors = np.array([of_split.error for of_split in of_splits])
    return corrector.apply(corrector.fit(terms, ratios, ratio_errors, busy_us, busy_errors).mean)


def search(
    corrected: PlacementProblem, placements: Mapping[str, NDArray[np.uint8]], compared: Collection[str]
) -> FoundPlacement | None:
    """Searches a placement of the problem with corrected costs.

    Args:
        corrected: the problem with corrected costs.
        placements: placements of all candidates, by name, uint8 [groups].
        compared: names of the candidates that the result has to be predicted better than.

    Returns:
        The placement; None where it is a candidate already, or not predicted better by `_PROMISING`.
    """
    placement = Multilevel().place(corrected)
    score = float(corrected.scores(placement)[0])
    known_scores = {name: float(corrected.scores(placements[name])[0]) for name in compared}
    seen = any(np.array_equal(placement, one) for one in placements.values())
    if seen or not score < min(known_scores.values()) * (1 - _PROMISING):
        return None
    return FoundPlacement(placement, score, known_scores)
