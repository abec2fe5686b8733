"""Trials of a comparison's candidates, and the decision that they lead to."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

from ov_hsdag.measuring import choice
from ov_hsdag.measuring.comparison import Comparison
from ov_hsdag.measuring.evaluator import in_unit
from ov_hsdag.utils.failures import NOT_MEASURED, failure_figures, out_of_time

SECONDS = 0.1
"""Of a trial: many short ones tell more than few long ones, until pipelines fill and empty for most of the time."""

# Rounds of all candidates, before the rounds of two.
FIRST_ROUNDS = 2

# Rounds of two candidates, one of which has to be compiled first for lack of memory.
_VISIT = 4

# After so many times as long as the first rounds took, trials may leave twice the regret of `choice.REGRET`: errors
# fall with the square root of their number, so that half of it would take four times as long.
_PATIENCE = 4.0


class Trials:
    """All candidates run in two rounds, then the two whose comparison can change the decision most, until it is settled
    or the time is over. See `ov_hsdag.measuring.choice`."""

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
        """simple: names of candidates that need no placement. predicted: rates of all, in a common unit, and the error
        of their logarithm. end: of the time, in `time.monotonic`. seconds: of a trial. singles: simple ones that
        what is chosen has to beat also where there was no time for them."""
        self._singles = singles
        self._comparison, self._simple = comparison, simple
        self._predicted, self._error = dict(predicted), error
        self._end, self._seconds, self._longest = end, seconds, 0.0
        self._spent = self._first = 0.0  # seconds of all trials, and of the first rounds
        self._rounds: list[choice.Round] = []

    def run(self) -> choice.Decision | None:
        """Runs trials while they can change the decision and there is time. None where nothing ran."""
        long = self._seconds > SECONDS
        self._add(self._comparison.ready, 1 if long else FIRST_ROUNDS, 0)
        if long and (decision := self.decision()) is not None:  # those that are surely beaten run once
            lost = {*choice.beaten(decision.posterior, decision.names)} - {decision.rival}
            left = [name for name in self._comparison.ready if name not in lost]
            self._add(left, FIRST_ROUNDS - 1, 1)
        turn, self._first = FIRST_ROUNDS, self._spent
        while (decision := self.decision()) is not None:
            pair = self._next(decision, turn)
            # A round of two has to end in time.
            if pair is None or time.monotonic() + 2 * max(self._longest, self._seconds) > self._end:
                break
            rounds = _VISIT if {*pair} <= {*self._alive()} else FIRST_ROUNDS  # of what has not run yet as of all
            self._add(pair, 1 if self._comparison.compiled(pair) else rounds, turn)
            turn += 1
        return self.decision()

    def decision(self) -> choice.Decision | None:
        """By the trials so far."""
        names = self._choices()
        late = [name for name in self._singles if out_of_time(self._comparison.failed.get(name))]
        return choice.decide(self._rounds, names, self._simple, *self._beliefs(), late) if names else None

    def figures(self, decision: choice.Decision | None, objective: str, key: str) -> dict[str, dict[str, Any]]:
        """Of each candidate, None where it failed: under `key` its rate or latency in µs; ratio and its ci, how many
        times better it is than the best simple one; and why it failed."""
        alive = set(self._alive())
        reference = decision and (decision.rival or decision.leader)
        found: dict[str, dict[str, Any]] = {}
        for name in self._comparison.names:
            failed = self._comparison.failed.get(name) or (None if name in alive else NOT_MEASURED)
            known = None if failed else decision
            found[name] = {
                key: round(in_unit(known.posterior.rate(name), objective), 6) if known else None,
                **ratio_figures("ratio", "ci", known.ratio(name, reference) if known and reference else None),
                **failure_figures(failed),
            }
        return found

    def _beliefs(self) -> tuple[Mapping[str, float], float | Mapping[str, float], Mapping[str, float] | None]:
        """Predicted rates, their error, and rates that follow from processor times; see `choice.decide`."""
        return self._predicted, self._error, None

    def _next(self, decision: choice.Decision, turn: int) -> tuple[str, str] | None:
        names = self._choices()
        return None if self._settled(decision) or len(names) < 2 else choice.next_pair(decision, names, turn)

    def _settled(self, decision: choice.Decision) -> bool:
        """Whether more trials can hardly gain anything, or not what they take."""
        return decision.regret < choice.REGRET * (1 + (self._spent > _PATIENCE * self._first))

    def _choices(self) -> list[str]:
        """What may be chosen, the simplest first."""
        return self._alive()

    def _alive(self) -> list[str]:
        """Those that ran and have not failed, the simplest first."""
        ran = {name for one in self._rounds for name in choice.rates_of(one)}
        return [name for name in self._comparison.ready if name in ran]

    def _add(self, names: Collection[str], rounds: int, turn: int) -> None:
        begin, late = time.monotonic(), [name for name in names if not self._comparison.compiled([name])]
        found = self._comparison.trials(names, rounds, self._seconds, until=self._end, begin=turn)
        compiling = sum(self._comparison.seconds.get(name, 0.0) for name in late)
        took = time.monotonic() - begin - compiling
        self._spent += took
        self._longest = max(self._longest, took / max(sum(map(len, found)), 1))
        self._rounds += found


def ratio_figures(key: str, ci: str, ratio: choice.Ratio | None) -> dict[str, Any]:
    """A ratio and its interval under two keys, JSON-able."""
    if ratio is None:
        return {key: None, ci: None}
    return {key: round(ratio.median, 4), ci: [round(ratio.low, 4), round(ratio.high, 4)]}
