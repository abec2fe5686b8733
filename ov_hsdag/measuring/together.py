"""The compiled models of an application, running as it does: each in its own requests, all in proportion."""

from __future__ import annotations

import math
import queue
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from numpy.typing import NDArray

from ov_hsdag.measuring.runner import Copies, Runner, TrialLoad
from ov_hsdag.model.inputs import TimedInputs
from ov_hsdag.utils.lazy import ov

# Runs that a trial has at least, and before it counts; the same where a run takes so many seconds, as of more runs only
# few plans would be measured. Longer it is only where the longest workload is: of a model that runs very seldom beside
# others, it does not wait for each inference.
_FEWEST, _BEFORE, _FEW, _LONG = 3, 2, (1, 1), 2.0

# Seconds without the end of an inference after which one may have failed.
_SILENCE = 5.0


@dataclass(frozen=True, eq=False)
class Beside:
    """Models that run beside a first one, as one application."""

    models: Sequence[ov.Model]  # the others, normalized
    inputs: Sequence[Sequence[TimedInputs]]  # of the others
    counts: Sequence[float]  # inferences of each in a run of the application, of the first one too
    after: Sequence[Sequence[int]]  # numbers of the models that each waits for, of the first one too
    order: Sequence[int]  # numbers of all models, in which those that can run at the same time begin


class Together:
    """Runs of an application: every model as often as it is asked for."""

    busy_us: Sequence[float] = ()
    load: TrialLoad | None = None  # an application's trials do not tell what other programs take

    def __init__(
        self,
        runners: Sequence[Runner | Copies],
        objective: str,
        counts: Sequence[float],
        after: Sequence[Sequence[int]],
        order: Sequence[int],
    ) -> None:
        """Raises RuntimeError where a model runs as copies: its requests have no order that others could wait for.

        Args:
            runners: of each model, warm.
            objective: "throughput" or "latency".
            counts: see `Beside`.
            after: see `Beside`.
            order: see `Beside`.
        """
        self._runners = [runner for runner in runners if isinstance(runner, Runner)]
        if len(self._runners) < len(runners):
            raise RuntimeError("a model of an application runs on a device or on HETERO, and not as copies")
        self._objective, self._after, self._order = objective, after, order
        self._at = [0] * len(self._runners)  # inference that each trial begins with: it may be less than a workload
        # A run has whole workloads, as tokens alone say nothing of prompts, and few of them: trials need not be long.
        longest = max(one.cycle * one.mean_inference for one in self._runners)
        busy: dict[str, float] = {}  # seconds of each device in a run, a split on all of its devices
        for one, count in zip(self._runners, counts, strict=True):
            for name in one.compiled.get_property("EXECUTION_DEVICES") if objective == "throughput" else [""]:
                busy[name] = busy.get(name, 0.0) + count * one.mean_inference
        seconds = max(busy.values())
        fewest = min(count / one.cycle for one, count in zip(self._runners, counts, strict=True))
        self._unit = max(fewest, seconds / max(_LONG, 2 * longest)) if objective == "throughput" else 1.0
        self._counts = [count / self._unit for count in counts]
        self._seconds = seconds / self._unit  # a run
        self.submodels = sum(runner.submodels for runner in self._runners)
        # One item for each inference of a trial of throughput that ends.
        self._ends: queue.SimpleQueue[None] = queue.SimpleQueue()
        for runner in self._runners if objective == "throughput" else ():
            runner.queue.set_callback(partial(_note, runner.finished, self._ends))
        self.rates: dict[str, float] = {}
        self._fewest, self._before = (_FEWEST, _BEFORE) if round(self._seconds, 6) < _LONG else _FEW

    @property
    def shortest_trial(self) -> float:
        """See `Runner.shortest_trial`."""
        return (self._fewest + (self._before + 1) * (self._objective == "throughput")) * self._seconds

    def rate(self, seconds: float, alone: bool = True) -> float:
        """See `Runner.rate`: runs of the application per second."""
        if self._objective == "throughput":
            return self._throughput(seconds) / self._unit
        with ThreadPoolExecutor(len(self._runners)) as pool:
            return self._latency(pool, seconds)

    def _throughput(self, seconds: float) -> float:
        """Runs that are complete, over the time between the first of them, once all models are busy, and the last."""
        for runner in self._runners:
            runner.finished.clear()
        started, begin, done = [0] * len(self._runners), 0, 0
        while not begin or done - begin < self._fewest or self._ended(done) - self._ended(begin) < seconds:
            # Whatever could go on alone is a run ahead at most: in a short trial, its lead is time taken from others.
            slowest = min(some / count for some, count in zip(started, self._counts, strict=True))
            for number, (runner, count) in enumerate(zip(self._runners, self._counts, strict=True)):
                while started[number] < (slowest + 1) * count and runner.queue.is_ready():
                    runner.start_next(self._at[number] + started[number])
                    started[number] += 1
            try:
                self._ends.get(timeout=_SILENCE)
            except queue.Empty:
                self._wait()  # raises what an inference failed of
            runs = (len(one.finished) / count for one, count in zip(self._runners, self._counts, strict=True))
            done = math.floor(min(runs) + 1e-9)
            begin = begin or (done if done > self._before else 0)
        self._wait()
        self._at = [at + some for at, some in zip(self._at, started, strict=True)]
        while not self._ends.empty():
            self._ends.get()
        return (done - begin) / (self._ended(done) - self._ended(begin))

    def _wait(self) -> None:
        for runner in self._runners:
            runner.queue.wait_all()

    def _ended(self, run: int) -> float:
        """When the run of this number was complete, counted from 1, seconds."""
        return max(
            one.finished[max(math.ceil(run * count - 1e-9), 1) - 1]
            for one, count in zip(self._runners, self._counts, strict=True)
        )

    def _latency(self, pool: ThreadPoolExecutor, seconds: float) -> float:
        """One over the median time of a run."""
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
        """One model's inferences of a run, one after the other, when those that it waits for have ended."""
        for source in sources:
            source.result()
        runner = self._runners[number]
        for inference in range(max(round(self._counts[number]), 1)):
            runner.start_next(inference)
            runner.queue.wait_all()

    def outputs(self) -> list[NDArray[Any]]:
        """See `Runner.outputs`: of all models."""
        return [array for runner in self._runners for array in runner.outputs()]


def _note(finished: list[float], ends: queue.SimpleQueue[None], *_: object) -> None:
    """A callback of inferences. It must not refer to their queue: cycles through C++ are never freed."""
    finished.append(time.perf_counter())
    ends.put(None)
