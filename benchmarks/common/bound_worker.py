"""Binds the threads of models that are compiled on virtual devices to cores, one core for each device.

By default every compiled model of the CPU plugin has its own thread. Then several models or submodels of one virtual
device run at the same time on several cores, as they would not on a real device. TBB's NUMA binding would undo the
binding whenever a thread enters an arena. TBB uses hwloc, which leaves threads alone if `HWLOC_THISSYSTEM=0` is set
before the process makes its first arena.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as opset

from ov_hsdag.devices import virtual
from ov_hsdag.measuring import worker
from ov_hsdag.measuring.process import Candidate, Worker, WorkerError
from ov_hsdag.measuring.runner import Runner, thread_ids
from ov_hsdag.utils.errors import RunError

ENTRY = "benchmarks.common.bound_worker:main"
"""Function that the processes of `BoundWorker` run."""

# Compiled models that are never freed: freeing them leaves threads behind, which the next compiled model would use.
_kept: list[ov.CompiledModel] = []


class BoundWorker(Worker):
    """A worker whose virtual devices have a core each, in their order. It is a `StartWorker`.

    A process compiles once: threads of a model that was freed would run the next one, and nobody knows which does what.
    """

    def __init__(self, folder: Path, objective: str, name: str = "") -> None:
        """Starts the process; arguments and errors as of `Worker`."""
        super().__init__(folder, objective, name, ENTRY)
        self._arguments = folder, objective, name
        self._used = False

    def compile(self, candidate: Candidate, limit: float) -> list[NDArray[Any]]:
        """Compiles a candidate as `Worker.compile`, from the second one on in a new process."""
        if self._used:
            self.end()
            try:
                super().__init__(*self._arguments, ENTRY)
            except OSError as error:
                raise WorkerError(f"cannot start a process for measuring: {error}") from error
        self._used = True
        return super().compile(candidate, limit)


class BoundServer(worker.WorkerServer):
    """The state of a worker, which binds the threads of the models that it compiles."""

    def __init__(self, folder: Path, objective: str) -> None:
        leave_threads_alone()
        super().__init__(folder, objective)

    def _compiled(self, number: int, device: str, way: Mapping[str, Any]) -> Runner:
        heterogeneous = device.startswith("HETERO:")
        if heterogeneous:
            # A profile tells the devices of the submodels in the order in which they were compiled. What profiling
            # takes does not show in the processor time of an inference of ResNet-50.
            way = {**way, "properties": {**way["properties"], "PERF_COUNT": True}}
        known = thread_ids()
        runner = super()._compiled(number, device, way)
        threads = sorted(thread_ids() - known)
        order = [device]
        if heterogeneous:
            affinity = way["affinity"] or self._core.query_model(self._models[number], device)
            order = submodel_devices(runner.compiled, self._inputs[number][0].steps[0], affinity)
        bind(threads, order, list(virtual.virtual_devices()), before=int(heterogeneous))
        return runner


def main(folder: str, objective: str) -> None:
    """The entry of a worker process; arguments as of `ov_hsdag.measuring.worker.main`."""
    worker.main(folder, objective, BoundServer)


def leave_threads_alone() -> None:
    """Keeps TBB from binding threads, and from making its own, before OpenVINO does anything in this process."""
    os.environ["HWLOC_THISSYSTEM"] = "0"  # TBB asks hwloc when it makes its first arena
    # TBB counts the cores of the process once. Of one it makes no threads of its own, which it does at any time.
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    value = opset.parameter([1], np.float32)
    _kept.append(ov.Core().compile_model(ov.Model([opset.abs(value)], [value]), "CPU"))
    os.sched_setaffinity(0, cores)


def submodel_devices(
    profiled: ov.CompiledModel, inputs: Sequence[NDArray[Any]], affinity: Mapping[str, str]
) -> list[str]:
    """Finds the device of each submodel in HETERO's order by the names of the nodes that it executes.

    Args:
        profiled: the placed model, compiled with profiling (PERF_COUNT).
        inputs: arrays for one inference, in the order of the model's inputs.
        affinity: device of each node by name.

    Raises:
        RunError: the profile does not determine a device for each submodel.
    """
    request = profiled.create_infer_request()
    request.infer(list(inputs))
    originals: dict[str, list[str]] = {}
    with suppress(RuntimeError):  # HETERO has no runtime model where one submodel has none
        for node in profiled.get_runtime_model().get_ops():
            names = str(node.get_rt_info()["originalLayersNames"].astype(str)).split(",")
            originals[node.get_friendly_name()] = names
    found: dict[int, set[str]] = {}
    for info in request.profiling_info:
        submodel, _, executed = info.node_name.partition(": ")
        on = {affinity[one] for one in originals.get(executed, [executed]) if one in affinity}
        found.setdefault(int(submodel.removeprefix("subgraph")), set()).update(on)
    if sorted(found) != list(range(len(found))) or any(len(on) != 1 for on in found.values()):
        raise RunError("the profile does not tell the devices of submodels")
    return [found[number].pop() for number in range(len(found))]


@contextmanager
def bound_to_cores(order: Sequence[str], devices: Sequence[str], before: int = 0) -> Iterator[list[tuple[int, int]]]:
    """Binds the threads of models that are compiled inside the block to cores, one for each device.

    A compiled model of the CPU plugin has a thread that runs it and one for callbacks, made in this order.

    Args:
        order: device of each model that is compiled, in the order of compilation.
        devices: all devices; each gets its own core.
        before: number of pairs of threads that are made before those of the models (HETERO's own).

    Yields:
        A list that has (thread id, index in `devices`) of each bound thread after the block.

    Raises:
        RunError: the block made another number of threads, or there are fewer cores than devices.
    """
    known = thread_ids()
    bound: list[tuple[int, int]] = []
    yield bound
    bound += bind(sorted(thread_ids() - known), order, devices, before)


def bind(
    threads: Sequence[int], order: Sequence[str], devices: Sequence[str], before: int = 0
) -> list[tuple[int, int]]:
    """Binds the threads that compiling models made to cores, one for each device.

    Args:
        threads: ids of the threads in the order in which they were made.
        order: device of each model that was compiled, in the order of compilation.
        devices: all devices; each gets its own core.
        before: number of pairs of threads that were made before those of the models (HETERO's own).

    Returns:
        (thread id, index in `devices`) of each bound thread.

    Raises:
        RunError: there is another number of threads, or there are fewer cores than devices.
    """
    cores = dict(zip(devices, sorted(os.sched_getaffinity(0)), strict=False))
    if len(threads) != 2 * (before + len(order)) or len(cores) < len(devices):
        raise RunError(f"{len(threads)} threads for {len(order)} compiled models on {len(cores)} cores")
    running = list(zip(threads[2 * before :: 2], order, strict=True))
    for thread, device in running:
        os.sched_setaffinity(thread, {cores[device]})
    return [(thread, devices.index(device)) for thread, device in running]
