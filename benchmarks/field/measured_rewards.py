"""Repeats the experiment of HSDAG's paper with measured rewards: methods learn from the times of real HETERO.

    python -m benchmarks.field.measured_rewards --smoke                               # a minute: a look at all rows
    python -m benchmarks.field.measured_rewards --output measured_rewards.json        # hours, on an idle machine

The RNN placer, Placeto, GO and HSDAG as published learn from scratch; our shipped policy is fine-tuned; search corrects
its costs by its measurements. Each method has an equal number of measurements of placements of Inception-V3, ResNet-50
and BERT, for latency and for throughput, on a core in bf16 and one in f32 made of the CPU plugin. A measurement
compiles a placement, and runs it and the best single device for `TRIAL_SECONDS` each, in turns. Their ratio counts, so
that drift of the machine's speed does not matter. If a method repeats a placement, it is not measured again, but counts
as a measurement.

Each device is bound to a core (`benchmarks.common.bound_worker`). Otherwise every submodel has a thread of its own, and
a device with several submodels computes on both cores, which learners find.

In the end the placement of each method runs in turns with each device, HETERO's rule, the placement of `place` without
measuring and, for throughput, a copy of the model on each device. The best of many measurements is partly luck; these
figures are not.

With --output, measurements are stored in a folder next to the file, and an interrupted run goes on: methods are
functions of their seed and of the measurements. --jobs is the number of cells (model, objective and method) that run at
the same time, each on two cores. It needs the extras `bench` and `train`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from benchmarks.common.bound_worker import BoundWorker
from benchmarks.common.contestants import LEARNED, SHIPPED
from benchmarks.common.machine import about
from benchmarks.common.output import add_output, folder_or_temporary, stored
from benchmarks.common.tables import Result, markdown, publish
from benchmarks.common.workers import on_pairs_of_cores, start
from benchmarks.field.unseen import DEVICES, declared
from ov_hsdag.devices import virtual
from ov_hsdag.measuring.evaluator import Measurement
from ov_hsdag.measuring.measurer import Measurer
from ov_hsdag.measuring.process import Candidate
from ov_hsdag.placing.rivals import Rival, contenders
from ov_hsdag.placing.rivals import measure as measure_in_turns
from ov_hsdag.problem.copies import COPIES
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.storage.files import write_json
from research.baselines.budget import Budget, Environment
from research.baselines.package import Shipped
from research.zoo.catalog import ZOO

MODELS = ("inception-v3", "resnet50", "bert-base")
OBJECTIVES = ("latency", "throughput")

TUNED, CORRECTED = "HSDAG as shipped, fine-tuned", "search with corrections"

METHODS = (*(contestant.name for contestant in LEARNED), TUNED, CORRECTED)
"""Methods that measure while they place."""

OTHERS = (SHIPPED, COPIES, "hetero", *DEVICES.names)
"""Ways to run a model that need no measuring."""

MEASUREMENTS = 500
"""Measurements of each method: 25 episodes of 20 steps, as in the authors' published code."""

TRIAL_SECONDS = 0.3
"""Time of a trial of a placement, and of the trial of the best single device that is compared with it."""

FIRST_ROUNDS = 5
"""Trials of each device at the beginning, which decide which single device is the best."""

CURVE = (16, 50, 100, 200, 500)
"""Numbers of measurements after which the tables have the best so far."""

MINUTES = (1, 3, 10, 30)
"""Minutes after which the tables have the best so far."""


@dataclass(frozen=True)
class Cell:
    """A method on a model for an objective."""

    model: str  # of the zoo
    objective: str  # of `OBJECTIVES`
    method: str  # of `METHODS`

    @property
    def stem(self) -> str:
        """The stem of the names of its files."""
        return f"{self.model}-{self.objective}-{METHODS.index(self.method)}"


class Meter:
    """Measures placements of a problem on real HETERO, each once, and stores them in a log.

    Attributes:
        problem: the problem.
        history: seconds per inference (inf if it does not run), and wall time so far, for each measurement that a
            method has asked for; repeated placements count again, but take no further wall time.
        reference: the best single device, with which placements are compared.
        reference_seconds: seconds per inference of the reference when it was first measured.
        singles: rate of each device over that of the reference.
    """

    def __init__(self, problem: PlacementProblem, core: ov.Core, model: ov.Model, log: Path, seconds: float) -> None:
        """Measures the single devices, unless the log has them.

        Args:
            problem: the problem of the model.
            core: has the devices.
            model: the model, normalized.
            log: file of JSON lines, which is read and appended to.
            seconds: time of a trial.
        """
        self.problem = problem
        self.history: list[tuple[float, float]] = []  # seconds per inference, and wall time so far, of each measurement
        self._begin = time.process_time()
        self._spent = 0.0  # seconds of wall time of all measurements that were asked for
        self._log = log
        lines = _lines(log)
        reference = lines[0]["reference"] if lines else None
        rounds = FIRST_ROUNDS if reference is None else 1
        self._measurer = Measurer(
            model,
            DEVICES,
            problem.objective,
            core,
            reference=reference,
            rounds=rounds,
            seconds=seconds,
            start_worker=BoundWorker,
        )
        if not lines:
            singles = {name: one.ratio for name, one in self._measurer.singles.items()}
            # Ratios are of this value, whatever the machine's speed is later.
            value = next(iter(self._measurer.singles.values())).reference
            seconds_of_reference = 1 / value if problem.objective == "throughput" else value * 1e-6
            lines = [{"reference": self._measurer.reference, "singles": singles, "seconds": seconds_of_reference}]
            self._write(lines[0])
        head = lines[0]
        self.reference: str = head["reference"]
        self.singles: dict[str, float] = head["singles"]  # rate of each device over that of the reference
        self.reference_seconds: float = head["seconds"]
        self._known = {line["placement"]: line for line in lines[1:]}
        self._asked: set[str] = set()

    def ratio(self, placement: NDArray[np.uint8]) -> float:
        """The rate of a placement, uint8 [groups], over that of the reference; 0 if it does not run."""
        key = placement.tobytes().hex()
        if key not in self._known:
            found = self._measurer.measure(self.problem.affinity(placement), rounds=1)
            line = {"placement": key, "ratio": found.ratio, "seconds": found.seconds, "error": found.error}
            self._known[key] = line
            self._write(line)
        self._spent += 0.0 if key in self._asked else self._known[key]["seconds"]
        self._asked.add(key)
        ratio = float(self._known[key]["ratio"])
        cost = self.reference_seconds / ratio if ratio > 0 else math.inf
        self.history.append((cost, self._spent + time.process_time() - self._begin))
        return ratio

    def costs(self, placements: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Seconds per inference of placements, uint8 [batch, groups], inf if they do not run, [batch].

        It is a judge of `research.baselines.budget.Environment`.
        """
        ratios = np.array([self.ratio(placement) for placement in placements])
        with np.errstate(divide="ignore"):
            return np.where(ratios > 0, self.reference_seconds / ratios, np.inf)

    def close(self) -> None:
        """Ends the workers."""
        self._measurer.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        """Appends a line to the log."""
        with self._log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _lines(log: Path) -> list[dict[str, Any]]:
    """The lines of a log; none without a file. A last line that was cut off when its process ended is skipped."""
    found = []
    for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else []:
        with contextlib.suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return found


class MeteredJudge:
    """Adapts a meter to `ov_hsdag.measuring.evaluator.Judge`, which fine-tuning needs."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self.reference = meter.reference
        self.singles = {name: self._measurement(ratio) for name, ratio in meter.singles.items()}

    def measure(self, affinity: Mapping[str, str], *, worth: float = 0.0, rounds: int | None = None) -> Measurement:
        """Implements `Judge.measure`. A placement is measured once, so that `worth` and `rounds` have no effect."""
        ratio = self._meter.ratio(self._meter.problem.placement_of(dict(affinity)))
        return self._measurement(ratio) if ratio > 0 else Measurement(0.0, error="it did not run")

    def _measurement(self, ratio: float) -> Measurement:
        """The measurement of a placement with a ratio of rates to the reference."""
        unit = self._meter.reference_seconds
        throughput = self._meter.problem.objective == "throughput"
        value, reference = (1 / unit * ratio, 1 / unit) if throughput else (1e6 * unit / ratio, 1e6 * unit)
        return Measurement(ratio, value, reference, (ratio,), rates=(ratio / unit,))


def run_cell(folder: Path, settings: Mapping[str, Any], cell: Cell) -> dict[str, Any]:
    """Runs a method on a model, or the rest of an interrupted run. A finished run is read from its file.

    Args:
        folder: folder of logs and results.
        settings: `measurements`, `trial_seconds`, `seed`.
        cell: the model, objective and method.

    Returns:
        `reference`, the best single device, and its seconds per inference, `reference_seconds`; `history`, seconds per
        inference (None if it did not run) and wall time of each measurement; `placement`, the method's choice as
        hexadecimal digits; `failed`, the number of measurements that did not run.
    """
    path = folder / f"{cell.stem}.json"
    if (found := stored(path)) is not None:
        return dict(found)
    import torch

    torch.set_num_threads(1)
    core = virtual.new_core()
    model = ZOO[cell.model].build()
    problem = build_problem(model, DEVICES, objective=cell.objective, core=core)
    meter = Meter(problem, core, model, folder / f"{cell.stem}.jsonl", settings["trial_seconds"])
    try:
        placement = _placed(cell.method, meter, settings)
    finally:
        meter.close()
    result = {
        "reference": meter.reference,
        "reference_seconds": meter.reference_seconds,
        "history": [[None if math.isinf(cost) else cost, wall] for cost, wall in meter.history],
        "placement": placement.tobytes().hex(),
        "failed": sum(math.isinf(cost) for cost, _ in meter.history),
    }
    write_json(path, result)
    print(f"{cell.model}, {cell.objective}, {cell.method}: done", file=sys.stderr, flush=True)
    return result


def _placed(method: str, meter: Meter, settings: Mapping[str, Any]) -> NDArray[np.uint8]:
    """Runs a method with a meter. Returns the placement that it chooses, uint8 [groups]."""
    measurements, seed = settings["measurements"], settings["seed"]
    if method in (TUNED, CORRECTED):
        return _fine_tuned(meter, measurements, seed, "both" if method == TUNED else "search")
    contestant = next(one for one in LEARNED if one.name == method)
    environment = Environment(meter.problem, Budget(measurements), judge=meter.costs)
    best = environment.run(contestant.make(), seed)
    return meter.problem.single(0) if best is None else best.placement


def _fine_tuned(meter: Meter, measurements: int, seed: int, proposer: str) -> NDArray[np.uint8]:
    """Runs fine-tuning of the shipped policy, or search with corrections.

    Args:
        meter: measures placements.
        measurements: budget of measurements.
        seed: seed of random numbers.
        proposer: `proposer` of the settings of fine-tuning: "both" or "search".

    Returns:
        The chosen placement, uint8 [groups].
    """
    from ov_hsdag.training.finetune import Budget as TuningBudget
    from ov_hsdag.training.finetune import Settings
    from ov_hsdag.training.finetune.loop import run
    from ov_hsdag.training.finetune.model import initial_network

    network = initial_network(None, meter.problem, seed)
    chosen = Settings(seed=seed, proposer=proposer)
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(
            Path(folder),
            meter.problem,
            lambda reference: MeteredJudge(meter),
            network,
            TuningBudget(measurements=measurements),
            chosen,
        )
    return outcome.choice.placement


def in_turns(folder: Path, settings: Mapping[str, Any], cell: tuple[str, str]) -> dict[str, Any]:
    """Measures the placements of all methods in turns with the ways to run the model that need no measuring.

    Args:
        folder: folder of results; if it has this one, nothing is measured.
        settings: `rounds` of trials of `trial_seconds`.
        cell: model and objective.

    Returns:
        By way to run the model, its rate over that of the best single device with the 95% interval (`of_single`) and
        the number of `submodels`, or the reason (`why`) for which it has none.
    """
    model_name, objective = cell
    path = folder / f"{model_name}-{objective}-turns.json"
    if (found := stored(path)) is not None:
        return dict(found)
    core = virtual.new_core()
    model = ZOO[model_name].build()
    problem = build_problem(model, DEVICES, objective=objective, core=core)
    wanted = {*DEVICES.names, "hetero", *([COPIES] if objective == "throughput" else [])}
    rivals = [rival for rival in contenders(problem, DEVICES, [])[0] if rival.name in wanted]
    placements = {SHIPPED: _predicted(problem)}
    for method in METHODS:
        result = stored(folder / f"{Cell(model_name, objective, method).stem}.json")
        if result is not None:
            placements[method] = np.frombuffer(bytes.fromhex(result["placement"]), np.uint8)
    rivals += [_rival(problem, name, placement) for name, placement in placements.items()]
    results = measure_in_turns(
        model,
        DEVICES,
        objective,
        core,
        rivals,
        rounds=settings["rounds"],
        seconds=settings["trial_seconds"],
        halving=False,
        start_worker=BoundWorker,
    )
    rows: dict[str, Any] = {}
    for result in results:
        measured = result.measurement
        if measured.failed:
            rows[result.rival.name] = {"why": measured.error}
        else:
            rows[result.rival.name] = {
                "of_single": [measured.ratio, *measured.interval],
                "submodels": measured.submodels,
            }
    write_json(path, rows)
    return rows


def _predicted(problem: PlacementProblem) -> NDArray[np.uint8]:
    """The placement that `place` chooses without measuring, uint8 [groups]."""
    best = Environment(problem).run(Shipped())
    return problem.single(0) if best is None else best.placement


def _rival(problem: PlacementProblem, name: str, placement: NDArray[np.uint8]) -> Rival:
    """The way to run the model by a placement."""
    return Rival(name, Candidate.placed(DEVICES, problem.affinity(placement)), placement, problem.summary(placement))


def tables(result: Result) -> dict[str, str]:
    """The tables of each objective: rates in turns, and the best rate so far by number of measurements and by time."""
    settings = result["settings"]
    count = settings["measurements"]
    counts = [*(one for one in CURVE if one < count), count]
    by_count = [partial(_after, count=one) for one in counts]
    by_time = [partial(_within, seconds=60.0 * minutes) for minutes in MINUTES]
    found: dict[str, str] = {}
    for objective in settings["objectives"]:
        cells = [result["cells"][f"{model}, {objective}"] for model in settings["models"]]
        head = [objective, *settings["models"]]
        in_turn = [[row, *(_in_turn(cell, row) for cell in cells)] for row in (*METHODS, *OTHERS)]
        found[
            f"Rate over the best single device for {objective} of what each method found with {count} measurements, all"
            " in turns (95% interval):"
        ] = markdown(head, in_turn)
        for caption, steps in (
            (f"{_listed(counts)} measurements", by_count),
            (f"{_listed(MINUTES)} minutes", by_time),
        ):
            rows = [[method, *(_so_far(cell, method, steps) for cell in cells)] for method in METHODS]
            found[
                f"Best rate so far over the best single device for {objective}, as measured once, after {caption}:"
            ] = markdown(head, rows)
    return found


def _listed(numbers: Sequence[int]) -> str:
    """Numbers as text: "1, 3 and 10"."""
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}" if first else last


def _in_turn(cell: Result, row: str) -> str:
    """The rate of a way to run a model in the turns of a cell, with its interval, as text."""
    of_row = cell["turns"].get(row, {})
    return _ratio(*of_row["of_single"]) if "of_single" in of_row else "–"


def _so_far(cell: Result, method: str, steps: Sequence[Any]) -> str:
    """The best rates of a method so far, as text.

    Args:
        cell: the model's result for the objective.
        method: the method.
        steps: each selects the part of the run's history up to a step.
    """
    run = cell["runs"].get(method)
    return ", ".join(_best(run, one) for one in steps) if run else "–"


def _ratio(median: float, low: float, high: float) -> str:
    """A ratio with its interval as text."""
    return f"{median:.3f} ({low:.3f} … {high:.3f})"


def _after(history: list[list[Any]], count: int) -> list[list[Any]]:
    """The first `count` measurements of a history."""
    return history[:count]


def _within(history: list[list[Any]], seconds: float) -> list[list[Any]]:
    """The measurements of a history within some seconds of wall time."""
    return [one for one in history if one[1] <= seconds]


def _best(run: Mapping[str, Any], part: Any) -> str:
    """The best rate over the reference in a part of a run's history, as text. part: selects from the history."""
    costs = [cost for cost, _ in part(run["history"]) if cost is not None]
    return f"{run['reference_seconds'] / min(costs):.3f}" if costs else "–"


def measure(folder: Path, settings: Mapping[str, Any], jobs: int) -> dict[str, Any]:
    """Runs all cells that the folder does not have yet.

    Args:
        folder: folder of logs and results.
        settings: `models`, `objectives`, `methods`, and those of `run_cell` and `in_turns`.
        jobs: number of cells at the same time, each on two cores.

    Returns:
        The result: "about", "settings" and "cells", with "runs" by method and "turns", by model and objective.
    """
    begin = time.monotonic()
    pairs = [(model, objective) for model in settings["models"] for objective in settings["objectives"]]
    cells = [Cell(*pair, method) for pair in pairs for method in settings["methods"]]
    with on_pairs_of_cores(jobs) as pool:
        runs = dict(zip(cells, pool.map(partial(run_cell, folder, settings), cells), strict=True))
        turns = dict(zip(pairs, pool.map(partial(in_turns, folder, settings), pairs), strict=True))
    return {
        "about": {**about(), "wall_seconds": round(time.monotonic() - begin)},
        "settings": dict(settings),
        "cells": {
            f"{model}, {objective}": {
                "runs": {method: runs[Cell(model, objective, method)] for method in settings["methods"]},
                "turns": turns[model, objective],
            }
            for model, objective in pairs
        },
    }


def main() -> int:
    """Runs the missing cells, and prints the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", default=MODELS, help="of the zoo")
    parser.add_argument("--objectives", nargs="+", default=OBJECTIVES, choices=OBJECTIVES)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--measurements", type=int, default=MEASUREMENTS, help="of each method")
    parser.add_argument("--trial-seconds", type=float, default=TRIAL_SECONDS)
    parser.add_argument("--rounds", type=int, default=24, help="of turns in the end")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="cells at the same time, each on two cores of its own")
    parser.add_argument("--smoke", action="store_true", help="a small model, four measurements, short trials")
    add_output(parser, "JSON of the results, tables in Markdown and a folder of measurements beside it")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    if options.jobs > 1 and cores < 2 * options.jobs:
        parser.error(f"{options.jobs} jobs need {2 * options.jobs} cores, and this process may use {cores}")
    settings = {
        "models": ["resnet-small"] if options.smoke else list(options.models),
        "objectives": ["throughput"] if options.smoke else list(options.objectives),
        "methods": list(options.methods),
        "measurements": 4 if options.smoke else options.measurements,
        "trial_seconds": 0.05 if options.smoke else options.trial_seconds,
        "rounds": 3 if options.smoke else options.rounds,
        "seed": options.seed,
    }
    os.environ[virtual.VIRTUAL_DEVICES_VARIABLE] = declared("bf16")
    with folder_or_temporary(options.output and options.output.with_suffix(".measurements")) as folder:
        _same_settings(folder, settings)
        result = measure(folder, settings, options.jobs)
    publish(options.output, result, tables(result))
    return 0


def _same_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Writes the settings on which measurements depend; ends the program if the folder has others."""
    deciding = {key: settings[key] for key in ("measurements", "trial_seconds", "seed")}
    path = folder / "settings.json"
    if (before := stored(path)) is not None and before != deciding:
        raise SystemExit(f"error: {folder} was made with {before}: choose another --output")
    write_json(path, deciding)


if __name__ == "__main__":
    start(__spec__)
