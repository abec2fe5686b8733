"""Trials of an application: its compiled models run at the same time, in proportion to their counts.

A run of the application has `count` inferences of each model. In a trial of throughput, a run is scaled down to a part
of it in which each model has proportionally fewer inferences; this part is the run that a trial starts and counts.
"""

from __future__ import annotations

import math
import queue
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from numpy.typing import NDArray

from ov_hsdag.measuring.co_running import TrialRunner
from ov_hsdag.measuring.runner import Runner, TrialLoad

# A trial counts 3 runs of the application at least, after 2 runs that fill the devices. Where a run takes 2 s or more,
# it counts 1 run after 1, as otherwise there would be time for few plans. A run is scaled down to parts of about 2 s:
# where one model runs very seldom, a trial does not wait for its inference. It is longer only where a workload is.
_FEWEST, _BEFORE, _FEW, _LONG = 3, 2, (1, 1), 2.0

# Time without the end of an inference, seconds, after which the requests are checked for failures.
_SILENCE = 5.0


FACTORY = f"{__name__}:application_runner"
"""`CoRunningModels.factory` of an application; its arguments are "counts", "after" and "order", see
`ApplicationRunner`."""


def application_runner(runners: Sequence[TrialRunner], objective: str, arguments: Mapping[str, Any]) -> TrialRunner:
    """Makes the runner of an application, see `FACTORY`.

    Args:
        runners: runners of the application's models.
        objective: "latency" or "throughput".
        arguments: further arguments of `ApplicationRunner` by name.

    Returns:
        The runner. An application of one model that runs once needs no other runner than the model's.

    Raises:
        RuntimeError: see `ApplicationRunner`.
    """
    return runners[0] if arguments["counts"] == [1.0] else ApplicationRunner(runners, objective, **arguments)


class ApplicationRunner:
    """The compiled models of an application, ready for trials. It is a `TrialRunner`.

    Attributes:
        busy_us: empty; processor times of applications are not used.
        load: None, as trials of an application do not show what other programs take.
        submodels: number of submodels of all models.
        rates: empty; an application has no phases.
    """

    busy_us: Sequence[float] = ()
    load: TrialLoad | None = None

    def __init__(
        self,
        runners: Sequence[TrialRunner],
        objective: str,
        counts: Sequence[float],
        after: Sequence[Sequence[int]],
        order: Sequence[int],
    ) -> None:
        """Prepares trials; no model runs yet.

        Args:
            runners: the runner of each model, which has warmed up.
            objective: "throughput" or "latency".
            counts: inferences of each model in one run of the application.
            after: for each model, the numbers of the models that it waits for.
            order: numbers of all models, in the order in which those that can run at the same time begin.

        Raises:
            RuntimeError: a model runs as copies, whose requests have no order that other models could wait for.
        """
        self._runners = [runner for runner in runners if isinstance(runner, Runner)]
        if len(self._runners) < len(runners):
            raise RuntimeError("a model of an application runs on a device or on HETERO, and not as copies")
        self._objective, self._after, self._order = objective, after, order
        self._at = [0] * len(self._runners)  # number of each model's next inference; a trial may end within a workload
        # A trial's run has few workloads, so that it is short, but whole ones: tokens alone say nothing of prompts.
        longest = max(one.cycle * one.mean_inference for one in self._runners)
        busy: dict[str, float] = {}  # seconds of each device in a run; a split counts on all of its devices
        for runner, count in zip(self._runners, counts, strict=True):
            for name in runner.compiled.get_property("EXECUTION_DEVICES") if objective == "throughput" else [""]:
                busy[name] = busy.get(name, 0.0) + count * runner.mean_inference
        seconds = max(busy.values())
        fewest = min(count / runner.cycle for runner, count in zip(self._runners, counts, strict=True))
        self._unit = max(fewest, seconds / max(_LONG, 2 * longest)) if objective == "throughput" else 1.0
        self._counts = [count / self._unit for count in counts]
        self._seconds = seconds / self._unit  # time of a run, seconds
        self.submodels = sum(runner.submodels for runner in self._runners)
        # Gets an item whenever an inference of a trial of throughput ends.
        self._ends: queue.SimpleQueue[None] = queue.SimpleQueue()
        for runner in self._runners if objective == "throughput" else ():
            runner.queue.set_callback(partial(_record_end, runner.finished, self._ends))
        self.rates: dict[str, float] = {}
        self._fewest, self._before = (_FEWEST, _BEFORE) if round(self._seconds, 6) < _LONG else _FEW

    @property
    def shortest_trial(self) -> float:
        """About the shortest possible time of a trial, seconds."""
        return (self._fewest + (self._before + 1) * (self._objective == "throughput")) * self._seconds

    def rate(self, seconds: float, alone: bool = True) -> float:
        """Runs a trial.

        Args:
            seconds: about the time of the trial, seconds.
            alone: not used, as the load is not measured.

        Returns:
            Runs of the application per second; for latency, the inverse of the median time of a run.

        Raises:
            RuntimeError: inference fails.
        """
        if self._objective == "throughput":
            return self._throughput(seconds) / self._unit
        with ThreadPoolExecutor(len(self._runners)) as pool:
            return self._latency(pool, seconds)

    def _throughput(self, seconds: float) -> float:
        """Runs a trial of throughput: idle requests are started, with no model more than a run ahead of the slowest.

        At least the first `_before` + 1 runs, in which the devices fill, do not count.

        Args:
            seconds: least time of the counted part, seconds.

        Returns:
            Complete runs per second, scaled down as in the constructor.
        """
        for runner in self._runners:
            runner.finished.clear()
        started, begin, done = [0] * len(self._runners), 0, 0
        while not begin or done - begin < self._fewest or self._end_of_run(done) - self._end_of_run(begin) < seconds:
            # A model that could go on alone is at most one run ahead: in a short trial, its lead would take time from
            # the other models.
            slowest = min(some / count for some, count in zip(started, self._counts, strict=True))
            for number, (runner, count) in enumerate(zip(self._runners, self._counts, strict=True)):
                while started[number] < (slowest + 1) * count and runner.queue.is_ready():
                    runner.start_next(self._at[number] + started[number])
                    started[number] += 1
            try:
                self._ends.get(timeout=_SILENCE)
            except queue.Empty:
                self._wait()  # raises the error of an inference that has failed
            runs = (len(one.finished) / count for one, count in zip(self._runners, self._counts, strict=True))
            done = math.floor(min(runs) + 1e-9)
            begin = begin or (done if done > self._before else 0)
        self._wait()
        self._at = [at + some for at, some in zip(self._at, started, strict=True)]
        while not self._ends.empty():
            self._ends.get()
        return (done - begin) / (self._end_of_run(done) - self._end_of_run(begin))

    def _wait(self) -> None:
        """Waits for all inferences. Raises RuntimeError where one has failed."""
        for runner in self._runners:
            runner.queue.wait_all()

    def _end_of_run(self, run: int) -> float:
        """Returns the time of `time.perf_counter` at which a run was complete, seconds; runs are numbered from 1."""
        return max(
            one.finished[max(math.ceil(run * count - 1e-9), 1) - 1]
            for one, count in zip(self._runners, self._counts, strict=True)
        )

    def _latency(self, pool: ThreadPoolExecutor, seconds: float) -> float:
        """Runs a trial of latency, one run of the application at a time.

        Args:
            pool: has a thread for each model.
            seconds: time of the trial, seconds; it is longer where fewer than `_fewest` runs have ended.

        Returns:
            The inverse of the median time of a run, 1/s.
        """
        times: list[float] = []
        for runner in self._runners:
            runner.finished.clear()
        begin = time.perf_counter()
        while len(times) < self._fewest or time.perf_counter() - begin < seconds:
            start = time.perf_counter()
            running: dict[int, Future[None]] = {}
            for number in self._order:
                running[number] = pool.submit(self._run, number, [running[other] for other in self._after[number]])
            for one in running.values():
                one.result()
            times.append(time.perf_counter() - start)
        return 1 / statistics.median(times)

    def _run(self, number: int, sources: Sequence[Future[None]]) -> None:
        """Waits for the models that one model depends on, then runs its inferences of a run one after the other.

        Args:
            number: number of the model.
            sources: pending runs of the models that it waits for.
        """
        for source in sources:
            source.result()
        runner = self._runners[number]
        for inference in range(max(round(self._counts[number]), 1)):
            runner.start_next(inference)
            runner.queue.wait_all()

    def outputs(self) -> list[NDArray[Any]]:
        """Computes the outputs of all models, one model after the other, see `Runner.outputs`."""
        return [array for runner in self._runners for array in runner.outputs()]


def _record_end(finished: list[float], ends: queue.SimpleQueue[None], *_: object) -> None:
    """Records the end of an inference, as the callback of a queue.

    It must not refer to the queue, as Python never frees cycles through C++ objects.

    Args:
        finished: list that gets the time of `time.perf_counter`, seconds.
        ends: queue that gets an item.
    """
    finished.append(time.perf_counter())
    ends.put(None)
