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
from typing import NamedTuple

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

# A trial's correction gives back exactly what other programs took where its exponent is 1. Standard deviation of the
# exponent that all candidates have in common (with one busy process on two cores, splits came out at 0.94 to 1.05 of
# what they gain without it; `python -m benchmarks.truth.measuring_noise`).
_EXPONENT = 0.12

# The same of what each candidate's own exponent differs from that by.
_OWN_EXPONENT = 0.02


# Standard deviation of log(rate) between compilations of one and the same candidate
# (`python -m benchmarks.truth.measuring_noise`): a program that uses it compiles it anew.
_COMPILATION = 0.014


class Trial(NamedTuple):
    """A trial of a candidate."""

    name: str  # of the candidate
    rate: float  # above 0, without what other programs took
    correction: float = 0.0  # logarithm of how many times as high that is as the rate beside them


Round = Sequence[Trial | tuple[str, float]]
"""The trials of a round, in order; a name may come twice. A pair is a trial without a correction."""


def rates_of(trials: Round) -> dict[str, float]:
    """Rate of each candidate of a round."""
    return {trial[0]: trial[1] for trial in trials}


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
    # Of log(rate), without the part that all share, float64 [names, names]: what more trials make smaller, and what
    # they do not (of corrections for other programs, of compilations).
    covariance: NDArray[np.float64]
    lasting: NDArray[np.float64]
    noise: float  # scale of the noise of a trial's log(rate)

    def rate(self, name: str) -> float:
        """Most likely rate in an average round."""
        return math.exp(self.mean[self.names.index(name)])

    def difference(self, name: str, over: str, lasting: bool = True) -> tuple[float, float]:
        """Mean and variance of log(rate / other's rate). lasting: with what more trials do not make smaller."""
        one, two = self.names.index(name), self.names.index(over)
        covariance = self.covariance + self.lasting if lasting else self.covariance
        variance = covariance[one, one] + covariance[two, two] - 2 * covariance[one, two]
        return float(self.mean[one] - self.mean[two]), max(float(variance), 0.0)

    def error(self, name: str) -> float:
        """Standard deviation of log(rate / geometric mean of all)."""
        contrast = np.array([one == name for one in self.names]) - 1 / len(self.names)
        return math.sqrt(max(float(contrast @ (self.covariance + self.lasting) @ contrast), 0.0))

    def ratio(self, name: str, over: str) -> Ratio:
        """How many times better one is than the other."""
        mean, variance = self.difference(name, over)
        half = _QUANTILE * math.sqrt(variance)
        return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half))

    def best(self, names: Collection[str]) -> str:
        """The one of these, at least one, with the best mean; of equals the first of the posterior's."""
        return max((name for name in self.names if name in names), key=self.rate)

    def regret(self, chosen: str, names: Collection[str]) -> float:
        """Expected log gain of the best of these, if trials told which it is, over the chosen one."""
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
    rounds = [one for one in rounds if one]
    names = tuple(dict.fromkeys([*predicted, *(trial[0] for one in rounds for trial in one)]))
    level = float(np.mean(np.log(list(predicted.values())))) if predicted else 0.0
    prior = np.array([math.log(predicted[name]) if name in predicted else level for name in names])
    spread = np.array([error[name] if isinstance(error, Mapping) else error for name in names])
    place = {name: index for index, name in enumerate(names)}
    trials = [Trial(*trial) for one in rounds for trial in one]
    arm = np.array([place[trial.name] for trial in trials], np.int64)
    design = _design(arm, np.array([trial.correction for trial in trials]), len(names))
    logs = np.log([trial.rate for trial in trials]) - prior[arm]
    return _Regression(names, prior, spread, design, logs, [len(one) for one in rounds]).posterior()


def _design(arm: NDArray[np.int64], corrections: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """What log(rate) of each trial is a sum of, float64 [trials, columns].

    Columns: one for each candidate; one for the level of all; where trials were corrected, one for the exponent that
    all corrections have in common, and one for each candidate's own.

    Args:
        arm: number of each trial's candidate, int64 [trials].
        corrections: logarithm of each trial's, float64 [trials].
        count: of candidates.
    """
    rows = np.arange(len(arm))
    design = np.zeros((len(arm), 2 * (count + 1) if corrections.any() else count + 1))
    design[rows, arm] = design[:, count] = 1.0
    if corrections.any():
        design[:, count + 1] = design[rows, count + 2 + arm] = corrections
    return design


class _Regression:
    """Log-rates of trials on the columns of a design, with unknown noise of Student's distribution."""

    def __init__(
        self,
        names: tuple[str, ...],
        prior: NDArray[np.float64],
        spread: NDArray[np.float64],
        design: NDArray[np.float64],
        logs: NDArray[np.float64],
        sizes: Sequence[int],
    ) -> None:
        """What is regressed.

        Args:
            names: of the candidates.
            prior: log(rate) of each before trials, float64 [names].
            spread: its standard deviation, float64 [names].
            design: see `_design`.
            logs: log(rate) of each trial less its candidate's prior, float64 [trials].
            sizes: number of trials of each round, which have a factor in common.
        """
        self._names, self._prior, self._spread, self._design, self._logs = names, prior, spread, design, logs
        self._round_of = np.repeat(np.arange(len(sizes)), sizes)
        self._begins = np.cumsum([0, *sizes])[:-1]
        self._noise, self._drift = _NOISE**2, _DRIFT**2  # variances of a trial, and between rounds
        self._weight, self._trust = np.ones(len(logs)), np.ones(len(names))  # of trials, and of what is predicted
        self._exponents = np.array([_EXPONENT, *[_OWN_EXPONENT] * len(names)])[: design.shape[1] - len(names) - 1]

    def posterior(self) -> Posterior:
        """By expectation-maximisation."""
        for _ in range(_ITERATIONS):
            before = self._noise
            solution = self._improve()
            if abs(math.log(self._noise / before)) < _PRECISION:
                break
        # Where t noise is centred is known less well than where normal noise of these weights is.
        system, *_ = self._system(self._weight / self._noise * (_FREEDOM + 1) / (_FREEDOM + 3))
        count = len(self._names)
        all_errors, of_trials = (
            np.linalg.inv(one)[:count, :count] for one in (system, system[: count + 1, : count + 1])
        )
        mean = self._prior + solution[:count] + solution[count]
        lasting = all_errors - of_trials + _COMPILATION**2 * np.eye(count)
        return Posterior(self._names, mean, (of_trials + of_trials.T) / 2, lasting, math.sqrt(self._noise))

    def _by_round(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sums over the trials of each round."""
        return np.add.reduceat(values, self._begins) if len(self._begins) else values

    def _system(self, precision: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
        """The normal equations' matrix, and what they are made of. precision: of each trial, float64 [trials].

        The factors of rounds are eliminated: what is left of a trial is its difference from the others of its round.
        """
        total = self._by_round(precision) + 1 / self._drift
        mean_design = self._by_round(precision[:, None] * self._design) / total[:, None]
        inside = self._design - mean_design[self._round_of]
        known = np.diag([*self._trust / self._spread**2, 1e-6, *self._exponents**-2.0])
        return (precision[:, None] * self._design).T @ inside + known, total, mean_design, inside

    def _improve(self) -> NDArray[np.float64]:
        """One iteration: the solution with these weights and variances, and the weights and variances by that."""
        precision, count = self._weight / self._noise, len(self._names)
        system, total, mean_design, inside = self._system(precision)
        mean_logs = self._by_round(precision * self._logs) / total
        left = self._logs - mean_logs[self._round_of]
        covariance = np.linalg.inv(system)
        solution: NDArray[np.float64] = covariance @ ((precision[:, None] * self._design).T @ left)
        # Squares expected of what each trial, each round and each candidate differs by.
        of_solution = np.einsum("ti,ij,tj->t", inside, covariance, inside)
        of_trials = (left - inside @ solution) ** 2 + of_solution + 1 / total[self._round_of]
        of_rounds = (mean_logs - mean_design @ solution) ** 2 + 1 / total
        of_rounds += np.einsum("ri,ij,rj->r", mean_design, covariance, mean_design)
        of_candidates = solution[:count] ** 2 + covariance.diagonal()[:count]
        noise = _WORTH * _NOISE**2 + float(self._weight @ of_trials)
        self._noise = noise / (_WORTH + len(self._logs))
        self._drift = (_WORTH * _DRIFT**2 + float(of_rounds.sum())) / (_WORTH + len(total))
        self._weight = (_FREEDOM + 1) / (_FREEDOM + of_trials / self._noise)
        self._trust = (_FREEDOM + 1) / (_FREEDOM + of_candidates / self._spread**2)
        return solution


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
        mean, variance = posterior.difference(name, leader, lasting=False)
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
