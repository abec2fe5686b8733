"""Measures how placing from IR to IR takes longer as models grow, compared with one compilation for the CPU.

    python -m benchmarks.speed.placing_growth [--sizes 2000 6000 22000 110000] [--compile-up-to 22000]

Each figure is of a child process, which reads the IR, places it on two one-core devices without measuring and writes
it, as `ov-hsdag place --no-measure` does. Another process compiles the same IR for the CPU. Figures are wall time and
processor time, and the peak of memory. The part of the wall time in which OpenVINO reads and writes the IR is shown, as
no placing can save it. The exit status is 1 if a limit is exceeded: 0.5 of the time of
compiling at 22,000 operations; 30 s and 2 GiB at 110,000.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import openvino as ov

from benchmarks.common.machine import about
from benchmarks.common.output import add_output
from benchmarks.common.placing import compiled_in_child, placed_in_child
from benchmarks.common.tables import markdown, publish
from benchmarks.common.workers import start
from benchmarks.field.unseen import declared
from ov_hsdag.devices import virtual
from research.zoo.deep import FAMILIES, build, operations

SMOKE_ARGUMENTS = "--families encoder --sizes 300 --compile-up-to 300"
"""The arguments with which this command is quickest, for `make figures-smoke`."""

OBJECTIVES = ("latency", "throughput")

COMPARED = 22_000
"""Operations of the models whose placing is compared with compiling."""

SHARE_OF_COMPILING = 0.5
"""Largest time of placing, as a share of that of compiling."""

LARGEST = 110_000
"""Operations of the largest models."""

SECONDS = 30.0
"""Largest time of placing the largest models."""

GIB = 2.0
"""Largest memory of placing the largest models."""

Row = Mapping[str, Any]


def measure(family: str, size: int, compiled: bool) -> dict[str, Any]:
    """Measures a row of the table.

    Args:
        family: key of `FAMILIES`.
        size: approximate number of operations of the model.
        compiled: whether to compile the model, too.

    Returns:
        `family`, `size`, the number of `operations`; and figures by objective and for "compile" (None if it was not
        compiled), see `placed_in_child`.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.xml")
        model = build(family, size)
        row: dict[str, Any] = {"family": family, "size": size, "operations": operations(model)}
        ov.save_model(model, path, compress_to_fp16=False)
        del model
        for objective in OBJECTIVES:
            row[objective] = placed_in_child(path, objective)
        row["compile"] = compiled_in_child(path) if compiled else None
    return row


def failures(rows: Sequence[Row]) -> list[str]:
    """Returns a line for each limit that the rows exceed."""
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


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown."""
    lines = []
    for row in rows:
        placed = [_seconds(row[objective]) for objective in OBJECTIVES]
        gib = max(row[objective]["gib"] for objective in OBJECTIVES)
        files = max(row[objective]["openvino_seconds"] for objective in OBJECTIVES)
        figures = [*placed, f"{files:.1f}", f"{gib:.2f}", _seconds(row["compile"])]
        lines.append([row["family"], f"{row['operations']:,}", *figures])
    head = ["", "operations", "latency, s (CPU s)", "throughput, s (CPU s)", "of it reading and writing, s", "GiB"]
    head.append("compiling, s (CPU s)")
    return markdown(head, lines)


def _seconds(took: Mapping[str, float] | None) -> str:
    """Wall time and processor time as text; "" without figures."""
    return f"{took['seconds']:.1f} ({took['cpu_seconds']:.1f})" if took else ""


def main() -> int:
    """Makes the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--families", nargs="+", choices=tuple(FAMILIES), default=tuple(FAMILIES))
    parser.add_argument("--sizes", nargs="+", type=int, default=[2000, 6000, COMPARED, LARGEST])
    parser.add_argument("--compile-up-to", type=int, default=COMPARED, help="operations (default %(default)s)")
    add_output(parser, "JSON of the results, and the table in Markdown beside it")
    options = parser.parse_args()
    os.environ[virtual.VIRTUAL_DEVICES_VARIABLE] = declared()
    rows = []
    for family in options.families:
        for size in options.sizes:
            rows.append(measure(family, size, size <= options.compile_up_to))
            print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    result = {"about": about(), "rows": rows}
    publish(options.output, result, {"Placing from IR to IR, and compiling:": table(rows)})
    exceeded = failures(rows)
    print(*exceeded, sep="\n", file=sys.stderr)
    return int(bool(exceeded))


if __name__ == "__main__":
    start(__spec__)
