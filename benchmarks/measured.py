"""Every way to run a model on two devices, measured on real HETERO: what OpenVINO offers, every method, and ours.

    python -m benchmarks.measured [MODEL ...]      # results/measured.json and .md; an idle machine, hours for all

Three settings on two one-core devices made of the CPU plugin: latency of one request; throughput; throughput where each
device has memory for 60% of the model. All ways run in turns, in worker processes of their own, and each is compared
with ours in the rounds that both ran in (95% intervals). Methods place by the predicted costs that ours has before it
measures, under an equal budget of evaluations; ours is `ov_hsdag.place` as users call it, once by prediction and once
measured. What OpenVINO offers: each device, HETERO's rule, its pipeline hint, AUTO, AUTO with CUMULATIVE_THROUGHPUT,
and a copy of the model on each device (which AUTO does not make of virtual devices, docs/facts.md). Results are
added to those in --output; what is there is not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from benchmarks import harness
from benchmarks.contestants import LEARNED, OURS, SHIPPED, SIMPLE
from ov_hsdag.baselines.budget import Budget
from ov_hsdag.devices import virtual
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring.choice import Ratio
from ov_hsdag.measuring.process import Candidate
from ov_hsdag.measuring.rivals import Rival, contenders, measure
from ov_hsdag.model import complete
from ov_hsdag.place import place
from ov_hsdag.problem.copies import COPIES
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.utils.errors import RunError, UserError, one_line
from ov_hsdag.utils.files import write_json, write_text
from ov_hsdag.zoo.catalog import ZooModel, select

RESULTS = Path(__file__).parent / "results" / "measured.json"

MODELS = (
    "resnet50", "densenet121", "inception-v3", "mobilenet-v2", "efficientnet-b0", "vgg19", "bert-base",
    "distilbert-base", "gpt2-base", "vit-base", "swin-tiny", "convnext-tiny", "wav2vec2-base",
)  # fmt: skip
SETTINGS = ("latency", "throughput", "memory")
DEVICES = DeviceSet(("CPU_A", "CPU_B"))
DECLARED = "INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT=f32"
MEASURED = f"{SHIPPED}, measured"
AUTO, CUMULATIVE = "AUTO", "AUTO, CUMULATIVE_THROUGHPUT"

EVALUATIONS = 500
ROOM = 0.6
"""Of a model's need on one device, that each has where memory is limited."""


def objective_of(setting: str) -> str:
    """What is minimised in a setting."""
    return "latency" if setting == "latency" else "throughput"


def limited(problem: PlacementProblem, setting: str) -> PlacementProblem:
    """The problem with the memory limits of a setting."""
    if setting != "memory":
        return replace(problem, memory_bytes=np.full(len(problem.devices), -1, np.int64))
    alone = problem.evaluate(np.stack([problem.single(device) for device in range(len(problem.devices))]))
    return replace(problem, memory_bytes=(ROOM * alone.memory_bytes.max(axis=0)).astype(np.int64))


def methods(problem: PlacementProblem, seconds: float) -> tuple[list[Rival], dict[str, str]]:
    """Placements of every method by prediction, and why others have none.

    Args:
        problem: with the limits of the setting.
        seconds: of processor time for each method.
    """
    found, left_out = [], {}
    for contestant in (*SIMPLE[1:], *LEARNED, OURS):
        cell = harness.run(problem, contestant, Budget(EVALUATIONS, seconds))
        if cell["us"] is None:
            left_out[contestant.name] = cell["why"]
            continue
        placement = np.frombuffer(bytes.fromhex(cell["placement"]), np.uint8)
        found.append(_placed(contestant.name, problem, placement, cell["seconds"]))
    return found, left_out


def _placed(name: str, problem: PlacementProblem, placement: NDArray[np.uint8], seconds: float) -> Rival:
    candidate = Candidate.placed(DEVICES, problem.affinity(placement))
    return Rival(name, candidate, placement, problem.summary(placement), seconds)


def ours_measured(model: ov.Model, problem: PlacementProblem, setting: str, core: ov.Core) -> Rival:
    """What `place` chooses by measuring.

    Raises:
        RunError: no placement keeps the limits.
        UserError: HETERO does not run the model.
    """
    begin = time.perf_counter()
    memory = None
    if setting == "memory":
        room = problem.stored_bytes(problem.memory_bytes)
        memory = dict(zip(problem.devices, room, strict=True))
    chosen = place(model, DEVICES.hetero, objective=objective_of(setting), core=core, measure=True, memory=memory)
    placement = problem.placement_of(complete.complete(model, chosen.affinity, DEVICES.names))
    return _placed(MEASURED, problem, placement, time.perf_counter() - begin)


def offered(problem: PlacementProblem, setting: str) -> tuple[list[Rival], dict[str, str]]:
    """What OpenVINO offers, and why some of it has no figure in this setting."""
    wanted = {*DEVICES.names, "hetero", "hetero-pipeline", COPIES}
    some, why = contenders(problem, DEVICES, [])
    found = [rival for rival in some if rival.name in wanted]
    left_out = {name: reason for name, reason in why.items() if name in wanted}
    listed = f"AUTO:{','.join(DEVICES.names)}"
    auto = [
        Rival(AUTO, Candidate(listed)),
        Rival(CUMULATIVE, Candidate(listed, properties={"PERFORMANCE_HINT": "CUMULATIVE_THROUGHPUT"})),
    ]
    if setting == "memory":
        left_out |= dict.fromkeys((AUTO, CUMULATIVE, COPIES), "needs the whole model on a device")
    elif setting == "latency":
        found.append(auto[0])
        left_out |= {
            "hetero-pipeline": "is for several requests",
            CUMULATIVE: "is for several requests",
            COPIES: "is for several requests",
        }
    else:
        found += auto
    return found, left_out


def without_twins(found: Sequence[Rival]) -> list[Rival]:
    """The rivals, with `same_as` where an earlier one has the same placement: measuring both would measure noise."""
    first: dict[bytes, str] = {}
    result = []
    for rival in found:
        # HETERO decides what its rule gives, which its placement says as well; devices alone run without HETERO.
        alone = rival.candidate.affinity is None
        key = rival.name.encode() if alone or rival.placement is None else rival.placement.tobytes()
        twin = first.setdefault(key, rival.name)
        same = "" if twin == rival.name else twin
        result.append(replace(rival, same_as=same))
    return result


def run(entry: ZooModel, setting: str, core: ov.Core, rounds: int, seconds: float, budget: float) -> dict[str, Any]:
    """One model in one setting.

    Args:
        entry: of the zoo.
        setting: of `SETTINGS`.
        core: with the devices.
        rounds: of turns.
        seconds: of a turn.
        budget: of processor time for each method, s.
    """
    model = entry.build()
    problem = limited(build_problem(model, DEVICES, objective=objective_of(setting), core=core), setting)
    rivals, left_out = offered(problem, setting)
    placed, without = methods(problem, budget)
    left_out |= without
    try:
        placed.append(ours_measured(entry.build(), problem, setting, core))
    except (RunError, UserError) as error:
        left_out[MEASURED] = one_line(error)
    found = without_twins([*rivals, *placed])
    results = {
        result.rival.name: result
        for result in measure(model, DEVICES, objective_of(setting), core, found, rounds=rounds, seconds=seconds)
    }
    rates = {name: result.measurement.rates for name, result in results.items() if not result.measurement.failed}
    ours = rates.get(MEASURED) or rates.get(SHIPPED) or ()
    rows: dict[str, Any] = {}
    for name, result in results.items():
        if name not in rates:
            rows[name] = {"why": result.measurement.error}
            continue
        ratio = Ratio.of(rates[name], ours)
        rows[name] = {
            "value": result.measurement.value,
            "of_ours": [ratio.median, ratio.low, ratio.high],
            "rounds": len(rates[name]),
            "submodels": result.measurement.submodels,
            "same_as": result.rival.same_as,
            "placing_seconds": round(result.rival.seconds, 2),
        }
    return {**rows, **{name: {"why": reason} for name, reason in left_out.items() if name not in rows}}


def main() -> None:
    """Measures what is asked for and not there yet."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", default=MODELS, help="of the zoo (default: thirteen of real size)")
    parser.add_argument("--settings", nargs="+", default=SETTINGS, choices=SETTINGS)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a turn")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of processor time for each method")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    os.environ[virtual.VIRTUAL_DEVICES_VARIABLE] = ";".join(f"{name}:{DECLARED}" for name in DEVICES.names)
    core = ov.Core()
    virtual.register(core)
    document = json.loads(options.output.read_text()) if options.output.exists() else {}
    cells = document.setdefault("cells", {})
    document["settings"] = {
        "rounds": options.rounds,
        "seconds": options.seconds,
        "evaluations": EVALUATIONS,
        "room": ROOM,
    }
    for entry in select(options.models):
        for setting in options.settings:
            if setting in cells.get(entry.name, {}):
                continue
            print(f"{entry.name}, {setting}", file=sys.stderr, flush=True)
            cells.setdefault(entry.name, {})[setting] = run(
                entry, setting, core, options.rounds, options.seconds, options.budget
            )
            document["about"] = harness.about()
            write_json(options.output, document)
    from benchmarks.results_page import measured

    write_text(options.output.with_suffix(".md"), measured(document))
    print(measured(document))


if __name__ == "__main__":
    main()
