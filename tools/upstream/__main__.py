"""Tries all faults with this interpreter's OpenVINO, each in a process of its own.

    python -m tools.upstream [NAME …]

Prints a line for each, and what was expected and found. Exit status 1 where a script failed, 2 for another name.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RIG = ROOT / "tests" / "rig" / "run"
FAULTS = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in ("__init__", "__main__", "common"))
WORDS = {0: "present", 1: "mended", 2: "not tried"}
SECONDS = 120


def attempt(fault: str) -> tuple[int, str]:
    """Exit status of a fault's script and what it printed; in the GPU rig where that is needed and there."""
    command, variables = [sys.executable, "-m", f"tools.upstream.{fault}"], dict(os.environ)
    rig = Path(variables.get("OV_HSDAG_RIG") or ROOT / "build" / "rig")
    if fault.startswith("gpu_") and (rig / "version").exists():
        command, variables = [str(RIG), *command], {**variables, "OV_HSDAG_RIG_KERNELS": "plain"}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return -1, f"no end in {SECONDS} s"
    return done.returncode, (done.stdout if done.returncode in WORDS else done.stderr).strip()


def main() -> int:
    unknown = set(sys.argv[1:]) - set(FAULTS)
    if unknown:
        print(f"error: no fault {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}", file=sys.stderr)
        return 2
    failed = False
    for fault in sys.argv[1:] or FAULTS:
        status, text = attempt(fault)
        failed |= status not in WORDS
        print(f"{fault}: {WORDS.get(status, f'failed, status {status}')}")
        print("".join(f"    {line}\n" for line in text.splitlines()[-2:]), end="", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
