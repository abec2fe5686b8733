"""Compares all contestants on public instances, those of Tarnawski et al., with their published optima.

    git clone https://github.com/msr-fiddle/dnn-partitioning
    python -m benchmarks.field.outside dnn-partitioning
    python -m benchmarks.field.outside dnn-partitioning --output outside.json    # and outside.md
    python -m benchmarks.field.outside dnn-partitioning --orders 10     # the same files with nodes in other orders

research/instances.py describes the instances and how their problems differ from ours. Placements are judged by *their*
objective, the largest load of a device for one inference. Contestants that compute with costs use the placement problem
made of the instance, whose simulator never charges less. The instances for latency are left out: devices there work at
the same time on one inference, which HETERO does not do.

The exit status is 1 if `place` by default is worse than the published optimum of contiguous splits; with --orders, if
it is worse than the best known load in any order of the nodes, or its loads differ between orders.
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
"""Loads that differ by less, as a share, are equal: the best known loads have only two digits behind the point."""


CONTESTANTS = (single(CPU, "CPU alone"), single(CPU + 1, "one accelerator alone"), *SIMPLE, *LEARNED, *OURS)
"""Rows of the table."""

_IN_LAYERS = {contestant.name: contestant for contestant in learned(colocate=False)}


def contestant_on(instance: str, contestant: Contestant) -> Contestant:
    """The contestant for an instance: learning methods do not join nodes of graphs of layers, which have few."""
    return _IN_LAYERS.get(contestant.name, contestant) if instance.startswith("LayerGraphs/") else contestant


@dataclass(frozen=True, eq=False)
class Instances:
    """Instances, which are sent to the processes of runs; an object is equal only to itself, so that it is a key."""

    of: Mapping[str, Instance]  # by name (`name_of`)


@cache
def _problem(instances: Instances, name: str) -> PlacementProblem:
    """The placement problem of an instance, made once in each process."""
    return instances.of[name].problem()


def judge(instance: Instance, problem: PlacementProblem, placements: NDArray[np.uint8]) -> NDArray[np.float64]:
    """The largest loads of placements by the definition of the instance.

    Args:
        instance: the instance.
        problem: its placement problem.
        placements: placements of the problem, uint8 [batch, groups].

    Returns:
        Loads in s, inf if the instance does not allow the placement, float64 [batch].
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
    """One run of a contestant on an instance."""

    instance: str  # name of the instance (`name_of`)
    contestant: int  # index in `CONTESTANTS`
    seed: int  # seed of the contestant
    seconds: float  # processor time of the budget


def run(instances: Instances, task: Task) -> dict[str, Any]:
    """Makes a run. Returns `load_ms`, the largest load (None without a placement), and the figures of `harness.run`."""
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
    """A lower bound of the period of all placements by our simulator, ms; their loads may be a little less.

    Args:
        instances: the instances.
        task: name of the instance, and time limit of the solver, s.
    """
    return lower_bound(_problem(instances, task[0]), seconds=task[1])


def name_of(path: Path) -> str:
    """The name of an instance: granularity and model, as in `CONTIGUOUS`. path: its file."""
    return f"{path.parent.name}/{path.name.removesuffix('_inference.json')}"


def paths_of(clone: Path) -> dict[str, Path]:
    """Files of the instances of a clone of their repository, by name."""
    return {name_of(path): path for path in sorted((clone / "throughput-inputs").glob("*/*_inference.json"))}


def measure(clone: Path, settings: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Makes all runs on all instances of a clone of their repository.

    Args:
        clone: the clone.
        settings: `seconds` of processor time for each run, `bound_seconds` of HiGHS for each lower bound.
        earlier: a result with the same settings whose runs are kept; empty for none.

    Returns:
        The result: "about", "settings", "instances" with their facts, and "cells", the runs by instance and contestant.
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
    """The table of facts of the instances and largest loads, ms, medians over seeds."""
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
    """Loads of the default placement, without a network, of an instance whose nodes are in several orders."""

    load_ms: NDArray[np.float64]  # largest load in each order, [orders]
    seconds: float  # the most processor time that an order took

    @property
    def spread(self) -> float:
        """The distance of the worst order from the best, as a share."""
        return float(self.load_ms.max() / self.load_ms.min() - 1)


def in_orders(instances: Instances, task: tuple[str, int]) -> Ordered:
    """Places an instance with its nodes in several orders: all sources first, depth first as read, then random ones.

    Args:
        instances: the instances.
        task: name of the instance, and number of orders.
    """
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
    """Prints the loads in `count` orders of each instance's nodes. Returns the exit status."""
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
    """Writes an instance of three operations to the folder in which a clone of their repository has instances."""
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
    """Runs all methods on the instances of a clone, and prints the table. Returns the exit status."""
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
