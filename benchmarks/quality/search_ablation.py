"""Measures what each part of the search gains: compares the search without it, with the same number of moves.

    python -m benchmarks.quality.search_ablation [--models N] [--small N] [--moves N] [--output FILE.json]

The problems are those of `quality.search_effort`; the same with memory limits, whose sum is 1.25 times what the model
needs; and the first problems for throughput of `quality.optimum`, which are random graphs of 12 to 60 operations. Each
of the four independent searches makes as many moves with a part as without it; they end earlier only if all four have
placements of exactly the same score. Moves are counted, so that other programs change nothing. An interrupted run goes
on from the file of --output.

Printed for each part and class of problems is how much slower placements are without it, in the mean and at worst.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import count, islice
from typing import Any

import numpy as np

from benchmarks.common.output import add_output
from benchmarks.common.tables import markdown, publish
from benchmarks.common.workers import start
from benchmarks.quality import optimum
from benchmarks.quality.drawn_models import DEVICES, SEED, DrawnProblem, drawn_problems, record_of
from ov_hsdag.placers.multilevel import search_until_agreed

SMOKE_ARGUMENTS = "--models 0 --small 4 --moves 2000"
"""The arguments with which this command is quickest, for `make figures-smoke`."""

MOVES = 2_000_000
"""Moves of each of the four searches: more than by default if they agree soon, fewer than if they never agree."""

SMALL = "small random graphs"
"""Name of the class of problems of `quality.optimum`."""

SMALL_PROBLEMS = 60
"""Default number of problems of `quality.optimum`; half of all that it draws are for throughput."""

ROOM = 1.25
"""Sum of the memory limits, as a multiple of what the model needs."""

WHOLE = "nothing"
"""Key of `PARTS` for the whole search, which is without nothing."""

PARTS: dict[str, Mapping[str, Mapping[str, float]]] = {
    WHOLE: {},
    "annealing": {"annealing": {"share": 0.0}},
    "annealing on coarse levels": {"annealing": {"coarse": 0.0}},
    "annealing by the simulator": {"judged_annealing": {"share": 0.0, "large_share": 0.0}},
    "annealing by the simulator on coarse levels": {"judged_annealing": {"coarse": 0.0, "most_coarse_items": 1500}},
    "estimates of each stage": {"annealing": {"renewed": 0.0}},
    "submodels of each device": {"annealing": {"own": 0.0}},
    "exchange between the searches": {"effort": {"together": 0.0}},
    "moves of segments": {"moves": {"run": 1}, "local": {"fine_run": 1}},
    "slides of segments": {"moves": {"slide": 1}},
    "second population": {"population": {"island_share": 0.0, "island_share_in_throughput": 0.0}},
    "searches on the finest level": {"population": {"local": 1, "seldom_local": 1}},
}
"""Settings of the search without each part, by group and name."""


def cells(models: int | None, small: int) -> Iterator[DrawnProblem]:
    """Yields the problems, those of models without and with memory limits.

    Args:
        models: number of models; None for all.
        small: number of problems of `quality.optimum`.
    """
    for drawn in drawn_problems(models):
        yield drawn
        problem = drawn.problem
        need = problem.evaluate(problem.singles).memory_bytes.max()
        limits = np.full(len(problem.devices), int(ROOM * need / len(problem.devices)), np.int64)
        limited = replace(problem, memory_bytes=limits)
        yield replace(drawn, devices=_class_of(drawn.devices, limited=True), problem=limited)
    for_throughput = (number for number in count() if optimum.Kind.of(number).objective == "throughput")
    for number in islice(for_throughput, small):
        devices = _class_of(SMALL, limited=optimum.Kind.of(number).limited)
        yield DrawnProblem(f"problem {number}", devices, optimum.draw(number))


def _class_of(devices: str, *, limited: bool) -> str:
    """The name of a class of problems. devices: key of `DEVICES`, or `SMALL`."""
    return f"{devices}, limited memory" if limited else devices


def scores_without(moves: int, cell: DrawnProblem) -> dict[str, Any]:
    """Searches a problem without each part.

    Args:
        moves: number of moves of each of the four searches.
        cell: the problem.

    Returns:
        "model", "devices", and "scores_us" by part, µs, None if nothing feasible was found.
    """
    scores: dict[str, float | None] = {}
    for part, changes in PARTS.items():
        effort = {"most_moves": moves, "times_in_doubt": 1, "expected_regret": 0.0, **changes.get("effort", {})}
        found = search_until_agreed(cell.problem, threads=1, settings={**changes, "effort": effort})
        scores[part] = found.score if np.isfinite(found.score) else None
    return {"model": cell.model, "devices": cell.devices, "scores_us": scores}


def table(results: list[dict[str, Any]]) -> str:
    """The table: mean and worst by class of problems and part.

    Problems for which the whole search finds no placement are left out; a cell counts those for which a search without
    a part finds none.
    """
    rows = []
    for devices in (_class_of(name, limited=limited) for name in (*DEVICES, SMALL) for limited in (False, True)):
        scores = [one["scores_us"] for one in results if one["devices"] == devices]
        scores = [one for one in scores if one[WHOLE] is not None]
        if scores:
            rows.append([f"{devices} ({len(scores)})", *(_loss(scores, part) for part in list(PARTS)[1:])])
    return markdown(["without", *list(PARTS)[1:]], rows)


def _loss(scores: list[dict[str, float | None]], part: str) -> str:
    """Says how much slower placements are without a part. scores: score by part of each problem, µs."""
    shares = [without / whole - 1 for one in scores if (without := one[part]) and (whole := one[WHOLE])]
    nothing = len(scores) - len(shares)
    figures = [f"{np.mean(shares):+.2%} ({max(shares):+.1%})"] if shares else []
    return ", ".join([*figures, *([f"{nothing} without a placement"] if nothing else [])])


def main() -> int:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", type=int, help="the first ones alone; default: all thirteen")
    parser.add_argument(
        "--small", type=int, default=SMALL_PROBLEMS, help="random graphs of few operations (default: %(default)d)"
    )
    parser.add_argument("--moves", type=int, default=MOVES, help="of each of the four searches (default: %(default)d)")
    add_output(parser, "all scores as JSON, and the table beside it")
    arguments = parser.parse_args()
    settings = {"seed": SEED, "moves": arguments.moves}
    run_cell = partial(scores_without, arguments.moves)
    record = record_of(run_cell, cells(arguments.models, arguments.small), settings, arguments.output)
    publish(arguments.output, record, {"How much slower placements are without a part:": table(record["cells"])})
    return 0


if __name__ == "__main__":
    start(__spec__)
