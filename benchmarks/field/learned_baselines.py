"""Whether the learned baselines learn: placements that they draw, and the best of them, against their own start.

Problems are models of the zoo on the devices of HSDAG's paper (`corpus.HELD_OUT_SETS["xeon+flex"]`), simulated, for
throughput, where the best single device is far from the best split. Every arm measures as many placements. The arms of
policies that transfer begin with a policy trained on models of other families (`TRAINED_ON`), once for each seed:
zero-shot is its likeliest placement without learning. GO's multi-task arm and its single-task variant decide on a
runtime that runs parts of four requests at once (`research.baselines.schedule`), and are compared there.

    python -m benchmarks.field.learned_baselines

Results are kept in benchmarks/results/baselines_learn.json; what is there is not run again unless the settings changed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.common import harness
from benchmarks.common.harness import Templates
from benchmarks.common.tables import markdown
from benchmarks.common.workers import Workers, add_ray, start
from ov_hsdag.placers.multilevel import search
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.storage.files import write_json
from ov_hsdag.training import corpus
from research.baselines.budget import Budget, Environment
from research.baselines.go import GO
from research.baselines.placeto import Placeto
from research.baselines.rnn import RNN
from research.baselines.schedule import Scheduler
from research.baselines.transfer import TransferablePolicy

RESULTS = Path(__file__).parents[1] / "results" / "baselines_learn.json"

MODELS = ("resnet50", "bert-base", "t5-encoder-base")
TRAINED_ON = ("vit-base", "convnext-tiny", "inception-v1", "mobilevit-s", "gpt2-base", "whisper-encoder-base")
DEVICES = "xeon+flex"
OBJECTIVE = "throughput"
REQUESTS = 4

_ALSO = {"best single device": "single", "search": "known"}

# Parts of a run whose median costs are kept, to see learning.
_PARTS = 20


@dataclass(frozen=True, eq=False)
class Arm:
    """A way to place.

    Attributes:
        name: in tables.
        make: a new baseline.
        trained: begins with a policy that was trained on `TRAINED_ON`.
        episodes: see the baselines; None: as many as the budget allows.
        scheduled: decides for the scheduling runtime.
    """

    name: str
    make: Callable[[], RNN | Placeto | GO]
    trained: bool = False
    episodes: int | None = None
    scheduled: bool = False


ARMS = (
    Arm("RNN placer", RNN),
    Arm("Placeto", Placeto),
    Arm("Placeto, zero-shot", Placeto, trained=True, episodes=0),
    Arm("Placeto, fine-tuned", Placeto, trained=True),
    Arm("GO", GO),
    Arm("GO, operations not grouped", lambda: GO(colocate=False)),
    Arm("GO, zero-shot", GO, trained=True, episodes=0),
    Arm("GO, fine-tuned", GO, trained=True),
    Arm("GO, single task, scheduled", GO, scheduled=True),
    Arm("GO, multi-task, scheduled", lambda: GO(multi_task=True), scheduled=True),
)


@cache
def problem_of(templates: Templates, model: str) -> PlacementProblem:
    """A model's problem."""
    names, profile = corpus.device_set(corpus.HELD_OUT_SETS[DEVICES])
    return corpus.assemble(templates.of[model], names, profile, OBJECTIVE)


class Recorder:
    """A judge that remembers what it said."""

    def __init__(self, problem: PlacementProblem, scheduled: bool) -> None:
        self._problem = problem
        self._scheduler = Scheduler(problem, REQUESTS) if scheduled else None
        self.costs: list[float] = []

    def __call__(self, placements: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Costs of placements, seconds."""
        scores = (
            self._problem.scores(placements) * 1e-6 if self._scheduler is None else self._scheduler.costs(placements)
        )
        self.costs += scores.tolist()
        return scores

    def parts(self) -> list[float | None]:
        """Median cost of each part of the run, µs; None: infeasible."""
        medians = [float(np.median(part)) * 1e6 for part in np.array_split(self.costs, _PARTS) if len(part)]
        return [round(value, 2) if np.isfinite(value) else None for value in medians]


def run(arm: Arm, problem: PlacementProblem, seed: int, evaluations: int, trained: RNN | Placeto | GO | None) -> Any:
    """One placing: JSON-able."""
    recorder = Recorder(problem, arm.scheduled)
    environment = Environment(problem, Budget(evaluations), judge=recorder)
    baseline = trained if trained is not None else arm.make()
    begin = time.process_time()
    options = {} if arm.episodes is None else {"episodes": arm.episodes}
    best = environment.run(baseline, seed, **options)
    singles = recorder(np.stack([problem.single(device) for device in range(len(problem.devices))]))
    del recorder.costs[-len(singles) :]
    start = np.asarray(recorder.costs[:10])
    return {
        "evaluations": environment.evaluations,
        "start": float(np.median(start)) * 1e6 if np.isfinite(np.median(start)) else None,
        "parts": recorder.parts(),
        "best": None if best is None else best.cost * 1e6,
        "found_at": None if best is None else best.evaluations,
        "curve": [(count, cost * 1e6) for count, _, cost in environment.curve],
        "single": float(singles.min()) * 1e6,
        "seconds": round(time.process_time() - begin, 2),
    }


@dataclass(frozen=True)
class Policy:
    """A policy that is to be trained on other families.

    Attributes:
        arm: an arm that begins with it.
        seed: of the training.
        evaluations: on each model.
    """

    arm: str
    seed: int
    evaluations: int


def pretrained(templates: Templates, policy: Policy) -> RNN | Placeto | GO:
    """The policy, trained."""
    torch.set_num_threads(1)
    baseline = arm_of(policy.arm).make()
    environments = [Environment(problem_of(templates, model), Budget(policy.evaluations)) for model in TRAINED_ON]
    assert isinstance(baseline, TransferablePolicy)
    baseline.train(environments, policy.seed)
    return baseline


@dataclass(frozen=True, eq=False)
class Task:
    """A placing.

    Attributes:
        model: that is placed.
        arm: by which.
        seed: of the arm.
        evaluations: of the placing.
        trained: the policy that it begins with, if any.
    """

    model: str
    arm: str
    seed: int
    evaluations: int
    trained: RNN | Placeto | GO | None


def placed(templates: Templates, task: Task) -> dict[str, Any]:
    """The record of a placing."""
    torch.set_num_threads(1)
    arm = arm_of(task.arm)
    problem = problem_of(templates, task.model)
    record = {"model": task.model, "arm": task.arm, "seed": task.seed, "known": _known(templates, task.model)}
    record["settings"] = settings_of(arm, task.evaluations)
    return {**record, **run(arm, problem, task.seed, task.evaluations, task.trained)}


@cache
def _known(templates: Templates, model: str) -> float:
    """What a long search finds, µs."""
    return float(search(problem_of(templates, model), max_moves=2_000_000).score)


def arm_of(name: str) -> Arm:
    """One of `ARMS`."""
    return next(arm for arm in ARMS if arm.name == name)


def missing(
    arms: Sequence[Arm], models: Sequence[str], seeds: int, evaluations: int, records: list[dict[str, Any]]
) -> Iterator[tuple[Arm, int, list[str]]]:
    """What the records lack: models of each arm and seed."""
    known = {(r["model"], r["arm"], r["seed"]): r["settings"] for r in records}
    for seed in range(seeds):
        for arm in arms:
            settings = settings_of(arm, evaluations)
            lacking = [model for model in models if known.get((model, arm.name, seed)) != settings]
            if lacking:
                yield arm, seed, lacking


def settings_of(arm: Arm, evaluations: int) -> str:
    """Changes with what decides a run, the code aside."""
    return f"{arm.make()!r}, {evaluations} evaluations"


def table(records: list[dict[str, Any]]) -> str:
    """Median over seeds of the first ten draws → the best of each model and arm, µs per inference."""

    def told(found: list[dict[str, Any]]) -> str:
        start, best = (np.median([np.inf if r[key] is None else r[key] for r in found]) for key in ("start", "best"))
        return f"{start:,.0f} → {best:,.0f}" if found else "–"

    models = list(dict.fromkeys(record["model"] for record in records))
    of = {
        (model, arm.name): [r for r in records if (r["model"], r["arm"]) == (model, arm.name)]
        for model in models
        for arm in ARMS
    }
    first = {model: next(r for r in records if r["model"] == model) for model in models}
    rows = [[said, *(f"{first[model][key]:,.0f}" for model in models)] for said, key in _ALSO.items()]
    rows += [[arm.name, *(told(of[model, arm.name]) for model in models)] for arm in ARMS]
    return markdown(["", *models], rows)


def main() -> None:
    """Runs what is missing and prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--arms", nargs="+", choices=[arm.name for arm in ARMS], help="default: all")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--evaluations", type=int, default=2000, help="of each placing; as many on each training model")
    parser.add_argument("--corpus", type=Path, help="folder of graphs, made where it lacks one")
    parser.add_argument("--output", type=Path, default=RESULTS)
    add_ray(parser)
    arguments = parser.parse_args()
    arms = [arm for arm in ARMS if not arguments.arms or arm.name in arguments.arms]
    settings = {"evaluations": arguments.evaluations, "seeds": arguments.seeds, "requests": REQUESTS}
    records: list[dict[str, Any]] = []
    if arguments.output.exists():
        records = json.loads(arguments.output.read_text())["runs"]
    lacking = list(missing(arms, arguments.models, arguments.seeds, arguments.evaluations, records))
    # Arms of one method share a policy, which is trained once for each seed.
    policies = {
        (type(arm.make()), seed): Policy(arm.name, seed, arguments.evaluations)
        for arm, seed, _ in lacking
        if arm.trained
    }
    with Workers(arguments.ray, processes=0) as workers:
        templates = harness.templates_of([*arguments.models, *TRAINED_ON], arguments.corpus)
        trained = dict(workers.map(partial(pretrained, templates), policies.values()))
        tasks = [
            Task(
                model,
                arm.name,
                seed,
                arguments.evaluations,
                trained[policies[type(arm.make()), seed]] if arm.trained else None,
            )
            for arm, seed, models in lacking
            for model in models
        ]
        for task, record in workers.map(partial(placed, templates), tasks):
            key = (task.model, task.arm, task.seed)
            records = [r for r in records if (r["model"], r["arm"], r["seed"]) != key]
            records.append(record)
            print(*key, record["start"], record["best"], file=sys.stderr, flush=True)
            write_json(arguments.output, {"about": workers.about(), "settings": settings, "runs": records})
    print(table(records))


if __name__ == "__main__":
    start(__spec__)
