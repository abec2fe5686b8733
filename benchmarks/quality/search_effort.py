"""Measures how far the default search is behind one of eight seconds, on models on which no constant was chosen.

    python -m benchmarks.quality.search_effort [--models N] [--seconds S] [--seed N] [--output FILE.json]

Thirteen models of sizes drawn from a seed (drawn_models.py) are placed on four and eight equal CPU devices and on two
GPUs and a CPU, for throughput, with built-in profiles, by the simulator. The default search counts moves, so that its
result is the same on every machine. The long search has one thread and eight seconds of processor time, so that other
programs change its result little. All problems ("cells") take eight minutes of processor time; an interrupted run goes
on from the file of --output.

Printed for each kind of devices is how much slower the default's best candidate is than that of the long search
(negative: faster), in the mean and at worst; the number of problems that are more than 1% behind; and the processor
time of both.

The exit status is 1 if the default is more than 0.5% behind in the mean, or more than 2% in a problem.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

import numpy as np

from benchmarks.common.output import add_output
from benchmarks.common.tables import markdown, publish
from benchmarks.common.workers import start
from benchmarks.quality.drawn_models import DEVICES, SEED, DrawnProblem, drawn_problems, record_of
from ov_hsdag.placers.base import Placer
from ov_hsdag.placers.contiguous import Contiguous
from ov_hsdag.placers.multilevel import Multilevel, search
from ov_hsdag.placers.registry import unlearned_placers
from ov_hsdag.placing.candidates import run
from ov_hsdag.problem.problem import PlacementProblem

SMOKE_ARGUMENTS = "--models 1 --seconds 0.5"
"""The arguments with which this command is quickest, for `make figures-smoke`."""

SECONDS = 8.0
"""Processor time of the long search."""

FLOOR_MEAN, FLOOR_WORST = 0.005, 0.02
"""Largest distance of the default from the long search, as shares: in the mean of all problems, and in any of them."""

NOTABLE = 0.01
"""Distance from which on a problem counts as behind, as a share."""


def compared(seconds: float, cell: DrawnProblem) -> dict[str, Any]:
    """Places a problem with the default search and with a long one; other placers count as candidates in both.

    Args:
        seconds: processor time of the long search.
        cell: the problem.

    Returns:
        "model", "devices", number of "groups"; scores of the best candidates, "default_us" and "long_us"; and
        processor time, "default_seconds" and "long_seconds".
    """
    problem = cell.problem
    others = min(_score(problem, placer) for placer in unlearned_placers(problem) if not isinstance(placer, Multilevel))
    begin = time.process_time()
    default = _score(problem, Multilevel())
    middle = time.process_time()
    found = search(problem, seconds=seconds, starts=Contiguous().place(problem), processor_time=True)
    end = time.process_time()
    return {
        "model": cell.model,
        "devices": cell.devices,
        "groups": problem.group_count,
        "default_us": min(others, default),
        "long_us": min(others, found.score),
        "default_seconds": round(middle - begin, 2),
        "long_seconds": round(end - middle, 2),
    }


def _score(problem: PlacementProblem, placer: Placer) -> float:
    """The score of a placer's placement, µs."""
    return float(problem.scores(run(placer, problem).placement)[0])


def behind(cell: dict[str, Any]) -> float:
    """How much slower the default's placement is than the long search's, as a share; negative if it is faster."""
    return float(cell["default_us"] / cell["long_us"] - 1)


def table(cells: list[dict[str, Any]]) -> str:
    """The table by devices."""
    rows = []
    for devices in DEVICES:
        of_devices = [cell for cell in cells if cell["devices"] == devices]
        if not of_devices:
            continue
        shares = [behind(cell) for cell in of_devices]
        seconds = [np.mean([cell[key] for cell in of_devices]) for key in ("default_seconds", "long_seconds")]
        notable = sum(share > NOTABLE for share in shares)
        rows.append([
            devices, f"{np.mean(shares):.2%}", f"{max(shares):.2%}", f"{min(shares):.2%}",
            f"{notable} of {len(shares)}", f"{seconds[0]:.1f} s", f"{seconds[1]:.1f} s",
        ])  # fmt: skip
    head = ["", "behind, mean", "worst", "best", f"more than {NOTABLE:.0%} behind", "default takes", "long takes"]
    return markdown(head, rows)


def main() -> int:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", type=int, help="the first ones alone; default: all thirteen")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of the long search (default: %(default)g)")
    parser.add_argument("--seed", type=int, default=SEED, help="of the models' sizes (default: %(default)s)")
    add_output(parser, "all cells as JSON, and the table beside it")
    arguments = parser.parse_args()
    settings = {"seed": arguments.seed, "seconds": arguments.seconds}
    run_cell = partial(compared, arguments.seconds)
    record = record_of(run_cell, drawn_problems(arguments.models, arguments.seed), settings, arguments.output)
    cells = record["cells"]
    publish(arguments.output, record, {"How much slower the default is than a long search:": table(cells)})
    shares = [behind(cell) for cell in cells]
    return int(np.mean(shares) > FLOOR_MEAN or max(shares) > FLOOR_WORST)


if __name__ == "__main__":
    start(__spec__)
