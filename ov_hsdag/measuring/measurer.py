"""Measures placements one after the other, each against the same reference: a single device, or HETERO's own choice.

A ratio is the placement's rate divided by the reference's rate in the same round, which has one trial of each.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring import choice
from ov_hsdag.measuring.comparison import Comparison, measurements
from ov_hsdag.measuring.evaluator import HETERO_DEFAULT, Measurement, in_unit, simple_candidate
from ov_hsdag.measuring.process import Candidate, StartWorker
from ov_hsdag.utils.errors import RunError
from ov_hsdag.utils.lazy import ov

TRIAL_SECONDS = 0.7
"""Default time of a trial of a placement, and of one of its reference, seconds."""

# After n rounds a placement is given up where its best ratio is below 1 - 0.15 / n times the ratio that it has to beat:
# 0.85, 0.925, … The more rounds, the less may a further one be expected to change.
_HOPELESS = 0.15

# Name of the placement that is being measured. All placements have the same name and so share a worker: starting a
# worker takes longer than compiling a small model.
_PLACEMENT = "placement"


class Measurer:
    """Measures one placement at a time against the reference. It is a `Judge`.

    Attributes:
        reference: name of the reference: a device, or `HETERO_DEFAULT`.
        singles: measurements of the reference and of the single devices that were compared with it, by name.
    """

    def __init__(  # noqa: PLR0913 settings, all by keyword
        self,
        model: ov.Model,
        devices: DeviceSet,
        objective: str,
        core: ov.Core,
        *,
        reference: str | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        rounds: int = 3,
        seconds: float = TRIAL_SECONDS,
        reference_seconds: float = math.inf,
        start_worker: StartWorker | None = None,
    ) -> None:
        """Compiles the reference. By default that is the single device that measures best.

        Where no single device runs the model, it is HETERO's own choice.

        Args:
            model: the normalized model; it is not changed.
            devices: the devices, in HETERO's order.
            objective: "latency" or "throughput".
            core: Core of the devices.
            reference: name of the reference, a device or `HETERO_DEFAULT`; by default the best single device.
            shapes: example shapes of dynamic inputs, by input name.
            rounds: default number of rounds; each has a trial of the reference and one of the placement.
            seconds: time of a trial, seconds.
            reference_seconds: time, seconds, for finding the reference, after which no further round of it begins.
            start_worker: starts a worker process; by default a local one.

        Raises:
            RunError: neither a device alone nor HETERO runs the model, or the given reference does not.
        """
        self._devices, self._objective = devices, objective
        self._rounds, self._seconds = rounds, seconds
        begin = time.monotonic()
        simple = {name: simple_candidate(name, devices) for name in ([reference] if reference else devices)}
        comparison = Comparison(model, devices, simple, objective, core, shapes=shapes, start_worker=start_worker)
        self._comparison = comparison
        if reference is None and not comparison.ready:
            comparison.renew(HETERO_DEFAULT, simple_candidate(HETERO_DEFAULT, devices))
        rounds_run = comparison.trials(
            rounds=rounds if reference is None else 1, seconds=seconds, until=begin + reference_seconds
        )
        if not comparison.ready:
            self.close()
            why = "; ".join(f"{name}: {error}" for name, error in comparison.failed.items())
            what = f"no device of {devices.hetero} runs" if reference is None else f"{reference} does not run"
            raise RunError(f"{what} the model: {why}")
        self.reference = choice.infer(rounds_run).best(comparison.ready)
        # The posterior is used rather than ratios by round: candidates that were not in memory together share no round.
        measured = measurements(comparison.ready, comparison, rounds_run, objective, self.reference)
        # What each would have taken if there had been time for all rounds.
        whole = rounds / max(len(rounds_run), 1) * (time.monotonic() - begin) / len(simple)
        self.singles = {name: replace(one, seconds=whole) for name, one in measured.items()}
        for name in self.singles.keys() - {self.reference}:
            comparison.evict(name)

    def close(self) -> None:
        """Ends the workers, which otherwise happens when this object is garbage-collected."""
        self._comparison.close()

    def measure(self, affinity: Mapping[str, str], *, worth: float = 0.0, rounds: int | None = None) -> Measurement:
        """Measures a placement, see `Judge.measure`.

        Args:
            affinity: device of every node of the model, by friendly name.
            worth: the ratio that the placement has to beat; one that is clearly worse gets fewer rounds.
            rounds: number of rounds; by default that of the constructor.

        Returns:
            The measurement, which is a failed one where the placement does not run.

        Raises:
            RunError: the reference fails twice, although it ran before.
        """
        begin = time.perf_counter()
        comparison, failed = self._comparison, self._comparison.failed
        comparison.renew(_PLACEMENT, Candidate.placed(self._devices, affinity))
        rounds_run: list[choice.Round] = []
        restarted = False
        while _PLACEMENT not in failed and len(rounds_run) < (rounds or self._rounds):
            if self.reference in failed:  # the placement is not to blame
                if restarted:
                    raise RunError(f"{self.reference} runs no more: {failed[self.reference]}")
                comparison.renew(self.reference, simple_candidate(self.reference, self._devices))
                restarted = True
            pair = (self.reference, _PLACEMENT)
            trials = comparison.trials(pair, 1, self._seconds, begin=len(rounds_run))
            rounds_run += [one for one in trials if len(one) == len(pair)]
            if rounds_run and max(self._ratios(rounds_run)) < worth * (1 - _HOPELESS / len(rounds_run)):
                break
        return replace(self._measurement(rounds_run), seconds=time.perf_counter() - begin)

    def _ratios(self, rounds: Sequence[choice.Round]) -> tuple[float, ...]:
        """The ratio of the placement to the reference in each of these rounds, which have trials of both."""
        return tuple(rates[_PLACEMENT] / rates[self.reference] for rates in map(choice.rates_of, rounds))

    def _measurement(self, rounds: Sequence[choice.Round]) -> Measurement:
        """Makes the measurement of the placement from its rounds with the reference; a failed one where it failed."""
        if _PLACEMENT in self._comparison.failed:
            return Measurement(0.0, error=self._comparison.failed[_PLACEMENT])
        ratios = self._ratios(rounds)
        ratio = statistics.median(ratios)
        # The placement's value follows from the ratio, as medians of the two rates may come from different rounds.
        rate = statistics.median(choice.rates_of(one)[self.reference] for one in rounds)
        values = in_unit(rate * ratio, self._objective), in_unit(rate, self._objective)
        rates = tuple(choice.rates_of(one)[_PLACEMENT] for one in rounds)
        return Measurement(ratio, *values, ratios, self._comparison.submodels[_PLACEMENT], rates=rates)
