"""The end of a run: finalists are measured again, and the best one is chosen where it beats the simple placements."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.measuring.evaluator import HETERO_DEFAULT, Measurement
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.training import FOUND_BY
from ov_hsdag.training.finetune.judges import simple_placement
from ov_hsdag.training.finetune.settings import Settings
from ov_hsdag.training.finetune.state import State


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
