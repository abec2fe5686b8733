"""The code inside a worker process: it compiles one candidate at a time, and runs trials of it on command.

A plugin that crashes, hangs or runs out of memory takes its process with it and nothing else.
`ov_hsdag.measuring.process` starts workers and talks to them (`ov_hsdag.utils.child`).

The key "do" of a command is "compile" or "trial". "compile" names two files: "ways", which the worker reads, and
"outputs", which it writes. "ways" is a JSON list with the way in which each model runs: its device, affinity and
properties (`Candidate.way`). "trial" has "seconds", and "alone": whether no other worker has a trial at the same time.
An answer with "error" says that OpenVINO refused; the worker can be used as before. The first answer comes without a
command, when OpenVINO is imported and the model is read.
"""

from __future__ import annotations

import itertools
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.devices import same_core
from ov_hsdag.devices.device_set import kind_of
from ov_hsdag.devices.requests import requests_in_flight
from ov_hsdag.measuring.co_running import TrialRunner, runner_factory
from ov_hsdag.measuring.runner import Copies, Runner, submodels_of, thread_ids
from ov_hsdag.model.inputs import TimedInputs
from ov_hsdag.utils.child import serve, write_frame
from ov_hsdag.utils.errors import one_line

SETTINGS = "settings.json"
"""File in the workers' folder that describes their Core, the number of models and, of several, their runner factory."""


def files(number: int) -> tuple[str, str]:
    """Names of the files of a model and of its inputs in the workers' folder, by its number; 0 is the first model."""
    return f"{number or 'model'}.xml", f"{number or 'inputs'}.npz"


# Number of threads that HETERO creates for itself, before those of its submodels: one starts inferences, one calls back
# (2024.6 to 2026.4).
_HETERO_THREADS = 2

# Requests for each device of a split that are in flight at least.
_REQUESTS_PER_DEVICE = 2

# Seconds in which the last callback of a trial ends. Freeing a queue of requests waits for that callback while
# it holds the GIL, which the callback needs.
_LAST_CALLBACK_SECONDS = 0.02

ON_EACH = "MULTI:"
"""Prefix of the device of a command where the whole model runs on each of the devices that follow."""


def write_inputs(path: Path, phases: Sequence[TimedInputs]) -> None:
    """Writes the inputs of all phases to a .npz file without pickles, see `read_inputs`.

    The file has all arrays one after the other; "counts", the number of arrays of each inference; and "about", a JSON
    text with the number of inferences and the other attributes of each phase.

    Args:
        path: the file.
        phases: inputs of each phase that is timed.

    Raises:
        OSError: the file cannot be written.
    """
    inferences = [inputs for one in phases for inputs in (*one.before, *one.steps)]
    about = [
        {"before": len(one.before), "steps": len(one.steps), "name": one.name, "count": one.count, "past": one.past}
        for one in phases
    ]
    counts = np.array([len(inputs) for inputs in inferences], np.int64)
    arrays = (array for inputs in inferences for array in inputs)
    np.savez(path, *arrays, about=np.array(json.dumps(about)), counts=counts)


def read_inputs(path: Path) -> list[TimedInputs]:
    """Reads the inputs of all phases that `write_inputs` wrote. Raises OSError where the file cannot be read."""
    with np.load(path) as data:
        arrays = (data[f"arr_{number}"] for number in itertools.count())
        inferences = iter([list(itertools.islice(arrays, count)) for count in data["counts"].tolist()])
        about = json.loads(str(data["about"]))
    for entry in about:
        entry |= {kind: list(itertools.islice(inferences, entry[kind])) for kind in ("before", "steps")}
    return [TimedInputs(**entry) for entry in about]


class WorkerServer:
    """Holds the Core, the models and the compiled candidate of a worker, and answers commands, see the module.

    At most one candidate is compiled at a time: none before the first "compile", nor after a "compile" that failed.
    """

    def __init__(self, folder: Path, objective: str) -> None:
        """Makes the Core, and reads the models and inputs of the folder. Raises the errors of OpenVINO.

        Args:
            folder: the folder of the `WorkerPool`.
            objective: "latency" or "throughput".
        """
        self._objective = objective
        self._settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        self._core = same_core.like(self._settings["core"])
        self._make_runner = runner_factory(self._settings["runner"]["factory"]) if "runner" in self._settings else None
        names = [files(number) for number in range(self._settings["models"])]
        self._models = [self._core.read_model(folder / model) for model, _ in names]
        self._inputs = [read_inputs(folder / inputs) for _, inputs in names]
        self._runner: TrialRunner | None = None

    def answer(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Executes a command and returns the answer, JSON-able. Raises the errors of OpenVINO."""
        return self.compile(command) if command["do"] == "compile" else self.trial(command)

    def compile(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Compiles a candidate in place of the one before, warms it up, and writes its outputs to a .npz file.

        Args:
            command: the command, with the files "ways" and "outputs".

        Returns:
            "submodels" and "shortest_trial", see `TrialRunner`.
        """
        if self._runner is not None:
            time.sleep(_LAST_CALLBACK_SECONDS)
        self._runner = None  # frees the memory before the next candidate is compiled
        ways = json.loads(Path(command["ways"]).read_text(encoding="utf-8"))
        runners: list[TrialRunner] = [self._runners(number, way) for number, way in enumerate(ways)]
        runner = runners[0]
        if self._make_runner is not None:
            runner = self._make_runner(runners, self._objective, self._settings["runner"]["arguments"])
        # Arrays of strings would need pickles. They are left out for all candidates, so outputs still correspond.
        np.savez(command["outputs"], *(array for array in self.outputs(runner) if array.dtype.kind in "biuf"))
        self._runner = runner
        return {"submodels": runner.submodels, "shortest_trial": runner.shortest_trial}

    def _runners(self, number: int, way: Mapping[str, Any]) -> Runner | Copies:
        """Compiles a model, and warms it up.

        Args:
            number: number of the model; 0 is the first one.
            way: how it runs, see `Candidate.way`.

        Returns:
            The runner of the model on one device or HETERO, or that of a copy on each device.
        """
        device = way["device"]
        if not device.startswith(ON_EACH):
            return self._compiled(number, device, way)
        names = device.removeprefix(ON_EACH).split(",")
        return Copies([self._compiled(number, name, way) for name in names], self._inputs[number])

    def _compiled(self, number: int, device: str, way: Mapping[str, Any]) -> Runner:
        """Compiles a model on a device or on HETERO, and warms it up (in `Runner`). The model keeps no affinities.

        Args:
            number: number of the model; 0 is the first one.
            device: the device, or "HETERO:GPU,CPU".
            way: "properties" for compiling, and "affinity", the device of each node by name, or None.
        """
        from ov_hsdag.devices.runtime_options import compile_properties
        from ov_hsdag.model.affinities import remove_affinities, set_affinities

        model, names = self._models[number], device.removeprefix("HETERO:").split(",")
        config = compile_properties(self._core, model, device, way["properties"])
        try:
            if way["affinity"] is not None:
                set_affinities(model, way["affinity"])
            before = thread_ids()
            compiled = self._core.compile_model(model, device, config)
            # Threads tell the time of CPU devices alone: other devices compute without threads of this process, and
            # waiting threads do not delay them.
            threads = sorted(thread_ids() - before) if all(kind_of(name) == "CPU" for name in names) else []
        finally:
            remove_affinities(model)
        if not device.startswith("HETERO:"):
            return Runner(compiled, self._inputs[number], self._objective, _REQUESTS_PER_DEVICE, threads)
        # `Runner` takes the number that HETERO reports where that is larger.
        least = _REQUESTS_PER_DEVICE * len(names)
        requests = requests_in_flight(reported=least, devices=len(names), submodels=submodels_of(compiled))
        return Runner(compiled, self._inputs[number], self._objective, requests, threads[_HETERO_THREADS:])

    def outputs(self, runner: TrialRunner) -> list[NDArray[Any]]:
        """Returns the outputs of a compiled candidate. Tests replace this method to simulate faults."""
        return runner.outputs()

    def trial(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Runs a trial of the compiled candidate.

        Args:
            command: the command, with "seconds" and "alone".

        Returns:
            "rate", inferences per second; and "rates", "busy_us" and "load", see `TrialRunner`.

        Raises:
            RuntimeError: nothing is compiled, or inference fails.
        """
        if self._runner is None:
            raise RuntimeError("nothing is compiled")
        rate = self._runner.rate(command["seconds"], command["alone"])
        load = self._runner.load
        return {
            "rate": rate,
            "rates": dict(self._runner.rates),
            "busy_us": list(self._runner.busy_us),
            "load": None if load is None else asdict(load),
        }


def main(folder: str, objective: str, make_server: Callable[[Path, str], WorkerServer] = WorkerServer) -> None:
    """Answers commands until the parent ends this process or is gone.

    Args:
        folder: the folder of the `WorkerPool`.
        objective: "latency" or "throughput".
        make_server: makes the object that answers commands, from folder and objective.

    Raises:
        SystemExit: OpenVINO could not be imported, or the model could not be read; the answer says why.
    """
    # Where the parent has died, no other process removes the folder.
    commands, stdout = serve(lambda: shutil.rmtree(folder, ignore_errors=True))
    server: WorkerServer | None = None
    while True:
        try:
            if server is None:
                server = make_server(Path(folder), objective)
                answer: dict[str, Any] = {}
            else:
                answer = server.answer(commands.get())
        except Exception as error:
            answer = {"error": one_line(error)}
        write_frame(stdout, answer)
        if server is None:
            raise SystemExit(1)
