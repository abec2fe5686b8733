"""What each part of fine-tuning earns on real HETERO, on a machine that others use as well.

As finetune_curves.py, with two virtual one-core devices for throughput, but a placement counts by the processor time of
its busiest device for one inference, every thread bound to the core of its device (see learned_prior.py): other
processes hardly change that. What no arm does differently is measured once: a placement that several arms or seeds
propose has one measurement. Models and problems are written into --work; measurements and curves are added to --output,
and what is there is not run again; it has to be of the same machine.

Arms are those of finetune_curves.py, and "prior", the default that begins with what learned_prior.py measured of all
other models; by default all but these. Prints, for each, how much slower the best placement so far is than the best
that any arm found with any seed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks import learned_prior
from benchmarks.finetune_arms import fine_tuned
from benchmarks.finetune_curves import TUNED
from benchmarks.machine import about
from ov_hsdag.calibration.common_factor import prior_of
from ov_hsdag.calibration.correction import Prior
from ov_hsdag.devices import virtual
from ov_hsdag.measuring.evaluator import Measurement
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.storage.files import write_json
from ov_hsdag.training.finetune import SCRATCH, Settings
from ov_hsdag.training.finetune.judges import Simulated
from ov_hsdag.utils.errors import RunError
from research.zoo.catalog import ZOO

RESULTS = Path(__file__).with_name("results") / "finetune_busy.json"

MODELS = ("squeezenet", "mobilenet-v2", "shufflenet", "densenet121", "inception-v1")
ARMS = ("both", "search", "pretrained", "untrained", "simulator")
OF_PRIOR = ("prior", "search prior")
SHOWN = (1, 2, 6, 16)


class Busy(Simulated):
    """A judge by processor time.

    Attributes:
        known: measurements by the placement's text: of this run, of other arms, of earlier calls.
    """

    def __init__(self, problem: PlacementProblem, folder: Path, names: tuple[str, ...], known: dict[str, Any]) -> None:
        super().__init__(problem, names[0])
        self._problem, self._folder, self._names, self.known = problem, folder, names, known
        self.singles = {names[0]: Measurement(1.0), names[1]: self._measured("1")}

    def measure(self, affinity: Mapping[str, str], *, worth: float = 0.0, rounds: int | None = None) -> Measurement:
        return self._measured("".join(map(str, self._problem.placement_of(affinity).tolist())))

    def _measured(self, text: str) -> Measurement:
        if text not in self.known:
            os.environ[virtual.VIRTUAL_DEVICES_VARIABLE] = learned_prior.declared(self._names)
            try:
                with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                    self.known[text] = pool.submit(learned_prior.turns, str(self._folder), self._names, text).result()
            except (RunError, RuntimeError) as error:
                self.known[text] = {"failed": str(error)}
        record = self.known[text]
        if "failed" in record:
            return Measurement(0.0, error=record["failed"])
        ratios = tuple(np.exp(learned_prior.log_ratios(record)).tolist())
        return Measurement(float(np.median(ratios)), ratios=ratios, submodels=record["submodels"])


def arm(
    problem: PlacementProblem, judge: Busy, name: str, seed: int, measurements: int, prior: Prior | None
) -> list[float]:
    """Ratio of the best placement to the first device after each measurement."""
    policy, given = (SCRATCH, {"proposer": "search"}) if name == "search prior" else TUNED.get(name, (None, {}))
    return fine_tuned(
        problem,
        judge,
        policy,
        Settings(seed=seed, **given),
        measurements,
        lambda state: state.best().measurement.ratio,
        prior,
    )


def prior_for(work: Path, name: str, pair: str, problem_model: learned_prior.Model) -> Prior | None:
    """What the measurements of all models of other families say."""
    records = json.loads(learned_prior.RECORDS.read_text())["records"][pair]
    others = [
        learned_prior.Model.read(work, other, pair, "built-in", known).experience()
        for other, known in records.items()
        if ZOO[other].family != ZOO[name].family and any("busy_us" in one for one in known.values())
    ]
    return prior_of(problem_model.corrector.factors, others)


def all_curves(cell: Mapping[str, Any]) -> list[list[float]]:
    """Of all arms and seeds."""
    return [curve for of_seed in cell["arms"].values() for curve in of_seed.values()]


def show(pairs: dict[str, Any], seeds: int) -> None:
    """Prints the table of all cells that have every arm of the default with every seed."""
    for pair, cells in pairs.items():
        done = {
            name: cell for name, cell in cells.items() if all(len(cell["arms"].get(arm, ())) >= seeds for arm in ARMS)
        }
        if not done:
            continue
        table = Table("arm", *(f"after {count}" for count in SHOWN), title=f"{pair}: {', '.join(done)}", box=None)
        for name in [arm for arm in (*ARMS, *OF_PRIOR) if all(arm in cell["arms"] for cell in done.values())]:
            row = []
            for count in SHOWN:
                gaps = [
                    np.log(max(map(max, all_curves(cell))) / curve[count - 1])
                    for cell in done.values()
                    for curve in cell["arms"][name].values()
                    if count <= len(curve)
                ]
                row.append(f"{np.exp(np.mean(gaps)):.3f}" if gaps else "-")
            table.add_row(name, *row)
        Console(width=120).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--pairs", nargs="+", default=("f32 + f32",), choices=learned_prior.PAIRS)
    parser.add_argument("--arms", nargs="+", default=ARMS, choices=(*ARMS, *OF_PRIOR))
    parser.add_argument("--measurements", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=5, help="of each model and arm")
    parser.add_argument("--work", type=Path, default=Path("learned_prior"), help="folder of learned_prior.py")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no arm after so long; resumable")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    torch.set_num_threads(1)
    document: dict[str, Any] = {"settings": {"measurements": options.measurements}, "pairs": {}}
    if options.output.exists():
        document = json.loads(options.output.read_text())
    declared = tuple(learned_prior.DECLARED)
    os.environ[virtual.VIRTUAL_DEVICES_VARIABLE] = learned_prior.declared(declared)
    core = virtual.new_core()
    learned_prior.draw_all(options.work, core, options.models)
    learned_prior.problems(options.work, core, options.models)
    records = json.loads(learned_prior.RECORDS.read_text())["records"]
    # All models with one seed before the next one: what is interrupted has as many of them as it can.
    for seed, name, pair in itertools.product(range(options.seeds), options.models, options.pairs):
        cell = document["pairs"].setdefault(pair, {}).setdefault(name, {"arms": {}, "measured": {}})
        model = learned_prior.Model.read(options.work, name, pair, "built-in", records[pair][name])
        problem = model.corrector.problem
        for one in options.arms:
            curves = cell["arms"].setdefault(one, {})
            if len(curves.get(str(seed), ())) >= options.measurements or time.monotonic() > end:
                continue
            judge = Busy(problem, options.work / name, learned_prior.PAIRS[pair], cell["measured"])
            prior = prior_for(options.work, name, pair, model) if "prior" in one else None
            curves[str(seed)] = arm(problem, judge, one, seed, options.measurements, prior)
            print(name, pair, one, seed, np.round(curves[str(seed)], 3), file=sys.stderr, flush=True)
            document["about"] = about()
            document["settings"]["seeds"] = options.seeds
            write_json(options.output, document)
    show(document["pairs"], options.seeds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
