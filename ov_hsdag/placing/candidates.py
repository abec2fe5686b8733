"""Candidates: the placements that every placer finds for a problem, and the choice among them by prediction.

A placement is chosen only if it is predicted better than simpler ones by a margin. A placement is broken if HETERO does
not run it even with unlimited memory, and infeasible if it is broken or exceeds a memory limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.model.placement import NOT_TAKEN, Placement
from ov_hsdag.model.shapes import is_unbounded
from ov_hsdag.placers.base import Placer
from ov_hsdag.placers.multilevel import Multilevel
from ov_hsdag.placers.registry import unlearned_placers
from ov_hsdag.policy import bundle, tuned
from ov_hsdag.policy.bundle import PolicyFolder
from ov_hsdag.policy.placer import HSDAGPlacer
from ov_hsdag.problem.pricing import ModelAnalysis
from ov_hsdag.problem.problem import Evaluation, PlacementProblem
from ov_hsdag.utils.byte_sizes import exceeding, format_bytes
from ov_hsdag.utils.errors import DoesNotFitError, RunError, UserError, one_line
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.warn import warn_caller

MARGIN = 0.005
"""Share by which a placement must be predicted better than a simpler one to be chosen, whatever its submodels.

Smaller predicted gains are below what the cost model can tell apart."""

PREDICTION_ERROR_CALIBRATED = 0.05
"""Standard deviation of log(measured / predicted rate) when costs were measured on this machine
(`python -m benchmarks.truth.prediction_accuracy`)."""

PREDICTION_ERROR_PROFILE = 0.14
"""Standard deviation of log(measured / predicted rate) when costs come from a device profile."""

DOUBLING_SHARE = 0.1
"""Share of the prediction error that a placement has to gain for each doubling of its submodels.

Most of the error is common to all placements of a model and does not change which of them is best. This share stands
for the part of the error that grows with the number of submodels."""

LEAST_SHOWN = 0.0005
"""Share by which a candidate has to be predicted better before tables say that it was not taken.

Tables print gains in percent with one decimal, so smaller ones would read 0.0%."""

# Steps for evaluating the policy's placement, about 10 ms; see `most_work` of `PlacementProblem.evaluate`. Placements
# of a policy may have thousands of submodels, which would take minutes.
_MOST_WORK = 10_000_000

# Reasons why HETERO does not run a placement, by the bits of `Evaluation.infeasible`. The first bit that is set is
# reported.
_REASON_OF_BIT = {
    16: "the ReadValue and the Assign of a state have nothing between them, so HETERO parts them",
    2: "a device does not support an operation that it was given",
    1: "it finds no order of the submodels",
    8: "a submodel computes nothing",
}


@dataclass(frozen=True)
class NamedPlacement:
    """A placement with the name of the placer that found it.

    Attributes:
        name: name of the placer, or of the single device.
        placement: device number of each colocation group, uint8 [groups].
        by_profile: whether it was found with costs of the device profile although measured costs exist.
    """

    name: str
    placement: NDArray[np.uint8]
    by_profile: bool = False


def policy_placers(
    policy: str | PathLike[str] | None, core: ov.Core | None = None, devices: Sequence[str] = ()
) -> list[HSDAGPlacer]:
    """Makes the placer of a learned policy, as a list of at most one.

    Args:
        policy: name or folder of the policy; "none" for no policy. By default the one that was fine-tuned on these
            devices, else the one that ships with the package.
        core: Core of the devices, which identifies the fine-tuned policy; without it only the shipped one is found.
        devices: names of the devices, in HETERO's order.

    Returns:
        The placer; an empty list for "none", and where no default policy can be used, which is a warning.

    Raises:
        UserError: the named policy does not exist, or its folder cannot be used.
    """
    if policy == "none":
        return []
    if policy is not None:
        return [HSDAGPlacer(PolicyFolder.load(policy).path)]
    kept = tuned.find(core, devices) if core is not None and len(devices) > 1 else None
    for default in (kept, bundle.DEFAULT):
        try:
            if default is not None:
                return [HSDAGPlacer(PolicyFolder.load(default).path, optional=True)]
        except UserError as error:
            warn_caller(f"the policy is not asked: {error}")
    return []


def find_candidates(
    problem: PlacementProblem, learned: Sequence[HSDAGPlacer], *, search: Multilevel | None = None
) -> list[NamedPlacement]:
    """Runs all placers on a problem, the simplest first, and repairs placements that HETERO would not run.

    Args:
        problem: the problem.
        learned: placers of policies; they are left out where there is one device.
        search: the multilevel search; the default one where it is None.

    Returns:
        One placement of each placer. A default policy that fails is left out, with a warning.

    Raises:
        UserError: a policy that was asked for does not fit the problem.
        RunError: a policy that was asked for does not run.
    """
    found = [run(placer, problem) for placer in unlearned_placers(problem, search)]
    return found + _learned_candidates(problem, learned if len(problem.devices) > 1 else ())


def find_within_memory(
    problem: PlacementProblem, learned: Sequence[HSDAGPlacer], *, guessed: bool, search: Multilevel | None = None
) -> tuple[PlacementProblem, list[NamedPlacement]]:
    """Finds candidates, and ignores the memory of tensors where only guessed sizes exceed the limits.

    Args:
        problem: the problem.
        learned: placers of policies.
        guessed: whether sizes of tensors are guesses, see `sizes_are_guessed`. Where no candidate fits, limits then
            hold for weights and states alone, whose sizes are known.
        search: the multilevel search; the default one where it is None.

    Returns:
        The problem that the candidates were found for, and the candidates (`find_candidates`). The problem is `problem`
        itself, or a copy in which tensors take no memory.

    Raises:
        UserError: see `find_candidates`.
        RunError: see `find_candidates`.
    """
    candidates = find_candidates(problem, learned, search=search)
    if guessed and _only_memory_is_short(problem, candidates):
        problem = _without_tensors(problem)
        candidates = find_candidates(problem, learned, search=search)
    return problem, candidates


def _without_tensors(problem: PlacementProblem) -> PlacementProblem:
    """Returns a copy of the problem in which only weights and states take memory."""
    graph = problem.graph
    stored = (graph.weight_bytes > 0) | np.isin(graph.types, "ReadValue")
    held = None if problem.held_bytes is None else np.where(stored[:, None], problem.held_bytes, 0)
    return replace(problem, held_bytes=held, live_bytes=np.zeros(graph.outputs, np.int64))


def sizes_are_guessed(analysis: ModelAnalysis) -> bool:
    """Whether sizes of tensors are guesses: inputs without bounds, and no example shapes."""
    return not analysis.shapes and is_unbounded(analysis.model)


def run(placer: Placer, problem: PlacementProblem) -> NamedPlacement:
    """Runs one placer, and repairs its placement where HETERO would not run it (`PlacementProblem.legalized`)."""
    return NamedPlacement(placer.name, problem.legalized(placer.place(problem)))


def _learned_candidates(problem: PlacementProblem, placers: Sequence[HSDAGPlacer]) -> list[NamedPlacement]:
    """Runs the placers of policies.

    A default policy is skipped where it fails, with a warning, or where HETERO would not run its placement. The
    placement of a policy that the user named is repaired then.

    Args:
        problem: the problem.
        placers: the placers; `HSDAGPlacer.optional` marks default policies.

    Raises:
        UserError: a policy that the user named does not fit the problem.
        RunError: a policy that the user named does not run.
    """
    candidates = []
    for placer in placers:
        try:
            placement = placer.place(problem)
            if not problem.evaluate(placement, most_work=_MOST_WORK).broken[0]:
                candidates.append(NamedPlacement(placer.name, placement))
            elif not placer.optional:
                candidates.append(NamedPlacement(placer.name, problem.repair(placement)))
        except Exception as error:
            if placer.optional:  # a default policy, which nobody asked for, must not stop a placing
                warn_caller(f"the policy is not asked: {one_line(error)}")
                continue
            if isinstance(error, RuntimeError):
                raise RunError(f"the policy '{placer.policy}' does not run: {one_line(error)}") from error
            raise
    return candidates


def placement_of(
    problem: PlacementProblem,
    chosen: NamedPlacement,
    candidates: Iterable[NamedPlacement],
    measured_costs: Sequence[str] = (),
    **more: Any,
) -> Placement:
    """Converts the chosen candidate into the form that is written into a model, with predictions of others.

    Args:
        problem: the problem.
        chosen: the chosen candidate.
        candidates: all candidates; feasible ones are recorded as baselines.
        measured_costs: names of the devices whose operations were measured; recorded with the prediction.
        more: further fields of `Placement`, by name.

    Returns:
        The placement, by node name.
    """
    predicted = problem.summary(chosen.placement)
    return Placement(
        devices=problem.devices,
        affinity=problem.affinity(chosen.placement),
        objective=problem.objective,
        chosen=chosen.name,
        predicted=predicted | ({"measured_costs": list(measured_costs)} if measured_costs else {}),
        **more,
        baselines={
            candidate.name: problem.summary(candidate.placement)
            for candidate in candidates
            if np.isfinite(problem.scores(candidate.placement)[0])
        },
    )


def required_gain(submodels: int, simpler: int, *, calibrated: bool) -> float:
    """Computes the share by which a placement has to be predicted better than a simpler one to be chosen.

    It is `MARGIN` plus `DOUBLING_SHARE` of the prediction error for each doubling of the submodels. The number of
    requests in flight needs no term of its own, as it follows from the number of submodels.

    Args:
        submodels: number of submodels of the placement.
        simpler: number of submodels of the simpler placement.
        calibrated: whether all costs were measured on this machine; otherwise some come from a device profile.

    Returns:
        The required relative gain, 0.01 for 1%.
    """
    error = PREDICTION_ERROR_CALIBRATED if calibrated else PREDICTION_ERROR_PROFILE
    doublings = max(math.log2(max(submodels, 1) / max(simpler, 1)), 0.0)
    return MARGIN + DOUBLING_SHARE * error * doublings


def best_by_prediction(
    problem: PlacementProblem, candidates: Sequence[NamedPlacement], *, calibrated: bool = False
) -> NamedPlacement:
    """Chooses the best candidate by prediction among those whose gain is worth their submodels.

    Candidates are sorted by their number of submodels, then by the number of tensors that cross devices; others keep
    the given order. A later one replaces the best so far only where it is better by `required_gain`.

    Args:
        problem: the problem that the candidates are placements of.
        candidates: the candidates, those of the simplest placers first.
        calibrated: see `required_gain`.

    Returns:
        The chosen candidate.

    Raises:
        UserError: HETERO runs none of the candidates; the message says why.
        DoesNotFitError: no candidate keeps within the devices' memory.
    """
    evaluation = evaluate(problem, candidates)
    scores = evaluation.score(problem.objective)
    if not np.isfinite(scores).any():
        require_runnable(problem, candidates)
        raise DoesNotFitError(
            f"no placement on {', '.join(problem.devices)} keeps within the devices' memory:"
            f" {_describe_memory(problem, candidates)}"
        )
    submodels = evaluation.submodels
    simplest_first = np.lexsort((evaluation.cut_tensors, submodels))
    best, *later = simplest_first[np.isfinite(scores[simplest_first])].tolist()
    for number in later:
        required = required_gain(int(submodels[number]), int(submodels[best]), calibrated=calibrated)
        if scores[number] < scores[best] * (1 - required):
            best = number
    return candidates[best]


def why_not_taken(
    problem: PlacementProblem, candidates: Sequence[NamedPlacement], chosen: NamedPlacement
) -> dict[str, str]:
    """Explains why candidates that are predicted better were not chosen.

    Args:
        problem: the problem.
        candidates: all candidates.
        chosen: the chosen one.

    Returns:
        The reason by name of the candidate, such as "6 submodels for 0.5%: not taken"; gains below `LEAST_SHOWN` are
        left out.
    """
    chosen_result, evaluation = problem.evaluate(chosen.placement), evaluate(problem, candidates)
    gains = chosen_result.score(problem.objective)[0] / evaluation.score(problem.objective) - 1
    notes = {}
    for number in np.flatnonzero(gains >= LEAST_SHOWN).tolist():
        submodels, tensors = int(evaluation.submodels[number]), int(evaluation.cut_tensors[number])
        if submodels > chosen_result.submodels[0]:
            parts = f"{submodels} submodels"
        elif tensors > chosen_result.cut_tensors[0]:
            parts = f"{tensors} tensors that cross"
        else:
            parts = "a less simple placement"
        notes[candidates[number].name] = f"{parts} for {gains[number]:.1%}{NOT_TAKEN}"
    return notes


def _only_memory_is_short(problem: PlacementProblem, candidates: Sequence[NamedPlacement]) -> bool:
    """Whether more memory would help: no candidate is feasible, and one of them fails because of memory alone.

    False where the limits together are too small for the weights, as then ignoring tensors does not help.
    """
    if problem.graph.weight_bytes.sum() > problem.memory_limits.sum():
        return False
    found = evaluate(problem, candidates)
    return bool((found.infeasible != 0).all() and not found.broken.all())


def require_runnable(problem: PlacementProblem, candidates: Sequence[NamedPlacement], *, ignored: int = 0) -> None:
    """Checks that HETERO would run at least one candidate if memory were unlimited.

    Args:
        problem: the problem.
        candidates: its candidates.
        ignored: sum of bits of `Evaluation.infeasible` that count as no obstacle.

    Raises:
        UserError: HETERO runs none of them; the message says why it does not run the first.
    """
    broken = evaluate(problem, candidates).infeasible & (sum(_REASON_OF_BIT) - ignored)
    if broken.all():
        why = next(reason for bit, reason in _REASON_OF_BIT.items() if int(broken[0]) & bit)
        raise UserError(f"HETERO on {', '.join(problem.devices)} does not run this model: {why}")


def why_left_out(problem: PlacementProblem, placement: NDArray[np.uint8]) -> str:
    """Explains why a placement is infeasible: HETERO does not run it, or it exceeds memory; "" if it is feasible."""
    evaluation = problem.evaluate(placement)
    infeasible = int(evaluation.infeasible[0])
    if not infeasible:
        return ""
    for bit, reason in _REASON_OF_BIT.items():
        if infeasible & bit:
            return f"left out: {reason}"
    needs = problem.stored_bytes(evaluation.memory_bytes[0])
    return f"left out: does not fit, needs {exceeding(problem.devices, needs, problem.stored_limits)}"


def evaluate(problem: PlacementProblem, candidates: Sequence[NamedPlacement]) -> Evaluation:
    """Evaluates all candidates as one batch."""
    return problem.evaluate(np.stack([candidate.placement for candidate in candidates]))


def _describe_memory(problem: PlacementProblem, candidates: Sequence[NamedPlacement]) -> str:
    """Describes, for an error message, the limit of each limited device and the most that a candidate needs there."""
    needs = evaluate(problem, candidates).memory_bytes.max(axis=0)
    return ", ".join(
        f"{name} holds {format_bytes(limit)}, the model needs up to {format_bytes(need)}"
        for name, limit, need in zip(problem.devices, problem.stored_limits, problem.stored_bytes(needs), strict=True)
        if limit is not None
    )
