"""What can happen to a worker: entry points of worker processes that fail, and the factory that starts them."""

from __future__ import annotations

import os
import queue
import resource
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ov_hsdag.measuring import worker
from ov_hsdag.measuring.co_running import TrialRunner
from ov_hsdag.measuring.process import Candidate, StartWorker, Worker
from ov_hsdag.utils import child


def starting(faults: Mapping[str, str]) -> StartWorker:
    """Starts workers, those of some candidates with a fault: the name of one of this module's entry points."""

    def start(folder: Path, objective: str, name: str) -> Worker:
        if name not in faults:
            return Worker(folder, objective, name)
        kind = _IMPATIENT.get(faults[name], Worker)
        return kind(folder, objective, name, entry=f"tests.worker_faults:{faults[name]}")

    return start


class _ImpatientCompiling(Worker):
    """Is given up after a second of compiling: what hangs need not be waited for."""

    def compile(self, candidate: Candidate, limit: float) -> list[np.ndarray]:
        return super().compile(candidate, min(limit, 1.0))


class _ImpatientRunning(Worker):
    """Is given up after a second of a trial."""

    def rate(self, seconds: float, limit: float, alone: bool = True) -> float:
        return super().rate(seconds, min(limit, 1.0), alone)


_IMPATIENT = {
    "hangs_compiling": _ImpatientCompiling,
    "hangs_running": _ImpatientRunning,
    "stopped_running": _ImpatientRunning,
}


Result = TypeVar("Result")


def within(seconds: float, act: Callable[[], Result]) -> Result:
    """What it returns or raises; fails where it takes longer, without waiting for it."""
    answers: queue.SimpleQueue[Result | BaseException] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put(act())
        except BaseException as error:
            answers.put(error)

    threading.Thread(target=run, daemon=True).start()
    answer = answers.get(timeout=seconds)
    if isinstance(answer, BaseException):
        raise answer
    return answer


Entry = Callable[[str, str], None]


def before(method: str, act: Callable[[], object]) -> Entry:
    """Runs a worker that acts before it compiles ("compile") or runs ("trial")."""

    def entry(folder: str, objective: str) -> None:
        class Faulty(worker.WorkerServer):
            pass

        real = getattr(worker.WorkerServer, method)

        def faulty(self: worker.WorkerServer, *arguments: Any) -> Any:
            act()
            return real(self, *arguments)

        setattr(Faulty, method, faulty)
        worker.main(folder, objective, Faulty)

    return entry


def computing(change: Callable[[list[np.ndarray]], list[np.ndarray]]) -> Entry:
    """Runs a worker whose outputs are changed."""

    class Faulty(worker.WorkerServer):
        def outputs(self, runner: TrialRunner) -> list[np.ndarray]:
            return change(super().outputs(runner))

    return lambda folder, objective: worker.main(folder, objective, Faulty)


def answering(write: Callable[[Any, dict[str, Any]], None]) -> Entry:
    """Runs a worker that writes something else where it should tell a rate."""
    right = child.write_frame

    def entry(folder: str, objective: str) -> None:
        def answer(stream: Any, message: dict[str, Any]) -> None:
            (write if "rate" in message else right)(stream, message)

        vars(worker)["write_frame"] = answer
        worker.main(folder, objective)

    return entry


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def hang() -> None:
    time.sleep(3600)


def refuse() -> None:
    raise RuntimeError("Exception from src/plugin.cpp:12:\nno kernel for this")


def leave() -> None:
    os._exit(0)


def without_memory() -> None:
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


def one_nan(arrays: list[np.ndarray]) -> list[np.ndarray]:
    arrays[0].flat[0] = np.nan
    return arrays


def other(arrays: list[np.ndarray]) -> list[np.ndarray]:
    arrays[0].flat[0] += 0.5 * np.abs(arrays[0]).max()
    return arrays


def garbage(stream: Any, message: dict[str, Any]) -> None:
    stream.write(b"[ INFO ] loading kernels\n")
    stream.flush()


right_frame = child.write_frame


def odd_rate(stream: Any, message: dict[str, Any]) -> None:
    right_frame(stream, {"rate": None})


def killed_at_start(folder: str, objective: str) -> None:
    kill()


killed_compiling = before("compile", kill)
killed_running = before("trial", kill)
hangs_compiling = before("compile", hang)
hangs_running = before("trial", hang)
stopped_running = before("trial", stop)
refuses_to_compile = before("compile", refuse)
refuses_to_run = before("trial", refuse)
out_of_memory = before("compile", without_memory)
ends_early = before("trial", leave)
nan = computing(one_nan)
wrong = computing(other)
talks_garbage = answering(garbage)
answers_oddly = answering(odd_rate)
