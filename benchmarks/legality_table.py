"""Random legal placements of real models on real HETERO: does each compile, compute the same, and split as predicted?

Every row is a model of the zoo. Placements are drawn at random from all legal ones that use both devices: a device for
each legality group by the throw of a die, which cuts a model into many more submodels than a placer would. Each is
compiled on HETERO with two virtual CPU devices in f32; its outputs are compared with a single device (largest
difference relative to the output's largest magnitude), its number of submodels with what the native splitting rule
says. The exit status is 1 unless all are right.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from ov_hsdag import devices
from ov_hsdag.bench.compare import TOLERANCE, infer, largest_difference
from ov_hsdag.bench.zoo import ZooModel, select
from ov_hsdag.devices import DeviceSet
from ov_hsdag.errors import UserError
from ov_hsdag.files import atomic_file
from ov_hsdag.place import build_problem
from ov_hsdag.placement import Placement
from ov_hsdag.problem import PlacementProblem

MODELS = (
    "onnx", "bert-base", "bert-dynamic", "vit-base", "swin-tiny", "t5-encoder-base", "t5-encoder-dynamic",
    "mobilenet-v2", "convnext-tiny", "lstm", "lstm-dynamic", "lstm-stateful",
)  # fmt: skip
F32 = "INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT=f32"
DEVICES = DeviceSet(("CPU_A", "CPU_B"))


@dataclass
class Row:
    """What became of one model's placements."""

    model: str
    nodes: int = 0
    groups: int = 0
    placements: int = 0
    compiled: int = 0
    equal: int = 0
    exact: int = 0
    submodels: list[int] = field(default_factory=list)
    largest_difference: float = 0.0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)

    @property
    def perfect(self) -> bool:
        return 0 < self.placements == self.compiled == self.equal == self.exact


def check(row: Row, zoo_model: ZooModel, core: ov.Core, count: int, seed: int) -> None:
    """Draws, compiles, infers and compares `count` placements of one model; fills in `row`."""
    start = time.perf_counter()
    model = zoo_model.build()
    inputs = zoo_model.inputs(seed)
    expected = infer(core.compile_model(model.clone(), DEVICES.names[0]), inputs)
    problem = build_problem(model, DEVICES, core=core)
    row.nodes, row.groups = problem.graph.nodes, problem.group_count
    for number, placement in enumerate(draw(problem, count, seed)):
        row.placements += 1
        try:
            _check_placement(row, model, problem, placement, core, inputs, expected)
        except RuntimeError as error:
            row.failures.append(f"placement {number}: {' '.join(str(error).split())[-300:]}")
    row.seconds = time.perf_counter() - start


def draw(problem: PlacementProblem, count: int, seed: int) -> list[NDArray[np.uint8]]:
    """Random legal placements, each on both devices.

    Making a throw of the die legal can end with everything on one device, which would prove nothing: such draws are
    repeated. Raises RuntimeError when nearly all of them are.
    """
    random = np.random.default_rng(seed)
    placements: list[NDArray[np.uint8]] = []
    for _ in range(20):
        drawn = problem.random(random, count)
        placements += [placement for placement in drawn if placement.min() != placement.max()]
        if len(placements) >= count:
            return placements[:count]
    raise RuntimeError(f"only {len(placements)} of {20 * count} random placements use both devices")


def _check_placement(
    row: Row,
    model: ov.Model,
    problem: PlacementProblem,
    placement: np.ndarray,
    core: ov.Core,
    inputs: list[dict[str, np.ndarray]],
    expected: list[list[np.ndarray]],
) -> None:
    predicted = int(problem.evaluate(placement).submodels[0])
    placed = model.clone()
    Placement(devices=DEVICES.names, affinity=problem.affinity(placement)).apply(placed)
    compiled = core.compile_model(placed, DEVICES.hetero, devices.compile_properties(DEVICES.hetero))
    row.compiled += 1
    submodels = int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS"))
    row.submodels.append(submodels)
    row.exact += submodels == predicted
    if submodels != predicted:
        row.failures.append(f"placement {row.placements - 1}: {submodels} submodels, predicted {predicted}")
    difference = largest_difference(expected, infer(compiled, inputs))
    row.largest_difference = max(row.largest_difference, difference)
    row.equal += difference <= TOLERANCE
    if difference > TOLERANCE:
        row.failures.append(f"placement {row.placements - 1}: outputs differ by {difference:.2g}")


def table(rows: list[Row]) -> Table:
    result = Table(title=f"random legal placements on {DEVICES.hetero}, f32, OpenVINO {ov.__version__.split('-')[0]}")
    result.add_column("model")
    for title in (
        "nodes",
        "groups",
        "placements",
        "compiled",
        "equal",
        "submodels exact",
        "submodels",
        "largest diff.",
        "s",
    ):
        result.add_column(title, justify="right")
    for row in rows:
        spread = f"{min(row.submodels)} to {max(row.submodels)}" if row.submodels else ""
        counts = (row.nodes, row.groups, row.placements, row.compiled, row.equal, row.exact)
        cells = (row.model, *map(str, counts), spread, f"{row.largest_difference:.1e}", f"{row.seconds:.0f}")
        result.add_row(*cells, style="" if row.perfect else "red")
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL", help="names, families or tags of the zoo")
    parser.add_argument("--placements", type=int, default=20, help="placements of each model (default 20)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="write the table as JSON, too")
    arguments = parser.parse_args()

    os.environ[devices.VIRTUAL_DEVICES_VARIABLE] = ";".join(f"{name}:{F32}" for name in DEVICES)
    core = ov.Core()
    devices.register(core)
    try:
        models = select(arguments.models)
    except UserError as error:
        parser.error(str(error))
    rows = []
    for model in models:
        row = Row(model.name)
        rows.append(row)
        try:
            check(row, model, core, arguments.placements, arguments.seed)
        except Exception as error:  # a failure of this model must not hide the other models' rows
            row.failures.append(f"{type(error).__name__}: {' '.join(str(error).split())[-300:]}")
        print(f"{row.model}: {'right' if row.perfect else 'WRONG'}", file=sys.stderr, flush=True)

    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(table(rows))
    for row in rows:
        for failure in row.failures:
            console.print(f"{row.model}: {failure}", style="red", markup=False)
    total = sum(row.placements for row in rows)
    parts = ", ".join(f"{sum(getattr(row, key) for row in rows)} {key}" for key in ("compiled", "equal", "exact"))
    console.print(f"{len(rows)} models, {total} placements: {parts}")
    if arguments.output:
        with atomic_file(arguments.output, "w") as file:
            json.dump([asdict(row) for row in rows], file, indent=1)
    return 0 if rows and all(row.perfect for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
