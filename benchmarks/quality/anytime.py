"""Measures the quality of search by processor time, compared with METIS and Mt-KaHyPar, on held-out families of models.

    python -m benchmarks.quality.anytime --smoke
    python -m benchmarks.quality.anytime [--sizes N …] [--seconds S] [--best-seconds S] [--output FILE.json]

A problem is the graph of a model with its layers repeated (research.deepen) on 2, 3, 4 or 8 devices, one of them of a
kind that nothing was trained or tuned on. Problems have both objectives, with and without memory limits and missing
operations, drawn from a seed. All methods have one thread, and the simulator scores their placements. They are: the
search; METIS and Mt-KaHyPar with repair and local search, if they are installed (partitioners.py); and the default
effort, a search that ends by itself. Time is processor time of the process, so that figures do not depend on other
programs; it includes everything after the problem has been read. The best known score is the best of all methods at any
time, and of a search of --best-seconds.

Printed for each class (size, devices, limits) is the mean of score / best known at each time; it counts as 4 at most,
and as 4 if nothing feasible was found yet.

The exit status is 1 if the default effort is more than 0.5% behind the best known in the mean of a class or 3% in a
problem, or if the search is behind a partitioner in the mean of a class, from 30 ms on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.machine import about
from benchmarks.common.output import add_output, folder_or_temporary
from benchmarks.common.tables import markdown, write
from benchmarks.common.workers import in_processes, start
from benchmarks.quality.partitioners import Curve, installed, partitioned
from ov_hsdag import _native
from ov_hsdag.placers.contiguous import Contiguous
from ov_hsdag.placers.multilevel import search, search_until_agreed
from ov_hsdag.problem.problem import OBJECTIVES, PlacementProblem
from ov_hsdag.storage.files import write_json
from ov_hsdag.training import corpus
from research.corpus import make
from research.deepen import deepen

HELD_OUT = (
    "llama-stateful", "gemma2-small", "phi3-small", "swin-tiny", "unet-small", "segformer-b0", "t5-encoder-base",
    "clip-small", "wav2vec2-base", "mistral-small", "bloom-small", "mixture-of-experts-small", "inception-v2",
    "dpt-small", "yolo-like-small",
)  # fmt: skip
"""Models of families that no constant of the search was chosen on."""

SMOKE = ("llama-stateful", "yolo-like-small")

TIMES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Times at which methods are compared, s."""

SEED = 20261123
"""Seed of the problems."""

DEVICES = (2, 3, 4, 8)

NOTHING = 4.0
"""Score / best known without a feasible placement, and the largest value that counts."""

DRAWS = 400
"""Largest number of draws until a problem is of its kind."""

LARGEST_SHARE = 0.8
"""Largest share of all memory that a model needs if every device has a limit: fuller ones may have no placement."""

SEARCH, DEFAULT = "search", "default effort"

FLOOR_MEAN, FLOOR_CELL = 0.005, 0.03
"""Largest distance of the default effort from the best known, as shares: in the mean of a class, and in a problem."""

FROM = 0.03
"""Time from which on the search must not be behind partitioners, s."""

ROUNDING = 1e-4
"""Means of a class that differ by less, as a share, are equal."""


@dataclass(frozen=True)
class Draw:
    """A problem to draw: its number determines devices, objective, limits and missing operations."""

    model: str  # name of the model whose graph it has
    size: int  # approximate number of operations
    turn: int  # number among the problems of that model
    number: int  # number among all problems; all eight kinds occur equally often with each number of devices

    @property
    def devices(self) -> int:
        """The number of devices."""
        return DEVICES[self._combination % len(DEVICES)]

    @property
    def kind(self) -> tuple[str, bool, bool]:
        """Objective, whether memory is limited, whether a device lacks operations."""
        kind = self._combination // len(DEVICES)
        return OBJECTIVES[kind % 2], kind // 2 % 2 == 1, kind // 4 == 1

    @property
    def _combination(self) -> int:
        """Number of the combination of kind and number of devices; consecutive problems differ in both."""
        return (13 * self.number + 5) % (8 * len(DEVICES))

    @property
    def name(self) -> str:
        """The name in tables; together with the size it is unique."""
        objective, limits, lacks = self.kind
        kinds = f"{objective}{', limited' * limits}{', lacking' * lacks}"
        return f"{self.model} | {self.devices} devices | {kinds} | {self.turn}"

    def problem(self, template: PlacementProblem) -> PlacementProblem | None:
        """Draws the problem on a template's graph; None if none of `DRAWS` draws is of its kind."""
        template = deepen(template, self.size)
        generator = np.random.default_rng([SEED, self.size, self.devices, self.turn, zlib.crc32(self.model.encode())])
        for _ in range(DRAWS):
            problem = corpus.draw_problem(template, generator, self.devices, held_out=True)
            limits = problem.memory_bytes
            if not corpus.placeable(problem) or (problem.objective, limited(problem), lacking(problem)) != self.kind:
                continue
            if (limits < 0).any() or problem.group_held.min(axis=1).sum() <= LARGEST_SHARE * limits.sum():
                return problem
        return None


def limited(problem: PlacementProblem) -> bool:
    """Whether a device's memory is too small for all of the model's weights."""
    limits = problem.memory_bytes
    return bool(((limits >= 0) & (problem.group_held.sum(axis=0) > limits)).any())


def lacking(problem: PlacementProblem) -> bool:
    """Whether a device does not run all operations."""
    return not bool(problem.group_supported.all())


def draws(models: Sequence[str], size: int, turns: Iterable[int]) -> list[Draw]:
    """Problems of about `size` operations: in each turn one of each model."""
    return [
        Draw(model, size, turn, turn * len(models) + number) for turn in turns for number, model in enumerate(models)
    ]


def searched(problem: PlacementProblem, seconds: float) -> Curve:
    """Runs the search on one thread. Returns its progress; times include that of making native objects.

    Args:
        problem: the problem.
        seconds: limit of processor time.
    """
    begin = time.process_time()
    _native.SearchSpace(problem.native, problem.chains)
    made = time.process_time() - begin
    found = search(problem, seconds=max(seconds - made, 1e-3), seed=1, processor_time=True)
    return [(made + ms / 1e3, score) for ms, score in found.progress.tolist()]


def by_default(problem: PlacementProblem) -> Curve:
    """Runs the search with the default effort. Returns one point: the time at its end, and its score."""
    begin = time.process_time()
    found = search_until_agreed(problem, threads=1)
    return [(time.process_time() - begin, found.score)]


def run(folder: Path, methods: Sequence[str], seconds: float, best_seconds: float, draw: Draw) -> dict[str, Any] | None:
    """Runs all methods on a problem.

    Args:
        folder: folder of the graphs (`research.corpus.make`).
        methods: `SEARCH`, `DEFAULT`, and names of partitioners.
        seconds: processor time of each method.
        best_seconds: processor time of the search for the best known score.
        draw: the problem.

    Returns:
        The record: size, name and kind of the problem, score of the long search (`best`, None without a feasible
        placement), and `curves` by method. None if there is no such problem.
    """
    (path,) = folder.glob(f"*/{draw.model}.npz")
    problem = draw.problem(PlacementProblem.load(path))
    if problem is None:
        return None
    _ = problem.native, problem.chains, problem.tensors, problem.coarse
    curves = {}
    for method in methods:
        if method == SEARCH:
            curves[method] = shortened(searched(problem, seconds))
        elif method == DEFAULT:
            curves[method] = shortened(by_default(problem))
        else:
            curves[method] = shortened(partitioned(problem, method, seconds))
    starts = Contiguous().place(problem)
    best = search(problem, seconds=best_seconds, seed=2, starts=starts, processor_time=True).score
    objective, limits, lacks = draw.kind
    return {
        "size": draw.size,
        "name": draw.name,
        "devices": draw.devices,
        "objective": objective,
        "limited": limits,
        "lacking": lacks,
        "groups": problem.group_count,
        "best": best if np.isfinite(best) else None,
        "curves": curves,
    }


def shortened(curve: Curve) -> Curve:
    """Removes the points of a curve that do not improve on earlier ones."""
    kept: Curve = []
    for moment, score in sorted(curve):
        if np.isfinite(score) and (not kept or score < kept[-1][1]):
            kept.append((round(moment, 5), score))
    return kept


def at(curve: Iterable[Sequence[float]], seconds: float) -> float:
    """The best score of a curve within some seconds; inf if there is none."""
    return min((score for moment, score in curve if moment <= seconds), default=np.inf)


def best_known(record: dict[str, Any]) -> float:
    """The best score of all methods at any time and of the long search; inf if there is none."""
    scores = [at(curve, np.inf) for curve in record["curves"].values()]
    return min(scores if record["best"] is None else [*scores, record["best"]])


def ratios(records: Sequence[dict[str, Any]], method: str, seconds: float) -> NDArray[np.float64]:
    """Score / best known of a method after some seconds, at most `NOTHING`, [problems]."""
    values = [at(record["curves"][method], seconds) / best_known(record) for record in records]
    return np.minimum(values, NOTHING)


def classes(records: Sequence[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yields names and records of the classes of problems; problems without a known placement are left out."""
    known = [record for record in records if np.isfinite(best_known(record))]
    for key, texts in {
        "size": {size: f"{size} operations" for size in sorted({record["size"] for record in known})},
        "devices": {count: f"{count} devices" for count in DEVICES},
        "limited": {False: "no limits", True: "limited memory"},
        "lacking": {False: "all operations everywhere", True: "a device lacks operations"},
    }.items():
        for value, text in texts.items():
            of_class = [record for record in known if record[key] == value]
            if of_class:
                yield text, of_class


def table(records: Sequence[dict[str, Any]], methods: Sequence[str], times: Sequence[float]) -> str:
    """The table: means of score / best known by class, method and time, and the worst at the end."""
    rows = []
    for text, of_class in classes(records):
        for method in methods:
            cells = [f"{ratios(of_class, method, seconds).mean():.4f}" for seconds in times]
            end = ratios(of_class, method, np.inf)
            label = f"{text} ({len(of_class)}): {method}"
            if method == DEFAULT:
                took = np.median([curve[-1][0] for one in of_class if (curve := one["curves"][method])])
                label, cells = f"{label}, {took:.2g} s in the median", [""] * len(times)
            rows.append([label, *cells, f"{end.mean():.4f}", f"{end.max():.4f}"])
    return markdown(["", *(f"{1e3 * t:g} ms" for t in times), "in the end", "worst"], rows)


def distances(records: Sequence[dict[str, Any]]) -> str:
    """Says how far the default effort is from the best known, over all problems with a known placement."""
    known = [record for record in records if np.isfinite(best_known(record))]
    behind = ratios(known, DEFAULT, np.inf) - 1
    return (
        f"Of {len(known)} problems with a known placement, the default effort is {behind.mean():.1%} behind the best"
        f" known in the mean, at most {FLOOR_MEAN:.1%} in {(behind <= FLOOR_MEAN).sum()}, and more than"
        f" {FLOOR_CELL:.0%} in {(behind > FLOOR_CELL).sum()}."
    )


def failures(records: Sequence[dict[str, Any]], methods: Sequence[str], times: Sequence[float]) -> list[str]:
    """Returns a line for each floor that is missed."""
    lines = []
    for text, of_class in classes(records):
        default = ratios(of_class, DEFAULT, np.inf)
        if default.mean() > 1 + FLOOR_MEAN or default.max() > 1 + FLOOR_CELL:
            lines.append(
                f"{text}: the default effort is {default.mean() - 1:.2%} behind, {default.max() - 1:.2%} worst"
            )
        for method in methods:
            for seconds in (t for t in times if t >= FROM and method not in (SEARCH, DEFAULT)):
                behind = ratios(of_class, SEARCH, seconds).mean() / ratios(of_class, method, seconds).mean() - 1
                if behind > ROUNDING:
                    lines.append(f"{text}: the search is {behind:.2%} behind {method} after {1e3 * seconds:g} ms")
    return lines


def main() -> int:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[300, 1000, 5000, 20000])
    parser.add_argument("--seconds", type=float, default=1.0, help="of processor time of each method and problem")
    parser.add_argument("--best-seconds", type=float, default=60.0, help="of the search for the best known score")
    parser.add_argument("--turns", type=int, default=1, help="problems of each model and size")
    parser.add_argument("--smoke", action="store_true", help="two small problems, a second each")
    parser.add_argument("--corpus", type=Path, help="folder of graphs, made where it lacks one")
    add_output(parser, "all curves as JSON, which is continued, and the table beside it")
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.sizes, arguments.seconds, arguments.best_seconds = [300], 0.3, 0.5
    models = SMOKE if arguments.smoke else HELD_OUT
    methods = [SEARCH, DEFAULT, *installed()]
    begin = time.perf_counter()
    settings = {"seed": SEED, "seconds": arguments.seconds, "best_seconds": arguments.best_seconds}
    records = _kept(arguments.output, settings, methods)
    present = {(record["size"], record["name"]) for record in records}
    wanted = [one for size in arguments.sizes for one in draws(models, size, range(arguments.turns))]
    with folder_or_temporary(arguments.corpus) as folder:
        make(folder, models, report=lambda line: print(line, file=sys.stderr))
        lacking_runs = [draw for draw in wanted if (draw.size, draw.name) not in present]
        function = partial(run, folder, methods, arguments.seconds, arguments.best_seconds)
        for draw, record in zip(lacking_runs, in_processes(function, lacking_runs), strict=True):
            print(draw.size, draw.name, "" if record else "no such problem", file=sys.stderr, flush=True)
            if record is None:
                continue
            records.append(record)
            if arguments.output:
                write_json(arguments.output, {"settings": settings, "methods": methods, "problems": records})
    result = {"about": {**about(), "wall_seconds": time.perf_counter() - begin}, "settings": settings}
    times = [seconds for seconds in TIMES if seconds <= arguments.seconds]
    without = sum(not np.isfinite(best_known(record)) for record in records)
    caption = (
        f"{distances(records)} Mean of score / best known; for {without} of {len(records)} problems no placement is"
        " known:"
    )
    write(arguments.output, result, {caption: table(records, methods, times)})
    lines = [] if arguments.smoke else failures(records, methods, times)
    print("\n".join(lines), file=sys.stderr)
    return int(bool(lines))


def _kept(path: Path | None, settings: dict[str, Any], methods: Sequence[str]) -> list[dict[str, Any]]:
    """Reads the records of an earlier run with the same settings and methods; none without a file."""
    if path is None or not path.exists():
        return []
    found = json.loads(path.read_text(encoding="utf-8"))
    same = found.get("settings") == settings and found.get("methods") == list(methods)
    return list(found["problems"]) if same else []


if __name__ == "__main__":
    start(__spec__)
