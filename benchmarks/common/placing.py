"""Placing and compiling an IR in a process of its own, whose time and memory are of that alone."""

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
    """Reads, places and writes an IR on the declared devices; prints what that took as JSON."""
    import ov_hsdag

    core = virtual.new_core()
    begin, wall = time.process_time(), time.perf_counter()
    model = core.read_model(path)
    ov_hsdag.place(model, "HETERO:CPU_A,CPU_B", objective=objective, core=core)
    save_model_atomically(model, Path(path).with_name("placed.xml"), compress_to_fp16=False)
    _print(begin, wall)


def compile_ir(path: str) -> None:
    """Compiles an IR for the CPU; prints what that took as JSON."""
    core = virtual.new_core()
    model = core.read_model(path)
    begin, wall = time.process_time(), time.perf_counter()
    core.compile_model(model, "CPU")
    _print(begin, wall)


def _print(begin: float, wall: float) -> None:
    # Not getrusage: a process begins with the peak of the one that started it.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    gib = int(status.partition("VmHWM:")[2].split()[0]) / 2**20
    took = {"cpu_seconds": time.process_time() - begin, "seconds": time.perf_counter() - wall, "gib": gib}
    print(json.dumps(took))


def placed_in_child(path: str, objective: str = "latency") -> dict[str, float]:
    """What `place_ir` takes in a process of its own.

    Args:
        path: of the IR.
        objective: "latency" or "throughput".

    Returns:
        Processor seconds ("cpu_seconds"), wall time ("seconds") and the peak of memory ("gib").
    """
    return _in_child("place_ir", path, objective)


def compiled_in_child(path: str) -> dict[str, float]:
    """What `compile_ir` takes in a process of its own, as `placed_in_child` tells it."""
    return _in_child("compile_ir", path)


def _in_child(function: str, *arguments: str) -> dict[str, Any]:
    code = f"import sys; from {__name__} import {function}; {function}(*sys.argv[1:])"
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))
