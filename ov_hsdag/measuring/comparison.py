"""Candidates of one model, compiled in workers of their own and compared in interleaved trials.

As many are compiled at the same time as memory allows. Where that is not all, they run in batches: each batch also has
the best simple candidate of those before (the anchor), so that everything is compared with that one in the same rounds;
losers make room. A candidate that fails while others are in memory is tried again alone before it counts as failed.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from ov_hsdag.devices import extensions
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring import choice
from ov_hsdag.measuring.admission import Room
from ov_hsdag.measuring.agreement import disagreement, finite, tolerance
from ov_hsdag.measuring.evaluator import Measurement, in_unit
from ov_hsdag.measuring.interleaving import ROUNDS, SECONDS, race
from ov_hsdag.measuring.process import (
    PATIENCE,
    Candidate,
    StartWorker,
    TimedWorker,
    Worker,
    WorkerError,
    WorkerTimeout,
    Workshop,
)
from ov_hsdag.model.inputs import timed_inputs
from ov_hsdag.model.workload import Phase
from ov_hsdag.utils.errors import RunError

if TYPE_CHECKING:
    import openvino as ov

Rates = dict[str, Sequence[float]]
"""Of each candidate in each round that it ran in, inferences per second."""

COMPILING = 0.6
"""Share of a time limit after which nothing more is compiled."""

# A candidate whose trials are long is compiled only where there is time for so many rounds of it.
_FEWEST_ROUNDS = 3

_NO_TIME = "there was no time left to measure it"
_NO_TIME_TO_COMPILE = "there was no time left to compile it"


def out_of_time(failed: str) -> bool:
    """Whether the reason why a candidate gave no figure is the time limit, and not the candidate."""
    return "there was no time left" in failed


# Candidates that a line of progress has room to name.
_NAMED = 2


class Comparison:
    """Candidates of one model, and races of those that compile and compute the same as a single device.

    Ends with `close`, or at the end of a `with` block.

    Attributes:
        failed: why candidates failed.
        submodels: that HETERO made of each.
        seconds: that compiling each took.
        phase_rates: of each candidate, by phase: inferences per second in each trial.
    """

    def __init__(
        self,
        model: ov.Model,
        devices: DeviceSet,
        candidates: Mapping[str, Candidate],
        objective: str,
        core: ov.Core,
        *,
        simple: Collection[str] = (),
        needs: Mapping[str, Mapping[str, int]] | None = None,
        first: Sequence[str] = (),
        later: Collection[str] = (),
        shapes: Mapping[str, Sequence[int]] | None = None,
        phases: Sequence[Phase] = (),
        patience: float = PATIENCE,
        limit: float = math.inf,
        report: Callable[[str], None] | None = None,
        start_worker: StartWorker | None = None,
    ) -> None:
        """Compiles what there is room for.

        Args:
            model: normalized; not changed.
            devices: of HETERO.
            candidates: the simplest first. Outputs are compared with those of the first compiled one that is a single
                device, or of the first where none is.
            objective: "latency" of one request, or "throughput" with several in flight.
            core: has the devices; only asked for their precision and memory.
            simple: names of those that need no placement. The best of them is what batches have in common.
            needs: bytes that each candidate needs on each device, as the simulator counts them; of those that are not
                named nothing is known.
            first: names in the order in which they are compiled, where there may not be time or memory for all; those
                that are not named come last.
            later: names that are compiled when they are asked for, see `join`.
            shapes: example shapes of dynamic inputs.
            phases: of a workload, in place of example shapes: rates are those of its inferences together.
            patience: seconds that compiling one, or a trial, may take.
            limit: seconds for everything.
            report: takes a line for people at each step.
            start_worker: starts a worker; `Worker` by default.

        Raises:
            RunError: the model cannot be written, its inputs cannot be made up, or no process can be started.
        """
        self.failed: dict[str, str] = {}
        self.submodels: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self.phase_rates: dict[str, dict[str, list[float]]] = {}
        self._candidates, self._devices = candidates, devices
        self._simple = [name for name in candidates if name in simple]
        self._patience = patience
        begin = time.monotonic()
        self._end, self._compiling_ends = begin + limit, begin + COMPILING * limit
        self._report = report or (lambda text: None)
        self._accepted = tolerance(core, devices.names, model)
        self._room = Room(core, needs or {})
        self._reference: tuple[str, list[NDArray[Any]]] | None = None
        self._workers: dict[str, Worker] = {}  # those in memory, the one that was used last at the end
        self._waiting: list[str] = []
        inputs = timed_inputs(model, shapes, phases)
        self._workshop = Workshop(model, inputs, objective, start_worker, extensions.of(core))
        try:
            order = [*(name for name in first if name in candidates), *(n for n in candidates if n not in first)]
            self._later = {name for name in order if name in later}
            self._compile_what_fits([name for name in order if name not in self._later])
        except BaseException:
            self.close()
            raise

    @property
    def ready(self) -> list[str]:
        """Names of those that have not failed, the simplest first; without those that are for later."""
        return [name for name in self._candidates if name not in self.failed and name not in self._later]

    def join(self, name: str, beside: str, until: float) -> bool:
        """Compiles one of those that are for later, if it can stay in memory together with another.

        Args:
            name: of the candidate.
            beside: of the other, which is ready.
            until: no longer than to this time of `time.monotonic`.

        Returns:
            Whether it is ready; `failed` tells why not.
        """
        if name in self.failed:
            return False
        try:
            if time.monotonic() >= until:
                raise WorkerTimeout(_NO_TIME)
            for other in list(self._workers):
                if other != beside:
                    self._evict(other)
            self._admit(beside)
            if not self._room.fits(name, self._workers):
                raise WorkerError(f"there was no memory for it beside {beside}")
            self._later.discard(name)
            self._admit(name)
        except WorkerError as error:
            self.give_up(name, str(error))
        return name not in self.failed

    def give_up(self, name: str, why: str) -> None:
        """Counts a candidate as failed."""
        self._later.discard(name)
        self._fail(name, why)

    def race(
        self,
        names: Collection[str] | None = None,
        rounds: int = ROUNDS,
        seconds: float = SECONDS,
        until: float = math.inf,
        halving: bool = True,
    ) -> Rates:
        """Compares candidates, in batches where there is no room for all.

        Args:
            names: of candidates; all that are ready by default.
            rounds, seconds, until, halving: see `ov_hsdag.measuring.interleaving.race`; of each batch.

        Returns:
            Rates of those that did not fail. Where there were batches, they are as if the best simple candidate had
            been equally fast in all of them.
        """
        wanted = [name for name in self.ready if names is None or name in names]
        waiting = [name for name in wanted if name in self._waiting]
        batch = [name for name in wanted if name not in waiting]
        ends = _part_of_time(until, len(batch), len(wanted))
        rates = self._run_batch(batch, rounds, seconds, ends, halving) if batch else {}
        if not waiting:
            return rates
        batches = _Batches(rates, self._simple)
        while waiting:
            batch = self._next_batch(batches.anchor, waiting)
            if batch and time.monotonic() < until:
                ends = _part_of_time(until, len(batch), len(batch) + len(waiting))
                batches.add(self._run_batch(batch, rounds, seconds, ends, halving))
            for name in (*batch, *waiting) if time.monotonic() >= until else ():
                if name not in batches.names:
                    self._fail(name, _NO_TIME)
                    waiting = [other for other in waiting if other != name]
        return batches.rates([name for name in wanted if name not in self.failed])

    def close(self) -> None:
        """Ends the workers and removes what they shared."""
        self._workshop.close()

    def __enter__(self) -> Comparison:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What is compiled.

    def _compile_what_fits(self, order: Sequence[str]) -> None:
        together = self._room.together(order)
        self._waiting = [name for name in self._candidates if name not in together and name not in self._later]
        # All import OpenVINO at once; they compile one after the other, as each may use the whole machine.
        for name in together:
            self._workers[name] = self._workshop.start(name)
        outputs: dict[str, list[NDArray[Any]]] = {}
        for name in together:
            if len(outputs) >= 2 and not self._has_time_for_one_more(outputs):
                self._fail(name, _NO_TIME)
                continue
            try:
                outputs[name] = self._compile(name, self._compiling_ends)
            except WorkerTimeout as error:
                self._fail(name, str(error))
            except WorkerError as error:
                if outputs:  # perhaps for lack of memory
                    self._evict(name)
                    self._waiting.append(name)
                else:
                    self._fail(name, str(error))
        self._check(outputs)

    def _has_time_for_one_more(self, compiled: Collection[str]) -> bool:
        """Whether rounds with one candidate more end in time, and a head-to-head after them."""
        trials = [max(self._workers[name].shortest_trial, SECONDS) for name in compiled]
        longest = max(trials)
        if longest <= SECONDS:
            return True
        needed = max(self.seconds[name] for name in compiled) + _FEWEST_ROUNDS * (sum(trials) + longest + 2 * longest)
        return time.monotonic() + needed <= self._end

    def _compile(self, name: str, until: float) -> list[NDArray[Any]]:
        """Compiles a candidate in a worker of its own. Returns its outputs; raises WorkerError."""
        begin = time.monotonic()
        self._report(self._told(f"compiling {name}"))
        try:
            if begin >= until:
                raise WorkerTimeout(_NO_TIME_TO_COMPILE)
            if name not in self._workers:
                self._workers[name] = self._start(name)
            worker = self._workers[name]
            return worker.compile(self._candidates[name], min(self._patience, until - begin))
        except WorkerTimeout as error:
            if until - begin < self._patience:  # it was not given the time that a compilation may take
                raise WorkerTimeout(_NO_TIME_TO_COMPILE) from error
            raise
        finally:
            if name in self._workers:
                self.submodels[name] = self._workers[name].submodels
            self.seconds[name] = time.monotonic() - begin

    def _start(self, name: str) -> Worker:
        try:
            return self._workshop.start(name)
        except RunError as error:
            raise WorkerError(str(error)) from error

    def _check(self, outputs: Mapping[str, list[NDArray[Any]]]) -> None:
        """What computes something else has failed, however fast it is."""
        if self._reference is None:
            # What is no number in a single device's outputs may be so in the model; where another has numbers, it is
            # not.
            singles = [name for name in self._candidates if name in outputs and self._is_single(name)]
            singles = singles or [name for name in self._candidates if name in outputs][:1]
            if not singles:
                return
            reference = min(singles, key=lambda name: not finite(outputs[name]))
            self._reference = reference, outputs[reference]
        reference, expected = self._reference
        for name, arrays in outputs.items():
            told = disagreement(expected, arrays, self._accepted, reference)
            if told:
                self._fail(name, told)

    def _is_single(self, name: str) -> bool:
        return self._candidates[name].device in self._devices.names

    def _admit(self, name: str) -> Worker:
        """A candidate's worker, in which it is compiled; others make room where necessary.

        Raises WorkerError where it fails without others in memory, or computes something else.
        """
        worker = self._workers.get(name)
        if worker is not None and worker.alive and worker.compiled:
            self._workers[name] = self._workers.pop(name)  # used last
            return worker
        self._evict(name)
        while self._workers and not self._room.fits(name, self._workers):
            self._evict(next(iter(self._workers)))
        others = list(self._workers)
        try:
            outputs = self._compile(name, self._end)
        except WorkerTimeout:
            raise
        except WorkerError:
            if not others:
                raise
            for other in (*others, name):
                self._evict(other)
            outputs = self._compile(name, self._end)
            self._room.most = len(others)  # that and this one were too many
        self._check({name: outputs})
        if name in self.failed:
            raise WorkerError(self.failed[name])
        return self._workers[name]

    def _evict(self, name: str) -> None:
        worker = self._workers.pop(name, None)
        if worker is not None:
            worker.end()

    def _fail(self, name: str, why: str) -> None:
        self.failed[name] = why
        self._evict(name)

    # What is compared.

    def _run_batch(self, names: Sequence[str], rounds: int, seconds: float, until: float, halving: bool) -> Rates:
        begin = time.monotonic()

        def begins(number: int, count: int) -> None:
            what = ", ".join(names) if len(names) <= _NAMED else f"{count} of {len(names)} candidates"
            took = time.monotonic() - begin
            left = (rounds - number) * took / number if number else math.inf
            self._report(self._told(f"measuring {what}, round {number + 1} of {rounds} at most", left))

        runners = {name: _Admitted(self, name) for name in names}
        result = race(runners, rounds, seconds, until, halving, self._leave, begins)
        for name, why in result.failed.items():
            self._fail(name, why)
        return {name: rates for name, rates in result.rates.items() if name not in self.failed}

    def _leave(self, name: str, rates: Mapping[str, Sequence[float]]) -> None:
        """Frees what a loser holds; the best simple one comes back in later batches and the head-to-head."""
        known = {other: rates[other] for other in self._simple if rates.get(other)}
        if not known or name != choice.best(known):
            self._evict(name)

    def _next_batch(self, anchor: str | None, waiting: list[str]) -> list[str]:
        """Compiles waiting candidates, one at least and as many as there is room for beside the anchor."""
        for name in list(self._workers):
            if name != anchor:
                self._evict(name)
        batch = [anchor] if anchor else []
        joined = 0
        while waiting and (not joined or self._room.fits(waiting[0], self._workers)):
            name = waiting.pop(0)
            self._waiting.remove(name)
            if time.monotonic() >= self._end:
                self._fail(name, _NO_TIME)
                continue
            try:
                self._admit(name)
            except WorkerError as error:
                self._fail(name, str(error))
            else:
                if joined and any(other not in self._workers for other in batch):
                    # It fits alone only, and has turned out the others: the next batch is its.
                    waiting.insert(0, name)
                    self._waiting.append(name)
                    break
                batch.append(name)
                joined += 1
        return batch if joined else []

    def rate(self, name: str, seconds: float) -> float:
        """Inferences per second of a candidate in a trial of about so many seconds. Raises WorkerError.

        No long trial begins after the time limit.
        """
        worker = self._admit(name)
        if worker.shortest_trial > SECONDS and time.monotonic() >= self._end:
            raise WorkerTimeout(_NO_TIME)
        others = [other for other in self._workers if other != name]
        try:
            return self._trial(worker, name, seconds)
        except WorkerError as error:
            # Where memory runs out, Linux kills one of the workers, and not always the one that asked for more.
            if "SIGKILL" not in str(error) or not others:
                raise
            for other in (*others, name):
                self._evict(other)
            rate = self._trial(self._admit(name), name, seconds)
            self._room.most = len(others)
            return rate

    def _trial(self, worker: Worker, name: str, seconds: float) -> float:
        rate = TimedWorker(worker, self.seconds[name], self._patience).rate(seconds)
        known = self.phase_rates.setdefault(name, {})
        for phase, of_phase in worker.rates.items():
            known.setdefault(phase, []).append(of_phase)
        return rate

    def phase_us(self, name: str) -> dict[str, float]:
        """Measured µs of one inference of each phase of a candidate, the median of its trials.

        With several requests in flight, the time between two results.
        """
        return {phase: 1e6 / statistics.median(rates) for phase, rates in self.phase_rates.get(name, {}).items()}

    def _told(self, text: str, left: float = math.inf) -> str:
        """The text with the seconds that are left: to the time limit, or less where `left` is."""
        left = min(max(self._end - time.monotonic(), 0.0), left)
        return text if math.isinf(left) else f"{text} ({left:.0f} s left)"


def _part_of_time(until: float, part: int, whole: int) -> float:
    """The time until which a part of what is left may last."""
    now = time.monotonic()
    return until if part == whole else now + part / whole * (until - now)


@dataclass(frozen=True)
class _Admitted:
    """A candidate as a `Runner`, which is compiled again where it had to make room."""

    comparison: Comparison
    name: str

    def rate(self, seconds: float) -> float:
        return self.comparison.rate(self.name, seconds)


class _Batches:
    """Rates of several batches, each with the anchor in it: the best simple candidate of those before.

    Attributes:
        anchor: what later heats are compared with; None where nothing ran yet.
    """

    def __init__(self, rates: Rates, simple: Sequence[str]) -> None:
        """From the rates of the first batch."""
        self._simple = simple
        self._to_anchor: dict[str, list[float]] = {}
        self._unit = 1.0
        self.anchor: str | None = None
        self.add(rates)

    @property
    def names(self) -> Collection[str]:
        """Of those that ran in one of them."""
        return self._to_anchor.keys()

    def add(self, rates: Rates) -> None:
        """Adds a batch."""
        rates = {name: own for name, own in rates.items() if own}
        if not rates:
            return
        common = self.anchor if self.anchor in rates else next(iter(rates))
        base = rates[common]
        if common != self.anchor:
            # The first batch, or the anchor has failed: then what it was compared with is known as measured.
            unit = self._unit / statistics.median(base)
            self._to_anchor = {name: [one * unit for one in own] for name, own in self._to_anchor.items()}
        for name, own in rates.items():
            ratios = [a / b for a, b in zip(own, base, strict=False)]
            self._to_anchor[name] = [*self._to_anchor.get(name, ()), *ratios]
        self._unit = statistics.median(base)
        known = {name: rates[name] for name in self._simple if name in rates}
        best = choice.best(known) if known else common
        if best != common:
            ratio = statistics.median(a / b for a, b in zip(rates[best], base, strict=False))
            self._to_anchor = {name: [one / ratio for one in own] for name, own in self._to_anchor.items()}
            self._unit *= ratio
        self.anchor = best

    def rates(self, names: Sequence[str]) -> Rates:
        """As if the anchor had been equally fast in all batches."""
        return {name: [one * self._unit for one in self._to_anchor[name]] for name in names if name in self._to_anchor}


def measurements(
    names: Collection[str],
    comparison: Comparison,
    rates: Mapping[str, Sequence[float]],
    objective: str,
    reference: str | None = None,
) -> dict[str, Measurement]:
    """What a race gave.

    Args:
        names: of candidates.
        comparison: tells why candidates failed, and what compiling gave.
        rates: of the race.
        objective: of the comparison.
        reference: what ratios are to; by default the first that ran.

    Returns:
        A measurement of each name.
    """
    if reference is None:
        reference = next(iter(rates), "")
    unit = rates.get(reference, ())
    found: dict[str, Measurement] = {}
    for name in names:
        submodels, took = comparison.submodels.get(name, 0), comparison.seconds.get(name, 0.0)
        if name not in rates:
            why = comparison.failed.get(name, "it was not measured")
            found[name] = Measurement(0.0, submodels=submodels, seconds=took, error=why)
            continue
        own = tuple(rates[name])
        ratios = tuple(a / b for a, b in zip(own, unit, strict=False))
        others = statistics.median(unit[: len(own)])
        values = in_unit(statistics.median(own), objective), in_unit(others, objective)
        found[name] = Measurement(choice.median_ratio(ratios), *values, ratios, submodels, took, rates=own)
    return found
