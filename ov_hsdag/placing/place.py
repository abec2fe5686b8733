"""The entry point: chooses a device for each operation of a model and annotates the model.

The steps are those of docs/concepts/design.md: resolve, analyse, calibrate, price, find candidates, choose, write. Each
is a function below, which takes the results of the steps before it. To price a model is to compute the costs of its
operations and transfers. A candidate is a placement that takes part in the choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ov_hsdag.costs.profile import Profile
from ov_hsdag.devices.cores import SharedCores
from ov_hsdag.devices.cpu import busy_cores
from ov_hsdag.devices.device_set import kind_of
from ov_hsdag.explaining.explanation import Explanation
from ov_hsdag.explaining.report_data import ReportSource
from ov_hsdag.model import complete
from ov_hsdag.model.affinities import set_affinities
from ov_hsdag.model.experts import experts
from ov_hsdag.model.gains import HSDAG, placer_of
from ov_hsdag.model.graph import NodeKind
from ov_hsdag.model.placement import Placement
from ov_hsdag.model.shapes import UNBOUNDED_DIMENSION, fix_input_shapes, fix_npu_sizes
from ov_hsdag.model.workload import Phase
from ov_hsdag.placers.experts import ExpertsApart
from ov_hsdag.placing import selection
from ov_hsdag.placing.candidates import (
    NamedPlacement,
    best_by_prediction,
    find_candidates,
    find_within_memory,
    placement_of,
    require_runnable,
    sizes_are_guessed,
)
from ov_hsdag.placing.contexts import ContextProblems
from ov_hsdag.placing.least_memory import describe_enough, enough_memory
from ov_hsdag.placing.operation_costs import OperationCosts, stored_or_measured
from ov_hsdag.placing.options import PlaceOptions
from ov_hsdag.placing.pins import ModelPins
from ov_hsdag.placing.reasons import candidate_notes, same_placements, why_by_prediction
from ov_hsdag.placing.request import PlacingRequest, resolve_request, settings_of
from ov_hsdag.problem.copies import COPIES, copies_summary
from ov_hsdag.problem.pricing import ModelAnalysis, WorkloadProblem
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.utils.errors import RunError, UserError
from ov_hsdag.utils.failures import out_of_time, read_failure
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.timing import Clock
from ov_hsdag.utils.warn import warn_caller

_BUSY_CORES = 0.5
"""Cores that other programs use before measurements on CPU devices are doubted."""

_UNSUPPORTED = 2
"""Reason of `require_runnable` that a given placement may have: somebody may want to see what a device does with
operations that it does not support."""

_PHASES = {
    "normalise": "OpenVINO's transformations",
    "graph": "reading its graph",
    "legality": "finding what stays together",
    "support": "asking the devices what they run",
    "calibrate": "measuring its operations",
    "costs": "predicting costs",
    "placers": "searching",
    "choose": "choosing",
    "measure": "measuring placements",
    "write": "annotating the model",
}
"""Texts for users about the phases of `Placement.seconds`."""


def place(  # noqa: PLR0913 settings, all by keyword
    model: ov.Model,
    device: str | Sequence[str],
    *,
    objective: str | None = None,
    measure: bool | None = None,
    memory: Mapping[str, int | str] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    profile: Profile | str | PathLike[str] | None = None,
    policy: str | PathLike[str] | None = None,
    core: ov.Core | None = None,
    report: Callable[[str], None] | None = None,
    options: PlaceOptions | None = None,
    **more: Any,
) -> Placement:
    """Decides where each operation of `model` runs, and writes that into the model, which is also normalized.

    Args:
        model: any model; changed in place.
        device: the devices, in order of preference: "HETERO:GPU,CPU", or ["GPU", "CPU"].
        objective: "latency" (the default) of one request or "throughput" of many in flight.
        measure: measure the best predicted placements on the devices, and choose by that; by default the choice is the
            prediction's.
        memory: what the model may have on a device, by the device's name, in place of the profile's limits: a number of
            bytes, or "8GiB".
        shapes: example shapes of dynamic inputs for the cost model, and for measuring, by input name. An NPU takes no
            open sizes: where one is among the devices, a model without states gets these for good, with a warning.
        profile: speeds of the devices, or the path of a profile's file; built-in profiles by default.
        policy: name or folder of the HSDAG policy that proposes a placement as well; "none" for no policy.
        core: asked what the devices support, where it has them. A new one by default.
        report: called with a few words whenever a phase begins or something else is measured.
        options: all of these, and the rarer ones; what is given by name goes before them.
        more: rarer options by name, see `PlaceOptions`.

    Returns:
        The placement, which is also written into `model`.

    Raises:
        UserError: bad input, or a device that is to be measured and is not on this machine; `model` may have been
            normalized, but carries no placement of this call.
        RunError: a policy that was asked for does not run, or there is no folder for the temporary files of measuring.
        RunError: no placement keeps within the devices' memory; with a context, the largest that fits is named.
    """
    clock = Clock(begins=None if report is None else lambda phase: report(_PHASES.get(phase, phase)))
    everyday = {
        "objective": objective,
        "measure": measure,
        "memory": memory,
        "shapes": shapes,
        "profile": profile,
        "policy": policy,
    }
    request = resolve_request(model, device, PlaceOptions.of(options, {**everyday, **more}), core)
    if request.measured_choice and request.stored_costs is None:
        with suppress(RunError):  # what fails here is reported where costs are needed
            request.calibration_process.start()  # it imports OpenVINO meanwhile
    disturbed = _others_use_the_cpu(request)
    analysed = _analyse(model, request, clock)
    costs = stored_or_measured(analysed.analysis, request, analysed.phases, clock, report)
    priced = _price(analysed, costs, request, clock)
    problem, candidates = _find_candidates(analysed, priced, costs, request, clock)
    predicted = _choose(analysed, priced, problem, candidates, request, clock)
    choice = _measure(predicted, analysed, priced, problem, request, clock, report, disturbed=disturbed)
    _warn_of_limits(choice, problem, request)
    placement = _describe(choice, analysed, priced, problem, costs, request, clock)
    return _write(model, placement, request, clock)


@dataclass(frozen=True, eq=False)
class _AnalysedModel:
    """Facts about the model that do not depend on costs.

    Attributes:
        analysis: analysis of the normalized model.
        phases: inferences of the model's workload; empty where it has none.
        pins: operations that the caller keeps on a device.
    """

    analysis: ModelAnalysis
    phases: tuple[Phase, ...]
    pins: ModelPins


@dataclass(frozen=True, eq=False)
class _PricedModel:
    """The model with costs.

    Attributes:
        analysis: analysis of the model, with the input sizes that were calibrated.
        workload: the problem of the workload, or of one inference, without pins.
        problem: the same problem, in which no placer can break a pin.
        calibrated: whether measured costs hold for all devices and all phases.
    """

    analysis: ModelAnalysis
    workload: WorkloadProblem
    problem: PlacementProblem
    calibrated: bool


@dataclass(frozen=True)
class _Choice:
    """The chosen candidate and what it was chosen from.

    Attributes:
        chosen: a candidate, or the placement that the caller decided.
        candidates: all candidates.
        measured: figures by the candidates' names, see `Placement.measured`; None where nothing was measured.
        why: see `Placement.why`.
        unsure: see `Placement.unsure`.
    """

    chosen: NamedPlacement
    candidates: list[NamedPlacement]
    measured: dict[str, dict[str, Any]] | None = None
    why: str = ""
    unsure: tuple[str, ...] = ()


def _others_use_the_cpu(request: PlacingRequest) -> bool:
    """Whether a device is a CPU and other programs use so much of it that measurements there are doubted."""
    on_cpu = any(kind_of(name) == "CPU" for name in request.session.devices)
    return on_cpu and busy_cores() > _BUSY_CORES


def _analyse(model: ov.Model, request: PlacingRequest, clock: Clock) -> _AnalysedModel:
    """Normalizes the model in place, reads its graph, and finds the nodes of pins.

    Open sizes of inputs are fixed before that where the caller asks for it or an NPU needs it.

    Args:
        model: the model.
        request: the request.
        clock: records the time.

    Raises:
        UserError: sizes cannot be fixed, a pin cannot be kept, or a given placement names unknown operations.
    """
    options = request.options
    if options.static:
        fix_input_shapes(model, options.shapes or {})
    else:
        fix_npu_sizes(model, request.session.devices, options.shapes)
    types: dict[str, str] = {}  # of the operations as they are in the file, by name
    if request.names_operations:
        types = {node.get_friendly_name(): node.get_type_name() for node in model.get_ops()}
    phases = request.workload.phases_with(model, options.shapes) if request.workload else ()
    analysis = request.session.analyse(model, options.shapes, phases, clock)
    pins = ModelPins.of(analysis, request.pins, types)
    if request.fixed_placement is not None:
        _check_names(request.fixed_placement, analysis, types)
    return _AnalysedModel(analysis, phases, pins)


def _check_names(fixed: Placement, analysis: ModelAnalysis, types: Mapping[str, str]) -> None:
    """Checks that a given placement names operations of the model, as it is in the file or as placements report it.

    Args:
        fixed: the given placement. A warning says if less than half of its operations exist after normalization.
        analysis: analysis of the normalized model.
        types: type of each operation of the model before normalization, by name.

    Raises:
        UserError: it names other operations.
    """
    fixed.check_nodes({*types, *analysis.graph.names})
    named = [name for name in fixed.affinity if types.get(name) != "Constant"]
    kept = len({*named} & {*analysis.graph.names})
    if 2 * kept < len(named):
        warn_caller(
            f"only {kept} of the affinity's operations have the same names in the normalized model, and the others"
            " follow these: ov-hsdag explain --stored --output writes its names"
        )


def _price(analysed: _AnalysedModel, costs: OperationCosts, request: PlacingRequest, clock: Clock) -> _PricedModel:
    """Makes the placement problem, with measured costs where they hold and the profile's elsewhere.

    Args:
        analysed: the analysed model.
        costs: the measured costs.
        request: the request.
        clock: records the time.
    """
    with clock("costs"):
        objective = request.options.objective
        workload = request.session.price(costs.analysis, objective, costs.model, analysed.phases, costs.phases)
        problem = analysed.pins.keep(workload.problem)
        return _PricedModel(costs.analysis, workload, problem, costs.hold_everywhere(request, analysed.phases))


def _find_candidates(
    analysed: _AnalysedModel, priced: _PricedModel, costs: OperationCosts, request: PlacingRequest, clock: Clock
) -> tuple[PlacementProblem, list[NamedPlacement]]:
    """Runs all placers.

    Args:
        analysed: the analysed model.
        priced: the model with costs.
        costs: measured costs. Where there are any and the choice is by measuring, the placement that would be chosen
            without them is a candidate as well.
        request: the request.
        clock: records the time.

    Returns:
        The problem that the candidates were found for, and the candidates, the simplest first. The problem is the
        priced one, or a copy that ignores the memory of tensors, with a warning, as inputs of open sizes would not fit.
    """
    with clock("placers"):
        problem, candidates = find_within_memory(
            priced.problem, request.policies, guessed=sizes_are_guessed(priced.analysis), search=request.search
        )
        if problem is not priced.problem:
            warn_caller(
                "the memory limits hold for weights and states alone: inputs without bounds, counted as"
                f" {UNBOUNDED_DIMENSION} in each dimension, would not fit; give example shapes (shapes= in Python,"
                " --shape on the command line)"
            )
        if request.measured_choice and costs.any:
            by_profile = request.session.price(priced.analysis, request.options.objective, None, analysed.phases)
            candidates += _by_profile(analysed.pins.keep(by_profile.problem), candidates, request)
        return problem, candidates


def _by_profile(
    problem: PlacementProblem, candidates: Sequence[NamedPlacement], request: PlacingRequest
) -> list[NamedPlacement]:
    """Finds the placement that would be chosen without measured costs.

    Costs that were measured while others used the machine may be worse than the profile's.

    Args:
        problem: the problem with costs of the profile.
        candidates: the candidates that were found with measured costs.
        request: supplies the policies.

    Returns:
        The placement, alone; empty where it is among the candidates, or none can be chosen.
    """
    try:
        best = best_by_prediction(problem, find_candidates(problem, request.policies))
    except (RunError, UserError):  # what does not depend on costs has been reported
        return []
    if any(np.array_equal(best.placement, candidate.placement) for candidate in candidates):
        return []
    return [NamedPlacement(f"{best.name} {selection.BY_PROFILE}", best.placement, by_profile=True)]


def _choose(
    analysed: _AnalysedModel,
    priced: _PricedModel,
    problem: PlacementProblem,
    candidates: list[NamedPlacement],
    request: PlacingRequest,
    clock: Clock,
) -> _Choice:
    """Returns the placement that the caller decided, else chooses one by prediction.

    Args:
        analysed: the analysed model.
        priced: the model with costs.
        problem: the problem that the candidates were found for.
        candidates: all candidates.
        request: the request.
        clock: records the time.

    Raises:
        RunError: no placement keeps within the devices' memory.
        UserError: HETERO does not run the placement that the caller decided, or pins leave no placement.
    """
    with clock("choose"):
        if request.fixed_placement is not None:
            return _Choice(_complete(request.fixed_placement, analysed.analysis.model, problem), candidates)
        if request.fixed_experts is not None:
            apart = _with_experts_apart(problem, request.fixed_experts)
            return _Choice(best_by_prediction(problem, [apart], calibrated=priced.calibrated), candidates)
        try:
            chosen = best_by_prediction(problem, candidates, calibrated=priced.calibrated)
        except RunError as error:
            text = f"{error}{describe_enough(enough_memory(problem, candidates), problem.devices)}"
            if request.workload is not None:
                contexts = ContextProblems.of(request.session, priced.analysis, request.workload, priced.workload)
                text += f"; {contexts.describe(candidates)}"
            raise type(error)(text) from error
        except UserError as error:
            raise UserError(f"{error}; the pins are {analysed.pins}" if request.pins else str(error)) from error
    why = why_by_prediction(chosen, problem, priced.analysis, candidates, calibrated=priced.calibrated)
    return _Choice(chosen, candidates, why=why)


def _complete(fixed: Placement, model: ov.Model, problem: PlacementProblem) -> NamedPlacement:
    """Completes the caller's placement by devices for all groups.

    Args:
        fixed: the caller's placement, which may lack nodes.
        model: the normalized model.
        problem: the problem.

    Returns:
        The completed placement. A warning names devices that get no operation.

    Raises:
        UserError: HETERO does not run it.
    """
    affinity = complete.complete(model, fixed.affinity, problem.devices, problem.graph)
    completed = NamedPlacement("affinity", problem.placement_of(affinity))
    require_runnable(problem, [completed], ignored=_UNSUPPORTED)
    used = set(completed.placement[problem.groups[problem.graph.kinds == NodeKind.OP]].tolist())
    empty = [name for number, name in enumerate(problem.devices) if number not in used]
    if empty:
        warn_caller(
            f"the affinity leaves {', '.join(empty)} without an operation: what it lacks follows its neighbours;"
            " --pin NAME=DEVICE (pin= in Python) keeps some operations and searches the rest"
        )
    return completed


def _with_experts_apart(problem: PlacementProblem, placer: ExpertsApart) -> NamedPlacement:
    """Makes the placement that the caller decided by where experts go.

    Args:
        problem: the problem.
        placer: the caller's wish; with more layers than the model has, those of all layers move, with a warning.

    Raises:
        UserError: the model has no experts, the device does not run them, or HETERO does not run the placement.
    """
    blocks = experts(problem.graph)
    if not blocks:
        raise UserError("the model has no experts that could be elsewhere, or none that OpenVINO's plugins recognise")
    if placer.layers is not None and placer.layers > len(blocks):
        warn_caller(f"experts are in {len(blocks)} layers, not in {placer.layers}: those of all layers move")
    groups = problem.groups[[block.sum for block in blocks]]
    assert placer.device is not None  # the option names it
    if not problem.group_supported[groups, placer.device].all():
        raise UserError(f"{problem.devices[placer.device]} does not run the experts of this model")
    layers = placer.layers or len(blocks)
    apart = NamedPlacement(placer.name, replace(placer, layers=layers).place(problem))
    require_runnable(problem, [apart])
    return apart


def _measure(
    predicted: _Choice,
    analysed: _AnalysedModel,
    priced: _PricedModel,
    problem: PlacementProblem,
    request: PlacingRequest,
    clock: Clock,
    report: Callable[[str], None] | None,
    *,
    disturbed: bool,
) -> _Choice:
    """Chooses by measuring, if the caller asked for that.

    Args:
        predicted: the choice so far. A placement that the caller decided is measured as well, and stays chosen.
        analysed: the analysed model.
        priced: the model with costs.
        problem: the problem that the candidates were found for.
        request: the request, with the time budget.
        clock: records the time; calibrating counts for the budget.
        report: called with a line at each step; None for no lines.
        disturbed: whether other programs use the devices.

    Returns:
        The choice with measured figures, and the candidates that searches with corrected costs found; `predicted`
        itself where nothing shall be measured.
    """
    if not request.options.measure:
        return predicted
    # Calibrating may take longer than its share, by a compilation; measuring has its own all the same.
    least = (1 - selection.CALIBRATION_SHARE) * request.measure_seconds
    seconds = max(request.measure_seconds - clock.seconds.get("calibrate", 0.0), least)
    placements = {candidate.name: candidate.placement for candidate in (*predicted.candidates, predicted.chosen)}
    with clock("measure"):
        result = selection.select(
            analysed.analysis.model,
            problem,
            placements,
            request.session.core,
            shapes=priced.analysis.shapes,
            phases=analysed.phases,
            samples=request.samples,
            seconds=seconds,
            measured_costs=priced.calibrated,
            disturbed=disturbed,
            pinned=bool(request.pins),
            by_profile=[candidate.name for candidate in predicted.candidates if candidate.by_profile],
            report=report,
        )
    corrected = [NamedPlacement(name, found) for name, found in result.placements.items() if name not in placements]
    measured = replace(predicted, candidates=predicted.candidates + corrected, measured=result.measured or None)
    if request.decided:
        return measured
    if result.chosen is not None:
        chosen = NamedPlacement(result.chosen, result.placements[result.chosen])
        return replace(measured, chosen=chosen, why=result.why, unsure=result.unsure)
    failure = read_failure(result.measured.get(predicted.chosen.name, {}))
    if failure and not out_of_time(failure):
        return replace(measured, chosen=_least_risky(problem, measured.candidates, result), why="no placement ran")
    return measured


def _least_risky(
    problem: PlacementProblem, candidates: Sequence[NamedPlacement], result: selection.Result
) -> NamedPlacement:
    """Chooses where no candidate ran: a single device if possible, and one that was not seen to fail.

    Args:
        problem: the problem.
        candidates: all candidates.
        result: failures of those that were tried. Running out of time is no failure here.

    Returns:
        The best of these candidates by prediction.
    """
    failed = {
        result.placements[name].tobytes()
        for name, figures in result.measured.items()
        if name in result.placements and not out_of_time(read_failure(figures))
    }
    feasible = [candidate for candidate in candidates if np.isfinite(problem.scores(candidate.placement)[0])]
    possible = [candidate for candidate in feasible if candidate.name in problem.devices] or feasible
    untried = [candidate for candidate in possible if candidate.placement.tobytes() not in failed]
    return best_by_prediction(problem, untried or possible)


def _warn_of_limits(choice: _Choice, problem: PlacementProblem, request: PlacingRequest) -> None:
    """Warns where devices need more of the host's memory or cores together than there is."""
    if request.host is not None:
        counted = problem.evaluate(choice.chosen.placement).memory_bytes[0]
        request.host.warn_beyond(request.host.needed(problem, counted))
    if request.options.objective == "throughput":
        shared = SharedCores.of(request.session.core, request.session.devices.names)
        if shared:
            warn_caller(shared.describe())


def _describe(
    choice: _Choice,
    analysed: _AnalysedModel,
    priced: _PricedModel,
    problem: PlacementProblem,
    costs: OperationCosts,
    request: PlacingRequest,
    clock: Clock,
) -> Placement:
    """Makes the placement with everything that a table or a report says about it.

    Args:
        choice: the final choice.
        analysed: the analysed model.
        priced: the model with costs.
        problem: the problem that the candidates were found for.
        costs: the measured costs.
        request: the request.
        clock: supplies the seconds of all phases.
    """
    with clock("choose"):
        measured_devices = costs.devices(request)
        options = request.options
        if priced.analysis is not analysed.analysis and priced.analysis.shapes:  # smaller ones that run
            options = replace(options, shapes=priced.analysis.shapes)
        # Whether it was measured is recorded in any case: the command line's default is another one than Python's.
        settings = settings_of(
            replace(options, measure=bool(options.measure)), request.limits, request.session.devices.names
        )
        placement = placement_of(
            problem,
            choice.chosen,
            choice.candidates,
            measured_devices,
            measured=choice.measured,
            policy=_policy_that_proposed(choice, request),
            seconds=clock.seconds,
            why=choice.why,
            notes=candidate_notes(
                problem,
                choice.candidates,
                analysed.pins,
                chosen_by_prediction=None if choice.measured is not None or request.decided else choice.chosen,
                measured=choice.measured,
            ),
            same_as=same_placements(choice.candidates),
            unsure=choice.unsure,
            source=_report_source(choice, analysed.pins, problem, measured_devices, request),
        )
        placement.baselines.update(_further_baselines(problem, analysed.pins, placement))
        if analysed.phases and placement.predicted is not None:
            placement.predicted["workload"] = priced.workload.summary(choice.chosen.placement)
        return replace(placement, settings=settings)


def _policy_that_proposed(choice: _Choice, request: PlacingRequest) -> str | None:
    """Names the policy that one of the candidates comes from; None where no candidate comes from a policy."""
    proposed = any(placer_of(candidate.name) == HSDAG for candidate in choice.candidates)
    policy = request.policies[0].policy if request.policies else None
    return Path(policy).name if policy and proposed else None


def _report_source(
    choice: _Choice, pins: ModelPins, problem: PlacementProblem, measured_devices: list[str], request: PlacingRequest
) -> ReportSource:
    """Collects the data for a report of the placement (`Placement.report`).

    Args:
        choice: the chosen placement.
        pins: the caller's pins; the report explains the placement with them as reasons, in the problem without them.
        problem: the problem with the pins.
        measured_devices: names of the devices whose operations were measured.
        request: the request.
    """
    pin_texts = {node: str(pin) for node, pin in pins.nodes.items()}  # by the node's number
    explanation = Explanation(pins.unpinned(problem), choice.chosen.placement, pin_texts)
    return ReportSource(explanation, request.session.profile, tuple(measured_devices))


def _further_baselines(problem: PlacementProblem, pins: ModelPins, placement: Placement) -> dict[str, dict[str, Any]]:
    """Predicts baselines that are not among the candidates: single devices that pins exclude, and copies.

    Gains are over the best single device, whether pins allow it or not.

    Args:
        problem: the problem, with the pins.
        pins: the pins of the caller.
        placement: the placement, with the baselines that it has already.

    Returns:
        Predicted figures by name, see `PlacementProblem.summary`.
    """
    baselines: dict[str, dict[str, Any]] = {}
    if pins.nodes:
        unpinned = pins.unpinned(problem)
        for name, single in zip(problem.devices, problem.singles, strict=True):
            if name not in placement.baselines and np.isfinite(unpinned.scores(single)[0]):
                baselines[name] = unpinned.summary(single)
    copies = copies_summary(problem)
    return baselines if copies is None else {**baselines, COPIES: copies}


def _write(model: ov.Model, placement: Placement, request: PlacingRequest, clock: Clock) -> Placement:
    """Writes the placement into the model: affinities, the placement itself, and the precision of KV caches.

    Args:
        model: the model; changed in place.
        placement: the placement.
        request: the request.
        clock: records the time.

    Returns:
        The placement with the names that the nodes of the annotated model have.
    """
    with clock("write"):
        annotated = replace(placement, affinity=set_affinities(model, placement.affinity))
        annotated.embed(model)
        if request.options.kv_precision is not None:
            model.set_rt_info(request.options.kv_precision, ["runtime_options", "KV_CACHE_PRECISION"])
    return annotated
