"""Quality of search as a function of processor time, on large problems of families that nothing was tuned on.

A problem is the graph of a model with its layers repeated (research.deepen) on 2, 3, 4 or 8 devices, one of
them of a kind that nothing was trained or tuned on, for both objectives, with and without memory limits and missing
operations, all drawn from a seed. The search (`ov_hsdag.placers.multilevel`) has one thread and is judged by the
simulator. Time is processor time of the process, so that machines that others use as well can compare; it includes
everything after the problem has been read.

To compare two versions, run each with a --label of its own and the same --output: the file holds the curves of all, and
the best known score of a problem is the best of any curve.

Prints, for each size, the geometric mean over problems of score / best known at each time (4 at most, and where nothing
feasible was found yet), and the integral of log(score / best known) over log(time), with confidence intervals from
resampling families of its difference to the first label's.
"""

from __future__ import annotations

import argparse
import json
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import harness
from benchmarks.common.harness import Templates
from benchmarks.common.tables import markdown
from benchmarks.common.workers import start
from ov_hsdag import _native
from ov_hsdag.placers.multilevel import search
from ov_hsdag.problem.problem import OBJECTIVES, PlacementProblem
from ov_hsdag.storage.files import write_json
from ov_hsdag.training import corpus
from research.deepen import deepen

# Constants of the search were chosen on the first; figures that are published are of the second.
TUNED_ON = {
    "bert-base", "convnext-tiny", "resnet50", "mixtral-small", "qwen2-small", "gpt-neox-small", "vit-base",
    "mobilevit-s", "whisper-encoder-base", "densenet121", "mamba-small", "diffusion-unet-small",
}  # fmt: skip
HELD_OUT = {
    "llama-stateful", "gemma2-small", "phi3-small", "swin-tiny", "unet-small", "segformer-b0", "t5-encoder-base",
    "clip-small", "wav2vec2-base", "mistral-small", "bloom-small", "mixture-of-experts-small", "inception-v2",
    "dpt-small", "yolo-like-small",
}  # fmt: skip

TIMES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
# Of the problems. Another one draws others.
SEED = 20261123
_DEVICES = (2, 3, 4, 8)
_NOTHING = 4.0  # score / best known where there is no feasible placement, and the most that is counted
_DRAWS = 400


@dataclass(frozen=True, eq=False)
class Cell:
    """A problem, and what it is called."""

    family: str
    name: str
    size: int
    problem: PlacementProblem

    def record(self) -> dict[str, Any]:
        """What tells problems apart in tables."""
        problem = self.problem
        best_single = problem.scores(problem.singles).min()
        return {
            "size": self.size,
            "name": self.name,
            "family": self.family,
            "devices": len(problem.devices),
            "objective": problem.objective,
            "limited": limited(problem),
            "lacking": lacking(problem),
            "groups": problem.group_count,
            "single": float(best_single),
        }


def limited(problem: PlacementProblem) -> bool:
    """Whether a device's memory is too small for all of the model's weights."""
    limits = problem.memory_bytes
    return bool(((limits >= 0) & (problem.group_held.sum(axis=0) > limits)).any())


def lacking(problem: PlacementProblem) -> bool:
    """Whether a device does not run all operations."""
    return not bool(problem.group_supported.all())


@dataclass(frozen=True)
class Draw:
    """A problem that is to be drawn: devices, objective, limits and missing operations follow from its number."""

    model: str  # whose graph it has
    size: int  # operations, about
    turn: int  # number of the problem of that model
    number: int  # of all problems; all eight kinds occur equally often with each number of devices
    seed: int = SEED  # of everything that is drawn

    @property
    def devices(self) -> int:
        """How many."""
        return _DEVICES[self._combination % len(_DEVICES)]

    @property
    def name(self) -> str:
        """In tables, with the size."""
        objective, limits, lacks = self._wanted
        kinds = f"{objective}{', limited' * limits}{', lacking' * lacks}"
        return f"{self.model} | {self.devices} devices | {kinds} | {self.turn}"

    def cell(self, templates: Templates) -> Cell | None:
        """The problem; None where none of many draws is of its kind."""
        template = deepen(templates.of[self.model], self.size)
        entropy = [self.seed, self.size, self.devices, self.turn, zlib.crc32(self.model.encode())]
        generator = np.random.default_rng(entropy)
        for _ in range(_DRAWS):
            problem = corpus.draw_problem(template, generator, self.devices, held_out=True)
            limits = problem.memory_bytes
            found = (problem.objective, limited(problem), lacking(problem))
            if not corpus.placeable(problem) or found != self._wanted:
                continue
            if (limits >= 0).all() and problem.group_held.min(axis=1).sum() > 0.8 * limits.sum():
                continue
            return Cell(templates.families[self.model], self.name, self.size, problem)
        return None

    @property
    def _combination(self) -> int:
        return (13 * self.number + 5) % (8 * len(_DEVICES))

    @property
    def _wanted(self) -> tuple[str, bool, bool]:
        """Objective, whether memory is limited, whether a device lacks operations."""
        kind = self._combination // len(_DEVICES)
        return OBJECTIVES[kind % 2], kind // 2 % 2 == 1, kind // 4 == 1


def draws(models: Sequence[str], size: int, turns: Iterable[int], seed: int = SEED) -> list[Draw]:
    """Problems of about `size` operations, for each of the turns one of each model."""
    return [
        Draw(model, size, turn, turn * len(models) + number, seed)
        for turn in turns
        for number, model in enumerate(models)
    ]


Curve = list[tuple[float, float]]
"""When a better placement was found, s, and its score, µs."""


def searched(problem: PlacementProblem, seconds: float, seed: int = 1) -> Curve:
    """The search's progress, with the time that native objects take to be made."""
    begin = time.process_time()
    _native.SearchSpace(problem.native, problem.chains)
    made = time.process_time() - begin
    found = search(problem, seconds=seconds, seed=seed, processor_time=True)
    return [(made + ms / 1e3, score) for ms, score in found.progress.tolist()]


def at(curve: Curve, seconds: float) -> float:
    """The best score up to then, inf where there is none."""
    return min((score for moment, score in curve if moment <= seconds), default=np.inf)


def ratios(curves: list[Curve], best: list[float], times: list[float]) -> NDArray[np.float64]:
    """Score / best known, [problems, times]."""
    values = np.array([[at(curve, t) / known for t in times] for curve, known in zip(curves, best, strict=True)])
    return np.minimum(np.where(np.isfinite(values), values, _NOTHING), _NOTHING)


def integral(values: NDArray[np.float64], times: list[float]) -> NDArray[np.float64]:
    """Mean of log(score / best known) over log(time), [problems]."""
    log = np.log(values)
    widths = np.diff(np.log(times))
    return ((log[:, :-1] + log[:, 1:]) / 2 * widths).sum(axis=1) / widths.sum()


def interval(difference: NDArray[np.float64], families: list[str]) -> tuple[float, float]:
    """95% confidence interval of the mean, families resampled."""
    generator = np.random.default_rng(0)
    groups = [difference[np.array(families) == family] for family in sorted(set(families))]
    means = [
        np.concatenate([groups[k] for k in generator.integers(len(groups), size=len(groups))]).mean()
        for _ in range(2000)
    ]
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def main() -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[300, 1000, 5000, 20000])
    parser.add_argument("--seconds", type=float, default=1.0, help="of processor time for each problem")
    parser.add_argument("--seeds", type=int, default=1, help="problems of each model and size")
    parser.add_argument("--tuned-on", action="store_true", help="the models that constants were chosen on")
    parser.add_argument("--label", default="multilevel", help="of the curves in the file, such as a version")
    parser.add_argument("--corpus", type=Path, help="folder of graphs, made where it lacks one")
    parser.add_argument("--output", type=Path, help="JSON file of all curves; what it has is not run again")
    parser.add_argument("--report", type=Path, nargs="+", help="prints the tables of such files and runs nothing")
    arguments = parser.parse_args()
    if arguments.report:
        report([record for path in arguments.report for record in json.loads(path.read_text())["problems"]])
        return
    models = sorted(TUNED_ON if arguments.tuned_on else HELD_OUT)
    records: dict[tuple[int, str], dict[str, Any]] = {}
    if arguments.output and arguments.output.exists():
        found = json.loads(arguments.output.read_text())["problems"]
        records = {(record["size"], record["name"]): record for record in found}
    wanted = []
    for draw in (one for size in arguments.sizes for one in draws(models, size, range(arguments.seeds))):
        if arguments.label not in records.get((draw.size, draw.name), {}).get("curves", {}):
            wanted.append(draw)
    templates = harness.templates_of(models, arguments.corpus)
    for draw in wanted:
        record = run(templates, arguments.seconds, draw)
        if record is None:
            continue
        curve = record.pop("curve")
        records.setdefault((draw.size, draw.name), {**record, "curves": {}})["curves"][arguments.label] = curve
        if arguments.output:
            write_json(arguments.output, {"seed": SEED, "problems": list(records.values())})
        print(draw.size, draw.name, f"{at(curve, np.inf):.6g}", flush=True)
    report(list(records.values()))


def run(templates: Templates, seconds: float, draw: Draw) -> dict[str, Any] | None:
    """The record of a problem with the search's curve, by processor seconds; None where there is no such problem."""
    cell = draw.cell(templates)
    if cell is None:
        return None
    problem = cell.problem
    _ = problem.native, problem.chains, problem.tensors, problem.coarse
    return cell.record() | {"seconds": seconds, "curve": shortened(searched(problem, seconds))}


def shortened(curve: Curve) -> Curve:
    """The improvements alone."""
    kept: Curve = []
    for moment, score in sorted(curve):
        if np.isfinite(score) and (not kept or score < kept[-1][1]):
            kept.append((round(moment, 5), score))
    return kept


def report(records: list[dict[str, Any]]) -> None:
    """Prints the tables of all sizes."""
    for size in sorted({record["size"] for record in records}):
        of_size = [record for record in records if record["size"] == size]
        times = [t for t in TIMES if t <= min(record["seconds"] for record in of_size)]
        table_of(f"{size} operations", of_size, times)
        # Where one device is not the answer.
        table_of(f"{size} operations, splits", [r for r in of_size if best_known(r) < 0.98 * r["single"]], times)


def best_known(record: dict[str, Any]) -> float:
    """The best score of all curves at any time."""
    return min([at(curve, np.inf) for curve in record["curves"].values()] + [record.get("best", np.inf)])


def table_of(title: str, records: list[dict[str, Any]], times: list[float]) -> None:
    """Prints the table of some problems, and the differences to the first label."""
    kept = [record for record in records if np.isfinite(best_known(record))]
    if not kept:
        return
    best = [best_known(record) for record in kept]
    families = [record["family"] for record in kept]
    names = [name for name in kept[0]["curves"] if all(name in record["curves"] for record in kept)]
    values = {name: ratios([record["curves"][name] for record in kept], best, times) for name in names}
    print(f"\n{title}, {len(kept)} problems ({len(records) - len(kept)} without a placement)\n")
    first = integral(values[names[0]], times)
    rows = []
    for name, value in values.items():
        means = np.exp(np.log(value).mean(axis=0))
        difference = integral(value, times) - first
        low, high = interval(difference, families)
        span = "" if name == names[0] else f"{difference.mean():+.4f} ({low:+.4f} to {high:+.4f})"
        rows.append([name, *(f"{mean:.4f}" for mean in means), f"{integral(value, times).mean():.4f}", span])
    print(markdown(["", *(f"{t * 1e3:g} ms" for t in times), "integral", f"less {names[0]} (95%)"], rows))


if __name__ == "__main__":
    start(__spec__)
