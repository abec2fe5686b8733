"""Trials of compiled models in the process that compiled them: of one model, or of copies on several devices.

A phase is one kind of inferences of a workload, such as prompts or tokens; a model without a workload has one phase. A
request is an `ov.InferRequest`. A trial of throughput keeps all requests in flight; a round of it is one inference of
each request. A trial of latency runs one request at a time.
"""

from __future__ import annotations

import math
import os
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.devices.cpu import processor_seconds, usable_cpus
from ov_hsdag.model.inputs import TimedInputs
from ov_hsdag.model.replay import Replay, infer, mean_rate
from ov_hsdag.utils.lazy import ov

# Number of values, the last ones, that are compared of larger outputs: logits of a prompt have hundreds of megabytes.
_COMPARED = 1 << 22

# A trial of latency lasts until 4 inferences have ended, but where they are slow not longer than 4 times the requested
# time.
_FEWEST = 4
_LONGEST = 4

# Times that each request runs in a warm-up: the first run allocates memory, the second one is timed.
_WARM_UP = 2

# Largest number of rounds of all requests before a trial of throughput counts; for fewer boundaries between submodels,
# one round for each. All requests begin at the first submodel and have to spread over the devices first. Without it, a
# ViT with five submodels seems to have three quarters of its rate.
_FILLING = 2

# Largest share of a trial that counts as lost to other programs; it bounds the correction of a rate to a factor of 4.
_MOST_LOST = 0.75

# Least number of cores that this process counts as using, as a divisor; a trial may end too soon to show any use.
_LEAST_USE = 1e-3

# Time of a warm-up, seconds, after which there is no second run: the disturbance of a first run is small beside that.
_LONG = 2.0


class Runner:
    """A compiled model with its requests and inputs, ready for trials.

    Attributes:
        compiled: the compiled model.
        busy_us: processor time of each submodel in an inference of the last trial, µs, in the order in which they were
            compiled; empty where it is not known.
        cycle: number of inferences that `start_next` starts in one run of the workload; each phase has one at least.
        submodels: number of submodels; 1 on a single device.
        rates: inferences per second of each phase in the last trial, by phase.
        load: load of the cores in the last trial; None where it does not show what other programs took.
        meter: measures the load.
        queue: the requests.
        finished: times of `time.perf_counter` at which inferences ended, seconds. The trial of each phase clears it.
        phases: the phases, with their inputs.
    """

    def __init__(
        self,
        compiled: ov.CompiledModel,
        inputs: Sequence[TimedInputs],
        objective: str,
        requests: int,
        threads: Sequence[int] = (),
    ) -> None:
        """Makes the requests and warms them up.

        Args:
            compiled: the compiled model.
            inputs: inputs of each phase that is timed.
            objective: "latency" or "throughput".
            requests: least number of requests in flight, for throughput.
            threads: ids of the threads that compiling created for CPU devices, in order; each submodel has as many.
                Empty where their time does not tell that of the model.

        Raises:
            RuntimeError: inference fails.
        """
        self.compiled, self._threads = compiled, threads
        self.busy_us: list[float] = []
        self._timed = inputs
        self._lengths = [max(round(timed.count), 1) for timed in inputs]
        self.cycle = sum(self._lengths)
        self._objective = objective
        self.submodels = submodels_of(compiled)
        self.rates: dict[str, float] = {}
        self.load: TrialLoad | None = None
        self.meter = LoadMeter(threads)
        requests = max(requests, int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")))
        self.queue = ov.AsyncInferQueue(compiled, requests if objective == "throughput" else 1)
        # The callback must not refer to this object: the queue holds the callback, and Python never frees cycles
        # through C++ objects.
        self.finished: list[float] = []
        finished = self.finished
        self.queue.set_callback(lambda request, _: finished.append(time.perf_counter()))
        filling = max(min(self.submodels - 1, _FILLING), 0)
        last: list[Replay | None] = [None] * len(self.queue)
        self.phases = [_Phase(self.queue, timed, finished, filling, last) for timed in self._timed]

    @property
    def shortest_trial(self) -> float:
        """About the shortest possible time of a trial, seconds, from the warm-up."""
        throughput, requests = self._objective == "throughput", len(self.queue)
        return sum(one.inference * (one.rounds * requests + 1 if throughput else 2) for one in self.phases)

    @property
    def mean_inference(self) -> float:
        """Time of an inference in the warm-up, seconds; for a workload the mean over its inferences."""
        total = sum(timed.count for timed in self._timed)
        return sum(one.timed.count * one.inference for one in self.phases) / total

    def start_next(self, number: int) -> None:
        """Waits for an idle request and starts an inference.

        Args:
            number: number of the inference, from 0. Inferences run through the phases in turn, `cycle` of them in each
                run of the workload. Number 0 also sets the states of its phase back.
        """
        place = number % self.cycle
        for length, phase in zip(self._lengths, self.phases, strict=True):
            if place < length:
                phase.start(first=number == 0)
                return
            place -= length

    def rate(self, seconds: float, alone: bool = True) -> float:
        """Runs a trial of all phases, one after the other, and sets `rates`, `load` and `busy_us`.

        `load` and `busy_us` are for the objective throughput with a single phase; otherwise `load` is None.

        Args:
            seconds: about the time of the trial, seconds.
            alone: whether no other trial runs at the same time; only then `load` is known.

        Returns:
            Inferences per second, without a correction for other programs; for a workload, the number of its inferences
            over the sum of their times.

        Raises:
            RuntimeError: inference fails.
        """
        self.meter.begin()
        for phase in self.phases:
            share = seconds / len(self.phases)
            rate = phase.throughput(share) if self._objective == "throughput" else 1 / phase.latency(share)
            self.rates[phase.timed.name] = rate
        self.load = None
        if len(self.phases) == 1 and self._objective == "throughput":
            self.meter.end()
            self.busy_us = self._busy_us(self.meter.used_ns[:, 0].tolist())
            self.load = TrialLoad.of([rate], [self.meter]) if alone else None
        return mean_rate(self.rates, self._timed)

    def _busy_us(self, used: Sequence[int]) -> list[float]:
        """Computes `busy_us` from the processor time of each thread in the trial, ns.

        Args:
            used: the times, in the order in which the threads were created; each submodel has as many threads.

        Returns:
            Processor time of each submodel, µs an inference; empty where threads are unknown, do not divide evenly
            among the submodels, or show no time.
        """
        per_submodel, rest = divmod(len(used), self.submodels)
        # The busiest of a submodel's threads runs it; the others call back.
        busiest = (
            [max(used[per_submodel * n : per_submodel * (n + 1)]) for n in range(self.submodels)]
            if per_submodel and not rest
            else [0]
        )
        return [ns / 1e3 / len(self.finished) for ns in busiest] if min(busiest) > 0 else []

    def outputs(self) -> list[NDArray[Any]]:
        """Computes the outputs of the first inference of each phase, with a new request for each.

        Of an output with more than `_COMPARED` values, only the last ones are returned, as a one-dimensional array.

        Raises:
            RuntimeError: inference fails.
        """
        outputs = []
        for phase in self.phases:
            request = self.compiled.create_infer_request()
            phase.replay.first.set(request)
            infer(request, phase.timed.steps[0])
            for port in range(len(self.compiled.outputs)):
                array = np.array(request.get_output_tensor(port).data)
                outputs.append(array if array.size <= _COMPARED else array.reshape(-1)[-_COMPARED:])
        return outputs


class Copies:
    """A copy of the whole model on each of several devices, all running at the same time, without HETERO.

    Attributes:
        submodels: 0, as HETERO makes none.
        busy_us: empty; processor times of copies are not used.
        rates: inferences per second of all copies together in the last trial, by phase.
        load: load of the cores in the last trial, see `Runner.load`.
    """

    submodels = 0
    busy_us: Sequence[float] = ()

    def __init__(self, runners: Sequence[Runner], phases: Sequence[TimedInputs]) -> None:
        """Stores the arguments.

        Args:
            runners: a runner of the model on each device, all for the objective throughput and with the same phases.
            phases: inputs of each phase.
        """
        self._runners, self._timed = runners, phases
        self.rates: dict[str, float] = {}
        self.load: TrialLoad | None = None

    @property
    def shortest_trial(self) -> float:
        """About the shortest possible time of a trial, seconds: that of the slowest copy, from its warm-up alone."""
        return max(runner.shortest_trial for runner in self._runners)

    def rate(self, seconds: float, alone: bool = True) -> float:
        """Runs a trial of all copies at the same time, and sets `rates` and `load`.

        Args:
            seconds: about the time of the trial, seconds.
            alone: whether no other trial runs at the same time; only then, and with a single phase, `load` is known.

        Returns:
            Inferences of all copies per second, for a workload its mean rate, see `Runner.rate`.

        Raises:
            RuntimeError: inference fails.
        """
        self.load = None
        for runner in self._runners:
            runner.meter.begin()
        with ThreadPoolExecutor(len(self._runners)) as pool:
            for number, timed in enumerate(self._timed):
                concurrent = ConcurrentTrials(len(self._runners))
                share = seconds / len(self._timed)
                trials = [pool.submit(concurrent.run, runner.phases[number], share) for runner in self._runners]
                errors = [error for trial in trials if (error := trial.exception()) is not None]
                for error in errors:
                    if not isinstance(error, threading.BrokenBarrierError):
                        raise error
                rates = [trial.result() for trial in trials]
                if len(self._timed) == 1 and alone:
                    meters = [runner.meter for runner in self._runners]
                    for meter in meters:
                        meter.end()
                    self.load = TrialLoad.of(rates, meters)
                self.rates[timed.name] = sum(rates)
        return mean_rate(self.rates, self._timed)

    def outputs(self) -> list[NDArray[Any]]:
        """Computes the outputs of the first copy, see `Runner.outputs`.

        That suffices, as each device is also compared as a single device.
        """
        return self._runners[0].outputs()


class LoadMeter:
    """Measures the processor time of a model's threads, of this process and of other programs during a trial.

    `begin` and `end` read the system's counters before and after the trial. The attributes are the differences, so they
    and the properties `waiting` and `working` are those of the last trial that ended.

    Attributes:
        seconds: time that the last trial took, seconds.
        used_ns: processor time of each thread, and the time for which it waited for a core, ns, int64 [threads, 2].
        own_seconds: processor time of this process during the trial, seconds.
        others_seconds: processor time of other programs on the usable cores, seconds.
    """

    def __init__(self, threads: Sequence[int]) -> None:
        """Stores the argument.

        Args:
            threads: ids of this process's threads that compute the model; empty where the trial's time does not depend
                on them, as on other devices than the CPU.
        """
        self._threads = threads
        self._cpus = usable_cpus()
        self.seconds = 0.0
        self.used_ns = np.zeros((0, 2), np.int64)
        self.own_seconds = 0.0
        self.others_seconds = 0.0

    def _now(self) -> tuple[NDArray[np.int64], float, float, float]:
        """Reads the counters.

        Returns:
            Processor time of each thread, and the time for which it waited for a core, ns, int64 [threads, 2]; the
            clock, the processor time of this process, and that of all programs, seconds.
        """
        used = np.array([(processor_ns(one), waiting_ns(one)) for one in self._threads], np.int64).reshape(-1, 2)
        return used, time.perf_counter(), time.process_time(), processor_seconds(self._cpus)

    def begin(self) -> None:
        """Reads the counters before a trial."""
        self._before = self._now()

    def end(self) -> None:
        """Reads the counters after a trial, and sets the attributes."""
        used, clock, process_seconds, all_seconds = self._now()
        used_before, clock_before, process_seconds_before, all_seconds_before = self._before
        self.seconds, self.own_seconds = clock - clock_before, process_seconds - process_seconds_before
        self.used_ns = used - used_before
        self.others_seconds = max(all_seconds - all_seconds_before - self.own_seconds, 0.0)

    @property
    def cores(self) -> int:
        """Number of logical cores that this process can use; processor time is counted by logical cores."""
        return max(len(self._cpus), 1)

    @property
    def waiting(self) -> float:
        """Share of the trial in which the thread that bounds it, the least idle one, was ready but had no core.

        It is 0 without threads.
        """
        if not len(self.used_ns):
            return 0.0
        return float(self.used_ns[self.used_ns.sum(axis=1).argmax(), 1]) / 1e9 / self.seconds

    @property
    def working(self) -> float:
        """Share of the trial for which the thread with the most processor time had a core; 0 without threads."""
        return float(self.used_ns[:, 0].max(initial=0)) / 1e9 / self.seconds


@dataclass(frozen=True)
class TrialLoad:
    """The use of the cores in a trial of throughput, from which the loss to other programs follows.

    Attributes:
        rates: inferences per second of each copy of the model; one number without copies.
        waiting: for each copy, the share of the trial in which its least idle thread waited for a core, see
            `LoadMeter.waiting`.
        working: for each copy, the share of the trial for which its busiest thread had a core, see
            `LoadMeter.working`.
        own: cores that this process used on average.
        others: cores that other programs used on average.
        cores: number of cores that programs can use here.
        seconds: time that the trial took, seconds.
    """

    rates: tuple[float, ...]
    waiting: tuple[float, ...]
    working: tuple[float, ...]
    own: float
    others: float
    cores: int
    seconds: float

    @classmethod
    def of(cls, rates: Sequence[float], meters: Sequence[LoadMeter]) -> TrialLoad:
        """Makes the load of copies that ran at the same time in this process.

        Args:
            rates: inferences per second of each copy.
            meters: the meter of each copy; the first one tells the times of the process and of other programs.
        """
        first = meters[0]
        own_cores, others_cores = (seconds / first.seconds for seconds in (first.own_seconds, first.others_seconds))
        waiting, working = (tuple(getattr(one, name) for one in meters) for name in ("waiting", "working"))
        return cls(tuple(rates), waiting, working, own_cores, others_cores, first.cores, first.seconds)

    @classmethod
    def from_answer(cls, answer: Mapping[str, Any]) -> TrialLoad:
        """Reads the load from a worker's answer. Raises ValueError, TypeError or KeyError where that is damaged."""
        rates, waiting, working = (tuple(map(float, answer[name])) for name in ("rates", "waiting", "working"))
        own_cores, others_cores, seconds = (float(answer[name]) for name in ("own", "others", "seconds"))
        load = cls(rates, waiting, working, own_cores, others_cores, int(answer["cores"]), seconds)
        if not all(map(math.isfinite, (*rates, *waiting, *working, own_cores, others_cores, seconds))):
            raise ValueError("a trial without figures")
        if min(seconds, sum(rates)) <= 0:
            raise ValueError("a trial of no time or rate")
        return load

    def correction(self, others: float) -> float:
        """Estimates the factor, at least 1, by which the trial would have been faster without other programs.

        Args:
            others: number of cores that the other programs are assumed to have used.
        """
        undisturbed_rates = (
            undisturbed(rate, waiting, others, self.own, working, self.cores)
            for rate, waiting, working in zip(self.rates, self.waiting, self.working, strict=True)
        )
        return sum(undisturbed_rates) / sum(self.rates)


class ConcurrentTrials:
    """Coordinates trials of several copies: they start together, and run until all have finished or one has failed."""

    def __init__(self, count: int) -> None:
        """Prepares trials of `count` copies."""
        self._barrier, self._lock = threading.Barrier(count), threading.Lock()
        self._unfinished, self._failed = count, False

    @property
    def unfinished(self) -> bool:
        """Whether a copy has to go on, as others have not finished and need its load."""
        return self._unfinished > 0 and not self._failed

    def run(self, phase: _Phase, seconds: float) -> float:
        """Runs the trial of one copy in the calling thread; where it fails, the trials of the others end.

        Args:
            phase: the phase of the copy.
            seconds: least time of the trial, seconds.

        Returns:
            Inferences of this copy per second.

        Raises:
            RuntimeError: inference fails.
            BrokenBarrierError: another copy failed before all were ready.
        """
        try:
            return phase.throughput(seconds, self)
        except BaseException:
            self._failed = True
            self._barrier.abort()
            raise

    def start(self) -> None:
        """Waits until all copies are ready. Raises BrokenBarrierError where another one has failed."""
        self._barrier.wait()

    def finish(self) -> None:
        """Records that one more copy's trial is long enough; it goes on while others are `unfinished`."""
        with self._lock:
            self._unfinished -= 1


class _Phase:
    """One phase of a model: the inputs of its inferences for each request of a queue.

    The phases of a model share the queue. A request keeps its states from one inference to the next, and they are set
    back where the request ran another phase in between.

    Attributes:
        timed: inputs of the inferences.
        replay: hands out the inputs of the first request.
        inference: time of an inference in the warm-up with all requests in flight, seconds.
    """

    def __init__(
        self,
        queue: ov.AsyncInferQueue,
        timed: TimedInputs,
        finished: list[float],
        filling: int,
        last: list[Replay | None],
    ) -> None:
        """Prepares the inputs of all requests, and warms up.

        Args:
            queue: the requests.
            timed: inputs of the inferences.
            finished: list to which the queue's callback appends the times at which inferences of all phases end.
            filling: rounds of all requests before a trial of throughput counts.
            last: the `Replay` that each request used last, of any phase; None before the first. The phases share this
                list and change it.
        """
        self.timed, self._filling = timed, filling
        self._queue, self._finished, self._last = queue, finished, last
        self.replay = Replay(queue[0], timed)  # inputs of the first request
        others = [Replay(request, timed, self.replay.first) for request in list(queue)[1:]]
        self._replays = [self.replay, *others]
        self.inference = 0.0  # time of an inference in the warm-up with all requests in flight, seconds
        self._warm_up()

    @property
    def rounds(self) -> int:
        """Number of rounds of all requests in the shortest trial of throughput."""
        return 2 + self._filling

    def _warm_up(self) -> None:
        """Runs each request twice, or once where that takes long; the first run allocates memory."""
        self._rewind()
        for _ in range(_WARM_UP):
            begin = time.perf_counter()
            for _ in self._replays:
                self._start()
            self._queue.wait_all()
            self.inference = (time.perf_counter() - begin) / len(self._replays)
            if self.inference * len(self._replays) > _LONG:
                break

    def throughput(self, seconds: float, concurrent: ConcurrentTrials | None = None) -> float:
        """Runs a trial of throughput with all requests always in flight.

        Only whole rounds count, from the first end after `_FILLING` rounds, when the pipeline is full, to the last
        whole round before the last start, after which the pipeline empties. Requests that share submodels end in
        bunches, each request once in a round: up to an end in the middle of a bunch, the rate would seem too high.

        Args:
            seconds: least time of the counted part, seconds.
            concurrent: trials of other copies at the same time; None without any.

        Returns:
            Inferences per second.
        """
        self._rewind()
        concurrent = concurrent or ConcurrentTrials(1)
        finished, requests = self._finished, len(self._replays)
        first = self._filling * requests
        finished.clear()
        concurrent.start()
        while len(finished) <= first + requests or time.perf_counter() - finished[first] < seconds:
            self._start()
        last = (len(finished) - 1) // requests * requests
        concurrent.finish()
        while concurrent.unfinished:
            self._start()
        self._queue.wait_all()
        return (last - first) / (finished[last] - finished[first])

    def latency(self, seconds: float) -> float:
        """Runs a trial of latency, one request at a time.

        Args:
            seconds: time of the trial, seconds. It is longer where fewer than `_FEWEST` inferences have ended, up to
                `_LONGEST` times as long.

        Returns:
            The median time of an inference, seconds.
        """
        self._rewind()
        self._finished.clear()
        times: list[float] = []
        begin, gone = time.perf_counter(), 0.0
        while not times or gone < seconds or (len(times) < _FEWEST and gone < _LONGEST * seconds):
            inputs = self.replay.next()
            start = time.perf_counter()
            self._queue.start_async(inputs)
            self._queue.wait_all()
            times.append(time.perf_counter() - start)
            gone = time.perf_counter() - begin
        return statistics.median(times)

    def _rewind(self) -> None:
        """Sets the states of all requests back before the timed part.

        Nothing is to be done for a phase of a single step, as each of its inferences sets the states back.
        """
        if len(self.timed.steps) > 1:
            for replay in self._replays:
                replay.rewind()
            self._last[:] = self._replays

    def start(self, *, first: bool) -> None:
        """Starts a request; with `first`, all requests begin with their first step again."""
        if first:
            self._rewind()
        self._start()

    def _start(self) -> None:
        """Waits for an idle request and starts it; setting its states is part of the timed work.

        A request is set back only where its states are those of another phase. The others go on, as conversations do.
        """
        idle = self._queue.get_idle_request_id()
        replay = self._replays[idle]
        if self._last[idle] is not replay:
            replay.rewind()
            self._last[idle] = replay
        self._queue.start_async(replay.next())


def undisturbed(
    rate: float, lost: float, others: float, own: float, working: float = 0.0, cores: float = math.inf
) -> float:
    """Estimates the rate that a trial would have without other programs.

    Args:
        rate: measured rate, in any unit.
        lost: share of the trial in which the thread that bounds it was ready to run but had no core.
        others: cores that other programs used. If threads waited for longer than that explains, they waited for other
            threads of this process.
        own: cores that this process used.
        working: share of the trial for which the busiest thread had a core; without other programs it is 1 at most.
        cores: number of usable cores, which bounds what this process can use.

    Returns:
        The rate in the same unit; it is never lower, and a continuous function of all arguments.
    """
    of_threads = 1 / max(1 - min(lost, _MOST_LOST), working)
    of_cores = min(own + max(others, 0.0), cores) / max(own, _LEAST_USE)
    return rate * max(min(of_threads, of_cores), 1.0)


def submodels_of(compiled: ov.CompiledModel) -> int:
    """Number of submodels that HETERO made of a compiled model; 1 without HETERO."""
    try:
        return int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS"))
    except RuntimeError:  # not HETERO
        return 1


def thread_ids() -> set[int]:
    """Ids of this process's threads on Linux, where later threads have higher ids; empty on other systems."""
    try:
        return set(map(int, os.listdir("/proc/self/task")))
    except OSError:
        return set()


def waiting_ns(thread: int) -> int:
    """Time in which a thread of this process was ready to run but had no core, ns; 0 where the system does not tell."""
    try:
        with open(f"/proc/self/task/{thread}/schedstat", encoding="ascii") as file:
            return int(file.read().split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def processor_ns(thread: int) -> int:
    """Processor time of a thread of this process since it began, ns (clock_getcpuclockid(3)); 0 once it has ended."""
    try:
        return time.clock_gettime_ns(~thread << 3 | 6)
    except OSError:
        return 0
