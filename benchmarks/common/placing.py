"""Places and compiles an IR in a child process, so that its time and memory are of nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ov_hsdag.devices import virtual
from ov_hsdag.storage.files import save_model_atomically

ROOT = Path(__file__).parents[2]


def place_ir(path: str, objective: str) -> None:
    """Reads, places and writes an IR on the declared devices, in this process; prints time and memory as JSON."""
    import ov_hsdag

    core = virtual.new_core()
    begin, wall = time.process_time(), time.perf_counter()
    model = core.read_model(path)
    read = time.perf_counter()
    ov_hsdag.place(model, "HETERO:CPU_A,CPU_B", objective=objective, core=core)
    placed = time.perf_counter()
    save_model_atomically(model, Path(path).with_name("placed.xml"), compress_to_fp16=False)
    _print(begin, wall, openvino_seconds=(read - wall) + (time.perf_counter() - placed))


def compile_ir(path: str) -> None:
    """Compiles an IR for the CPU in this process; prints time and memory as JSON."""
    core = virtual.new_core()
    model = core.read_model(path)
    begin, wall = time.process_time(), time.perf_counter()
    core.compile_model(model, "CPU")
    _print(begin, wall)


def _print(begin: float, wall: float, **more: float) -> None:
    """Prints the time since `begin` (processor time) and `wall` (wall time), s, the peak of memory, and `more`."""
    # Not getrusage: a process begins with the peak of the one that started it.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    gib = int(status.partition("VmHWM:")[2].split()[0]) / 2**20
    took = {"cpu_seconds": time.process_time() - begin, "seconds": time.perf_counter() - wall, "gib": gib, **more}
    print(json.dumps(took))


def placed_in_child(path: str, objective: str = "latency") -> dict[str, float]:
    """Runs `place_ir` in a child process.

    Args:
        path: path of the IR.
        objective: "latency" or "throughput".

    Returns:
        Processor seconds ("cpu_seconds"), wall time ("seconds"), the peak of memory ("gib"), and the part of the wall
        time in which OpenVINO reads and writes the IR ("openvino_seconds").
    """
    return _in_child("place_ir", path, objective)


def compiled_in_child(path: str) -> dict[str, float]:
    """Runs `compile_ir` in a child process. Returns the figures of `placed_in_child` but "openvino_seconds"."""
    return _in_child("compile_ir", path)


def _in_child(function: str, *arguments: str) -> dict[str, Any]:
    """Calls a function of this module in a child process. Returns the JSON of the last line that it prints."""
    code = f"import sys; from {__name__} import {function}; {function}(*sys.argv[1:])"
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))
