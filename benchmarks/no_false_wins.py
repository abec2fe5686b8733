"""Two equal devices and the latency of one request: nothing beats one of them alone, so no placement may be said to.

Each run is a whole `place(model, device, measure=True)`: it calibrates the model, predicts, and lets its best
placements race against single devices. Runs go through the models in turn. A run that ends with a placement over both
devices has mistaken noise for a win.

    python benchmarks/no_false_wins.py [--runs 20] [--seconds 600]

It goes on where an earlier call stopped (--seconds bounds one call) and prints one line for each run. The result is in
benchmarks/results/no_false_wins.json; the exit status is 1 where more than one run of twenty has a false win.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import openvino as ov

import ov_hsdag
from ov_hsdag.devices import virtual
from ov_hsdag.storage.files import write_json
from research.zoo.catalog import ZOO

MODELS = ("squeezenet", "resnet50", "mobilenet-v2", "bert-small", "inception-v1")
DEVICE = "HETERO:CPU_A,CPU_B"
ONE_CORE = "INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT=f32"
RESULT = Path(__file__).with_name("results") / "no_false_wins.json"
ALLOWED = 0.05


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="in all (default 20)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no run begins after so long")
    parser.add_argument("--output", type=Path, default=RESULT)
    arguments = parser.parse_args()

    os.environ[virtual.VIRTUAL_DEVICES_VARIABLE] = f"CPU_A:{ONE_CORE};CPU_B:{ONE_CORE}"
    core = ov.Core()
    virtual.register(core)
    runs = json.loads(arguments.output.read_text())["runs"] if arguments.output.exists() else []
    until = time.monotonic() + arguments.seconds
    while len(runs) < arguments.runs and time.monotonic() < until:
        name = MODELS[len(runs) % len(MODELS)]
        begin = time.monotonic()
        placement = ov_hsdag.place(ZOO[name].build(), DEVICE, core=core, measure=True)
        measured = placement.measured or {}
        runs.append(
            {
                "model": name,
                "chosen": placement.chosen,
                "devices": sorted(set(placement.affinity.values())),
                "raced": {rival: found["ratio"] for rival, found in measured.items() if not found["failed"]},
                "seconds": round(time.monotonic() - begin, 1),
            }
        )
        write_json(arguments.output, {"openvino": ov.__version__, "device": DEVICE, "runs": runs})
        print(f"{len(runs)}/{arguments.runs} {name}: {placement.chosen} ({runs[-1]['seconds']} s)", flush=True)
    false = [run for run in runs if len(run["devices"]) > 1]
    unmeasured = [run for run in runs if len(run["raced"]) < 2]
    print(f"{len(runs)} runs: {len(false)} false wins, {len(unmeasured)} in which nothing was measured")
    return 1 if len(false) > ALLOWED * len(runs) or unmeasured else 0


if __name__ == "__main__":
    sys.exit(main())
