"""Which of several measured candidates is really the best? Pure functions of what was measured.

Trials of candidates are interleaved in rounds, and a machine's speed changes from round to round. So what is compared
is always the ratio of two candidates within each round. Trials are disturbed now and then, by half and more: medians
and ranks bear that, means do not.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95

# What being simpler can outweigh, at most: few noisy rounds leave room for any difference.
_SIMPLICITY = 0.05

# By how much the best has to be better for a head-to-head to end early.
_OBVIOUS = 0.1

# Of the intervals by which candidates leave a race: they are looked at after each round, for each candidate.
_CONFIDENCE_OF_LEAVING = 0.995

GAIN = 0.01
"""What a placement has to gain over simpler candidates: less is not worth a split model."""

# Spread of the log ratio of one round: with a single round it is all that is known of the noise, and other work on the
# machine can halve the speed of a trial; and few rounds may agree by chance.
_ASSUMED = 0.5
_LEAST = 0.005

# With fewer rounds ranks say little.
_RANKED = 8


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
    def of(cls, own: Sequence[float], other: Sequence[float], confidence: float = CONFIDENCE) -> Ratio:
        """From the rates in each round, in order; the later rounds of one that ran in more of them do not count."""
        return cls.of_rounds([a / b for a, b in zip(own, other, strict=False)], confidence)

    @classmethod
    def of_rounds(cls, ratios: Sequence[float], confidence: float = CONFIDENCE) -> Ratio:
        """From the ratio in each round."""
        if not ratios:
            return cls(1.0, 0.0, math.inf)
        logs = np.log(ratios)
        low, high = (_ranked_interval if len(logs) >= _RANKED else _normal_interval)(logs, (1 + confidence) / 2)
        return cls(median_ratio(ratios), math.exp(low), math.exp(high))

    def times(self, other: Ratio) -> Ratio:
        """How many times better A is than C, from A over B (this one) and B over C, measured apart.

        As sure as both together: errors of their logarithms are independent.
        """
        median = self.median * other.median
        down = math.hypot(math.log(self.median / self.low), math.log(other.median / other.low))
        up = math.hypot(math.log(self.high / self.median), math.log(other.high / other.median))
        return Ratio(median, median * math.exp(-down), median * math.exp(up))


def median_ratio(ratios: Sequence[float]) -> float:
    """The median, of two middle ones the geometric mean, so that it is 1 / x where each ratio is the inverse."""
    ordered = sorted(ratios)
    return math.sqrt(ordered[(len(ordered) - 1) // 2] * ordered[len(ordered) // 2])


def _normal_interval(logs: NDArray[np.float64], below: float) -> tuple[float, float]:
    """Student's, of the mean."""
    from scipy.special import ndtri, stdtrit  # takes half a second, and every command imports this module

    count = len(logs)
    spread = _ASSUMED if count == 1 else max(float(logs.std(ddof=1)), _LEAST)
    half = float(ndtri(below) if count == 1 else stdtrit(count - 1, below)) * spread / math.sqrt(count)
    return float(logs.mean()) - half, float(logs.mean()) + half


def _ranked_interval(logs: NDArray[np.float64], below: float) -> tuple[float, float]:
    """What Wilcoxon's signed-rank test does not refuse (Hollander, Wolfe, Nonparametric Statistical Methods, 3.3)."""
    from scipy.special import ndtri

    count = len(logs)
    first, second = np.triu_indices(count)
    means = np.sort((logs[first] + logs[second]) / 2)
    middle, spread = count * (count + 1) / 4, math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
    outside = max(int(middle - float(ndtri(below)) * spread - 0.5), 0)
    return float(means[outside]), float(means[-1 - outside])


def best(rates: Mapping[str, Sequence[float]]) -> str:
    """The name with the best rates; of equals the first. `rates` has one entry at least."""
    names = iter(rates)
    leader = next(names)
    for name in names:
        if Ratio.of(rates[name], rates[leader]).median > 1:
            leader = name
    return leader


def challenge(rates: Mapping[str, Sequence[float]], simple: Collection[str]) -> tuple[str, str] | None:
    """The best simple candidate and a better one that is not simple, where the best is not simple and both are there.

    Args:
        rates: of each candidate, in each round that it ran in, the simplest candidate first; without those that failed.
        simple: names of those that need no placement: single devices, HETERO's own choices.
    """
    known = {name: rates[name] for name in rates if name in simple}
    if not known:
        return None
    leader = best(rates)
    return None if leader in known else (best(known), leader)


def choose(
    rates: Mapping[str, Sequence[float]],
    simple: Collection[str],
    head_to_head: Mapping[str, Sequence[float]] | None = None,
) -> str:
    """The candidate to use.

    The best of many is partly lucky. So one that is not simple is chosen only where it beats the best simple one beyond
    the noise in a head-to-head, in rounds of its own. Otherwise it is the simplest one that is not measurably worse
    (nor 5% slower) than the best simple one.

    Args:
        rates: see `challenge`; one is there.
        simple: see `challenge`.
        head_to_head: rates of the two that `challenge` names, where there was one.

    Returns:
        Its name.
    """
    known = {name: rates[name] for name in rates if name in simple}
    if not known:
        return best(rates)
    pair = challenge(rates, simple)
    if pair and head_to_head and set(pair) <= set(head_to_head):
        rival, challenger = pair
        gain = Ratio.of(head_to_head[challenger], head_to_head[rival])
        if gain.low > 1 and gain.median >= 1 + GAIN:
            return challenger
    leader = best(known)
    for name, own in known.items():
        ratio = Ratio.of(own, known[leader])
        # What left the race before the leader was measurably worse than the best.
        if len(own) >= len(known[leader]) and ratio.high >= 1 and ratio.median > 1 - _SIMPLICITY:
            return name
    return leader


def beaten(rates: Mapping[str, Sequence[float]]) -> list[str]:
    """Names of those that are worse than the best, beyond the noise; none by their first round alone."""
    leader = best(rates)
    return [
        name for name, own in rates.items() if name != leader and len(own) > 1 and Ratio.of(own, rates[leader]).high < 1
    ]


def settled(rates: Mapping[str, Sequence[float]]) -> bool:
    """Whether more rounds can change little: the simplest (first) is best and no other can gain on it, or all agree."""
    leader = best(rates)
    others = [Ratio.of(rates[name], rates[leader]) for name in rates if name != leader]
    if any(other.high >= 1 + GAIN for other in others):
        return False
    return leader == next(iter(rates)) or all(other.low > 1 - GAIN for other in others)


def obvious(rates: Mapping[str, Sequence[float]]) -> bool:
    """Whether the best is so much better than each other, so surely, that looking for it early is no luck."""
    leader = best(rates)
    return all(
        Ratio.of(own, rates[leader], _CONFIDENCE_OF_LEAVING).high < 1 - _OBVIOUS
        for name, own in rates.items()
        if name != leader
    )
