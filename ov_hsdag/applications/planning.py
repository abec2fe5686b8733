"""Places several models that share the devices of one machine.

The models are an application (`ov_hsdag.applications.application`): each is a member with its placements, and an
assignment, int64 [members], chooses one placement of each. A plan is an assignment with its figures. With measuring,
each model is timed first, which corrects its costs (`model_timing`); then the best plans run on the devices
(`plan_trials`).

`place_together` has the steps in their order. Commands that take a stored plan go through `loaded_plan` instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.applications.application import Application, Member, check_runs
from ov_hsdag.applications.model_timing import scale_by_timing, time_model
from ov_hsdag.applications.plan import Plan
from ov_hsdag.applications.plan_figures import plan_of
from ov_hsdag.applications.plan_trials import WHOLE, measure_plans
from ov_hsdag.applications.prepared import ModelOf, PlanContext, Prepared
from ov_hsdag.costs.profile import Profile
from ov_hsdag.devices.cores import SharedCores
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.devices.memory import memory_limits
from ov_hsdag.devices.virtual import new_core
from ov_hsdag.measuring.process import StartWorker
from ov_hsdag.model.affinities import set_affinities
from ov_hsdag.model.placement import Placement
from ov_hsdag.model.shapes import (
    describe_open_sizes,
    fix_input_shapes,
    fix_npu_sizes,
    has_npu,
    is_unbounded,
    names_open_sizes,
)
from ov_hsdag.model.workload import Workload
from ov_hsdag.placers.multilevel import Multilevel
from ov_hsdag.placing import selection
from ov_hsdag.placing.candidates import find_candidates, placement_of, policy_placers
from ov_hsdag.placing.host_memory import HostMemory
from ov_hsdag.placing.options import PlaceOptions
from ov_hsdag.placing.request import check_seconds, settings_of
from ov_hsdag.policy.placer import HSDAGPlacer
from ov_hsdag.problem.pricing import Session
from ov_hsdag.problem.problem import check_objective
from ov_hsdag.utils.arguments import check_in_memory
from ov_hsdag.utils.errors import RunError, UserError
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.warn import warn_caller

# Default time budget of each model, seconds: with less, not all plans of five models compile.
_SECONDS = 30.0

# Share of the time budget in which the models are timed; the rest is for trials of plans.
_TIMING = 0.4

# Search for a split of one model beside the others. It makes a fifth of the moves of a search for one model alone, as
# it runs for several models.
_SEARCH = Multilevel(settings="fast")


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
    specs = _checked_specs(models, counts or {}, objective)
    used_core, devices = core or new_core(), DeviceSet.parse(device)
    for name, spec in specs.items():
        _fix_sizes(name, spec, devices, static)
    if measure:
        selection.check_possible(used_core, devices)
    limits = memory_limits(memory or {}, devices.names)
    session = Session.of(devices, used_core, profile, memory=limits)
    learned = policy_placers(policy, used_core, devices.names)
    context = PlanContext(session, objective, tell, start_worker)

    prepared = _prepare_all(specs, context, learned, seconds if measure else 0.0)
    tell("placing them together")
    application = Application(tuple(ready.member for ready in prepared), objective)
    plans = application.plan(_SEARCH)
    predicted = PlanChoice(plans, application.best(plans), None)
    made = _choose_by_measuring(application, predicted, prepared, context, learned, seconds) if measure else predicted

    placements = _write_placements(prepared, made.plans[made.chosen], profile)
    figures = plan_of(application, made.plans, made.chosen, made.measured, prepared, rates)
    plan = replace(figures, memory=limits, placements=placements)
    _warn_of_shared_host(plan, context, has_own_profile=profile is not None)
    return plan


def _checked_specs(
    models: Mapping[str, ov.Model | ModelOf], counts: Mapping[str, float], objective: str
) -> dict[str, ModelOf]:
    """Brings the models of an application into one form, and checks them.

    Args:
        models: the models by name, alone or as `ModelOf`.
        counts: counts that replace those of the models, by name.
        objective: "latency" or "throughput".

    Returns:
        The models by name, with their counts.

    Raises:
        UserError: a count names no model or is not allowed, the order of the models is wrong, a model is a path, or one
            model has two names.
    """
    if unknown := sorted(set(counts) - set(models)):
        raise UserError(f"there is a count of '{unknown[0]}', which is no model of the application")
    given = {name: spec if isinstance(spec, ModelOf) else ModelOf(spec) for name, spec in models.items()}
    specs = {name: replace(spec, count=float(counts.get(name, spec.count))) for name, spec in given.items()}
    for name, spec in specs.items():
        check_in_memory(f"place '{name}' of", spec.model)
    check_runs({name: (spec.count, spec.after) for name, spec in specs.items()}, objective)
    if len({id(spec.model) for spec in specs.values()}) < len(specs):
        raise UserError("a model has two names: give a clone of it under the second, as each is placed for itself")
    return specs


def _fix_sizes(name: str, spec: ModelOf, devices: DeviceSet, static: bool) -> None:
    """Gives a model static sizes, in place, where that is requested or an NPU needs it and the sizes are known.

    Args:
        name: name of the model.
        spec: the model with its example shapes.
        devices: the devices.
        static: whether static sizes are requested. Sizes that stay open for an NPU are then only a warning, as other
            models of the application may use the NPU.

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


def _prepare_all(
    specs: Mapping[str, ModelOf], context: PlanContext, learned: Sequence[HSDAGPlacer], seconds: float
) -> list[Prepared]:
    """Prepares the models one after the other, and finds placements of each without the others.

    Args:
        specs: the models by name.
        context: what all steps share.
        learned: placers of the policy.
        seconds: time budget of timing and measuring together, seconds, of which `_TIMING` is for timing the models;
            with 0 none is timed.

    Returns:
        The models, in the same order.

    Raises:
        UserError: a model cannot be placed; the message begins with its name.
    """
    prepared, seconds_each = [], _TIMING * seconds / max(len(specs), 1)
    for name, spec in specs.items():
        context.tell(f"placing {name}")
        try:
            ready = _prepare(name, spec, context, seconds_each)
        except UserError as error:
            raise UserError(f"'{name}': {error}") from error
        ready.member.ways.extend(find_candidates(ready.member.problem, learned))
        prepared.append(ready)
    return prepared


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
    workload = Workload.asked(spec.workload, None)
    phases = workload.phases_with(spec.model, spec.shapes) if workload else ()
    analysis = context.session.analyse(spec.model, spec.shapes, phases)
    problem = context.session.price(analysis, context.objective, None, phases).problem
    begin = time.monotonic()
    timed = time_model(name, problem, analysis, phases, context, seconds) if seconds else {}
    took = time.monotonic() - begin
    count = spec.count * (sum(phase.count for phase in phases) or 1.0)
    member = Member(name, scale_by_timing(problem, timed), count, [], spec.after)
    return Prepared(spec, analysis, phases, member, timed, took)


@dataclass(frozen=True, eq=False)
class PlanChoice:
    """Plans of an application, of which one is chosen.

    Attributes:
        plans: assignments by name of the plan, int64 [members].
        chosen: name of the chosen one.
        measured: measured figures, see `Plan.measured`; None where nothing was measured.
    """

    plans: dict[str, NDArray[np.int64]]
    chosen: str
    measured: dict[str, Any] | None


def _choose_by_measuring(
    application: Application,
    predicted: PlanChoice,
    prepared: Sequence[Prepared],
    context: PlanContext,
    learned: Sequence[HSDAGPlacer],
    seconds: float,
) -> PlanChoice:
    """Measures the plans, further plans without splits and the best one by the profile, and chooses among all.

    Args:
        application: the application.
        predicted: the plans, with the choice by prediction.
        prepared: the models.
        context: what all steps share.
        learned: placers of the policy.
        seconds: time budget, seconds, of which timing the models has taken a part.

    Returns:
        All these plans with the choice by measuring; the choice stays that by prediction where nothing ran.
    """
    whole = application.distinct_whole(WHOLE)
    other_whole = {f"whole, {number}": assignment for number, assignment in enumerate(whole[1:], 2)}
    by_profile = _best_by_profile(application, prepared, context, learned)
    plans = predicted.plans | other_whole | by_profile
    end = time.monotonic() + seconds - sum(ready.seconds for ready in prepared)
    measured = measure_plans(application, plans, prepared, context, end)
    if measured is None:
        return replace(predicted, plans=plans)
    chosen, figures = measured
    return PlanChoice(plans, chosen, figures)


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


def _write_placements(
    prepared: Sequence[Prepared], assignment: NDArray[np.int64], profile: Profile | str | PathLike[str] | None
) -> dict[str, Placement]:
    """Writes a placement into each model.

    Args:
        prepared: the models.
        assignment: the chosen plan, int64 [members].
        profile: device profile that the caller gave, recorded in the settings; None without one.

    Returns:
        The placements by name of the model.
    """
    ways = zip(prepared, assignment.tolist(), strict=True)
    return {ready.member.name: _write_placement(ready, way, profile) for ready, way in ways}


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
    chosen = placement_of(problem, ways[way], ways, settings=settings, why="it shares the devices with other models")
    placement = replace(chosen, affinity=set_affinities(model, chosen.affinity))
    placement.embed(model)
    return placement


def _warn_of_shared_host(plan: Plan, context: PlanContext, *, has_own_profile: bool) -> None:
    """Warns where devices that share the host's memory need more than it has, and where they share its cores.

    Args:
        plan: the plan.
        context: what all steps share.
        has_own_profile: whether the caller gave a device profile.
    """
    session = context.session
    profile = session.profile if has_own_profile else None
    if host := HostMemory.of(session.core, session.devices.names, plan.memory, profile=profile):
        host.warn_beyond(sum(plan.predicted["memory_bytes"][name] for name in host.devices))
    if shared := SharedCores.of(session.core, session.devices.names):
        warn_caller(shared.describe())
