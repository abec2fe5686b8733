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
    timed = _time_model(name, problem, analysis, phases, context, seconds) if seconds else {}
    took = time.monotonic() - begin
    count = spec.count * (sum(phase.count for phase in phases) or 1.0)
    member = Member(name, _scale_by_timing(problem, timed), count, [], spec.after)
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
    measured = _measure_plans(application, plans, prepared, context, end)
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


def _scale_by_timing(problem: PlacementProblem, timed: Mapping[str, float]) -> PlacementProblem:
    """Returns a problem with its times scaled by the factors of `PlannedModel.timed`; a missing factor counts as 1."""
    factors = np.array([timed.get(device, 1.0) for device in problem.devices])
    return scale_costs(problem, factors, timed.get(_BOUNDARIES, 1.0))


def _time_model(
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
    end = time.monotonic() + seconds
    runs = _RunsToTime.of(problem, context.session)
    try:
        with Comparison(
            analysis.model,
            context.session.devices,
            runs.candidates,
            problem.objective,
            context.session.core,
            shapes=analysis.shapes,
            phases=phases,
            limit=1.5 * (end - time.monotonic()),  # a comparison saves time for rounds of two, which are not made here
            report=lambda text: context.tell(f"{name}: {text}"),
            start_worker=context.start_worker,
        ) as comparison:
            posterior = choice.infer(comparison.trials(rounds=_TIMED_ROUNDS, until=end))
            took_us = {run: 1e6 / posterior.rate(run) for run in posterior.names}
            if took_us.keys().isdisjoint(runs.predicted_us):
                raise _error_of_failures(comparison)
    except RunError as error:
        warn_caller(f"'{name}' could not be timed, and is placed by the profile: {error}")
        return {}
    return runs.factors(problem, took_us)


@dataclass(frozen=True, eq=False)
class _RunsToTime:
    """What of one model is timed, and what the profile predicts for it.

    Attributes:
        candidates: the model on each device, by device, and the split, by `_SPLIT`, unless there is none to run.
        predicted_us: predicted time of the model by device that runs all of it, µs.
        timed_as: by device, the equal device that is timed in its place, perhaps itself.
        split: the split, uint8 [groups].
    """

    candidates: dict[str, Candidate]
    predicted_us: dict[str, float]
    timed_as: dict[str, str]
    split: NDArray[np.uint8]

    @classmethod
    def of(cls, problem: PlacementProblem, session: Session) -> _RunsToTime:
        """Determines what is timed.

        Args:
            problem: the problem with the profile's costs.
            session: the devices.
        """
        devices = session.devices
        on_each_us = dict(zip(devices.names, problem.scores(problem.singles).tolist(), strict=True))
        predicted_us = {device: us for device, us in on_each_us.items() if np.isfinite(us)}
        kinds = {device: identity(session.core, device) for device in devices.names}
        timed_as = {
            device: next((able for able in predicted_us if kinds[able] == kind), device)
            for device, kind in kinds.items()
        }
        candidates = {device: Candidate(device) for device in predicted_us if timed_as[device] == device}
        split = Contiguous().place(problem)
        if candidates and split.min() != split.max() and np.isfinite(problem.scores(split)[0]):
            candidates[_SPLIT] = Candidate.placed(devices, problem.affinity(split))
        return cls(candidates, predicted_us, timed_as, split)

    def factors(self, problem: PlacementProblem, took_us: Mapping[str, float]) -> dict[str, float]:
        """Divides measured times by predicted ones.

        Args:
            problem: the problem with the profile's costs.
            took_us: measured times by name of the candidate that ran, µs; a device is among them.

        Returns:
            Factors of times, see `PlannedModel.timed`. A device that was not timed gets the mean of the others.
        """
        measured = {device: took_us[device] / us for device, us in self.predicted_us.items() if device in took_us}
        mean = geometric_mean(measured.values())
        timed = {device: measured.get(representative, mean) for device, representative in self.timed_as.items()}
        if _SPLIT not in took_us:
            return timed
        return {**timed, _BOUNDARIES: _boundaries(_scale_by_timing(problem, timed), self.split, took_us[_SPLIT])}


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
    contest = _Contest.of(application, plans)
    devices = context.session.devices
    remaining = max(end - time.monotonic(), 1.0)
    try:
        with Comparison(
            prepared[0].analysis.model,
            devices,
            {name: candidate_of(application, plans[name], devices) for name in contest.names},
            application.objective,
            context.session.core,
            simple=contest.simple,
            needs=contest.needs,
            first=contest.first,
            limit=remaining,
            report=context.tell,
            start_worker=context.start_worker,
            **models_of(application, prepared),
        ) as comparison:
            predicted = {name: 1 / contest.scores[name] for name in contest.names}
            trials = Trials(comparison, contest.simple, predicted, _ERROR, end, TRIAL, contest.singles)
            decision = trials.run()
            if decision is None:
                raise _error_of_failures(comparison)
            key = "latency_us" if application.objective == "latency" else "runs_per_second"
            return decision.chosen, trials.figures(decision, application.objective, key)
    except RunError as error:
        warn_caller(f"nothing could be measured, so the plan is chosen by prediction: {error}")
        return None


@dataclass(frozen=True, eq=False)
class _Contest:
    """The plans that are measured.

    Attributes:
        names: all of them, those without splits first. Equal plans have one name; of plans without splits that only
            exchange equal devices, one is measured.
        simple: those without splits.
        singles: those with everything on one device.
        first: all, in the order of compiling: the best without splits and the best with everything on one device come
            first, in case time is short.
        scores: predicted latency or period by plan, µs.
        needs: bytes that a plan needs on each device, by plan and device.
    """

    names: list[str]
    simple: list[str]
    singles: list[str]
    first: list[str]
    scores: dict[str, float]
    needs: dict[str, dict[str, int]]

    @classmethod
    def of(cls, application: Application, plans: Mapping[str, NDArray[np.int64]]) -> _Contest:
        """Selects and orders the plans to measure.

        Args:
            application: the application.
            plans: assignments by name of the plan, int64 [members].
        """
        name_of: dict[bytes, str] = {}
        distinct = [name for name, plan in plans.items() if name_of.setdefault(plan.tobytes(), name) == name]
        evaluation = application.evaluate(np.stack([plans[name] for name in distinct]))
        scores = dict(zip(distinct, evaluation.score(application.objective), strict=True))
        needs = {name: figures_of(application, evaluation, row)["memory_bytes"] for row, name in enumerate(distinct)}
        where = {name: {*application.describe(plans[name].tolist()).values()} for name in distinct}
        whole = [name for name in distinct if where[name] <= {*application.devices}]
        with_splits = [name for name in distinct if name not in whole]
        rows = application.distinct(np.stack([plans[name] for name in whole])) if whole else ()
        simple = [whole[row] for row in rows]
        singles = [name for name in simple if len(where[name]) == 1]
        names = [*simple, *with_splits]
        best_simple = min(simple, key=scores.__getitem__, default="")
        best_single = min(singles, key=scores.__getitem__, default="")
        first = sorted(names, key=lambda name: (name != best_simple, name != best_single, scores[name]))
        return cls(names, simple, singles, first, scores, needs)


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
    conditions = _Conditions.of(plan, device, how)
    check_objective(conditions.objective)
    if not conditions.same_objective:
        check_runs({name: (stored.count, stored.after) for name, stored in plan.models.items()}, conditions.objective)
    loaded = [_load_model(name, stored, models[name], conditions, core) for name, stored in plan.models.items()]
    prepared = [ready for ready, _ in loaded]
    application = Application(tuple(ready.member for ready in prepared), conditions.objective)
    assignment = np.array([way for _, way in loaded], np.int64)
    renewed = _predict_anew(plan, application, assignment, prepared, conditions)
    return LoadedPlan(renewed, application, assignment, prepared)


@dataclass(frozen=True, eq=False)
class _Conditions:
    """The conditions for which a stored plan is predicted anew.

    Attributes:
        devices: names of the devices, in HETERO's order.
        objective: "latency" or "throughput".
        arguments: arguments of `explain` by name, among them the objective and the memory limits.
        same_devices: whether the devices are those of the plan.
        same_objective: whether the objective is that of the plan.
    """

    devices: tuple[str, ...]
    objective: str
    arguments: Mapping[str, Any]
    same_devices: bool
    same_objective: bool

    @classmethod
    def of(cls, plan: Plan, device: str | None, how: Mapping[str, Any]) -> _Conditions:
        """Completes what the caller gives with the plan's own conditions.

        Args:
            plan: the stored plan.
            device: device list; by default the plan's.
            how: arguments of `explain` that the caller gives; values that are None count as not given.
        """
        devices = plan.devices if device is None else DeviceSet.parse(device).names
        kept_limits = {name: limit for name, limit in plan.memory.items() if name in devices}
        objective = how.get("objective") or plan.objective
        arguments = {**how, "objective": objective, "memory": kept_limits | (how.get("memory") or {})}
        return cls(devices, objective, arguments, devices == plan.devices, objective == plan.objective)

    @property
    def profile_name(self) -> str | None:
        """Name of the profile's file, without its folder; None for built-in profiles."""
        profile = self.arguments.get("profile")
        file = profile.origin if isinstance(profile, Profile) else profile
        return Path(file).name if file else None

    @property
    def same(self) -> bool:
        """Whether all figures of the plan still hold."""
        return self.same_devices and self.same_objective and self.arguments.get("profile") is None


def _load_model(
    name: str, stored: PlannedModel, model: ov.Model, conditions: _Conditions, core: ov.Core
) -> tuple[Prepared, int]:
    """Prices one model of a stored plan.

    Args:
        name: name of the model.
        stored: what the plan says of it.
        model: the model with its placement; it is not changed.
        conditions: the conditions.
        core: Core of the devices.

    Returns:
        The model, with the placements on single devices and the one that it carries, and the index of that one.

    Raises:
        UserError: the model carries no placement, or cannot be explained; the message begins with its name.
    """
    try:
        explained = explain(model, conditions.devices, core=core, **conditions.arguments)
    except UserError as error:
        raise UserError(f"'{name}': {error}") from error
    analysis = explained.analysis
    assert analysis is not None
    timed = _valid_factors(stored.timed, explained.placement, conditions)
    problem = _scale_by_timing(explained.explanation.problem, timed)
    count = stored.count * (sum(phase.count for phase in explained.phases) or 1.0)
    ways = [run(placer, problem) for placer in simple_placers(problem)]
    member = Member(name, problem, count, ways, stored.after)
    carried = member.way(explained.explanation.placement)
    spec = ModelOf(analysis.model, stored.count, stored.after, analysis.shapes, stored.workload)
    return Prepared(spec, analysis, explained.phases, member, stored.timed), carried


def _valid_factors(timed: Mapping[str, float], placement: Placement, conditions: _Conditions) -> dict[str, float]:
    """Selects the measured factors of a model that hold under other conditions.

    They hold for the profile and the objective that they were measured with; the one of boundaries also for the list of
    devices, as it is one number for all of them.

    Args:
        timed: the factors, see `PlannedModel.timed`.
        placement: the placement that the model carries, which records the profile.
        conditions: the conditions.
    """
    same_profile = (placement.settings or {}).get("profile") == conditions.profile_name
    if not (conditions.same_objective and same_profile):
        return {}
    return {key: factor for key, factor in timed.items() if conditions.same_devices or key != _BOUNDARIES}


def _predict_anew(
    plan: Plan,
    application: Application,
    assignment: NDArray[np.int64],
    prepared: Sequence[Prepared],
    conditions: _Conditions,
) -> Plan:
    """Makes a stored plan with new predictions; measured figures and baselines stay where they still hold.

    Args:
        plan: the stored plan.
        application: the application of its models.
        assignment: the placements that the models carry, int64 [members].
        prepared: the models.
        conditions: the conditions.
    """
    limits = {
        name: int(limit)
        for name, limit in zip(conditions.devices, application.limits, strict=True)
        if np.isfinite(limit)
    }
    chosen, measured = (plan.chosen, plan.measured) if conditions.same else ("plan", None)
    predicted = plan_of(application, {chosen: assignment}, chosen, measured, prepared, plan.asked is not None)
    models = {name: replace(model, path=plan.models[name].path) for name, model in predicted.models.items()}
    return replace(predicted, models=models, memory=limits, baselines=plan.baselines if conditions.same else {})


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
