"""Compares candidates of one model, each compiled in a worker process of its own, in interleaved trials.

A shared machine's speed changes by 20% and more from minute to minute, so a time alone means little. Candidates run in
interleaved trials of less than a second, and only ratios of neighbouring trials count.

As many candidates are compiled at the same time as memory allows. Where that is not all, they run in batches. Each
batch also has the best baseline of the batches before (the anchor), so that all are compared with it in common rounds.
A candidate that fails while others are in memory is compiled again alone before it counts as failed. "In memory" means
that a worker holds the compiled candidate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import cache, partial
from typing import Any, NoReturn

from numpy.typing import NDArray

from ov_hsdag.devices import discovery, same_core
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring import choice
from ov_hsdag.measuring.agreement import disagreement, finite, tolerance
from ov_hsdag.measuring.co_running import CoRunningModels
from ov_hsdag.measuring.evaluator import Measurement, in_unit
from ov_hsdag.measuring.other_programs import corrections
from ov_hsdag.measuring.process import PATIENCE, Candidate, StartWorker, Worker, WorkerError, WorkerPool, WorkerTimeout
from ov_hsdag.measuring.runner import TrialLoad
from ov_hsdag.model.inputs import timed_inputs
from ov_hsdag.model.samples import Samples
from ov_hsdag.model.workload import Phase
from ov_hsdag.utils.errors import RunError
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
"""Default number of rounds of a comparison, and seconds of a trial: short, so that neighbours share the same speed."""

# Time, seconds, that compiling a candidate may take even where the time limit is smaller.
_LEAST_PATIENCE = 10.0

COMPILING = 0.6
"""Share of the time limit after which no further candidate is compiled; the rest is for trials."""

# Rounds for which there must be time before a candidate is compiled, where trials are long.
_FEWEST_ROUNDS = 3

# Time limits after which a trial counts as hanging. A trial may take 8 times the time that its warm-up suggests and
# 10 s more, and a long trial at least 3 times the time of its warm-up. Simultaneous trials are not begun where the
# shortest possible ones take more than 4 times the requested time.
_TRIAL_TIMES, _TRIAL_MORE, _SLOWER, _MOST_TOGETHER = 8, 10.0, 3, 4


class Comparison(AbstractContextManager["Comparison"]):
    """Compiles candidates of one model, and makes trials of those that compute the same as a single device.

    A candidate that is not in memory and has not failed is compiled for its next trial. The workers end with `close`,
    or at the end of a `with` block.

    Attributes:
        failed: reason of each candidate that has failed, by name.
        submodels: number of submodels that HETERO made, by candidate.
        seconds: time that compiling took, seconds, by candidate.
        phase_rates: inferences per second in each trial, by candidate and phase.
        busy_us: processor time of each submodel in an inference, µs, in each trial that ran alone, by candidate; see
            `Runner.busy_us`. Trials without that figure are left out.
    """

    def __init__(  # noqa: PLR0913 settings, all by keyword
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
        co_running: CoRunningModels | None = None,
    ) -> None:
        """Compiles as many of the candidates as memory and time allow.

        Args:
            model: the normalized model; it is not changed.
            devices: the devices, in HETERO's order.
            candidates: the candidates by name, the simplest first. Outputs are compared with those of the first single
                device that compiles.
            objective: "latency" or "throughput".
            core: Core of the devices, which tells precisions and free memory.
            simple: names of the baselines, candidates that need no placement; the best of them is in all batches.
            needs: bytes that candidates need on each device, by candidate, as far as the simulator knows them.
            first: names in the order of compiling, for the case that time or memory do not suffice for all.
            shapes: example shapes of dynamic inputs, by input name.
            phases: phases of a workload, which replace example shapes; rates are those of all its inferences together.
            samples: inputs that the user gave; by default inputs are made up.
            limit: time limit, seconds; compiling a candidate, or a trial, may take a third of it.
            report: called with a few words at each step.
            start_worker: starts a worker process; by default a local one.
            co_running: models that run in the same trials; rates are then those of their common runner.

        Raises:
            RunError: the model cannot be written, its inputs cannot be made up, or no process can be started.
        """
        self.failed: dict[str, Failure] = {}
        self.submodels: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self.phase_rates: dict[str, dict[str, list[float]]] = {}
        self.busy_us: dict[str, list[list[float]]] = {}
        self._candidates, self._devices = dict(candidates), devices
        self._simple = [name for name in candidates if name in simple]
        models = [model, *(co_running.models if co_running else ())]  # they compile one after the other
        self._usual_patience = len(models) * PATIENCE
        self._patience = self._usual_patience if math.isinf(limit) else max(limit / 3, len(models) * _LEAST_PATIENCE)
        self._trials_are_whole = co_running is not None
        begin = time.monotonic()
        self._end, self._compiling_ends = begin + limit, begin + COMPILING * limit
        self._report = report or (lambda text: None)
        self._tolerance = max(tolerance(core, devices.names, one) for one in models)
        self._memory_budget = MemoryBudget(core, needs or {})
        self._reference: tuple[str, list[NDArray[Any]]] | None = None
        self._workers: dict[str, Worker] = {}  # workers in memory by candidate, the most recently used one last
        self._waiting: list[str] = []
        inputs = timed_inputs(model, shapes, phases, samples)
        like = same_core.describe(core, devices.names)
        self._pool = WorkerPool(model, inputs, objective, start_worker, like, co_running)
        try:
            order = [*(name for name in first if name in candidates), *(n for n in candidates if n not in first)]
            self._compile_what_fits(order)
        except BaseException:
            self.close()
            raise

    @property
    def names(self) -> list[str]:
        """Names of all candidates, the simplest first."""
        return list(self._candidates)

    @property
    def ready(self) -> list[str]:
        """Names of the candidates that have not failed, compiled or not, the simplest first."""
        return [name for name in self._candidates if name not in self.failed]

    def raise_failures(self) -> NoReturn:
        """Raises RunError with the reasons of all failures, as no candidate ran; without any, the time is too short."""
        raise RunError("; ".join(sorted(set(self.failed.values()))) or "the time is too short")

    def add(self, name: str, candidate: Candidate, needs: Mapping[str, int]) -> None:
        """Adds a candidate, which is compiled before its first trial.

        Args:
            name: its name.
            candidate: the candidate.
            needs: bytes that it needs on each device, as the simulator counts them.
        """
        self._candidates[name] = candidate
        self._memory_budget.add(name, needs)

    def renew(self, name: str, candidate: Candidate) -> None:
        """Replaces the candidate of a name, and compiles the new one at once, in the same worker if possible.

        The records of the old candidate are removed. If the new one fails, it is not compiled again alone: the reason
        is in `failed`.

        Args:
            name: the name.
            candidate: the new candidate.
        """
        self._candidates[name] = candidate
        for of_before in (self.failed, self.phase_rates, self.busy_us):
            of_before.pop(name, None)
        self._memory_budget.most = math.inf  # the candidate that was too much may have been the replaced one
        try:
            self._check({name: self._compile(name, self._end)})
        except WorkerError as error:
            self._fail(name, error.failure)

    def busy_together(self, names: Collection[str], seconds: float) -> dict[str, list[float]]:
        """Runs trials of several candidates at the same time, so that they share the cores and their changes of speed.

        Args:
            names: names of candidates in memory, at least one.
            seconds: time of a trial, seconds.

        Returns:
            Processor time of each submodel in an inference, µs, by candidate; empty where the trials would take too
            long, or one of them failed. A candidate whose trial failed leaves memory but does not count as failed.
        """
        workers = {name: self._workers[name] for name in names}
        shortest = sum(one.shortest_trial for one in workers.values())
        if max(shortest, seconds) > min(_MOST_TOGETHER * seconds, (self._end - time.monotonic()) / 3):
            return {}
        self._report(self._with_time_left(f"measuring {len(workers)} candidates at the same time"))
        limit = min(_TRIAL_TIMES * (seconds + shortest) + _TRIAL_MORE, max(self._patience, _SLOWER * shortest))
        with ThreadPoolExecutor(len(workers)) as pool:
            trials = {name: pool.submit(one.rate, seconds, limit, False) for name, one in workers.items()}
        busy_us = {}
        for name, trial in trials.items():
            try:
                trial.result()
                busy_us[name] = workers[name].busy_us
            except WorkerError:  # it may still run alone, so it has not failed
                self.evict(name)
        return busy_us if len(busy_us) == len(workers) else {}

    def compiled(self, names: Collection[str]) -> bool:
        """Whether all of these candidates are compiled and in memory."""
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
        """Runs interleaved trials of candidates, in batches where memory does not hold all.

        Args:
            names: names of the candidates; by default all that have not failed.
            rounds: largest number of rounds of each batch.
            seconds: time of a trial, seconds.
            until: time of `time.monotonic` by which rounds have to end, seconds; the first round runs in any case.
            halving: whether candidates that are surely worse than the best drop out and leave memory.
            begin: number of the first round; the order within a round depends on its number.

        Returns:
            The trials of each round that has any. Candidates whose trials fail are recorded in `failed`; so are those
            of later batches for which there was no time.
        """
        candidates = [name for name in self.ready if names is None or name in names]
        waiting = [name for name in self._waiting if name in candidates]
        batch = [name for name in candidates if name not in waiting]
        rounds_run = self._run_batch(batch, len(candidates), rounds, seconds, until, halving, begin) if batch else []
        while waiting:
            batch = self._next_batch(self._anchor(rounds_run), waiting)
            if batch and time.monotonic() < until:
                sharing = len(batch) + len(waiting)
                rounds_run += self._run_batch(batch, sharing, rounds, seconds, until, halving, begin)
            ran = {name for one in rounds_run for name in choice.rates_of(one)}
            for name in (*batch, *waiting) if time.monotonic() >= until else ():
                if name not in ran:
                    self._fail(name, NO_TIME_TO_MEASURE)
                    waiting = [other for other in waiting if other != name]
        return rounds_run

    def _anchor(self, rounds: Sequence[choice.Round]) -> str | None:
        """Name of the anchor: the best baseline that ran, else the best candidate that ran; None where none did.

        Candidates that have failed since do not count.
        """
        ran = {name for one in rounds for name in choice.rates_of(one) if name not in self.failed}
        known = ran.intersection(self._simple) or ran
        return choice.infer(rounds).best(known) if known else None

    def evict(self, name: str) -> None:
        """Ends the worker of a candidate, so that it leaves memory; its next trial compiles it again."""
        worker = self._workers.pop(name, None)
        if worker is not None:
            worker.end()

    def close(self) -> None:
        """Ends the workers and removes their folder."""
        self._pool.close()

    def __exit__(self, *_: object) -> None:
        """Ends the workers."""
        self.close()

    # Compiling.

    def _compile_what_fits(self, order: Sequence[str]) -> None:
        """Compiles the candidates that fit into memory together, and compares their outputs; the others wait.

        Args:
            order: names of all candidates, in the order in which they are compiled.
        """
        together = self._memory_budget.together(order)
        self._waiting = [name for name in order if name not in together]
        # All workers import OpenVINO at once. They compile one after the other, as each may use the whole machine.
        self._workers[together[0]] = self._pool.start(together[0])
        with suppress(WorkerError):  # a worker that cannot start for too many processes starts before it compiles
            self._workers.update((name, self._pool.start(name)) for name in together[1:])
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
        """Whether there is time to compile one more candidate, and for some rounds of all and then of two candidates.

        Args:
            compiled: names of the candidates that are compiled.
        """
        trials = [max(self._workers[name].shortest_trial, SECONDS) for name in compiled]
        needed = max(self.seconds[name] for name in compiled) + _FEWEST_ROUNDS * (sum(trials) + 3 * max(trials))
        return max(trials) <= SECONDS or time.monotonic() + needed <= self._end

    def _compile(self, name: str, until: float) -> list[NDArray[Any]]:
        """Compiles a candidate in a worker of its own, and records the time and the number of submodels.

        Args:
            name: name of the candidate.
            until: time of `time.monotonic` by which it has to be compiled, seconds.

        Returns:
            The outputs of one inference.

        Raises:
            WorkerError: it failed.
            WorkerTimeout: it took too long, or there was no time.
        """
        begin = time.monotonic()
        self._report(self._with_time_left(f"compiling {name}"))
        try:
            if begin >= until:
                raise WorkerTimeout(NO_TIME_TO_COMPILE, FailureKind.OUT_OF_TIME)
            if name not in self._workers:
                self._workers[name] = self._pool.start(name)
            worker = self._workers[name]
            return worker.compile(self._candidates[name], min(self._patience, until - begin))
        except WorkerTimeout as error:
            # The candidate is not to blame: it had less time than a compilation may take, or has run before.
            if min(self._patience, until - begin) < self._usual_patience or (
                name in self.phase_rates and until < math.inf
            ):
                raise WorkerTimeout(NO_TIME_TO_COMPILE, FailureKind.OUT_OF_TIME) from error
            raise
        finally:
            if name in self._workers:
                self.submodels[name] = self._workers[name].submodels
            self.seconds[name] = time.monotonic() - begin

    def _check(self, outputs: Mapping[str, list[NDArray[Any]]]) -> None:
        """Compares outputs with the reference's; a candidate that computes others has failed, however fast it is.

        The first call that has outputs of any candidate chooses the reference among these.

        Args:
            outputs: the outputs of one inference, by name of the candidate.
        """
        if self._reference is None:
            # A NaN in a single device's outputs may be the model's own; where another device has none, it is not. So
            # a device with finite outputs is preferred as the reference.
            ran = [name for name in self._candidates if name in outputs]
            singles = [name for name in ran if self._candidates[name].device in self._devices.names] or ran[:1]
            if not singles:
                return
            reference = min(singles, key=lambda name: not finite(outputs[name]))
            self._reference = reference, outputs[reference]
        reference, expected = self._reference
        for name, arrays in outputs.items():
            difference = disagreement(expected, arrays, self._tolerance, reference)
            if difference:
                self._fail(name, Failure(difference, FailureKind.OTHER_OUTPUTS))

    def _admit(self, name: str) -> Worker:
        """Compiles a candidate unless it is in memory; other candidates leave memory where necessary.

        The least recently used ones leave first.

        Args:
            name: name of the candidate.

        Returns:
            Its worker.

        Raises:
            WorkerError: the candidate fails alone in memory, takes too long, or computes other outputs.
        """
        worker = self._workers.get(name)
        if worker is not None and worker.alive and worker.compiled:
            self._workers[name] = self._workers.pop(name)  # the most recently used one is last
            return worker
        self.evict(name)
        while self._workers and not self._memory_budget.fits(name, self._workers):
            self.evict(next(iter(self._workers)))
        residents = list(self._workers)
        try:
            outputs = self._compile(name, self._end)
        except WorkerError as error:
            if not residents or isinstance(error, WorkerTimeout):
                raise
            for other in (*residents, name):
                self.evict(other)
            outputs = self._compile(name, self._end)
            self._memory_budget.most = len(residents)  # with this one, they were too many for the memory
        self._check({name: outputs})
        if name in self.failed:
            raise WorkerError(self.failed[name], self.failed[name].kind)
        return self._workers[name]

    def _fail(self, name: str, failure: Failure) -> None:
        """Records the failure of a candidate and ends its worker.

        Lack of time is not recorded for a candidate that has had trials: these still count.

        Args:
            name: name of the candidate.
            failure: the reason.
        """
        if name not in self.phase_rates or not out_of_time(failure):
            self.failed[name] = failure
        self.evict(name)

    # Trials.

    def _run_batch(
        self, names: Sequence[str], sharing: int, rounds: int, seconds: float, until: float, halving: bool, first: int
    ) -> list[choice.Round]:
        """Runs the rounds of one batch.

        Args:
            names: names of the candidates of the batch.
            sharing: number of candidates that share the time until `until`: these and those of later batches.
            rounds: largest number of rounds.
            seconds: time of a trial, seconds.
            until: time of `time.monotonic` by which all batches have to end, seconds.
            halving: whether candidates that are surely worse than the best drop out and leave memory.
            first: number of the first round.

        Returns:
            The trials of each round that has any.
        """
        begin = time.monotonic()
        until = begin + len(names) / sharing * (until - begin)  # the other batches have the rest of the time
        alive, rounds_run = list(names), list[choice.Round]()
        for number in range(rounds):
            what = ", ".join(alive) if len(alive) < 3 else f"{len(alive)} candidates"  # a line is too short for more
            now = time.monotonic()
            expected = (rounds - number) * (now - begin) / number if number else math.inf
            left = until - now if until < math.inf else expected
            self._report(self._with_time_left(f"measuring {what}, round {number + first + 1}", left))
            trials = self._round(choice.in_order(alive, number + first), seconds)
            rounds_run.append(trials)
            ran = {trial.name for trial in trials}
            alive = [name for name in alive if name in ran]
            if halving and number and alive:
                lost = choice.beaten(choice.infer(rounds_run), alive)
                alive = [name for name in alive if name not in lost]
                for name in lost:
                    self.evict(name)
            took = (time.monotonic() - begin) / (number + 1)
            if not alive or (halving and len(alive) == 1) or time.monotonic() + took > until:
                break
        return [one for one in rounds_run if one]

    def _round(self, names: Sequence[str], seconds: float) -> list[choice.Trial]:
        """Runs a trial of each candidate in this order, and records failures.

        Args:
            names: names of the candidates.
            seconds: time of a trial, seconds.

        Returns:
            The trials that succeeded, corrected for what other programs took; so are their records in `phase_rates`.
        """
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
        """Compiles waiting candidates, at least one and as many as fit into memory beside the anchor.

        Args:
            anchor: name of the anchor; None before anything ran.
            waiting: names of the waiting candidates; those that are compiled or fail are removed from this list.

        Returns:
            Names of the next batch, the anchor first; empty where all failed.
        """
        for name in list(self._workers):
            if name != anchor:
                self.evict(name)
        batch = [anchor] if anchor else []
        joined = 0
        while waiting and (not joined or self._memory_budget.fits(waiting[0], self._workers)):
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
                    # It fits only alone, and the others had to leave memory: it waits for a batch of its own.
                    waiting.insert(0, name)
                    self._waiting.append(name)
                    break
                batch.append(name)
                joined += 1
        return batch if joined else []

    def rate(self, name: str, seconds: float) -> float:
        """Runs a trial of a candidate, which is compiled first where it is not in memory.

        No long trial begins after the time limit. A trial of co-running models runs whole workloads, so it does not
        begin where it would end after the limit.

        Args:
            name: name of the candidate.
            seconds: about the time of the trial, seconds.

        Returns:
            Inferences per second, without a correction for other programs.

        Raises:
            WorkerError: the candidate failed, or there was no time.
        """
        worker = self._admit(name)
        if (
            worker.shortest_trial > SECONDS
            and time.monotonic() + self._trials_are_whole * worker.shortest_trial >= self._end
        ):
            raise WorkerTimeout(NO_TIME_TO_MEASURE, FailureKind.OUT_OF_TIME)
        residents = [other for other in self._workers if other != name]
        try:
            return self._trial(worker, name, seconds)
        except WorkerError as error:
            # Where memory runs out, Linux kills some worker, which is not always the one that asked for more.
            if error.failure.kind is not FailureKind.KILLED or not residents:
                raise
            for other in (*residents, name):
                self.evict(other)
            rate = self._trial(self._admit(name), name, seconds)
            self._memory_budget.most = len(residents)
            return rate

    def _trial(self, worker: Worker, name: str, seconds: float) -> float:
        """Runs a trial in a worker, and records rates of phases and processor times.

        Args:
            worker: the worker that holds the candidate.
            name: name of the candidate.
            seconds: about the time of the trial, seconds.

        Returns:
            Inferences per second, without a correction for other programs.

        Raises:
            WorkerError: the trial failed, or took too long.
        """
        patience = max(self._patience, _SLOWER * worker.shortest_trial)
        expected = max(seconds, worker.shortest_trial) + self.seconds[name]
        rate = worker.rate(seconds, min(_TRIAL_TIMES * expected + _TRIAL_MORE, patience))
        rates_by_phase = self.phase_rates.setdefault(name, {})
        for phase, of_phase in worker.rates.items():
            rates_by_phase.setdefault(phase, []).append(of_phase)
        if len(worker.busy_us) == worker.submodels:
            self.busy_us.setdefault(name, []).append(worker.busy_us)
        return rate

    def _with_time_left(self, text: str, left: float = math.inf) -> str:
        """Appends to a text the seconds until the time limit, or `left` where that is less; nothing where it is inf."""
        left = max(min(self._end - time.monotonic(), left), 0.0)
        return text if math.isinf(left) else f"{text} ({left:.0f} s left)"


def measurements(
    names: Collection[str],
    comparison: Comparison,
    rounds: Sequence[choice.Round],
    objective: str,
    reference: str | None = None,
) -> dict[str, Measurement]:
    """Turns trials into measurements, without predictions.

    Args:
        names: names of the candidates.
        comparison: the comparison that made the trials, and knows why candidates failed.
        rounds: the trials of each round.
        objective: "latency" or "throughput".
        reference: name of the candidate that ratios are to; by default the first that ran.

    Returns:
        A measurement of each candidate, by name; a failed one where it has no trials.
    """
    posterior = choice.infer(rounds)
    reference = reference or next((name for name in names if name in posterior.names), "")
    by_name: dict[str, Measurement] = {}
    for name in names:
        submodels, took = comparison.submodels.get(name, 0), comparison.seconds.get(name, 0.0)
        if name in comparison.failed or name not in posterior.names:
            why = comparison.failed.get(name, NOT_MEASURED)
            by_name[name] = Measurement(0.0, submodels=submodels, seconds=took, error=why)
            continue
        ratio = posterior.ratio(name, reference)
        value, unit = (in_unit(posterior.rate(one), objective) for one in (name, reference))
        rates = tuple(trial[1] for one in rounds for trial in one if trial[0] == name)
        bounds = ratio.low, ratio.high
        by_name[name] = Measurement(ratio.median, value, unit, (), submodels, took, rates=rates, bounds=bounds)
    return by_name


HOST = "CPU"
"""Name of the main memory, which CPU devices and integrated devices share and every worker runs in."""

# Share of the free memory that is used: estimates are rough, and other programs need some.
_SHARE = 0.9

# Memory that a candidate takes, as a multiple of what the simulator counts. The simulator counts weights and live
# tensors once; plugins keep copies in layouts of their own, and tensors for each request in flight, and compiling needs
# more than running.
_TIMES = 1.5

# Bytes of a process that has imported OpenVINO and read a model.
_PROCESS = 256 * 2**20


class MemoryBudget:
    """The memory of the devices, as far as it is known, and the memory that candidates need.

    Several devices can share one memory: CPU devices and integrated devices have the main memory, `HOST`. A memory is
    named by `HOST` or by its device.

    Attributes:
        most: largest number of candidates that may be in memory at the same time, learned from failures.
    """

    def __init__(self, core: ov.Core, needs: Mapping[str, Mapping[str, int]]) -> None:
        """Stores the arguments; free memory is read anew whenever it is needed.

        Args:
            core: Core of the devices.
            needs: bytes of each candidate on each device, as the simulator counts them.
        """
        self._core, self._needs = core, dict(needs)
        self.most: float = math.inf
        self._memory_of = cache(partial(discovery.memory_of, core))

    def add(self, name: str, needs: Mapping[str, int]) -> None:
        """Adds a candidate or replaces its needs; `needs` has the bytes that the simulator counts, by device."""
        self._needs[name] = needs

    def together(self, names: Sequence[str]) -> list[str]:
        """Selects candidates that fit together into the memory that is free now.

        Args:
            names: names of candidates. Each is selected where it fits beside the earlier ones; the first always is.

        Returns:
            Names of the selected ones, in the same order.
        """
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
        """Whether the candidate `name` fits into memory beside the candidates that are compiled (`resident`)."""
        if len(resident) + 1 > self.most:
            return False
        for memory in self._memories([name]):
            need = self._need(name, memory)
            # Free main memory is measured, without the residents; other devices do not report what is in use.
            used = 0.0 if memory == HOST else sum(self._need(other, memory) for other in resident)
            if used + need > _SHARE * self._free(memory):
                return False
        return True

    def _memories(self, names: Collection[str]) -> list[str]:
        """Names of the memories that candidates need, the main memory first."""
        used = (device for name in names for device, count in self._needs.get(name, {}).items() if count)
        return [*dict.fromkeys([HOST, *map(self._memory_of, used)])]

    def _need(self, name: str, memory: str) -> float:
        """Estimates the bytes that a candidate needs of a memory; of the main memory, with its worker process."""
        needs = self._needs.get(name, {})
        if memory != HOST:
            return _TIMES * needs.get(memory, 0)
        return _PROCESS + _TIMES * sum(count for device, count in needs.items() if self._memory_of(device) == HOST)

    def _free(self, memory: str) -> float:
        """Free bytes of a memory now, inf where they are not known."""
        free = discovery.free_bytes(self._core, memory)
        return math.inf if free is None else free
