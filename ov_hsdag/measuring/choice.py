"""The choice among measured candidates, as pure functions of predictions and measurements.

A trial is one timed run of a candidate. A round has trials of several candidates, one after the other. A baseline is a
candidate that needs no placement.

The model: the logarithm of a trial's rate is a sum of three terms. The first is the logarithm of the candidate's rate.
The second is the logarithm of a factor that all trials of a round share, as a machine's speed changes from round to
round. The third is noise. The noise has Student's t
distribution, because other programs disturb single trials by half and more. The prior of a rate is its prediction, with
the usual error of predictions. The sizes of the noise and of the differences between rounds are estimated from the
trials.

`infer` computes the posterior, by expectation-maximisation for scale mixtures of normals (Lange, Little, Taylor, JASA
1989). Everything else follows from the posterior: the choice, the figures that are shown, the next trial (by the
knowledge gradient: Frazier, Powell, Dayanik, SIAM J. Control Optim. 2008), and the end of the trials.
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
"""Probability with which an interval contains the true ratio, as is usual in the field."""

GAIN = 0.01
"""Share by which a placement has to be better than simpler candidates; a smaller gain is not worth a split model."""

REGRET = 0.005
"""Expected regret, as a share of the rate, below which trials end: half of the least gain that counts."""

# Degrees of freedom of Student's t, of the noise and of the errors of predictions. Few of them let a single trial or a
# prediction be far off without pulling the estimate along.
_FREEDOM = 4.0

# Prior of the standard deviations of log(rate), of a trial and between rounds, and how many trials the prior is worth.
_PRIOR_NOISE, _PRIOR_DRIFT, _PRIOR_TRIALS = 0.08, 0.1, 4.0

# Expectation-maximisation ends when the logarithm of the noise's variance changes less than `_CONVERGED`, or after
# `_ITERATIONS`.
_ITERATIONS, _CONVERGED = 50, 1e-3

# Prior precision of the level of log(rate) that all candidates share, relative to which rates are judged: as good as
# none, so that the trials alone determine the level.
_LEVEL_PRECISION = 1e-6

# Standard deviation of log(rate) before trials where predictions shall not count. A placement has to beat the baselines
# by measurements alone: all candidates are assumed to be as fast as their processor times say, else equally fast.
_SCEPTICAL = 0.3

# Number of draws from the posterior for the expected regret.
_DRAWS = 1000

# Corrections for other programs. A correction enters with an exponent, and 1 means that it is exact. This is the
# standard deviation of the part of the exponent that all candidates share: with one busy process on two cores,
# corrected gains of splits were 0.94 to 1.05 times those without it (`python -m benchmarks.truth.measuring_noise`).
_EXPONENT = 0.12

# Standard deviation of the part of the exponent that is each candidate's own.
_OWN_EXPONENT = 0.02


# Standard deviation of log(rate) between compilations of the same candidate
# (`python -m benchmarks.truth.measuring_noise`). It counts because a program that uses a placement compiles it anew.
_COMPILATION = 0.014


class Trial(NamedTuple):
    """A trial of a candidate."""

    name: str  # name of the candidate
    rate: float  # rate in any unit, above 0, corrected for what other programs took
    correction: float = 0.0  # logarithm of the factor by which the correction raised the rate


Round = Sequence[Trial | tuple[str, float]]
"""The trials of a round, in order; a name may occur twice. A pair is a trial without a correction."""


def rates_of(trials: Round) -> dict[str, float]:
    """Returns the rate of each candidate of a round, by name; of several trials of a candidate the last one counts."""
    return {trial[0]: trial[1] for trial in trials}


@dataclass(frozen=True)
class Ratio:
    """How many times better one candidate is than another.

    Attributes:
        median: most likely ratio; 1 without any trial, where the interval is from 0 to inf.
        low: lower end of the interval that contains the true ratio with probability `CONFIDENCE`.
        high: upper end of it.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of_rounds(cls, ratios: Sequence[float]) -> Ratio:
        """Estimates a ratio from measurements alone, without predictions.

        Args:
            ratios: the measured ratio in each round; may be empty.

        Returns:
            The ratio with its interval; without rounds, 1 with an interval from 0 to inf.
        """
        return infer([[("own", one), ("other", 1.0)] for one in ratios]).ratio("own", "other") if ratios else _UNKNOWN


# The ratio of candidates without any trial.
_UNKNOWN = Ratio(1.0, 0.0, math.inf)


@dataclass(frozen=True, eq=False)
class Posterior:
    """The posterior of the candidates' rates: a normal distribution of their logarithms.

    Attributes:
        names: names of the candidates.
        mean: mean of log(rate) in an average round, float64 [names].
        covariance: covariance of log(rate) that further trials reduce, float64 [names, names]. The error that all
            candidates share does not count.
        lasting: covariance that further trials do not reduce, float64 [names, names]. It comes from corrections for
            other programs and from differences between compilations.
        noise: scale of the noise of a trial's log(rate), that of Student's t distribution.
    """

    names: tuple[str, ...]
    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]
    lasting: NDArray[np.float64]
    noise: float

    def rate(self, name: str) -> float:
        """The most likely rate of a candidate in an average round, in the unit of the trials."""
        return math.exp(self.mean[self.names.index(name)])

    def difference(self, name: str, over: str, lasting: bool = True) -> tuple[float, float]:
        """Computes the difference of two candidates' log(rate).

        Args:
            name: name of a candidate.
            over: name of the candidate whose log(rate) is subtracted.
            lasting: whether the variance includes `Posterior.lasting`, which further trials do not reduce.

        Returns:
            Mean and variance of log(rate of `name` / rate of `over`).
        """
        first, second = self.names.index(name), self.names.index(over)
        covariance = self.covariance + self.lasting if lasting else self.covariance
        variance = covariance[first, first] + covariance[second, second] - 2 * covariance[first, second]
        return float(self.mean[first] - self.mean[second]), max(float(variance), 0.0)

    def error(self, name: str) -> float:
        """Returns the standard deviation of log(rate of `name` / geometric mean of all candidates' rates)."""
        contrast = np.array([one == name for one in self.names]) - 1 / len(self.names)
        return math.sqrt(max(float(contrast @ (self.covariance + self.lasting) @ contrast), 0.0))

    def ratio(self, name: str, over: str) -> Ratio:
        """Estimates how many times better the candidate `name` is than `over`; includes the `lasting` covariance."""
        mean, variance = self.difference(name, over)
        half = _QUANTILE * math.sqrt(variance)
        return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half))

    def best(self, names: Collection[str]) -> str:
        """Returns the candidate of `names` with the highest mean; of equal ones the first in `self.names`.

        Args:
            names: names of candidates, at least one.
        """
        return max((name for name in self.names if name in names), key=self.rate)

    def regret(self, chosen: str, names: Collection[str]) -> float:
        """Estimates the expected gain of the truly best candidate over the chosen one, with draws from the posterior.

        Args:
            chosen: name of the chosen candidate.
            names: names of the candidates that could have been chosen instead.

        Returns:
            The gain as a difference of log(rate), at least 0.
        """
        rows = [self.names.index(name) for name in names]
        values, vectors = np.linalg.eigh(self.covariance)
        noise = np.random.default_rng(0).standard_normal((_DRAWS, len(values)))
        drawn = self.mean + noise * np.sqrt(np.maximum(values, 0.0)) @ vectors.T
        return float((drawn[:, rows].max(axis=1) - drawn[:, self.names.index(chosen)]).clip(0).mean())


# Half the width of the interval of `CONFIDENCE`, in standard deviations of a normal distribution.
_QUANTILE = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


def infer(
    rounds: Sequence[Round], predicted: Mapping[str, float] | None = None, error: float | Mapping[str, float] = 1.0
) -> Posterior:
    """Computes the posterior of the rates of all candidates that were predicted or measured.

    Args:
        rounds: trials of each round.
        predicted: predicted rates in any common unit, by candidate. Other candidates are assumed to have the mean of
            these.
        error: standard deviation of log(rate / predicted rate), without the part that all candidates share; one for
            all, or by candidate.

    Returns:
        The posterior.
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
    """The design matrix of the regression of the trials' log(rate), float64 [trials, columns].

    There is a column for each candidate, and one for the level of all. Where trials were corrected, there are also one
    for the exponent that all corrections share, and one for each candidate's own exponent.

    Args:
        arm: number of each trial's candidate, int64 [trials].
        corrections: logarithm of each trial's correction, float64 [trials]; all 0 where no trial was corrected.
        count: number of candidates.
    """
    rows = np.arange(len(arm))
    design = np.zeros((len(arm), 2 * (count + 1) if corrections.any() else count + 1))
    design[rows, arm] = design[:, count] = 1.0
    if corrections.any():
        design[:, count + 1] = design[rows, count + 2 + arm] = corrections
    return design


class _Regression:
    """Regression of the trials' log(rate) on a design matrix, with Student's t noise of unknown scale.

    Student's t distribution is a mixture of normal ones. So each iteration solves a weighted least-squares problem,
    then sets the weights of trials (`_weight`) and predictions (`_trust`) and the variances of the noise (`_noise`) and
    between rounds (`_drift`) to what follows from the residuals.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        prior: NDArray[np.float64],
        spread: NDArray[np.float64],
        design: NDArray[np.float64],
        logs: NDArray[np.float64],
        sizes: Sequence[int],
    ) -> None:
        """Sets up the regression.

        Args:
            names: names of the candidates.
            prior: prior mean of each candidate's log(rate), float64 [names].
            spread: prior standard deviation of it, float64 [names].
            design: design matrix, see `_design`.
            logs: log(rate) of each trial less its candidate's prior mean, float64 [trials].
            sizes: number of trials of each round; the trials of a round share a factor.
        """
        self._names, self._prior, self._spread, self._design, self._logs = names, prior, spread, design, logs
        self._round_of = np.repeat(np.arange(len(sizes)), sizes)
        self._begins = np.cumsum([0, *sizes])[:-1]
        # variances of log(rate), of a trial and between rounds
        self._noise, self._drift = _PRIOR_NOISE**2, _PRIOR_DRIFT**2
        self._weight, self._trust = np.ones(len(logs)), np.ones(len(names))  # weights of trials and of predictions
        self._exponents = np.array([_EXPONENT, *[_OWN_EXPONENT] * len(names)])[: design.shape[1] - len(names) - 1]

    def posterior(self) -> Posterior:
        """Computes the posterior by expectation-maximisation, which changes the weights and variances here."""
        for _ in range(_ITERATIONS):
            before = self._noise
            solution = self._iterate()
            if abs(math.log(self._noise / before)) < _CONVERGED:
                break
        # The Fisher information of t noise with n degrees of freedom about its centre is (n + 1) / (n + 3) of that of
        # normal noise of its scale.
        system, *_ = self._system(self._weight / self._noise * (_FREEDOM + 1) / (_FREEDOM + 3))
        count = len(self._names)
        all_errors, of_trials = (
            np.linalg.inv(one)[:count, :count] for one in (system, system[: count + 1, : count + 1])
        )
        mean = self._prior + solution[:count] + solution[count]
        lasting = all_errors - of_trials + _COMPILATION**2 * np.eye(count)
        return Posterior(self._names, mean, (of_trials + of_trials.T) / 2, lasting, math.sqrt(self._noise))

    def _by_round(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sums values of trials, float64 [trials, …], over each round: float64 [rounds, …]."""
        return np.add.reduceat(values, self._begins) if len(self._begins) else values

    def _system(self, precision: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
        """The matrix of the normal equations, with the terms that it is made of.

        The factor that the trials of a round share is eliminated, as a random effect of variance `_drift`: what remains
        of a trial is mostly its difference from the other trials of its round.

        Args:
            precision: precision of each trial, the inverse of its variance, float64 [trials].

        Returns:
            The matrix, float64 [columns, columns]; the precision of each round with that of the prior of its factor,
            float64 [rounds]; the design's mean in each round, shrunken towards 0 by that prior, float64
            [rounds, columns]; and the design less that mean, float64 [trials, columns].
        """
        round_precision = self._by_round(precision) + 1 / self._drift
        mean_design = self._by_round(precision[:, None] * self._design) / round_precision[:, None]
        within_round = self._design - mean_design[self._round_of]
        prior_precision = np.diag([*self._trust / self._spread**2, _LEVEL_PRECISION, *self._exponents**-2.0])
        system = (precision[:, None] * self._design).T @ within_round + prior_precision
        return system, round_precision, mean_design, within_round

    def _iterate(self) -> NDArray[np.float64]:
        """Makes one iteration: solves with the present weights and variances, then updates these.

        Returns:
            The solution, float64 [columns]: the coefficient of each column of the design matrix, see `_design`.
        """
        precision, count = self._weight / self._noise, len(self._names)
        system, round_precision, mean_design, within_round = self._system(precision)
        mean_logs = self._by_round(precision * self._logs) / round_precision
        residuals = self._logs - mean_logs[self._round_of]
        covariance = np.linalg.inv(system)
        solution: NDArray[np.float64] = covariance @ ((precision[:, None] * self._design).T @ residuals)
        # Expected squares of the residuals of trials, rounds and candidates.
        of_solution = np.einsum("ti,ij,tj->t", within_round, covariance, within_round)
        of_trials = (residuals - within_round @ solution) ** 2 + of_solution + 1 / round_precision[self._round_of]
        of_rounds = (mean_logs - mean_design @ solution) ** 2 + 1 / round_precision
        of_rounds += np.einsum("ri,ij,rj->r", mean_design, covariance, mean_design)
        of_candidates = solution[:count] ** 2 + covariance.diagonal()[:count]
        noise = _PRIOR_TRIALS * _PRIOR_NOISE**2 + float(self._weight @ of_trials)
        self._noise = noise / (_PRIOR_TRIALS + len(self._logs))
        drift = _PRIOR_TRIALS * _PRIOR_DRIFT**2 + float(of_rounds.sum())
        self._drift = drift / (_PRIOR_TRIALS + len(round_precision))
        self._weight = (_FREEDOM + 1) / (_FREEDOM + of_trials / self._noise)
        self._trust = (_FREEDOM + 1) / (_FREEDOM + of_candidates / self._spread**2)
        return solution


@dataclass(frozen=True, eq=False)
class Decision:
    """The chosen candidate, and the certainty of the choice. A baseline is a candidate that needs no placement.

    Attributes:
        chosen: name of the chosen candidate.
        names: names of the candidates to choose from, the simplest first.
        posterior: posterior of all candidates.
        trials: posterior without the predictions.
        proven: names of placements that are better than each baseline by measurements alone, and better than baselines
            without trials by the posterior.
        leader: name of the best candidate by the posterior, proven or not.
        rival: name of the best baseline; "" without baselines.
        doubt: name of the baseline that is least surely worse than the leader by measurements alone; "" where the
            leader is a baseline, and without baselines.
        regret: expected gain of the truly best candidate over the best that may be chosen, a difference of log(rate).
            What the choice gives away on purpose, for the sake of simplicity, does not count: trials cannot change it.
    """

    chosen: str
    names: tuple[str, ...]
    posterior: Posterior
    trials: Posterior
    proven: frozenset[str]
    leader: str
    rival: str
    doubt: str
    regret: float

    def ratio(self, name: str, over: str) -> Ratio:
        """Estimates how many times better the candidate `name` is than `over`.

        For a placement that is not proven better, the interval reaches down to that of the measurements alone.
        """
        posterior_ratio = self.posterior.ratio(name, over)
        if name in self.names and self.rival and name not in self.proven and name != over:
            return Ratio(
                posterior_ratio.median,
                min(posterior_ratio.low, self.trials.ratio(name, over).low),
                posterior_ratio.high,
            )
        return posterior_ratio


def decide(
    rounds: Sequence[Round],
    names: Sequence[str],
    simple: Collection[str],
    predicted: Mapping[str, float] | None = None,
    error: float | Mapping[str, float] = 1.0,
    by_times: Mapping[str, float] | None = None,
    late: Collection[str] = (),
) -> Decision:
    """Chooses a candidate by predictions and measurements.

    The choice is the candidate with the best posterior, or a baseline within `GAIN` of it. A placement can be chosen
    only if its interval of `CONFIDENCE`, by measurements alone (rates and, where known, processor times), is above each
    baseline: nobody shall get a placement that is slower than a single device.

    Args:
        rounds: trials of each round; some may be of candidates that have failed since.
        names: names of the candidates that have trials and have not failed, the simplest first; at least one.
        simple: names of the baselines: single devices and HETERO's own choices.
        predicted: predicted rates, see `infer`.
        error: standard deviation of the predictions, see `infer`.
        by_times: rates that follow from measured processor times of the devices, in any common unit, by candidate.
        late: names of predicted baselines for which there was no time; a placement has to be better than these are
            predicted to be.

    Returns:
        The choice, with the posteriors that it follows from.
    """
    baselines = [name for name in names if name in simple]
    posterior = infer(rounds, predicted, error)
    leader = posterior.best(names)
    rival = posterior.best(baselines) if baselines else ""
    trials = infer(rounds, by_times, _SCEPTICAL)
    placements = [name for name in names if name not in baselines]
    to_beat = [*((trials, other) for other in baselines), *((posterior, other) for other in late)]
    proven = frozenset(name for name in placements if all(of.ratio(name, other).low > 1 for of, other in to_beat))
    able = [name for name in names if name in baselines or name in proven]
    best = posterior.best(able or names)
    least = posterior.rate(best) / (1 + GAIN)
    chosen = next((name for name in baselines if posterior.rate(name) >= least), best)
    doubt = "" if leader in baselines else min(baselines, key=lambda one: trials.ratio(leader, one).low, default="")
    regret = posterior.regret(best, names)
    return Decision(chosen, tuple(names), posterior, trials, proven, leader, rival, doubt, regret)


def next_pair(decision: Decision, names: Sequence[str], turn: int = 0) -> tuple[str, str]:
    """Chooses the two candidates whose next round can change the decision most.

    While the leader is not proven, every second round compares it with the baseline in doubt. All other rounds compare
    it with the candidate of the largest knowledge gradient.

    Args:
        decision: the decision by the trials so far.
        names: names of the candidates, at least two, see `decide`.
        turn: number of the round.

    Returns:
        Names of the two, in the order in which they run.
    """
    leader, posterior = decision.leader, decision.posterior
    if turn % 2 == 0 and decision.doubt and leader not in decision.proven:
        return decision.doubt, leader

    def gradient(name: str) -> float:
        """The expected gain, in log(rate), of choosing between this candidate and the leader after one more round."""
        mean, variance = posterior.difference(name, leader, lasting=False)
        change = variance / math.sqrt(variance + 2 * posterior.noise**2)
        far = abs(mean) / max(change, 1e-12)
        return change * (math.exp(-(far**2) / 2) / math.sqrt(2 * math.pi) - far * math.erfc(far / math.sqrt(2)) / 2)

    # Where all gradients underflow to 0, the candidate nearest to the leader is taken.
    others = [name for name in names if name != leader]
    challenger = max(others, key=lambda name: (gradient(name), -abs(posterior.difference(name, leader)[0])))
    return challenger, leader


def in_order(names: Sequence[str], number: int) -> list[str]:
    """Returns the order in which candidates run in a round; it changes from round to round, so steady drifts cancel.

    Args:
        names: names of the candidates.
        number: number of the round, from 0.
    """
    shift = number // 2 % max(len(names), 1)
    order = [*names[shift:], *names[:shift]]
    return order[::-1] if number % 2 else order


def beaten(posterior: Posterior, names: Collection[str]) -> list[str]:
    """Returns the candidates of `names` that are surely worse than the best of them: the interval is below 1."""
    leader = posterior.best(names)
    return [name for name in names if name != leader and posterior.ratio(name, leader).high < 1]
