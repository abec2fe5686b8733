"""Placing from IR to IR in a process of its own, whose time and memory are of that alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ov_hsdag.devices import virtual
from ov_hsdag.storage.files import save_model_atomically

ROOT = Path(__file__).parents[2]
DEVICES = ";".join(f"{name}:INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT=f32" for name in ("CPU_A", "CPU_B"))

_RUN = "import sys; from {0} import {1}; {1}(*sys.argv[1:])"


def place_ir(path: str, objective: str, policy: str | None = None) -> None:
    """Reads, places and writes an IR; prints what that took as JSON. In a process of its own."""
    import ov_hsdag

    core = virtual.new_core()
    start, cpu = time.perf_counter(), time.process_time()
    model = core.read_model(path)
    read = time.perf_counter() - start
    placement = ov_hsdag.place(model, "HETERO:CPU_A,CPU_B", objective=objective, core=core, policy=policy)
    begin = time.perf_counter()
    save_model_atomically(model, Path(path).with_name("placed.xml"), compress_to_fp16=False)
    end = time.perf_counter()
    phases = {"read": read, **placement.seconds, "save": end - begin}
    found = {"seconds": end - start, "cpu_seconds": time.process_time() - cpu, "gib": _peak_gib(), "phases": phases}
    print(json.dumps({**found, "chosen": placement.chosen}))


def _peak_gib() -> float:
    # Not getrusage: a process begins with the peak of the one that started it.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 2**20


def in_child(function: str, *arguments: str) -> dict[str, Any]:
    """What a function prints as JSON in a process of its own, with the virtual devices.

    function: of this module, or "module:function".
    """
    module, _, name = function.rpartition(":")
    command = [sys.executable, "-c", _RUN.format(module or "benchmarks.common.placing", name), *arguments]
    environment = {**os.environ, "OV_HSDAG_VIRTUAL_DEVICES": DEVICES}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
