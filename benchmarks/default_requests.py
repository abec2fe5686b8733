"""Throughput of placed models with the requests that users get by default, against the best number of requests.

Each model is placed for throughput and compiled as in a user's script. AsyncInferQueue without a number, and queues of
1, 2, 3, … requests of the same compiled model, take turns. With --app, an unmodified `benchmark_app -hint throughput`
takes turns with one that is told the best number (-nireq). Exit status 1 when a default reaches less than the floor.

Without --device, devices are two virtual CPU devices of one core each. In the GPU rig of tests/rig:

    tests/rig/run .venv/bin/python benchmarks/default_requests.py squeezenet --device HETERO:GPU,CPU --seconds 3
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import openvino as ov
from rich.console import Console
from rich.table import Table

import ov_hsdag
from ov_hsdag.devices.virtual import VIRTUAL_DEVICES_VARIABLE
from ov_hsdag.model.inputs import random_inputs
from ov_hsdag.utils.errors import UserError
from research.zoo.catalog import ZooModel, select

VIRTUAL = "HETERO:CPU_A,CPU_B"
DECLARED = ";".join(f"{name}:INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT=f32" for name in ("CPU_A", "CPU_B"))

NUMBERS = (1, 2, 3, 4, 6, 8, 12)

# Of the best number's throughput.
FLOOR = 0.95


def rate(queue: ov.AsyncInferQueue, inputs: list[object], seconds: float) -> float:
    """Inferences per second over whole rounds of requests, while all are under way."""
    finished: list[float] = []
    queue.set_callback(lambda *_: finished.append(time.perf_counter()))
    while len(finished) <= len(queue) or time.perf_counter() - finished[0] < seconds:
        queue.start_async(inputs)
    last = (len(finished) - 1) // len(queue) * len(queue)
    queue.wait_all()
    return last / (finished[last] - finished[0])


def app_rate(path: Path, device: str, seconds: float, *options: str) -> float:
    """What benchmark_app reports."""
    app = shutil.which("benchmark_app") or str(Path(sys.executable).with_name("benchmark_app"))
    command = [app, "-m", str(path), "-d", device, "-hint", "throughput", "-t", str(max(1, round(seconds)))]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    found = re.search(r"Throughput: +([0-9.]+) FPS", done.stdout)
    if found is None:
        raise RuntimeError(f"benchmark_app reports no throughput: {done.stdout[-500:]}")
    return float(found[1])


def run(zoo_model: ZooModel, options: argparse.Namespace, table: Table) -> bool:
    """A row for a model; whether its defaults reach the floor."""
    model = zoo_model.build()
    ov_hsdag.place(model, options.device, objective="throughput")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.xml"
        ov.save_model(model, path, compress_to_fp16=False)
        compiled = ov.Core().compile_model(path, options.device, {"INFERENCE_PRECISION_HINT": "f32"})
        inputs = random_inputs(model)
        default = ov.AsyncInferQueue(compiled)
        queues = {0: default, **{number: ov.AsyncInferQueue(compiled, number) for number in options.numbers}}
        rates: dict[int, list[float]] = {number: [] for number in queues}
        for queue in queues.values():
            rate(queue, inputs, 0)
        for _ in range(options.rounds):
            for number, queue in queues.items():
                rates[number].append(rate(queue, inputs, options.seconds))
        medians = {number: statistics.median(values) for number, values in rates.items()}
        best = max(options.numbers, key=lambda number: medians[number])
        reached = [statistics.median(own / other for own, other in zip(rates[0], rates[best], strict=True))]
        if options.app:
            app: list[float] = []
            for _ in range(options.app):
                told = app_rate(path, options.device, options.seconds, "-nireq", str(best), "-ip", "f32")
                app.append(app_rate(path, options.device, options.seconds, "-ip", "f32") / told)
            reached.append(statistics.median(app))
    cells = [str(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS")), str(len(default)), f"{medians[0]:.1f}"]
    cells += [f"{medians[number]:.1f}" for number in options.numbers]
    table.add_row(zoo_model.name, *cells, *(f"{share:.3f}" for share in reached))
    return min(reached) >= FLOOR


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=("resnet50", "densenet121"), help="of the zoo")
    parser.add_argument("--device", default=VIRTUAL)
    parser.add_argument("--numbers", type=int, nargs="+", default=NUMBERS, help="of requests to compare with")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn")
    parser.add_argument("--app", type=int, default=0, metavar="ROUNDS", help="also of benchmark_app")
    options = parser.parse_args()
    if options.device == VIRTUAL:
        os.environ[VIRTUAL_DEVICES_VARIABLE] = DECLARED
    table = Table(title=f"inferences/s on {options.device} with so many requests", box=None)
    columns = ["submodels", "by default", "it reaches", *map(str, options.numbers), "default/best"]
    for column in ("model", *columns, *(["benchmark_app"] if options.app else [])):
        table.add_column(column, justify="left" if column == "model" else "right")
    try:
        reached = [run(model, options, table) for model in select(options.models)]
    except UserError as error:
        parser.error(str(error))
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    return int(not all(reached))


if __name__ == "__main__":
    sys.exit(main())
