"""Throughput on two one-core devices: what `place` chooses, against everything else that runs the model.

Cells are models × two pairs of virtual CPU devices: f32 and f32, bf16 and f32. Rivals are each single device,
HETERO's own choice, HETERO with the hint PIPELINE_PARALLEL, splits by number of operations (0.5, 0.7, 0.8, 0.9 on the
first device), a minimum cut, balanced contiguous partitions, and a copy of the whole model on each device, which HETERO
cannot run and which needs the memory for it. All run in interleaved rounds, placements on real HETERO, in
worker processes of their own.

What both devices could do at most is the sum of what each does alone, in the same rounds. Exit status 1 when the
geometric mean of what is reached of that stays below the floor, or when a cell's choice is measurably below a rival.
Results are added to those in --output.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import openvino as ov
from rich.console import Console
from rich.table import Table

from ov_hsdag.devices import virtual
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring.choice import Ratio
from ov_hsdag.measuring.process import Candidate
from ov_hsdag.model import complete
from ov_hsdag.placing.place import place
from ov_hsdag.placing.rivals import Rival, contenders, measure
from ov_hsdag.problem.copies import COPIES
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.storage.files import write_json
from ov_hsdag.utils.errors import UserError
from research.zoo.catalog import ZooModel, select

RESULTS = Path(__file__).parent / "results" / "throughput.json"

MODELS = ("resnet50", "bert-base", "vit-base", "densenet121", "inception-v3")
PAIRS = {"f32 + f32": ("CPU_A", "CPU_B"), "bf16 + f32": ("CPU_H", "CPU_A")}
DECLARED = {"CPU_A": "f32", "CPU_B": "f32", "CPU_H": "bf16"}

# Of the sum of what both devices do alone, as a geometric mean.
FLOOR = 0.93

# Of what a copy on each device does at the same time, as a geometric mean.
COPIES_FLOOR = 0.98

OURS = "ov-hsdag"


def run(zoo_model: ZooModel, pair: str, core: ov.Core, rounds: int, seconds: float) -> dict[str, Any]:
    """One cell."""
    devices = DeviceSet(PAIRS[pair])
    model = zoo_model.build()
    begin = time.perf_counter()
    placement = place(model, devices.hetero, objective="throughput", core=core, measure=True)
    placing = time.perf_counter() - begin
    problem = build_problem(model, devices, objective="throughput", core=core)
    found = contenders(problem, devices, [])[0]
    used = set(placement.affinity.values())
    # A single device is what it is, whether HETERO calls it or not: then there is nothing to compare it with.
    same = next((device for device in devices.names if used == {device}), "")
    ours = problem.placement_of(complete.complete(model, placement.affinity, devices.names))
    own = Rival(
        OURS, Candidate.placed(devices, problem.affinity(ours)), ours, problem.summary(ours), placing, same_as=same
    )
    results = {
        result.rival.name: result
        for result in measure(model, devices, "throughput", core, [*found, own], rounds=rounds, seconds=seconds)
    }
    rates = {name: result.measurement.rates for name, result in results.items() if not result.measurement.failed}
    alone = [rates[device] for device in devices.names]
    reached = [own / (a + b) for own, a, b in zip(rates[OURS], *alone, strict=False)]
    against = {name: Ratio.of(rates[OURS], rates[name]) for name in rates if name != OURS}
    return {
        "of_limit": statistics.median(reached),
        "limit": statistics.median(a + b for a, b in zip(*alone, strict=False)),
        "chosen": placement.chosen,
        "submodels": results[OURS].measurement.submodels,
        "placing_seconds": round(placing, 1),
        # Copies need the memory for the whole model on each device: a bar of their own, see COPIES_FLOOR.
        "measurably_below": [name for name, ratio in against.items() if ratio.high < 1 and name != COPIES],
        "against": {name: [ratio.median, ratio.low, ratio.high] for name, ratio in against.items()},
        "rates": {name: list(values) for name, values in rates.items()},
        "failed": {name: r.measurement.error for name, r in results.items() if r.measurement.failed},
        "predicted_ips": {name: (r.rival.predicted or {}).get("throughput_ips") for name, r in results.items()},
    }


def show(results: dict[str, Any]) -> float:
    """The table; the geometric mean of what is reached of the limit."""
    table = Table(title="throughput as a share of what both devices do alone (medians of the same rounds)", box=None)
    columns = (
        "limit/s",
        OURS,
        "chosen",
        "best device",
        "hetero",
        "hint",
        "best by hand",
        "mincut",
        "pipeline",
        "copies",
        "below",
    )
    for column in ("model", "devices", *columns):
        table.add_column(column, justify="right" if column in columns else "left")
    for pair, of_pair in results.items():
        for name, cell in of_pair.items():
            ours = cell["of_limit"]

            def share(*rivals: str, cell: dict[str, Any] = cell, ours: float = ours) -> str:
                found = [ours / cell["against"][rival][0] for rival in rivals if rival in cell["against"]]
                return f"{max(found):.3f}" if found else "-"

            by_hand = [rival for rival in cell["against"] if rival.startswith("nodes-")]
            table.add_row(
                name, pair, f"{cell['limit']:.1f}", f"{ours:.3f}", cell["chosen"], share(*PAIRS[pair]), share("hetero"),
                share("hetero-pipeline"), share(*by_hand), share("mincut"), share("pipeline"), share(COPIES),
                ", ".join(cell["measurably_below"]),
            )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    return statistics.geometric_mean(cell["of_limit"] for of_pair in results.values() for cell in of_pair.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS, help="of the zoo (default: %(default)s)")
    parser.add_argument("--pairs", nargs="+", default=tuple(PAIRS), choices=PAIRS)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()

    declared = (
        f"{name}:INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT={precision}" for name, precision in DECLARED.items()
    )
    os.environ[virtual.VIRTUAL_DEVICES_VARIABLE] = ";".join(declared)
    core = ov.Core()
    virtual.register(core)
    document = json.loads(options.output.read_text()) if options.output.exists() else {}
    results = document.setdefault("results", {})
    document["about"] = {
        "openvino": ov.__version__,
        "cpu": str(core.get_property("CPU", "FULL_DEVICE_NAME")),
        "rounds": options.rounds,
        "seconds": options.seconds,
    }
    try:
        for pair in options.pairs:
            for model in select(options.models):
                print(f"{model.name}, {pair}", file=sys.stderr)
                results.setdefault(pair, {})[model.name] = run(model, pair, core, options.rounds, options.seconds)
                write_json(options.output, document)
    except UserError as error:
        parser.error(str(error))
    mean = show(results)
    below = [f"{name}, {pair}" for pair, of in results.items() for name, cell in of.items() if cell["measurably_below"]]
    cells = sum(map(len, results.values()))
    print(f"{100 * mean:.1f}% of the limit as a geometric mean of {cells} cells (floor {100 * FLOOR:.0f}%)")
    to_copies = [
        cell["against"][COPIES][0] for of in results.values() for cell in of.values() if COPIES in cell["against"]
    ]
    copied = statistics.geometric_mean(to_copies) if to_copies else 1.0
    print(
        f"{100 * copied:.1f}% of copies as a geometric mean of {len(to_copies)} cells (floor {100 * COPIES_FLOOR:.0f}%)"
    )
    if below:
        print(f"measurably below a rival: {'; '.join(below)}")
    return int(mean < FLOOR or copied < COPIES_FLOOR or bool(below))


if __name__ == "__main__":
    sys.exit(main())
