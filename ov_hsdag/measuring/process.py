"""Worker processes as their parent sees them: started, asked within a time limit, and gone when they are not needed.

A `Workshop` is a model in a temporary folder, with workers that compile and run it (`ov_hsdag.measuring.worker`).
Whatever a worker does, its parent gets an answer or a `WorkerError` with the reason in one line.

Nothing is left behind: workers end with the pipe from their parent, however their
parent ended; the folder is removed by the parent, else by a worker, else by the next workshop of the machine.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from numpy.typing import NDArray

from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring import worker
from ov_hsdag.measuring.together import Beside
from ov_hsdag.model.inputs import TimedInputs
from ov_hsdag.model.placement import Placement
from ov_hsdag.storage.files import remove_leftovers, save_model, temporary_name
from ov_hsdag.utils.errors import RunError, UserError, one_line
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.reading import read_arrays

# Seconds in which a worker has to have imported OpenVINO and read the model, beside the limit of its first compilation.
_START = 15.0

PATIENCE = 120.0
"""Seconds that compiling, or a trial, may take before a worker counts as hanging."""

# What a worker that was killed may take to be gone.
_GRACE = 5.0

# Seconds after which a folder that nothing was written to is not in use. Containers may share the place of it and the
# host's name, and not the process numbers: what is in use changes often.
_UNUSED = 3600.0

_ENTRY = "ov_hsdag.measuring.worker:main"


@dataclass(frozen=True)
class Candidate:
    """A way to run a model, as plain data."""

    # what `compile_model` is given: "GPU" or "HETERO:GPU,CPU"; "MULTI:GPU,CPU" for a copy on each, which are compiled
    # on their own, with the same properties as a single device
    device: str
    affinity: Mapping[str, str] | None = None  # device of each node by friendly name; None: HETERO decides
    properties: Mapping[str, Any] = field(default_factory=dict)  # of `compile_model`, besides what virtual devices need
    beside: Sequence[Candidate] = ()  # how the other models of an application run

    def way(self) -> dict[str, Any]:
        """What a worker is told of one model."""
        affinity = None if self.affinity is None else dict(self.affinity)
        return {"device": self.device, "affinity": affinity, "properties": dict(self.properties)}

    @classmethod
    def copies(cls, names: Sequence[str]) -> Candidate:
        """A copy of the model on each of some devices, all at work at the same time."""
        return cls(worker.ON_EACH + ",".join(names))

    @classmethod
    def placed(cls, devices: DeviceSet, affinity: Mapping[str, str]) -> Candidate:
        """A placement."""
        return cls(devices.hetero, affinity)


def require_temporary_folder() -> None:
    """Checks that workshops can be made here. Raises RunError where no folder for temporary files can be written to."""
    try:
        tempfile.gettempdir()
    except OSError as error:
        raise _no_folder(error) from error


class WorkerError(RunError):
    """A worker could not do what it was asked for: why, in one line."""


class WorkerTimeout(WorkerError):
    """A worker did not do it in time."""


class Workshop(contextlib.AbstractContextManager["Workshop"]):
    """A model and its inputs in a temporary folder, for as many workers as are wanted.

    Ends with `close`, at the end of a `with` block, or when it is forgotten.
    """

    def __init__(
        self,
        model: ov.Model,
        inputs: Sequence[TimedInputs],
        objective: str,
        start_worker: StartWorker | None = None,
        extensions: Sequence[str] = (),
        beside: Beside | None = None,
    ) -> None:
        """Writes the folder. Raises RunError where there is no temporary one, or the model cannot be written.

        model: with unique friendly names (`ov_hsdag.model.normalize`); not changed, its placement is left out. inputs:
        an array for each input of the model, or what is timed, the phases of a workload. extensions: libraries with
        operations of the model. beside: other models that run at the same time.
        """
        try:
            place = Path(tempfile.gettempdir()) / "ov_hsdag-measure"
            remove_leftovers(place, _UNUSED)
            self.folder = temporary_name(place)
            self.folder.mkdir(0o700)
        except OSError as error:
            raise _no_folder(error) from error
        self._objective = objective
        self._start_worker = start_worker or Worker
        self._workers: list[Worker] = []
        self._end = weakref.finalize(self, _close, self.folder, self._workers, os.getpid())
        parts = [(model, inputs), *zip(beside.models, beside.inputs, strict=True)] if beside else [(model, inputs)]
        settings = {
            "extensions": list(extensions),
            "counts": list(beside.counts) if beside else [1.0],
            "after": [list(one) for one in beside.after] if beside else [[]],
            "order": list(beside.order) if beside else [0],
        }
        try:
            for number, (one, timed) in enumerate(parts):
                copy = one.clone()
                Placement.strip(copy)
                path, array = (self.folder / name for name in worker.files(number))
                save_model(copy, path, False, path, sync=False)
                worker.write_inputs(array, timed)
            (self.folder / worker.SETTINGS).write_text(json.dumps(settings), encoding="utf-8")
        except (UserError, RunError, OSError) as error:
            self.close()
            raise RunError(f"cannot write the model for measuring: {one_line(error.__cause__ or error)}") from error
        except BaseException:
            self.close()
            raise

    def start(self, name: str = "") -> Worker:
        """A new worker, still importing when this returns. Raises WorkerError where no process can be started."""
        try:
            started = self._start_worker(self.folder, self._objective, name)
        except OSError as error:
            raise WorkerError(f"cannot start a process for measuring: {error}") from error
        self._workers.append(started)
        return started

    def close(self) -> None:
        """Ends all workers and removes the folder."""
        self._end()

    def __exit__(self, *_: object) -> None:
        self.close()


class Worker:
    """One process, which has one model compiled at a time."""

    def __init__(self, folder: Path, objective: str, name: str = "", entry: str = _ENTRY) -> None:
        """Starts the process, which calls the entry ("module:function") with the workshop's folder and objective.

        Raises OSError where no process can be started.
        """
        self.name = name  # of what it is for
        self.alive = True  # it can be asked; once it cannot, that stays so
        self.compiled = False  # it holds something that runs
        self.submodels = 0  # that HETERO made of what it compiled last; 1 on a single device
        self.shortest_trial = 0.0  # about how many seconds a trial of that takes at least
        self.rates: dict[str, float] = {}  # of each phase in the last trial, inferences per second, by name
        self.busy_us: list[float] = []  # see `Runner.busy_us`, of the last trial
        self._ready = False
        self._folder = folder
        self._number = next(_numbers)
        self._log = open(folder / f"{self._number}.log", "w+b")  # noqa: SIM115 closed by `end`
        # The parent's own search path: the package may be found there only, and the script that runs is not imported.
        module, _, function = entry.partition(":")
        code = f"import sys; sys.path[:] = sys.argv[3:]; from {module} import {function} as main; main(*sys.argv[1:3])"
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code, str(folder), objective, *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                # What is compiled is exactly what is asked for: no placement is followed besides.
                env={**os.environ, "OV_HSDAG_DISABLE": "1"},
                # Ctrl-C is for the parent, who ends its workers.
                start_new_session=True,
            )
        except OSError:
            self._log.close()
            raise
        self._answers: queue.SimpleQueue[dict[str, Any] | Exception | None] = queue.SimpleQueue()
        try:
            threading.Thread(target=_collect, args=(self._process.stdout, self._answers), daemon=True).start()
        except RuntimeError as error:  # the system gives no more threads
            self.end()
            if self._process.stdout is not None:
                self._process.stdout.close()
            raise OSError(errno.EAGAIN, str(error)) from error

    def compile(self, candidate: Candidate, limit: float) -> list[NDArray[Any]]:
        """Compiles in place of what was compiled before, warms up and infers once; returns the outputs.

        limit: seconds once the worker is ready. Raises WorkerError where it fails, or the outputs cannot be read.
        """
        self.compiled = False
        if not self._ready:
            self._receive(limit + _START, "starting")
            self._ready = True
        ways, outputs = (self._folder / f"worker-{self._number}.{suffix}" for suffix in ("json", "npz"))
        try:
            # By way of files: a pipe takes only so much from a writer whose reader hangs.
            ways.write_text(json.dumps([one.way() for one in (candidate, *candidate.beside)]), encoding="utf-8")
            answer = self._ask({"do": "compile", "ways": str(ways), "outputs": str(outputs)}, limit, "compiling")
            self.submodels, self.shortest_trial = int(answer["submodels"]), float(answer["shortest_trial"])
            arrays = list(read_arrays(outputs).values())
            self.compiled = True
            return arrays
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            self.end()
            raise WorkerError(f"its files or answers are damaged: {one_line(error)}") from error
        finally:
            ways.unlink(missing_ok=True)
            outputs.unlink(missing_ok=True)

    def rate(self, seconds: float, limit: float, alone: bool = True) -> float:
        """Inferences per second (1 / median latency for that objective) in a trial of about so many seconds.

        alone: no other worker has a trial at the same time. Raises WorkerError where it failed, or took longer than
        `limit` seconds.
        """
        answer = self._ask({"do": "trial", "seconds": seconds, "alone": alone}, limit, "running")
        rate, self.rates = answer.get("rate"), answer.get("rates", {})
        self.busy_us = answer.get("busy_us", [])
        if not isinstance(rate, float | int) or not 0 < rate < float("inf"):
            self.end()
            raise WorkerError(f"it answered {rate!r} where a rate was asked for")
        return float(rate)

    def end(self) -> None:
        """Ends the process, whatever it does. Nothing happens the second time."""
        self.alive = False
        self._process.kill()
        # A process that hangs in a device's driver is gone only when the driver lets it go.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE)
        for stream in (self._process.stdin, self._log):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _ask(self, command: Mapping[str, Any], limit: float, doing: str) -> dict[str, Any]:
        if not self.alive or self._process.stdin is None:
            raise WorkerError("its worker has ended")
        try:
            worker.write_frame(self._process.stdin, command)
        except OSError:
            raise WorkerError(self._obituary(doing)) from None
        return self._receive(limit, doing)

    def _receive(self, limit: float, doing: str) -> dict[str, Any]:
        """The next answer. Raises WorkerError where there is none, or one that says why not."""
        try:
            answer = self._answers.get(timeout=max(limit, 0.0))
        except queue.Empty:
            self.end()
            raise WorkerTimeout(f"no answer within {limit:.0f} s of {doing}") from None
        if answer is None:
            raise WorkerError(self._obituary(doing))
        if isinstance(answer, Exception):
            self.end()
            raise WorkerError(f"its worker answered with garbage while {doing}")
        if "error" in answer:
            raise WorkerError(str(answer["error"]))
        return answer

    def _obituary(self, doing: str) -> str:
        """Why the process has ended by itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE)
        status = self._process.returncode
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        self.end()
        if status is None:
            how = "closed its pipe"
        elif status < 0:
            how = f"was ended by {_signal_name(-status)}"
        else:
            how = f"ended with status {status}"
        return f"its worker {how} while {doing}" + (f": {lines[-1][:200]}" if lines else "")


StartWorker = Callable[[Path, str, str], Worker]
"""Starts a worker for a folder, an objective and the name of what it is for; may raise OSError."""

_numbers = itertools.count()


def _collect(stream: IO[bytes], answers: queue.SimpleQueue[dict[str, Any] | Exception | None]) -> None:
    """Hands a worker's answers on, then None for the end of its pipe or the error that its answers are."""
    with stream:
        try:
            while (message := worker.read_frame(stream)) is not None:
                answers.put(message)
            answers.put(None)
        except (ValueError, OSError) as error:
            answers.put(error)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _close(folder: Path, workers: list[Worker], owner: int) -> None:
    if os.getpid() != owner:  # a fork of the process that they belong to
        return
    for one in workers:
        one.end()
    shutil.rmtree(folder, ignore_errors=True)


def _no_folder(error: OSError) -> RunError:
    return RunError(f"measuring needs a temporary folder (TMPDIR): {one_line(error)}")
