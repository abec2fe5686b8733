"""Trials of several candidates in turn, so that what a machine does meanwhile falls on all of them.

A shared machine's speed changes by 20% and more from minute to minute. So nothing is ever timed for itself: candidates
run in trials of less than a second, interleaved, and what counts is the ratio of neighbouring trials.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ov_hsdag.measuring import choice
from ov_hsdag.measuring.process import WorkerError

ROUNDS, SECONDS = 12, 0.25
"""Of a comparison: rounds at most, and seconds of a trial."""

# After n rounds a placement is given up when its best ratio is below this share of what it has to beat: 0.85, 0.925, …
_HOPELESS = 0.15


class Runner(Protocol):
    """What can be timed."""

    def rate(self, seconds: float) -> float:
        """Inferences per second in a trial of about so many seconds. Raises WorkerError where that fails."""


@dataclass(frozen=True)
class Race:
    """What interleaved trials gave.

    Attributes:
        rates: of each candidate in each round that it ran in, inferences per second; all began in the first round.
        failed: why candidates failed in a trial.
    """

    rates: Mapping[str, Sequence[float]]
    failed: Mapping[str, str]


def race(
    runners: Mapping[str, Runner],
    rounds: int = ROUNDS,
    seconds: float = SECONDS,
    until: float = math.inf,
    halving: bool = True,
    leave: Callable[[str, Mapping[str, Sequence[float]]], None] = lambda name, rates: None,
    begins: Callable[[int, int], None] = lambda number, candidates: None,
) -> Race:
    """Interleaves trials of candidates. The order changes from round to round, so that steady drifts cancel.

    Args:
        runners: the simplest candidate first.
        rounds: at most.
        seconds: of a trial.
        until: no round begins that would end after this time of `time.monotonic`, but the first.
        halving: candidates that are measurably worse than the best take part no more (successive halving, Jamieson and
            Talwalkar, AISTATS 2016, with a test instead of a fixed half), and it ends when
            `ov_hsdag.measuring.choice.settled`. Without it all run all rounds, for looking often makes luck, unless the
            best is `ov_hsdag.measuring.choice.obvious`.
        leave: is called with the name of each candidate that takes part no more by halving, and all rates so far.
        begins: is called when a round begins with its number, from 0, and how many candidates take part.

    Returns:
        The rates. What happens to a candidate is told there; nothing is raised for that.
    """
    rates: dict[str, list[float]] = {name: [] for name in runners}
    failed: dict[str, str] = {}
    alive = list(runners)
    for number in range(rounds):
        begins(number, len(alive))
        begin = time.monotonic()
        shift = number // 2 % max(len(alive), 1)
        order = alive[shift:] + alive[:shift]
        for name in reversed(order) if number % 2 else order:
            try:
                rates[name].append(runners[name].rate(seconds))
            except WorkerError as error:
                failed[name] = str(error)
                alive.remove(name)
        if halving and alive:
            lost = choice.beaten({name: rates[name] for name in alive})
            alive = [name for name in alive if name not in lost]
            for name in lost:
                leave(name, rates)
            if choice.settled({name: rates[name] for name in alive}):
                break
        elif alive and choice.obvious({name: rates[name] for name in alive}):
            break
        now = time.monotonic()
        if not alive or now + (now - begin) > until:
            break
    return Race(rates, failed)


def alternate(
    reference: Runner, candidate: Runner, rounds: int, seconds: float, worth: float = 0.0
) -> list[tuple[float, float]]:
    """Interleaves trials of two, the order changing from round to round, so that steady drifts cancel.

    Args:
        reference: what the candidate is compared with.
        candidate: what is measured.
        rounds: at most.
        seconds: of a trial.
        worth: the ratio that the candidate has to beat; it ends early where that is out of reach.

    Returns:
        Rates of candidate and reference in each round, inferences per second.

    Raises:
        WorkerError: either fails.
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
