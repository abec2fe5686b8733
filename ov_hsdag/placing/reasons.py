"""Explains to users why a placement was chosen and why others were not.

Reasons are clauses of text, for the output of commands and `Placement.why`. A split is a placement on several devices.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from ov_hsdag.explaining.dominant_group import describe_dominant_group
from ov_hsdag.model.gains import placer_of
from ov_hsdag.placing.candidates import MARGIN, NamedPlacement, required_gain, why_left_out, why_not_taken
from ov_hsdag.placing.pins import ModelPins
from ov_hsdag.problem.pricing import ModelAnalysis
from ov_hsdag.problem.problem import PlacementProblem

_SHOWN_AS_ZERO = 5e-5
"""Share of a score: a smaller difference of predictions is shown as 0.00%."""


def why_by_prediction(
    chosen: NamedPlacement,
    problem: PlacementProblem,
    analysis: ModelAnalysis,
    candidates: Sequence[NamedPlacement],
    *,
    calibrated: bool,
) -> str:
    """Explains why a single device was chosen by prediction, or a placement that is not predicted to be the best.

    Args:
        chosen: the placement that was chosen by prediction.
        problem: the problem, with the costs that it was chosen by.
        analysis: analysis of the model.
        candidates: the candidates that it was chosen from.
        calibrated: see `required_gain`.

    Returns:
        A clause; "" where the best placement was chosen and is a split, or where there is one device.
    """
    if len(problem.devices) == 1:
        return ""
    margin = margin_that_decides(chosen, problem, candidates, calibrated=calibrated)
    if len(np.unique(chosen.placement)) > 1:
        return margin
    scores = problem.scores(np.stack([candidate.placement for candidate in candidates]))
    if scores.min() < problem.scores(chosen.placement)[0] * (1 - MARGIN):
        return margin
    dominant = describe_dominant_group(problem.graph, problem.groups, analysis.model, analysis.shapes)
    reason = f"no split is predicted to gain {MARGIN:.1%}" if problem.groups.max() else "no split of it is possible"
    return f"{reason}: {dominant}" if dominant else reason


def margin_that_decides(
    chosen: NamedPlacement, problem: PlacementProblem, candidates: Sequence[NamedPlacement], *, calibrated: bool
) -> str:
    """Says that a simpler placement was chosen than the one with the best prediction, and by which margin.

    Args:
        chosen: the placement that was chosen by prediction.
        problem: the problem, with the costs that it was chosen by.
        candidates: the candidates that it was chosen from.
        calibrated: see `required_gain`.

    Returns:
        A clause; "" where the best candidate was chosen, or one whose prediction looks the same.
    """
    evaluation = problem.evaluate(np.stack([candidate.placement for candidate in candidates]))
    scores = evaluation.score(problem.objective)
    best = int(scores.argmin())
    evaluation_of_chosen = problem.evaluate(chosen.placement)
    gain = float(evaluation_of_chosen.score(problem.objective)[0] / scores[best]) - 1
    if candidates[best].name == chosen.name or gain < _SHOWN_AS_ZERO:
        return ""
    submodels = int(evaluation.submodels[best])
    fewer = int(evaluation_of_chosen.submodels[0])
    required = required_gain(submodels, fewer, calibrated=calibrated)
    text = f"{placer_of(candidates[best].name)} is predicted {gain:.2%} better and not taken:"
    if submodels > fewer:
        return f"{text} {submodels} submodels instead of {fewer} have to gain {required:.1%}"
    return f"{text} a less simple placement has to gain {required:.1%}"


def candidate_notes(
    problem: PlacementProblem,
    candidates: Sequence[NamedPlacement],
    pins: ModelPins,
    *,
    chosen_by_prediction: NamedPlacement | None,
    measured: Collection[str] | None,
) -> dict[str, str]:
    """Explains why candidates were left out, not taken or not measured.

    Args:
        problem: the problem, with the pins.
        candidates: all candidates.
        pins: the pins of the caller.
        chosen_by_prediction: the chosen candidate where predictions decided; None where they did not.
        measured: names of the candidates that were measured; None where nothing was measured.

    Returns:
        A clause by the candidate's name; candidates without such a reason are left out.
    """
    notes = {} if chosen_by_prediction is None else why_not_taken(problem, candidates, chosen_by_prediction)
    same_as = same_placements(candidates)
    for candidate in candidates:
        left_out = why_left_out(problem, candidate.placement)
        if left_out and pins.nodes and not why_left_out(pins.unpinned(problem), candidate.placement):
            notes[candidate.name] = f"left out: does not keep {pins}"
        elif left_out:
            notes[candidate.name] = left_out
        elif candidate.name in (measured or ()):
            continue
        elif candidate.name in same_as:
            notes[candidate.name] = f"same placement as {same_as[candidate.name]}"
        elif measured is not None:
            notes[candidate.name] = "not measured: others are predicted to be better"
    return notes


def same_placements(candidates: Sequence[NamedPlacement]) -> dict[str, str]:
    """Finds candidates that have the same placement as an earlier one.

    Returns:
        The name of the first candidate with that placement, by the name of each later one.
    """
    first: dict[bytes, str] = {}
    names = {each.name: first.setdefault(each.placement.tobytes(), each.name) for each in candidates}
    return {name: other for name, other in names.items() if other != name}
