"""Places several models that share the devices of one machine.

The models are an application (`ov_hsdag.applications.application`): each is a member with its placements, and an
assignment, int64 [members], chooses one placement of each. A plan is an assignment with its figures. With measuring,
each model is timed first, which corrects its costs; then the best plans run on the devices.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.applications.application import Application, ApplicationEvaluation, Member, check_runs, scale_costs
from ov_hsdag.applications.plan import Plan, PlannedModel
from ov_hsdag.applications.runner import FACTORY
from ov_hsdag.costs.profile import Profile
from ov_hsdag.costs.stored import identity
from ov_hsdag.devices.cores import SharedCores
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.devices.memory import memory_limits
from ov_hsdag.devices.virtual import new_core
from ov_hsdag.explaining.explain import explain
from ov_hsdag.measuring import choice
from ov_hsdag.measuring.co_running import CoRunningModels
from ov_hsdag.measuring.comparison import Comparison
from ov_hsdag.measuring.process import Candidate, StartWorker
from ov_hsdag.measuring.trials import Trials
from ov_hsdag.model.affinities import set_affinities
from ov_hsdag.model.inputs import timed_inputs
from ov_hsdag.model.placement import Placement
from ov_hsdag.model.shapes import (
    describe_open_sizes,
    fix_input_shapes,
    fix_npu_sizes,
    has_npu,
    is_unbounded,
    names_open_sizes,
)
from ov_hsdag.model.workload import Phase, Workload
from ov_hsdag.placers.contiguous import Contiguous
from ov_hsdag.placers.multilevel import Multilevel
from ov_hsdag.placers.single import simple_placers
from ov_hsdag.placing import selection
from ov_hsdag.placing.candidates import find_candidates, placement_of, policy_placers, run
from ov_hsdag.placing.host_memory import HostMemory
from ov_hsdag.placing.options import PlaceOptions
from ov_hsdag.placing.request import check_seconds, settings_of
from ov_hsdag.policy.placer import HSDAGPlacer
from ov_hsdag.problem.pricing import ModelAnalysis, Session
from ov_hsdag.problem.problem import PlacementProblem, check_objective
from ov_hsdag.utils.arguments import check_in_memory
from ov_hsdag.utils.errors import RunError, UserError
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.warn import warn_caller

TRIAL = 0.5
"""Seconds of a trial of an application; longer than for one model, as each of its models has to run some times."""

WHOLE = 2
"""Number of plans without splits that are measured, the best by prediction."""

# Timing of each model: rounds in which it runs on each device, the share of the time budget for it, and the name of the
# split that is timed as well. The last two are standard deviations of logarithms: of the split's measured time, and of
# the factor by which the times of calls and transfers differ from the profile's.
_TIMED_ROUNDS, _TIMING, _SPLIT, _NOISE, _SPREAD = 4, 0.4, "split", 0.05, 1.0

_SECONDS = 30.0  # default time budget of each model, seconds: with less, not all plans of five models compile
_BOUNDARIES = "boundaries"  # key in `PlannedModel.timed` for calls of submodels and transfers

# Standard deviation of the logarithm of a plan's predicted gain over another plan, where each model was timed.
_ERROR = 0.1

# Search for a split of one model beside the others. It makes a fifth of the moves of a search for one model alone, as
# it runs for several models.
_SEARCH = Multilevel(settings="fast")


@dataclass(frozen=True, eq=False)
class ModelOf:
    """A model of an application, with its count, order, shapes and workload.

    Attributes:
        model: the model, which is normalized and annotated in place.
        count: runs of the model (of its workload, if it has one) in one run of the application.
        after: names of the models whose outputs it waits for.
        shapes: example shapes of dynamic inputs, by input name.
        workload: workload of a decoder with states, such as "prompt=1024,generate=256".
    """

    model: ov.Model
    count: float = 1.0
    after: tuple[str, ...] = ()
    shapes: Mapping[str, Sequence[int]] | None = None
    workload: Workload | str | None = None


@dataclass(frozen=True, eq=False)
class PlanContext:
    """What all steps of planning an application share."""

    session: Session  # the devices with their Core and profile
    objective: str  # "latency" or "throughput"
    tell: Callable[[str], None]  # called with a few words at each step
    start_worker: StartWorker | None  # starts a worker process for measuring; None for a local one


@dataclass(frozen=True, eq=False)
class Prepared:
    """A model that is ready to be placed and measured.

    Attributes:
        given: the model as the caller gave it.
        analysis: the normalized model with its graph, example shapes and the devices that run its nodes.
        phases: phases of its workload; empty without one.
        member: the model as a member of the application, with the placements that have been found.
        timed: measured times divided by those of the profile, see `PlannedModel.timed`; empty where it was not timed.
        seconds: wall time of timing the model, seconds.
    """

    given: ModelOf
    analysis: ModelAnalysis
    phases: tuple[Phase, ...]
    member: Member
    timed: Mapping[str, float]
    seconds: float = 0.0


def place_together(  # noqa: PLR0913 settings, all by keyword
    models: Mapping[str, ov.Model | ModelOf],
    device: str | Sequence[str],
    *,
    counts: Mapping[str, float] | None = None,
    objective: str = "throughput",
    rates: bool = False,
    measure: bool = False,
    measure_seconds: float | None = None,
    memory: Mapping[str, int | str] | None = None,
    profile: Profile | str | PathLike[str] | None = None,
    policy: str | PathLike[str] | None = None,
    core: ov.Core | None = None,
    report: Callable[[str], None] | None = None,
    start_worker: StartWorker | None = None,
    static: bool = False,
) -> Plan:
    """Decides where several models run that share the devices; each is normalized, annotated and carries its placement.

    Args:
        models: the models by name, alone or with count, order, shapes and workload (`ModelOf`).
        device: the devices, in order of preference: "HETERO:GPU,CPU".
        counts: inferences of each model in one run of the application, 1 by default.
        objective: "throughput" of runs of the application, or "latency" of one run on an idle machine.
        rates: whether counts are requested rates, inferences per second.
        measure: whether the best plans run on the devices, all models at the same time, to choose among them.
        measure_seconds: time budget of timing and measuring together, seconds; by default 30 for each model, 60 at
            least.
        memory: memory limits of all models together by device, bytes or "8GiB".
        profile: speeds of the devices, or the path of a profile's file; built-in profiles by default.
        policy: name or folder of the HSDAG policy; "none" for no policy.
        core: asked what the devices support. A new one by default.
        report: called with a few words whenever another step begins.
        start_worker: starts a worker process for measuring; by default a local one.
        static: whether models get the sizes of their example shapes for good, as NPUs require. A model without states
            gets all of them where an example shape names an input with open sizes; other models keep their open sizes
            and get no NPU. Without this option, where an NPU is among the devices, each model must be static, or have
            no states and all example shapes.

    Returns:
        The plan. It is never predicted worse than an assignment of whole models to devices that was simulated (all of
        up to 100,000). With `measure` it is not measurably worse than those that ran.

    Raises:
        UserError: bad input.
        RunError: the models do not fit into the devices' memory together.
    """
    tell = report or (lambda _: None)
    check_objective(objective)
    seconds = max(selection.SECONDS, _SECONDS * len(models)) if measure_seconds is None else measure_seconds
    check_seconds("measuring", seconds)
    model_specs = {name: spec if isinstance(spec, ModelOf) else ModelOf(spec) for name, spec in models.items()}
    if unknown := sorted(set(counts or {}) - set(model_specs)):
        raise UserError(f"there is a count of '{unknown[0]}', which is no model of the application")
    model_specs = {
        name: replace(spec, count=float((counts or {}).get(name, spec.count))) for name, spec in model_specs.items()
    }
    for name, spec in model_specs.items():
        check_in_memory(f"place '{name}' of", spec.model)
    check_runs({name: (spec.count, spec.after) for name, spec in model_specs.items()}, objective)
    if len({id(spec.model) for spec in model_specs.values()}) < len(model_specs):
        raise UserError("a model has two names: give a clone of it under the second, as each is placed for itself")
    core, devices = core or new_core(), DeviceSet.parse(device)
    model_specs = {name: _fix_sizes(name, spec, devices, static) for name, spec in model_specs.items()}
    if measure:
        selection.check_possible(core, devices)
    limits = memory_limits(memory or {}, devices.names)
    session = Session.of(devices, core, profile, memory=limits)
    learned = policy_placers(policy, core, devices.names)
    context = PlanContext(session, objective, tell, start_worker)
    prepared, share = [], _TIMING * seconds / max(len(model_specs), 1)
    for name, spec in model_specs.items():
        tell(f"placing {name}")
        try:
            ready = _prepare(name, spec, context, share if measure else 0.0)
        except UserError as error:
            raise UserError(f"'{name}': {error}") from error
        ready.member.ways.extend(find_candidates(ready.member.problem, learned))
        prepared.append(ready)
    tell("placing them together")
    application = Application(tuple(one.member for one in prepared), objective)
    plans = application.plan(_SEARCH)
    chosen, measured = application.best(plans), None
    if measure:
        whole = application.distinct_whole(WHOLE)
        plans |= {f"whole, {number + 2}": one for number, one in enumerate(whole[1:])}
        plans |= _best_by_profile(application, prepared, context, learned)
        end = time.monotonic() + seconds - sum(one.seconds for one in prepared)
        chosen, measured = _measure_plans(application, plans, prepared, context, end) or (chosen, None)
    ways = zip(prepared, plans[chosen].tolist(), strict=True)
    placements = {one.member.name: _write_placement(one, number, profile) for one, number in ways}
    plan = plan_of(application, plans, chosen, measured, prepared, rates)
    plan = replace(plan, memory=limits, placements=placements)
    own_profile = None if profile is None else context.session.profile
    if host := HostMemory.of(core, devices.names, limits, profile=own_profile):
        host.warn_beyond(sum(plan.predicted["memory_bytes"][name] for name in host.devices))
    if shared := SharedCores.of(core, devices.names):
        warn_caller(shared.describe())
    return plan


def _fix_sizes(name: str, spec: ModelOf, devices: DeviceSet, static: bool) -> ModelOf:
    """Gives a model static sizes, in place, where that is requested or an NPU needs it and the sizes are known.

    Args:
        name: name of the model.
        spec: the model with its example shapes.
        devices: the devices.
        static: whether static sizes are requested. Sizes that stay open for an NPU are then only a warning, as other
            models of the application may use the NPU.

    Returns:
        `spec`.

    Raises:
        UserError: sizes stay open although an NPU is among the devices, without `static`; or shapes do not fit.
    """
    model, shapes = spec.model, spec.shapes or {}
    try:
        if not static:
            fix_npu_sizes(model, devices, shapes)
        elif not model.get_sinks() and names_open_sizes(model, shapes):
            fix_input_shapes(model, shapes)
        elif is_unbounded(model) and has_npu(devices):
            warn_caller(f"'{name}' keeps open sizes and gets no NPU: {describe_open_sizes(model)}")
    except UserError as error:
        raise UserError(f"'{name}': {error}") from error
    return spec


def _prepare(name: str, spec: ModelOf, context: PlanContext, seconds: float) -> Prepared:
    """Analyses, prices and times a model; no placement is searched yet.

    Args:
        name: name of the model.
        spec: the model as the caller gave it.
        context: what all steps share.
        seconds: time for timing it on the devices, seconds; with 0 it is not timed.

    Returns:
        The model with its problem; its member has no placements.
    """
    asked = Workload.asked(spec.workload, None)
    phases = asked.phases_with(spec.model, spec.shapes) if asked else ()
    analysis = context.session.analyse(spec.model, spec.shapes, phases)
    problem, begin = context.session.price(analysis, context.objective, None, phases).problem, time.monotonic()
    timed = _timed(name, problem, analysis, phases, context, seconds) if seconds else {}
    took, count = time.monotonic() - begin, spec.count * (sum(phase.count for phase in phases) or 1.0)
    member = Member(name, _scale_by_timing(problem, timed), count, [], spec.after)
    return Prepared(spec, analysis, phases, member, timed, took)


def _best_by_profile(
    application: Application, prepared: Sequence[Prepared], context: PlanContext, learned: Sequence[HSDAGPlacer]
) -> dict[str, NDArray[np.int64]]:
    """Finds the best plan by the profile alone, without the models' measured times.

    It is measured whatever the measured times predict for it: these are noisy, and few where there are many models.

    Args:
        application: the application, whose members get the placements of that plan.
        prepared: the models.
        context: what all steps share.
        learned: placers of the policy.

    Returns:
        The assignment, int64 [members], by a name for it; empty where the best plan has no splits, or none fits.
    """
    members = []
    for ready in prepared:
        problem = context.session.price(ready.analysis, context.objective, None, ready.phases).problem
        members.append(replace(ready.member, problem=problem, ways=find_candidates(problem, learned)))
    by_profile = Application(tuple(members), application.objective)
    try:
        plans = by_profile.plan(_SEARCH)
    except RunError:  # the search found nothing that fits
        return {}
    name = by_profile.best(plans)
    if name not in ("one split", "together"):
        return {}
    return {f"{name} {selection.BY_PROFILE}": application.translate_assignment(by_profile, plans[name])}


def _scale_by_timing(problem: PlacementProblem, timed: Mapping[str, float]) -> PlacementProblem:
    """Returns a problem with its times scaled by the factors of `PlannedModel.timed`; a missing factor counts as 1."""
    factors = np.array([timed.get(device, 1.0) for device in problem.devices])
    return scale_costs(problem, factors, timed.get(_BOUNDARIES, 1.0))


def _timed(
    name: str,
    problem: PlacementProblem,
    analysis: ModelAnalysis,
    phases: Sequence[Phase],
    context: PlanContext,
    seconds: float,
) -> dict[str, float]:
    """Times a model on each device and one split of it; of equal devices one is timed.

    Timing a whole model takes much less time than timing its operations, and in an application the devices of the
    models matter more than the way in which they are split.

    Args:
        name: name of the model, for messages.
        problem: its problem with the profile's costs.
        analysis: its analysis.
        phases: phases of its workload.
        context: what all steps share.
        seconds: time for it, seconds.

    Returns:
        Factors of times, see `PlannedModel.timed`; empty where nothing could be timed, with a warning.
    """
    devices, end = context.session.devices, time.monotonic() + seconds
    predicted_us = dict(zip(devices.names, problem.scores(problem.singles).tolist(), strict=True))
    able = [device for device, us in predicted_us.items() if np.isfinite(us)]
    kinds = {device: identity(context.session.core, device) for device in devices.names}
    as_another = {device: next((one for one in able if kinds[one] == kind), device) for device, kind in kinds.items()}
    ways = {device: Candidate(device) for device in able if as_another[device] == device}
    split = Contiguous().place(problem)
    if ways and split.min() != split.max() and np.isfinite(problem.scores(split)[0]):
        ways[_SPLIT] = Candidate.placed(devices, problem.affinity(split))
    try:
        with Comparison(
            analysis.model,
            devices,
            ways,
            problem.objective,
            context.session.core,
            shapes=analysis.shapes,
            phases=phases,
            limit=1.5 * (end - time.monotonic()),  # a comparison saves time for rounds of two, which are not made here
            report=lambda text: context.tell(f"{name}: {text}"),
            start_worker=context.start_worker,
        ) as comparison:
            posterior = choice.infer(comparison.trials(rounds=_TIMED_ROUNDS, until=end))
            took = {one: 1e6 / posterior.rate(one) for one in posterior.names}
            factors = {device: took[device] / predicted_us[device] for device in able if device in took}
            if not factors:
                raise _error_of_failures(comparison)
    except RunError as error:
        warn_caller(f"'{name}' could not be timed, and is placed by the profile: {error}")
        return {}
    mean = geometric_mean(factors.values())
    timed = {device: factors.get(as_another[device], mean) for device in devices.names}
    if _SPLIT in took:
        timed[_BOUNDARIES] = _boundaries(_scale_by_timing(problem, timed), split, took[_SPLIT])
    return timed


def _boundaries(problem: PlacementProblem, split: NDArray[np.uint8], us: float) -> float:
    """Estimates the factor of the times of submodel calls and transfers from the measured time of a split.

    Args:
        problem: the problem, with the factors of the devices applied.
        split: the placement that was timed, uint8 [groups].
        us: its measured time, µs.

    Returns:
        The most likely factor, between exp(-2) and exp(3).
    """

    def unlikely(log: float) -> float:
        """Computes twice the negative log-posterior of the logarithm of a factor, up to a constant."""
        scaled = scale_costs(problem, np.ones(len(problem.devices)), math.exp(log))
        return (math.log(float(scaled.scores(split)[0]) / us) / _NOISE) ** 2 + (log / _SPREAD) ** 2

    return math.exp(min(np.linspace(-2, 3, 51).tolist(), key=unlikely))


def _measure_plans(
    application: Application,
    plans: dict[str, NDArray[np.int64]],
    prepared: Sequence[Prepared],
    context: PlanContext,
    end: float,
) -> tuple[str, dict[str, Any]] | None:
    """Measures plans and chooses among them.

    Args:
        application: the application.
        plans: assignments by name of the plan, int64 [members].
        prepared: the models.
        context: what all steps share.
        end: time of `time.monotonic` at which the time budget ends, seconds.

    Returns:
        Name of the chosen plan, and the figures of all plans by name; None where nothing ran, with a warning.
    """
    devices = context.session.devices
    distinct: dict[bytes, str] = {}
    names = [name for name, one in plans.items() if distinct.setdefault(one.tobytes(), name) == name]
    evaluation = application.evaluate(np.stack([plans[name] for name in names]))
    scores = dict(zip(names, evaluation.score(application.objective), strict=True))
    simple = [name for name in names if set(application.describe(plans[name].tolist()).values()) <= {*devices.names}]
    with_splits = [name for name in names if name not in simple]
    if simple:
        simple = [simple[row] for row in application.distinct(np.stack([plans[name] for name in simple]))]
    names = [*simple, *with_splits]
    # The best plan without splits and the best with everything on one device come first, in case time is short.
    best_simple = min(simple, key=scores.__getitem__, default="")
    where = {name: {*application.describe(plans[name].tolist()).values()} for name in simple}
    singles = [name for name in simple if len(where[name]) == 1]
    on_one = min(singles, key=scores.__getitem__, default="")
    first = sorted(names, key=lambda name: (name != best_simple, name != on_one, scores[name]))
    needs = {name: figures_of(application, evaluation, row)["memory_bytes"] for row, name in enumerate(scores)}
    remaining = max(end - time.monotonic(), 1.0)
    try:
        with Comparison(
            prepared[0].analysis.model,
            devices,
            {name: candidate_of(application, plans[name], devices) for name in names},
            application.objective,
            context.session.core,
            simple=simple,
            needs=needs,
            first=first,
            limit=remaining,
            report=context.tell,
            start_worker=context.start_worker,
            **models_of(application, prepared),
        ) as comparison:
            predicted = {name: 1 / scores[name] for name in names}
            trials = Trials(comparison, simple, predicted, _ERROR, end, TRIAL, singles)
            decision = trials.run()
            if decision is None:
                raise _error_of_failures(comparison)
            key = "latency_us" if application.objective == "latency" else "runs_per_second"
            return decision.chosen, trials.figures(decision, application.objective, key)
    except RunError as error:
        warn_caller(f"nothing could be measured, so the plan is chosen by prediction: {error}")
        return None


def _error_of_failures(comparison: Comparison) -> RunError:
    """Makes the error that says why no candidate of a comparison ran."""
    return RunError("; ".join(sorted(set(comparison.failed.values()))) or "the time is too short")


@dataclass(frozen=True, eq=False)
class LoadedPlan:
    """A stored plan with its models, which carry their placements.

    Attributes:
        plan: the plan, with new predictions.
        application: the application of its models.
        assignment: the placements that the models carry, int64 [members].
        prepared: the models, in the order of the application.
    """

    plan: Plan
    application: Application
    assignment: NDArray[np.int64]
    prepared: list[Prepared]


def load_plan(plan: Plan, models: Mapping[str, ov.Model], device: str | None, core: ov.Core, **how: Any) -> LoadedPlan:
    """Loads the models of a stored plan, and predicts the plan anew.

    Args:
        plan: the stored plan.
        models: its models with their placements, by name; they are not changed.
        device: device list; by default the plan's.
        core: Core of the devices.
        how: `objective`, `profile` and `memory`, which replace those of the plan, and further arguments of `explain`.

    Returns:
        The plan with new predictions, and its models.

    Raises:
        UserError: bad input, or a model without a placement.
    """
    names = plan.devices if device is None else DeviceSet.parse(device).names
    kept = {name: limit for name, limit in plan.memory.items() if name in names}
    how |= {"objective": how.get("objective") or plan.objective, "memory": kept | (how.get("memory") or {})}
    check_objective(how["objective"])
    of_all, as_asked, profile = names == plan.devices, how["objective"] == plan.objective, how.get("profile")
    same = of_all and as_asked and profile is None
    file = profile.origin if isinstance(profile, Profile) else profile
    name_of = Path(file).name if file else None
    if not as_asked:
        check_runs({name: (one.count, one.after) for name, one in plan.models.items()}, how["objective"])
    prepared, numbers = [], []
    for name, stored in plan.models.items():
        try:
            explained = explain(models[name], names, core=core, **how)
        except UserError as error:
            raise UserError(f"'{name}': {error}") from error
        assert explained.analysis is not None
        # Measured factors hold for the profile and the objective that they were measured with; the one of boundaries
        # also for the list of devices, as it is one number for all of them.
        fits = as_asked and (explained.placement.settings or {}).get("profile") == name_of
        timed = {key: factor for key, factor in stored.timed.items() if fits and (of_all or key != _BOUNDARIES)}
        problem = _scale_by_timing(explained.explanation.problem, timed)
        count = stored.count * (sum(phase.count for phase in explained.phases) or 1.0)
        member = Member(
            name, problem, count, [run(placer, problem) for placer in simple_placers(problem)], stored.after
        )
        numbers.append(member.way(explained.explanation.placement))
        model_spec = ModelOf(
            explained.analysis.model, stored.count, stored.after, explained.analysis.shapes, stored.workload
        )
        prepared.append(Prepared(model_spec, explained.analysis, explained.phases, member, stored.timed))
    app, carried = Application(tuple(one.member for one in prepared), how["objective"]), np.array(numbers, np.int64)
    limits = {name: int(limit) for name, limit in zip(names, app.limits, strict=True) if np.isfinite(limit)}
    name, measured = (plan.chosen, plan.measured) if same else ("plan", None)
    predicted = plan_of(app, {name: carried}, name, measured, prepared, plan.asked is not None)
    written = {name: replace(one, path=plan.models[name].path) for name, one in predicted.models.items()}
    renewed = replace(predicted, models=written, memory=limits, baselines=plan.baselines if same else {})
    return LoadedPlan(renewed, app, carried, prepared)


def models_of(application: Application, prepared: Sequence[Prepared]) -> dict[str, Any]:
    """Makes arguments of `Comparison` by which all models of an application run in the trials of the first one.

    Args:
        application: the application.
        prepared: its models, in the order of the members.

    Returns:
        "shapes" and "phases" of the first model, and "co_running", the other models.
    """
    first, *rest = [(one.analysis, one.phases) for one in prepared]
    co_running = CoRunningModels(
        models=[one.model for one, _ in rest],
        inputs=[timed_inputs(one.model, one.shapes, phases) for one, phases in rest],
        factory=FACTORY,
        arguments={
            "counts": [one.member.count for one in prepared],
            "after": application.sources,
            "order": application.order,
        },
    )
    return {"shapes": first[0].shapes, "phases": first[1], "co_running": co_running}


def candidate_of(application: Application, assignment: NDArray[np.int64], devices: DeviceSet) -> Candidate:
    """Makes the candidate that runs a plan.

    Args:
        application: the application.
        assignment: the plan, int64 [members].
        devices: the devices, in HETERO's order.

    Returns:
        The first model's candidate, with those of the other models in `Candidate.co_running`.
    """
    ways = []
    for member, number in zip(application.members, assignment.tolist(), strict=True):
        way = member.ways[number]
        single = way.name in application.devices
        affinity = {} if single else member.problem.affinity(way.placement)
        ways.append(Candidate(way.name) if single else Candidate.placed(devices, affinity))
    return replace(ways[0], co_running=ways[1:])


def figures_of(application: Application, evaluation: ApplicationEvaluation, row: int) -> dict[str, Any]:
    """Returns the predicted figures of a plan, see `Plan.predicted`.

    Args:
        application: the application.
        evaluation: simulated assignments.
        row: number of the plan's assignment among them.

    Returns:
        The figures, JSON-able.
    """
    busy = evaluation.busy_us[row]
    return {
        "runs_per_second": round(1e6 / max(float(evaluation.period_us[row]), 1e-9), 6),
        "latency_us": round(float(evaluation.latency_us[row]), 3),
        "busy_us": dict(zip(application.devices, busy.round(3).tolist(), strict=True)),
        "memory_bytes": dict(zip(application.devices, evaluation.memory_bytes[row].tolist(), strict=True)),
    }


def plan_of(
    application: Application,
    found: Mapping[str, NDArray[np.int64]],
    chosen: str,
    measured: dict[str, Any] | None,
    prepared: Sequence[Prepared],
    rates: bool,
) -> Plan:
    """Makes a plan of an application and its assignments, without memory limits and placements.

    Args:
        application: the application.
        found: assignments by name of the plan, int64 [members].
        chosen: name of the chosen one; the others become baselines.
        measured: measured figures, see `Plan.measured`.
        prepared: the models.
        rates: whether counts are requested rates.

    Returns:
        The plan.
    """
    evaluation = application.evaluate(np.stack(list(found.values())))
    figures = {
        name: {**figures_of(application, evaluation, row), "where": application.describe(one.tolist())}
        for row, (name, one) in enumerate(found.items())
    }
    models = {}
    spans = evaluation.span_us[list(found).index(chosen)].round(3).tolist()
    for ready, number, (begin_us, end_us) in zip(prepared, found[chosen].tolist(), spans, strict=True):
        member = ready.member
        way, problem = member.ways[number], member.problem
        result, workload = problem.evaluate(way.placement), Workload.asked(ready.given.workload, None)
        models[member.name] = PlannedModel(
            count=ready.given.count,
            after=ready.given.after,
            where=way.name,
            devices=tuple(problem.devices[device] for device in np.unique(way.placement)),
            busy_us=dict(zip(application.devices, (member.count * result.busy_us[0]).round(3).tolist(), strict=True)),
            memory_bytes=dict(zip(application.devices, problem.stored_bytes(result.memory_bytes[0]), strict=True)),
            begin_us=begin_us,
            end_us=end_us,
            workload=None if workload is None else workload.describe(),
            timed=dict(ready.timed),
        )
    return Plan(
        devices=application.devices,
        objective=application.objective,
        models=models,
        predicted=figures[chosen],
        baselines={name: one for name, one in figures.items() if name != chosen},
        measured=measured,
        chosen=chosen,
        asked=1.0 if rates else None,
    )


def _write_placement(ready: Prepared, way: int, profile: Profile | str | PathLike[str] | None) -> Placement:
    """Writes a placement into its model: the affinities of the nodes, and the record that the model carries.

    Args:
        ready: the model.
        way: index of the placement in `Member.ways`.
        profile: device profile that the caller gave, recorded in the settings; None without one.

    Returns:
        The placement.
    """
    model, problem, ways = ready.analysis.model, ready.member.problem, ready.member.ways
    options = PlaceOptions(shapes=ready.given.shapes, workload=ready.given.workload, profile=profile)
    settings = settings_of(options, {}, problem.devices, "plan")
    placement = placement_of(problem, ways[way], ways, settings=settings, why="it shares the devices with other models")
    placement = replace(placement, affinity=set_affinities(model, placement.affinity))
    placement.embed(model)
    return placement
