"""Whether ratings of edges can pay at all: the search with what a ten times longer search found, an oracle.

For each problem, several searches of `--teacher` seconds with different seeds give elites, the placements within 2% of
the best. Consensus of an edge: how often elites keep its ends together, each seed counting alike, the better a
placement the more. Then searches of `--seconds` use it in several ways:

- rating: edges by their consensus alone, or times the time of their transfer;
- forbid: groups that no path of edges of consensus 0.5 (or 0.9) connects are never contracted into one;
- both, down to 160 items as always, and down to 24.

Nothing that is learned can know more about which edges belong together. The gate: at least 3% better than the best
rating without learning at 100 ms, or its quality of 1 s four times sooner.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from benchmarks import anytime, edge_ratings, harness
from benchmarks.harness import Templates
from benchmarks.workers import Workers, add_ray, start
from ov_hsdag import _native
from ov_hsdag.placers.multilevel import search
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.storage.files import write_json

_ELITE = 1.02
_TEMPERATURE = 0.01
_LEAST = 0.02
# Items of the coarsest level, where it is smaller than always.
_COARSE = 24
# Problems that all rivals solve so soon and alike, s, are not searched for long.
_SOON = 0.03
# The gate asks for a quarter of the second that its rivals have.
_ORACLE_SECONDS = 0.3
BASELINES = ("multilevel", "random edges", "repeated structure")
ARMS = (
    "multilevel to 24",
    "oracle",
    "oracle x transfer",
    "oracle forbids 0.5",
    "oracle forbids 0.9",
    "oracle rates and forbids",
    "oracle to 24",
)
TIMES = (0.01, 0.03, 0.1, 0.25, 0.3, 1.0)


def elites(problem: PlacementProblem, seconds: float, seeds: int) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Placements of long searches within 2% of the best, and their weights, which sum to 1.

    Args:
        problem: what is placed.
        seconds: of processor time for each seed.
        seeds: searches.
    """
    found = [search(problem, seconds=seconds, seed=100 + seed, processor_time=True) for seed in range(seeds)]
    best = min(run.score for run in found)
    placements, weights = [], []
    for run in found:
        kept = run.elite_scores <= _ELITE * best
        if not kept.any():
            continue
        weight = np.exp(-(run.elite_scores[kept] / best - 1) / _TEMPERATURE)
        placements.append(run.elites[kept])
        weights.append(weight / weight.sum())
    if not placements:
        return np.zeros((0, problem.group_count), np.uint8), np.zeros(0)
    return np.concatenate(placements), np.concatenate(weights) / len(weights)


def consensus(
    problem: PlacementProblem, placements: NDArray[np.uint8], weights: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How often the ends of each edge, and all of each tensor's, are together: [edges], [len(problem.tensors)]."""
    tensors = problem.tensors
    fan = np.diff(tensors.consumer_ptr)
    source = np.repeat(tensors.source, fan)
    together = weights @ (placements[:, source] == placements[:, tensors.consumers])
    tensor = np.repeat(np.arange(len(tensors)), fan)
    return together, np.bincount(tensor, together, len(tensors)) / np.maximum(fan, 1)


def components(problem: PlacementProblem, together: NDArray[np.float64], least: float) -> NDArray[np.uint64]:
    """Groups that edges of at least so much consensus connect have one number, uint64 [groups]."""
    tensors = problem.tensors
    source = np.repeat(tensors.source, np.diff(tensors.consumer_ptr))
    kept = together >= least
    shape = (problem.group_count, problem.group_count)
    edges = coo_array((np.ones(kept.sum()), (source[kept], tensors.consumers[kept])), shape=shape)
    return np.asarray(connected_components(edges, directed=False)[1], np.uint64)


def arms(
    problem: PlacementProblem, placements: NDArray[np.uint8], weights: NDArray[np.float64]
) -> list[dict[str, Any]]:
    """Arguments of the search for each of `ARMS`."""
    together, of_tensor = consensus(problem, placements, weights)
    heavy = edge_ratings.transfer(problem)
    odds = (of_tensor + _LEAST) / (1 - of_tensor + _LEAST)
    clusters = components(problem, together, 0.5)
    return [
        {"target": _COARSE},
        {"rating": odds},
        {"rating": odds * heavy},
        {"labels": clusters},
        {"labels": components(problem, together, 0.9)},
        {"rating": odds * heavy, "labels": clusters},
        {"rating": odds * heavy, "labels": clusters, "target": _COARSE},
    ]


def main() -> None:
    """Runs the oracle on the problems of a file of anytime.py."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", type=int, default=5000)
    parser.add_argument("--turns", type=int, nargs="+", default=[0, 1, 2, 3], help="problems of each model")
    parser.add_argument("--seconds", type=float, default=1.0, help="of processor time for each search")
    parser.add_argument("--teacher", type=float, default=10.0, help="of processor time for each search of the oracle")
    parser.add_argument("--teachers", type=int, default=2, help="searches of the oracle")
    parser.add_argument("--corpus", type=Path, required=True, help="folder of graphs")
    parser.add_argument("--output", type=Path, required=True, help="JSON file of all curves, continued")
    parser.add_argument("--report", action="store_true", help="prints the table of the file and runs nothing")
    add_ray(parser)
    arguments = parser.parse_args()
    records: list[dict[str, Any]] = []
    if arguments.output.exists():
        records = json.loads(arguments.output.read_text())["problems"]
    models = sorted(anytime.HELD_OUT)
    known = {(record["size"], record["name"]) for record in records}
    wanted = [
        draw
        for draw in anytime.draws(models, arguments.size, arguments.turns)
        if (draw.size, draw.name) not in known and not arguments.report
    ]
    if wanted:
        searches = Searches(arguments.seconds, arguments.teacher, arguments.teachers)
        with Workers(arguments.ray, processes=0) as workers:
            function = partial(judged, harness.templates_of(models, arguments.corpus), searches)
            for draw, record in workers.map(function, wanted):
                if record is None:
                    continue
                records.append(record)
                write_json(arguments.output, {"seed": anytime.SEED, "problems": records})
                ends = {name: round(anytime.at(curve, 0.1), 1) for name, curve in record["curves"].items()}
                print(draw.name, record["best"], ends, flush=True)
    report(records)


@dataclass(frozen=True)
class Searches:
    """How long searches take.

    Attributes:
        seconds: of processor time for each.
        teacher: for each of the oracle's.
        teachers: how many of the oracle's.
    """

    seconds: float
    teacher: float
    teachers: int


def judged(templates: Templates, searches: Searches, draw: anytime.Draw) -> dict[str, Any] | None:
    """The curves of a problem; None where there is no such problem."""
    cell = draw.cell(templates)
    if cell is None:
        return None
    problem = cell.problem
    _ = problem.native, problem.chains, problem.tensors, problem.coarse
    native = _native.Multilevel(problem.native, problem.chains)
    record = cell.record() | {"seconds": searches.seconds, "best": np.inf, "curves": {}}
    for name in BASELINES:
        record["curves"][name] = anytime.shortened(anytime.RIVALS[name](problem, searches.seconds))
    last = [curve[-1] for curve in record["curves"].values() if curve]
    record["best"] = min((score for _, score in last), default=np.inf)
    # Solved at once by all, and alike: the oracle is taken to be as good, which saves its long searches.
    alike = bool(last) and max(score for _, score in last) <= 1.0001 * record["best"]
    if alike and max(moment for moment, _ in last) < _SOON:
        record["easy"] = True
        for name in ARMS:
            record["curves"][name] = record["curves"]["multilevel"]
        return record
    placements, weights = elites(problem, searches.teacher, searches.teachers)
    if not len(placements):
        return record
    record["elites"] = len(placements)
    record["best"] = min(record["best"], float(problem.scores(placements).min()))
    for name, wanted in zip(ARMS, arms(problem, placements, weights), strict=True):
        found = native.search(
            problem.objective == "throughput",
            budget_ms=1e3 * _ORACLE_SECONDS,
            seed=1,
            processor_time=True,
            **wanted,
        )
        record["curves"][name] = anytime.shortened([(ms / 1e3, score) for ms, score in found[2].tolist()])
    return record


def report(records: list[dict[str, Any]]) -> None:
    """Prints the table, of all problems and by kind."""
    kept = [record for record in records if np.isfinite(record["best"])]
    table_of("all", kept)
    hard = [record for record in kept if not record.get("easy")]
    table_of("not solved alike by all within 30 ms", hard)
    for title, chosen in (
        ("latency", lambda r: r["objective"] == "latency"),
        ("throughput", lambda r: r["objective"] == "throughput"),
        ("memory limits", lambda r: r["limited"]),
        ("missing operations", lambda r: r["lacking"]),
        ("8 devices", lambda r: r["devices"] == 8),
    ):
        table_of(f"of these {title}", [record for record in hard if chosen(record)])


def table_of(title: str, records: list[dict[str, Any]]) -> None:
    """Score / best known at some times, the gain at 100 ms over the best baseline, and when its quality of 1 s is."""
    if not records:
        return
    best = [anytime.best_known(record) for record in records]
    families = [record["family"] for record in records]
    names = [name for name in (*BASELINES, *ARMS) if all(name in record["curves"] for record in records)]
    values = {n: anytime.ratios([r["curves"][n] for r in records], best, list(TIMES)) for n in names}
    means = {n: np.exp(np.log(v).mean(axis=0)) for n, v in values.items()}
    at_100 = TIMES.index(0.1)
    rival = min(BASELINES, key=lambda n: means[n][at_100])
    aim = min(means[n][-1] for n in BASELINES)
    table = Table(title=f"{title}: {len(records)} problems; gain over {rival}")
    table.add_column("search")
    for t in TIMES:
        table.add_column(f"{t * 1e3:g} ms", justify="right")
    table.add_column("gain at 100 ms (95%)", justify="right")
    table.add_column("quality of 1 s at", justify="right")
    for name in names:
        gain = np.log(values[rival][:, at_100] / values[name][:, at_100])
        low, high = anytime.interval(gain, families)
        reached = [t for t, mean in zip(TIMES, means[name], strict=True) if mean <= aim * (1 + 1e-9)]
        table.add_row(
            name,
            # The oracle's searches have less time.
            *(
                f"{m:.4f}" if name in BASELINES or t <= _ORACLE_SECONDS else ""
                for t, m in zip(TIMES, means[name], strict=True)
            ),
            f"{gain.mean():+.2%} ({low:+.2%} to {high:+.2%})",
            f"{reached[0] * 1e3:g} ms" if reached else "later",
        )
    Console(width=150).print(table)


if __name__ == "__main__":
    start(__spec__)
