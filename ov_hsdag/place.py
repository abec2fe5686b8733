"""The whole road: a model and a device list in, the same model with a placement in it out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.calibration.calibrate import calibrate_prepared
from ov_hsdag.costs import cost_model
from ov_hsdag.costs.builtin import builtin_profile
from ov_hsdag.costs.profile import Profile
from ov_hsdag.costs.stored import DeviceCosts, ModelCosts
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring import selection
from ov_hsdag.model import complete, repair
from ov_hsdag.model.graph import UNBOUNDED_DIMENSION, ComputationGraph, is_unbounded
from ov_hsdag.model.placement import Placement, set_affinities
from ov_hsdag.placers.base import Placer
from ov_hsdag.placers.mincut import MinCut
from ov_hsdag.placers.pipeline import Pipeline
from ov_hsdag.placers.single import HeteroDefault, SingleDevice
from ov_hsdag.policy import bundle
from ov_hsdag.policy.placer import HSDAGPlacer
from ov_hsdag.problem.analysis import Prepared, prepare
from ov_hsdag.problem.problem import Evaluation, PlacementProblem, check_objective
from ov_hsdag.utils.errors import RunError, UserError, one_line
from ov_hsdag.utils.timing import Clock

if TYPE_CHECKING:
    import openvino as ov

# A split has to promise more than this over the best single device (and any placement over a simpler one) to be chosen:
# below it the cost model knows nothing.
MARGIN = 0.005

# Why HETERO does not run a placement, by the bits of `Evaluation.infeasible`.
_BROKEN = {
    16: "the ReadValue and the Assign of a state have nothing between them, so HETERO parts them",
    2: "a device does not support an operation that it was given",
    1: "it finds no order of the submodels",
    8: "a submodel computes nothing",
}

# How much slower a device may be than predicted: the median error of predictions, about, and a large one.
_HEDGES = {"slower": 0.06, "much slower": 0.15}


def place(
    model: ov.Model,
    device: str,
    *,
    objective: str = "latency",
    profile: Profile | str | PathLike[str] | None = None,
    policy: str | PathLike[str] | None = None,
    core: ov.Core | None = None,
    affinity: Mapping[str, str] | Placement | str | PathLike[str] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    memory: Mapping[str, int] | None = None,
    measure: bool | None = None,
    measure_seconds: float = selection.SECONDS,
    report: Callable[[str], None] | None = None,
    costs: ModelCosts | str | PathLike[str] | None = None,
) -> Placement:
    """Decides where each operation of `model` runs; the model is normalized, annotated and carries the placement.

    Args:
        model: any model; changed in place.
        device: the devices, in order of preference: "HETERO:GPU,CPU".
        objective: "latency" of one request or "throughput" of many in flight.
        profile: speeds of the devices; built-in profiles by default.
        policy: name or folder of the learned policy, "none" for none; by default the one that ships.
        core: asked what the devices support, where it has them. A new one by default.
        affinity: a placement that is given (or a file of one) instead of decided: {node: device}.
        shapes: example shapes of dynamic inputs for the cost model, and for measuring.
        memory: bytes that the model may have on a device, by its name, in place of the profile's limits.
        measure: measure what the model's operations cost on the devices (unless `costs` tell), and then the best
            predicted placements (in processes of their own) against each single device and HETERO's own choices; choose
            by that. By default the choice is the prediction's.
        measure_seconds: that this may take, about.
        report: is told what is being measured.
        costs: what `ov-hsdag calibrate --model` measured (or its file); used for the devices that it holds for, which
            `Placement.predicted` names under "measured_costs".

    Raises:
        UserError: bad input, or a device that is to be measured and is not on this machine; `model` may have been
            normalized, but carries no placement of this call.
        RunError: a policy that was asked for does not run.
    """
    check_objective(objective)
    devices = DeviceSet.parse(device)
    learned = policy_placers(policy)
    clock = Clock()
    given = _given(affinity, devices)
    if given is not None:
        given.check_nodes({node.get_friendly_name() for node in model.get_ops()})
    if core is None:
        core = _new_core()
    if measure:
        selection.require_devices(core, devices)
    limits = _limits(memory or {}, devices)
    if costs is not None and not isinstance(costs, ModelCosts):
        costs = ModelCosts.load(costs)
    known = _profile(profile, devices, core).with_memory(limits)
    prepared = prepare(model, devices.names, core, known, shapes=shapes, clock=clock)
    if measure and given is None:
        with clock("calibrate"):
            costs = _calibrated(prepared, known, core, costs, report)
    with clock("costs"):
        problem = _priced(prepared, objective, known, core, costs)
    measured_costs = list(costs.of(problem.graph, devices.names, core)) if costs else []

    with clock("placers"):
        candidates, found = _candidates(problem, learned, asked_for=policy is not None)
        if not shapes and is_unbounded(model) and _only_memory_lacks(problem, candidates):
            warnings.warn(
                "the memory limits are not applied: inputs without bounds, counted as"
                f" {UNBOUNDED_DIMENSION} in each dimension, would not fit; give example shapes (shapes= in Python, --shape on the command line)",
                stacklevel=2,
            )
            problem = replace(problem, memory_bytes=np.full(len(devices), -1, np.int64))
            candidates, found = _candidates(problem, learned, asked_for=policy is not None)
        if measure and given is None:
            candidates += _hedges(learned if found else [Pipeline()], problem)
    with clock("choose"):
        if given is not None:
            affinity_of = complete.complete(model, given.affinity, devices.names)
            chosen = _Candidate("affinity", problem.placement_of(affinity_of))
            # An operation that its device does not support may be what somebody wants to see.
            _require_runs(problem, [chosen], but=2)
        else:
            chosen = _choose(problem, candidates)
    measured = None
    if measure:
        with clock("measure"):
            placements = {one.name: one.placement for one in (*candidates, chosen)}
            held = selection.hold(
                model, problem, placements, core, shapes=shapes, seconds=measure_seconds, report=report
            )
        measured = held.measured or None
        candidates += [_Candidate(name, held.placements[name]) for name in held.placements if name not in placements]
        if given is None and held.chosen is not None:
            chosen = _Candidate(held.chosen, held.placements[held.chosen])
        elif given is None and held.measured.get(chosen.name, {}).get("failed"):
            # Nothing ran, and this is known to have failed: a device alone is less of a risk.
            alone = [one for one in candidates if one.name in devices and np.isfinite(problem.scores(one.placement)[0])]
            chosen = _choose(problem, alone) if alone else chosen
    with clock("choose"):
        placement = Placement(
            devices=devices.names,
            affinity=problem.affinity(chosen.placement),
            objective=objective,
            predicted={
                **problem.summary(chosen.placement),
                **({"measured_costs": measured_costs} if measured_costs else {}),
            },
            measured=measured,
            baselines={
                candidate.name: problem.summary(candidate.placement)
                for candidate in candidates
                if np.isfinite(problem.scores(candidate.placement)[0])
            },
            policy=Path(learned[0].policy).name if learned and learned[0].policy else None,
            chosen=chosen.name,
            seconds=clock.seconds,
        )
    with clock("write"):
        set_affinities(model, placement.affinity)
        placement.embed(model)
    return placement


def build_problem(
    model: ov.Model,
    devices: DeviceSet,
    *,
    objective: str = "latency",
    profile: Profile | str | PathLike[str] | None = None,
    core: ov.Core | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    costs: ModelCosts | None = None,
) -> PlacementProblem:
    """Normalizes `model` and makes the placement problem of it; arguments as in `place`.

    Raises:
        UserError: an unknown device, a profile without one of the devices, or an operation that no device runs.
    """
    if core is None:
        core = _new_core()
    known = _profile(profile, devices, core)
    return _priced(prepare(model, devices.names, core, known, shapes=shapes), objective, known, core, costs)


def _priced(
    prepared: Prepared, objective: str, profile: Profile, core: ov.Core, costs: ModelCosts | None
) -> PlacementProblem:
    """The placement problem: what operations and borders cost by the profile, and by `costs` where those hold."""
    import openvino as ov

    names, graph = prepared.devices, prepared.graph
    transfer_us, transfer_us_per_byte = cost_model.transfer_costs(profile, names)
    node_us = cost_model.node_us(profile, graph, names)
    fused_with, torn_us = cost_model.fusion_costs(profile, graph, names)
    submodel_us = profile.submodel_us(names)
    kept = cost_model.storage_ratios(profile, graph, names)
    measured_here = _measured(costs, graph, names, core)
    borders = costs.borders_of(names) if costs and len(measured_here) == len(names) else None
    if borders is not None:
        submodel_us, transfer_us = borders.submodel_us, borders.transfer_us
        transfer_us_per_byte = borders.transfer_us_per_byte
    for name, measured in measured_here.items():
        column = names.index(name)
        node_us[:, column] = measured.node_us
        fused_with[:, column], torn_us[:, column] = measured.fused_with, measured.torn_us
    return PlacementProblem(
        graph=graph,
        devices=names,
        objective=objective,
        node_us=node_us,
        supported=prepared.supported,
        groups=prepared.groups,
        transfer_us=transfer_us,
        transfer_us_per_byte=transfer_us_per_byte,
        submodel_us=submodel_us,
        memory_bytes=np.ceil(profile.memory_bytes(names) / kept).astype(np.int64),
        rule=repair.split_rule(ov.__version__),
        fused_with=fused_with,
        fusion_penalty_us=torn_us,
        storage_ratio=kept,
    )


def _new_core() -> ov.Core:
    import openvino as ov

    from ov_hsdag.devices.virtual import register

    core = ov.Core()
    register(core)
    return core


def _limits(memory: Mapping[str, int], devices: DeviceSet) -> Mapping[str, int]:
    """The limits. Raises UserError for another device, and for what is no number of bytes."""
    for name, limit in memory.items():
        if name not in devices.names:
            raise UserError(f"memory is limited for device '{name}', which is not in {devices.hetero}")
        if isinstance(limit, bool) or not isinstance(limit, int | np.integer) or limit <= 0:
            raise UserError(f"the memory of {name} must be a positive number of bytes, got {limit!r}")
    return memory


def policy_placers(policy: str | PathLike[str] | None) -> list[HSDAGPlacer]:
    """The learned placer, or none: where `policy` is "none", and by default where the package ships no policy.

    Raises:
        UserError: there is no such policy, or its folder cannot be used.
    """
    if policy == "none" or (policy is None and not bundle.ships(bundle.DEFAULT)):
        return []
    folder = bundle.find(policy)
    bundle.check_folder(folder)
    return [HSDAGPlacer(folder)]


def placers(problem: PlacementProblem) -> list[Placer]:
    """Every placer that needs no learning, simple ones first."""
    found: list[Placer] = [SingleDevice(name) for name in problem.devices]
    found += [HeteroDefault(), MinCut(), Pipeline()]
    return found


@dataclass(frozen=True)
class _Candidate:
    name: str
    placement: NDArray[np.uint8]


def _run(placer: Placer, problem: PlacementProblem) -> _Candidate:
    placement = placer.place(problem)
    if problem.evaluate(placement).broken[0]:
        placement = problem.repair(placement)
    return _Candidate(placer.name, placement)


def _candidates(
    problem: PlacementProblem, learned: Sequence[HSDAGPlacer], *, asked_for: bool
) -> tuple[list[_Candidate], list[_Candidate]]:
    """(what all placers find, simple ones first; what the policy finds). Raises as `_learned`."""
    found = _learned(learned, problem, asked_for=asked_for)
    return [_run(placer, problem) for placer in placers(problem)] + found, found


def _learned(placers: Sequence[HSDAGPlacer], problem: PlacementProblem, *, asked_for: bool) -> list[_Candidate]:
    """What the policy finds. One that nobody asked for must not keep a model from being placed.

    Raises:
        UserError: the policy does not fit the problem.
        RunError: a policy that was asked for does not run.
    """
    found = []
    for placer in placers:
        try:
            found.append(_run(placer, problem))
        except RuntimeError as error:
            reason = one_line(error)
            if asked_for:
                raise RunError(f"the policy '{placer.policy}' does not run: {reason}") from error
            warnings.warn(f"ov-hsdag places without its policy, which does not run here: {reason}", stacklevel=3)
    return found


def _hedges(placers: Sequence[Placer], problem: PlacementProblem) -> list[_Candidate]:
    """For measuring: what placers find if one device, each in turn, is slower than predicted.

    Throughput is a matter of balance, and predictions are off by some per cent: then a placement that leans a little
    to the right side is better than the one that is predicted best. Latency is a sum, in which such errors are small.
    """
    if problem.objective != "throughput":
        return []
    found = []
    for number, name in enumerate(problem.devices):
        for slower, share in _HEDGES.items():
            factor = np.where(np.arange(len(problem.devices)) == number, 1 + share, 1.0)
            other = replace(problem, node_us=problem.node_us * factor)
            found += [replace(_run(placer, other), name=f"{placer.name} ({name} {slower})") for placer in placers]
    return found


def _evaluate(problem: PlacementProblem, candidates: Sequence[_Candidate]) -> Evaluation:
    return problem.evaluate(np.stack([candidate.placement for candidate in candidates]))


def _choose(problem: PlacementProblem, candidates: Sequence[_Candidate]) -> _Candidate:
    """The best by the simulator; a later (less simple) candidate has to win by more than the margin."""
    scores = _evaluate(problem, candidates).score(problem.objective)
    if not np.isfinite(scores).any():
        _require_runs(problem, candidates)
        raise UserError(
            f"no placement on {', '.join(problem.devices)} keeps within the devices' memory:"
            f" {_memory(problem, candidates)}"
        )
    best = 0
    for index in range(1, len(scores)):
        if scores[index] < scores[best] * (1 - (MARGIN if np.isfinite(scores[best]) else 0)):
            best = index
    return candidates[best]


def _only_memory_lacks(problem: PlacementProblem, candidates: Sequence[_Candidate]) -> bool:
    """Whether no candidate is feasible, memory is all that some of them lack, and there is enough for the weights."""
    limits, weights = problem.memory_bytes, problem.graph.weight_bytes.sum()
    if (limits >= 0).all() and weights > limits.sum():
        return False
    found = _evaluate(problem, candidates)
    return bool((found.infeasible != 0).all() and not found.broken.all())


def _require_runs(problem: PlacementProblem, candidates: Sequence[_Candidate], but: int = 0) -> None:
    """Raises UserError where HETERO runs none of the candidates, whatever the devices' memory (and these bits)."""
    found = _evaluate(problem, candidates)
    broken = found.infeasible & (sum(_BROKEN) - but)
    if broken.all():
        why = next(reason for bit, reason in _BROKEN.items() if int(broken[0]) & bit)
        raise UserError(f"HETERO on {', '.join(problem.devices)} does not run this model: {why}")


def _memory(problem: PlacementProblem, candidates: Sequence[_Candidate]) -> str:
    needs = _evaluate(problem, candidates).memory_bytes.max(axis=0)
    return ", ".join(
        f"{name} holds {_mebibytes(limit)}, the model needs up to {_mebibytes(need)}"
        for name, limit, need in zip(
            problem.devices, problem.stored_bytes(problem.memory_bytes), problem.stored_bytes(needs), strict=True
        )
        if limit >= 0
    )


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:.0f} MiB" if count >= 2**24 else f"{count / 2**20:.3g} MiB"


def _calibrated(
    prepared: Prepared,
    profile: Profile,
    core: ov.Core,
    costs: ModelCosts | None,
    report: Callable[[str], None] | None,
) -> ModelCosts | None:
    """The model's costs on these devices: those that are known where they hold, else measured now."""
    names = prepared.devices
    if costs is not None and len(costs.of(prepared.graph, names, core)) == len(names):
        return costs
    if report:
        report(f"measuring operations on {', '.join(names)}")
    try:
        return calibrate_prepared(prepared, core, profile)[0]
    except (RunError, RuntimeError) as error:
        # Predictions are then a profile's, and the measured choice among placements is as good as ever.
        warnings.warn(f"ov-hsdag places by its profiles: calibrating failed: {one_line(error)}", stacklevel=3)
        return costs


def _profile(profile: Profile | str | PathLike[str] | None, devices: DeviceSet, core: ov.Core) -> Profile:
    if isinstance(profile, Profile):
        return profile
    return Profile.load(profile) if profile else builtin_profile(devices.names, core)


def _measured(
    costs: ModelCosts | None, graph: ComputationGraph, devices: Sequence[str], core: ov.Core
) -> dict[str, DeviceCosts]:
    """The measured costs that hold here, by device."""
    if costs is None:
        return {}
    found = costs.of(graph, devices, core)
    unmeasured = [name for name in devices if costs.device(name) is None]
    if found and unmeasured:
        warnings.warn(
            f"operations are not measured on {', '.join(unmeasured)} (calibrated without it, or it runs none of the"
            " model): the profile counts there",
            stacklevel=3,
        )
    other = [name for name in devices if name not in found and name not in unmeasured]
    if other or not found:
        warnings.warn(
            f"the measured costs beside the model do not hold for {', '.join(other or devices)} (another model, device,"
            " property or release of OpenVINO) and are not used; ov-hsdag calibrate --model measures them anew",
            stacklevel=3,
        )
    return found


def _given(
    affinity: Mapping[str, str] | Placement | str | PathLike[str] | None, devices: DeviceSet
) -> Placement | None:
    if affinity is None or isinstance(affinity, Placement):
        return affinity
    if isinstance(affinity, Mapping):
        unknown = sorted(set(affinity.values()) - set(devices.names))
        if unknown:
            raise UserError(f"affinity uses device '{unknown[0]}', which is not in {devices.hetero}")
        return Placement(devices=devices.names, affinity=dict(affinity))
    return Placement.load(affinity, devices.names)
