"""Compiled models that are ready to run: trials of one, or of several copies at the same time."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.devices.cpu import processor_seconds
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

# Cores that other programs use from which on a trial is disturbed, and the largest share of it that is given back. As
# `/proc/stat` counts in hundredths of a second, trials before count as well, by so much less than the one after it.
_OTHERS, _MOST_LOST, _FADING = 0.3, 0.75, 0.6

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
        self.disturbance = Disturbance(threads)
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
        runs at the same time.
        """
        self.disturbance.begin()
        for phase in self.phases:
            share = seconds / len(self.phases)
            rate = phase.throughput(share) if self._objective == "throughput" else 1 / phase.latency(share)
            self.rates[phase.timed.name] = rate
        if len(self.phases) == 1 and self._objective == "throughput":
            used, self.rates[self._timed[0].name] = self.disturbance.end(rate, alone)
            self.busy_us = self._busy_us(used[:, 0].tolist())
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

    @property
    def shortest_trial(self) -> float:
        """See `Runner.shortest_trial`: each has the others beside it, so that it takes longer than it did alone."""
        return max(runner.shortest_trial for runner in self._runners)

    def rate(self, seconds: float, alone: bool = True) -> float:
        """See `Runner.rate`: inferences of all copies per second."""
        for runner in self._runners:
            runner.disturbance.begin()
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
                if len(self._timed) == 1:
                    each = zip(self._runners, rates, strict=True)
                    rates = [runner.disturbance.end(rate, alone)[1] for runner, rate in each]
                self.rates[timed.name] = sum(rates)
        return mean_rate(self.rates, self._timed)

    def outputs(self) -> list[NDArray[Any]]:
        """See `Runner.outputs`: of the first copy, as each device is compared on its own besides."""
        return self._runners[0].outputs()


class Disturbance:
    """What other programs use while trials of throughput run."""

    def __init__(self, threads: Sequence[int]) -> None:
        """threads: of this process, that compute."""
        self._threads = threads
        self._others = np.zeros(2)  # processor time of other programs in the last trials, and how long these took, s

    def _now(self) -> tuple[NDArray[np.int64], float, float]:
        used = np.array([(processor_ns(one), waiting_ns(one)) for one in self._threads], np.int64).reshape(-1, 2)
        return used, time.perf_counter(), processor_seconds() - time.process_time()

    def begin(self) -> None:
        """Before a trial."""
        self._before = self._now()

    def end(self, rate: float, alone: bool) -> tuple[NDArray[np.int64], float]:
        """After it: processor time of each thread and the time for which it waited for a core, ns [threads, 2], and
        the rate without other programs."""
        now = self._now()
        used, took, others = now[0] - self._before[0], now[1] - self._before[1], now[2] - self._before[2]
        if not alone:
            return used, rate
        lost = used[used.sum(axis=1).argmax(), 1] / 1e9 / took if len(used) else 0.0
        self._others = _FADING * self._others + (others, took)
        return used, undisturbed(rate, lost, self._others[0] / self._others[1], used[:, 0].sum() / 1e9 / took)


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


def undisturbed(rate: float, lost: float, others: float, own: float) -> float:
    """The rate of a trial without other programs: of more threads than cores each waits for our own, too.

    lost: share of the trial in which the thread that bounds it was ready to run and had no core. others: cores that
    other programs used, where few, threads waited for our own alone; own: cores that our threads used.
    """
    return rate * min(1 / (1 - min(lost, _MOST_LOST)), 1 + others / max(own, 1e-3)) if others > _OTHERS else rate


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
