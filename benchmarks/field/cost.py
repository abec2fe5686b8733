"""What placing costs as graphs grow: processor seconds of every contestant, and how good its placement is.

    python -m benchmarks.field.cost                  # results/cost.json and .md

Encoders of 300 to 10,000 operations on a Flex 170 and a Xeon by built-in profiles, throughput. A run
is a process of its own, ended by the operating system when its processor time is over: what computes for long without
asking for an evaluation cannot be stopped otherwise; what it had found until then does not count.
"""

from __future__ import annotations

import argparse
import resource
import signal
import sys
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from benchmarks.common import harness
from benchmarks.common.contestants import LEARNED, OURS, SIMPLE, Contestant, single
from benchmarks.common.machine import about
from benchmarks.common.tables import Result, markdown, values, write
from ov_hsdag.model.repair import split_rule
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.storage.files import write_json
from ov_hsdag.training import corpus
from research.baselines.budget import Budget
from research.zoo.deep import build, operations

RESULTS = Path(__file__).parents[1] / "results" / "cost.json"
SIZES = (300, 1000, 3000, 10_000)
FAMILY = "encoder"
DEVICES = "xeon+flex"
EVALUATIONS = 500


def contestants() -> list[Contestant]:
    """Rows of the table."""
    return [single(0, "GPU alone"), *SIMPLE, *LEARNED, *OURS]


def problem_of(size: int) -> tuple[int, PlacementProblem]:
    """Number of operations, and the problem of an encoder with about so many."""
    model = build(FAMILY, size)
    count = operations(model)
    template = corpus.extract(model, split_rule(ov.__version__))
    names, profile = corpus.device_set(corpus.HELD_OUT_SETS[DEVICES])
    limits = np.full(len(names), -1, np.int64)
    return count, corpus.assemble(template, names, profile, "throughput", memory_bytes=limits)


def run_apart(problem: PlacementProblem, contestant: Contestant, seconds: float) -> dict[str, Any]:
    """`harness.run` in a process that ends with its processor time.

    Args:
        problem: to place.
        contestant: who places it.
        seconds: of processor time.

    Returns:
        As `harness.run`; `why` says that time was over, or how the process ended.
    """
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(sender, problem, contestant, seconds))
    process.start()
    sender.close()
    try:
        cell: dict[str, Any] = receiver.recv()
    except EOFError:
        cell = {"us": None, "drawn_us": None, "again_us": None, "evaluations": 0, "seconds": None}
    process.join()
    if "why" not in cell:
        killed = process.exitcode in (-signal.SIGXCPU, -signal.SIGKILL)
        cell["why"] = f"not done within {seconds:g} s" if killed else f"ended with {process.exitcode}"
    cell.pop("placement", None)
    return cell


def _child(sender: Connection, problem: PlacementProblem, contestant: Contestant, seconds: float) -> None:
    limit = int(time.process_time() + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    sender.send(harness.run(problem, contestant, Budget(EVALUATIONS, seconds)))


def tables(result: Result) -> dict[str, str]:
    """Processor seconds, and the placement's period over the best of any method."""
    sizes, cells = result["sizes"], result["cells"]
    best = {size: min(value for of in cells.values() for value in values([of[size]], "us")) for size in sizes}

    def told(cell: Result, size: str) -> str:
        return f"*{cell['why']}*" if cell["us"] is None else f"{cell['seconds']:.2f} ({cell['us'] / best[size]:.2f})"

    head = ["", *(f"{one['operations']:,} operations" for one in sizes.values())]
    rows = [[row, *(told(of[size], size) for size in sizes)] for row, of in cells.items()]
    return {"Processor seconds (period / best of any method):": markdown(head, rows)}


def main() -> None:
    """Makes the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--seconds", type=float, default=20.0, help="of processor time for each run")
    parser.add_argument("--output", type=Path, default=RESULTS)
    harness.add_keep(parser)
    options = parser.parse_args()
    begin = time.perf_counter()
    settings = {"seconds": options.seconds, "evaluations": EVALUATIONS, "devices": DEVICES, "family": FAMILY}
    earlier = harness.earlier(options.output, settings, options.keep)
    cells: dict[str, dict[str, Any]] = {}
    sizes: dict[str, dict[str, int]] = {}
    for size in options.sizes:
        count, problem = problem_of(size)
        sizes[str(size)] = {"operations": count, "groups": problem.group_count}
        for contestant in contestants():
            known = earlier.get("cells", {}).get(contestant.name, {}).get(str(size))
            cell = known or run_apart(problem, contestant, options.seconds)
            cells.setdefault(contestant.name, {})[str(size)] = cell
            print(size, contestant.name, cells[contestant.name][str(size)], file=sys.stderr, flush=True)
    spent = sum(cell["seconds"] or options.seconds for of_size in cells.values() for cell in of_size.values())
    before = earlier.get("about", {}).get("wall_seconds", 0)
    took = {"wall_seconds": round(time.perf_counter() - begin + before), "processor_seconds": round(spent)}
    result = {"about": {**about(), **took}, "settings": settings, "sizes": sizes, "cells": cells}
    write_json(options.output, result)
    write(options.output, result, tables(result))


if __name__ == "__main__":
    main()
