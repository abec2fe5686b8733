"""Models and devices that nothing was trained on: policies that transfer, search, and what learns on the very graph.

    python -m benchmarks.field.generalisation        # results/generalisation.json and .md

Problems are models of held-out families on held-out sets of devices (`corpus.HELD_OUT_FAMILIES`, `HELD_OUT_SETS`) by
built-in profiles, throughput, with and without memory limits, simulated. Budgets are equal, and the harness keeps them.

- *Transfer*: HSDAG's shipped policy, and Placeto and GO trained here on models of other families, on devices drawn as
  in HSDAG's pretraining; none sees the graph before it places it. Policies of Placeto and GO are for one number of
  devices, so each is trained for every number. What HSDAG's network was trained on is far more; the page says how much.
- *On the graph*: RNN placer, Placeto, GO and HSDAG as published, learned on the problem itself.
- *Search*: without a network, what `place` does by default and with the policy, and with an untrained network of the
  same size in its place, which tells what of it training earned.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import harness
from benchmarks.common.contestants import LEARNED, OURS, Contestant
from benchmarks.common.harness import Templates
from benchmarks.common.policies import Policies
from benchmarks.common.tables import Result, markdown, middle, values, write
from benchmarks.common.workers import Workers, add_ray, start
from ov_hsdag.placers.multilevel import search
from ov_hsdag.policy.bundle import DEFAULT
from ov_hsdag.policy.placer import HSDAGPlacer
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.storage.files import write_json
from ov_hsdag.training import corpus
from research.baselines.budget import Budget, Environment
from research.baselines.package import CONTIGUOUS_PARTITION, SEARCH, Alone, HeteroRule, Proposed, Shipped

RESULTS = Path(__file__).parents[1] / "results" / "generalisation.json"

# Of held-out families, and not among those that constants of the search were chosen on (anytime.py).
MODELS = ("inception-v2", "swin-tiny", "segformer-b0", "yolo-like-small", "t5-encoder-base", "gemma2-small")
TRAINED_ON = (
    "vit-base", "convnext-tiny", "resnet50", "densenet121", "mobilevit-s", "regnet-y-400mf", "bert-base",
    "gpt2-base", "qwen2-small", "hubert-small", "siglip-small", "mixtral-small",
)  # fmt: skip
KINDS = {
    "two devices": ("xeon+flex", False),
    "two devices, little memory": ("xeon+flex", True),
    "three devices": ("client+npu+arc", False),
}
"""Kinds of problems: the set of devices, and whether each has memory for `ROOM` of the model alone."""

ROOM = 0.6
OBJECTIVE = "throughput"
EVALUATIONS = 500
SEEDS = 5

TRANSFER = ("HSDAG, first choice", "HSDAG, network alone", "Placeto, zero-shot", "GO, zero-shot")
ON_THE_GRAPH = tuple(contestant.name for contestant in LEARNED)
UNTRAINED_FIRST, UNTRAINED_ALONE = "untrained network, first choice", "untrained network alone"
UNTRAINED = "untrained network and search"

# Moves of the long search that tells what is known besides what the contestants find.
_LONG = 32_000_000


@dataclass(frozen=True)
class FirstChoice:
    """A policy's first choice: nothing else is looked at.

    Attributes:
        policy: its folder, or its name.
    """

    policy: str

    def place(self, environment: Environment, seed: int = 0) -> None:
        """See `Baseline.place`."""
        environment.cost(HSDAGPlacer(self.policy).greedy(environment.problem))


def contestants(policies: Policies) -> list[Contestant]:
    """Rows of the table but those that are trained here and transfer.

    Args:
        policies: untrained ones, one for each seed.
    """

    @dataclass(frozen=True)
    class Untrained:
        what: Any

        def place(self, environment: Environment, seed: int = 0) -> None:
            self.what(str(policies.folder(seed))).place(environment, seed)

    return [
        Contestant("best single device", Singles),
        Contestant("HETERO's rule", HeteroRule),
        Contestant("contiguous partition", lambda: CONTIGUOUS_PARTITION),
        Contestant(TRANSFER[0], lambda: FirstChoice(DEFAULT)),
        Contestant(TRANSFER[1], lambda: Proposed(DEFAULT), seeded=True),
        *LEARNED,
        Contestant("search, no network", lambda: SEARCH, seeded=True),
        *OURS,
        Contestant(UNTRAINED_FIRST, lambda: Untrained(FirstChoice), seeded=True),
        Contestant(UNTRAINED_ALONE, lambda: Untrained(Proposed), seeded=True),
        Contestant(UNTRAINED, lambda: Untrained(lambda policy: Shipped(policy)), seeded=True),
    ]


@dataclass(frozen=True)
class Singles:
    """Every device by itself, an evaluation each."""

    def place(self, environment: Environment, seed: int = 0) -> None:
        """See `Baseline.place`."""
        for device, name in enumerate(environment.problem.devices):
            Alone(device, name).place(environment)


@dataclass(frozen=True)
class Cell:
    """A problem of the table.

    Attributes:
        model: of `MODELS`.
        kind: of `KINDS`.
    """

    model: str
    kind: str

    @property
    def name(self) -> str:
        """In the file."""
        return f"{self.model} | {self.kind}"


CELLS = tuple(Cell(model, kind) for kind in KINDS for model in MODELS)


def problem_of(templates: Templates, cell: Cell) -> PlacementProblem:
    """The problem of a cell.

    Args:
        templates: of the models.
        cell: of the table.
    """
    stems, limited = KINDS[cell.kind]
    names, profile = corpus.device_set(corpus.HELD_OUT_SETS[stems])
    free = np.full(len(names), -1, np.int64)
    problem = corpus.assemble(templates.of[cell.model], names, profile, OBJECTIVE, free)
    if not limited:
        return problem
    needs = problem.evaluate(problem.singles).memory_bytes
    return replace(problem, memory_bytes=(ROOM * needs.max(axis=0)).astype(np.int64))


def training_problems(templates: Templates, devices: int, seed: int) -> list[PlacementProblem]:
    """What Placeto and GO are trained on: each model of `TRAINED_ON` on devices, limits and support that are drawn.

    Args:
        templates: of the models.
        devices: how many.
        seed: of the draws.
    """
    found = []
    for number, model in enumerate(TRAINED_ON):
        generator = np.random.default_rng([seed, devices, number])
        while True:
            drawn = corpus.draw_problem(templates.of[model], generator, devices)
            problem = replace(drawn, objective=OBJECTIVE)
            singles = problem.scores(problem.singles)
            if corpus.placeable(problem) and np.isfinite(singles).any():
                found.append(problem)
                break
    return found


@dataclass(frozen=True)
class Task:
    """Runs that belong together.

    Attributes:
        row: of a contestant; or of Placeto's or GO's policy, which is trained once for all cells with so many devices.
        cells: of the table.
        seed: of the contestant, and of what it is trained on.
        seconds: of processor time for each cell.
        training: evaluations on each training problem.
    """

    row: str
    cells: tuple[Cell, ...]
    seed: int
    seconds: float
    training: int


def run(templates: Templates, policies: Policies, task: Task) -> list[dict[str, Any]]:
    """A result of `harness.run` for each cell.

    Args:
        templates: of the models.
        policies: untrained ones, one for each seed.
        task: what is run.
    """
    import torch

    torch.set_num_threads(1)
    budget, trained_seconds = Budget(EVALUATIONS, task.seconds), 0.0
    problems = [problem_of(templates, cell) for cell in task.cells]
    if task.row in TRANSFER[2:]:
        contestant, trained_seconds = _trained(templates, task, len(problems[0].devices))
    else:
        contestant = next(one for one in contestants(policies) if one.name == task.row)
    found = []
    for problem in problems:
        cell = harness.run(problem, contestant, budget, seed=task.seed)
        for left_out in ("drawn_us", "again_us", "placement"):
            cell.pop(left_out, None)
        found.append({**cell, "trained_seconds": round(trained_seconds, 1)})
    return found


@dataclass(frozen=True)
class ZeroShot:
    """A trained policy, which learns no more.

    Attributes:
        policy: Placeto or GO.
    """

    policy: Any

    def place(self, environment: Environment, seed: int = 0) -> None:
        """See `Baseline.place`."""
        self.policy.place(environment, seed, episodes=0)


def _trained(templates: Templates, task: Task, devices: int) -> tuple[Contestant, float]:
    """Placeto or GO, trained; and the processor seconds that it took."""
    from research.baselines.go import GO
    from research.baselines.placeto import Placeto

    policy = Placeto() if task.row.startswith("Placeto") else GO()
    budget = Budget(task.training)
    environments = [Environment(one, budget) for one in training_problems(templates, devices, task.seed)]
    policy.train(environments, task.seed)
    return Contestant(task.row, lambda: ZeroShot(policy), seeded=True), environments[0].seconds


def known(templates: Templates, cell: Cell) -> float:
    """What a long search finds, µs."""
    return float(search(problem_of(templates, cell), max_moves=_LONG).score)


def measure(
    templates: Templates, policies: Policies, settings: Mapping[str, Any], earlier: Mapping[str, Any], workers: Workers
) -> dict[str, Any]:
    """All runs.

    Args:
        templates: of the models.
        policies: untrained ones, one for each seed.
        settings: of the budgets.
        earlier: a result with the same settings whose runs are not made again, or nothing.
        workers: that make the runs.
    """

    def task(row: str, cells: tuple[Cell, ...], seed: int) -> Task:
        return Task(row, cells, seed, settings["seconds"], settings["training_evaluations"])

    def of_file(one: Task) -> list[dict[str, Any]] | None:
        rows = earlier.get("runs", {}).get(one.row, {})
        found = [rows.get(cell.name, [])[one.seed : one.seed + 1] for cell in one.cells]
        return [cells[0] for cells in found] if all(found) else None

    tasks = [
        task(row, tuple(cell for cell in CELLS if len(corpus.HELD_OUT_SETS[KINDS[cell.kind][0]]) == devices), seed)
        for row in TRANSFER[2:]
        for devices in (2, 3)
        for seed in range(SEEDS)
    ]
    rows = contestants(policies)
    rows.sort(key=lambda one: not one.learns)  # what takes longest comes first
    tasks += [
        task(one.name, (cell,), seed) for one in rows for cell in CELLS for seed in range(SEEDS if one.seeded else 1)
    ]
    runs = harness.Runs(partial(run, templates, policies), of_file, workers)
    cells: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for one, found in runs.of(tasks).items():
        for cell, result in zip(one.cells, found, strict=True):
            cells.setdefault(one.row, {}).setdefault(cell.name, []).append(result)
    before = earlier.get("problems", {})
    long = harness.Runs(partial(known, templates), lambda cell: before.get(cell.name, {}).get("known_us"), workers).of(
        CELLS
    )
    order = [contestant.name for contestant in contestants(policies)]
    order[5:5] = TRANSFER[2:]
    every = [result for row in cells.values() for found in row.values() for result in found]
    # Of one cell for each number of devices: a policy is trained once for all of them.
    trained = [
        result["trained_seconds"]
        for row in TRANSFER[2:]
        for cell in (CELLS[0], CELLS[-1])
        for result in cells[row][cell.name]
    ]
    about = harness.made(earlier, runs, every)
    about["processor_seconds"] += round(sum(trained))
    return {
        "about": about,
        "settings": settings,
        "problems": {cell.name: {"model": cell.model, "kind": cell.kind, "known_us": long[cell]} for cell in CELLS},
        "runs": {row: cells[row] for row in order},
    }


def tables(result: Result) -> dict[str, str]:
    """Period over the best known, medians over seeds; a seed without a placement counts as infinite."""
    problems, runs = result["problems"], result["runs"]
    best = {
        name: min([problem["known_us"], *(us for of in runs.values() for us in values(of[name], "us"))])
        for name, problem in problems.items()
    }
    kinds = {kind: [name for name, one in problems.items() if one["kind"] == kind] for kind in KINDS}
    rows = []
    for row, of in runs.items():
        line = [row]
        for names in kinds.values():
            medians = [statistics.median_low([math.inf if c["us"] is None else c["us"] for c in of[n]]) for n in names]
            ratios = [us / best[name] for us, name in zip(medians, names, strict=True) if math.isfinite(us)]
            lacking = f", {len(names) - len(ratios)} infeasible" * (len(ratios) < len(names))
            line.append(f"{statistics.geometric_mean(ratios):.3f} ({max(ratios):.2f}){lacking}" if ratios else "–")
        every = [cell for cells in of.values() for cell in cells]
        rows.append([*line, f"{middle(every, 'evaluations'):.0f}", f"{middle(every, 'seconds'):.2f}"])
    head = ["", *kinds, "evaluations", "seconds"]
    return {"Period / best known, geometric mean (worst):": markdown(head, rows)}


def main() -> None:
    """Makes the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="of processor time for each run")
    parser.add_argument("--training", type=int, default=250, help="evaluations on each problem of training")
    parser.add_argument("--corpus", type=Path, help="folder of graphs, made where it lacks one")
    parser.add_argument("--output", type=Path, default=RESULTS)
    harness.add_keep(parser)
    add_ray(parser)
    options = parser.parse_args()
    settings = {
        "evaluations": EVALUATIONS,
        "seconds": options.seconds,
        "seeds": SEEDS,
        "training_problems": len(TRAINED_ON),
        "training_evaluations": options.training,
        "room": ROOM,
        "long_moves": _LONG,
    }
    earlier = harness.earlier(options.output, settings, options.keep)
    with Workers(options.ray) as workers:
        templates = harness.templates_of([*MODELS, *TRAINED_ON], options.corpus)
        policies = Policies.untrained(DEFAULT, range(SEEDS))
        if policies is None:
            parser.error("it needs torch")
        result = measure(templates, policies, settings, earlier, workers)
    write_json(options.output, result)
    write(options.output, result, tables(result))


if __name__ == "__main__":
    start(__spec__)
