"""The compiled models of an application, running as it does: each in its own requests, all in proportion."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ov_hsdag.measuring.runner import Copies, Runner

if TYPE_CHECKING:
    import openvino as ov
    from numpy.typing import NDArray

    from ov_hsdag.model.inputs import TimedInputs

# Runs that a model may be ahead of the slowest one, beside its requests in flight.
_AHEAD = 2

# Runs that a trial has at least, and seconds between two looks at whether a model may go on.
_FEWEST, _LOOK = 3, 5e-4


@dataclass(frozen=True, eq=False)
class Beside:
    """Models that run beside a first one, as one application."""

    models: Sequence[ov.Model]  # the others, normalized
    inputs: Sequence[Sequence[TimedInputs]]  # of the others
    counts: Sequence[float]  # inferences of each in a run of the application, of the first one too
    after: Sequence[Sequence[int]]  # numbers of the models that each waits for, of the first one too


class Together:
    """Runs of an application: every model as often as it is asked for."""

    busy_us: Sequence[float] = ()

    def __init__(
        self,
        runners: Sequence[Runner | Copies],
        objective: str,
        counts: Sequence[float],
        after: Sequence[Sequence[int]],
    ) -> None:
        """runners: of each model, warm. counts, after: see `Beside`."""
        self._runners = [runner for runner in runners if isinstance(runner, Runner)]
        self._objective, self._after = objective, after
        # A run has at least one inference of each model, so that trials need not be long.
        self._unit = min(counts) if objective == "throughput" else 1.0
        self._counts = [count / self._unit for count in counts]
        self.submodels = sum(runner.submodels for runner in self._runners)
        self.rates: dict[str, float] = {}

    @property
    def shortest_trial(self) -> float:
        """See `Runner.shortest_trial`."""
        return (_FEWEST + _AHEAD) * sum(
            count * runner.mean_inference for runner, count in zip(self._runners, self._counts, strict=True)
        )

    def rate(self, seconds: float) -> float:
        """Runs of the application per second, in a trial of about so many seconds. Raises RuntimeError."""
        with ThreadPoolExecutor(len(self._runners)) as pool:
            found = self._throughput(pool, seconds) if self._objective == "throughput" else self._latency(pool, seconds)
        return found / self._unit

    def _throughput(self, pool: ThreadPoolExecutor, seconds: float) -> float:
        """Runs that are complete, over the time between the first of them, once all models are busy, and the last."""
        enough = threading.Event()
        for runner in self._runners:
            runner.finished.clear()
        feeding = [pool.submit(self._feed, number, enough) for number in range(len(self._runners))]
        begin = None
        while not enough.is_set():
            time.sleep(_LOOK)
            done = self._complete()
            if begin is None and done > _AHEAD:
                begin = done
            if begin is not None and done - begin >= _FEWEST and self._ended(done) - self._ended(begin) >= seconds:
                enough.set()
            if any(one.done() for one in feeding):  # has failed
                enough.set()
        for one in feeding:
            one.result()
        assert begin is not None
        return (done - begin) / (self._ended(done) - self._ended(begin))

    def _feed(self, number: int, enough: threading.Event) -> None:
        """Starts inferences of one model while it is not too far ahead of the others."""
        runner, count = self._runners[number], self._counts[number]
        started = 0
        try:
            while not enough.is_set():
                if started < (self._complete() + _AHEAD) * count + len(runner.queue):
                    runner.start_next(started)
                    started += 1
                else:
                    time.sleep(_LOOK)
        except BaseException:
            enough.set()
            raise
        finally:
            runner.queue.wait_all()

    def _complete(self) -> int:
        """Runs of the application that are complete."""
        done = (len(one.finished) / count for one, count in zip(self._runners, self._counts, strict=True))
        return math.floor(min(done) + 1e-9)

    def _ended(self, run: int) -> float:
        """When the run of this number was complete, counted from 1, seconds."""
        ends = (
            one.finished[max(math.ceil(run * count - 1e-9), 1) - 1]
            for one, count in zip(self._runners, self._counts, strict=True)
        )
        return max(ends)

    def _latency(self, pool: ThreadPoolExecutor, seconds: float) -> float:
        """One over the median time of a run."""
        times: list[float] = []
        begin = time.perf_counter()
        while len(times) < _FEWEST or time.perf_counter() - begin < seconds:
            start = time.perf_counter()
            running: dict[int, Future[None]] = {}
            while len(running) < len(self._runners):
                ready = [
                    n for n in range(len(self._runners)) if n not in running and running.keys() >= {*self._after[n]}
                ]
                for number in ready:
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
