"""Which of several measured candidates is the best? Pure functions of what was predicted and measured.

A trial's rate is log-normal around the candidate's own rate times a factor that all trials of its round share, as a
machine's speed changes from round to round; noise has Student's t distribution, because other work on the machine
disturbs single trials by half and more. Rates have a prior: the prediction, with its usual error. How large the noise
is and how much rounds differ is estimated from the trials. `infer` gives the posterior, by expectation-maximisation for
scale mixtures of normals (Lange, Little, Taylor, JASA 1989). Everything else follows from it: the choice, what is
shown, what is tried next (the knowledge gradient: Frazier, Powell, Dayanik, SIAM J. Control Optim. 2008), and the end.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95

GAIN = 0.01
"""What a placement has to gain over simpler candidates: less is not worth a split model."""

REGRET = 0.005
"""Trials end where a better choice than the present one is expected to gain less than this share."""

# Of the noise, and of what of a model's speed is not predicted: degrees of freedom of Student's t.
_FREEDOM = 4.0

# Standard deviations of a trial, and between rounds, before anything is known, and how many trials that is worth.
_NOISE, _DRIFT, _WORTH = 0.08, 0.1, 4.0

_ITERATIONS, _PRECISION = 50, 1e-3

# A placement has to beat the simple candidates without the help of the prediction: all are taken for as fast as their
# processor times say, else for equally fast, with this standard deviation.
_SCEPTICAL = 0.3

# Draws from the posterior for the expected regret.
_DRAWS = 1000

Round = Sequence[tuple[str, float]]
"""Name and rate of each trial of a round, in order; a name may come twice."""


@dataclass(frozen=True)
class Ratio:
    """How many times better one candidate is than another."""

    median: float  # most likely; 1 where nothing is known
    low: float  # lower end of the interval that holds the truth with a probability of `CONFIDENCE`
    high: float  # upper end of it

    @classmethod
    def of_rounds(cls, ratios: Sequence[float]) -> Ratio:
        """From the ratio in each round, whatever was predicted."""
        return infer([[("own", one), ("other", 1.0)] for one in ratios]).ratio("own", "other") if ratios else _UNKNOWN


_UNKNOWN = Ratio(1.0, 0.0, math.inf)


@dataclass(frozen=True, eq=False)
class Posterior:
    """What is known of candidates' rates: a normal distribution of their logarithms."""

    names: tuple[str, ...]  # of the candidates
    mean: NDArray[np.float64]  # of log(rate) in an average round, float64 [names]
    covariance: NDArray[np.float64]  # of log(rate) without the part that all share, float64 [names, names]
    noise: float  # scale of the noise of a trial's log(rate)

    def rate(self, name: str) -> float:
        """Most likely rate in an average round."""
        return math.exp(self.mean[self.names.index(name)])

    def difference(self, name: str, over: str) -> tuple[float, float]:
        """Mean and variance of log(rate / other's rate)."""
        one, two = self.names.index(name), self.names.index(over)
        variance = self.covariance[one, one] + self.covariance[two, two] - 2 * self.covariance[one, two]
        return float(self.mean[one] - self.mean[two]), max(float(variance), 0.0)

    def error(self, name: str) -> float:
        """Standard deviation of log(rate / geometric mean of all)."""
        contrast = np.array([one == name for one in self.names]) - 1 / len(self.names)
        return math.sqrt(max(float(contrast @ self.covariance @ contrast), 0.0))

    def ratio(self, name: str, over: str) -> Ratio:
        """How many times better one is than the other."""
        mean, variance = self.difference(name, over)
        half = _QUANTILE * math.sqrt(variance)
        return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half))

    def best(self, names: Collection[str]) -> str:
        """The one of these, at least one, with the best mean; of equals the first of the posterior's."""
        return max((name for name in self.names if name in names), key=self.rate)

    def regret(self, chosen: str, names: Collection[str]) -> float:
        """Expected log gain of the best of these, if it were known, over the chosen one."""
        rows = [self.names.index(name) for name in names]
        values, vectors = np.linalg.eigh(self.covariance)
        noise = np.random.default_rng(0).standard_normal((_DRAWS, len(values)))
        drawn = self.mean + noise * np.sqrt(np.maximum(values, 0.0)) @ vectors.T
        return float((drawn[:, rows].max(axis=1) - drawn[:, self.names.index(chosen)]).clip(0).mean())


# Of the standard normal distribution, from the middle to the ends of `CONFIDENCE`.
_QUANTILE = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


def infer(
    rounds: Sequence[Round], predicted: Mapping[str, float] | None = None, error: float | Mapping[str, float] = 1.0
) -> Posterior:
    """The posterior of the rates of all candidates that were predicted or tried.

    rounds: trials, with rates above 0. predicted: rates in any common unit; those of other candidates are taken for
    equal to these on average. error: standard deviation of log(rate / predicted rate), without what all have in common;
    of each candidate, where it is a mapping.
    """
    predicted = dict(predicted or {})
    names = tuple(dict.fromkeys([*predicted, *(name for one in rounds for name, _ in one)]))
    level = float(np.mean(np.log(list(predicted.values())))) if predicted else 0.0
    prior = np.array([math.log(predicted[name]) if name in predicted else level for name in names])
    spread = np.array([error[name] if isinstance(error, Mapping) else error for name in names])
    count, place = len(names), {name: index for index, name in enumerate(names)}
    rounds = [one for one in rounds if one]
    trials = [(place[name], number, rate) for number, one in enumerate(rounds) for name, rate in one]
    arm, of_round = (np.array([one[column] for one in trials], np.int64) for column in (0, 1))
    found = np.log([one[2] for one in trials]) - prior[arm]
    design = np.zeros((len(trials), count + 1))  # a column for each candidate, and one for the level of all
    design[np.arange(len(trials)), arm] = design[:, count] = 1.0

    begins = np.searchsorted(of_round, np.arange(len(rounds)))

    def by_round(values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sums over the trials of each round."""
        return np.add.reduceat(values, begins) if len(begins) else values

    noise, drift = _NOISE**2, _DRIFT**2
    weight, trust = np.ones(len(trials)), np.ones(count)
    for _ in range(_ITERATIONS):
        # The factors of rounds are eliminated: what is left of a trial is its difference from the others of its round.
        precision = weight / noise
        total = by_round(precision) + 1 / drift
        mean_design = by_round(precision[:, None] * design) / total[:, None]
        mean_found = by_round(precision * found) / total
        inside, left = design - mean_design[of_round], found - mean_found[of_round]
        system = (precision[:, None] * design).T @ inside + np.diag([*trust / spread**2, 1e-6])
        covariance = np.linalg.inv(system)
        solution = covariance @ ((precision[:, None] * design).T @ left)
        # Squares expected of what each trial, each round and each candidate differs by.
        off = (
            (left - inside @ solution) ** 2 + np.einsum("ti,ij,tj->t", inside, covariance, inside) + 1 / total[of_round]
        )
        of_rounds = (mean_found - mean_design @ solution) ** 2 + 1 / total
        of_rounds += np.einsum("ri,ij,rj->r", mean_design, covariance, mean_design)
        own = solution[:count] ** 2 + covariance.diagonal()[:count]
        before = noise
        noise = (_WORTH * _NOISE**2 + float(weight @ off)) / (_WORTH + len(trials))
        drift = (_WORTH * _DRIFT**2 + float(of_rounds.sum())) / (_WORTH + len(rounds))
        weight = (_FREEDOM + 1) / (_FREEDOM + off / noise)
        trust = (_FREEDOM + 1) / (_FREEDOM + own / spread**2)
        if abs(math.log(noise / before)) < _PRECISION:
            break
    # Where t noise is centred is known less well than where normal noise of these weights is.
    precision = weight / noise * (_FREEDOM + 1) / (_FREEDOM + 3)
    inside = design - (by_round(precision[:, None] * design) / (by_round(precision) + 1 / drift)[:, None])[of_round]
    covariance = np.linalg.inv((precision[:, None] * design).T @ inside + np.diag([*trust / spread**2, 1e-6]))
    covariance = (covariance + covariance.T) / 2
    return Posterior(names, prior + solution[:count] + solution[count], covariance[:count, :count], math.sqrt(noise))


@dataclass(frozen=True, eq=False)
class Decision:
    """The candidate to use, and how sure that is."""

    chosen: str  # its name
    names: tuple[str, ...]  # of those to choose from, the simplest first
    posterior: Posterior  # of all candidates
    trials: Posterior  # the same without the predictions
    # placements that are better than each simple candidate whatever was predicted, and than late ones as predicted
    proven: frozenset[str]
    leader: str  # name of the best by the posterior, proven or not
    rival: str  # name of the best simple candidate, "" where none is there
    doubt: str  # name of the simple one that trials say least surely to be worse than the leader, "" if that is simple
    # expected log gain of the best candidate over the best that may be chosen: without what is given away on purpose,
    # which more trials do not change
    regret: float

    def ratio(self, name: str, over: str) -> Ratio:
        """How many times better one is than the other; where it is not proven to be better, down to what trials say."""
        found = self.posterior.ratio(name, over)
        if name in self.names and self.rival and name not in self.proven and name != over:
            return Ratio(found.median, min(found.low, self.trials.ratio(name, over).low), found.high)
        return found


def decide(
    rounds: Sequence[Round],
    names: Sequence[str],
    simple: Collection[str],
    predicted: Mapping[str, float] | None = None,
    error: float | Mapping[str, float] = 1.0,
    by_times: Mapping[str, float] | None = None,
    late: Collection[str] = (),
) -> Decision:
    """The choice by what was predicted and measured; rounds, predicted and error: see `infer`.

    It is the candidate with the best posterior, or a simple one within `GAIN` of it. One that is not simple has to be
    better than each simple one by what was measured alone (rates and, where they are known, processor times), as the
    interval of `CONFIDENCE` says: nobody is to get something slower than a single device.

    The last trial may be of a candidate that has failed since. names: of candidates that have not failed and were
    tried, the simplest first; at least one. simple: names of those that need no placement: single devices, HETERO's own
    choices. by_times: rates that follow from what processor time each device was measured to have, in any common unit.
    late: simple ones of predicted that there was no time for: what is chosen is better than predictions say of them.
    """
    known = [name for name in names if name in simple]
    posterior = infer(rounds, predicted, error)
    leader = posterior.best(names)
    rival = posterior.best(known) if known else ""
    trials = infer(rounds, by_times, _SCEPTICAL)
    others = [name for name in names if name not in known]
    to_beat = [*((trials, other) for other in known), *((posterior, other) for other in late)]
    proven = frozenset(name for name in others if all(of.ratio(name, other).low > 1 for of, other in to_beat))
    able = [name for name in names if name in known or name in proven]
    best = posterior.best(able or names)
    least = posterior.rate(best) / (1 + GAIN)
    chosen = next((name for name in known if posterior.rate(name) >= least), best)
    doubt = "" if leader in known else min(known, key=lambda one: trials.ratio(leader, one).low, default="")
    regret = posterior.regret(best, names)
    return Decision(chosen, tuple(names), posterior, trials, proven, leader, rival, doubt, regret)


def next_pair(decision: Decision, names: Sequence[str], turn: int = 0) -> tuple[str, str]:
    """The two candidates whose next round can change the decision most; names: at least two, see `decide`.

    Every second round (`turn`) is the best one's against the simple one in doubt while it is not proven to be better;
    the others are the leader's against the one with the largest knowledge gradient.
    """
    leader, posterior = decision.leader, decision.posterior
    if turn % 2 == 0 and decision.doubt and leader not in decision.proven:
        return decision.doubt, leader

    def gradient(name: str) -> float:
        """Expected log gain of a choice between the two after one round more."""
        mean, variance = posterior.difference(name, leader)
        change = variance / math.sqrt(variance + 2 * posterior.noise**2)
        far = abs(mean) / max(change, 1e-12)
        return change * (math.exp(-(far**2) / 2) / math.sqrt(2 * math.pi) - far * math.erfc(far / math.sqrt(2)) / 2)

    # Where all gradients vanish, the nearest.
    others = [name for name in names if name != leader]
    challenger = max(others, key=lambda name: (gradient(name), -abs(posterior.difference(name, leader)[0])))
    return challenger, leader


def in_order(names: Sequence[str], number: int) -> list[str]:
    """The order of a round's trials, which changes from round to round, so that steady drifts cancel."""
    shift = number // 2 % max(len(names), 1)
    order = [*names[shift:], *names[:shift]]
    return order[::-1] if number % 2 else order


def beaten(posterior: Posterior, names: Collection[str]) -> list[str]:
    """Names of those that are surely worse than the best."""
    leader = posterior.best(names)
    return [name for name in names if name != leader and posterior.ratio(name, leader).high < 1]
