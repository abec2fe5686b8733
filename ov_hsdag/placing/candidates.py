"""Candidates of a placing: what every placer finds for a problem, simplest first, and the best by the simulator."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.model.placement import NOT_TAKEN, Placement
from ov_hsdag.model.shapes import is_unbounded
from ov_hsdag.placers.base import Placer
from ov_hsdag.placers.contiguous import Contiguous
from ov_hsdag.placers.filling import Filling
from ov_hsdag.placers.multilevel import Multilevel
from ov_hsdag.placers.registry import unlearned_placers
from ov_hsdag.policy import bundle, tuned
from ov_hsdag.policy.bundle import PolicyFolder
from ov_hsdag.policy.placer import HSDAGPlacer
from ov_hsdag.problem.pricing import ModelAnalysis
from ov_hsdag.problem.problem import Evaluation, PlacementProblem
from ov_hsdag.utils.byte_sizes import exceeding, format_bytes, round_up
from ov_hsdag.utils.errors import DoesNotFitError, RunError, UserError, one_line
from ov_hsdag.utils.lazy import ov

MARGIN = 0.005
"""A placement must be predicted to beat a simpler one by more than this share to be chosen, however many submodels it
has: below it the cost model knows nothing."""

PREDICTION_ERROR_CALIBRATED = 0.05
"""Standard deviation of log(measured / predicted rate) when costs were measured on this machine
(`python -m benchmarks.truth.prediction_accuracy`)."""

PREDICTION_ERROR_PROFILE = 0.14
"""The same when costs come from a device profile."""

DOUBLING_SHARE = 0.1
"""Share of the prediction error that a placement has to gain for each doubling of its submodels. Most of the error is
common to all placements of a model and does not change which of them is best; this share is what parts add to it."""

LEAST_SHOWN = 0.0005
"""Share by which a candidate has to be predicted better for tables to say that it was not taken: less is shown as 0.0%
to them."""

# `enough_memory`: the factor within which limits are found, and trials without the searches, which take 2 s each where
# nothing fits, and with them.
_PRECISION = 1.02
_QUICK_TRIALS = 8
_TRIALS = 2

# For judging the policy's placement, see `PlacementProblem.evaluate`.
_MOST_WORK = 10_000_000

# Why HETERO does not run a placement, by the bits of `Evaluation.infeasible`.
_BROKEN = {
    16: "the ReadValue and the Assign of a state have nothing between them, so HETERO parts them",
    2: "a device does not support an operation that it was given",
    1: "it finds no order of the submodels",
    8: "a submodel computes nothing",
}


@dataclass(frozen=True)
class NamedPlacement:
    """A placement, and the name of what found it."""

    name: str  # of the placer, or of the single device
    placement: NDArray[np.uint8]  # device of each colocation group, uint8 [groups]
    by_profile: bool = False  # found without the costs that were measured on this machine


def policy_placers(
    policy: str | PathLike[str] | None, core: ov.Core | None = None, devices: Sequence[str] = ()
) -> list[HSDAGPlacer]:
    """The learned placer of a policy's name or folder; "none": no policy.

    None: the one that was fine-tuned on these devices, else the one that ships. UserError: there is no such policy, or
    its folder cannot be used; by default, this is a warning.
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
            warnings.warn(f"the policy is not asked: {error}", stacklevel=2)
    return []


def find_candidates(
    problem: PlacementProblem, learned: Sequence[HSDAGPlacer], *, search: Multilevel | None = None
) -> list[NamedPlacement]:
    """What all placers find, simplest first, repaired where HETERO would not run it.

    UserError: a policy does not fit the problem. RunError: a policy does not run.
    """
    found = [run(placer, problem) for placer in unlearned_placers(problem, search)]
    return found + _learned_candidates(problem, learned if len(problem.devices) > 1 else ())


def find_within_memory(
    problem: PlacementProblem, learned: Sequence[HSDAGPlacer], *, guessed: bool, search: Multilevel | None = None
) -> tuple[PlacementProblem, list[NamedPlacement]]:
    """`find_candidates`, after the problem that they were found for.

    guessed: sizes of tensors are guesses. Where these alone exceed the memory limits, the limits then hold for weights
    and states, which are known, and the problem is another one.
    """
    candidates = find_candidates(problem, learned, search=search)
    if guessed and _only_memory_lacks(problem, candidates):
        problem = _without_tensors(problem)
        candidates = find_candidates(problem, learned, search=search)
    return problem, candidates


def _without_tensors(problem: PlacementProblem) -> PlacementProblem:
    """The problem whose memory counts weights and states alone."""
    graph = problem.graph
    kept = (graph.weight_bytes > 0) | np.isin(graph.types, "ReadValue")
    held = None if problem.held_bytes is None else np.where(kept[:, None], problem.held_bytes, 0)
    return replace(problem, held_bytes=held, live_bytes=np.zeros(graph.outputs, np.int64))


def sizes_are_guessed(analysis: ModelAnalysis) -> bool:
    """Whether sizes of tensors are guesses: inputs without bounds, and no example shapes."""
    return not analysis.shapes and is_unbounded(analysis.model)


def enough_memory(problem: PlacementProblem, candidates: Sequence[NamedPlacement]) -> dict[str, int]:
    """About the least memory with which the search finds a placement, by bisection of a factor of all limits.

    Bytes by name of the devices that need more than they have; the search was tried with them. Empty where nothing was
    found, or where memory is not what is short.
    """

    def needed(found: Sequence[NamedPlacement]) -> tuple[float, dict[str, int]]:
        """The smallest factor of the limits that a placement keeps, and the limits that it takes."""
        result = _evaluate(problem, found)
        factors = np.where(result.broken, np.inf, (result.memory_bytes / problem.memory_limits).max(axis=1))
        needs = problem.stored_bytes(result.memory_bytes[factors.argmin()])
        return float(factors.min()), {
            name: round_up(need)
            for name, need, limit in zip(problem.devices, needs, problem.stored_limits, strict=True)
            if limit is not None and need > limit
        }

    def tried(limits: Mapping[str, int], quick: bool = False) -> list[NamedPlacement]:
        other = problem.with_memory(limits)
        return [run(placer, other) for placer in (Contiguous(), Filling())] if quick else find_candidates(other, ())

    held = problem.group_held.min(axis=1).sum()
    low = max(1.0, float(held / problem.memory_limits.sum()))
    high, tight = needed(candidates)
    if not 1 < high < np.inf:
        return {}
    least, wide = low, dict[str, int]()
    for trial in range(_QUICK_TRIALS + _TRIALS):
        quick = trial < _QUICK_TRIALS
        if trial == _QUICK_TRIALS:
            low = least  # the searches find more
        if high < low * _PRECISION:
            continue
        middle = float(np.sqrt(low * high))
        limits = {
            name: round_up(middle * limit)
            for name, limit in zip(problem.devices, problem.stored_limits, strict=True)
            if limit is not None
        }
        factor, needs = needed(tried(limits, quick))
        if factor < high:
            high, tight = factor, needs
        if factor > middle:
            low = middle
        else:
            wide = limits
    # Devices that had the same limit keep one.
    own = dict(zip(problem.devices, problem.stored_limits, strict=True))
    tight = {name: max(more for other, more in tight.items() if own[other] == own[name]) for name in tight}
    # The search may lose its way between limits that are tighter than those that it was tried with.
    for growth in (1.0, 1.02, 1.05, 1.1, 1.2):
        limits = {name: round_up(growth * more) for name, more in tight.items()}
        for quick in (True, False):
            if not _evaluate(problem.with_memory(limits), tried(limits, quick)).infeasible.all():
                return limits
        if wide:
            return wide
    return {}


def describe_enough(enough: Mapping[str, int], devices: Sequence[str]) -> str:
    """What to say of `enough_memory`, to go behind what is wrong; "" where there is nothing."""
    if not enough:
        return ""
    if len(devices) == len(enough) > 1 and len(set(enough.values())) == 1:
        return f"; {format_bytes(next(iter(enough.values())))} on each would do"
    return f"; {' and '.join(f'{format_bytes(size)} on {name}' for name, size in enough.items())} would do"


def run(placer: Placer, problem: PlacementProblem) -> NamedPlacement:
    """What a placer finds, repaired where HETERO would not run it."""
    return NamedPlacement(placer.name, problem.legalized(placer.place(problem)))


def _learned_candidates(problem: PlacementProblem, placers: Sequence[HSDAGPlacer]) -> list[NamedPlacement]:
    found = []
    for placer in placers:
        try:
            placement = placer.place(problem)
            if not problem.evaluate(placement, most_work=_MOST_WORK).broken[0]:
                found.append(NamedPlacement(placer.name, placement))
            elif not placer.optional:
                found.append(NamedPlacement(placer.name, problem.repair(placement)))
        except Exception as error:
            if placer.optional:  # whatever is wrong with a policy that nobody asked for
                warnings.warn(f"the policy is not asked: {one_line(error)}", stacklevel=2)
                continue
            if isinstance(error, RuntimeError):
                raise RunError(f"the policy '{placer.policy}' does not run: {one_line(error)}") from error
            raise
    return found


def placement_of(
    problem: PlacementProblem,
    chosen: NamedPlacement,
    candidates: Iterable[NamedPlacement],
    measured_costs: Sequence[str] = (),
    **more: Any,
) -> Placement:
    """The chosen candidate as it is written into a model, with what is predicted of it and of the feasible others.

    measured_costs: devices whose operations were measured. more: other fields of the placement.
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
            one.name: problem.summary(one.placement)
            for one in candidates
            if np.isfinite(problem.scores(one.placement)[0])
        },
    )


def required_gain(submodels: int, simpler: int, *, calibrated: bool) -> float:
    """The share by which a placement has to be predicted better than a simpler one to be chosen.

    It is `MARGIN`, and for each doubling of the submodels `DOUBLING_SHARE` of the prediction error. Requests in flight
    need no term of their own: their number follows from the submodels.

    Args:
        submodels: of the placement.
        simpler: submodels of the simpler placement.
        calibrated: whether all costs were measured on this machine; otherwise some come from a device profile.
    """
    error = PREDICTION_ERROR_CALIBRATED if calibrated else PREDICTION_ERROR_PROFILE
    doublings = max(math.log2(max(submodels, 1) / max(simpler, 1)), 0.0)
    return MARGIN + DOUBLING_SHARE * error * doublings


def best_by_prediction(
    problem: PlacementProblem, candidates: Sequence[NamedPlacement], *, calibrated: bool = False
) -> NamedPlacement:
    """The best candidate by the simulator of those whose gain is worth their submodels.

    Candidates are compared from the fewest submodels on, of as many from the fewest tensors that cross on, and then in
    the given order. A later one has to be better than the best before it by `required_gain`.

    Args:
        problem: the problem that they are placements of.
        candidates: the simplest placers first.
        calibrated: see `required_gain`.

    Raises:
        UserError: HETERO runs none of them; the message says why.
        DoesNotFitError: none keeps within the devices' memory.
    """
    evaluation = _evaluate(problem, candidates)
    scores = evaluation.score(problem.objective)
    if not np.isfinite(scores).any():
        require_runnable(problem, candidates)
        raise DoesNotFitError(
            f"no placement on {', '.join(problem.devices)} keeps within the devices' memory:"
            f" {_memory(problem, candidates)}"
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
    """Why candidates that are predicted better were not chosen, by name: "6 submodels for 0.5%: not taken"."""
    taken, evaluation = problem.evaluate(chosen.placement), _evaluate(problem, candidates)
    gains = taken.score(problem.objective)[0] / evaluation.score(problem.objective) - 1
    notes = {}
    for number in np.flatnonzero(gains >= LEAST_SHOWN).tolist():
        submodels, tensors = int(evaluation.submodels[number]), int(evaluation.cut_tensors[number])
        if submodels > taken.submodels[0]:
            parts = f"{submodels} submodels"
        elif tensors > taken.cut_tensors[0]:
            parts = f"{tensors} tensors that cross"
        else:
            parts = "a less simple placement"
        notes[candidates[number].name] = f"{parts} for {gains[number]:.1%}{NOT_TAKEN}"
    return notes


def _only_memory_lacks(problem: PlacementProblem, candidates: Sequence[NamedPlacement]) -> bool:
    """Whether no candidate is feasible, memory is all that some of them lack, and there is enough for the weights."""
    if problem.graph.weight_bytes.sum() > problem.memory_limits.sum():
        return False
    found = _evaluate(problem, candidates)
    return bool((found.infeasible != 0).all() and not found.broken.all())


def require_runnable(problem: PlacementProblem, candidates: Sequence[NamedPlacement], *, ignored: int = 0) -> None:
    """UserError: HETERO runs no candidate, whatever the memory. ignored: bits of `infeasible` that do not count."""
    broken = _evaluate(problem, candidates).infeasible & (sum(_BROKEN) - ignored)
    if broken.all():
        why = next(reason for bit, reason in _BROKEN.items() if int(broken[0]) & bit)
        raise UserError(f"HETERO on {', '.join(problem.devices)} does not run this model: {why}")


def why_left_out(problem: PlacementProblem, placement: NDArray[np.uint8]) -> str:
    """Why a placement is no candidate: what HETERO lacks to run it, or which device it exceeds; "" if it is one."""
    found = problem.evaluate(placement)
    infeasible = int(found.infeasible[0])
    if not infeasible:
        return ""
    for bit, reason in _BROKEN.items():
        if infeasible & bit:
            return f"left out: {reason}"
    needs = problem.stored_bytes(found.memory_bytes[0])
    return f"left out: does not fit, needs {exceeding(problem.devices, needs, problem.stored_limits)}"


def _evaluate(problem: PlacementProblem, candidates: Sequence[NamedPlacement]) -> Evaluation:
    return problem.evaluate(np.stack([candidate.placement for candidate in candidates]))


def _memory(problem: PlacementProblem, candidates: Sequence[NamedPlacement]) -> str:
    needs = _evaluate(problem, candidates).memory_bytes.max(axis=0)
    return ", ".join(
        f"{name} holds {format_bytes(limit)}, the model needs up to {format_bytes(need)}"
        for name, limit, need in zip(problem.devices, problem.stored_limits, problem.stored_bytes(needs), strict=True)
        if limit is not None
    )
