"""The program of a process of soak.py: runs cycles, and prints what the process holds.

Each line of standard input is a number of cycles to run. The answer on standard output is a line of JSON, see `held`.
In a process "ov-hsdag" a cycle places a model, saves it, and compiles the file as any script does; it is started by
`python -m ov_hsdag`. In a process "openvino" a cycle makes the same calls to OpenVINO without ov-hsdag: it reads a
model, transforms it, queries both devices, saves it, sets affinities and compiles the split. The growth of that process
is OpenVINO's.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

DEVICES = ("CPU_A", "CPU_B")
HETERO = "HETERO:CPU_A,CPU_B"
LIMITS = {"INFERENCE_NUM_THREADS": "1", "INFERENCE_PRECISION_HINT": "f32"}
SPLIT = {"ENABLE_CPU_PINNING": "NO", "EXCLUSIVE_ASYNC_REQUESTS": False}


_MALLINFO = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
)  # fmt: skip


class Mallinfo(ctypes.Structure):
    """The statistics of glibc's allocator: `struct mallinfo2`."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _MALLINFO)


def held(pid: int | str = "self") -> dict[str, float]:
    """Measures the memory and other resources of a process.

    Args:
        pid: number of the process, or "self".

    Returns:
        MiB of resident memory ("resident"), and numbers of open "descriptors" and "threads". For "self" also the number
        of Python "objects" that the garbage collector tracks, and MiB in use by malloc ("allocated", if glibc has
        mallinfo2).
    """
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = {line.partition(":")[0]: line.partition(":")[2].split()[0] for line in status if len(line.split()) > 1}
    found = {
        "resident": round(int(fields["VmRSS"]) / 1024, 2),
        "descriptors": float(len(os.listdir(f"/proc/{pid}/fd"))),
        "threads": float(fields["Threads"]),
    }
    if pid == "self":
        found["descriptors"] -= 1  # the folder that was listed
        found["objects"] = float(len(gc.get_objects()))
        mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
        if mallinfo2 is not None:
            mallinfo2.restype = Mallinfo
            info = mallinfo2()
            found["allocated"] = round((info.uordblks + info.hblkhd) / 2**20, 3)
    return found


def inputs_of(folder: Path, name: str) -> list[np.ndarray]:
    """The input arrays of a model of the folder, in the order of its inputs."""
    with np.load(folder / f"{name}.npz") as arrays:
        return [arrays[f"arr_{port}"] for port in range(len(arrays.files))]


def infer(compiled: ov.CompiledModel, inputs: list[np.ndarray]) -> None:
    """Infers several times, with a single request and with a queue; the model must run on both devices."""
    assert set(compiled.get_property("EXECUTION_DEVICES")) == set(DEVICES), "the placement is not followed"
    compiled(inputs)
    queue = ov.AsyncInferQueue(compiled)
    for _ in range(3):
        queue.start_async(inputs)
    queue.wait_all()


def placing(folder: Path, names: list[str]) -> Callable[[int], None]:
    """Returns a function that runs a cycle of ov-hsdag, by the number of the cycle."""
    import ov_hsdag

    core = ov.Core()

    def cycle(number: int) -> None:
        name = names[number % len(names)]
        model = core.read_model(folder / f"{name}.xml")
        ov_hsdag.place(model, HETERO, objective="throughput")
        ov.save_model(model, folder / "placed.xml", compress_to_fp16=False)
        infer(core.compile_model(folder / "placed.xml", HETERO), inputs_of(folder, name))

    return cycle


def by_hand(folder: Path, names: list[str]) -> Callable[[int], None]:
    """Returns a function that runs a cycle of OpenVINO only, by the number of the cycle."""
    from openvino._offline_transformations import apply_moc_transformations

    def new_core() -> ov.Core:  # `place` asks one of its own
        core = ov.Core()
        for device in DEVICES:
            core.register_plugin("openvino_intel_cpu_plugin", device)
            core.set_property(device, {**LIMITS, "ENABLE_CPU_PINNING": "NO"})
        return core

    core = new_core()
    config: dict[str, Any] = {"DEVICE_PROPERTIES": {device: {**LIMITS, **SPLIT} for device in DEVICES}}

    def cycle(number: int) -> None:
        name = names[number % len(names)]
        model = core.read_model(folder / f"{name}.xml")
        asked, copy = new_core(), model.clone()
        apply_moc_transformations(copy, cf=False)
        for device in DEVICES:
            asked.query_model(copy, device)
        ov.save_model(model, folder / "by_hand.xml", compress_to_fp16=False)
        split = core.read_model(folder / "by_hand.xml")
        affinity = json.loads((folder / f"{name}.json").read_text())
        for node in split.get_ops():
            node.get_rt_info()["affinity"] = affinity[node.get_friendly_name()]
        infer(core.compile_model(split, HETERO, config), inputs_of(folder, name))

    return cycle


def main() -> None:
    """Runs the cycles for each line of standard input and prints the answers."""
    kind, folder, names = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what plugins print is no answer
    cycle = (placing if kind == "ov-hsdag" else by_hand)(folder, names)
    done = 0
    for line in sys.stdin:
        for _ in range(int(line)):
            cycle(done)
            done += 1
        gc.collect()
        print(json.dumps({"cycle": done, **held()}), file=answers, flush=True)


if __name__ == "__main__":
    main()
