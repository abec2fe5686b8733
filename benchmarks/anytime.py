"""Quality of search as a function of time, on large problems of families that nothing was tuned on.

A problem is the graph of a model with its layers repeated (ov_hsdag.training.deepen) on devices, costs, missing
operations and memory limits that are drawn from a seed. Rivals, judged by the simulator, in wall time of one thread on
an idle machine:

- multilevel: `ov_hsdag.placers.multilevel`, edges rated by the time of their transfer;
- random edges: the same with random ratings, which tells what the ratings are worth;
- before: what placing did without it and without a policy: minimum cut, contiguous partitions, HETERO's rule, and local
  search from all of them (`ov_hsdag.placers.refine`) for the time that is left.

Prints, for each size, the geometric mean over problems of score / best known at each time (4 at most, and where a rival
has nothing feasible yet), the share of problems in which multilevel is better or as good, and the integral of log(score
/ best known) over log(time), with a confidence interval from resampling families.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from ov_hsdag import _native
from ov_hsdag.placers.contiguous import Contiguous
from ov_hsdag.placers.mincut import MinCut
from ov_hsdag.placers.multilevel import search
from ov_hsdag.placers.refine import refine
from ov_hsdag.placers.single import simple_placers
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.training import corpus
from ov_hsdag.training.deepen import deepen
from ov_hsdag.utils.files import write_json

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
_DEVICES = (2, 3, 4, 8)
_NOTHING = 4.0  # score / best known of a rival without a feasible placement, and the most that is counted
_DRAWS = 200


@dataclass(frozen=True, eq=False)
class Cell:
    """A problem, and what it is called."""

    family: str
    name: str
    problem: PlacementProblem


def cells(folder: Path, models: list[str], size: int, seeds: int) -> list[Cell]:
    """Problems of about `size` operations that have a feasible placement, as far as is known, and one for each seed."""
    found = []
    for number, model in enumerate(models):
        (path,) = folder.glob(f"*/{model}.npz")
        template = deepen(PlacementProblem.load(path), size)
        for seed in range(seeds):
            devices = _DEVICES[(number + seed) % len(_DEVICES)]
            generator = np.random.default_rng([size, devices, seed, zlib.crc32(model.encode())])
            for _ in range(_DRAWS):
                problem = corpus.draw_problem(template, generator, devices)
                if not corpus.placeable(problem):
                    continue
                limits = problem.memory_bytes
                weights = problem.group_held.min(axis=1).sum()
                if (limits >= 0).all() and weights > 0.8 * limits.sum():
                    continue
                name = f"{model} | {devices} devices | {problem.objective} | {seed}"
                found.append(Cell(path.parent.name, name, problem))
                break
    return found


Curve = list[tuple[float, float]]
"""When a better placement was found, s, and its score, µs."""


def multilevel(problem: PlacementProblem, seconds: float, rating: NDArray[np.float64] | None) -> Curve:
    """The search's progress, with the time that the native search takes to be made."""
    begin = time.perf_counter()
    _native.Multilevel(problem.native, problem.chains)
    made = time.perf_counter() - begin
    found = search(problem, seconds=seconds, rating=rating, seed=1)
    return [(made + ms / 1e3, score) for ms, score in found.progress.tolist()]


def before(problem: PlacementProblem, seconds: float) -> Curve:
    """Placers one after the other, and local search for the rest of each time."""
    curve: Curve = []
    starts = []
    begin = time.perf_counter()
    for placer in (*simple_placers(problem), Contiguous(), MinCut()):
        placement = placer.place(problem)
        if problem.evaluate(placement).broken[0]:
            placement = problem.repair(placement)
        starts.append(placement)
        curve.append((time.perf_counter() - begin, float(problem.scores(placement)[0])))
        if time.perf_counter() - begin > seconds:
            return curve
    used = time.perf_counter() - begin
    for limit in TIMES:
        if not used < limit <= seconds:
            continue
        again = time.perf_counter()
        _, scores = refine(problem, np.stack(starts), max_moves=0, budget_ms=1e3 * (limit - used))
        curve.append((used + time.perf_counter() - again, float(scores.min())))
        long = refine(problem, np.stack(starts), max_moves=10**12, budget_ms=1e3 * (limit - used))[1].min()
        curve.append((limit, float(long)))
    return curve


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
    parser.add_argument("--seconds", type=float, default=1.0, help="that each rival has for a problem")
    parser.add_argument("--seeds", type=int, default=1, help="problems of each model and size")
    parser.add_argument("--tuned-on", action="store_true", help="the models that constants were chosen on")
    parser.add_argument("--corpus", type=Path, help="folder of graphs, made where it lacks one")
    parser.add_argument("--output", type=Path, help="JSON file of all curves")
    arguments = parser.parse_args()
    models = sorted(TUNED_ON if arguments.tuned_on else HELD_OUT)
    times = [t for t in TIMES if t <= arguments.seconds]
    records: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.corpus or Path(temporary)
        corpus.make(folder, models, report=lambda text: print(text, file=sys.stderr))
        for size in arguments.sizes:
            records += compare(cells(folder, models, size, arguments.seeds), size, times, arguments.seconds)
            if arguments.output:
                write_json(arguments.output, {"times": times, "problems": records})


def compare(problems: list[Cell], size: int, times: list[float], seconds: float) -> list[dict[str, Any]]:
    """Runs all rivals on all problems of a size and prints the table."""
    curves: dict[str, list[Curve]] = {"multilevel": [], "random edges": [], "before": []}
    for cell in problems:
        problem = cell.problem
        _ = problem.native, problem.chains, problem.tensors, problem.coarse
        rating = np.random.default_rng(0).random(len(problem.tensors))
        curves["multilevel"].append(multilevel(problem, seconds, None))
        curves["random edges"].append(multilevel(problem, seconds, rating))
        curves["before"].append(before(problem, seconds))
        print(size, cell.name, *(f"{name} {at(all_[-1], seconds):.6g}" for name, all_ in curves.items()), flush=True)
    best = [min(at(all_[i], np.inf) for all_ in curves.values()) for i in range(len(problems))]
    kept = [i for i, known in enumerate(best) if np.isfinite(known)]
    families = [problems[i].family for i in kept]
    values = {name: ratios([all_[i] for i in kept], [best[i] for i in kept], times) for name, all_ in curves.items()}
    table = Table(title=f"{size} operations, {len(kept)} problems ({len(problems) - len(kept)} without a placement)")
    table.add_column("rival")
    for t in times:
        table.add_column(f"{t * 1e3:g} ms", justify="right")
    table.add_column("integral", justify="right")
    for name, value in values.items():
        means = np.exp(np.log(value).mean(axis=0))
        table.add_row(name, *(f"{mean:.4f}" for mean in means), f"{integral(value, times).mean():.4f}")
    as_good = (values["multilevel"] <= values["before"] * 1.001).mean(axis=0)
    table.add_row("as good as before", *(f"{share:.0%}" for share in as_good), "")
    Console(width=110).print(table)
    difference = integral(values["multilevel"], times) - integral(values["before"], times)
    low, high = interval(difference, families)
    print(f"integral, multilevel - before: {difference.mean():.4f} ({low:.4f} to {high:.4f})\n", flush=True)
    return [
        {"size": size, "name": cell.name, "family": cell.family, "curves": {n: all_[i] for n, all_ in curves.items()}}
        for i, cell in enumerate(problems)
    ]


if __name__ == "__main__":
    main()
