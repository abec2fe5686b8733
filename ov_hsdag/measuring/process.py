"""The parent's side of worker processes: it starts them, sends commands with time limits, and ends them.

A `WorkerPool` is a model in a temporary folder, with workers that compile and run it (`ov_hsdag.measuring.worker`).
Whatever a worker does, its parent gets an answer, or a `WorkerError` with the reason in one line.

Nothing is left behind. Workers end when the pipe from their parent closes, however the parent ended. The folder is
removed by the parent, else by a worker, else by the next pool on the machine.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring import worker
from ov_hsdag.measuring.co_running import CoRunningModels
from ov_hsdag.measuring.runner import TrialLoad
from ov_hsdag.model.inputs import TimedInputs
from ov_hsdag.model.placement import Placement
from ov_hsdag.storage.files import save_model
from ov_hsdag.storage.scratch import scratch_folder
from ov_hsdag.utils.child import Child, ChildError, ChildTimeout
from ov_hsdag.utils.errors import RunError, UserError, one_line
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.reading import read_arrays

# Time, seconds, in which a worker has to import OpenVINO and read the model; it is added to the time limit of its first
# compilation.
_START = 15.0

PATIENCE = 120.0
"""Time, seconds, that compiling, or a trial, may take before a worker counts as hanging."""

_ENTRY = "ov_hsdag.measuring.worker:main"
"""Function that a worker process runs."""


@dataclass(frozen=True)
class Candidate:
    """A way to run a model, as plain data.

    Attributes:
        device: argument of `compile_model`: "GPU" or "HETERO:GPU,CPU". "MULTI:GPU,CPU" stands for a copy on each of
            these devices; the copies are compiled separately, with the same properties as on a single device.
        affinity: device of each node, by friendly name; None where HETERO decides.
        properties: properties for `compile_model`, beside those that virtual devices need.
        co_running: candidates of the models that run in the same trials, see `CoRunningModels`.
    """

    device: str
    affinity: Mapping[str, str] | None = None
    properties: Mapping[str, Any] = field(default_factory=dict)
    co_running: Sequence[Candidate] = ()

    def way(self) -> dict[str, Any]:
        """The part of a worker's command that says how this model runs, JSON-able; without the co-running models."""
        affinity = None if self.affinity is None else dict(self.affinity)
        return {"device": self.device, "affinity": affinity, "properties": dict(self.properties)}

    @classmethod
    def copies(cls, names: Sequence[str]) -> Candidate:
        """Returns the candidate that runs a copy of the model on each of the devices `names` at the same time."""
        return cls(worker.ON_EACH + ",".join(names))

    @classmethod
    def placed(cls, devices: DeviceSet, affinity: Mapping[str, str]) -> Candidate:
        """Returns the candidate that runs a placement on HETERO; `affinity` is the device of each node by name."""
        return cls(devices.hetero, affinity)


class WorkerError(ChildError):
    """A worker failed to do what a command asked for; the text is the reason in one line."""


class WorkerTimeout(WorkerError, ChildTimeout):
    """A worker did not answer within the time limit of a command."""


class WorkerPool(contextlib.AbstractContextManager["WorkerPool"]):
    """A temporary folder with a model and its inputs, and the workers that use it.

    It ends with `close`, at the end of a `with` block, or when it is garbage-collected.

    Attributes:
        folder: the temporary folder.
    """

    def __init__(
        self,
        model: ov.Model,
        inputs: Sequence[TimedInputs],
        objective: str,
        start_worker: StartWorker | None = None,
        like: Mapping[str, Any] | None = None,
        co_running: CoRunningModels | None = None,
    ) -> None:
        """Writes the folder; no worker is started yet.

        Args:
            model: the model, with unique friendly names (`ov_hsdag.model.normalize`). It is not changed, and written
                without its placement.
            inputs: inputs of each phase that is timed.
            objective: "latency" or "throughput".
            start_worker: starts a worker process; by default a local one.
            like: description of the Core that workers make (`ov_hsdag.devices.same_core`); a new Core by default.
            co_running: models that run in the same trials; None for none.

        Raises:
            RunError: there is no temporary folder, or the model cannot be written.
        """
        self.folder = scratch_folder()
        self._objective = objective
        self._start_worker = start_worker or Worker
        self._workers: list[Worker] = []
        self._end = weakref.finalize(self, _close, self.folder, self._workers, os.getpid())
        parts = [(model, inputs)]
        settings: dict[str, Any] = {"core": dict(like or {})}
        if co_running is not None:
            parts += zip(co_running.models, co_running.inputs, strict=True)
            settings["runner"] = {"factory": co_running.factory, "arguments": dict(co_running.arguments)}
        settings["models"] = len(parts)
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
        """Starts a worker, which is still importing when this returns.

        Args:
            name: name of the candidate that it is for.

        Raises:
            WorkerError: no process can be started.
        """
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
        """Ends the workers and removes the folder."""
        self.close()


class Worker(Child):
    """A worker process, which has one candidate compiled at a time.

    Attributes:
        name: name of the candidate that it was started for.
        compiled: whether it holds a compiled candidate.
        submodels: number of submodels that HETERO made of the last compiled candidate; 1 on a single device, and 0
            before the first compilation.
        shortest_trial: about the shortest possible time of a trial of that candidate, seconds.
        rates: inferences per second of each phase in the last trial, by phase.
        busy_us: processor time of each submodel in an inference of the last trial, see `Runner.busy_us`.
        load: load of the cores in the last trial, see `Runner.load`; None where it is not known.
    """

    error, timeout, called = WorkerError, WorkerTimeout, "its worker"

    def __init__(self, folder: Path, objective: str, name: str = "", entry: str = _ENTRY) -> None:
        """Starts the process, which imports OpenVINO and reads the model meanwhile.

        Args:
            folder: the pool's folder.
            objective: "latency" or "throughput".
            name: name of the candidate that it is started for.
            entry: function that the process calls with folder and objective, "module:function".

        Raises:
            OSError: no process can be started.
        """
        self.name = name
        self.compiled = False
        self.submodels = 0
        self.shortest_trial = 0.0
        self.rates: dict[str, float] = {}
        self.busy_us: list[float] = []
        self.load: TrialLoad | None = None
        self._ready = False
        self._folder = folder
        self._number = next(_numbers)
        super().__init__(entry, [str(folder), objective], folder / f"{self._number}.log")

    def compile(self, candidate: Candidate, limit: float) -> list[NDArray[Any]]:
        """Compiles a candidate in place of the one before, warms it up and infers once.

        Args:
            candidate: the candidate.
            limit: time limit, seconds; where the worker is not ready yet, the time for starting is added.

        Returns:
            The outputs of the inference.

        Raises:
            WorkerError: it failed or took too long, or the outputs cannot be read.
        """
        self.compiled = False
        if not self._ready:
            self._receive(limit + _START, "starting")
            self._ready = True
        ways, outputs = (self._folder / f"worker-{self._number}.{suffix}" for suffix in ("json", "npz"))
        try:
            # Data go through files: writing much to a pipe would block where the worker hangs.
            ways.write_text(json.dumps([one.way() for one in (candidate, *candidate.co_running)]), encoding="utf-8")
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
        """Runs a trial of the compiled candidate.

        Args:
            seconds: about the time of the trial, seconds.
            limit: time limit, seconds.
            alone: whether no other worker has a trial at the same time; only then `load` is known.

        Returns:
            Inferences per second (for latency, the inverse of the median latency), without a correction for other
            programs.

        Raises:
            WorkerError: it failed, or took longer than the limit.
        """
        answer = self._ask({"do": "trial", "seconds": seconds, "alone": alone}, limit, "running")
        rate, self.rates = answer.get("rate"), answer.get("rates", {})
        self.busy_us, load = answer.get("busy_us", []), answer.get("load")
        if not isinstance(rate, float | int) or not 0 < rate < float("inf"):
            self.end()
            raise WorkerError(f"it answered {rate!r} where a rate was asked for")
        try:
            self.load = None if load is None else TrialLoad.from_answer(load)
        except (ValueError, TypeError, KeyError) as error:
            self.end()
            raise WorkerError(f"its answers are damaged: {one_line(error)}") from error
        return float(rate)


StartWorker = Callable[[Path, str, str], Worker]
"""Starts a worker for a folder, an objective and the name of a candidate; it may raise OSError."""

_numbers = itertools.count()


def _close(folder: Path, workers: list[Worker], owner: int) -> None:
    """Ends workers and removes the folder, unless this process is a fork of the pool's.

    Args:
        folder: folder of the pool.
        workers: its workers.
        owner: id of the process that made the pool.
    """
    if os.getpid() != owner:
        return
    for one in workers:
        one.end()
    shutil.rmtree(folder, ignore_errors=True)
