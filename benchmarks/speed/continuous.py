"""Measures speed and quality of ov-hsdag in one command, and compares them with earlier results on this machine.

    python -m benchmarks.speed.continuous              # minutes; compares with results/history.jsonl
    python -m benchmarks.speed.continuous --size full  # large models and throughput on HETERO as well; half an hour
    python -m benchmarks.speed.continuous --output benchmarks/results/history.jsonl    # adds a line

All figures are measured in turns, in several rounds. Times are processor times divided by that of a fixed piece of work
(the yardstick) in the same round, so that changes of the machine's speed do not count. Each figure is compared by its
ratio to the median of the last five results of the same machine, size and release of OpenVINO. The exit status is 1 if
a figure is worse by more than its tolerance and by more than twice the spread of rounds. The first result on a machine
is compared with nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from benchmarks.common.machine import about
from benchmarks.common.output import add_output
from benchmarks.common.placing import placed_in_child
from benchmarks.common.tables import markdown
from benchmarks.field.unseen import DEVICES, declared
from ov_hsdag.devices import virtual
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring.process import Candidate
from ov_hsdag.model import complete
from ov_hsdag.model.graph import NodeKind
from ov_hsdag.placers.multilevel import search
from ov_hsdag.placing.place import place
from ov_hsdag.placing.rivals import Rival, measure
from ov_hsdag.policy.features import policy_input
from ov_hsdag.problem.copies import COPIES
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.problem.problem import PlacementProblem, topological_groups
from ov_hsdag.storage.files import write_text
from research.graphs import graph_of, problem_on
from research.zoo import deep
from research.zoo.catalog import ZOO

SMOKE_ARGUMENTS = "--only import --rounds 1"
"""The arguments with which this command is quickest, for `benchmarks.figures`."""

ROOT = Path(__file__).parents[2]
HISTORY = ROOT / "benchmarks" / "results" / "history.jsonl"
SIZES = ("small", "full")

# Number of the latest results with whose median a figure is compared.
_LAST = 5
# Moves of a search.
_MOVES = 300_000
# A difference of up to this multiple of the spreads of both results is noise.
_SPREADS = 2.0


@dataclass(frozen=True)
class Kind:
    """A kind of figures."""

    tolerance: float  # share by which a figure may always be worse, even if its rounds differ by less
    relative: bool = False  # whether it is divided by the yardstick of its round
    larger: bool = False  # whether larger figures are better


KINDS = {
    "time": Kind(0.10, relative=True),
    "memory": Kind(0.05),
    "score": Kind(0.001),  # of equal moves: the same on every machine
    "throughput": Kind(0.03, larger=True),
}

Work = Callable[[], float]
"""A function that makes one round of a figure and returns its value: processor seconds, MiB, a score or a ratio."""

Figures = dict[str, tuple[str, Callable[[], Work]]]
"""By name of the figure, its kind (key of `KINDS`) and a function that prepares its rounds."""


@dataclass(frozen=True)
class Figure:
    """A figure: the median of its rounds and their spread."""

    kind: str  # key of `KINDS`
    median: float  # median of the rounds
    spread: float  # half of the distance between the quartiles of the rounds, as a share of the median

    @classmethod
    def of(cls, kind: str, rounds: Sequence[float]) -> Figure:
        """Computes the figure of at least one round."""
        low, median, high = np.quantile(rounds, [0.25, 0.5, 0.75])
        return cls(kind, float(median), float((high - low) / (2 * median)) if median else 0.0)


@dataclass(frozen=True)
class Change:
    """A figure compared with earlier results."""

    figure: Figure
    ratio: float  # ratio to earlier results, above 1 if it is worse; 1 without earlier results
    allowed: float  # the largest ratio that is no regression
    before: float | None  # the median with which it is compared; None for the first result

    @property
    def regression(self) -> bool:
        """Whether the figure is worse by more than noise."""
        return self.ratio > self.allowed

    @classmethod
    def of(cls, figure: Figure, earlier: Sequence[Figure]) -> Change:
        """Compares a figure with earlier ones, of which the latest is the last."""
        kind = KINDS[figure.kind]
        last = earlier[-_LAST:]
        if not last:
            return cls(figure, 1.0, 1.0 + kind.tolerance, None)
        before = statistics.median(one.median for one in last)
        spread = statistics.median(one.spread for one in last)
        ratio = before / figure.median if kind.larger else figure.median / before
        return cls(figure, ratio, 1.0 + max(kind.tolerance, _SPREADS * (figure.spread + spread)), before)


def yardstick() -> float:
    """Does a fixed piece of work with Python objects and arrays, without ov-hsdag. Returns its processor seconds."""
    begin = time.process_time()
    words: dict[int, list[int]] = {}
    for number in range(120_000):
        words.setdefault(number % 1009, []).append(number)
    sum(len(text) for text in map(str, words))
    values = np.random.default_rng(0).standard_normal(1 << 20)
    for _ in range(6):
        values = np.sort(values)[::-1] * 1.0000001
    return time.process_time() - begin


def spent(work: Callable[[], object]) -> Work:
    """Returns a function that does some work and returns its processor seconds."""

    def one() -> float:
        begin = time.process_time()
        work()
        return time.process_time() - begin

    return one


def preparing(prepare: Callable[[], Callable[[], object]]) -> Work:
    """Prepares some work. Returns a function that does it and returns its processor seconds."""
    return spent(prepare())


def child_seconds(*arguments: str) -> float:
    """Starts Python with arguments and waits for its end. Returns the processor seconds of the process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def cuts(problem: PlacementProblem, random: np.random.Generator) -> NDArray[np.uint8]:
    """Random placements, uint8 [256, groups]: one to four cuts of the topological order; devices alternate by part."""
    position = np.empty(problem.group_count, np.int64)
    position[topological_groups(problem)] = np.arange(problem.group_count)
    batch = []
    for _ in range(256):
        boundaries = np.sort(random.integers(0, problem.group_count, random.integers(1, 5)))
        batch.append(np.searchsorted(boundaries, position, side="right") % len(problem.devices))
    return np.array(batch, np.uint8)


def generated_problem(nodes: int, seed: int = 0) -> PlacementProblem:
    """A problem of residual blocks with four branches each, on two devices. nodes: number of nodes of the graph."""
    generator = np.random.default_rng(seed)
    feeds: list[list[int]] = [[]]
    while len(feeds) < nodes - 1:
        entry, ends = len(feeds) - 1, []
        for _ in range(4):
            last = entry
            for _ in range(int(generator.integers(1, 7))):
                feeds.append([last])
                last = len(feeds) - 1
            ends.append(last)
        feeds.append(ends)
        feeds.append([len(feeds) - 1, entry])
    feeds = [*feeds[: nodes - 1], [nodes - 2]]
    outputs = nodes - 1
    graph = graph_of(
        [NodeKind.PARAMETER, *[NodeKind.OP] * (nodes - 2), NodeKind.RESULT],
        feeds,
        types=("Parameter", *["Convolution", "Relu"] * (nodes // 2 - 1), *["Add"] * (nodes % 2), "Result"),
        output_bytes=generator.integers(10_000, 1_000_000, outputs),
        output_shapes=((1, 64, 56, 56),) * outputs,
        output_ranks=np.full(outputs, 4, np.int16),
        flops=generator.uniform(1e6, 1e8, nodes),
    )
    return problem_on(
        graph,
        generator.lognormal(3.0, 1.0, (nodes, 2)),
        groups=np.minimum(np.arange(nodes), nodes - 2).astype(np.int32),  # Results stay with their producer
        transfer_us=np.array([[0.0, 5.0], [5.0, 0.0]]),
        transfer_us_per_byte=np.array([[0.0, 1e-5], [1e-5, 0.0]]),
        submodel_us=np.array([20.0, 20.0]),
    )


def small(core: ov.Core) -> Figures:
    """The figures of --size small, which take seconds each. core: has the devices."""
    pair = DeviceSet.parse("HETERO:GPU,CPU")

    def placing(name: str, objective: str) -> Work:
        ZOO[name].build()  # converted once, then from the cache

        def one() -> float:
            model = ZOO[name].build()
            return spent(lambda: place(model, DEVICES.names, objective=objective, core=core, measure=False))()

        return one

    def simulating() -> Work:
        problem = build_problem(ZOO["resnet50"].build(), pair)
        splits = cuts(problem, np.random.default_rng(0))
        return spent(lambda: [problem.evaluate(splits, threads=1) for _ in range(20)])

    def features() -> Work:
        problem = generated_problem(5_000)
        return spent(lambda: policy_input(problem))

    def searching(name: str, objective: str) -> Work:
        problem = build_problem(ZOO[name].build(), pair, objective=objective)
        return lambda: search(problem, max_moves=_MOVES).score

    figures: Figures = {
        "start: import ov_hsdag": ("time", lambda: lambda: child_seconds("-c", "import ov_hsdag")),
        "start: ov-hsdag --help": ("time", lambda: lambda: child_seconds("-m", "ov_hsdag", "--help")),
        "simulate 5,120 splits of resnet50": ("time", simulating),
        "features of 5,000 nodes": ("time", features),
        "place a decoder of 2,000 operations: memory": (
            "memory",
            lambda: lambda: 1024 * grown("decoder", 2_000)["gib"],
        ),
    }
    for name, objective in (("swin-tiny", "latency"), ("bert-base", "throughput")):
        figures[f"place {name}, {objective}"] = ("time", partial(placing, name, objective))
    for name, objective in (("densenet121", "throughput"), ("bert-base", "throughput"), ("swin-tiny", "latency")):
        prepare = partial(searching, name, objective)
        figures[f"search {name}, {objective}: score of {_MOVES:,} moves"] = ("score", prepare)
        figures[f"search {name}, {objective}: {_MOVES:,} moves"] = ("time", partial(preparing, prepare))
    return figures


def full(core: ov.Core) -> Figures:
    """The figures of --size full: those of `small`, large models, and throughput on HETERO."""
    figures = small(core)
    for family in ("decoder", "encoder"):
        name = f"place {family} of 22,000 operations"
        figures[name] = ("time", lambda family=family: lambda: grown(family, 22_000)["cpu_seconds"])  # type: ignore[misc]
        figures[f"{name}: memory"] = ("memory", lambda family=family: lambda: 1024 * grown(family, 22_000)["gib"])  # type: ignore[misc]
    for name in ("resnet50", "densenet121", "bert-base"):
        figures[f"throughput of {name} against copies"] = ("throughput", partial(against_copies, name, core))
    return figures


def grown(family: str, size: int) -> dict[str, float]:
    """The figures of `placed_in_child` for a model of a family with about `size` operations."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.xml")
        ov.save_model(deep.build(family, size), path, compress_to_fp16=False)
        return placed_in_child(path)


def against_copies(name: str, core: ov.Core) -> Work:
    """Work that returns the throughput of the placement that `place` chooses by measuring, over that of copies.

    The devices are two one-core devices; copies are the whole model on each.

    Args:
        name: name of a model of the zoo.
        core: has the devices.
    """

    def one() -> float:
        model = ZOO[name].build()
        problem = build_problem(model, DEVICES, objective="throughput", core=core)
        chosen = place(ZOO[name].build(), DEVICES.hetero, objective="throughput", core=core, measure=True)
        placement = problem.placement_of(complete.complete(model, chosen.affinity, DEVICES.names))
        candidates = [
            Rival("ov-hsdag", Candidate.placed(DEVICES, problem.affinity(placement)), placement),
            Rival(COPIES, Candidate.copies(DEVICES.names)),
        ]
        found = measure(model, DEVICES, "throughput", core, candidates, rounds=8, seconds=0.5)
        return found[0].measurement.value / found[1].measurement.value

    return one


def made(figures: Figures, rounds: int, tell: Callable[[str], None]) -> dict[str, Figure]:
    """Measures figures in turns.

    Args:
        figures: the figures.
        rounds: number of rounds of each; figures in yardsticks have one more before them, which does not count.
        tell: called with a line before each round of a figure.
    """
    prepared = {name: (kind, prepare()) for name, (kind, prepare) in figures.items()}
    values: dict[str, list[float]] = {name: [] for name in figures}
    for number in range(rounds + 1):
        for name, (kind, work) in prepared.items():
            if number == 0 and not KINDS[kind].relative:
                continue
            tell(f"round {number} of {rounds}: {name}" if number else f"warming up: {name}")
            unit = (yardstick() + yardstick()) / 2 if KINDS[kind].relative else 1.0
            value = work() / unit
            if number:  # the first time, files and plugins are loaded
                values[name].append(value)
    return {name: Figure.of(figures[name][0], values[name]) for name in figures}


def series_of(history: Sequence[Mapping[str, Any]], entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The earlier results with which an entry can be compared: those of the same machine, size and OpenVINO release."""
    return [one for one in history if _key(one) == _key(entry)]


def _key(entry: Mapping[str, Any]) -> tuple[str, str, str]:
    """Machine, size and OpenVINO release (year and number, "2026.4") of a result."""
    release = re.match(r"\d+\.\d+", str(entry["about"]["versions"]["openvino"]))
    return entry["about"]["machine"], entry["size"], release[0] if release else ""


def changes(entry: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]]) -> dict[str, Change]:
    """Compares each figure of an entry with those of the same name in earlier entries, of which the latest is last."""
    return {
        name: Change.of(Figure(**figure), [Figure(**one["figures"][name]) for one in earlier if name in one["figures"]])
        for name, figure in entry["figures"].items()
    }


def read(path: Path) -> list[dict[str, Any]]:
    """Reads the entries of a history; none without a file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def commit() -> str:
    """The commit of the tree, with a "+" if it has changes; "" outside of a clone."""
    try:
        done = subprocess.run(["git", "describe", "--always", "--dirty=+"], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip()


def report(found: Mapping[str, Change]) -> str:
    """The table of the comparison in Markdown."""
    rows = []
    units = {"time": "yardsticks", "memory": "MiB", "score": "µs", "throughput": "ratio"}
    for name, change in found.items():
        before = "" if change.before is None else f"{change.before:.4g}"
        ratio = "" if change.before is None else f"{change.ratio:.3f}"
        note = "regression" if change.regression else ""
        now = f"{change.figure.median:.4g}"
        rows.append([name, units[change.figure.kind], now, before, ratio, f"{change.allowed:.3f}", note])
    return markdown(["figure", "unit", "now", "before", "ratio (worse > 1)", "allowed", ""], rows)


def main() -> int:
    """Measures, compares, and adds to the history."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--rounds", type=int, help="of each figure (default: 7, with --size full 3)")
    parser.add_argument("--only", help="regular expression: figures whose names it matches")
    parser.add_argument(
        "--history",
        type=Path,
        metavar="FILE",
        help="results to compare with, one line of JSON each; default: --output's, or the repository's",
    )
    add_output(parser, "results, to which a line is added")
    options = parser.parse_args()
    os.environ[virtual.VIRTUAL_DEVICES_VARIABLE] = declared()
    core = virtual.new_core()
    figures = (small if options.size == "small" else full)(core)
    if options.only:
        figures = {name: figure for name, figure in figures.items() if re.search(options.only, name)}
    if not figures:
        parser.error(f"no figure matches {options.only}")
    rounds = options.rounds or (7 if options.size == "small" else 3)
    found = made(figures, rounds, lambda text: print(text, file=sys.stderr, flush=True))
    history = read(options.history or options.output or HISTORY)
    entry = {
        "about": about(),
        "commit": commit(),
        "size": options.size,
        "rounds": rounds,
        "figures": {name: asdict(figure) for name, figure in found.items()},
    }
    earlier = series_of(history, entry)
    compared = changes(entry, earlier)
    print(report(compared))
    if options.output is not None:
        write_text(options.output, "".join(json.dumps(one) + "\n" for one in [*read(options.output), entry]))
    worse = [name for name, change in compared.items() if change.regression]
    many = "s" * (len(worse) != 1)
    print(f"compared with {len(earlier[-_LAST:])} earlier results on this machine: {len(worse)} regression{many}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
