"""The end of a run: finalists are measured again, one is chosen where it beats the simple placements, record.json."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ov_hsdag.calibration.correction import Fit
from ov_hsdag.measuring.evaluator import HETERO_DEFAULT, Measurement
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.training import FOUND_BY
from ov_hsdag.training.finetune.settings import Settings
from ov_hsdag.training.finetune.state import State
from ov_hsdag.training.finetune.task import Task, simple_placement


@dataclass(frozen=True, eq=False)
class Choice:
    """The placement that a run chose."""

    name: str  # of the placer that found it ("hsdag", "search"), a device, or `HETERO_DEFAULT`
    placement: NDArray[np.uint8]  # uint8 [groups]
    measurement: Measurement  # of the placement; of a proposed one, both of its measurements together
    entry: int  # index of its entry


def closing_seconds(state: State, settings: Settings) -> float:
    """About how many seconds one more measurement, and then measuring the finalists again, will take."""
    known = [entry.measurement.seconds for entry in state.measured]
    return (1 + 2 * settings.finalists) * statistics.median(known) if known else 0.0


def finalists(state: State, settings: Settings) -> list[int]:
    """Entries to measure again, as the best of many measurements is partly luck: the best that beat the reference."""
    ranking = sorted(state.proposed, key=lambda index: -state.entries[index].measurement.ratio)
    best = [index for index in ranking[: settings.finalists] if state.entries[index].measurement.ratio > 1]
    return [index for index in best if index not in state.final]


def pooled(first: Measurement, second: Measurement, objective: str) -> Measurement:
    """Both measurements of a placement as one; reference and failure are the second's."""
    if second.failed:
        return second
    ratio = statistics.median((*first.ratios, *second.ratios))
    value = second.reference * ratio if objective == "throughput" else second.reference / ratio
    return replace(second, ratio=ratio, value=value, ratios=(*first.ratios, *second.ratios))


def choose(state: State, problem: PlacementProblem, settings: Settings) -> Choice:
    """The best finalist that surely beats the simple placements, and by the margin; else the best of these.

    Surely: by the 95% interval of all its measurements.

    Simple placements are the best single device and, where it was measured, HETERO's own choice.
    """
    known = [entry.measurement.reference for entry in state.good if math.isfinite(entry.measurement.reference)]
    value = statistics.median(known) if known else math.nan
    reference = simple_placement(problem, state.reference)
    simple: list[tuple[str, Measurement, int]] = []
    for index, entry in enumerate(state.entries):
        if entry.source == "single" and np.array_equal(entry.placement, reference):
            simple.insert(0, (state.reference, Measurement(1.0, value, value, submodels=1), index))
        elif entry.source == HETERO_DEFAULT:
            simple.append((HETERO_DEFAULT, entry.measurement, index))
    name, bar, index = max(simple, key=lambda item: item[1].ratio)
    least = bar.ratio * (1 + settings.margin)
    better = [key for key, found in state.final.items() if found.interval[0] > bar.ratio and found.ratio > least]
    if better:
        best = max(better, key=lambda key: state.final[key].ratio)
        entry = state.entries[best]
        return Choice(FOUND_BY[entry.source], entry.placement, state.final[best], best)
    return Choice(name, simple_placement(problem, name), bar, index)


def make_record(
    state: State, task: Task, settings: Settings, about: Mapping[str, Any], fit: Fit, choice: Choice
) -> dict[str, Any]:
    """The record of a run, JSON-able.

    Measurements are counted from 1, without the simple placements, as budget, progress and table of `ov-hsdag finetune`
    do: `number` of an entry, the keys of `final`, `measurement` of `best`. Ratios are to `reference`. `name` of an
    entry is that of its device, or of HETERO's own choice, and null for other placements.
    """
    numbers = {index: number for number, index in enumerate(state.proposed, start=1)}
    # A device's name for what is both.
    names = (HETERO_DEFAULT, *reversed(task.problem.devices))
    simple = {simple_placement(task.problem, name).tobytes(): name for name in names}
    best_so_far = accumulate((entry.measurement.ratio for entry in state.measured), max, initial=1.0)
    return {
        "about": dict(about),
        "settings": asdict(settings),
        "reference": state.reference,
        "singles": {
            task.problem.devices[int(entry.placement[0])]: entry.measurement.ratio
            for entry in state.entries
            if entry.source == "single" and (entry.placement == entry.placement[0]).all()
        },
        "measurements": len(state.proposed),
        "failed": sum(entry.measurement.failed for entry in state.measured),
        "recalled": state.recalled,
        "chosen": choice.name,
        "best": {**choice.measurement.to_dict(), "measurement": numbers.get(choice.entry)},
        "best_so_far": [round(ratio, 4) for ratio in best_so_far][1:],
        "entries": [
            {
                "number": numbers.get(index),
                "name": simple.get(entry.placement.tobytes()) if entry.simple else None,
                **entry.to_dict(),
                "chosen": index == choice.entry,
            }
            for index, entry in enumerate(state.entries)
        ],
        "final": {str(numbers[index]): measurement.to_dict() for index, measurement in state.final.items()},
        "correction": {"error": round(fit.error, 4), **task.corrector.describe(fit.mean)},
        "seconds": round(state.seconds, 1),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
    }
