"""How long placing takes as models grow, from IR to IR, beside one compilation for the CPU.

    python -m benchmarks.speed.placing_growth [--sizes 2000 6000 22000 110000] [--compile-up-to 22000]

Each cell is a process of its own, which reads the IR, places it on HETERO:CPU_A,CPU_B without measuring and writes it,
as `ov-hsdag place --no-measure` does; another one compiles the same IR for the CPU. Wall time (imports apart), CPU
time, and the most memory that the process has. Exit status 1 where a limit is exceeded: 0.6 of the time of compiling at
22,000 operations; 30 s and 2 GiB at 110,000.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openvino as ov

from benchmarks.common.tables import markdown
from ov_hsdag.devices import virtual
from ov_hsdag.storage.files import save_model_atomically, write_json
from ov_hsdag.utils.plot import Axis, Series
from ov_hsdag.utils.plot import plot as draw
from research.zoo.deep import FAMILIES, build, operations

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "placing_growth.json"
PLOT = ROOT / "docs" / "placing_growth.svg"
DEVICES = ";".join(f"{name}:INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT=f32" for name in ("CPU_A", "CPU_B"))
OBJECTIVES = ("latency", "throughput")
SHARE_OF_COMPILING, COMPARED = 0.6, 22_000
SECONDS, GIB, LARGEST = 30.0, 2.0, 110_000

_RUN = "import sys; from {0} import {1}; {1}(*sys.argv[1:])"


def place_ir(path: str, objective: str, policy: str | None = None) -> None:
    """Reads, places and writes an IR; prints what that took as JSON. In a process of its own."""
    import ov_hsdag

    core = ov.Core()
    virtual.register(core)
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


def compile_ir(path: str) -> None:
    """Compiles an IR for the CPU; prints what that took as JSON. In a process of its own."""
    core = ov.Core()
    model = core.read_model(path)
    start, cpu = time.perf_counter(), time.process_time()
    core.compile_model(model, "CPU")
    found = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu, "gib": _peak_gib()}
    print(json.dumps(found))


def _peak_gib() -> float:
    # Not getrusage: a process begins with the peak of the one that started it.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 2**20


def in_child(function: str, *arguments: str) -> dict[str, Any]:
    """What a function prints as JSON in a process of its own, with the virtual devices.

    function: of this module, or "module:function".
    """
    module, _, name = function.rpartition(":")
    command = [sys.executable, "-c", _RUN.format(module or "benchmarks.speed.placing_growth", name), *arguments]
    environment = {**os.environ, "OV_HSDAG_VIRTUAL_DEVICES": DEVICES}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(family: str, size: int, *, compiled: bool) -> dict[str, Any]:
    """A row of the table: a model of about `size` operations."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.xml")
        model = build(family, size)
        row: dict[str, Any] = {"family": family, "size": size, "operations": operations(model)}
        row["nodes"] = len(model.get_ops())
        ov.save_model(model, path, compress_to_fp16=False)
        del model
        for objective in OBJECTIVES:
            row[objective] = in_child("place_ir", path, objective)
        row["compile"] = in_child("compile_ir", path) if compiled else None
    return row


def failures(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Which limits the rows exceed."""
    found = []
    for row in rows:
        for objective in OBJECTIVES:
            placed, name = row[objective], f"{row['family']}, {row['size']} operations, {objective}"
            if row["size"] == COMPARED and row["compile"]:
                share = placed["seconds"] / row["compile"]["seconds"]
                if share > SHARE_OF_COMPILING:
                    found.append(f"{name}: {share:.2f} of compiling")
            if row["size"] == LARGEST and (placed["seconds"] > SECONDS or placed["gib"] > GIB):
                found.append(f"{name}: {placed['seconds']:.1f} s, {placed['gib']:.2f} GiB")
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = []
    for row in rows:
        placed = [_seconds(row[key]) for key in OBJECTIVES]
        gib = max(row[objective]["gib"] for objective in OBJECTIVES)
        sizes = [f"{row['operations']:,}", f"{row['nodes']:,}"]
        lines.append([row["family"], *sizes, *placed, f"{gib:.2f}", _seconds(row["compile"])])
    head = ["", "operations", "nodes", "latency, s (CPU s)", "throughput, s (CPU s)", "GiB", "compile, s (CPU s)"]
    return markdown(head, lines)


def _seconds(found: dict[str, Any] | None) -> str:
    return f"{found['seconds']:.1f} ({found['cpu_seconds']:.1f})" if found else ""


def plot(rows: Sequence[dict[str, Any]]) -> str:
    """Seconds against operations, both in logarithms, as SVG: placing for throughput, and compiling (dashed)."""
    series = []
    for colour, family in enumerate(FAMILIES):
        for key, style in (("throughput", "line"), ("compile", "dashes")):
            points = [(row["operations"], row[key]["seconds"]) for row in rows if row["family"] == family and row[key]]
            told = f"{family}, {'place' if key == 'throughput' else 'compile'}"
            series += [Series(told, points, style, colour)] if points else []
    return draw(
        "Placing and compiling", Axis("operations", logarithmic=True), Axis("seconds", logarithmic=True), series
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=tuple(FAMILIES), default=tuple(FAMILIES))
    parser.add_argument("--sizes", nargs="+", type=int, default=[2000, 6000, COMPARED, LARGEST])
    parser.add_argument("--compile-up-to", type=int, default=COMPARED, help="operations (default %(default)s)")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--plot", type=Path, default=PLOT)
    parser.add_argument("--replot", action="store_true", help="plot what --output has, and measure nothing")
    arguments = parser.parse_args()

    rows: list[dict[str, Any]] = []
    if arguments.replot:
        rows = json.loads(arguments.output.read_text(encoding="utf-8"))["rows"]
    else:
        for family in arguments.families:
            for size in arguments.sizes:
                rows.append(measure(family, size, compiled=size <= arguments.compile_up_to))
                print(table(rows[-1:]).splitlines()[-1], flush=True)
                write_json(arguments.output, {"openvino": ov.__version__, "rows": rows})
    arguments.plot.write_text(plot(rows), encoding="utf-8")
    print(table(rows))
    exceeded = failures(rows)
    print(*exceeded, sep="\n")
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
