"""Tests first loads by the device name HSDAG that several processes make at once, and that are killed.

    python -m benchmarks.lasting.first_loads [--starts 10] [--workers 3] [--kills 100] [--operations 400]

Starts: several workers start samples/python/service.py at once on an empty cache, as servers do, and each must answer
where its model runs. The longest time until a worker has loaded is compared with one first load by a single worker.

Kills: a program that loads the model is killed at a random moment between its start and the end of a load. The next
load must work without a warning. Kills share a cache, which is emptied after each load that works, so that kills
interrupt placing and writing.

The exit status is 1 if a worker or a load after a kill fails or warns, a cache does not have one entry after a load,
temporary files of a killed load remain, or a worker waits longer than first loads of all workers one after the other
would take.
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
    """The result of a process that loads the model.

    Attributes:
        answer: its standard output; "" if it failed.
        seconds: wall time of the process.
        errors: its standard error output.
    """

    answer: str
    seconds: float
    errors: str


def launch(code: str, model: Path, cache: Path) -> subprocess.Popen[str]:
    """Starts a program that loads the model, in which warnings are errors.

    Args:
        code: the program, `SERVICE` or `LOAD`.
        model: the IR.
        cache: folder of cached placements.
    """
    environment = {**os.environ, FOLDER_VARIABLE: str(cache), "MODEL": str(model), "DEVICE": DEVICE}
    command = [sys.executable, "-W", "error", "-c", code, str(model), DEVICE]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    )


def finish(process: subprocess.Popen[str], begin: float) -> Load:
    """Waits for the end of a program. begin: time of its start by `time.monotonic`, s."""
    answer, errors = process.communicate()
    return Load(answer if process.returncode == 0 else "", time.monotonic() - begin, errors)


def entries_in(cache: Path) -> list[Path]:
    """The files of placements in a cache."""
    return sorted(cache.rglob("*.json"))


def started_at_once(model: Path, workers: int) -> dict[str, Any]:
    """Starts the service by several workers on an empty cache.

    Returns:
        `failed` and `warned`, error outputs of workers; `entries` of the cache; and `seconds` of the loads that worked.
    """
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
    """Seconds of a first load of the service by a single worker."""
    row = started_at_once(model, 1)
    if row["failed"]:
        raise RuntimeError(f"the service does not start: {row['failed'][0]}")
    return float(row["seconds"][0])


def killed(model: Path, kills: int, seed: int) -> dict[str, Any]:
    """Kills loads, and makes after each a load that must work.

    Args:
        model: the IR.
        kills: number of loads to kill.
        seed: seed of the moments.

    Returns:
        `kills`, the number of loads that did not end before; `faults` of the loads after them; names of temporary files
        that are `left`; and `longest`, seconds of the first, undisturbed load.
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
    """Returns a line for each fault.

    Args:
        starts: results of `started_at_once`.
        one: seconds of a first load by a single worker.
        kills: result of `killed`.
    """
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
    """The table in Markdown; arguments as of `failures`."""
    waits = [max(row["seconds"]) for row in starts if row["seconds"]]
    bad = sum(bool(row["failed"] or row["warned"] or row["entries"] != 1) for row in starts)
    rows = []
    if starts:
        longest = f"{statistics.median(waits):.1f}" if waits else ""
        rows.append(["workers at once, on an empty cache", str(len(starts)), str(bad), f"{one:.1f}", longest])
    if kills["kills"]:
        rows.append(["load after a killed one", str(kills["kills"]), str(len(kills["faults"])), "", ""])
    head = ["", "times", "failed", "first load alone, s", "longest wait of a worker (median), s"]
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
