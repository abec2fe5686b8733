"""Measures how much longer a load by the device name HSDAG takes than a load by HETERO, the first time and later.

    python -m benchmarks.speed.loads [--sizes 100 1000 5000 10000 22000] [--repeats 5]

A load is one ``core.compile_model(path, device)`` in a child process, including imports of ov_hsdag. Three loads take
turns: on HETERO, on HSDAG with an empty cache, and on HSDAG with the placement that the load before has cached. The
models are encoders as OpenVINO's converter writes them, on two one-core CPU devices. Bytecode is cached, as pip does
when it installs a package: a load before the first turn, which is not counted, writes it. The objective is latency, for
which the placement uses one device, so that all three compile the same. Printed are medians, and medians of the
differences within a turn.

The exit status is 1 if a limit is exceeded: a first load takes at most 10% or one second more than HETERO's; a later
one at most 30 ms more for a model of up to 1,000 operations, and 3% more for a larger one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
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
from research.zoo.deep import build, operations

SMOKE_ARGUMENTS = "--sizes 100 --repeats 1"
"""The arguments with which this command is quickest, for `make figures-smoke`."""

ROOT = Path(__file__).parents[2]

DEVICES = "CPU_A,CPU_B"

FIRST_SHARE, FIRST_SECONDS = 0.10, 1.0
"""Limit of the difference between a first load and HETERO's: a share of HETERO's, or seconds, whichever is more."""

LATER_SECONDS = 0.030
"""Seconds that a later load may take more, of a model of up to `SMALL` operations."""

SMALL = 1_100
"""Largest number of operations of a small model: one of "about 1,000" may have a few more."""

LATER_SHARE = 0.03
"""Share of HETERO's load that a later load of a larger model may take more."""


def load(path: str, device: str) -> None:
    """Loads a model in this process and prints the seconds that it took."""
    core = ov.Core()
    begin = time.perf_counter()
    core.compile_model(path, device)
    print(json.dumps(time.perf_counter() - begin))


def seconds_of(path: str, device: str, cache: str, bytecode: str) -> float:
    """Seconds of a load in a child process.

    Args:
        path: path of the IR.
        device: the device string.
        cache: folder in which loads by HSDAG cache placements.
        bytecode: folder in which Python caches bytecode.
    """
    code = f"import sys; from {__name__} import load; load(*sys.argv[1:])"
    environment = {**os.environ, FOLDER_VARIABLE: cache, "PYTHONPYCACHEPREFIX": bytecode}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", code, path, device]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def measure(size: int, repeats: int, bytecode: str) -> dict[str, Any]:
    """Measures a row of the table.

    Args:
        size: approximate number of operations of the model.
        repeats: number of turns of the three loads.
        bytecode: folder in which Python caches bytecode; where it is empty, a load that is not counted fills it.

    Returns:
        `operations` of the model; lists of seconds `hetero`, `first` and `later`, an entry for each turn.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.xml")
        model = build("encoder", size)
        row: dict[str, Any] = {"operations": operations(model), "hetero": [], "first": [], "later": []}
        ov.save_model(model, path, compress_to_fp16=False)
        del model
        if not any(os.scandir(bytecode)):
            seconds_of(path, f"HSDAG:{DEVICES}", str(Path(folder) / "cache"), bytecode)
        for turn in range(repeats):
            cache = str(Path(folder) / f"cache_{turn}")
            row["hetero"].append(seconds_of(path, f"HETERO:{DEVICES}", cache, bytecode))
            row["first"].append(seconds_of(path, f"HSDAG:{DEVICES}", cache, bytecode))
            row["later"].append(seconds_of(path, f"HSDAG:{DEVICES}", cache, bytecode))
    return row


def differences(row: Mapping[str, Any], which: str) -> float:
    """Median over turns of the difference between a load ("first" or "later") and HETERO's in the same turn, s."""
    return statistics.median(more - hetero for more, hetero in zip(row[which], row["hetero"], strict=True))


def failures(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a line for each limit that the rows exceed."""
    exceeded = []
    for row in rows:
        hetero = statistics.median(row["hetero"])
        first, later = differences(row, "first"), differences(row, "later")
        if first > max(FIRST_SHARE * hetero, FIRST_SECONDS):
            exceeded.append(f"{row['operations']:,} operations: the first load takes {first:.2f} s more")
        if later > (LATER_SECONDS if row["operations"] <= SMALL else LATER_SHARE * hetero):
            exceeded.append(f"{row['operations']:,} operations: later loads take {later:.3f} s more")
    return exceeded


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = []
    for row in rows:
        medians = [f"{statistics.median(row[which]):.2f}" for which in ("hetero", "first", "later")]
        more = [f"{differences(row, which):+.3f}" for which in ("first", "later")]
        lines.append([f"{row['operations']:,} operations", *medians, *more])
    head = ["", "HETERO, s", "HSDAG first, s", "HSDAG later, s", "first − HETERO, s", "later − HETERO, s"]
    return markdown(head, lines)


def main() -> int:
    """Makes the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", nargs="+", type=int, default=[100, 1000, 5000, 10_000, 22_000])
    parser.add_argument("--repeats", type=int, default=5, help="turns of the three loads (default %(default)s)")
    add_output(parser, "JSON of the results, and the table in Markdown beside it")
    options = parser.parse_args()
    os.environ[virtual.VIRTUAL_DEVICES_VARIABLE] = declared()
    rows = []
    with tempfile.TemporaryDirectory() as bytecode:
        for size in options.sizes:
            rows.append(measure(size, options.repeats, bytecode))
            print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    result = {"about": about(), "settings": {"repeats": options.repeats}, "rows": rows}
    publish(options.output, result, {"Loads of a model by device name:": table(rows)})
    exceeded = failures(rows)
    print(*exceeded, sep="\n", file=sys.stderr)
    return int(bool(exceeded))


if __name__ == "__main__":
    start(__spec__)
