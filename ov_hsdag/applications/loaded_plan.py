"""Loads a stored plan with its models, and predicts it anew, perhaps for other devices or another objective.

Measured figures stay in the plan where they still hold, and so do the factors by which its models were timed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.applications.application import Application, Member, check_runs
from ov_hsdag.applications.model_timing import BOUNDARIES, scale_by_timing
from ov_hsdag.applications.plan import Plan, PlannedModel
from ov_hsdag.applications.plan_figures import plan_of
from ov_hsdag.applications.prepared import ModelOf, Prepared
from ov_hsdag.costs.profile import Profile
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.explaining.explain import explain
from ov_hsdag.model.placement import Placement
from ov_hsdag.placers.single import simple_placers
from ov_hsdag.placing.candidates import run
from ov_hsdag.problem.problem import check_objective
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import ov


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
    problem = scale_by_timing(explained.explanation.problem, timed)
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
    return {key: factor for key, factor in timed.items() if conditions.same_devices or key != BOUNDARIES}


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
