"""First loads by the device name HSDAG that come at once, and that are killed.

    python -m benchmarks.lasting.first_loads [--starts 10] [--workers 3] [--kills 100] [--operations 400]

Starts: samples/python/service.py is started by so many workers at once on an empty cache, as servers start it, and each
has to answer where its model runs. The longest wait of a worker, until it has loaded, is compared with one first load
alone. Kills: a program that loads the model is killed at a moment drawn between its start and the end of a load; the
next one has to work without a warning. Kills share a cache, which is emptied after each load that works, so that
placing and writing are what is interrupted.

Exit status 1 where a worker or a load after a kill fails or warns, an empty cache has another number of entries than
one, something of a killed load is left, or a worker waits for longer than a first load of each worker would take.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openvino as ov

from benchmarks.common.machine import about
from benchmarks.common.output import add_output
from benchmarks.common.tables import markdown, publish
from benchmarks.common.workers import start
from benchmarks.field.unseen import declared
from ov_hsdag.devices import virtual
from ov_hsdag.placing.placement_cache import FOLDER_VARIABLE
from research.zoo.deep import build

SMOKE_ARGUMENTS = "--starts 1 --kills 2 --operations 100"
"""The arguments with which this command is quickest, for `make figures-smoke`."""

ROOT = Path(__file__).parents[2]

DEVICE = "HSDAG:CPU_A,CPU_B"

SERVICE = """
import json, sys, time
sys.path.insert(0, "samples/python")
begin = time.perf_counter()
import service
print(json.dumps({"seconds": time.perf_counter() - begin, **service.about()}))
"""
"""A worker of the sample service, without a port: workers of uvicorn import the module in the same way."""

LOAD = """
import sys
import openvino as ov
print(ov.Core().compile_model(sys.argv[1], sys.argv[2]).get_property("EXECUTION_DEVICES"))
"""


@dataclass(frozen=True)
class Load:
    """A process that loads the model.

    Attributes:
        answer: what it printed; "" where it failed.
        seconds: wall time of the process.
        errors: what it wrote to its standard error output.
    """

    answer: str
    seconds: float
    errors: str


def launch(code: str, model: Path, cache: Path) -> subprocess.Popen[str]:
    """Starts a program that loads the model; warnings are errors there."""
    environment = {**os.environ, FOLDER_VARIABLE: str(cache), "MODEL": str(model), "DEVICE": DEVICE}
    command = [sys.executable, "-W", "error", "-c", code, str(model), DEVICE]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    )


def finish(process: subprocess.Popen[str], begin: float) -> Load:
    """Waits for a program. begin: when it was started, by `time.monotonic`."""
    answer, errors = process.communicate()
    return Load(answer if process.returncode == 0 else "", time.monotonic() - begin, errors)


def entries_in(cache: Path) -> list[Path]:
    """Files of kept placements."""
    return sorted(cache.rglob("*.json"))


def started_at_once(model: Path, workers: int) -> dict[str, Any]:
    """A start of the service by several workers on an empty cache."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        processes = [launch(SERVICE, model, Path(folder)) for _ in range(workers)]
        loads = [finish(process, begin) for process in processes]
        answers = [json.loads(load.answer) for load in loads if load.answer]
        return {
            "failed": [load.errors[-500:] for load in loads if not load.answer],
            "warned": [load.errors[-500:] for load in loads if load.answer and load.errors],
            "entries": len(entries_in(Path(folder))),
            "seconds": [answer["seconds"] for answer in answers],
        }


def alone(model: Path) -> float:
    """Seconds of a first load of the service by one worker."""
    row = started_at_once(model, 1)
    if row["failed"]:
        raise RuntimeError(f"the service does not start: {row['failed'][0]}")
    return float(row["seconds"][0])


def killed(model: Path, kills: int, seed: int) -> dict[str, Any]:
    """Loads that are killed, each followed by one that has to work.

    Args:
        model: the IR.
        kills: how many loads are killed.
        seed: of the moments.
    """
    moments = random.Random(seed)
    faults: list[str] = []
    interrupted = 0
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        begin = time.monotonic()
        longest = finish(launch(LOAD, model, cache), begin).seconds
        for _ in range(kills):
            for entry in entries_in(cache):
                entry.unlink()
            process = launch(LOAD, model, cache)
            try:
                process.wait(moments.uniform(0.0, longest))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                interrupted += 1
            process.communicate()
            next_load = finish(launch(LOAD, model, cache), time.monotonic())
            if not next_load.answer or next_load.errors:
                faults.append(next_load.errors[-500:])
            if len(entries_in(cache)) != 1:
                faults.append(f"{len(entries_in(cache))} entries after a load")
        left = [path.name for path in cache.rglob("*") if ".tmp" in path.name]
    return {"kills": interrupted, "faults": faults, "left": left, "longest": longest}


def failures(starts: Sequence[Mapping[str, Any]], one: float, kills: Mapping[str, Any]) -> list[str]:
    """What must not be, a line each."""
    lines = []
    for row in starts:
        lines += [f"a worker failed: {text}" for text in row["failed"]]
        lines += [f"a worker warned: {text}" for text in row["warned"]]
        if row["entries"] != 1:
            lines.append(f"{row['entries']} entries of one model")
        if row["seconds"] and max(row["seconds"]) > len(row["seconds"]) * one:
            lines.append(f"a worker waited {max(row['seconds']):.1f} s, where a first load alone takes {one:.1f} s")
    lines += [f"after a kill: {text}" for text in kills["faults"]]
    lines += [f"left of a killed load: {name}" for name in kills["left"]]
    return lines


def table(starts: Sequence[Mapping[str, Any]], one: float, kills: Mapping[str, Any]) -> str:
    """The figures as Markdown."""
    waits = [max(row["seconds"]) for row in starts if row["seconds"]]
    bad = sum(bool(row["failed"] or row["warned"] or row["entries"] != 1) for row in starts)
    rows = []
    if starts:
        longest = f"{statistics.median(waits):.1f}" if waits else ""
        rows.append(["workers at once, on an empty cache", str(len(starts)), str(bad), f"{one:.1f}", longest])
    if kills["kills"]:
        rows.append(["load after a killed one", str(kills["kills"]), str(len(kills["faults"])), "", ""])
    head = ["", "times", "failed", "first load alone, s", "longest wait of a worker, s"]
    return markdown(head, rows)


def main() -> int:
    """Makes the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--starts", type=int, default=10, help="of the service (default %(default)s)")
    parser.add_argument("--workers", type=int, default=3, help="of each start (default %(default)s)")
    parser.add_argument("--kills", type=int, default=100, help="loads that are killed (default %(default)s)")
    parser.add_argument("--operations", type=int, default=400, help="of the model (default %(default)s)")
    parser.add_argument("--seed", type=int, default=55, help="of the moments of kills (default %(default)s)")
    add_output(parser, "JSON of the results, and the table in Markdown beside it")
    options = parser.parse_args()
    os.environ[virtual.VIRTUAL_DEVICES_VARIABLE] = declared()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.xml"
        ov.save_model(build("encoder", options.operations), model, compress_to_fp16=False)
        one = statistics.median(alone(model) for _ in range(3)) if options.starts else 0.0
        starts = [started_at_once(model, options.workers) for _ in range(options.starts)]
        kills = killed(model, options.kills, options.seed)
    settings = {name: getattr(options, name) for name in ("starts", "workers", "kills", "operations", "seed")}
    result = {"about": about(), "settings": settings, "alone": one, "starts": starts, "kills": kills}
    publish(options.output, result, {"First loads at once, and after killed ones:": table(starts, one, kills)})
    lines = failures(starts, one, kills)
    print(*lines, sep="\n", file=sys.stderr)
    return int(bool(lines))


if __name__ == "__main__":
    start(__spec__)
