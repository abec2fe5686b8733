"""Measures how good placements are on models and devices that pretraining never saw.

A cell is a problem: a held-out architecture on a held-out set of devices, with an objective, and with or without memory
limits. Costs are those of built-in profiles, and scores those of the simulator. Gaps are geometric means of score /
best known, minus 1. The best known score is the best of all methods here and of a long search. Results of long searches
are in the file of --known, and are valid until the cost model changes; missing ones are searched, which takes long:

    python -m benchmarks.quality.placement_quality --models                         # lists what is held out
    python -m benchmarks.quality.placement_quality --search-only --output FILE      # completes the file of --known
    python -m benchmarks.quality.placement_quality --known FILE --output ALL.json   # and all cells, of all methods

The repository's file of long searches is benchmarks/results/placement_quality.json.

The exit status is 1 if policy + refinement, or the policy without refinement, misses its floor.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from benchmarks.common.output import add_output, folder_or_temporary, stored
from benchmarks.common.tables import markdown
from benchmarks.common.workers import start
from ov_hsdag.placers.contiguous import Contiguous
from ov_hsdag.placers.mincut import MinCut
from ov_hsdag.placers.multilevel import Multilevel, first_moves, search
from ov_hsdag.placers.refine import refine
from ov_hsdag.placers.single import HeteroDefault
from ov_hsdag.policy.bundle import DEFAULT, PolicyFolder
from ov_hsdag.policy.placer import HSDAGPlacer
from ov_hsdag.problem.problem import OBJECTIVES, PlacementProblem
from ov_hsdag.storage.files import write_json
from ov_hsdag.training import corpus
from ov_hsdag.utils.errors import UserError
from research.corpus import device_set, make
from research.first_choice import first_choice
from research.zoo.catalog import ZOO

SMOKE_ARGUMENTS = "--models wavenet-small --sets core+core --rounds 1"
"""The arguments with which this command is quickest, for `make figures-smoke`."""

RESULTS = Path(__file__).parents[1] / "results" / "placement_quality.json"

MODELS = (
    "inception-v3", "efficientnet-b0", "swin-tiny", "segformer-b0", "yolo-like-small", "hourglass-small",
    "deberta-v2-small", "t5-encoder-base", "gemma-small", "whisper-small", "wavenet-small", "dlrm",
)  # fmt: skip

# Memory limit of each device, as a share of what the model needs on one device, by the number of devices.
_LIMIT = {2: 0.7, 3: 0.45, 4: 0.35}

_LONGER = 20  # moves of a round of the long search, as a multiple of those of the first turn of the default search

# Floors of gaps: (geometric mean, worst cell), as shares.
FLOOR_EXACT, FLOOR_OTHER, FLOOR_POLICY = (0.01, 0.05), (0.03, 0.10), (0.10, np.inf)

EQUAL = 0.001  # scores that differ by less are equal

REFINED, ALONE = "policy + refinement", "policy alone (greedy)"


@dataclass(frozen=True, eq=False)
class Cell:
    """A problem with its name."""

    name: str  # model, devices, objective and "free" or "limited"
    problem: PlacementProblem
    limited: bool  # whether it has memory limits

    @property
    def exact(self) -> bool:
        """Whether a minimum cut is the optimum, apart from the costs of submodels."""
        return len(self.problem.devices) == 2 and self.problem.objective == "latency" and not self.limited

    @property
    def fingerprint(self) -> str:
        """A hash of the problem's arrays, by which stored results are recognised."""
        digest = hashlib.sha256()
        p = self.problem
        for array in (p.node_us, p.supported, p.groups, p.transfer_us, p.transfer_us_per_byte, p.submodel_us):
            digest.update(np.ascontiguousarray(array).tobytes())
        digest.update(p.memory_bytes.tobytes() + p.graph.output_bytes.tobytes())
        return digest.hexdigest()[:16]


def cells(folder: Path, models: Sequence[str], sets: Sequence[str]) -> Iterator[Cell]:
    """Yields the cells of models on sets of devices. Problems in which a group has no device are left out.

    Args:
        folder: folder of the models' graphs, which is completed.
        models: names of held-out models.
        sets: keys of `corpus.HELD_OUT_SETS`.

    Raises:
        UserError: a model is of a family that pretraining saw.
    """
    make(folder, models, report=lambda text: print(text, file=sys.stderr))
    for model in models:
        (path,) = folder.glob(f"*/{model}.npz")
        if path.parent.name not in corpus.HELD_OUT_FAMILIES:
            raise UserError(f"{model} is of a family that pretraining saw: {path.parent.name}")
        template = PlacementProblem.load(path)
        for name in sets:
            names, profile = device_set(corpus.HELD_OUT_SETS[name])
            for objective in OBJECTIVES:
                free = np.full(len(names), -1, np.int64)
                problem = corpus.assemble(template, names, profile, objective, free)
                if not corpus.placeable(problem):
                    continue
                yield Cell(f"{model} | {name} | {objective} | free", problem, False)
                needs = problem.evaluate(problem.singles).memory_bytes.max()
                limits = np.full(len(names), int(needs * _LIMIT[len(names)]), np.int64)
                yield Cell(f"{model} | {name} | {objective} | limited", replace(problem, memory_bytes=limits), True)


def long_search(problem: PlacementProblem, seed: int, rounds: int) -> tuple[NDArray[np.uint8], float]:
    """Searches in rounds, each from the best placement so far. It is deterministic.

    Args:
        problem: the problem.
        seed: seed of the searches.
        rounds: number of rounds.

    Returns:
        The best placement, uint8 [groups], and its score, µs; inf if it is not feasible.
    """
    best, moves = Multilevel(seed=seed).place(problem), _LONGER * first_moves(problem)
    for number in range(rounds):
        found = search(problem, max_moves=moves, seed=seed + number, starts=best)
        starts = np.concatenate([best[None], found.placement[None], found.elites])
        refined, scores = refine(problem, starts, max_moves=2_000_000, seed=seed + number)
        best = refined[int(scores.argmin())]
    return best, float(problem.scores(best)[0])


def searched(cell: Cell, entry: dict[str, Any] | None, seed: int, rounds: int) -> dict[str, Any]:
    """The stored result of the long search, or a new one.

    Args:
        cell: the problem.
        entry: the stored result, which may be of another problem or of fewer rounds; None for none.
        seed: seed of a new search.
        rounds: rounds of a new search.

    Returns:
        The entry: fingerprint of the problem, score in µs (None if infeasible), placement as digits, and settings.
    """
    # In these cells a minimum cut is nearly optimal, so that further rounds would find next to nothing.
    rounds = 1 if cell.exact else rounds
    if entry is not None and entry["problem"] == cell.fingerprint and entry["rounds"] >= rounds:
        return entry
    start = time.perf_counter()
    placement, score = long_search(cell.problem, seed, rounds)
    return {
        "problem": cell.fingerprint,
        "score_us": score if np.isfinite(score) else None,
        "seed": seed,
        "rounds": rounds,
        "seconds": round(time.perf_counter() - start, 1),
        "placement": "".join(map(str, placement.tolist())),
    }


def best_known(cell: Cell, entry: dict[str, Any]) -> float:
    """The score of a long search's placement, µs; inf if it has none.

    Raises:
        UserError: the simulator gives another score than the stored one.
    """
    if entry["score_us"] is None:
        return np.inf
    placement = np.array([int(device) for device in entry["placement"]], np.uint8)
    score = float(cell.problem.scores(placement)[0])
    if abs(score - entry["score_us"]) > 1e-6 * score:
        raise UserError(f"{cell.name}: the stored placement scores {score:.3f} µs, not {entry['score_us']:.3f}")
    return score


@dataclass(frozen=True)
class Method:
    """A method of placement."""

    name: str  # in tables
    place: Callable[[PlacementProblem], NDArray[np.uint8]]  # the placement of a problem, uint8 [groups]


def _best_single(problem: PlacementProblem) -> NDArray[np.uint8]:
    """Everything on the best device."""
    return problem.single(int(problem.scores(problem.singles).argmin()))


def _refined_singles(problem: PlacementProblem) -> NDArray[np.uint8]:
    """Local search from the best single device, or from the fastest device of each group if no device is feasible."""
    best = _best_single(problem)
    if not np.isfinite(problem.scores(best)[0]):
        best = problem.repair(problem.group_us.argmin(axis=1))
    placements, _ = refine(problem, best)
    return placements[0]


def _greedy(policy: str | Path) -> Callable[[PlacementProblem], NDArray[np.uint8]]:
    """The method that takes a policy's first choice, made legal. policy: its name or folder."""
    placer = HSDAGPlacer(policy)

    return lambda problem: problem.legalized(first_choice(placer, problem))


def held_out() -> str:
    """A line for each model of the zoo that pretraining does not see: its name, and whether it is placed by default."""
    names = sorted(entry.name for entry in ZOO.values() if entry.family in corpus.HELD_OUT_FAMILIES)
    width = max(map(len, names))
    return "\n".join(f"{name:{width}}  {'by default' if name in MODELS else ''}".rstrip() for name in names)


def methods(policy: str, untrained: Path | None) -> list[Method]:
    """The methods that are compared.

    Args:
        policy: name or folder of the policy.
        untrained: folder of the same network with random weights; None to leave it out.
    """
    found = [
        Method("best single device", _best_single),
        Method("HETERO's rule", HeteroDefault().place),
        Method("minimum cut", MinCut().place),
        Method("pipeline", Contiguous().place),
        Method("refinement from the best single", _refined_singles),
        Method(ALONE, _greedy(policy)),
        Method("policy, best of its candidates", HSDAGPlacer(policy, moves=0).place),
        Method(REFINED, HSDAGPlacer(policy).place),
    ]
    if untrained is not None:
        found += [
            Method("untrained alone (greedy)", _greedy(untrained)),
            Method("untrained + refinement", HSDAGPlacer(untrained).place),
        ]
    return found


def untrained(policy: str, folder: Path) -> Path | None:
    """Writes the network of a policy with random weights to a folder. Returns the folder; None without torch."""
    try:
        import torch

        from ov_hsdag.training.network import HSDAGNetwork, export, load
    except ImportError:
        return None
    torch.manual_seed(0)
    export(HSDAGNetwork(load(PolicyFolder.load(policy).path).config), folder)
    return folder


def measure(cell: Cell, compared: list[Method], best: float) -> tuple[dict[str, float], dict[str, float], float]:
    """Places a problem by all methods, and by local search for as long as the policy takes.

    Args:
        cell: the problem.
        compared: the methods.
        best: best known score, µs.

    Returns:
        Scores in µs and processor seconds by method, and the best of these scores and `best`.
    """
    scores, seconds = {}, {}
    for method in compared:
        start = time.process_time()
        placement = method.place(cell.problem)
        seconds[method.name] = time.process_time() - start
        scores[method.name] = float(cell.problem.scores(placement)[0])
    # The same time for refinement alone as for everything that the policy does.
    start = time.process_time()
    name = "refinement alone, equal time"
    placements, _ = refine(cell.problem, cell.problem.singles, max_moves=0, budget_ms=1e3 * seconds[REFINED])
    seconds[name] = time.process_time() - start
    scores[name] = float(cell.problem.scores(placements).min())
    return scores, seconds, min(best, *scores.values())


def gap(ratios: Sequence[float]) -> tuple[float, float, int]:
    """The gap of a method.

    Args:
        ratios: score / best known of each cell, inf if infeasible.

    Returns:
        Geometric mean and maximum of the ratios of feasible cells, both minus 1, and the number of infeasible cells.
    """
    finite = np.array([ratio for ratio in ratios if np.isfinite(ratio)])
    if not len(finite):
        return np.inf, np.inf, len(ratios)
    return float(np.exp(np.log(finite).mean()) - 1), float(finite.max() - 1), len(ratios) - len(finite)


def groups_of(results: dict[str, Any]) -> dict[str, list[str]]:
    """Names of cells by kind; a cell can be of several kinds, and kinds without cells are left out."""
    kinds: dict[str, list[str]] = {
        "two devices, latency, no limits": [],
        "all others": [],
        "  more devices, latency, no limits": [],
        "  throughput, no limits": [],
        "  memory limits": [],
    }
    for name, result in results.items():
        objective, limits = name.split(" | ")[2:]
        if result["exact"]:
            kinds["two devices, latency, no limits"].append(name)
            continue
        kinds["all others"].append(name)
        if limits == "limited":
            kinds["  memory limits"].append(name)
        else:
            kinds["  more devices, latency, no limits" if objective == "latency" else "  throughput, no limits"].append(
                name
            )
    return {kind: names for kind, names in kinds.items() if names}


def show(results: dict[str, Any]) -> None:
    """Prints gaps, worst cases and times."""
    kinds = groups_of(results)
    rows = []
    for method in next(iter(results.values()))["ratio"]:
        line = [method]
        for members in kinds.values():
            mean, worst, lost = gap([results[name]["ratio"][method] for name in members])
            line.append(f"{100 * mean:.2f}% ({100 * worst:.1f}%){f', {lost} infeasible' if lost else ''}")
        times = [1e3 * result["seconds"][method] for result in results.values()]
        rows.append([*line, f"{np.median(times):.1f} ({max(times):.0f})"])
    head = [f"{kind.strip()}, {len(names)} cells" for kind, names in kinds.items()]
    print("gap to the best known: geometric mean (worst cell), and how many are infeasible\n")
    print(markdown(["", *head, "CPU ms, median (most)"], rows))
    alone, null = (np.array([result["ratio"][name] for result in results.values()]) for name in (ALONE, "pipeline"))
    print(
        f"{ALONE} is better than the best contiguous partition in {(alone < null * (1 - EQUAL)).sum()} cells and worse"
    )
    print(f"in {(alone > null * (1 + EQUAL)).sum()} of {len(alone)}\n")
    for kind in ("two devices, latency, no limits", "all others"):
        worst_cells = sorted(kinds.get(kind, []), key=lambda name: -results[name]["ratio"][REFINED])[:5]
        print(f"worst cells of {REFINED}, {kind}:")
        for name in worst_cells:
            print(f"  {100 * (results[name]['ratio'][REFINED] - 1):6.2f}%  {name}")


def missed(results: dict[str, Any]) -> list[str]:
    """Returns a line for each floor that is missed."""
    kinds = groups_of(results)
    everything = list(results)
    found = []
    for method, names, (mean_floor, worst_floor), what in (
        (REFINED, kinds.get("two devices, latency, no limits", []), FLOOR_EXACT, "two devices, latency, no limits"),
        (REFINED, kinds.get("all others", []), FLOOR_OTHER, "all others"),
        (ALONE, everything, FLOOR_POLICY, "all cells"),
    ):
        if names:
            mean, worst, lost = gap([results[name]["ratio"][method] for name in names])
            if mean > mean_floor or worst > worst_floor or lost:
                found.append(f"{method}, {what}: {100 * mean:.2f}% ({100 * worst:.1f}%), {lost} infeasible")
    return found


def main() -> int:  # noqa: C901, PLR0912 the whole benchmark in its order
    """Completes the long searches and compares the methods. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default=DEFAULT, help="a policy's name or folder (default %(default)s)")
    parser.add_argument(
        "--models",
        nargs="*",
        default=MODELS,
        metavar="MODEL",
        help="held-out models of the zoo; without a name: lists them",
    )
    parser.add_argument("--sets", nargs="+", default=tuple(corpus.HELD_OUT_SETS), choices=corpus.HELD_OUT_SETS)
    parser.add_argument(
        "--corpus",
        type=Path,
        metavar="DIR",
        help="folder that keeps the models' graphs; by default they are made each time",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the long search")
    parser.add_argument("--rounds", type=int, default=5, help="of the long search (default %(default)s)")
    parser.add_argument("--known", type=Path, default=RESULTS, help="results of the long search (default %(default)s)")
    add_output(parser, "JSON of all cells and methods, or with --search-only of the long search")
    parser.add_argument("--search-only", action="store_true", help="no policy: only complete the long search")
    arguments = parser.parse_args()
    if not arguments.models:
        print(held_out())
        return 0
    if arguments.search_only and arguments.output is None:
        parser.error("--search-only measures nothing: --output names the file for what it finds")
    known = stored(arguments.known) or {}
    if arguments.search_only:
        known |= stored(arguments.output) or {}
    results: dict[str, Any] = {}
    compared: list[Method] = []
    try:
        with folder_or_temporary(arguments.corpus) as graphs, tempfile.TemporaryDirectory() as temporary:
            every = list(cells(graphs, arguments.models, arguments.sets))
            if not arguments.search_only:
                compared = methods(arguments.policy, untrained(arguments.policy, Path(temporary)))
            for method in compared if every else ():  # plugins are loaded and models compiled before the clock runs
                method.place(every[0].problem)
            for cell in track(every, console=Console(stderr=True), disable=not sys.stderr.isatty()):
                known[cell.name] = searched(cell, known.get(cell.name), arguments.seed, arguments.rounds)
                if arguments.search_only:
                    write_json(arguments.output, known)
                best = best_known(cell, known[cell.name])
                if not compared:
                    continue
                scores, seconds, best = measure(cell, compared, best)
                if not np.isfinite(best):
                    print(f"left out, nothing feasible is known: {cell.name}", file=sys.stderr)
                    continue
                results[cell.name] = {
                    "exact": cell.exact,
                    "best_us": best,
                    "ratio": {name: score / best for name, score in scores.items()},
                    "seconds": seconds,
                }
    except UserError as error:
        parser.error(str(error))
    if not results:
        return 0
    show(results)
    if arguments.output:
        plain = {
            n: {**r, "ratio": {k: v if np.isfinite(v) else None for k, v in r["ratio"].items()}}
            for n, r in results.items()
        }
        write_json(arguments.output, plain)
    floors = missed(results)
    for line in floors:
        print(f"missed: {line}")
    return 1 if floors else 0


if __name__ == "__main__":
    start(__spec__)
