"""Placing from IR to IR in a process of its own, whose time and memory are of that alone."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from ov_hsdag.devices import virtual
from ov_hsdag.storage.files import save_model_atomically


def place_ir(path: str) -> None:
    """Reads, places and writes an IR on the declared devices; prints what that took as JSON."""
    import ov_hsdag

    core, begin = virtual.new_core(), time.process_time()
    model = core.read_model(path)
    ov_hsdag.place(model, "HETERO:CPU_A,CPU_B", core=core)
    save_model_atomically(model, Path(path).with_name("placed.xml"), compress_to_fp16=False)
    # Not getrusage: a process begins with the peak of the one that started it.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    gib = int(status.partition("VmHWM:")[2].split()[0]) / 2**20
    print(json.dumps({"cpu_seconds": time.process_time() - begin, "gib": gib}))


def placed_in_child(path: str) -> dict[str, float]:
    """Processor seconds of `place_ir` in a process of its own ("cpu_seconds"), and its peak of memory ("gib")."""
    code = f"import sys; from {__name__} import place_ir; place_ir(sys.argv[1])"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code, path], stdout=subprocess.PIPE, text=True, cwd=root, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))
