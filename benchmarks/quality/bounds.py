"""Lower bounds for the problems of anytime.py, and which of those without a placement are proven to have none.

    python -m benchmarks.quality.bounds benchmarks/results/anytime.json --corpus FOLDER --sizes 300 1000

`research.baselines.relaxation` says what is relaxed.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.common import harness
from benchmarks.common.harness import Templates
from benchmarks.common.workers import Workers, add_ray, start
from benchmarks.quality.anytime import HELD_OUT, Draw, best_known, draws
from research.baselines.relaxation import bracket, relaxed


def bound(templates: Templates, solver_seconds: float | None, draw: Draw) -> tuple[float, float]:
    """What no placement of a problem is faster than, and the score of one that was found on the way, inf without, µs.

    Args:
        templates: of the models.
        solver_seconds: of integer programmes; None: they are not solved.
        draw: the problem, which there is.
    """
    cell = draw.cell(templates)
    assert cell is not None
    if not solver_seconds:
        return relaxed(cell.problem), np.inf
    solved = bracket(cell.problem, seconds=solver_seconds)
    return solved.bound, solved.score


def main() -> None:
    """Bounds the problems of a file that anytime.py wrote."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("records", type=Path, help="that anytime.py wrote with --output")
    parser.add_argument("--corpus", type=Path, required=True, help="folder of graphs that anytime.py had")
    parser.add_argument("--sizes", type=int, nargs="+", default=[300, 1000])
    parser.add_argument("--seeds", type=int, default=1, help="problems of each model and size")
    parser.add_argument("--solver-seconds", type=float, help="solve integer programmes too, for so long each")
    add_ray(parser)
    arguments = parser.parse_args()
    records = {
        (record["size"], record["name"]): record for record in json.loads(arguments.records.read_text())["problems"]
    }
    models = sorted(HELD_OUT)
    every = [draw for size in arguments.sizes for draw in draws(models, size, range(arguments.seeds))]
    above: dict[int, list[float]] = {size: [] for size in arguments.sizes}
    with Workers(arguments.ray, processes=0) as workers:
        function = partial(bound, harness.templates_of(models, arguments.corpus), arguments.solver_seconds)
        for draw, (least, score) in workers.map(function, [d for d in every if (d.size, d.name) in records]):
            best = min(best_known(records[draw.size, draw.name]), score)
            told = f"{draw.size} {draw.name}"
            if np.isinf(least):
                print(f"{told}: proven to have no feasible placement", flush=True)
            elif np.isinf(best):
                print(f"{told}: at least {least:.6g}, no placement is known, none is excluded", flush=True)
            else:
                above[draw.size].append(best / least)
                print(f"{told}: {best:.6g}, at least {least:.6g}: {best / least:.3f}", flush=True)
    for size, ratios in above.items():
        if ratios:
            mean = float(np.exp(np.log(ratios).mean()))
            print(f"{size}: best known / bound {mean:.3f} in the geometric mean of {len(ratios)}", flush=True)


if __name__ == "__main__":
    start(__spec__)
