"""Which of several measured candidates is really the best? Pure functions of what was measured.

Candidates take turns in rounds, and a machine's speed changes from round to round. So what is compared is always the
ratio of two candidates within each round. Its interval is Student's, on the logarithms of the ratios.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

CONFIDENCE = 0.95

GAIN = 0.01
"""What a placement has to gain over simpler candidates: less is not worth a split model."""

# Spread of the log ratio of one round: with a single round it is all that is known of the noise, and other work on the
# machine can halve the speed of a turn; and few rounds may agree by chance.
_ASSUMED = 0.5
_LEAST = 0.005


@dataclass(frozen=True)
class Ratio:
    """How many times better one candidate is than another.

    Attributes:
        median: of the rounds that both ran in; 1 where there are none.
        low: lower end of the confidence interval.
        high: upper end of it.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, own: Sequence[float], other: Sequence[float]) -> Ratio:
        """From the rates in each round, in order; the later rounds of one that ran in more of them do not count."""
        return cls.of_rounds([a / b for a, b in zip(own, other, strict=False)])

    @classmethod
    def of_rounds(cls, ratios: Sequence[float]) -> Ratio:
        """From the ratio in each round."""
        if not ratios:
            return cls(1.0, 0.0, math.inf)
        logs = np.log(ratios)
        count = len(logs)
        spread = _ASSUMED if count == 1 else max(float(logs.std(ddof=1)), _LEAST)
        quantile = 1.96 if count == 1 else float(stdtrit(count - 1, (1 + CONFIDENCE) / 2))
        half = quantile * spread / math.sqrt(count)
        middle = float(logs.mean())
        return cls(statistics.median(ratios), math.exp(middle - half), math.exp(middle + half))


def best(rates: Mapping[str, Sequence[float]]) -> str:
    """The name with the best rates; of equals the first. `rates` has one entry at least."""
    names = iter(rates)
    leader = next(names)
    for name in names:
        if _mean(rates[name], rates[leader]) > 0:
            leader = name
    return leader


def choose(rates: Mapping[str, Sequence[float]], simple: Collection[str]) -> str:
    """The candidate to use: one that is not simple only where it wins beyond the noise.

    Args:
        rates: of each candidate, in each round that it ran in, the simplest candidate first; those that failed are not
            there, and one of them is.
        simple: names of those that need no placement: single devices, HETERO's own choices.

    Returns:
        The best candidate, where it gains `GAIN` over the best simple one and the interval of that is above 1; else the
        simplest one that is not measurably worse than the best.
    """
    known = {name: rates[name] for name in rates if name in simple}
    if not known:
        return best(rates)
    winner, rival = best(rates), best(known)
    gain = Ratio.of(rates[winner], rates[rival])
    if winner not in known and gain.low > 1 and gain.median >= 1 + GAIN:
        return winner
    for name in known:
        if Ratio.of(rates[name], rates[winner]).high >= 1 and Ratio.of(rates[name], rates[rival]).high >= 1:
            return name
    return rival


def beaten(rates: Mapping[str, Sequence[float]]) -> list[str]:
    """Names of those that are worse than the best, beyond the noise."""
    leader = best(rates)
    return [name for name in rates if name != leader and Ratio.of(rates[name], rates[leader]).high < 1]


def settled(rates: Mapping[str, Sequence[float]]) -> bool:
    """Whether more rounds can change little: the simplest (first) is best and no other can gain on it, or all agree."""
    leader = best(rates)
    others = [Ratio.of(rates[name], rates[leader]) for name in rates if name != leader]
    if any(other.high >= 1 + GAIN for other in others):
        return False
    return leader == next(iter(rates)) or all(other.low > 1 - GAIN for other in others)


def _mean(own: Sequence[float], other: Sequence[float]) -> float:
    """Mean log ratio over the rounds that both ran in."""
    logs = [math.log(a / b) for a, b in zip(own, other, strict=False)]
    return statistics.fmean(logs) if logs else 0.0
