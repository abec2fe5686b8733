"""Measures all ways to run a model on two devices: those that OpenVINO offers, placements of all methods, and ours.

    python -m benchmarks.field.measured [MODEL ...]      # an idle machine, over an hour
    python -m benchmarks.field.measured --place-only --placements FILE.json    # placements of every method; any machine
    python -m benchmarks.field.measured --placements FILE.json --output measured.json    # and .md

There are three settings on two one-core devices made of the CPU plugin: throughput; latency of one request; and
throughput with memory for 60% of the model on each device. All ways run in turns, each in its own worker process. Ways
that are measurably worse than the best take part in fewer rounds. Each is compared with ours in the rounds in which
both ran (95% intervals).

Methods place by predicted costs, those that ours has before it measures, with equal budgets of evaluations and of
processor seconds. Ours is `ov_hsdag.place`, by prediction and by measuring. OpenVINO offers each device, HETERO's rule,
its pipeline hint, AUTO, AUTO with CUMULATIVE_THROUGHPUT, and a copy of the model on each device (which AUTO does not
make on virtual devices, docs/reference/facts.md). Results in the files of --output and --placements are kept.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from benchmarks.common import harness
from benchmarks.common.contestants import LEARNED, OURS, SHIPPED, SIMPLE
from benchmarks.common.machine import about
from benchmarks.common.output import add_output, stored
from benchmarks.common.tables import Result, markdown, write
from benchmarks.field.unseen import DEVICES, declared
from ov_hsdag.devices import virtual
from ov_hsdag.measuring.choice import Ratio
from ov_hsdag.measuring.process import Candidate
from ov_hsdag.model import complete
from ov_hsdag.placing.place import place
from ov_hsdag.placing.rivals import Rival, contenders, measure
from ov_hsdag.problem.copies import COPIES
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.storage.files import write_json
from ov_hsdag.utils.errors import RunError, UserError, one_line
from research.baselines.budget import Budget
from research.zoo.catalog import ZooModel, select

SMOKE_ARGUMENTS = "resnet-small --settings throughput --rounds 1 --seconds 0.05 --measure-seconds 3 --budget 2"
"""The arguments with which this command is quickest, for `make figures-smoke`."""

MODELS = (
    "resnet50", "inception-v3", "bert-base", "densenet121", "mobilenet-v2", "efficientnet-b0", "squeezenet",
    "shufflenet", "convnext-tiny", "segformer-b0", "distilbert-base", "t5-encoder-base",
)  # fmt: skip
SETTINGS = ("throughput", "latency", "memory")
MEASURED = "place, measured"
AUTO, CUMULATIVE = "AUTO", "AUTO, CUMULATIVE_THROUGHPUT"

EVALUATIONS = 500
ROOM = 0.6
"""Memory limit of each device, as a share of what the model needs on one device."""


def objective_of(setting: str) -> str:
    """The objective of a setting, "latency" or "throughput"."""
    return "latency" if setting == "latency" else "throughput"


def limited(problem: PlacementProblem, setting: str) -> PlacementProblem:
    """The problem with the memory limits of a setting of `SETTINGS`."""
    if setting != "memory":
        return replace(problem, memory_bytes=np.full(len(problem.devices), -1, np.int64))
    alone = problem.evaluate(problem.singles)
    return replace(problem, memory_bytes=(ROOM * alone.memory_bytes.max(axis=0)).astype(np.int64))


Drawn = dict[str, dict[str, Any]]
"""By method, its `placement` as hexadecimal digits of device numbers and the `seconds` that it took, or the reason
(`why`) for which it has none."""


def methods(problem: PlacementProblem, seconds: float, known: Drawn) -> Drawn:
    """Lets every method place a problem by prediction.

    Args:
        problem: the problem, with the limits of the setting.
        seconds: processor time of each method.
        known: results of an earlier run, which are kept.
    """
    found: Drawn = {}
    for contestant in (*SIMPLE[1:], *LEARNED, *OURS):
        one = known.get(contestant.name)
        if one is None:
            cell = harness.run(problem, contestant, Budget(EVALUATIONS, seconds))
            one = {key: cell[key] for key in ("why", "seconds", "placement") if key in cell}
        found[contestant.name] = one
    return found


def rivals_of(problem: PlacementProblem, drawn: Drawn) -> tuple[list[Rival], dict[str, str]]:
    """Converts the results of `methods` into ways to run the model.

    Returns:
        The ways, and by name the reason why other methods have no placement.
    """
    left_out = {name: one["why"] for name, one in drawn.items() if "placement" not in one}
    found = [
        _placed(name, problem, np.frombuffer(bytes.fromhex(one["placement"]), np.uint8), one["seconds"])
        for name, one in drawn.items()
        if name not in left_out
    ]
    return found, left_out


def _placed(name: str, problem: PlacementProblem, placement: NDArray[np.uint8], seconds: float) -> Rival:
    """The way to run the model by a placement, uint8 [groups]. seconds: time that placing took."""
    candidate = Candidate.placed(DEVICES, problem.affinity(placement))
    return Rival(name, candidate, placement, problem.summary(placement), seconds)


def ours_measured(model: ov.Model, problem: PlacementProblem, setting: str, core: ov.Core, seconds: float) -> Rival:
    """Places a model by measuring.

    Args:
        model: the model, which is placed.
        problem: its problem, with the limits of the setting.
        setting: of `SETTINGS`.
        core: has the devices.
        seconds: largest time of measuring.

    Returns:
        The way to run the model by the chosen placement.

    Raises:
        RunError: no placement keeps the limits.
        UserError: HETERO does not run the model.
    """
    begin = time.perf_counter()
    memory = None
    if setting == "memory":
        room = problem.stored_bytes(problem.memory_bytes)
        memory = dict(zip(problem.devices, room, strict=True))
    chosen = place(
        model,
        DEVICES.hetero,
        objective=objective_of(setting),
        core=core,
        measure=True,
        measure_seconds=seconds,
        memory=memory,
    )
    placement = problem.placement_of(complete.complete(model, chosen.affinity, DEVICES.names))
    return _placed(MEASURED, problem, placement, time.perf_counter() - begin)


def offered(problem: PlacementProblem, setting: str) -> tuple[list[Rival], dict[str, str]]:
    """The ways to run a model that OpenVINO offers in a setting.

    Returns:
        The ways, and by name the reason why others have no figure in this setting.
    """
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
        # The hint uses the memory that devices report, and gave one of them everything.
        found = [rival for rival in found if rival.name != "hetero-pipeline"]
        left_out["hetero-pipeline"] = "knows nothing of the limits"
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
    """Sets `same_as` of ways whose placement an earlier one has: the difference of their figures would be noise."""
    first: dict[bytes, str] = {}
    result = []
    for rival in found:
        # Ways without affinities count as different: HETERO applies its rule, and single devices run without HETERO.
        alone = rival.candidate.affinity is None
        key = rival.name.encode() if alone or rival.placement is None else rival.placement.tobytes()
        twin = first.setdefault(key, rival.name)
        same = "" if twin == rival.name else twin
        result.append(replace(rival, same_as=same))
    return result


def run(entry: ZooModel, setting: str, core: ov.Core, drawn: Drawn, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Measures one model in one setting.

    Args:
        entry: the model.
        setting: of `SETTINGS`.
        core: has the devices.
        drawn: placements of every method.
        settings: `rounds` of trials of `seconds` each; `measure_seconds` of `place`, and the settings `measure_in` in
            which it measures.

    Returns:
        By way, its figures, with the ratio of its rate to ours and its interval (`of_ours`), or the reason (`why`) for
        which it has none.
    """
    model = entry.build()
    problem = limited(build_problem(model, DEVICES, objective=objective_of(setting), core=core), setting)
    rivals, left_out = offered(problem, setting)
    placed, without = rivals_of(problem, drawn)
    left_out |= without
    try:
        if setting not in settings["measure_in"]:
            raise RunError("left out, as it takes a minute for each model")
        placed.append(ours_measured(entry.build(), problem, setting, core, settings["measure_seconds"]))
    except (RunError, UserError) as error:
        left_out[MEASURED] = one_line(error)
    found = without_twins([*rivals, *placed])
    results = {
        result.rival.name: result
        for result in measure(
            model, DEVICES, objective_of(setting), core, found, rounds=settings["rounds"], seconds=settings["seconds"]
        )
    }
    rates = {name: result.measurement.rates for name, result in results.items() if not result.measurement.failed}
    ours = rates.get(MEASURED) or rates.get(SHIPPED) or ()
    rows: dict[str, Any] = {}
    for name, result in results.items():
        if name not in rates:
            rows[name] = {"why": result.measurement.error}
            continue
        ratio = Ratio.of_rounds([own / other for own, other in zip(rates[name], ours, strict=False)])
        rows[name] = {
            "value": result.measurement.value,
            "of_ours": [ratio.median, ratio.low, ratio.high],
            "rounds": len(rates[name]),
            "submodels": result.measurement.submodels,
            "same_as": result.rival.same_as,
            "placing_seconds": round(result.rival.seconds, 2),
        }
    return {**rows, **{name: {"why": reason} for name, reason in left_out.items() if name not in rows}}


def tables(result: Result) -> dict[str, str]:
    """The tables by setting: the rate of each way over ours; rates that are measurably higher are bold."""
    found = {}
    for setting in SETTINGS:
        cells = {model: of[setting] for model, of in result["cells"].items() if setting in of}
        if not cells:
            continue
        rows = []
        for row in dict.fromkeys(row for of in cells.values() for row in of):
            line, rates = [row], []
            for of in cells.values():
                if (cell := of.get(row, {})).get("of_ours") is None:  # the file says why
                    line.append("–")
                    continue
                centre, low, _ = cell["of_ours"]
                rates.append(centre)
                line.append(f"**{centre:.3f}**" if low > 1 + harness.TIE else f"{centre:.3f}")
            if rates:
                rows.append([*line, f"{statistics.geometric_mean(rates):.3f}"])
        found[f"{setting}, rate / {MEASURED}:"] = markdown(["", *cells, "geometric mean"], rows)
    return found


def main() -> None:
    """Makes the placements and measurements that the files of --placements and --output lack."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", default=MODELS, help="of the zoo (default: twelve of real size)")
    parser.add_argument("--settings", nargs="+", default=SETTINGS, choices=SETTINGS)
    parser.add_argument("--rounds", type=int, default=6, help="at most")
    parser.add_argument("--seconds", type=float, default=0.25, help="of a turn")
    parser.add_argument("--measure-seconds", type=float, default=60.0, help="that `place` may measure for")
    parser.add_argument("--measure-in", nargs="+", default=SETTINGS, choices=SETTINGS, help="where `place` measures")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of processor time for each method")
    parser.add_argument(
        "--placements", type=Path, metavar="FILE", help="JSON of what methods found, read and completed"
    )
    parser.add_argument("--place-only", action="store_true", help="finds placements and measures nothing")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which nothing is begun")
    add_output(parser, "JSON of the results, which is continued, and tables in Markdown beside it")
    options = parser.parse_args()
    if options.place_only and options.placements is None:
        parser.error("--place-only measures nothing: --placements names the file for what methods find")
    os.environ[virtual.VIRTUAL_DEVICES_VARIABLE] = declared()
    core = virtual.new_core()
    drawn = stored(options.placements) or {}
    for setting in options.settings:
        for entry in select(options.models):
            cell = drawn.setdefault(entry.name, {}).setdefault(setting, {})
            if len(cell) < len((*SIMPLE[1:], *LEARNED, *OURS)):
                print(f"{entry.name}, {setting}: placements", file=sys.stderr, flush=True)
                problem = build_problem(entry.build(), DEVICES, objective=objective_of(setting), core=core)
                drawn[entry.name][setting] = methods(limited(problem, setting), options.budget, cell)
                if options.placements is not None:
                    write_json(options.placements, drawn)
    if not options.place_only:
        measure_all(options, core, drawn)


def measure_all(options: argparse.Namespace, core: ov.Core, drawn: Mapping[str, Mapping[str, Drawn]]) -> None:
    """Measures until the time is up, and prints the tables.

    Args:
        options: the command line.
        core: has the devices.
        drawn: results of `methods` by model and setting.
    """
    settings = {
        "rounds": options.rounds,
        "seconds": options.seconds,
        "measure_seconds": options.measure_seconds,
        "measure_in": list(options.measure_in),
        "evaluations": EVALUATIONS,
        "budget": options.budget,
        "room": ROOM,
    }
    document = stored(options.output) or {"settings": settings}
    if document["settings"] != settings:
        raise SystemExit(f"{options.output} was made with other settings: {document['settings']}")
    cells, end = document.setdefault("cells", {}), time.monotonic() + options.limit
    for setting in options.settings:
        for entry in select(options.models):
            if setting in cells.get(entry.name, {}) or time.monotonic() > end:
                continue
            begin = time.monotonic()
            cells.setdefault(entry.name, {})[setting] = run(entry, setting, core, drawn[entry.name][setting], settings)
            wall = round(time.monotonic() - begin)
            print(f"{entry.name}, {setting}: {wall} s", file=sys.stderr, flush=True)
            before = document.get("about", {}).get("wall_seconds", 0)
            document["about"] = {**about(), "wall_seconds": before + wall}
            if options.output is not None:
                write_json(options.output, document)
    write(options.output, document, tables(document))


if __name__ == "__main__":
    main()
