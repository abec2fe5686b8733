"""Random legal placements of real models on real HETERO: does each compile, compute the same, and split as predicted?

Every model of the zoo is tried on three pairs of devices (PAIRS):

cpu   two CPU devices in f32
gpu   OpenVINO's GPU plugin, in the rig of tests/rig (an f32 hint), and the CPU
npu   two CPU devices, the first of which is said to run only what an NPU-like device would (SUPPORTED)

Placements give each legality group a device at random and use both, which makes many more submodels than a placer
would; in the rig, where each takes a quarter of a second to compile, two of three are random contiguous partitions.
Outputs are compared with those of the CPU alone (largest difference relative to the output's largest magnitude: 1e-3),
the number of submodels with what the native splitting rule says.

Quantised models (ov_hsdag/measuring/agreement.py) run twice: as they are, with the larger difference that is accepted
there, and computed in f32 throughout (column "in f32"), with 1e-3 where the first device alone (column "alone in f32")
keeps that.

Each model and pair runs in a process of its own: a plugin that crashes costs one row. With --output FILE.json rows are
kept as they come, there and as a table in FILE.md (column "alone": the first device alone against the reference), and
the next call with the same file goes on where one ended. The repository's is benchmarks/results/legality_table.json.
The exit status is 1 unless all rows are there and right.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from benchmarks.common.output import add_output, stored
from benchmarks.common.tables import markdown
from ov_hsdag.devices import virtual
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring.agreement import TOLERANCE, quantised_tolerance
from ov_hsdag.model import support
from ov_hsdag.model.graph import NodeKind
from ov_hsdag.model.placement import Placement
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.storage.files import atomic_file
from ov_hsdag.utils.errors import UserError, one_line
from research.zoo.catalog import ZooModel, select
from research.zoo.compare import infer, largest_difference

SMOKE_ARGUMENTS = "resnet-small --pairs cpu --placements 1"
"""The arguments with which this command is quickest, for `make figures-smoke`."""

ROOT = Path(__file__).resolve().parents[2]
RIG = ROOT / "tests" / "rig" / "run"
MODULE = "benchmarks.truth.legality_table"

# What a small accelerator runs: dense layers, what is fused with them, and moving data about; no control flow, states,
# sorting or recurrent layers. Constants, Parameters and Results are no operations.
SUPPORTED = """
    Convolution GroupConvolution ConvolutionBackpropData MatMul Add Subtract Multiply Divide Maximum Minimum Relu PRelu
    Clamp Sigmoid Tanh Gelu Swish HSwish HSigmoid SoftPlus Elu Exp Sqrt Power Negative Abs SquaredDifference Softmax
    MaxPool AvgPool ReduceMean ReduceSum ReduceMax MVN BatchNormInference Concat Split VariadicSplit Reshape Squeeze
    Unsqueeze Transpose StridedSlice Slice Gather Broadcast Tile Pad Interpolate DepthToSpace SpaceToDepth Convert
    ShapeOf FakeQuantize Select Equal Greater Less NormalizeL2
"""


@dataclass(frozen=True)
class Pair:
    """Two devices, and how many placements are tried on them."""

    devices: DeviceSet
    placements: int
    title: str
    uniform: int | None = None  # placements that are uniform random assignments; all by default
    rig: bool = False
    lacking: str | None = None  # the device that is said to run SUPPORTED alone


ONE_CORE = "INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT=f32"
CPUS = DeviceSet(("CPU_A", "CPU_B"))
REFERENCE = "CPU_B"
PAIRS = {
    "cpu": Pair(CPUS, 10, "CPU + CPU"),
    "gpu": Pair(DeviceSet(("GPU", "CPU")), 3, "GPU + CPU", uniform=1, rig=True),
    "npu": Pair(CPUS, 3, "NPU-like + CPU", lacking="CPU_A"),
}

COLUMNS = (
    "model", "nodes", "groups", "placements", "compiled", "equal", "exact", "submodels", "difference", "accepted",
    "alone", "in f32", "alone in f32",
)  # fmt: skip

# What makes plugins compute quantised models in f32.
NO_INTEGERS = {"LP_TRANSFORMS_MODE": "NO", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}


@dataclass
class Row:
    """What became of one model's placements on one pair of devices.

    accepted: largest difference of outputs that are equal; larger for quantised models, where a rounding may tip.
    alone: largest difference of the first device alone from the reference; None where it does not run the model alone.
    in_f32, alone_in_f32: the same of a quantised model that is computed in f32; None for others.
    """

    model: str
    pair: str
    release: str = ov.__version__.split("-")[0]
    nodes: int = 0
    groups: int = 0
    placements: int = 0
    compiled: int = 0
    equal: int = 0
    exact: int = 0
    submodels: list[int] = field(default_factory=list)
    difference: float = 0.0
    accepted: float = TOLERANCE
    alone: float | None = None
    in_f32: float | None = None
    alone_in_f32: float | None = None
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def perfect(self) -> bool:
        return 0 < self.placements == self.compiled == self.equal == self.exact and not self.failures


@dataclass(frozen=True)
class Reference:
    """What placements are compared with: a core whose devices compute in one way, and what one of them alone says."""

    core: ov.Core
    expected: list[list[NDArray[Any]]]
    accepted: float
    in_f32: bool = False


def check(zoo_model: ZooModel, name: str, count: int, seed: int, keep: Callable[[Row], None]) -> None:
    """Draws, compiles, infers and compares `count` placements of a model; `keep` gets the row after each step."""
    pair, row = PAIRS[name], Row(zoo_model.name, name)
    start = time.perf_counter()
    core = new_core()
    model = zoo_model.build()
    inputs = zoo_model.inputs(seed)
    expected = infer(core.compile_model(model.clone(), REFERENCE), inputs)
    row.accepted = quantised_tolerance(model)
    row.alone = alone(core, model, pair.devices.names[0], inputs, expected)
    references = [Reference(core, expected, row.accepted)]
    if row.accepted > TOLERANCE:
        core_in_f32 = new_core(**NO_INTEGERS)
        expected = infer(core_in_f32.compile_model(model.clone(), REFERENCE), inputs)
        row.in_f32, row.alone_in_f32 = 0.0, alone(core_in_f32, model, pair.devices.names[0], inputs, expected)
        rounds_alike = (row.alone_in_f32 or 0.0) <= TOLERANCE
        references.append(Reference(core_in_f32, expected, TOLERANCE if rounds_alike else row.accepted, in_f32=True))
    keep(row)
    problem = build_problem(model, pair.devices, core=core)
    if pair.lacking:
        problem = lacking(problem, pair.lacking)
    row.nodes, row.groups = problem.graph.nodes, problem.group_count
    placements = draw(problem, count, seed, pair.uniform)
    if len({placement.tobytes() for placement in placements}) < count:
        row.notes.append(f"{len({placement.tobytes() for placement in placements})} different placements")
    if any(placement.min() == placement.max() for placement in placements):
        row.notes.append("fits on one device only")
    for placement in placements:
        row.placements += 1
        try:
            _check_placement(row, model, problem, placement, references, inputs)
        except RuntimeError as error:
            row.failures.append(f"placement {row.placements - 1}: {one_line(error)}")
        row.seconds = round(time.perf_counter() - start, 1)
        keep(row)


def new_core(**properties: str) -> ov.Core:
    core = virtual.new_core()
    for name in {*core.available_devices, *virtual.virtual_devices()} & {"GPU", "CPU", *CPUS}:
        core.set_property(name, {"INFERENCE_PRECISION_HINT": "f32", **properties})
    return core


def alone(
    core: ov.Core,
    model: ov.Model,
    device: str,
    inputs: list[dict[str, NDArray[Any]]],
    expected: list[list[NDArray[Any]]],
) -> float | None:
    """How far a device alone is from the reference, None where it does not run the model."""
    try:
        return largest_difference(expected, infer(core.compile_model(model.clone(), device), inputs))
    except RuntimeError:
        return None


def lacking(problem: PlacementProblem, device: str) -> PlacementProblem:
    """The same on a device that runs SUPPORTED alone. UserError: operations that must share a device have none."""
    graph = problem.graph
    supported = problem.supported.copy()
    runs = (graph.kinds != NodeKind.OP) & (graph.kinds != NodeKind.SINK) | np.isin(graph.types, SUPPORTED.split())
    supported[:, problem.devices.index(device)] &= runs
    support.require_support(graph, problem.groups, supported, problem.devices)
    return replace(problem, supported=supported)


def draw(problem: PlacementProblem, count: int, seed: int, uniform: int | None = None) -> list[NDArray[np.uint8]]:
    """Returns random legal placements, on both devices where there are such; uint8 [groups] each.

    Making a random placement legal can put all on one device, which would prove nothing: such draws are repeated.

    count: of placements. seed: of the draws. uniform: how many, the first ones, are uniform random assignments of
    groups; the others are contiguous partitions. None: all.
    """
    random = np.random.default_rng(seed)
    placements: list[NDArray[np.uint8]] = []
    while len(placements) < count:
        for _ in range(20):
            if uniform is None or len(placements) < uniform:
                drawn = problem.random(random, 1)[0]
            else:
                drawn = problem.repair(contiguous(problem, random))
            if drawn.min() != drawn.max():
                break
        placements.append(drawn)
    return placements


def contiguous(problem: PlacementProblem, random: np.random.Generator) -> NDArray[np.uint8]:
    """Returns a contiguous partition: devices alternate along the order, at up to eight random cuts; uint8 [groups]."""
    first_node = np.unique(problem.groups, return_index=True)[1]
    cuts = random.integers(0, problem.group_count, random.integers(1, 9))
    part = (np.arange(problem.group_count)[:, None] >= cuts).sum(axis=1) + random.integers(2)
    chosen = np.empty(problem.group_count, np.int64)
    chosen[first_node.argsort()] = part % len(problem.devices)
    return problem.where_supported(chosen)


def _check_placement(
    row: Row,
    model: ov.Model,
    problem: PlacementProblem,
    placement: NDArray[np.uint8],
    references: Sequence[Reference],
    inputs: list[dict[str, NDArray[Any]]],
) -> None:
    predicted = int(problem.evaluate(placement).submodels[0])
    affinity, names = problem.affinity(placement), PAIRS[row.pair].devices
    compiled = [_compiled(model, affinity, names, reference.core) for reference in references]
    row.compiled += 1
    submodels = int(compiled[0].get_property("HETERO_NUMBER_OF_SUBMODELS"))
    row.submodels.append(submodels)
    row.exact += submodels == predicted
    if submodels != predicted:
        row.failures.append(f"placement {row.placements - 1}: {submodels} submodels, predicted {predicted}")
    equal = True
    for reference, one in zip(references, compiled, strict=True):
        difference = largest_difference(reference.expected, infer(one, inputs))
        if reference.in_f32:
            row.in_f32 = max(row.in_f32 or 0.0, difference)
        else:
            row.difference = max(row.difference, difference)
        if difference <= reference.accepted:
            continue
        equal = False
        where = " in f32" if reference.in_f32 else ""
        row.failures.append(f"placement {row.placements - 1}: outputs differ by {difference:.2g}{where}")
        if names != CPUS:
            # The same submodels, on two devices that are known to compute them right: is it the split or the device?
            twin = dict(zip(names, CPUS.names, strict=True))
            split = {node: twin[device] for node, device in affinity.items()}
            again = infer(_compiled(model, split, CPUS, reference.core), inputs)
            if largest_difference(reference.expected, again) <= reference.accepted:
                row.failures[-1] += f", on {CPUS.hetero} they do not"
    row.equal += equal


def _compiled(model: ov.Model, affinity: Mapping[str, str], names: DeviceSet, core: ov.Core) -> ov.CompiledModel:
    placed = model.clone()
    Placement(devices=names.names, affinity=dict(affinity)).apply(placed)
    return core.compile_model(placed, names.hetero, virtual.compile_properties(names.hetero))


def in_a_process(model: str, pair: str, count: int, seed: int, seconds: float) -> Row:
    """The row of one model and pair, whatever happens to the process that makes it."""
    command = [sys.executable, "-m", MODULE, "--row", pair, "--placements", str(count), "--seed", str(seed), model]
    environment = {**os.environ, virtual.VIRTUAL_DEVICES_VARIABLE: ";".join(f"{name}:{ONE_CORE}" for name in CPUS)}
    environment["OV_HSDAG_DISABLE"] = "1"  # affinities are set here, and by nobody else
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "row.json"
        command += ["--output", str(output)]
        try:
            ended = subprocess.run(
                [str(RIG), *command] if PAIRS[pair].rig else command,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                timeout=seconds,
            )
            failure = f"ended with status {ended.returncode}: {one_line(ended.stderr)}" if ended.returncode else ""
        except subprocess.TimeoutExpired:
            failure = f"not done after {seconds:.0f} s"
        row = Row(**json.loads(output.read_text())) if output.exists() else Row(model, pair)
    if failure:
        row.failures.append(failure)
    return row


def load(path: Path | None) -> dict[tuple[str, str], Row]:
    rows = [Row(**row) for row in stored(path) or []]
    return {(row.model, row.pair): row for row in rows}


def store(path: Path, rows: Iterable[Row]) -> None:
    with atomic_file(path, "w") as file:
        json.dump([asdict(row) for row in rows], file, indent=1)
    with atomic_file(path.with_suffix(".md"), "w") as file:
        file.write(page(list(rows)))


def page(rows: Sequence[Row]) -> str:
    lines = [
        "# Random legal placements on HETERO",
        "",
        f"OpenVINO {', '.join(sorted({row.release for row in rows}))}.",
        "",
    ]
    for name, pair in PAIRS.items():
        own = [row for row in rows if row.pair == name]
        if not own:
            continue
        lines += [f"## {pair.title}: {pair.devices.hetero}", "", summary(own), ""]
        body = []
        for row in own:
            counts = (row.nodes, row.groups, row.placements, row.compiled, row.equal, row.exact)
            spread = f"{min(row.submodels)} to {max(row.submodels)}" if row.submodels else ""
            figures = (row.difference, row.accepted, row.alone, row.in_f32, row.alone_in_f32)
            differences = ("" if one is None else f"{one:.0e}" for one in figures)
            body.append([row.model, *map(str, counts), spread, *differences])
        lines.append(markdown(COLUMNS, body))
        said = [f"- {row.model}: {text}" for row in own for text in (*row.notes, *row.failures)]
        lines += ["", *said, ""] if said else [""]
    return "\n".join(lines)


def summary(rows: Sequence[Row]) -> str:
    parts = ", ".join(f"{sum(getattr(row, key) for row in rows)} {key}" for key in ("compiled", "equal", "exact"))
    total = sum(row.placements for row in rows)
    faulty = [row for row in rows if not row.perfect]
    text = f"{len(rows)} models, {total} placements: {parts}; {len(faulty)} models with a fault"
    wrong_alone = sum(row.alone is not None and not row.alone <= row.accepted for row in faulty)
    return f"{text}, of which {wrong_alone} differ on the first device alone." if wrong_alone else f"{text}."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "models", nargs="*", default=["quick"], metavar="MODEL", help="names, families or tags of the zoo"
    )
    parser.add_argument(
        "--pairs", nargs="+", choices=PAIRS, default=list(PAIRS), help="pairs of devices (default: all)"
    )
    parser.add_argument("--placements", type=int, help="placements of each model and pair")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="rows that failed are tried once more")
    parser.add_argument("--seconds", type=float, default=np.inf, help="start no row after this time")
    parser.add_argument("--row-seconds", type=float, default=600, help="the most that one row may take (default 600)")
    parser.add_argument("--jobs", type=int, default=1, help="rows at a time (default 1)")
    add_output(parser, "JSON of all rows, which is continued, and the table in Markdown beside it")
    parser.add_argument("--row", choices=PAIRS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    try:
        models = select(arguments.models)
    except UserError as error:
        parser.error(str(error))

    if arguments.row:  # this is a process for one row
        output = arguments.output

        def keep(row: Row) -> None:
            with atomic_file(output, "w") as file:
                json.dump(asdict(row), file)

        check(models[0], arguments.row, arguments.placements, arguments.seed, keep)
        return 0

    rows = load(arguments.output)
    wanted = [(model.name, pair) for pair in arguments.pairs for model in models]
    release = Row("", "").release
    old = {key for key, row in rows.items() if row.release != release or (arguments.again and not row.perfect)}
    end = time.perf_counter() + arguments.seconds

    def make(key: tuple[str, str]) -> Row | None:
        if time.perf_counter() > end:
            return None
        return in_a_process(
            *key, arguments.placements or PAIRS[key[1]].placements, arguments.seed, arguments.row_seconds
        )

    with ThreadPoolExecutor(arguments.jobs) as jobs:
        for row in jobs.map(make, [key for key in wanted if key not in rows or key in old]):
            if row:
                rows[row.model, row.pair] = row
                verdict = "right" if row.perfect else "WRONG"
                print(f"{row.pair} {row.model}: {verdict} {row.seconds:.0f} s", *row.failures, flush=True)
                if arguments.output is not None:
                    store(arguments.output, rows.values())
    found = [rows[key] for key in wanted if key in rows]
    for name in arguments.pairs:
        print(f"{PAIRS[name].title}: {summary([row for row in found if row.pair == name])}")
    return 0 if len(found) == len(wanted) and all(row.perfect for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
