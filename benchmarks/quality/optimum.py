"""Measures how far the default placement of `place` is from the optimum that a solver proves.

    python -m benchmarks.quality.optimum                                        # 200 random problems
    python -m benchmarks.quality.optimum --output benchmarks/results/optimum.json    # and optimum.md; goes on
    python -m benchmarks.quality.optimum --problems 0 --instances dnn-partitioning   # a clone, see field/outside.py

Problems are random graphs of 12 to 60 operations on two to eight devices, for both objectives, with and without memory
limits and missing operations. CP-SAT (OR-tools) searches for a better placement than the default, and proves either
that there is none or how much better one could be (research/baselines/exact.py). The simulator scores the placements
that it finds. Both have one thread. The default is the placement of `place` without a network and without measuring.

The exit status is 1 if, among the problems whose optimum is proven, the default is more than 0.1% behind in more than
5%, or more than 1% behind in any.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from benchmarks.common.machine import about
from benchmarks.common.output import add_output, stored
from benchmarks.common.tables import markdown, write
from benchmarks.common.workers import start
from benchmarks.field.outside import paths_of
from ov_hsdag.model.colocation import split_rule
from ov_hsdag.placing.candidates import find_candidates
from ov_hsdag.problem.problem import OBJECTIVES, PlacementProblem
from ov_hsdag.storage.files import write_json
from ov_hsdag.training import corpus
from research.baselines.exact import Optimum, optimum
from research.baselines.relaxation import relaxed
from research.instances import Instance

SEED = 20261128
"""Seed of the problems. No constant of a search was chosen on problems of this seed."""

DEVICES = (2, 3, 4, 5, 6, 8)
"""Numbers of devices; each occurs equally often with each of the eight kinds of problems."""

MOST_OPERATIONS = 60

SECONDS = 1.0
"""Deterministic time of the solver for one random problem, s: about three seconds of processor time."""

CLOSE, FAR = 1e-3, 1e-2
"""Distances from the optimum, as shares; the table counts the problems in which the default is within each."""

CLOSE_SHARE = 0.95
"""Least share of the problems with a proven optimum in which the default is close; one problem may always miss it."""

SMOKE_PROBLEMS, SMOKE_OPERATIONS = 6, 14

_LEAST_LIMIT = 0.1
"""Smallest memory limit of a device, as a share of what the whole model needs."""

_DRAWS = 400
"""Largest number of draws of a problem until it is of its kind."""


@dataclass(frozen=True)
class Kind:
    """The kind of a problem, which its number determines."""

    devices: int  # number of devices
    objective: str  # "latency" or "throughput"
    limited: bool  # whether no single device has memory for the model
    lacking: bool  # whether a device does not run all operations

    @classmethod
    def of(cls, number: int) -> Kind:
        """The kind of problem `number`."""
        kind, devices = divmod(number, len(DEVICES))
        kind = (kind + number) % 8
        return cls(DEVICES[devices], OBJECTIVES[kind % 2], kind // 2 % 2 == 1, kind // 4 == 1)


def draw(number: int, *, seed: int = SEED, most_operations: int = MOST_OPERATIONS) -> PlacementProblem:
    """Draws a random problem.

    Args:
        number: number of the problem, which decides its kind.
        seed: seed of all problems.
        most_operations: largest number of operations of its graph; the smallest is 12.

    Raises:
        RuntimeError: none of many draws is of its kind.
    """
    kind, generator = Kind.of(number), np.random.default_rng([seed, number])
    rule = split_rule(ov.__version__)
    for _ in range(_DRAWS):
        template = corpus.generated_template(generator, rule, most_operations)
        problem = replace(corpus.draw_problem(template, generator, kind.devices), objective=kind.objective)
        free = np.full(kind.devices, -1, np.int64)
        problem = _with_weights(replace(problem, memory_bytes=free), generator)
        limits = _limits(problem, generator) if kind.limited and corpus.placeable(problem) else free
        if limits is not None and corpus.placeable(problem) and problem.group_supported.all() != kind.lacking:
            return replace(problem, memory_bytes=limits)
    raise RuntimeError(f"no problem of {kind} in {_DRAWS} draws")


def _with_weights(problem: PlacementProblem, generator: np.random.Generator) -> PlacementProblem:
    """The problem with random bytes of weights for products and convolutions; the median is one megabyte."""
    graph = problem.graph
    weighty = np.isin(graph.types, ("MatMul", "Convolution", "GroupConvolution"))
    size = np.exp(generator.normal(np.log(1e6), 1.0, graph.nodes))
    return replace(problem, graph=replace(graph, weight_bytes=np.where(weighty, size, 0).astype(np.int64)))


def _limits(problem: PlacementProblem, generator: np.random.Generator) -> NDArray[np.int64] | None:
    """Draws memory limits that a random contiguous partition keeps and no single device does.

    The limit of each device is 1 to 1.5 times what the partition needs of it.

    Returns:
        Limits in bytes, int64 [devices]; None if there are no such limits for the drawn partition.
    """
    devices = len(problem.devices)
    ends = np.sort(generator.integers(0, problem.group_count + 1, devices - 1))
    part = np.searchsorted(ends, np.arange(problem.group_count), side="right")
    partition = problem.where_supported(generator.permutation(devices)[part])
    found = problem.evaluate(np.vstack([problem.singles, partition]))
    alone = found.memory_bytes[:devices].max()
    limits = np.ceil(found.memory_bytes[devices] * generator.uniform(1.0, 1.5, devices))
    limits = np.maximum(limits, _LEAST_LIMIT * alone)
    return None if found.infeasible[devices] or limits.max() >= alone else limits.astype(np.int64)


def best_by_default(problem: PlacementProblem) -> NDArray[np.uint8]:
    """The best placement that `place` finds by default, without a network, uint8 [groups]."""
    found = np.stack([candidate.placement for candidate in find_candidates(problem, ())])
    return found[int(problem.scores(found).argmin())]


def solve(problem: PlacementProblem, seconds: float) -> dict[str, Any]:
    """Places a problem by default and by the solver.

    Args:
        problem: the problem.
        seconds: deterministic time of the solver, s.

    Returns:
        `default_us`, `best_us` (of both) and the lower `bound_us`, µs, None without a placement; `proven`, whether
        nothing is better than `best_us`; number of `groups`; `rounds` of the solver; and processor time,
        `default_seconds` and `solver_seconds`.
    """
    begin = time.process_time()
    default = best_by_default(problem)
    placed = time.process_time()
    found: Optimum = optimum(problem, default[None], seconds=seconds)
    # CP-SAT has no bound at all before it has presolved a large programme.
    bound_us = found.bound_us if found.proven else max(found.bound_us, relaxed(problem))
    solved = time.process_time()
    return {
        "groups": problem.group_count,
        "default_us": _finite(problem.scores(default)[0]),
        "best_us": _finite(found.score_us),
        "bound_us": _finite(bound_us),
        "proven": found.proven,
        "rounds": found.rounds,
        "default_seconds": round(placed - begin, 2),
        "solver_seconds": round(solved - placed, 2),
    }


def _finite(us: float) -> float | None:
    """The number, or None if it is not finite."""
    return float(us) if np.isfinite(us) else None


def behind(cell: Mapping[str, Any]) -> float:
    """The distance of the default from the best placement, as a share; inf if the default has no placement."""
    return math.inf if cell["default_us"] is None else cell["default_us"] / cell["best_us"] - 1


def gap(cell: Mapping[str, Any]) -> float:
    """The share of the best score by which a better placement is still possible; 0 if the best is proven."""
    if cell["proven"]:
        return 0.0
    return 1.0 if cell["best_us"] is None else 1 - cell["bound_us"] / cell["best_us"]


def table(cells: Mapping[str, Mapping[str, Any]]) -> str:
    """The table by kind of problem. cells: results of `solve` by the problem's number."""
    kinds = {number: Kind.of(int(number)) for number in cells}
    rows: dict[str, Callable[[Kind], Any]] = {
        "all": lambda kind: "all",
        **dict.fromkeys(OBJECTIVES, lambda kind: kind.objective),
        **{f"{devices} devices": lambda kind: f"{kind.devices} devices" for devices in DEVICES},
        "memory limits": lambda kind: "memory limits" if kind.limited else "",
        "missing operations": lambda kind: "missing operations" if kind.lacking else "",
        "neither": lambda kind: "" if kind.limited or kind.lacking else "neither",
    }
    lines = [
        _line(name, [cells[n] for n, kind in kinds.items() if row_of(kind) == name]) for name, row_of in rows.items()
    ]
    head = ["", "problems", "solved", "no placement", "within 0.1%", "within 1%", "worst", "not solved: gap, most"]
    head.append("not solved: solver more than 0.1% better, most")
    return markdown(head, [line for line in lines if line[1] != "0"])


def _line(name: str, cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """A row of the table for some problems."""
    solved = [cell for cell in cells if cell["proven"] and cell["best_us"] is not None]
    none = sum(cell["proven"] and cell["best_us"] is None for cell in cells)
    distances = [behind(cell) for cell in solved]
    unsolved = [cell for cell in cells if not cell["proven"]]
    gaps = [gap(cell) for cell in unsolved]
    beaten = [distance for cell in unsolved if cell["best_us"] is not None and (distance := behind(cell)) > CLOSE]
    return [
        name,
        str(len(cells)),
        str(len(solved)),
        str(none),
        str(sum(distance <= CLOSE for distance in distances)),
        str(sum(distance <= FAR for distance in distances)),
        f"{max(distances):.2%}" if distances else "–",
        f"{len(gaps)}: {max(gaps):.1%}" if gaps else "–",
        f"{len(beaten)}: {max(beaten):.1%}" if beaten else "–",
    ]


def instance_table(cells: Mapping[str, Mapping[str, Any]]) -> str:
    """The table of published instances. cells: results by name; their µs are ms of the instance."""
    rows = []
    for name, cell in cells.items():
        figures = [f"{cell[key]:.4g}" for key in ("default_us", "best_us", "bound_us")]
        rows.append([name, str(cell["groups"]), *figures, "proven" if cell["proven"] else f"{gap(cell):.1%}"])
    return markdown(["", "groups", "default, ms", "best, ms", "bound, ms", "gap"], rows)


def missed(cells: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns a line for each floor that is missed."""
    distances = [behind(cell) for cell in cells.values() if cell["proven"] and cell["best_us"] is not None]
    close = sum(distance <= CLOSE for distance in distances)
    lines = []
    if len(distances) - close > max(1, (1 - CLOSE_SHARE) * len(distances)):
        lines.append(f"within {CLOSE:.1%} of the optimum in {close} of {len(distances)}, expected {CLOSE_SHARE:.0%}")
    if distances and max(distances) > FAR:
        lines.append(f"{max(distances):.2%} behind the optimum at worst, expected {FAR:.0%} at most")
    return lines


def tables(result: Mapping[str, Any]) -> dict[str, str]:
    """All tables of a result, by caption."""
    shown = {}
    if result["cells"]:
        shown["What `place` finds by default beside the proven optimum, random problems:"] = table(result["cells"])
    if result["instances"]:
        shown["Instances of Tarnawski et al., largest load by our simulator:"] = instance_table(result["instances"])
    return shown


def main() -> int:
    """Solves the problems that the file of --output lacks, and prints the tables. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=200, help="random problems (default %(default)s)")
    parser.add_argument("--seed", type=int, default=SEED, help="of the problems (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of the solver for each (default %(default)s)")
    parser.add_argument("--instances", type=Path, metavar="CLONE", help="published instances as well")
    parser.add_argument(
        "--instance-seconds", type=float, default=10.0, help="of the solver for each of these (default %(default)s)"
    )
    parser.add_argument("--smoke", action="store_true", help="a few tiny problems, in seconds")
    add_output(parser, "a JSON file of all figures, and a table beside it; a later run with equal settings goes on")
    arguments = parser.parse_args()
    settings = {
        "seed": arguments.seed,
        "seconds": arguments.seconds,
        "instance_seconds": arguments.instance_seconds,
        "most_operations": SMOKE_OPERATIONS if arguments.smoke else MOST_OPERATIONS,
    }
    earlier = stored(arguments.output)
    kept = earlier if earlier is not None and earlier["settings"] == settings else {}
    result: dict[str, Any] = {
        "about": kept.get("about") or about(),
        "settings": settings,
        "cells": kept.get("cells", {}),
        "instances": kept.get("instances", {}),
    }

    def record(group: str, name: str, problem: PlacementProblem, seconds: float) -> None:
        """Solves a problem, adds it to the result and writes it. group: "cells" or "instances"."""
        result[group][name] = solve(problem, seconds)
        print(name, result[group][name], file=sys.stderr, flush=True)
        if arguments.output is not None:
            write_json(arguments.output, result)

    for number in range(SMOKE_PROBLEMS if arguments.smoke else arguments.problems):
        if str(number) not in result["cells"]:
            problem = draw(number, seed=arguments.seed, most_operations=settings["most_operations"])
            record("cells", str(number), problem, arguments.seconds)
    for name, path in paths_of(arguments.instances).items() if arguments.instances else ():
        if name not in result["instances"]:
            record("instances", name, Instance.load(path).problem(), arguments.instance_seconds)
    write(arguments.output, result, tables(result))
    lines = missed(result["cells"])
    for line in lines:
        print(line, file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    start(__spec__)
