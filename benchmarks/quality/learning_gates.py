"""Measures what a learned placer could gain: how much the search gains from starts of different accuracy.

    python -m benchmarks.quality.learning_gates --smoke
    python -m benchmarks.quality.learning_gates [--models MODEL …] [--output FILE.json]     # and FILE.md

Four experiments ("gates") compare starts with the default search, which has only its own start:

- Noisy oracle: the start is the best known placement after 0 to 20% of its groups were redrawn. All searches try the
  same number of moves, which take about a tenth of a second. The default effort, which ends by itself, tries more.
- The shipped policy: the start is its first choice. Also printed is the share of groups for which it has the device of
  the best known placement.
- Mt-KaHyPar: the starts are its partitions, on 8 and 16 equal devices (`pip install mtkahypar`).
- Sizes: for dynamic models, one placement for each size is compared with one for all sizes.

The problems of the first two are those of `benchmarks.quality.anytime` with at least three devices and with memory
limits or missing operations, on models that no training saw. The gain of a start is the mean over problems of
log(score of the search without it / score of the search with it).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from benchmarks.common.machine import about
from benchmarks.common.output import add_output, folder_or_temporary
from benchmarks.common.tables import markdown, write
from benchmarks.common.workers import start
from benchmarks.quality.anytime import HELD_OUT, draws
from benchmarks.quality.partitioners import installed, mt_kahypar
from ov_hsdag.model.workload import Phase
from ov_hsdag.placers.contiguous import Contiguous
from ov_hsdag.placers.multilevel import search, search_until_agreed
from ov_hsdag.placers.refine import refine
from ov_hsdag.policy.placer import HSDAGPlacer
from ov_hsdag.problem.pricing import Session
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.storage.files import write_json
from ov_hsdag.training.corpus import assemble
from research.baselines.metis import Vertices, permuted
from research.corpus import device_set, make
from research.first_choice import first_choice
from research.zoo.catalog import ZOO

REDRAWN = (0.0, 0.05, 0.1, 0.2)
"""Shares of the groups of the best known placement whose device is drawn again."""

SIZE = 300
"""Approximate number of operations of the problems."""

TURNS = 4
"""Number of problems of each model, including those that are not hard and left out."""

SEEDS = 3
"""Number of seeds of each start; a seed decides the noise and the search."""

MOVES = 1_000_000
"""Number of moves of each search: about a tenth of a second on problems of some hundred groups (the table says it)."""

BEST_SECONDS = 8.0
"""Processor time of the search for the best known placement."""

FEWEST_DEVICES = 3

PARTITIONED_DEVICES = (8, 16)

SIZES = (1, 4, 16)
"""Batches of the dynamic models, which count equally."""

DYNAMIC = (
    "squeezenet", "resnet-small", "mobilenet-v2-small", "inception-v3-small", "unet-small",
    "convnext-small", "vit-small", "bert-dynamic", "swin-small", "yolo-like-small",
)  # fmt: skip
"""Models that become dynamic: the first dimension of each input is the batch."""

NOTHING = 4.0
"""Score / best known of a search that found nothing feasible, and the largest value that counts."""

SMOKE_MODELS, SMOKE_SECONDS = 2, 0.2


def hard_problems(folder: Path, models: Sequence[str], turns: int) -> Iterator[tuple[str, PlacementProblem]]:
    """Yields names and problems of at least three devices with memory limits or missing operations.

    Args:
        folder: folder of the models' graphs (`research.corpus.make`).
        models: names of the models; each has a problem in each turn, which is left out if it is not hard.
        turns: number of turns.
    """
    for draw in draws(models, SIZE, range(turns)):
        _, limits, lacks = draw.kind
        if draw.devices < FEWEST_DEVICES or not (limits or lacks):
            continue
        (path,) = folder.glob(f"*/{draw.model}.npz")
        problem = draw.problem(PlacementProblem.load(path))
        if problem is not None:
            yield draw.name, problem


def redrawn(
    problem: PlacementProblem, placement: NDArray[np.uint8], share: float, generator: np.random.Generator
) -> NDArray[np.uint8]:
    """Moves a share of the groups to random other devices that support them.

    Args:
        problem: the problem.
        placement: the placement, uint8 [groups]; it is not changed.
        share: share of the groups, which are drawn; a drawn group that only one device supports stays.
        generator: draws groups and devices.

    Returns:
        The changed placement, uint8 [groups].
    """
    result = placement.copy()
    count = round(share * problem.group_count)
    for group in generator.choice(problem.group_count, count, replace=False):
        others = np.flatnonzero(problem.group_supported[group])
        others = others[others != placement[group]]
        if len(others):
            result[group] = generator.choice(others)
    return result


def agreement(problem: PlacementProblem, placement: NDArray[np.uint8], best: NDArray[np.uint8]) -> float:
    """The share of groups that have the same device in two placements.

    Devices of one kind are exchanged so that as many groups as possible agree.

    Args:
        problem: the problem; its `kinds` say which devices are equal.
        placement: a placement, uint8 [groups].
        best: the other placement, uint8 [groups].
    """
    devices = len(problem.devices)
    together = np.zeros((devices, devices))
    np.add.at(together, (placement, best), 1.0)
    together[problem.kinds[:, None] != problem.kinds[None]] = -problem.group_count
    rows, columns = linear_sum_assignment(together, maximize=True)
    return float(together[rows, columns].sum() / problem.group_count)


def searched(problem: PlacementProblem, seed: int, start: NDArray[np.uint8] | None = None) -> float:
    """Searches with `MOVES` moves from contiguous partitions, as the default search, and perhaps from another start.

    Args:
        problem: the problem.
        seed: seed of the search.
        start: another start, uint8 [groups]. It is made legal and improved by local search with half of the moves, as
            the search ignores poor starts. None for none.

    Returns:
        The best score, µs; inf if nothing is feasible.
    """
    starts, moves = Contiguous().place(problem)[None], MOVES
    if start is not None:
        moves //= 2
        refined, _ = refine(problem, problem.legalized(start), max_moves=moves, seed=seed)
        starts = np.concatenate([starts, refined])
    return search(problem, max_moves=moves, seed=seed, starts=starts).score


def gate_starts(problem: PlacementProblem, best_seconds: float) -> dict[str, Any]:
    """Searches a hard problem from the starts of the first two gates.

    Args:
        problem: the problem.
        best_seconds: processor time of the search for the best known placement.

    Returns:
        `best`, the best known score, µs; `scores` by start, µs, [seeds] each; `seconds`, processor time of the search
        without another start, [seeds]; and `agreement` with the best known placement, of the policy's first choice and
        of the contiguous partition.
    """
    starts = Contiguous().place(problem)
    long = search(problem, seconds=best_seconds, seed=99, starts=starts, processor_time=True)
    default = search_until_agreed(problem, threads=1)
    best = min((long, default), key=lambda found: found.score)
    scores: dict[str, list[float]] = {"default effort": [default.score]}
    first = first_choice(HSDAGPlacer(), problem)
    seconds = []
    for seed in range(SEEDS):
        begun = time.process_time()
        scores.setdefault("search alone", []).append(searched(problem, seed))
        seconds.append(time.process_time() - begun)
        for share in REDRAWN:
            noisy = redrawn(problem, best.placement, share, np.random.default_rng([seed, round(1e3 * share)]))
            scores.setdefault(f"oracle, {share:.0%} redrawn", []).append(searched(problem, seed, noisy))
        scores.setdefault("shipped policy", []).append(searched(problem, seed, first))
    contiguous = agreement(problem, starts, best.placement)
    return {
        "best": best.score,
        "scores": scores,
        "seconds": seconds,
        "agreement": {"shipped policy": agreement(problem, first, best.placement), "contiguous partition": contiguous},
    }


def gate_partitions(template: PlacementProblem, devices: int) -> dict[str, Any]:
    """Searches on equal CPU devices without another start, and from the best partition of Mt-KaHyPar.

    Args:
        template: the graph.
        devices: number of devices.

    Returns:
        `best`, the best score, µs, and `scores` by start, µs, [seeds] each.
    """
    names, profile = device_set(("cpu_core",) * devices)
    problem = assemble(template, names, profile, "throughput", np.full(devices, -1, np.int64))
    vertices = Vertices(problem)
    scores: dict[str, list[float]] = {"search alone": [], "Mt-KaHyPar": []}
    for seed in range(SEEDS):
        partition = mt_kahypar(vertices, seed + 1)
        placed = [
            problem.legalized(placement)
            for weights, share in vertices.targets()
            for placement in permuted(problem, partition(weights, share))
        ]
        start_at = min(placed, key=lambda placement: float(problem.scores(placement)[0]))
        scores["search alone"].append(searched(problem, seed))
        scores["Mt-KaHyPar"].append(searched(problem, seed, start_at))
    return {"best": min(min(row) for row in scores.values()), "scores": scores}


def gate_sizes(model: ov.Model, devices: Sequence[str]) -> dict[str, Any] | None:
    """Compares one placement for all batches of `SIZES` with one for each.

    Args:
        model: the model, which is reshaped.
        devices: names of built-in profiles.

    Returns:
        Mean latency over batches, µs: `for_all` and `for_each`; None if the model does not allow other batches.
    """
    try:
        model.reshape({port: _with_batch(port.partial_shape, -1) for port in model.inputs})
        batches = {
            size: {
                port.any_name: [d.max_length for d in _with_batch(port.partial_shape, size)] for port in model.inputs
            }
            for size in SIZES
        }
        phases = [Phase(str(size), shapes, 1.0) for size, shapes in batches.items()]
        names, profile = device_set(devices)
        session = Session.of(list(names), profile=profile)
        priced = session.price(session.analyse(model, phases=phases), "latency", phases=phases)
    except Exception as error:  # reshape and inference of shapes raise errors of many types
        print(f"left out: {type(error).__name__}: {str(error)[:100]}", file=sys.stderr)
        return None
    shared = search_until_agreed(priced.problem, threads=1).placement
    for_all, for_each = [], []
    for problem in priced.phases.values():
        placement = search_until_agreed(problem, threads=1).placement
        both = problem.scores(np.stack([shared, placement]))
        for_all.append(float(both[0]))
        for_each.append(float(both.min()))
    return {"for_all": float(np.mean(for_all)), "for_each": float(np.mean(for_each))}


def _with_batch(shape: ov.PartialShape, batch: int) -> ov.PartialShape:
    """The shape with another first dimension; a batch of -1 makes it dynamic."""
    changed = ov.PartialShape(shape)
    changed[0] = ov.Dimension(batch) if batch > 0 else ov.Dimension()
    return changed


def ratios(cells: Sequence[Mapping[str, Any]], row: str) -> NDArray[np.float64]:
    """Score / best known of a start, at most `NOTHING`, [problems, seeds]. row: name of the start."""
    found = np.array([np.array(cell["scores"][row]) / cell["best"] for cell in cells])
    return np.minimum(np.where(np.isfinite(found), found, NOTHING), NOTHING)


def starts_table(cells: Sequence[Mapping[str, Any]]) -> str:
    """The table of starts: agreement, distance from the best known, and gain over the search without a start."""
    alone = np.log(ratios(cells, "search alone")).mean(axis=1)
    rows = []
    for row in cells[0]["scores"]:
        behind = ratios(cells, row)
        gains = alone - np.log(behind).mean(axis=1)
        error = gains.std(ddof=1) / np.sqrt(len(gains)) if len(gains) > 1 else 0.0
        agrees = [cell["agreement"][row] for cell in cells if row in cell.get("agreement", {})]
        accuracy = f"{np.median(agrees):.0%}" if agrees else "–"
        mean, worst = np.exp(np.log(behind).mean()) - 1, behind.max() - 1
        rows.append([row, accuracy, f"{mean:.2%}", f"{worst:.1%}", f"{gains.mean():+.2%} ± {error:.2%}"])
    return markdown(
        ["start", "groups as in the best", "behind the best known", "worst", "gain over search alone"], rows
    )


def tables(result: Mapping[str, Any]) -> dict[str, str]:
    """The tables of all gates, by caption."""
    shown = {}
    hard = [cell for cell in result["hard"].values() if cell["best"] < np.inf]
    if hard:
        agrees = np.median([cell["agreement"]["contiguous partition"] for cell in hard])
        partition = f"the contiguous partition has {agrees:.0%} of the groups as in the best"
        seconds = np.median([cell["seconds"] for cell in hard])
        moves = f"{MOVES:,} moves each, which take {seconds:.2f} s of processor time in the median"
        shown[f"Starts on {len(hard)} hard problems, {moves} ({partition}):"] = starts_table(hard)
    for devices in PARTITIONED_DEVICES:
        cells = [cell for name, cell in result["partitions"].items() if name.endswith(f"| {devices}")]
        if cells:
            shown[f"Partitions as starts on {devices} equal devices, {len(cells)} models:"] = starts_table(cells)
    if result["sizes"]:
        gains = {name: cell["for_all"] / cell["for_each"] - 1 for name, cell in result["sizes"].items()}
        shown[f"One placement for each of the batches {SIZES} beside one for all, mean latency:"] = markdown(
            ["model", "gain"], [[name, f"{gain:.2%}"] for name, gain in gains.items()]
        )
    return shown


def main() -> int:
    """Runs the gates, prints their tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=HELD_OUT, metavar="MODEL", help="of the zoo, held out")
    parser.add_argument("--dynamic", nargs="*", default=DYNAMIC, metavar="MODEL", help="of the zoo, for the sizes")
    parser.add_argument("--turns", type=int, default=TURNS, help="problems of each model (default %(default)s)")
    parser.add_argument("--corpus", type=Path, metavar="DIR", help="folder that keeps the models' graphs")
    parser.add_argument("--best-seconds", type=float, default=BEST_SECONDS, help="(default %(default)s)")
    parser.add_argument("--smoke", action="store_true", help="two models, in a minute")
    add_output(parser, "a JSON file of all figures, and a table beside it")
    arguments = parser.parse_args()
    models, dynamic = list(arguments.models), list(arguments.dynamic)
    if arguments.smoke:
        models, dynamic = models[:SMOKE_MODELS], dynamic[:SMOKE_MODELS]
    seconds = SMOKE_SECONDS if arguments.smoke else arguments.best_seconds
    settings = {
        "models": len(models),
        "turns": arguments.turns,
        "size": SIZE,
        "moves": MOVES,
        "seeds": SEEDS,
        "best_seconds": seconds,
    }
    result: dict[str, Any] = {"about": about(), "settings": settings, "hard": {}, "partitions": {}, "sizes": {}}

    def record(gate: str, name: str, cell: dict[str, Any] | None) -> None:
        """Adds a cell to the result and writes it; does nothing for None."""
        if cell is None:
            return
        result[gate][name] = cell
        print(gate, name, file=sys.stderr, flush=True)
        if arguments.output is not None:
            write_json(arguments.output, result)

    with folder_or_temporary(arguments.corpus) as folder:
        make(folder, models, report=lambda text: print(text, file=sys.stderr))
        for name, problem in hard_problems(folder, models, arguments.turns):
            record("hard", name, gate_starts(problem, seconds))
        for model in models if "Mt-KaHyPar" in installed() else ():
            (path,) = folder.glob(f"*/{model}.npz")
            for devices in PARTITIONED_DEVICES:
                record("partitions", f"{model} | {devices}", gate_partitions(PlacementProblem.load(path), devices))
    for model in dynamic:
        record("sizes", model, gate_sizes(ZOO[model].build(), ("iris_xe", "npu_core_ultra", "core_ultra_7_155h")))
    write(arguments.output, result, tables(result))
    return 0


if __name__ == "__main__":
    start(__spec__)
