"""The placement problem of a model: its analysis, priced by a profile and by what was measured."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np

from ov_hsdag.costs import cost_model
from ov_hsdag.costs.builtin import builtin_profile
from ov_hsdag.costs.profile import Profile
from ov_hsdag.costs.stored import DeviceCosts, ModelCosts
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.devices.virtual import new_core
from ov_hsdag.model import repair
from ov_hsdag.model.graph import ComputationGraph
from ov_hsdag.problem.analysis import ModelAnalysis, prepare
from ov_hsdag.problem.problem import PlacementProblem

if TYPE_CHECKING:
    import openvino as ov


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
    """Normalizes `model`, in place, and makes the placement problem of it.

    Args:
        model: any model; changed in place.
        devices: the devices, in HETERO's order.
        objective: "latency" or "throughput".
        profile: speeds of the devices, or the path of a profile's file; built-in profiles by default.
        core: asked what the devices support, where it has them; a new one by default.
        shapes: example shapes of dynamic inputs, by input name.
        costs: measured costs of this model; used for the devices that they hold for.

    Raises:
        UserError: an unknown device, a profile without one of the devices, or an operation that no device runs.
        RunError: a device cannot say what it supports.
    """
    if core is None:
        core = new_core()
    known = resolve_profile(profile, devices.names, core)
    return price(prepare(model, devices.names, core, known, shapes=shapes), objective, known, core, costs)


def resolve_profile(profile: Profile | str | PathLike[str] | None, names: Sequence[str], core: ov.Core) -> Profile:
    """The profile itself, the one of a file, or the built-in profiles of the devices. Raises UserError."""
    if isinstance(profile, Profile):
        return profile
    return Profile.load(profile) if profile else builtin_profile(names, core)


def price(
    analysis: ModelAnalysis, objective: str, profile: Profile, core: ov.Core, costs: ModelCosts | None
) -> PlacementProblem:
    """The placement problem: operations and boundaries cost what `costs` measured where they hold, else the profile's.

    Args:
        analysis: of the model.
        objective: "latency" or "throughput".
        profile: has every device of the analysis.
        core: tells whether measured costs hold for its devices.
        costs: measured costs; None for none. A warning names devices that they do not hold for.
    """
    import openvino as ov

    names, graph = analysis.devices, analysis.graph
    transfer_us, transfer_us_per_byte = cost_model.transfer_costs(profile, names)
    node_us = cost_model.node_us(profile, graph, names)
    fused_with, penalty_us = cost_model.fusion_costs(profile, graph, names)
    submodel_us = profile.submodel_us(names)
    kept = cost_model.storage_ratios(profile, graph, names)
    measured_here = _measured(costs, graph, names, core)
    boundaries = costs.boundaries_of(names) if costs and len(measured_here) == len(names) else None
    if boundaries is not None:
        submodel_us, transfer_us = boundaries.submodel_us, boundaries.transfer_us
        transfer_us_per_byte = boundaries.transfer_us_per_byte
    for name, measured in measured_here.items():
        column = names.index(name)
        node_us[:, column] = measured.node_us
        fused_with[:, column], penalty_us[:, column] = measured.fused_with, measured.fusion_penalty_us
    return PlacementProblem(
        graph=graph,
        devices=names,
        objective=objective,
        node_us=node_us,
        supported=analysis.supported,
        groups=analysis.groups,
        transfer_us=transfer_us,
        transfer_us_per_byte=transfer_us_per_byte,
        submodel_us=submodel_us,
        memory_bytes=np.ceil(profile.memory_bytes(names) / kept).astype(np.int64),
        rule=repair.split_rule(ov.__version__),
        fused_with=fused_with,
        fusion_penalty_us=penalty_us,
        storage_ratio=kept,
    )


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
            f"operations are not measured on {', '.join(unmeasured)} (there was no time, it runs none of the"
            " model, or the calibration was one without it): the profile counts there",
            stacklevel=4,
        )
    other = [name for name in devices if name not in found and name not in unmeasured]
    if other or not found:
        warnings.warn(
            f"the measured costs beside the model do not hold for {', '.join(other or devices)} (another model, device,"
            " number of cores, property or release of OpenVINO) and are not used; ov-hsdag calibrate --model measures"
            " them anew",
            stacklevel=4,
        )
    return found
