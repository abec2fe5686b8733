"""Every contestant on public instances that nobody here made: those of Tarnawski et al., with their published optima.

    git clone https://github.com/msr-fiddle/dnn-partitioning
    python -m benchmarks.field.outside dnn-partitioning
    python -m benchmarks.field.outside dnn-partitioning --output outside.json    # and outside.md
    python -m benchmarks.field.outside dnn-partitioning --orders 10     # the same files with nodes in other orders

The instances, and how ours and their problems differ, are in research/instances.py. What counts is *their* objective,
the largest load of a device for one inference. Contestants that compute with costs see them through the placement
problem made of the instance; what its simulator charges is never less. The instances for latency are left out: devices
there work at the same time on one inference, which HETERO does not do.

Exits with status 1 where `place` by default is worse than the published optimum of contiguous splits; with --orders
where it is worse than the best known in any order, or finds another load in another one.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import harness
from benchmarks.common.contestants import LEARNED, OURS, SHIPPED, SIMPLE, Contestant, learned, single
from benchmarks.common.output import add_output, folder_or_temporary
from benchmarks.common.tables import Result, markdown, middle, publish, spread
from benchmarks.common.workers import start
from ov_hsdag.placing.candidates import find_candidates
from ov_hsdag.problem.problem import PlacementProblem
from research.baselines.budget import Budget
from research.baselines.relaxation import lower_bound
from research.instances import BEST_KNOWN, CONTIGUOUS, CPU, Instance, expert_load
from research.numbering import breadth_first_order, random_order

SMOKE_ARGUMENTS = "--smoke --orders 2"
"""The arguments with which this command is quickest, for `make figures-smoke`."""

EVALUATIONS = 500
SEEDS = 5

ROUNDING = 1e-4
"""Loads that differ by less, as a share, are equal: the best known ones have two digits behind the point."""


CONTESTANTS = (single(CPU, "CPU alone"), single(CPU + 1, "one accelerator alone"), *SIMPLE, *LEARNED, *OURS)
"""Rows of the table."""

_IN_LAYERS = {contestant.name: contestant for contestant in learned(colocate=False)}


def contestant_on(instance: str, contestant: Contestant) -> Contestant:
    """A contestant as it places an instance: what learns joins no operations of graphs of layers, which are few."""
    return _IN_LAYERS.get(contestant.name, contestant) if instance.startswith("LayerGraphs/") else contestant


@dataclass(frozen=True, eq=False)
class Instances:
    """Instances, which travel with the runs; equal to themselves alone."""

    of: Mapping[str, Instance]  # by what `name_of` calls them


@cache
def _problem(instances: Instances, name: str) -> PlacementProblem:
    return instances.of[name].problem()


def judge(instance: Instance, problem: PlacementProblem, placements: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Largest loads of placements as the instance defines them, s, inf where it has none, float64 [batch].

    instance: of theirs. problem: made of it. placements: uint8 [batch, groups].
    """
    found = np.full(len(placements), np.inf)
    for number, placement in enumerate(placements):
        try:
            found[number] = 1e-3 * instance.loads(placement[problem.groups].astype(np.int64)).max()
        except ValueError:  # no memory, or an operation that the device does not run
            continue
    return found


@dataclass(frozen=True)
class Task:
    """One run."""

    instance: str  # what `name_of` calls it
    contestant: int  # number in `CONTESTANTS`
    seed: int  # of the contestant
    seconds: float  # of the budget


def run(instances: Instances, task: Task) -> dict[str, Any]:
    """The run; `load_ms` is their objective."""
    instance, problem = instances.of[task.instance], _problem(instances, task.instance)
    cell = harness.run(
        problem,
        contestant_on(task.instance, CONTESTANTS[task.contestant]),
        Budget(EVALUATIONS, task.seconds),
        seed=task.seed,
        judge=lambda placements: judge(instance, problem, placements),
    )
    us = cell.pop("us")
    cell.pop("placement", None)
    return {"load_ms": None if us is None else us * 1e-3, **cell}


def bound(instances: Instances, task: tuple[str, float]) -> float:
    """What no placement's period is less than by our simulator, ms; theirs may be a little less."""
    return lower_bound(_problem(instances, task[0]), seconds=task[1])


def name_of(path: Path) -> str:
    """Granularity and model, as in `CONTIGUOUS`."""
    return f"{path.parent.name}/{path.name.removesuffix('_inference.json')}"


def paths_of(clone: Path) -> dict[str, Path]:
    """Files of the instances of a clone of their repository, by name."""
    return {name_of(path): path for path in sorted((clone / "throughput-inputs").glob("*/*_inference.json"))}


def measure(clone: Path, settings: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """All runs on all instances of a clone of their repository.

    clone: of it. settings: `seconds` of processor time for each run, `bound_seconds` of HiGHS for each lower bound.
    earlier: a result with the same settings whose runs are not made again, or nothing.
    """
    paths = paths_of(clone)
    there, rows = Instances({name: Instance.load(path) for name, path in paths.items()}), CONTESTANTS
    tasks = [
        Task(name, row, seed, settings["seconds"])
        for row, contestant in enumerate(rows)
        for name in paths
        for seed in range(SEEDS if contestant.seeded else 1)
    ]

    def known(task: Task) -> dict[str, Any] | None:
        seeds = earlier.get("cells", {}).get(task.instance, {}).get(rows[task.contestant].name, [])
        return seeds[task.seed] if task.seed < len(seeds) else None

    def known_bound(task: tuple[str, float]) -> float | None:
        found: float | None = earlier.get("instances", {}).get(task[0], {}).get("bound_ms")
        return found

    runs = harness.Runs(partial(run, there), known)
    cells = runs.of(sorted(tasks, key=lambda task: not rows[task.contestant].learns))
    bounds = harness.Runs(partial(bound, there), known_bound).of([(name, settings["bound_seconds"]) for name in paths])
    instances = {
        name: {
            "nodes": len(instance.ids),
            "groups": _problem(there, name).group_count,
            "accelerators": instance.accelerators,
            "contiguous_optimum_ms": CONTIGUOUS.get(name),
            "expert_ms": expert_load(instance, paths[name], clone),
            "bound_ms": bounds[name, settings["bound_seconds"]],
        }
        for name, instance in there.of.items()
    }
    return {
        "about": harness.made(earlier, runs, cells.values()),
        "settings": settings,
        "instances": instances,
        "cells": {
            name: {
                contestant.name: [cells[task] for task in tasks if (task.instance, task.contestant) == (name, row)]
                for row, contestant in enumerate(rows)
            }
            for name in paths
        },
    }


def tables(result: Result) -> dict[str, str]:
    """Largest loads, ms, medians over seeds."""
    instances, cells = result["instances"], result["cells"]
    facts = {
        "operations": "nodes",
        "accelerators": "accelerators",
        "published optimum of contiguous splits": "contiguous_optimum_ms",
        "human experts": "expert_ms",
        "lower bound of any placement": "bound_ms",
    }
    rows = [
        [said, *("–" if one[key] is None else f"{one[key]:.4g}" for one in instances.values())]
        for said, key in facts.items()
    ]
    rows += [[row, *(spread(of[row], "load_ms") for of in cells.values())] for row in next(iter(cells.values()))]
    return {"Largest load of a device for one inference, ms:": markdown(["", *instances], rows)}


@dataclass(frozen=True)
class Ordered:
    """What `place` finds by default, no network, with an instance's nodes in some orders."""

    load_ms: NDArray[np.float64]  # largest load in each order, [orders]
    seconds: float  # the most processor time that an order took

    @property
    def spread(self) -> float:
        """By what share the worst order is behind the best."""
        return float(self.load_ms.max() / self.load_ms.min() - 1)


def in_orders(instances: Instances, task: tuple[str, int]) -> Ordered:
    """Places an instance, by its name, in so many orders: all sources first, depth first as read, random ones."""
    name, count = task
    instance, problem = instances.of[name], _problem(instances, name)
    orders = [breadth_first_order(problem.graph), np.arange(problem.graph.nodes)]
    orders += [random_order(problem.graph, seed) for seed in range(count - len(orders))]
    loads, seconds = [], []
    for order in orders[:count]:
        numbered = problem.renumbered(order)
        begin = time.process_time()
        found = find_candidates(numbered, [])
        seconds.append(time.process_time() - begin)
        device = np.empty((len(found), len(order)), np.int64)
        device[:, order] = np.stack([one.placement for one in found])[:, numbered.groups]
        first = np.unique(problem.groups, return_index=True)[1]
        loads.append(1e3 * judge(instance, problem, device[:, first].astype(np.uint8)).min())
    return Ordered(np.array(loads), max(seconds))


def compare_orders(instances: Instances, count: int) -> int:
    """Prints what is found in so many orders of each instance's nodes; status 1: an order is behind."""
    rows, behind = [], []
    for name in instances.of:
        found, known = in_orders(instances, (name, count)), BEST_KNOWN.get(name, np.inf)
        rows.append(
            [name, f"{known:.2f}", f"{found.load_ms.min():.3f}", f"{found.load_ms.max():.3f}", f"{found.seconds:.2f}"]
        )
        if found.load_ms.max() > known * (1 + ROUNDING) or found.spread > ROUNDING:
            behind.append(name)
    print(markdown(["", "best known", "best order", "worst order", "processor seconds, at most"], rows))
    if behind:
        print(f"behind, or different in different orders: {', '.join(behind)}", file=sys.stderr)
    return int(bool(behind))


def write_smallest_clone(folder: Path) -> None:
    """Writes an instance of three operations where a clone of their repository has its own."""
    nodes = [
        {"id": number, "supportedOnFpga": 1, "cpuLatency": 8.0, "fpgaLatency": 2.0, "isBackwardNode": 0, "size": 60.0}
        for number in range(3)
    ]
    edges = [{"sourceId": number, "destId": number + 1, "cost": 0.5} for number in range(2)]
    document = {"maxSizePerFPGA": 100.0, "maxFPGAs": 2, "maxCPUs": 1, "nodes": nodes, "edges": edges}
    path = folder / "throughput-inputs" / "OperatorGraphs" / "three_inference.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(document), encoding="utf-8")


def main() -> int:
    """Makes the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("clone", nargs="?", type=Path, help="of https://github.com/msr-fiddle/dnn-partitioning")
    parser.add_argument("--seconds", type=float, default=20.0, help="of processor time for each run")
    parser.add_argument("--bound-seconds", type=float, default=20.0, help="of HiGHS, for each lower bound")
    add_output(parser, "JSON of the results, and tables in Markdown beside it")
    parser.add_argument("--orders", type=int, metavar="N", help="prints what `place` finds in N orders of the nodes")
    parser.add_argument(
        "--smoke", action="store_true", help="an instance of three operations in the place of a clone's"
    )
    harness.add_keep(parser)
    options = parser.parse_args()
    if options.smoke == (options.clone is not None):
        parser.error("expected a clone, or --smoke without one")
    if options.orders is not None and options.orders < 1:
        parser.error("expected a positive number of --orders")
    with folder_or_temporary(options.clone) as clone:
        if options.smoke:
            write_smallest_clone(clone)
        if not (clone / "throughput-inputs").is_dir():
            parser.error(f"{clone} has no folder throughput-inputs")
        if options.orders is not None:
            return compare_orders(
                Instances({name: Instance.load(path) for name, path in paths_of(clone).items()}), options.orders
            )
        return compare_methods(clone, options)


def compare_methods(clone: Path, options: argparse.Namespace) -> int:
    """Prints what every method finds on the instances of a clone; status 1: `place` is worse than contiguous splits."""
    settings = {
        "evaluations": EVALUATIONS,
        "seconds": options.seconds,
        "bound_seconds": options.bound_seconds,
        "seeds": SEEDS,
    }
    result = measure(clone, settings, harness.earlier(options.output, settings, options.keep))
    publish(options.output, result, tables(result))
    worse = [
        name
        for name, of in result["cells"].items()
        if middle(of[SHIPPED], "load_ms") > CONTIGUOUS.get(name, np.inf) * (1 + harness.TIE)
    ]
    if worse:
        print(f"worse than the best contiguous split: {', '.join(worse)}", file=sys.stderr)
    return int(bool(worse))


if __name__ == "__main__":
    start(__spec__)
