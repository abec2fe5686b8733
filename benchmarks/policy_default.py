"""What asking the learned policy changes in what `place` chooses, by prediction, and what it costs.

Cells are held-out models × held-out sets of devices × objectives × memory limits or none, as in placement_quality.py:
nothing of them was in pretraining. In each, the best of all candidates by prediction is chosen, by the rules of
`place`: with the policy, without it, and without it but with as much more processor time for multilevel search as the
policy took. Where the policy makes a difference, the same is asked of a network of the same size with random weights,
whose placer tries and refines the same contiguous partitions: what it finds as well is not the training's merit. Time
is processor time.

Prints in how many cells the choice is another one and by how much better or worse, for each kind of cell.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.placement_quality import Cell, cells
from benchmarks.policies import Policies
from benchmarks.workers import Workers, add_ray, start
from ov_hsdag.placers.multilevel import Multilevel, search
from ov_hsdag.placing.candidates import (
    MARGIN,
    NamedPlacement,
    best_by_prediction,
    policy_placers,
    run,
    unlearned_placers,
)
from ov_hsdag.policy.placer import HSDAGPlacer
from ov_hsdag.storage.files import write_json
from ov_hsdag.training import corpus
from ov_hsdag.utils.errors import RunError, UserError

RESULTS = Path(__file__).with_name("results") / "policy_default.json"

MODELS = (
    "inception-v2", "efficientnet-small", "swin-tiny", "segformer-b0", "yolo-like-small", "hourglass-small",
    "deberta-v2-small", "t5-encoder-base", "gemma2-small", "whisper-encoder-base", "wavenet-small", "dlrm",
)  # fmt: skip

Returned = TypeVar("Returned")


def timed(work: Callable[[], Returned]) -> tuple[Returned, float]:
    """What it returns, and the seconds of processor time that it took."""
    begin = time.process_time()
    return work(), time.process_time() - begin


def judged(cell: Cell, policy: HSDAGPlacer) -> dict[str, Any]:
    """Scores and times of one cell."""
    problem = cell.problem
    simple, plain_seconds = timed(lambda: [run(placer, problem) for placer in unlearned_placers(problem)])
    learned, policy_seconds = timed(lambda: run(policy, problem))
    longer = NamedPlacement(
        Multilevel.name,
        search(problem, seconds=policy_seconds, seed=1, processor_time=True, starts=simple[-1].placement).placement,
    )
    found: dict[str, Any] = {"plain_seconds": plain_seconds, "policy_seconds": policy_seconds}
    for name, candidates in {"plain": simple, "policy": [*simple, learned], "longer": [*simple, longer]}.items():
        score, chosen = _choice(cell, candidates)
        found[name] = {"score": score, "chosen": chosen}
    alone = float(problem.scores(learned.placement)[0])
    return {**found, "hsdag": alone if np.isfinite(alone) else None}


def with_untrained(cell: Cell, found: dict[str, Any], untrained: HSDAGPlacer) -> dict[str, Any]:
    """Adds what an untrained network finds; where the trained one made no difference, neither is it asked."""
    plain, policy = found["plain"], found["policy"]
    score = plain["score"]
    if policy["score"] != plain["score"]:
        other = float(cell.problem.scores(run(untrained, cell.problem).placement)[0])
        if np.isfinite(other) and (score is None or other < score * (1 - MARGIN)):
            score = other
    return {**found, "untrained": {"score": score}}


_warm = False


def compared(untrained: Policies, task: tuple[Cell, dict[str, Any] | None]) -> dict[str, Any]:
    """All of a cell.

    Args:
        untrained: one policy with random weights.
        task: the cell, and what is known of it but for the untrained network.
    """
    global _warm
    (policy,) = policy_placers("base")
    cell, known = task
    if not _warm:  # plugins are loaded and models compiled before the clock runs
        run(policy, cell.problem)
        _warm = True
    return with_untrained(cell, known or judged(cell, policy), HSDAGPlacer(untrained.folder()))


def _choice(cell: Cell, candidates: Sequence[NamedPlacement]) -> tuple[float | None, str | None]:
    """Score of what is chosen, and its name; None where nothing is feasible."""
    try:
        chosen = best_by_prediction(cell.problem, candidates)
    except (RunError, UserError):
        return None, None
    return float(cell.problem.scores(chosen.placement)[0]), chosen.name


def summary(found: Sequence[dict[str, Any]], rival: str, base: str = "plain") -> dict[str, Any]:
    """How the rival's choices compare with those of `base`: cells that differ, geometric means, the extremes."""
    both = [one for one in found if one[base]["score"] and one[rival]["score"]]
    gains = np.array([one[base]["score"] / one[rival]["score"] - 1 for one in both])
    return {
        "cells": len(found),
        "better": int((gains > MARGIN).sum()),
        "worse": int((gains < -MARGIN).sum()),
        "only": sum(bool(one[rival]["score"]) and not one[base]["score"] for one in found),
        "mean": float(np.expm1(np.log1p(gains).mean())) if len(gains) else 0.0,
        "most": float(gains.max(initial=0.0)),
        "least": float(gains.min(initial=0.0)),
    }


def show(results: dict[str, dict[str, Any]]) -> None:
    """Prints the table."""
    kinds: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for name, one in results.items():
        _, _, objective, limits = name.split(" | ")
        for kind in (f"{objective}, {limits}", "all"):
            kinds[kind].append(one)
    columns = ("cells", "with", "better", "worse", "only there", "mean gain", "most", "least", "s before", "s more")
    table = Table(*columns, title=f"against no policy; better and worse by more than {MARGIN:.1%}", box=None)
    for kind in sorted(kinds):
        for rival, label in (("policy", "the policy"), ("untrained", "untrained"), ("longer", "longer search")):
            own = summary(kinds[kind], rival)
            seconds = [
                statistics.median(one[key] for one in kinds[kind]) for key in ("plain_seconds", "policy_seconds")
            ]
            table.add_row(
                f"{kind}: {own['cells']}", label, *(str(own[key]) for key in ("better", "worse", "only")),
                *(f"{own[key]:.2%}" for key in ("mean", "most", "least")), *(f"{one:.2f}" for one in seconds),
            )  # fmt: skip
    Console(width=140).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS, metavar="MODEL", help="held-out models of the zoo")
    parser.add_argument("--sets", nargs="+", default=tuple(corpus.HELD_OUT_SETS), choices=corpus.HELD_OUT_SETS)
    parser.add_argument("--corpus", type=Path, default=Path("corpus"), help="folder of graphs (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long; resumable")
    parser.add_argument("--output", type=Path, default=RESULTS)
    add_ray(parser)
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    results: dict[str, Any] = json.loads(options.output.read_text()) if options.output.exists() else {}
    untrained = Policies.untrained("base", [0])
    if untrained is None:
        parser.error("it needs torch")
    lacking = (
        (cell, results.get(cell.name))
        for cell in cells(options.corpus, options.models, options.sets)
        if "untrained" not in results.get(cell.name, {})
    )
    with Workers(options.ray, processes=0) as workers:
        in_time = itertools.takewhile(lambda _: time.monotonic() <= end, lacking)
        for (cell, _), found in workers.map(partial(compared, untrained), in_time):
            results[cell.name] = found
            write_json(options.output, results)
    show({name: one for name, one in results.items() if "untrained" in one})
    return 0


if __name__ == "__main__":
    start(__spec__)
