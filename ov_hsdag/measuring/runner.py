"""Compiled models that are ready to run: trials of one, or of several copies at the same time."""

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

# Of larger outputs so many last values are compared: logits of a prompt have hundreds of megabytes.
_COMPARED = 1 << 22

# A trial of latency lasts until so many inferences have ended; but where they are slow, not longer than so many times
# what was asked for.
_FEWEST = 4
_LONGEST = 4

_WARM_UP = 2

# Rounds of all requests, at most one for each boundary, before a trial of throughput counts: all requests begin at the
# first submodel, and spread over the devices meanwhile. Else a ViT of five submodels has three quarters of its rate.
_FILLING = 2

# The largest share of a trial that is given back for the time in which its threads had no core.
_MOST_LOST = 0.75

# Cores that a process uses at least where its use is a divisor: it may have ended at once.
_LEAST_USE = 1e-3

# Seconds of a warm-up that needs no second one: what is disturbed is a small part of inferences that slow.
_LONG = 2.0


class Runner:
    """A compiled model that is ready to run."""

    def __init__(
        self,
        compiled: ov.CompiledModel,
        inputs: Sequence[TimedInputs],
        objective: str,
        requests: int,
        threads: Sequence[int] = (),
    ) -> None:
        """Warms up. Raises RuntimeError where inference fails.

        inputs: of what is timed, the phases of a workload one after the other. requests: in flight, at least. threads:
        that compiling made, in order: those of CPU devices, one of which runs each submodel.
        """
        self.compiled, self._threads = compiled, threads
        # Processor time of each submodel in an inference of the last trial, in the order in which they were compiled,
        # µs; empty where it is not known.
        self.busy_us: list[float] = []
        self._timed = inputs
        self._lengths = [max(round(timed.count), 1) for timed in inputs]
        self.cycle = sum(self._lengths)  # inferences in one run of the workload, as `start_next` starts them
        self._objective = objective
        self.submodels = submodels_of(compiled)  # 1 on a single device
        self.rates: dict[str, float] = {}  # of each phase in the last trial, inferences per second, by name
        self.load: TrialLoad | None = None  # of the last trial, where it tells what other programs took
        self.meter = LoadMeter(threads)
        requests = max(requests, int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")))
        self.queue = ov.AsyncInferQueue(compiled, requests if objective == "throughput" else 1)
        # When inferences of the last trial's last phase ended, seconds of `time.perf_counter`. The callback must not
        # refer to this object: the queue holds it, and cycles through C++ are never freed.
        self.finished: list[float] = []
        finished = self.finished
        self.queue.set_callback(lambda request, _: finished.append(time.perf_counter()))
        filling = max(min(self.submodels - 1, _FILLING), 0)
        last: list[Replay | None] = [None] * len(self.queue)
        self.phases = [_Phase(self.queue, timed, finished, filling, last) for timed in self._timed]

    @property
    def shortest_trial(self) -> float:
        """About how many seconds a trial takes at least, from the warm-up."""
        throughput, requests = self._objective == "throughput", len(self.queue)
        return sum(one.inference * (one.rounds * requests + 1 if throughput else 2) for one in self.phases)

    @property
    def mean_inference(self) -> float:
        """Seconds of an inference in the warm-up, the mean over those of a workload."""
        total = sum(timed.count for timed in self._timed)
        return sum(one.timed.count * one.inference for one in self.phases) / total

    def start_next(self, number: int) -> None:
        """Starts the inference of this number, the phases of a workload one after the other, when a request is idle."""
        place = number % self.cycle
        for length, phase in zip(self._lengths, self.phases, strict=True):
            if place < length:
                phase.start(first=number == 0)
                return
            place -= length

    def rate(self, seconds: float, alone: bool = True) -> float:
        """Inferences per second in a trial of about so many seconds. Raises RuntimeError where inference fails.

        Of a workload it is that of all its inferences: their number over the sum of their times. alone: no other trial
        runs at the same time. What other programs took is in it (`load`).
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
        """See `busy_us`. used: processor time of each thread in the trial, ns."""
        own, rest = divmod(len(used), self.submodels)
        # Of a submodel's threads the busiest runs it, others call back.
        most = [max(used[own * n : own * (n + 1)]) for n in range(self.submodels)] if own and not rest else [0]
        return [ns / 1e3 / len(self.finished) for ns in most] if min(most) > 0 else []

    def outputs(self) -> list[NDArray[Any]]:
        """What it computes in the first inference of each phase. Raises RuntimeError where inference fails."""
        found = []
        for phase in self.phases:
            request = self.compiled.create_infer_request()
            phase.replay.first.set(request)
            infer(request, phase.timed.steps[0])
            for port in range(len(self.compiled.outputs)):
                array = np.array(request.get_output_tensor(port).data)
                found.append(array if array.size <= _COMPARED else array.reshape(-1)[-_COMPARED:])
        return found


class Copies:
    """The whole model on each of several devices, all of them running at the same time, which is no HETERO."""

    submodels = 0  # that HETERO makes
    busy_us: Sequence[float] = ()

    def __init__(self, runners: Sequence[Runner], phases: Sequence[TimedInputs]) -> None:
        """runners: one for each device, for throughput, with the same phases."""
        self._runners, self._timed = runners, phases
        self.rates: dict[str, float] = {}  # see `Runner`; of all copies together
        self.load: TrialLoad | None = None  # see `Runner`

    @property
    def shortest_trial(self) -> float:
        """See `Runner.shortest_trial`: each has the others beside it, so that it takes longer than it did alone."""
        return max(runner.shortest_trial for runner in self._runners)

    def rate(self, seconds: float, alone: bool = True) -> float:
        """See `Runner.rate`: inferences of all copies per second."""
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
        """See `Runner.outputs`: of the first copy, as each device is compared on its own besides."""
        return self._runners[0].outputs()


class LoadMeter:
    """Counts what the threads of a compiled model, this process and other programs do during a trial."""

    def __init__(self, threads: Sequence[int]) -> None:
        """threads: of this process, that compute; none where what they wait for does not tell of the trial."""
        self._threads = threads
        self._cpus = usable_cpus()
        # Of the last trial:
        self.seconds = 0.0  # that it took
        self.used_ns = np.zeros((0, 2), np.int64)  # see `_now`
        self.own_seconds = 0.0  # processor time of this process
        self.others_seconds = 0.0  # processor time of other programs on the usable cores

    def _now(self) -> tuple[NDArray[np.int64], float, float, float]:
        """Processor time of each thread and the time for which it waited for a core, ns [threads, 2]; the clock, and
        the processor time of this process and of all programs, seconds."""
        used = np.array([(processor_ns(one), waiting_ns(one)) for one in self._threads], np.int64).reshape(-1, 2)
        return used, time.perf_counter(), time.process_time(), processor_seconds(self._cpus)

    def begin(self) -> None:
        """Before a trial."""
        self._before = self._now()

    def end(self) -> None:
        """After it."""
        used, clock, own, every = self._now()
        used_before, clock_before, own_before, every_before = self._before
        self.seconds, self.own_seconds = clock - clock_before, own - own_before
        self.used_ns = used - used_before
        self.others_seconds = max(every - every_before - self.own_seconds, 0.0)

    @property
    def cores(self) -> int:
        """That programs can use here; logical ones, as processor time is counted on these."""
        return max(len(self._cpus), 1)

    @property
    def waiting(self) -> float:
        """Share of the trial in which the thread that bounds it, being hardly ever idle, was ready and had no core."""
        if not len(self.used_ns):
            return 0.0
        return float(self.used_ns[self.used_ns.sum(axis=1).argmax(), 1]) / 1e9 / self.seconds

    @property
    def working(self) -> float:
        """Share of the trial for which the thread with the most processor time had a core."""
        return float(self.used_ns[:, 0].max(initial=0)) / 1e9 / self.seconds


@dataclass(frozen=True)
class TrialLoad:
    """What the cores did in a trial of throughput, from which follows what other programs took of its rate."""

    rates: tuple[float, ...]  # of each copy of the model, one by default, inferences per second
    waiting: tuple[float, ...]  # of each copy, see `LoadMeter`
    working: tuple[float, ...]  # of each copy, see `LoadMeter`
    own: float  # cores that this process used
    others: float  # cores that other programs used
    cores: int  # that programs can use here
    seconds: float  # that the trial took

    @classmethod
    def of(cls, rates: Sequence[float], meters: Sequence[LoadMeter]) -> TrialLoad:
        """Of copies that ran at the same time in this process: their rates, and what was counted beside each."""
        first = meters[0]
        own, others = (seconds / first.seconds for seconds in (first.own_seconds, first.others_seconds))
        waiting, working = (tuple(getattr(one, name) for one in meters) for name in ("waiting", "working"))
        return cls(tuple(rates), waiting, working, own, others, first.cores, first.seconds)

    @classmethod
    def from_answer(cls, answer: Mapping[str, Any]) -> TrialLoad:
        """Of what a worker answers. Raises ValueError, TypeError or KeyError where that is damaged."""
        rates, waiting, working = (tuple(map(float, answer[name])) for name in ("rates", "waiting", "working"))
        own, others, seconds = (float(answer[name]) for name in ("own", "others", "seconds"))
        load = cls(rates, waiting, working, own, others, int(answer["cores"]), seconds)
        if not all(map(math.isfinite, (*rates, *waiting, *working, own, others, seconds))):
            raise ValueError("a trial without figures")
        if min(seconds, sum(rates)) <= 0:
            raise ValueError("a trial of no time or rate")
        return load

    def correction(self, others: float) -> float:
        """How many times as fast it would have been without other programs, which use so many cores in such trials."""
        alone = (
            undisturbed(rate, waiting, others, self.own, working, self.cores)
            for rate, waiting, working in zip(self.rates, self.waiting, self.working, strict=True)
        )
        return sum(alone) / sum(self.rates)


class ConcurrentTrials:
    """Trials of several copies that start together, each going on until all have what they need, or one has failed."""

    def __init__(self, count: int) -> None:
        self._barrier, self._lock = threading.Barrier(count), threading.Lock()
        self._unfinished, self._failed = count, False

    @property
    def unfinished(self) -> bool:
        """Whether the others still need this one's load."""
        return self._unfinished > 0 and not self._failed

    def run(self, phase: _Phase, seconds: float) -> float:
        """The trial of one copy. One that fails ends the others."""
        try:
            return phase.throughput(seconds, self)
        except BaseException:
            self._failed = True
            self._barrier.abort()
            raise

    def start(self) -> None:
        """Waits for all. Raises BrokenBarrierError where another has failed."""
        self._barrier.wait()

    def finish(self) -> None:
        """Counts one that has what it needs."""
        with self._lock:
            self._unfinished -= 1


class _Phase:
    """One kind of inferences on the requests of a queue."""

    def __init__(
        self,
        queue: ov.AsyncInferQueue,
        timed: TimedInputs,
        finished: list[float],
        filling: int,
        last: list[Replay | None],
    ) -> None:
        """Warms up. finished: when inferences ended, of all phases. filling: rounds before a trial counts. last: what
        each request ran last, of any phase."""
        self.timed, self._filling = timed, filling
        self._queue, self._finished, self._last = queue, finished, last
        self.replay = Replay(queue[0], timed)  # of the first request
        others = [Replay(request, timed, self.replay.first) for request in list(queue)[1:]]
        self._replays = [self.replay, *others]
        self.inference = 0.0  # seconds of one in the warm-up, with all requests in flight
        self._warm_up()

    @property
    def rounds(self) -> int:
        """Rounds of all requests in the shortest trial of throughput."""
        return 2 + self._filling

    def _warm_up(self) -> None:
        """Runs each request twice; where that takes long, once, which is when memory is allocated."""
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
        """Inferences that end while requests are always under way, over the time that whole rounds of them take.

        The first to end after `_FILLING` tells that the pipeline is full; what ends after the last was started runs
        while it empties. Requests that share submodels end in bunches, each request once in a round: from the first end
        to one in the middle of a later bunch the rate would seem higher than it is. concurrent: trials of other copies.
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
        """Median seconds of one request."""
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
        """Sets all requests back, untimed; what is one step sets them back itself."""
        if len(self.timed.steps) > 1:
            for replay in self._replays:
                replay.rewind()
            self._last[:] = self._replays

    def start(self, *, first: bool) -> None:
        """Starts a request; the first one of several in a row begins with the first step."""
        if first:
            self._rewind()
        self._start()

    def _start(self) -> None:
        """Starts a request, which takes the time in which its states are set as well.

        Only a request whose states are those of another phase is set back: the others go on, as conversations do.
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
    """The rate that a trial would have without other programs.

    Args:
        rate: measured, in any unit.
        lost: share of the trial in which the thread that bounds it was ready to run and had no core.
        others: cores that other programs used. What threads waited beyond that, they waited for our own.
        own: cores that our process used.
        working: share of the trial for which the busiest thread had a core: it cannot have more than all of it.
        cores: usable ones, of which our process cannot use more than all.

    Returns:
        The rate, in the same unit: never lower, and a continuous function of all arguments.
    """
    of_threads = 1 / max(1 - min(lost, _MOST_LOST), working)
    of_cores = min(own + max(others, 0.0), cores) / max(own, _LEAST_USE)
    return rate * max(min(of_threads, of_cores), 1.0)


def submodels_of(compiled: ov.CompiledModel) -> int:
    try:
        return int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS"))
    except RuntimeError:  # not HETERO
        return 1


def thread_ids() -> set[int]:
    """Of this process, as Linux numbers them, later ones higher; empty elsewhere."""
    try:
        return set(map(int, os.listdir("/proc/self/task")))
    except OSError:
        return set()


def waiting_ns(thread: int) -> int:
    """Time in which a thread of this process was ready to run and had no core, ns; 0 where the system does not say."""
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
