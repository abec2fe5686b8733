"""How good placements are on models and devices that pretraining never saw.

A cell is a held-out architecture × a held-out set of devices × an objective × memory limits or none, with built-in
profiles, simulated. Gaps are geometric means of score / best known - 1: the best of all methods here and of a long
search, whose results are in the file of --known until the cost model changes. What that lacks is searched, which takes
long:

    python -m benchmarks.quality.placement_quality --models                         # lists what is held out
    python -m benchmarks.quality.placement_quality --search-only --output FILE      # completes the file of --known
    python -m benchmarks.quality.placement_quality --known FILE --output ALL.json   # and all cells, of all methods

The repository's file of long searches is benchmarks/results/placement_quality.json.

Exit status 1 when policy + refinement, or the policy alone, misses its floor.
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

# Share of the memory that a model needs on one device, that each device has where there are limits.
_LIMIT = {2: 0.7, 3: 0.45, 4: 0.35}

_LONGER = 20  # moves of a round of the long search, in times of the first turn of the default search

# Floors: (geometric mean, worst cell), as shares.
FLOOR_EXACT, FLOOR_OTHER, FLOOR_POLICY = (0.01, 0.05), (0.03, 0.10), (0.10, np.inf)

EQUAL = 0.001  # scores that differ by less are equal

REFINED, ALONE = "policy + refinement", "policy alone (greedy)"


@dataclass(frozen=True, eq=False)
class Cell:
    """A problem and what it is called."""

    name: str
    problem: PlacementProblem
    limited: bool

    @property
    def exact(self) -> bool:
        """Whether a minimum cut is the optimum, but for the costs of submodels."""
        return len(self.problem.devices) == 2 and self.problem.objective == "latency" and not self.limited

    @property
    def fingerprint(self) -> str:
        """Changes with the problem."""
        digest = hashlib.sha256()
        p = self.problem
        for array in (p.node_us, p.supported, p.groups, p.transfer_us, p.transfer_us_per_byte, p.submodel_us):
            digest.update(np.ascontiguousarray(array).tobytes())
        digest.update(p.memory_bytes.tobytes() + p.graph.output_bytes.tobytes())
        return digest.hexdigest()[:16]


def cells(folder: Path, models: Sequence[str], sets: Sequence[str]) -> Iterator[Cell]:
    """All cells whose groups find devices, and where limits are, a feasible placement at all is likely."""
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
    """The best of so many searches, each from the best so far; deterministic. Score inf where none is feasible."""
    best, moves = Multilevel(seed=seed).place(problem), _LONGER * first_moves(problem)
    for number in range(rounds):
        found = search(problem, max_moves=moves, seed=seed + number, starts=best)
        starts = np.concatenate([best[None], found.placement[None], found.elites])
        refined, scores = refine(problem, starts, max_moves=2_000_000, seed=seed + number)
        best = refined[int(scores.argmin())]
    return best, float(problem.scores(best)[0])


def searched(cell: Cell, entry: dict[str, Any] | None, seed: int, rounds: int) -> dict[str, Any]:
    """The stored result of the long search, or a new one where there is none for this problem."""
    # A minimum cut leaves next to nothing to be found.
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
    """The score of a long search's result, µs. Raises UserError where it is not what is stored."""
    if entry["score_us"] is None:
        return np.inf
    placement = np.array([int(device) for device in entry["placement"]], np.uint8)
    score = float(cell.problem.scores(placement)[0])
    if abs(score - entry["score_us"]) > 1e-6 * score:
        raise UserError(f"{cell.name}: the stored placement scores {score:.3f} µs, not {entry['score_us']:.3f}")
    return score


@dataclass(frozen=True)
class Method:
    """A way to place, by name."""

    name: str
    place: Callable[[PlacementProblem], NDArray[np.uint8]]


def _best_single(problem: PlacementProblem) -> NDArray[np.uint8]:
    return problem.single(int(problem.scores(problem.singles).argmin()))


def _refined_singles(problem: PlacementProblem) -> NDArray[np.uint8]:
    best = _best_single(problem)
    if not np.isfinite(problem.scores(best)[0]):
        best = problem.repair(problem.group_us.argmin(axis=1))
    placements, _ = refine(problem, best)
    return placements[0]


def _greedy(policy: str | Path) -> Callable[[PlacementProblem], NDArray[np.uint8]]:
    placer = HSDAGPlacer(policy)

    return lambda problem: problem.legalized(first_choice(placer, problem))


def held_out() -> str:
    """A line for each model of the zoo that pretraining does not see: its name, and whether it is placed by default."""
    names = sorted(entry.name for entry in ZOO.values() if entry.family in corpus.HELD_OUT_FAMILIES)
    width = max(map(len, names))
    return "\n".join(f"{name:{width}}  {'by default' if name in MODELS else ''}".rstrip() for name in names)


def methods(policy: str, untrained: Path | None) -> list[Method]:
    """All that is compared."""
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
    """The network of a policy with random weights, written to a folder; None without torch."""
    try:
        import torch

        from ov_hsdag.training.network import HSDAGNetwork, export, load
    except ImportError:
        return None
    torch.manual_seed(0)
    export(HSDAGNetwork(load(PolicyFolder.load(policy).path).config), folder)
    return folder


def measure(cell: Cell, compared: list[Method], best: float) -> tuple[dict[str, float], dict[str, float], float]:
    """Scores in µs and CPU seconds by method, and the best of these and `best`."""
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
    """(geometric mean, worst) of ratios, less 1, over feasible cells, and the number of infeasible ones."""
    finite = np.array([ratio for ratio in ratios if np.isfinite(ratio)])
    if not len(finite):
        return np.inf, np.inf, len(ratios)
    return float(np.exp(np.log(finite).mean()) - 1), float(finite.max() - 1), len(ratios) - len(finite)


def groups_of(results: dict[str, Any]) -> dict[str, list[str]]:
    """Cells by kind."""
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
    """Floors that are not reached."""
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
