"""Schedules trials of a comparison's candidates, and chooses one of them.

A decision (`choice.Decision`) says which candidate is chosen and how sure that is. Its regret is the expected gain of
the truly best candidate over the best that may be chosen. Trials end when the regret is small.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

from ov_hsdag.measuring import choice
from ov_hsdag.measuring.comparison import Comparison
from ov_hsdag.measuring.evaluator import in_unit
from ov_hsdag.utils.failures import NOT_MEASURED, failure_figures, out_of_time

SECONDS = 0.1
"""Default time of a trial, seconds.

Many short trials tell more than few long ones, as long as pipelines do not spend most of the time filling and
emptying."""

# Rounds of all candidates, before rounds of two candidates each.
FIRST_ROUNDS = 2

# Rounds of two candidates in a row where one of them has to be compiled for them, for lack of memory.
_VISIT = 4

# After this multiple of the time of the first rounds, trials may end with twice the regret of `choice.REGRET`. Errors
# fall with the square root of the number of trials, so halving the regret would take four times as long.
_PATIENCE = 4.0


class Trials:
    """Runs trials of candidates until the decision is settled or the time is over.

    All candidates run in two rounds. Every further round is of the two candidates whose comparison can change the
    decision most. See `ov_hsdag.measuring.choice`.

    A subclass can override what predictions count (`_beliefs`), which candidates may be chosen (`_choices`) and which
    run next (`_next`).
    """

    def __init__(
        self,
        comparison: Comparison,
        simple: Collection[str],
        predicted: Mapping[str, float],
        error: float,
        end: float,
        seconds: float = SECONDS,
        singles: Collection[str] = (),
    ) -> None:
        """Prepares trials; none has run yet.

        Args:
            comparison: the compiled candidates.
            simple: names of the baselines.
            predicted: predicted rates of all candidates, in a common unit.
            error: standard deviation of log(rate / predicted rate).
            end: time of `time.monotonic` at which the time budget ends, seconds.
            seconds: time of a trial, seconds.
            singles: names of baselines whose predictions a placement has to beat where there was no time for them.
        """
        self._singles = singles
        self._comparison, self._simple = comparison, simple
        self._predicted, self._error = dict(predicted), error
        self._end, self._seconds, self._longest = end, seconds, 0.0
        self._trial_seconds = self._first_rounds_seconds = 0.0  # time of all trials, and of the first rounds
        self._rounds: list[choice.Round] = []

    def run(self) -> choice.Decision | None:
        """Runs trials while they can change the decision and there is time.

        Returns:
            The decision; None where nothing ran.
        """
        long = self._seconds > SECONDS
        self._add(self._comparison.ready, 1 if long else FIRST_ROUNDS, 0)
        if long and (decision := self.decision()) is not None:  # candidates that are surely worse run only once
            lost = {*choice.beaten(decision.posterior, decision.names)} - {decision.rival}
            left = [name for name in self._comparison.ready if name not in lost]
            self._add(left, FIRST_ROUNDS - 1, 1)
        turn, self._first_rounds_seconds = FIRST_ROUNDS, self._trial_seconds
        while (decision := self.decision()) is not None:
            pair = self._next(decision, turn)
            # A round of two candidates has to end in time.
            if pair is None or time.monotonic() + 2 * max(self._longest, self._seconds) > self._end:
                break
            rounds = _VISIT if {*pair} <= {*self._alive()} else FIRST_ROUNDS  # a new candidate runs as all did first
            self._add(pair, 1 if self._comparison.compiled(pair) else rounds, turn)
            turn += 1
        return self.decision()

    def decision(self) -> choice.Decision | None:
        """Computes the decision from the trials so far; None where no candidate that may be chosen has run."""
        names = self._choices()
        late = [name for name in self._singles if out_of_time(self._comparison.failed.get(name))]
        return choice.decide(self._rounds, names, self._simple, *self._beliefs(), late) if names else None

    def figures(self, decision: choice.Decision | None, objective: str, key: str) -> dict[str, dict[str, Any]]:
        """Figures of all candidates by the posterior of a decision.

        Args:
            decision: the decision; None where nothing ran.
            objective: "latency" or "throughput".
            key: key of the rate, inferences per second, or of the latency, µs.

        Returns:
            By candidate, JSON-able: the figure under `key`; "ratio" to the best baseline, with its interval "ci"; and
            the reason of a failure. Figures of failed candidates are None.
        """
        alive = set(self._alive())
        reference = decision and (decision.rival or decision.leader)
        figures: dict[str, dict[str, Any]] = {}
        for name in self._comparison.names:
            failed = self._comparison.failed.get(name) or (None if name in alive else NOT_MEASURED)
            decision_if_ran = None if failed else decision
            figures[name] = {
                key: round(in_unit(decision_if_ran.posterior.rate(name), objective), 6) if decision_if_ran else None,
                **ratio_figures(
                    "ratio", "ci", decision_if_ran.ratio(name, reference) if decision_if_ran and reference else None
                ),
                **failure_figures(failed),
            }
        return figures

    def _beliefs(self) -> tuple[Mapping[str, float], float | Mapping[str, float], Mapping[str, float] | None]:
        """The arguments `predicted`, `error` and `by_times` (None here) of `choice.decide`."""
        return self._predicted, self._error, None

    def _next(self, decision: choice.Decision, turn: int) -> tuple[str, str] | None:
        """Names of the two candidates of round `turn`; None where the decision is settled or has no alternative."""
        names = self._choices()
        return None if self._settled(decision) or len(names) < 2 else choice.next_pair(decision, names, turn)

    def _settled(self, decision: choice.Decision) -> bool:
        """Whether the decision's regret is so small that further trials gain too little for the time that they take."""
        return decision.regret < choice.REGRET * (1 + (self._trial_seconds > _PATIENCE * self._first_rounds_seconds))

    def _choices(self) -> list[str]:
        """Names of the candidates that may be chosen, the simplest first."""
        return self._alive()

    def _alive(self) -> list[str]:
        """Names of the candidates that ran and have not failed, the simplest first."""
        ran = {name for one in self._rounds for name in choice.rates_of(one)}
        return [name for name in self._comparison.ready if name in ran]

    def _add(self, names: Collection[str], rounds: int, turn: int) -> None:
        """Runs rounds of candidates, and records their trials and the time that these took without compiling.

        Args:
            names: names of the candidates.
            rounds: number of rounds.
            turn: number of the first round.
        """
        begin, late = time.monotonic(), [name for name in names if not self._comparison.compiled([name])]
        rounds_run = self._comparison.trials(names, rounds, self._seconds, until=self._end, begin=turn)
        compiling = sum(self._comparison.seconds.get(name, 0.0) for name in late)
        took = time.monotonic() - begin - compiling
        self._trial_seconds += took
        self._longest = max(self._longest, took / max(sum(map(len, rounds_run)), 1))
        self._rounds += rounds_run


def ratio_figures(key: str, ci: str, ratio: choice.Ratio | None) -> dict[str, Any]:
    """A ratio and its interval, JSON-able.

    Args:
        key: key of the ratio.
        ci: key of the interval.
        ratio: the ratio; None where it is not known.

    Returns:
        The two entries; None where the ratio is not known.
    """
    if ratio is None:
        return {key: None, ci: None}
    return {key: round(ratio.median, 4), ci: [round(ratio.low, 4), round(ratio.high, 4)]}
