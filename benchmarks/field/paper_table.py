"""The experiment of HSDAG's paper, made again: Inception-V3, ResNet-50 and BERT on a CPU and a GPU, latency, simulated.

    python -m benchmarks.field.paper_table            # results/paper_table.json and .md

Three tables, all of the same contestants under the same budget of evaluations and processor seconds:

1. *In the paper's layout*: on the fitted profile of the paper's machine (`paper_machines`).
2. *On plausible machines*: how often a split beats the best single device, and by how much, on machines drawn around
   the profile, for what is known of the paper's machine is not enough to tell.
3. *Ablations* of HSDAG as published, where there is something to find: on the drawn machine of each model on which a
   split gains most, and for throughput, with parsing that does not stop at four clusters.

An evaluation is a measurement with noise: the paper's is the mean of the last five of ten inferences, and the runs of
real devices scatter by `NOISE` from round to round. What is reported as *best drawn* is the least of a run's
measurements, which flatters whoever draws most; *measured again* is the same placement measured once more.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from scipy.stats import mannwhitneyu

from benchmarks.common import harness
from benchmarks.common.contestants import ABLATIONS, LEARNED, OURS, SHIPPED, SIMPLE, Contestant, single
from benchmarks.common.harness import Templates
from benchmarks.common.tables import Result, markdown, middle, write
from benchmarks.common.workers import start
from benchmarks.field import paper_machines
from ov_hsdag.costs.profile import Profile
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.storage.files import write_json
from research.baselines.budget import Budget
from research.baselines.relaxation import bracket

RESULTS = Path(__file__).parents[1] / "results" / "paper_table.json"

NOISE = 0.016
"""Of a measurement: the median of the relative standard deviations between rounds on real HETERO."""

EVALUATIONS = 500
"""25 episodes of 20 steps, as in the authors' published code."""

SEEDS = 5

CPU_ONLY, GPU_ONLY, CPU_FIRST, GPU_FIRST = "CPU only", "GPU only", "HETERO:CPU,GPU", "HETERO:GPU,CPU"

# Seconds of HiGHS for the bound of a problem.
_BOUND_SECONDS = 5.0


def contestants() -> list[Contestant]:
    """Rows of the first two tables."""
    from research.baselines.package import HeteroRule

    gpu, cpu = (paper_machines.DEVICES.index(name) for name in ("GPU", "CPU"))
    devices = [single(cpu, CPU_ONLY), single(gpu, GPU_ONLY)]
    rule = [
        Contestant(CPU_FIRST, lambda: HeteroRule(reverse=True)),
        Contestant(GPU_FIRST, HeteroRule),
    ]
    return [*devices, *rule, *LEARNED, *SIMPLE[1:], *OURS]


@cache
def problem(templates: Templates, model: str, machine: int | None, objective: str = "latency") -> PlacementProblem:
    """A model on the fitted profile (machine None), or on a drawn machine."""
    profile = Profile.load(paper_machines.PROFILE)
    fitted = paper_machines.priced(templates.of[model], profile)
    found = fitted if machine is None else paper_machines.draw(fitted, model, machine)
    return replace(found, objective=objective)


def templates_of(models: Iterable[str]) -> Templates:
    """The graphs of some of `paper_machines.MODELS`."""
    return Templates({model: paper_machines.template(model) for model in models}, {})


@dataclass(frozen=True)
class Task:
    """One run: a contestant on a model on a machine."""

    model: str  # of `paper_machines.MODELS`
    machine: int | None  # number of a drawn one, None for the fitted profile
    contestant: int  # number in `contestants()`, or in `ABLATIONS` where `ablation`
    seed: int  # of contestant and noise
    seconds: float | None  # of the budget
    objective: str = "latency"  # "latency" or "throughput"
    ablation: bool = False  # whether this is a run of the third table
    evaluations: int = EVALUATIONS  # of the budget


def run(templates: Templates, task: Task) -> dict[str, Any]:
    """The run; with the placement left out, which nobody reads in the file."""
    chosen = ABLATIONS[task.contestant] if task.ablation else contestants()[task.contestant]
    what = problem(templates, task.model, task.machine, task.objective)
    cell = harness.run(what, chosen, Budget(task.evaluations, task.seconds), noise=NOISE, seed=task.seed)
    cell.pop("placement", None)
    return cell


def bound(templates: Templates, key: tuple[str, int | None]) -> float:
    """What no placement of a model on a machine is faster than, µs."""
    return bracket(problem(templates, *key), seconds=_BOUND_SECONDS).bound


def measure(settings: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """All runs of all tables.

    settings: `machines` are drawn; what learns runs on the first `learned_machines` of them alone; `seconds` of
    processor time for each run. earlier: a result with the same settings whose runs are not made again, or nothing.
    """
    rows, models = contestants(), list(paper_machines.MODELS)
    templates = templates_of(models)
    machines, learned_machines, seconds = (settings[key] for key in ("machines", "learned_machines", "seconds"))
    fitted = [
        Task(model, None, row, seed, seconds)
        for model in models
        for row, contestant in enumerate(rows)
        for seed in range(SEEDS if contestant.seeded else 1)
    ]
    drawn = [
        Task(model, machine, row, machine, seconds)
        for model in models
        for machine in range(machines)
        for row, contestant in enumerate(rows)
        if machine < learned_machines or not contestant.learns
    ]
    # What learns takes longest: first, so that no core waits for it at the end.
    order = sorted(fitted + drawn, key=lambda task: not rows[task.contestant].learns)
    runs = harness.Runs(partial(run, templates), lambda task: _known(earlier, task))
    cells = runs.of(order)
    bounds = harness.Runs(
        partial(bound, templates),
        lambda key: earlier.get("bounds", {}).get(key[0], {}).get(_machine(key[1])),
    ).of([(model, k) for model in models for k in (None, *range(machines))])
    most_gain = {model: _most_gain(templates, cells, rows, model, machines) for model in models}
    ablations = [
        Task(model, machine, row, seed, seconds, objective, ablation=True)
        for model in models
        for machine, objective in ((most_gain[model], "latency"), (None, "throughput"))
        for row in range(len(ABLATIONS))
        for seed in range(SEEDS)
    ]
    removed = runs.of(ablations)
    names = [contestant.name for contestant in rows]
    return {
        "about": harness.made(earlier, runs, [*cells.values(), *removed.values()]),
        "settings": settings,
        "models": {model: _said_of(templates, model) for model in models},
        "fitted": {
            model: {
                name: [cells[task] for task in fitted if (task.model, task.contestant) == (model, row)]
                for row, name in enumerate(names)
            }
            for model in models
        },
        "drawn": {
            model: {
                name: {
                    _machine(task.machine): cells[task]
                    for task in drawn
                    if (task.model, task.contestant) == (model, row)
                }
                for row, name in enumerate(names)
            }
            for model in models
        },
        "bounds": {model: {_machine(k): bounds[model, k] for k in (None, *range(machines))} for model in models},
        "ablations": [
            {
                "model": task.model,
                "machine": task.machine,
                "objective": task.objective,
                "row": ABLATIONS[task.contestant].name,
                "seed": task.seed,
                **cell,
            }
            for task, cell in removed.items()
        ],
    }


def _machine(number: int | None) -> str:
    """Name of a machine in the file."""
    return "profile" if number is None else str(number)


def _known(earlier: Mapping[str, Any], task: Task) -> dict[str, Any] | None:
    """What an earlier result has of a run, None where it has nothing."""
    if not earlier:
        return None
    if task.ablation:
        key = (task.model, task.machine, task.objective, ABLATIONS[task.contestant].name, task.seed)
        names = ("model", "machine", "objective", "row", "seed")
        found = (one for one in earlier["ablations"] if tuple(one[name] for name in names) == key)
        return next(({k: v for k, v in one.items() if k not in names} for one in found), None)
    name = contestants()[task.contestant].name
    if task.machine is not None:
        drawn: dict[str, Any] = earlier["drawn"][task.model].get(name, {})
        return drawn.get(_machine(task.machine))
    seeds: list[dict[str, Any]] = earlier["fitted"][task.model].get(name, [])
    return seeds[task.seed] if task.seed < len(seeds) else None


def _most_gain(
    templates: Templates, cells: dict[Task, dict[str, Any]], rows: list[Contestant], model: str, machines: int
) -> int | None:
    """The machine on which what ships gains most over the best single device."""
    ours = next(number for number, one in enumerate(rows) if one.name == SHIPPED)
    cost = {task.machine: cell["us"] for task, cell in cells.items() if (task.model, task.contestant) == (model, ours)}
    gains = {k: cost[k] / float(paper_machines.singles_us(problem(templates, model, k)).min()) for k in range(machines)}
    return min(gains, key=lambda k: gains[k], default=None)


def _said_of(templates: Templates, model: str) -> dict[str, Any]:
    fitted = problem(templates, model, None)
    gpu, cpu = paper_machines.singles_us(fitted)
    bounds = paper_machines.interval(model)
    return {
        "zoo": paper_machines.MODELS[model].name,
        "nodes": fitted.graph.nodes,
        "groups": fitted.group_count,
        "coarse_groups": int(fitted.coarse.max()) + 1,
        "gpu_over_cpu": round(float(gpu / cpu), 4),
        "gpu_over_cpu_allowed": [round(bounds.low, 4), round(bounds.high, 4)],
        "paper_saved_percent": paper_machines.SAVED_PERCENT[model],
    }


def tables(result: Result) -> dict[str, str]:
    """The three tables."""
    return {
        "On the fitted profile: best drawn, measured again, and how much of the CPU's time it saves:": _layout(result),
        "On drawn machines: how often a split beats the best single device by more than 0.5%, by how much in the mean,"
        " and how far behind the best of any method:": _machines(result),
        "Ablations: cost over the full method's, medians over seeds; in bold what a Mann-Whitney test at 5% tells from"
        " it:": _ablations(result),
    }


def _layout(result: Result) -> str:
    fitted = result["fitted"]
    head = ["", *(f"{model}: {what}" for model in fitted for what in ("best drawn, ms", "again, ms", "saved, %"))]
    rows = []
    for row in next(iter(fitted.values())):
        line = [row]
        for of in fitted.values():
            cpu, cells = middle(of[CPU_ONLY], "us"), of[row]
            drawn, again, us = (middle(cells, key) for key in ("drawn_us", "again_us", "us"))
            line += [f"{drawn / 1e3:.2f}", f"{again / 1e3:.2f}", f"{100 * (1 - us / cpu):.1f}"]
        rows.append(line)
    return markdown(head, rows)


def _machines(result: Result) -> str:
    drawn = result["drawn"]
    head = ["", *(f"{model}: {what}" for model in drawn for what in ("wins, %", "by, %", "behind, %"))]
    costs = {
        model: {row: {k: math.inf if c["us"] is None else c["us"] for k, c in of.items()} for row, of in rows.items()}
        for model, rows in drawn.items()
    }
    found = []
    for row in next(iter(drawn.values())):
        line = [row]
        for of in costs.values():
            cost = {k: us for k, us in of[row].items() if math.isfinite(us)}
            single = {k: min(of[CPU_ONLY][k], of[GPU_ONLY][k]) for k in cost}
            best = {k: min(one.get(k, math.inf) for one in of.values()) for k in cost}
            won = [100 * (1 - us / single[k]) for k, us in cost.items() if us < single[k] * (1 - harness.TIE)]
            behind = [100 * (us / best[k] - 1) for k, us in cost.items()]
            line += [
                f"{100 * len(won) / len(of[row]):.0f}",
                f"{statistics.mean(won):.1f}" if won else "0",
                f"{statistics.mean(behind):.1f}" if behind else "–",
            ]
        found.append(line)
    return markdown(head, found)


def _ablations(result: Result) -> str:
    costs: dict[str, dict[str, list[float]]] = {}
    for one in result["ablations"]:
        of = costs.setdefault(f"{one['model']}, {one['objective']}", {})
        of.setdefault(one["row"], []).append(math.inf if one["us"] is None else one["us"])
    rows = []
    for contestant in ABLATIONS:
        line = [contestant.name]
        for of in costs.values():
            full, cost = of[ABLATIONS[0].name], of[contestant.name]
            ratio = f"{statistics.median(cost) / statistics.median(full):.3f}"
            differs = cost is not full and mannwhitneyu(full, cost).pvalue < 0.05
            line.append(f"**{ratio}**" if differs else ratio)
        rows.append(line)
    return markdown(["", *costs], rows)


def main() -> None:
    """Makes the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--machines", type=int, default=50)
    parser.add_argument("--learned-machines", type=int, default=10, help="of them for what learns")
    parser.add_argument("--seconds", type=float, default=20.0, help="of processor time for each run")
    parser.add_argument("--output", type=Path, default=RESULTS)
    harness.add_keep(parser)
    options = parser.parse_args()
    settings = {
        "evaluations": EVALUATIONS,
        "seconds": options.seconds,
        "noise": NOISE,
        "seeds": SEEDS,
        "machines": options.machines,
        "learned_machines": options.learned_machines,
    }
    result = measure(settings, harness.earlier(options.output, settings, options.keep))
    write_json(options.output, result)
    write(options.output, result, tables(result))


if __name__ == "__main__":
    start(__spec__)
