"""What each part of fine-tuning earns: proposals by policy, search or chance, on simulated machines.

Problems are those of benchmarks/quality/anytime.py: graphs of families that nothing was tuned on, on drawn devices.
A machine is the same problem with other costs: devices, kinds of operations on each, parts of the model, transfers and
submodels are slower or faster by factors that are drawn (log-normal), and single operations besides, which no
correction can follow; measurements have 2% noise. Arms see the profile's costs and what they measure, nothing else.

Prints how much slower the best measured placement is than the best known one after so many measurements (geometric mean
over problems), with 95% intervals from resampling families.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.common import harness
from benchmarks.common.harness import Templates
from benchmarks.common.tables import markdown
from benchmarks.common.workers import Workers, add_ray, start
from benchmarks.quality.anytime import HELD_OUT, Draw, draws, interval
from ov_hsdag.measuring.evaluator import Measurement
from ov_hsdag.placers.multilevel import search
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.storage.files import write_json
from ov_hsdag.training.finetune import SCRATCH, Settings
from ov_hsdag.training.finetune.judges import Simulated, simple_placement
from ov_hsdag.training.finetune.learning import learn
from ov_hsdag.training.finetune.model import initial_network
from ov_hsdag.training.finetune.proposals import propose
from ov_hsdag.training.finetune.state import Entry, State, new_state
from ov_hsdag.training.finetune.task import Task
from ov_hsdag.utils.errors import RunError

RESULTS = Path(__file__).parents[1] / "results" / "finetune_arms.json"

SHOWN = (1, 2, 6, 16)

ARMS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "both": (None, {}),
    "pretrained": (None, {"proposer": "policy"}),
    "scratch": (SCRATCH, {"proposer": "policy"}),
    "untrained": (SCRATCH, {"proposer": "policy", "updates": 0}),
    "search": (SCRATCH, {"proposer": "search"}),
    "simulator": (SCRATCH, {"proposer": "random"}),
}
"""Where each begins (None: the policy that ships), and its settings: "both" is the default."""

# Standard deviations of logarithms: what a profile is wrong by.
_DEVICE, _KIND, _PART, _NODE, _LINK = 0.2, 0.15, 0.1, 0.1, 0.5
_PARTS = 8
_NOISE = 0.02

# Seconds of the search on the machine's own costs, for the best known placement.
_LONG = 2.0


def machine(problem: PlacementProblem, generator: np.random.Generator) -> PlacementProblem:
    """The problem with costs that the profile is wrong about."""
    devices, nodes = len(problem.devices), problem.graph.nodes
    types, kind = np.unique(np.asarray(problem.graph.types), return_inverse=True)
    part = np.arange(nodes) * _PARTS // nodes
    wrong = (
        _DEVICE * generator.standard_normal(devices)
        + _KIND * generator.standard_normal((len(types), devices))[kind]
        + _PART * generator.standard_normal(_PARTS)[part][:, None]
        + _NODE * generator.standard_normal((nodes, devices))
    )
    transfer, submodel = np.exp(_LINK * generator.standard_normal(2))
    return replace(
        problem,
        node_us=problem.node_us * np.exp(wrong),
        fusion_penalty_us=problem.fusions[1] * np.exp(wrong),
        transfer_us=problem.transfer_us * transfer,
        transfer_us_per_byte=problem.transfer_us_per_byte * transfer,
        submodel_us=problem.submodel_us * submodel,
    )


class Noisy(Simulated):
    """The machine, measured with noise, which is the same for every arm that measures the same placement."""

    def measure(self, affinity: Mapping[str, str], *, worth: float = 0.0, rounds: int | None = None) -> Measurement:
        found = super().measure(affinity, worth=worth, rounds=rounds)
        if found.failed:
            return found
        noise = np.random.default_rng(int(found.ratio * 2**40) % 2**63).normal(0.0, _NOISE)
        ratio = float(found.ratio * np.exp(noise))
        return replace(found, ratio=ratio, ratios=(ratio,))


def arm(
    problem: PlacementProblem, truth: PlacementProblem, policy: str | None, settings: Settings, measurements: int
) -> tuple[list[float], float]:
    """Score on the machine, µs, of the placement that looks best after each measurement, and the seconds it took."""
    begin = time.thread_time()
    curve = fine_tuned(
        problem,
        Noisy(truth),
        policy,
        settings,
        measurements,
        lambda state: float(truth.scores(state.best().placement)[0]),
    )
    return curve, time.thread_time() - begin


def fine_tuned(
    problem: PlacementProblem,
    judge: Simulated,
    policy: str | None,
    settings: Settings,
    measurements: int,
    reached: Callable[[State], float],
) -> list[float]:
    """Fine-tunes as `ov-hsdag finetune` does; what was reached after each measurement.

    Args:
        problem: with costs as they are predicted.
        judge: measures placements.
        policy: where it begins; None: the one that ships.
        settings: of fine-tuning.
        measurements: placements that are measured.
        reached: told after each of them.
    """
    network = initial_network(policy, problem, settings.seed)
    state = new_state(network, settings)
    state.reference = judge.reference
    for name, measurement in judge.singles.items():
        state.entries.append(Entry(simple_placement(problem, name), measurement, "single", None))
    task = Task.of(problem, network.config, state.reference)
    curve: list[float] = []
    for _ in range(measurements):
        fit = task.fit(state)
        learn(state, task, settings, fit)
        proposal = propose(state, task, settings, fit)
        if proposal is not None:
            measured = judge.measure(problem.affinity(proposal.placement))
            state.entries.append(Entry(proposal.placement, measured, proposal.source, proposal.predicted))
        curve.append(reached(state))
    return curve


def table(records: list[dict[str, Any]]) -> str:
    """Of all problems so far."""
    families = [record["family"] for record in records]
    rows = []
    for name in ARMS:
        logs: NDArray[np.float64] = np.log(
            [[r["arms"][name]["scores"][n - 1] / r["best"] for n in SHOWN] for r in records]
        )
        line = [name]
        for column in logs.T:
            low, high = np.exp(interval(column, families))
            line.append(f"{np.exp(column.mean()):.3f} ({low:.3f} to {high:.3f})")
        rows.append([*line, f"{np.median([r['arms'][name]['seconds'] for r in records]):.1f}"])
    return markdown(["score / best known", *(f"after {count}" for count in SHOWN), "s of processor time"], rows)


def run(templates: Templates, draw: Draw) -> dict[str, Any] | None:
    """The record of a problem; None where there is no such problem, and why where it cannot be measured."""
    torch.set_num_threads(1)
    cell = draw.cell(templates)
    if cell is None:
        return None
    truth = machine(cell.problem, np.random.default_rng([7, draw.number]))
    arms: dict[str, Any] = {}
    try:
        for name, (policy, given) in ARMS.items():
            scores, seconds = arm(cell.problem, truth, policy, Settings(**given), max(SHOWN))
            arms[name] = {"scores": scores, "seconds": round(seconds, 2)}
    except RunError as error:  # no device holds the model: there is no reference to be measured against
        return {"name": cell.name, "why": str(error)}
    best = min(search(truth, seconds=_LONG).score, *(min(one["scores"]) for one in arms.values()))
    return {"family": cell.family, "name": cell.name, "best": best, "arms": arms}


def main() -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", type=int, default=300, help="operations of a problem, about")
    parser.add_argument("--turns", type=int, default=2, help="problems of each model")
    parser.add_argument("--corpus", type=Path, help="folder of graphs, made where it lacks one")
    parser.add_argument("--output", type=Path, default=RESULTS)
    add_ray(parser)
    arguments = parser.parse_args()
    models = sorted(HELD_OUT)
    records: list[dict[str, Any]] = []
    with Workers(arguments.ray, processes=0) as workers:
        function = partial(run, harness.templates_of(models, arguments.corpus))
        for _, record in workers.map(function, draws(models, arguments.size, range(arguments.turns))):
            if record is None or "why" in record:
                if record is not None:
                    print(f"{record['name']}: {record['why']}", file=sys.stderr)
                continue
            records.append(record)
            best, arms = record["best"], record["arms"]
            told = (f"{name} {one['scores'][-1] / best:.3f}" for name, one in arms.items())
            print(record["name"], *told, file=sys.stderr, flush=True)
            write_json(arguments.output, {"problems": records})
    print(table(records))


if __name__ == "__main__":
    start(__spec__)
