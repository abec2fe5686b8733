"""Trials of several candidates in turn, so that what a machine does meanwhile falls on all of them.

A shared machine's speed changes by 20% and more from minute to minute. So nothing is ever timed for itself: candidates
run in trials of less than a second, interleaved, and what counts is the ratio of neighbouring trials.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

ROUNDS, SECONDS = 12, 0.25
"""Of a comparison of all candidates: rounds, and seconds of a trial."""

# After n rounds a placement is given up when its best ratio is below this share of what it has to beat: 0.85, 0.925, …
_HOPELESS = 0.15


class Runner(Protocol):
    """What can be timed."""

    def rate(self, seconds: float) -> float:
        """Inferences per second in a trial of about so many seconds; a `WorkerError` where that fails."""


def in_order(names: Sequence[str], number: int) -> list[str]:
    """The order of a round's trials, which changes from round to round, so that steady drifts cancel."""
    shift = number // 2 % max(len(names), 1)
    order = [*names[shift:], *names[:shift]]
    return order[::-1] if number % 2 else order


def alternate(
    reference: Runner, candidate: Runner, rounds: int, seconds: float, worth: float = 0.0
) -> list[tuple[float, float]]:
    """Interleaves trials of two; returns the rates of candidate and reference in each round, inferences per second.

    The order changes from round to round, so that steady drifts cancel. Ends early where the ratio `worth`, which the
    candidate has to beat, is out of reach. Raises WorkerError where either fails.
    """
    trials: list[tuple[float, float]] = []
    best = 0.0
    for number in range(rounds):
        if number % 2:
            own, other = candidate.rate(seconds), reference.rate(seconds)
        else:
            other, own = reference.rate(seconds), candidate.rate(seconds)
        trials.append((own, other))
        best = max(best, own / other)
        if best < worth * (1 - _HOPELESS / len(trials)):
            break
    return trials
