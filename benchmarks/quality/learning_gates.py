"""What a learned placer would be worth: starts of the search of which accuracy gain how much.

    python -m benchmarks.quality.learning_gates --smoke
    python -m benchmarks.quality.learning_gates [--models MODEL …] [--output FILE.json]     # and FILE.md

Four gates, each beside the search that places by default, without any start but its own:

- Noisy oracle: the best known placement with 0 to 20% of its groups redrawn, as a start. All searches try the same
  number of moves, about a tenth of a second. The default effort beside them ends by itself, after many times as many.
- The shipped policy: its first choice as a start, and the share of groups for which it names the best known device.
- Mt-KaHyPar: its partitions as starts on 8 and 16 equal devices (`pip install mtkahypar`).
- Sizes: of dynamic models, one placement for each size beside one for all.

The problems of the first two are those of `benchmarks.quality.anytime` with three devices and more and with memory
limits or missing operations, on models that no training saw. What a start gains is the mean over problems of
log(score of the search alone / score from the start).
"""

from __future__ import annotations

import argparse
import sys
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
"""Shares of the groups of the best known placement whose device is drawn anew."""

SIZE = 300
"""Operations of the problems, about."""

TURNS = 4
"""Problems of each model, hard ones or not."""

SEEDS = 3
"""Of each start: other noise, and another search."""

MOVES = 200_000
"""That each search from a start tries: about a tenth of a second on problems of some hundred groups."""

BEST_SECONDS = 8.0
"""Processor time of the search for the best known placement."""

FEWEST_DEVICES = 3

PARTITIONED_DEVICES = (8, 16)

SIZES = (1, 4, 16)
"""Batches of the dynamic models; each is asked for equally often."""

DYNAMIC = (
    "squeezenet", "resnet-small", "mobilenet-v2-small", "inception-v3-small", "unet-small",
    "convnext-small", "vit-small", "bert-dynamic", "swin-small", "yolo-like-small",
)  # fmt: skip
"""Models that become dynamic: the first dimension of each input is the batch."""

NOTHING = 4.0
"""Score / best known where a search found nothing feasible, and the most that is counted."""

SMOKE_MODELS, SMOKE_SECONDS = 2, 0.2


def hard_problems(folder: Path, models: Sequence[str], turns: int) -> Iterator[tuple[str, PlacementProblem]]:
    """Problems of at least three devices with memory limits or missing operations, and their names.

    Args:
        folder: of the models' graphs (`research.corpus.make`).
        models: that have a problem in each turn; those that are not hard are left out.
        turns: how often.
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
    """The placement with a share of its groups on random other devices that support them, uint8 [groups].

    Args:
        problem: of the placement.
        placement: uint8 [groups].
        share: of the groups, at random; a group that one device alone supports stays.
        generator: of what is drawn.
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
    """Share of groups with the same device in both; equal devices are renamed so that most agree.

    Args:
        problem: whose `kinds` say which devices are equal.
        placement: uint8 [groups].
        best: uint8 [groups].
    """
    devices = len(problem.devices)
    together = np.zeros((devices, devices))
    np.add.at(together, (placement, best), 1.0)
    together[problem.kinds[:, None] != problem.kinds[None]] = -problem.group_count
    rows, columns = linear_sum_assignment(together, maximize=True)
    return float(together[rows, columns].sum() / problem.group_count)


def searched(problem: PlacementProblem, seed: int, start: NDArray[np.uint8] | None = None) -> float:
    """The score after `MOVES` moves, µs, inf where nothing is feasible.

    Args:
        problem: that is placed.
        seed: of the search.
        start: beside the contiguous partition that the default search starts from, uint8 [groups]. Local search from
            it, repaired where HETERO does not run it, has the first half of the moves; the search ignores poor starts.
    """
    starts, moves = Contiguous().place(problem)[None], MOVES
    if start is not None:
        moves //= 2
        refined, _ = refine(problem, problem.legalized(start), max_moves=moves, seed=seed)
        starts = np.concatenate([starts, refined])
    return search(problem, max_moves=moves, seed=seed, starts=starts).score


def gate_starts(problem: PlacementProblem, best_seconds: float) -> dict[str, Any]:
    """Scores of a hard problem by start, µs, [seeds] each, and the policy's agreement with the best known placement."""
    starts = Contiguous().place(problem)
    long = search(problem, seconds=best_seconds, seed=99, starts=starts, processor_time=True)
    default = search_until_agreed(problem, threads=1)
    best = min((long, default), key=lambda found: found.score)
    scores: dict[str, list[float]] = {"default effort": [default.score]}
    first = first_choice(HSDAGPlacer(), problem)
    for seed in range(SEEDS):
        scores.setdefault("search alone", []).append(searched(problem, seed))
        for share in REDRAWN:
            noisy = redrawn(problem, best.placement, share, np.random.default_rng([seed, round(1e3 * share)]))
            scores.setdefault(f"oracle, {share:.0%} redrawn", []).append(searched(problem, seed, noisy))
        scores.setdefault("shipped policy", []).append(searched(problem, seed, first))
    contiguous = agreement(problem, starts, best.placement)
    return {
        "best": best.score,
        "scores": scores,
        "agreement": {"shipped policy": agreement(problem, first, best.placement), "contiguous partition": contiguous},
    }


def gate_partitions(template: PlacementProblem, devices: int) -> dict[str, Any]:
    """Scores on so many equal CPU devices, µs, [seeds] by start: none, and the best partition of Mt-KaHyPar."""
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
    """Mean latency over `SIZES` of one placement for all, and of one for each, µs; None where the batch is fixed."""
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
    except Exception as error:  # reshape and inference of shapes raise what they like
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
    """The shape with another first dimension."""
    changed = ov.PartialShape(shape)
    changed[0] = ov.Dimension(batch) if batch > 0 else ov.Dimension()
    return changed


def ratios(cells: Sequence[Mapping[str, Any]], row: str) -> NDArray[np.float64]:
    """Score / best known, [problems, seeds]."""
    found = np.array([np.array(cell["scores"][row]) / cell["best"] for cell in cells])
    return np.minimum(np.where(np.isfinite(found), found, NOTHING), NOTHING)


def starts_table(cells: Sequence[Mapping[str, Any]]) -> str:
    """How far searches are behind the best known, and what a start gains over none."""
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
    """The tables of all gates, by what is said above each."""
    shown = {}
    hard = [cell for cell in result["hard"].values() if cell["best"] < np.inf]
    if hard:
        agrees = np.median([cell["agreement"]["contiguous partition"] for cell in hard])
        partition = f"the contiguous partition has {agrees:.0%} of the groups as in the best"
        shown[f"Starts on {len(hard)} hard problems, equal moves ({partition}):"] = starts_table(hard)
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
