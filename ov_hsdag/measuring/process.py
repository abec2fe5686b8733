"""Worker processes as their parent sees them: started, asked within a time limit, and gone when they are not needed.

A `Workshop` is a model in a temporary folder, with workers that compile and run it (`ov_hsdag.measuring.worker`).
Whatever a worker does, its parent gets an answer or a `WorkerError` with the reason in one line.

Nothing is left behind: workers end with the pipe from their parent, however their
parent ended; the folder is removed by the parent, else by a worker, else by the next workshop of the machine.
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
from ov_hsdag.measuring.runner import TrialLoad
from ov_hsdag.measuring.together import Beside
from ov_hsdag.model.inputs import TimedInputs
from ov_hsdag.model.placement import Placement
from ov_hsdag.storage.files import save_model
from ov_hsdag.storage.scratch import scratch_folder
from ov_hsdag.utils.child import Child, ChildError, ChildTimeout
from ov_hsdag.utils.errors import RunError, UserError, one_line
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.reading import read_arrays

# Seconds in which a worker has to have imported OpenVINO and read the model, beside the limit of its first compilation.
_START = 15.0

PATIENCE = 120.0
"""Seconds that compiling, or a trial, may take before a worker counts as hanging."""

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


class WorkerError(ChildError):
    """A worker could not do what it was asked for: why, in one line."""


class WorkerTimeout(WorkerError, ChildTimeout):
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
        like: Mapping[str, Any] | None = None,
        beside: Beside | None = None,
    ) -> None:
        """Writes the folder. Raises RunError where there is no temporary one, or the model cannot be written.

        model: with unique friendly names (`ov_hsdag.model.normalize`); not changed, its placement is left out. inputs:
        an array for each input of the model, or what is timed, the phases of a workload. like: what the workers' Cores
        are like (`ov_hsdag.devices.same_core`); new ones by default. beside: other models that run at the same time.
        """
        self.folder = scratch_folder()
        self._objective = objective
        self._start_worker = start_worker or Worker
        self._workers: list[Worker] = []
        self._end = weakref.finalize(self, _close, self.folder, self._workers, os.getpid())
        parts = [(model, inputs), *zip(beside.models, beside.inputs, strict=True)] if beside else [(model, inputs)]
        settings = {
            "core": dict(like or {}),
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


class Worker(Child):
    """One process, which has one model compiled at a time."""

    error, timeout, called = WorkerError, WorkerTimeout, "its worker"

    def __init__(self, folder: Path, objective: str, name: str = "", entry: str = _ENTRY) -> None:
        """Starts the process, which calls the entry ("module:function") with the workshop's folder and objective.

        Raises OSError where no process can be started.
        """
        self.name = name  # of what it is for
        self.compiled = False  # it holds something that runs
        self.submodels = 0  # that HETERO made of what it compiled last; 1 on a single device
        self.shortest_trial = 0.0  # about how many seconds a trial of that takes at least
        self.rates: dict[str, float] = {}  # of each phase in the last trial, inferences per second, by name
        self.busy_us: list[float] = []  # see `Runner.busy_us`, of the last trial
        self.load: TrialLoad | None = None  # of the last trial, see `Runner`
        self._ready = False
        self._folder = folder
        self._number = next(_numbers)
        super().__init__(entry, [str(folder), objective], folder / f"{self._number}.log")

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

        What other programs took is in it (`load`). alone: no other worker has a trial at the same time. Raises
        WorkerError where it failed, or took longer than `limit` seconds.
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
"""Starts a worker for a folder, an objective and the name of what it is for; may raise OSError."""

_numbers = itertools.count()


def _close(folder: Path, workers: list[Worker], owner: int) -> None:
    if os.getpid() != owner:  # a fork of the process that they belong to
        return
    for one in workers:
        one.end()
    shutil.rmtree(folder, ignore_errors=True)
