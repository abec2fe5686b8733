"""Tests random legal placements of real models on real HETERO: each must compile, compute the same, split as predicted.

Every model of the zoo is tried on three pairs of devices (PAIRS):

cpu   two CPU devices in f32
gpu   OpenVINO's GPU plugin, in the rig of tests/rig (an f32 hint), and the CPU
npu   two CPU devices; the first counts as a device that runs only what an NPU-like device would (SUPPORTED)

A placement gives each colocation group a device at random and uses both devices, which makes many more submodels than a
placer would. In the rig, where each submodel takes a quarter of a second to compile, two of three placements are random
contiguous partitions. Outputs are compared with those of the CPU (REFERENCE); the accepted difference is 1e-3 of the
output's largest magnitude. The number of submodels is compared with that of the native splitting rule.

Quantised models (ov_hsdag/measuring/agreement.py) run twice. The first time they run as they are, and a larger
difference is accepted. The second time they are computed in f32 throughout (column "in f32"); 1e-3 is accepted if the
first device by itself keeps it (column "alone in f32").

Each model and pair runs in its own process, so that a plugin that crashes costs one row. With --output FILE.json rows
are stored as they come, with a table in FILE.md (column "alone": the whole model on the first device against the
reference), and a later call with the same file goes on. The repository has benchmarks/results/legality_table.json. The
exit status is 1 unless all rows are there and right.
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

# Types that a small accelerator runs: dense layers, operations that are fused with them, and operations that move data,
# but no control flow, states, sorting or recurrent layers. Constants, Parameters and Results are no operations.
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
    placements: int  # number of placements of each model
    title: str  # in tables
    uniform: int | None = None  # number of placements that are uniform random assignments; None for all
    rig: bool = False  # whether models run in the rig of tests/rig
    lacking: str | None = None  # device that counts as running only the types of SUPPORTED; None for no device


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

# Properties that make plugins compute quantised models in f32.
NO_INTEGERS = {"LP_TRANSFORMS_MODE": "NO", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}


@dataclass
class Row:
    """The results of one model's placements on one pair of devices.

    Differences of outputs are relative to the output's largest magnitude.

    Attributes:
        model: name in the zoo.
        pair: key of `PAIRS`.
        release: release of OpenVINO.
        nodes: number of nodes.
        groups: number of colocation groups.
        placements: number of placements that were tried.
        compiled: number of those that compiled.
        equal: number of those whose outputs are equal to the reference.
        exact: number of those with as many submodels as predicted.
        submodels: number of submodels of each.
        difference: largest difference of their outputs from the reference.
        accepted: largest difference of outputs that count as equal; it is larger for quantised models, in which a value
            may be rounded to the other side.
        alone: largest difference of the whole model on the first device; None if that does not run the whole model.
        in_f32: `difference` of a quantised model that is computed in f32; None for other models.
        alone_in_f32: `alone` of a quantised model that is computed in f32; None for other models.
        seconds: wall time.
        notes: remarks that are no failures.
        failures: a line for each fault.
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
        """Whether all placements compiled, with equal outputs and as many submodels as predicted."""
        return 0 < self.placements == self.compiled == self.equal == self.exact and not self.failures


@dataclass(frozen=True)
class Reference:
    """The outputs with which placements are compared."""

    core: ov.Core  # compiles placements; all of its devices compute in the same way
    expected: list[list[NDArray[Any]]]  # outputs of one device for each input set
    accepted: float  # largest difference of outputs that count as equal
    in_f32: bool = False  # whether a quantised model is computed in f32


def check(zoo_model: ZooModel, name: str, count: int, seed: int, keep: Callable[[Row], None]) -> None:
    """Draws, compiles, infers and compares placements of a model.

    Args:
        zoo_model: the model.
        name: key of `PAIRS`.
        count: number of placements.
        seed: seed of the placements and of the inputs.
        keep: called with the row after each step.
    """
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
    """A Core with the virtual devices, in which all devices compute in f32 and have further properties."""
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
    """Infers the whole model on one device.

    Args:
        core: compiles the model.
        model: the model, which is not changed.
        device: the device.
        inputs: the input sets.
        expected: the reference's outputs for each.

    Returns:
        The largest difference from `expected`; None if the device does not run the model.
    """
    try:
        return largest_difference(expected, infer(core.compile_model(model.clone(), device), inputs))
    except RuntimeError:
        return None


def lacking(problem: PlacementProblem, device: str) -> PlacementProblem:
    """The problem in which a device supports only the types of SUPPORTED.

    Raises:
        UserError: operations that must share a device have no device that supports all of them.
    """
    graph = problem.graph
    supported = problem.supported.copy()
    runs = (graph.kinds != NodeKind.OP) & (graph.kinds != NodeKind.SINK) | np.isin(graph.types, SUPPORTED.split())
    supported[:, problem.devices.index(device)] &= runs
    support.require_support(graph, problem.groups, supported, problem.devices)
    return replace(problem, supported=supported)


def draw(problem: PlacementProblem, count: int, seed: int, uniform: int | None = None) -> list[NDArray[np.uint8]]:
    """Draws random legal placements that use both devices, as far as there are such placements.

    Making a random placement legal can put everything on one device, which would prove nothing: such draws are repeated
    up to 20 times.

    Args:
        problem: the problem.
        count: number of placements.
        seed: seed of the draws.
        uniform: number of the first placements that are uniform random assignments of groups; the others are contiguous
            partitions. None for all.

    Returns:
        The placements, uint8 [groups] each.
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
    """A random contiguous partition: devices alternate along the order, at one to eight random cuts, uint8 [groups]."""
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
    """Compiles a placement, compares it with all references, and adds the results to the row.

    Args:
        row: the row, which is changed.
        model: the model, which is not changed.
        problem: the problem of the model.
        placement: the placement, uint8 [groups].
        references: the outputs to compare with, the model as it is first.
        inputs: the input sets.

    Raises:
        RuntimeError: it does not compile or infer.
    """
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
            # Runs the same submodels on two devices that compute them right, to tell a fault of the split from one of
            # the device.
            twin = dict(zip(names, CPUS.names, strict=True))
            split = {node: twin[device] for node, device in affinity.items()}
            again = infer(_compiled(model, split, CPUS, reference.core), inputs)
            if largest_difference(reference.expected, again) <= reference.accepted:
                row.failures[-1] += f", on {CPUS.hetero} they do not"
    row.equal += equal


def _compiled(model: ov.Model, affinity: Mapping[str, str], names: DeviceSet, core: ov.Core) -> ov.CompiledModel:
    """Compiles a copy of the model with a placement on HETERO. affinity: device of each node by name."""
    placed = model.clone()
    Placement(devices=names.names, affinity=dict(affinity)).apply(placed)
    return core.compile_model(placed, names.hetero, virtual.compile_properties(names.hetero))


def in_a_process(model: str, pair: str, count: int, seed: int, seconds: float) -> Row:
    """Makes the row of one model and pair in a child process; a crash becomes a failure of the row.

    Args:
        model: name of the model.
        pair: key of `PAIRS`.
        count: number of placements.
        seed: seed of the placements.
        seconds: largest time of the process.
    """
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
    """Reads the rows of an earlier run, by model and pair; none without a file."""
    rows = [Row(**row) for row in stored(path) or []]
    return {(row.model, row.pair): row for row in rows}


def store(path: Path, rows: Iterable[Row]) -> None:
    """Writes rows as JSON to `path`, and as a page in Markdown next to it."""
    with atomic_file(path, "w") as file:
        json.dump([asdict(row) for row in rows], file, indent=1)
    with atomic_file(path.with_suffix(".md"), "w") as file:
        file.write(page(list(rows)))


def page(rows: Sequence[Row]) -> str:
    """The page in Markdown: for each pair of devices a summary, a table, notes and failures."""
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
    """A line with the numbers of models, placements and faults."""
    parts = ", ".join(f"{sum(getattr(row, key) for row in rows)} {key}" for key in ("compiled", "equal", "exact"))
    total = sum(row.placements for row in rows)
    faulty = [row for row in rows if not row.perfect]
    text = f"{len(rows)} models, {total} placements: {parts}; {len(faulty)} models with a fault"
    wrong_alone = sum(row.alone is not None and not row.alone <= row.accepted for row in faulty)
    return f"{text}, of which {wrong_alone} differ on the first device alone." if wrong_alone else f"{text}."


def main() -> int:
    """Makes the rows that the file of --output lacks, or with --row one row. Returns the exit status."""
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
        """The row of a model and pair; None if the time is over."""
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
