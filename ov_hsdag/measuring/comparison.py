"""Candidates of one model, compiled in workers of their own and compared in interleaved trials.

A shared machine's speed changes by 20% and more from minute to minute. So nothing is ever timed for itself: candidates
run in trials of less than a second, interleaved, and what counts is the ratio of neighbouring trials.

As many are compiled at the same time as memory allows. Where that is not all, they run in batches: each batch also has
the best simple candidate of those before (the anchor), so that everything is compared with that one in the same rounds.
A candidate that fails while others are in memory is tried again alone before it counts as failed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import cache, partial
from typing import Any

from numpy.typing import NDArray

from ov_hsdag.devices import discovery, same_core
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring import choice
from ov_hsdag.measuring.agreement import disagreement, finite, tolerance
from ov_hsdag.measuring.evaluator import Measurement, in_unit
from ov_hsdag.measuring.other_programs import corrections
from ov_hsdag.measuring.process import PATIENCE, Candidate, StartWorker, Worker, WorkerError, WorkerTimeout, Workshop
from ov_hsdag.measuring.runner import TrialLoad
from ov_hsdag.measuring.together import Beside
from ov_hsdag.model.inputs import timed_inputs
from ov_hsdag.model.samples import Samples
from ov_hsdag.model.workload import Phase
from ov_hsdag.utils.failures import (
    NO_TIME_TO_COMPILE,
    NO_TIME_TO_MEASURE,
    NOT_MEASURED,
    Failure,
    FailureKind,
    out_of_time,
)
from ov_hsdag.utils.lazy import ov

ROUNDS, SECONDS = 12, 0.25
"""Of a comparison of all candidates: rounds, and seconds of a trial."""

# Seconds that compiling a candidate may take at least, however small the limit.
_LEAST_PATIENCE = 10.0

COMPILING = 0.6
"""Share of a time limit after which nothing more is compiled."""

# A candidate whose trials are long is compiled only where there is time for so many rounds of it.
_FEWEST_ROUNDS = 3

# A trial may take so many times what its first inferences let expect, and so many seconds more; a long one so often
# what its warm-up says; trials at the same time so many times what each is asked for.
_TRIAL_TIMES, _TRIAL_MORE, _SLOWER, _MOST_TOGETHER = 8, 10.0, 3, 4


class Comparison(AbstractContextManager["Comparison"]):
    """Candidates of one model, and trials of those that compile and compute the same as a single device.

    Ends with `close`, or at the end of a `with` block.
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
        shapes: Mapping[str, Sequence[int]] | None = None,
        phases: Sequence[Phase] = (),
        samples: Samples | None = None,
        limit: float = math.inf,
        report: Callable[[str], None] | None = None,
        start_worker: StartWorker | None = None,
        beside: Beside | None = None,
    ) -> None:
        """Compiles what there is room for of a normalized model, which is not changed.

        candidates: the simplest first. Outputs are compared with those of the first compiled single device. simple:
        names of those that need no placement. The best of them is what batches have in common. needs: bytes that
        candidates need on each device, as the simulator counts them, as far as known. first: names in the order in
        which they are compiled, where there may not be time or memory for all. phases: of a workload, in place of
        example shapes: rates are those of its inferences together. samples: inputs that are given instead of made-up
        ones. limit: seconds, a third of which one may compile, or
        run in a trial. beside: other models that run at the same time, as an application; rates are of its runs.

        Raises RunError: the model cannot be written, its inputs cannot be made up, or no process can be started.
        """
        self.failed: dict[str, Failure] = {}
        self.submodels: dict[str, int] = {}  # that HETERO made
        self.seconds: dict[str, float] = {}  # that compiling took
        self.phase_rates: dict[str, dict[str, list[float]]] = {}  # by phase: inferences per second in each trial
        # `Runner.busy_us` in each trial alone, as far as it is known
        self.busy_us: dict[str, list[list[float]]] = {}
        self._candidates, self._devices = dict(candidates), devices
        self._simple = [name for name in candidates if name in simple]
        together = len(beside.counts) if beside else 1  # models that compile one after the other
        self._usual = together * PATIENCE
        self._patience = self._usual if math.isinf(limit) else max(limit / 3, together * _LEAST_PATIENCE)
        self._applied = beside is not None
        begin = time.monotonic()
        self._end, self._compiling_ends = begin + limit, begin + COMPILING * limit
        self._report = report or (lambda text: None)
        self._accepted = max(tolerance(core, devices.names, one) for one in (model, *(beside.models if beside else ())))
        self._room = Room(core, needs or {})
        self._reference: tuple[str, list[NDArray[Any]]] | None = None
        self._workers: dict[str, Worker] = {}  # those in memory, the one that was used last at the end
        self._waiting: list[str] = []
        inputs = timed_inputs(model, shapes, phases, samples)
        like = same_core.describe(core, devices.names)
        self._workshop = Workshop(model, inputs, objective, start_worker, like, beside)
        try:
            order = [*(name for name in first if name in candidates), *(n for n in candidates if n not in first)]
            self._compile_what_fits(order)
        except BaseException:
            self.close()
            raise

    @property
    def names(self) -> list[str]:
        """Of all candidates, the simplest first."""
        return list(self._candidates)

    @property
    def ready(self) -> list[str]:
        """Names of those that have not failed, the simplest first."""
        return [name for name in self._candidates if name not in self.failed]

    def add(self, name: str, candidate: Candidate, needs: Mapping[str, int]) -> None:
        """Takes one candidate more, which is compiled when it is tried; needs: its bytes on each device."""
        self._candidates[name] = candidate
        self._room.add(name, needs)

    def renew(self, name: str, candidate: Candidate) -> None:
        """Takes a candidate in the place of what had its name, and compiles it at once, in the same worker if it can.

        It is not tried alone where it fails.
        """
        self._candidates[name] = candidate
        for of_before in (self.failed, self.phase_rates, self.busy_us):
            of_before.pop(name, None)
        self._room.most = math.inf  # what was too much may have been the one before
        try:
            self._check({name: self._compile(name, self._end)})
        except WorkerError as error:
            self._fail(name, error.failure)

    def busy_together(self, names: Collection[str], seconds: float) -> dict[str, list[float]]:
        """Processor time of candidates' submodels in an inference, µs, where the trials of all begin at the same time:
        they share the cores and whatever these are slowed down by. Empty where that takes too long, or one fails.

        names: of at least one, all in memory.
        """
        workers = {name: self._workers[name] for name in names}
        shortest = sum(one.shortest_trial for one in workers.values())
        if max(shortest, seconds) > min(_MOST_TOGETHER * seconds, (self._end - time.monotonic()) / 3):
            return {}
        self._report(self._told(f"measuring {len(workers)} candidates at the same time"))
        limit = min(_TRIAL_TIMES * (seconds + shortest) + _TRIAL_MORE, max(self._patience, _SLOWER * shortest))
        with ThreadPoolExecutor(len(workers)) as pool:
            trials = {name: pool.submit(one.rate, seconds, limit, False) for name, one in workers.items()}
        found = {}
        for name, trial in trials.items():
            try:
                trial.result()
                found[name] = workers[name].busy_us
            except WorkerError:  # alone, it may run
                self.evict(name)
        return found if len(found) == len(workers) else {}

    def compiled(self, names: Collection[str]) -> bool:
        """Whether all of these are in memory."""
        return all(name in self._workers and self._workers[name].compiled for name in names)

    def trials(
        self,
        names: Collection[str] | None = None,
        rounds: int = ROUNDS,
        seconds: float = SECONDS,
        until: float = math.inf,
        halving: bool = False,
        begin: int = 0,
    ) -> list[choice.Round]:
        """Interleaves trials of candidates, in batches where there is no room for all; the rates in each round.

        names: all that are ready by default. rounds: of each batch, at most, numbered from `begin` on, by which the
        order within a round changes. until: no round begins that would end after this time of `time.monotonic`, but the
        first. halving: those that are surely worse than the best take part no more and make room.
        """
        wanted = [name for name in self.ready if names is None or name in names]
        waiting = [name for name in self._waiting if name in wanted]
        batch = [name for name in wanted if name not in waiting]
        found = self._run_batch(batch, len(wanted), rounds, seconds, until, halving, begin) if batch else []
        while waiting:
            batch = self._next_batch(self._anchor(found), waiting)
            if batch and time.monotonic() < until:
                of = len(batch) + len(waiting)
                found += self._run_batch(batch, of, rounds, seconds, until, halving, begin)
            ran = {name for one in found for name in choice.rates_of(one)}
            for name in (*batch, *waiting) if time.monotonic() >= until else ():
                if name not in ran:
                    self._fail(name, NO_TIME_TO_MEASURE)
                    waiting = [other for other in waiting if other != name]
        return found

    def _anchor(self, rounds: Sequence[choice.Round]) -> str | None:
        """The best simple one of those that ran, else the best."""
        ran = {name for one in rounds for name in choice.rates_of(one) if name not in self.failed}
        known = ran.intersection(self._simple) or ran
        return choice.infer(rounds).best(known) if known else None

    def evict(self, name: str) -> None:
        """Ends the worker of a candidate, which is compiled again when it is tried."""
        worker = self._workers.pop(name, None)
        if worker is not None:
            worker.end()

    def close(self) -> None:
        """Ends the workers and removes what they shared."""
        self._workshop.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    # What is compiled.

    def _compile_what_fits(self, order: Sequence[str]) -> None:
        together = self._room.together(order)
        self._waiting = [name for name in order if name not in together]
        # All import OpenVINO at once; they compile one after the other, as each may use the whole machine.
        self._workers[together[0]] = self._workshop.start(together[0])
        with suppress(WorkerError):  # where there are too many processes, one is started again when it is compiled
            self._workers.update((name, self._workshop.start(name)) for name in together[1:])
        outputs: dict[str, list[NDArray[Any]]] = {}
        for name in together:
            if len(outputs) >= 2 and not self._has_time_for_one_more(outputs):
                self._fail(name, NO_TIME_TO_MEASURE)
                continue
            try:
                outputs[name] = self._compile(name, self._compiling_ends)
            except WorkerError as error:
                if outputs and not isinstance(error, WorkerTimeout):  # perhaps for lack of memory
                    self.evict(name)
                    self._waiting.append(name)
                else:
                    self._fail(name, error.failure)
        self._waiting.sort(key=order.index)
        self._check(outputs)

    def _has_time_for_one_more(self, compiled: Collection[str]) -> bool:
        """Whether some rounds with one candidate more end in time, and some of two after them."""
        trials = [max(self._workers[name].shortest_trial, SECONDS) for name in compiled]
        needed = max(self.seconds[name] for name in compiled) + _FEWEST_ROUNDS * (sum(trials) + 3 * max(trials))
        return max(trials) <= SECONDS or time.monotonic() + needed <= self._end

    def _compile(self, name: str, until: float) -> list[NDArray[Any]]:
        """Compiles a candidate in a worker of its own. Returns its outputs; raises WorkerError."""
        begin = time.monotonic()
        self._report(self._told(f"compiling {name}"))
        try:
            if begin >= until:
                raise WorkerTimeout(NO_TIME_TO_COMPILE, FailureKind.OUT_OF_TIME)
            if name not in self._workers:
                self._workers[name] = self._workshop.start(name)
            worker = self._workers[name]
            return worker.compile(self._candidates[name], min(self._patience, until - begin))
        except WorkerTimeout as error:
            # It was not given the time that a compilation may take, or it has been compiled and run before.
            if min(self._patience, until - begin) < self._usual or (name in self.phase_rates and until < math.inf):
                raise WorkerTimeout(NO_TIME_TO_COMPILE, FailureKind.OUT_OF_TIME) from error
            raise
        finally:
            if name in self._workers:
                self.submodels[name] = self._workers[name].submodels
            self.seconds[name] = time.monotonic() - begin

    def _check(self, outputs: Mapping[str, list[NDArray[Any]]]) -> None:
        """What computes something else has failed, however fast it is."""
        if self._reference is None:
            # What is no number in a single device's outputs may be so in the model; where another has numbers, it is
            # not.
            ran = [name for name in self._candidates if name in outputs]
            singles = [name for name in ran if self._candidates[name].device in self._devices.names] or ran[:1]
            if not singles:
                return
            reference = min(singles, key=lambda name: not finite(outputs[name]))
            self._reference = reference, outputs[reference]
        reference, expected = self._reference
        for name, arrays in outputs.items():
            told = disagreement(expected, arrays, self._accepted, reference)
            if told:
                self._fail(name, Failure(told, FailureKind.OTHER_OUTPUTS))

    def _admit(self, name: str) -> Worker:
        """A candidate's worker, in which it is compiled; others make room where necessary.

        Raises WorkerError where it fails without others in memory, or computes something else.
        """
        worker = self._workers.get(name)
        if worker is not None and worker.alive and worker.compiled:
            self._workers[name] = self._workers.pop(name)  # used last
            return worker
        self.evict(name)
        while self._workers and not self._room.fits(name, self._workers):
            self.evict(next(iter(self._workers)))
        others = list(self._workers)
        try:
            outputs = self._compile(name, self._end)
        except WorkerError as error:
            if not others or isinstance(error, WorkerTimeout):
                raise
            for other in (*others, name):
                self.evict(other)
            outputs = self._compile(name, self._end)
            self._room.most = len(others)  # that and this one were too many
        self._check({name: outputs})
        if name in self.failed:
            raise WorkerError(self.failed[name], self.failed[name].kind)
        return self._workers[name]

    def _fail(self, name: str, failure: Failure) -> None:
        if name not in self.phase_rates or not out_of_time(failure):  # else what it did before holds
            self.failed[name] = failure
        self.evict(name)

    # What is compared.

    def _run_batch(
        self, names: Sequence[str], of: int, rounds: int, seconds: float, until: float, halving: bool, first: int
    ) -> list[choice.Round]:
        begin = time.monotonic()
        until = begin + len(names) / of * (until - begin)  # the others have the rest
        alive, found = list(names), list[choice.Round]()
        for number in range(rounds):
            what = ", ".join(alive) if len(alive) < 3 else f"{len(alive)} candidates"  # what a line has room for
            now = time.monotonic()
            expected = (rounds - number) * (now - begin) / number if number else math.inf
            left = until - now if until < math.inf else expected
            self._report(self._told(f"measuring {what}, round {number + first + 1}", left))
            one = self._round(choice.in_order(alive, number + first), seconds)
            found.append(one)
            ran = {trial.name for trial in one}
            alive = [name for name in alive if name in ran]
            if halving and number and alive:
                lost = choice.beaten(choice.infer(found), alive)
                alive = [name for name in alive if name not in lost]
                for name in lost:
                    self.evict(name)
            took = (time.monotonic() - begin) / (number + 1)
            if not alive or (halving and len(alive) == 1) or time.monotonic() + took > until:
                break
        return [one for one in found if one]

    def _round(self, names: Sequence[str], seconds: float) -> list[choice.Trial]:
        """A trial of each of these that does not fail, in this order, without what other programs took."""
        rates: dict[str, float] = {}
        loads: dict[str, TrialLoad] = {}
        for name in names:
            try:
                rates[name] = self.rate(name, seconds)
            except WorkerError as error:
                self._fail(name, error.failure)
                continue
            if (load := self._workers[name].load) is not None:
                loads[name] = load
        correction = dict.fromkeys(rates, 0.0) | corrections(loads)
        for name in loads:
            for of_phase in self.phase_rates[name].values():
                of_phase[-1] *= math.exp(correction[name])
        return [choice.Trial(name, rate * math.exp(correction[name]), correction[name]) for name, rate in rates.items()]

    def _next_batch(self, anchor: str | None, waiting: list[str]) -> list[str]:
        """Compiles waiting candidates, one at least and as many as there is room for beside the anchor."""
        for name in list(self._workers):
            if name != anchor:
                self.evict(name)
        batch = [anchor] if anchor else []
        joined = 0
        while waiting and (not joined or self._room.fits(waiting[0], self._workers)):
            name = waiting.pop(0)
            self._waiting.remove(name)
            if time.monotonic() >= self._end:
                self._fail(name, NO_TIME_TO_MEASURE)
                continue
            try:
                self._admit(name)
            except WorkerError as error:
                self._fail(name, error.failure)
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
        """Inferences per second of a candidate in a trial of about so many seconds, beside other programs as they are.

        Raises WorkerError. No long trial begins after the time limit, and of an application, with its whole workloads,
        none ends after it.
        """
        worker = self._admit(name)
        if worker.shortest_trial > SECONDS and time.monotonic() + self._applied * worker.shortest_trial >= self._end:
            raise WorkerTimeout(NO_TIME_TO_MEASURE, FailureKind.OUT_OF_TIME)
        others = [other for other in self._workers if other != name]
        try:
            return self._trial(worker, name, seconds)
        except WorkerError as error:
            # Where memory runs out, Linux kills one of the workers, and not always the one that asked for more.
            if error.failure.kind is not FailureKind.KILLED or not others:
                raise
            for other in (*others, name):
                self.evict(other)
            rate = self._trial(self._admit(name), name, seconds)
            self._room.most = len(others)
            return rate

    def _trial(self, worker: Worker, name: str, seconds: float) -> float:
        patience = max(self._patience, _SLOWER * worker.shortest_trial)
        expected = max(seconds, worker.shortest_trial) + self.seconds[name]
        rate = worker.rate(seconds, min(_TRIAL_TIMES * expected + _TRIAL_MORE, patience))
        known = self.phase_rates.setdefault(name, {})
        for phase, of_phase in worker.rates.items():
            known.setdefault(phase, []).append(of_phase)
        if len(worker.busy_us) == worker.submodels:
            self.busy_us.setdefault(name, []).append(worker.busy_us)
        return rate

    def _told(self, text: str, left: float = math.inf) -> str:
        """The text with the seconds that are left: to the time limit, or less where `left` is."""
        left = max(min(self._end - time.monotonic(), left), 0.0)
        return text if math.isinf(left) else f"{text} ({left:.0f} s left)"


def measurements(
    names: Collection[str],
    comparison: Comparison,
    rounds: Sequence[choice.Round],
    objective: str,
    reference: str | None = None,
) -> dict[str, Measurement]:
    """What trials gave for each of the names, whatever was predicted.

    reference: what ratios are to; by default the first that ran. `comparison` knows why candidates failed.
    """
    posterior = choice.infer(rounds)
    reference = reference or next((name for name in names if name in posterior.names), "")
    found: dict[str, Measurement] = {}
    for name in names:
        submodels, took = comparison.submodels.get(name, 0), comparison.seconds.get(name, 0.0)
        if name in comparison.failed or name not in posterior.names:
            why = comparison.failed.get(name, NOT_MEASURED)
            found[name] = Measurement(0.0, submodels=submodels, seconds=took, error=why)
            continue
        ratio = posterior.ratio(name, reference)
        value, unit = (in_unit(posterior.rate(one), objective) for one in (name, reference))
        own = tuple(trial[1] for one in rounds for trial in one if trial[0] == name)
        bounds = ratio.low, ratio.high
        found[name] = Measurement(ratio.median, value, unit, (), submodels, took, rates=own, bounds=bounds)
    return found


HOST = "CPU"
"""Name of the memory that CPU devices and integrated ones share, and in which every worker runs."""

# Of what is free, so much is used: estimates are rough, and the machine is somebody's.
_SHARE = 0.9

# The simulator counts weights and live tensors once. Plugins keep copies in layouts of their own, and tensors for each
# request in flight; compiling needs more than running.
_TIMES = 1.5

# A process with OpenVINO and a model in it.
_PROCESS = 256 * 2**20


class Room:
    """Memory of the devices, as far as it is known."""

    def __init__(self, core: ov.Core, needs: Mapping[str, Mapping[str, int]]) -> None:
        """Looks at nothing yet.

        core: has the devices. needs: bytes of each candidate on each device, as the simulator counts them.
        """
        self._core, self._needs = core, dict(needs)
        self.most: float = math.inf  # candidates in memory at the same time, learned from failures
        self._memory_of = cache(partial(discovery.memory_of, core))

    def add(self, name: str, needs: Mapping[str, int]) -> None:
        """One candidate more; needs: its bytes on each device."""
        self._needs[name] = needs

    def together(self, names: Sequence[str]) -> list[str]:
        """Those that fit into the memory that is free now, in this order; the first one always does."""
        chosen: list[str] = []
        total = dict.fromkeys(self._memories(names), 0.0)
        for name in names:
            grown = {memory: used + self._need(name, memory) for memory, used in total.items()}
            if chosen and not all(used <= _SHARE * self._free(memory) for memory, used in grown.items()):
                continue
            chosen.append(name)
            total = grown
        return chosen

    def fits(self, name: str, resident: Collection[str]) -> bool:
        """Whether one more fits beside those that are compiled."""
        if len(resident) + 1 > self.most:
            return False
        for memory in self._memories([name]):
            need = self._need(name, memory)
            # What is free of the host's memory is without the residents; other devices do not say what is used.
            used = 0.0 if memory == HOST else sum(self._need(other, memory) for other in resident)
            if used + need > _SHARE * self._free(memory):
                return False
        return True

    def _memories(self, names: Collection[str]) -> list[str]:
        used = (device for name in names for device, count in self._needs.get(name, {}).items() if count)
        return [*dict.fromkeys([HOST, *map(self._memory_of, used)])]

    def _need(self, name: str, memory: str) -> float:
        own = self._needs.get(name, {})
        if memory != HOST:
            return _TIMES * own.get(memory, 0)
        return _PROCESS + _TIMES * sum(count for device, count in own.items() if self._memory_of(device) == HOST)

    def _free(self, memory: str) -> float:
        free = discovery.free_bytes(self._core, memory)
        return math.inf if free is None else free
