"""How fast fine-tuning finds good placements on real HETERO: with the policy, with search alone, with neither.

Two virtual one-core CPU devices in f32, throughput. Every start measures placements with the same instrument, against
the best single device in interleaved rounds (`ov_hsdag.measuring.evaluator`); the curve is the best ratio after each
number of measurements.

Starts: "both", what the pretrained policy and search propose, which is the default; "prior", the same where other
models were measured on these devices before (--experience: what `learned_prior.py experience` makes, or the cache of
earlier runs; all other starts know nothing); "pretrained", the policy alone;
"scratch", an untrained network that learns from what is measured; "untrained", one that does not; "search", minimum
cut, contiguous partition and multilevel search in the policy's place; "simulator", the best of 256 random placements by
the simulator. All of these correct the simulator's costs by what was measured, and all but the last refine by local
search. "random" uses no simulator at all.

Random search draws legal placements alternately from two distributions: contiguous partitions (random cuts of the
topological order, devices in random order), and uniform random assignments of legality groups to devices, repaired
until HETERO runs them. Its best are measured again in the end, as in fine-tuning: the best of many noisy measurements
is partly luck, and the column "again" is what remains.

Runs are kept in --runs and go on where they were interrupted; results are added to those in --output. Exit status 1
when the start "both" of a model stays below the floor in "again".
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from ov_hsdag.calibration import experience
from ov_hsdag.devices import discovery, virtual
from ov_hsdag.devices.cpu import usable_cores
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring.evaluator import TRIAL_SECONDS, Measurement, Measurer
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.storage.files import write_json
from ov_hsdag.training.finetune import SCRATCH, Budget, Entry, Settings, finetune, pooled
from ov_hsdag.training.finetune.proposals import random_partition
from ov_hsdag.training.run import CHECKPOINT
from ov_hsdag.utils.errors import RunError, UserError
from research.zoo.catalog import ZooModel, cache_folder, select

RESULTS = Path(__file__).parent / "results" / "finetune.json"

MODELS = ("resnet50", "bert-base", "vit-base")
STARTS = ("both", "prior", "pretrained", "scratch", "untrained", "search", "simulator", "random")
SHOWN = (1, 2, 6, 16, 40, 60)

# Of starts that fine-tune: the policy, and settings.
TUNED: dict[str, tuple[str | None, dict[str, Any]]] = {
    "both": (None, {}),
    "prior": (None, {}),
    "pretrained": (None, {"proposer": "policy"}),
    "scratch": (SCRATCH, {"proposer": "policy"}),
    "untrained": (SCRATCH, {"proposer": "policy", "updates": 0}),
    "search": (SCRATCH, {"proposer": "search"}),
    "simulator": (SCRATCH, {"proposer": "random"}),
}

# What the default has to reach within the budget.
FLOOR = 1.7

F32 = "INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT=f32"
DEVICES = DeviceSet(("CPU_A", "CPU_B"))


def draw(problem: PlacementProblem, seed: int, number: int, known: set[bytes]) -> NDArray[np.uint8]:
    """The random placement of a measurement; one that was not measured yet."""
    generator = np.random.default_rng([seed, number])
    while True:
        placement = problem.random(generator, 1)[0] if number % 2 else random_partition(problem, generator)
        if placement.tobytes() not in known and problem.evaluate(placement).infeasible[0] == 0:
            return placement


def random_search(
    folder: Path, zoo_model: ZooModel, core: ov.Core, budget: int, seed: int, seconds: float
) -> dict[str, Any]:
    """Runs or continues it; a record like fine-tuning's."""
    path = folder / "record.json"
    settings = Settings()
    model = zoo_model.build()
    problem = build_problem(model, DEVICES, objective="throughput", core=core)
    record: dict[str, Any] = {"reference": None, "entries": [], "final": {}, "seconds": 0.0}
    if path.exists():
        record = json.loads(path.read_text(encoding="utf-8"))
    before, begin = record["seconds"], time.monotonic()
    measurer = Measurer(model, DEVICES, "throughput", core, reference=record["reference"], seconds=seconds)
    record["reference"] = measurer.reference
    ratios = [entry["measurement"]["ratio"] for entry in record["entries"]]
    worth = max([1.0, *(Measurement.from_dict(entry["measurement"]).sure for entry in record["entries"])])
    known = {problem.single(device).tobytes() for device in range(len(DEVICES))}
    placements: list[NDArray[np.uint8]] = []
    for number in range(max(budget, len(ratios))):
        placement = draw(problem, seed, number, known)
        known.add(placement.tobytes())
        placements.append(placement)
        if number < len(ratios):
            continue
        measured = measurer.measure(problem.affinity(placement), worth=worth)
        worth = max(worth, measured.sure)
        ratios.append(measured.ratio)
        record["entries"].append({"measurement": measured.to_dict(), "source": ("contiguous", "uniform")[number % 2]})
        record["seconds"] = before + time.monotonic() - begin
        write_json(path, record)
        log(number + 1, measured, max([1.0, *ratios]))
    for number in sorted(range(len(ratios)), key=lambda number: -ratios[number])[: settings.finalists]:
        if str(number) in record["final"] or ratios[number] <= 1:
            continue
        again = measurer.measure(problem.affinity(placements[number]), rounds=settings.final_rounds)
        first = Measurement.from_dict(record["entries"][number]["measurement"])
        again = pooled(first, again, "throughput")
        record["final"][str(number)] = again.to_dict()
        write_json(path, record)
    best = max(record["final"].values(), key=lambda final: final["ratio"], default={"ratio": 1.0})
    return {**record, "best_so_far": np.maximum.accumulate([1.0, *ratios])[1:].tolist(), "best": best}


def tuned(
    folder: Path,
    zoo_model: ZooModel,
    core: ov.Core,
    budget: int,
    policy: str | None,
    settings: Settings,
    seconds: float,
) -> dict[str, Any]:
    """Runs or continues fine-tuning; its record."""

    def report(number: int, share: float, entry: Entry, best: float) -> None:
        log(number, entry.measurement, best)

    resume = (folder / CHECKPOINT).exists()
    record, _ = finetune(
        zoo_model.build(),
        DEVICES.hetero,
        folder,
        objective="throughput",
        budget=Budget(measurements=budget),
        policy=policy,
        resume=resume,
        settings=None if resume else settings,
        core=core,
        report=report,
        trial_seconds=seconds,
    )
    return record


def log(number: int, measured: Measurement, best: float) -> None:
    result = measured.error or f"{measured.ratio:.3f} in {measured.submodels} submodels"
    print(f"  {number}: {result}, best {best:.3f}, {measured.seconds:.1f} s", file=sys.stderr, flush=True)


def summary(record: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a run."""
    entries = [entry for entry in record["entries"] if entry["source"] not in ("single", "hetero")]
    return {
        "best_so_far": [round(ratio, 4) for ratio in record["best_so_far"]],
        "again": round(record["best"]["ratio"], 4),
        "chosen": record.get("chosen", "random"),
        "ratios": [round(entry["measurement"]["ratio"], 4) for entry in entries],
        "sources": [entry["source"] for entry in entries],
        "failed": sum(bool(entry["measurement"]["error"]) for entry in entries),
        "best": {key: record["best"].get(key) for key in ("value", "reference", "submodels")},
        "correction_error": record.get("correction", {}).get("error"),
        "seconds": round(record["seconds"], 1),
        "seconds_measuring": round(sum(entry["measurement"]["seconds"] for entry in entries), 1),
    }


def table(results: Mapping[str, Mapping[str, Any]]) -> Table:
    shown = Table(title="times the best single device, best so far after … measurements", box=None)
    for column in ("model", "start", *map(str, SHOWN), "again", "minutes"):
        shown.add_column(column, justify="left" if column in ("model", "start") else "right")
    for model, starts in results.items():
        for start in STARTS:
            if start in starts:
                result = starts[start]
                curve = result["best_so_far"]
                cells = [f"{curve[count - 1]:.2f}" if count <= len(curve) else "" for count in SHOWN]
                shown.add_row(model, start, *cells, f"{result['again']:.2f}", f"{result['seconds'] / 60:.1f}")
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS, help="of the zoo (default: %(default)s)")
    parser.add_argument("--starts", nargs="+", default=STARTS, choices=STARTS)
    parser.add_argument("--measurements", type=int, default=60)
    parser.add_argument("--trial", type=float, default=TRIAL_SECONDS, help="seconds of a trial (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after so long")
    parser.add_argument("--experience", type=Path, help='folder of experience for the start "prior"')
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--policy", help="pretrained policy, name or folder; the shipped one by default")
    parser.add_argument(
        "--runs", type=Path, default=cache_folder().parent / "finetune_curves", help="folder of the runs"
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()

    os.environ[virtual.VIRTUAL_DEVICES_VARIABLE] = ";".join(f"{name}:{F32}" for name in DEVICES)
    torch.set_num_threads(1)
    if "prior" in options.starts and options.experience is None:
        parser.error('the start "prior" needs --experience')
    end = time.monotonic() + options.seconds
    core = ov.Core()
    virtual.register(core)
    document: dict[str, Any] = {"results": {}}
    if options.output.exists():
        document = json.loads(options.output.read_text(encoding="utf-8"))
    results = document["results"]
    try:
        for zoo_model in select(options.models):
            for start in options.starts:
                folder = options.runs / f"{zoo_model.name}-{start}-{options.seed}"
                known = results.get(zoo_model.name, {}).get(start, {}).get("ratios", [])
                if time.monotonic() > end or len(known) >= options.measurements:
                    continue
                with tempfile.TemporaryDirectory() as copy:  # a run adds to what it began with
                    if start == "prior":
                        shutil.copytree(options.experience, copy, dirs_exist_ok=True)
                    os.environ[experience.VARIABLE] = copy
                    folder.mkdir(parents=True, exist_ok=True)
                    print(f"{zoo_model.name}, {start}", file=sys.stderr)
                    if start == "random":
                        record = random_search(
                            folder, zoo_model, core, options.measurements, options.seed, options.trial
                        )
                    else:
                        policy, given = TUNED[start]
                        settings = Settings(seed=options.seed, **given)
                        record = tuned(
                            folder,
                            zoo_model,
                            core,
                            options.measurements,
                            policy or options.policy,
                            settings,
                            options.trial,
                        )
                results.setdefault(zoo_model.name, {})[start] = summary(record)
                document["about"] = {
                    "devices": os.environ[virtual.VIRTUAL_DEVICES_VARIABLE],
                    "openvino": ov.__version__,
                    "cpu": discovery.full_name(core, "CPU"),
                    "cores": usable_cores(),
                    "seed": options.seed,
                }
                write_json(options.output, document)
    except (UserError, RunError) as error:
        parser.error(str(error))
    Console(width=140).print(table(results))
    missed = [name for name, starts in results.items() if starts.get("both", {"again": FLOOR})["again"] < FLOOR]
    if missed:
        print(f"below {FLOOR}: {', '.join(missed)}", file=sys.stderr)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
