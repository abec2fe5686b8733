"""Compares published methods with ours under one budget of simulated evaluations, for docs/reference/results.md.

    python -m benchmarks.field.rivals --smoke                      # 20 evaluations, one seed: a look at all rows
    git clone https://github.com/msr-fiddle/dnn-partitioning
    python -m benchmarks.field.rivals --instances dnn-partitioning --output rivals.json    # all of them
    python -m benchmarks.field.rivals --evaluations 2000           # four times the budget
    python -m benchmarks.field.rivals --ablations                  # and HSDAG as published with parts taken away

Every method places the problems of these sets:

- *paper's machine*: the three models of HSDAG's paper for latency, on the machine nearest to the data sheets of its two
  devices on which the percentages of the paper are possible (`paper_machines`);
- *drawn machines*: the same models on machines drawn around those data sheets, with one seed each;
- *unseen*: families of models and sets of devices on which no policy was trained; throughput, with and without limits;
- *instances*: those of Tarnawski et al. for throughput, by their objective (`research.instances`); only with
  --instances.

An evaluation is the simulated time of a placement for a method, without noise. Methods that compute with the problem's
costs (search, place) use one evaluation, for the placement that they would give a user. Processor time is not limited;
the last table shows it. Intervals are over seeds, 95% by Student's t. Methods without random numbers have intervals
only over drawn machines.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.common import harness
from benchmarks.common.contestants import ABLATIONS, LEARNED, OURS, PUBLISHED, Contestant
from benchmarks.common.output import add_output
from benchmarks.common.tables import Result, markdown, middle, publish, spread, values
from benchmarks.common.workers import start
from benchmarks.field import outside, paper_machines
from ov_hsdag.placers.multilevel import Multilevel
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.storage.files import write_json
from ov_hsdag.training import corpus
from research.baselines.budget import Budget
from research.baselines.package import SEARCH, AloneOfKind, HeteroRule
from research.corpus import device_set, template_of
from research.instances import Instance

SMOKE_ARGUMENTS = "--smoke --evaluations 2"
"""The arguments with which this command is quickest, for `make figures-smoke`."""

PAPER, DRAWN, UNSEEN, INSTANCES = "paper's machine", "drawn machines", "unseen models and devices", "public instances"

CPU_ONLY, GPU_ONLY, CPU_FIRST, GPU_FIRST = "CPU only", "GPU only", "OpenVINO-CPU", "OpenVINO-GPU"

SIMPLE = (
    Contestant(CPU_ONLY, lambda: AloneOfKind("CPU", CPU_ONLY)),
    Contestant(GPU_ONLY, lambda: AloneOfKind("GPU", GPU_ONLY)),
    Contestant(CPU_FIRST, lambda: HeteroRule(CPU_FIRST, "CPU")),  # HETERO:CPU,GPU
    Contestant(GPU_FIRST, lambda: HeteroRule(GPU_FIRST, "GPU")),  # HETERO:GPU,CPU
)

CONTESTANTS = (*SIMPLE, *LEARNED, Contestant("search, no network", lambda: SEARCH, seeded=True), *OURS)
"""Rows of the tables."""

UNSEEN_MODELS = ("swin-tiny", "yolo-like-small", "gemma2-small")
"""Models of held-out families, on which no constant of the search was chosen."""

UNSEEN_KINDS = {
    "two devices": ("xeon+flex", False),
    "two devices, little memory": ("xeon+flex", True),
    "three devices": ("client+npu+arc", False),
}
"""Key of `corpus.HELD_OUT_SETS`, and whether memory is limited to `ROOM`."""

ROOM = 0.6
"""Memory limit of each device, as a share of what the model needs on one device."""

RANGE = (0.0, 0.1, 0.25, 0.5, 1.0)
"""Shares of the way through the range of ratios that the paper's percentages allow, which the table shows."""


@dataclass(frozen=True)
class Cell:
    """The name of a problem."""

    set: str  # name of its set, such as `PAPER`
    name: str  # its name in the set
    seeds: tuple[int, ...]  # seeds of the runs of contestants


@dataclass(frozen=True)
class Task:
    """One run of a contestant on a problem."""

    cell: Cell
    contestant: str  # name of the contestant
    seed: int
    evaluations: int  # budget of evaluations


@dataclass(frozen=True, eq=False)
class Problems:
    """Problems and instances, which are sent to each process once; an object is equal only to itself."""

    of: Mapping[Cell, PlacementProblem]  # all problems
    instances: Mapping[Cell, Instance]  # the instances of the problems that were made of one


def run(problems: Problems, task: Task) -> dict[str, Any]:
    """Makes a run. Returns the figures of `harness.run`; `us` is the instance's objective for instances."""
    import torch

    torch.set_num_threads(1)
    problem, instance = problems.of[task.cell], problems.instances.get(task.cell)
    judge = None if instance is None else partial(outside.judge, instance, problem)
    contestant = _contestants()[task.contestant]
    if instance is not None:
        contestant = outside.contestant_on(task.cell.name, contestant)
    found = harness.run(problem, contestant, Budget(task.evaluations), seed=task.seed, judge=judge)
    found.pop("placement", None)
    return found


def _contestants() -> dict[str, Contestant]:
    """All contestants and ablations by name."""
    return {contestant.name: contestant for contestant in (*CONTESTANTS, *ABLATIONS)}


def paper_problems(seeds: int, machines: int) -> Iterator[tuple[Cell, PlacementProblem]]:
    """Yields the paper's models on its machine and on drawn ones.

    Args:
        seeds: number of seeds of each contestant on the paper's machine.
        machines: number of drawn machines.
    """
    for model in paper_machines.MODELS:
        priced, machine, _ = _on_paper_machine(model)
        yield Cell(PAPER, model, tuple(range(seeds))), machine
        for number in range(machines):
            yield Cell(DRAWN, f"{model} {number}", (number,)), paper_machines.draw(priced, model, number)


@cache
def _on_paper_machine(model: str) -> tuple[PlacementProblem, PlacementProblem, float]:
    """A model with costs of the data sheets, and both results of `paper_machines.paper_machine` for it."""
    priced = paper_machines.template(model)
    return priced, *paper_machines.paper_machine(priced, model)


def unseen_problems(seeds: int, models: Sequence[str]) -> Iterator[tuple[Cell, PlacementProblem]]:
    """Yields problems of models and devices on which no policy was trained, for throughput.

    Args:
        seeds: number of seeds of each contestant.
        models: some of `UNSEEN_MODELS`.
    """
    for model in models:
        graph = template_of(model)
        for kind, (devices, limited) in UNSEEN_KINDS.items():
            names, profile = device_set(corpus.HELD_OUT_SETS[devices])
            problem = corpus.assemble(graph, names, profile, "throughput", np.full(len(names), -1, np.int64))
            if limited:
                needs = problem.evaluate(problem.singles).memory_bytes.max(axis=0)
                problem = replace(problem, memory_bytes=(ROOM * needs).astype(np.int64))
            yield Cell(UNSEEN, f"{model}, {kind}", tuple(range(seeds))), problem


def instances_of(clone: Path, seeds: int) -> dict[Cell, Instance]:
    """Reads the instances for throughput of a clone of github.com/msr-fiddle/dnn-partitioning.

    Args:
        clone: the clone.
        seeds: number of seeds of each contestant.
    """
    paths = sorted((clone / "throughput-inputs").glob("*/*_inference.json"))
    return {Cell(INSTANCES, outside.name_of(path), tuple(range(seeds))): Instance.load(path) for path in paths}


def all_problems(settings: Mapping[str, Any], clone: Path | None) -> Problems:
    """Makes the problems of all sets.

    Args:
        settings: numbers of `seeds` and drawn `machines`, and unseen `models`.
        clone: see `instances_of`; None for no instances.
    """
    seeds = settings["seeds"]
    instances = {} if clone is None else instances_of(clone, seeds)
    of = dict(paper_problems(seeds, settings["machines"]))
    of |= dict(unseen_problems(seeds, settings["models"]))
    of |= {cell: instance.problem() for cell, instance in instances.items()}
    return Problems(of, instances)


def measure(
    problems: Problems,
    settings: Mapping[str, Any],
    earlier: Mapping[str, Any],
    save: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Makes all runs.

    Args:
        problems: the problems.
        settings: `evaluations` of each run, and whether `ablations` run, too.
        earlier: a result with the same settings whose runs are kept; empty for none.
        save: called now and then with a result of the runs so far.

    Returns:
        The result: "about", "settings", "cells" (runs by set, problem, contestant and seed), and "models", facts about
        the paper's models.
    """
    tasks = [
        Task(cell, contestant.name, seed, settings["evaluations"])
        for cell in problems.of
        for contestant in (*CONTESTANTS, *(ABLATIONS if settings["ablations"] and cell.set == PAPER else ()))
        for seed in (cell.seeds if contestant.seeded or cell.set == DRAWN else cell.seeds[:1])
    ]

    def known(task: Task) -> dict[str, Any] | None:
        cells = earlier.get("cells", {}).get(task.cell.set, {}).get(task.cell.name, {})
        result: dict[str, Any] | None = cells.get(task.contestant, {}).get(str(task.seed))
        return result

    def result_of(results: Mapping[Task, dict[str, Any]]) -> dict[str, Any]:
        """The result with the runs so far."""
        return {
            "about": harness.made(earlier, runs, results.values()),
            "settings": settings,
            "cells": _cells([task for task in tasks if task in results], results),
        }

    runs = harness.Runs(partial(run, problems), known, None if save is None else lambda some: save(result_of(some)))
    # Learning methods run first, as they take longest and a core would have to wait for them at the end.
    learns = {contestant.name for contestant in (*LEARNED, *ABLATIONS)}
    results = runs.of(sorted(tasks, key=lambda task: task.contestant not in learns))
    return {**result_of(results), "models": {model: _said_of(model) for model in paper_machines.MODELS}}


def _cells(tasks: Sequence[Task], results: Mapping[Task, dict[str, Any]]) -> dict[str, Any]:
    """Results by problem set, problem, contestant and seed."""
    cells: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
    for task in tasks:
        rows = cells.setdefault(task.cell.set, {}).setdefault(task.cell.name, {})
        rows.setdefault(task.contestant, {})[str(task.seed)] = results[task]
    return cells


def _said_of(model: str) -> dict[str, Any]:
    """Facts about a model of the paper.

    Returns:
        `nodes` and `edges` of its graph; the `interval` of ratios; `reachable`, see `paper_machine`; and `saved`, the
        time that the best single device and the best split save compared with CPU only, %, for each of `RANGE`.
    """
    problem, _, reachable = _on_paper_machine(model)
    graph, bounds = problem.graph, paper_machines.interval(model)
    saved = []
    for share in RANGE:
        at = paper_machines.at_ratio(problem, bounds.at(share))
        single = float(paper_machines.singles_us(at).min())
        split = min(single, float(at.scores(Multilevel().place(at)).min()))
        saved.append([paper_machines.saved_percent(at, us) for us in (single, split)])
    return {
        "nodes": graph.nodes,
        "edges": len(graph.input_output),
        "interval": [bounds.low, bounds.high],
        "reachable": reachable,
        "saved": saved,
    }


def tables(result: Result) -> dict[str, str]:
    """All tables, by caption."""
    evaluations = result["settings"]["evaluations"]
    found = {
        f"Behind the best of all methods, %, geometric mean (95% over seeds), {evaluations} evaluations each:": _behind(
            result
        ),
        "On the paper's machine, ms, and what it saves of CPU only, % (least … most over seeds):": _layout(result),
        "Saved of CPU only, %, by the best device alone, and by the best placement that search finds, along the range"
        " of machines that the paper's percentages allow:": _range(result),
        "Seconds of processor time of a run, median:": _seconds(result),
    }
    if result["settings"]["ablations"]:
        found["HSDAG as published with parts taken away, time over that of the whole, median over seeds; in bold what a"
              " Mann-Whitney test at 5% tells from it:"] = _ablations(result)  # fmt: skip
    return found


def _behind(result: Result) -> str:
    """The table of distances from the best of all methods, by contestant and set."""
    rows = []
    for contestant in CONTESTANTS:
        line = [contestant.name]
        for cells in result["cells"].values():
            by_seed: dict[str, list[float]] = {}
            without = 0
            for rows_of_cell in cells.values():
                runs = rows_of_cell[contestant.name]
                best = min(us for of in rows_of_cell.values() for us in values(list(of.values()), "us"))
                without += not values(list(runs.values()), "us")
                for seed, cell in runs.items():
                    if cell["us"] is not None:
                        by_seed.setdefault(seed, []).append(math.log(cell["us"] / best))
            line.append(_interval([statistics.mean(logs) for logs in by_seed.values()]) + _lacking(without))
        rows.append(line)
    return markdown([f"{result['settings']['evaluations']} evaluations", *_sets(result)], rows)


def _sets(result: Result) -> list[str]:
    """The problem sets, with how many problems each has, and the graphs of the paper's models."""
    heads = []
    for name, cells in result["cells"].items():
        graphs = "; ".join(f"{model}: {_size(of)}" for model, of in result["models"].items())
        heads.append(f"{name}, {len(cells)} problems" + f" ({graphs})" * (name == PAPER))
    return heads


def _size(model: Mapping[str, Any]) -> str:
    """The size of a model's graph as text. model: of `_said_of`."""
    nodes, edges = model["nodes"], model["edges"]
    return f"{nodes} nodes, {edges} edges, mean degree {edges / nodes:.2f}"


def _interval(logs: Sequence[float]) -> str:
    """The mean of logarithms of ratios over seeds as percents behind, with its 95% interval."""
    if not logs:
        return "–"
    mean = statistics.mean(logs)
    centre = 100 * math.expm1(mean)
    if len(logs) < 2 or max(logs) - min(logs) < 1e-9:
        return f"{centre:.1f}"
    half = float(stats.t.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
    return f"{centre:.1f} ± {100 * (math.exp(mean + half) - math.exp(mean)):.1f}"


def _lacking(problems: int) -> str:
    """The text that a method has no placement in a number of problems; "" for 0."""
    return f", no placement in {problems}" if problems else ""


def _layout(result: Result) -> str:
    """The table in the layout of the paper: time and saved time by contestant and model."""
    cells, models = result["cells"][PAPER], result["models"]
    head = [""]
    for model, of in models.items():
        head += [f"{model} ({_size(of)}), ms", "saved, %"]
    rows = []
    for contestant in CONTESTANTS:
        line = [contestant.name]
        for model in models:
            cpu = cells[model][CPU_ONLY]["0"]["us"]
            runs = [
                {"ms": cell["us"] / 1e3, "saved": 100 * (1 - cell["us"] / cpu)} if cell["us"] else {"why": cell["why"]}
                for cell in cells[model][contestant.name].values()
            ]
            line += [spread(runs, "ms"), spread(runs, "saved", ".1f")]
        rows.append(line)
    published = [*(text for model in models for text in ("", f"{paper_machines.SAVED_PERCENT[model]:.1f}"))]
    return markdown(head, [*rows, ["HSDAG, as its paper reports it", *published]])


def _range(result: Result) -> str:
    """The table of the range of ratios by model."""
    head = ["", "GPU only / CPU only", "share of it where search saves what the paper reports"]
    head += [f"at {share:.0%}" for share in RANGE]
    rows = []
    for model, of in result["models"].items():
        low, high = of["interval"]
        saved = [f"{single:.1f}, {split:.1f}" for single, split in of["saved"]]
        rows.append([model, f"{low:.2f} to {high:.2f}", f"the lowest {of['reachable']:.1%}", *saved])
    return markdown(head, rows)


def _seconds(result: Result) -> str:
    """The table of processor time by contestant and set."""
    sets = result["cells"]
    rows = [
        [
            contestant.name,
            *(
                f"{middle([c for of in cells.values() for c in of[contestant.name].values()], 'seconds'):.2f}"
                for cells in sets.values()
            ),
        ]
        for contestant in CONTESTANTS
    ]
    return markdown(["", *sets], rows)


def _ablations(result: Result) -> str:
    """The table of ablations: time over that of the whole algorithm."""
    cells = result["cells"][PAPER]
    rows = []
    for name in (PUBLISHED, *(contestant.name for contestant in ABLATIONS)):
        line = [name]
        for of in cells.values():
            whole, cost = ([cell["us"] or math.inf for cell in of[row].values()] for row in (PUBLISHED, name))
            ratio = f"{statistics.median(cost) / statistics.median(whole):.3f}"
            differs = len(cost) > 1 and stats.mannwhitneyu(whole, cost).pvalue < 0.05
            line.append(f"**{ratio}**" if differs else ratio)
        rows.append(line)
    return markdown(["", *cells], rows)


def main() -> int:
    """Makes the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--evaluations", type=int, help="placements that each method may ask for (500; --smoke: 20)")
    parser.add_argument("--seeds", type=int, default=5, help="of each method that draws")
    parser.add_argument("--machines", type=int, default=5, help="that are drawn around the paper's")
    parser.add_argument("--instances", type=Path, metavar="CLONE", help="of github.com/msr-fiddle/dnn-partitioning")
    parser.add_argument("--ablations", action="store_true", help="HSDAG as published with parts taken away")
    parser.add_argument("--smoke", action="store_true", help="20 evaluations, one seed, one machine, one unseen model")
    add_output(parser, "JSON of the results, and tables in Markdown beside it")
    harness.add_keep(parser)
    options = parser.parse_args()
    if options.instances is not None and not (options.instances / "throughput-inputs").is_dir():
        parser.error(f"{options.instances} has no folder throughput-inputs")
    settings = {
        "evaluations": options.evaluations or (20 if options.smoke else 500),
        "seeds": 1 if options.smoke else options.seeds,
        "machines": 1 if options.smoke else options.machines,
        "models": list(UNSEEN_MODELS[1:2] if options.smoke else UNSEEN_MODELS),
        "ablations": options.ablations,
    }
    if options.instances is None:
        print("the column of public instances is left out: see --instances", file=sys.stderr)
    problems = all_problems(settings, options.instances)
    save = None if options.output is None else partial(write_json, options.output)
    result = measure(problems, settings, harness.earlier(options.output, settings, options.keep), save)
    publish(options.output, result, tables(result))
    return 0


if __name__ == "__main__":
    start(__spec__)
