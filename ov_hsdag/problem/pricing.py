"""Makes the placement problem of a model in two steps, analysis and pricing.

The analysis (`ModelAnalysis`: normalized model, graph, support) does not depend on costs. Pricing adds costs, those of
a device profile or measured ones. A `Session` does both for one device list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.costs import cost_model
from ov_hsdag.costs.builtin import builtin_profile
from ov_hsdag.costs.memory import memory_needs
from ov_hsdag.costs.profile import Profile
from ov_hsdag.costs.stored import DeviceCosts, ModelCosts
from ov_hsdag.costs.terms import NODE_TERMS, TERMS
from ov_hsdag.devices import discovery
from ov_hsdag.devices.cores import SharedCores
from ov_hsdag.devices.device_set import DeviceSet, kind_of
from ov_hsdag.devices.virtual import new_core
from ov_hsdag.model import colocation, normalize
from ov_hsdag.model.graph import ComputationGraph, NodeKind
from ov_hsdag.model.shapes import with_open_sizes
from ov_hsdag.model.support import (
    RANKS_FIXED,
    custom_operations,
    inner_types,
    require_support,
    support,
    with_open_ranks,
)
from ov_hsdag.model.workload import Phase
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.timing import Clock
from ov_hsdag.utils.warn import warn_caller


@dataclass(frozen=True, eq=False)
class ModelAnalysis:
    """The properties of a model that do not depend on costs; calibration and placement share them."""

    model: ov.Model  # the normalized model
    shapes: Mapping[str, Sequence[int]] | None  # example shapes of its dynamic inputs
    graph: ComputationGraph  # graph of the model
    devices: tuple[str, ...]  # names of the devices, in HETERO's order
    supported: NDArray[np.bool_]  # which devices run which nodes, bool [nodes, devices]


def prepare(
    model: ov.Model,
    names: Sequence[str],
    core: ov.Core,
    profile: Profile,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    clock: Clock | None = None,
    placed: bool = False,
) -> ModelAnalysis:
    """Normalizes `model`, in place, and finds out which devices run which operations.

    Devices of this machine are asked; for others the profile has the answer.

    Args:
        model: any model; changed in place.
        names: names of the devices, in HETERO's order.
        core: the Core.
        profile: profile of every device.
        shapes: example shapes of dynamic inputs, by input name.
        clock: measures the phases "normalise", "graph", "legality" and "support".
        placed: whether the model carries a placement, see `ov_hsdag.model.clean_up.clean_up`.

    Returns:
        The analysis of the model.

    Raises:
        UserError: a device is unknown, the model has no operations, no device runs some operation, or the shapes do not
            fit.
        RunError: a device cannot say what it supports.
    """
    clock = clock or Clock()
    for name in names:
        profile.device(name)
    if not (model.get_parameters() or model.get_results() or model.get_sinks()):
        raise UserError("the model is empty: it has no operations")
    graph, part = normalize.normalize_by_excerpt(model, shapes, clock, placed)
    with clock("legality"):
        groups = graph.legality.groups
    with clock("support"):
        absent = discovery.absent(core, names)
        supported = _assumed_support(model, graph, names, absent, profile)
        present = [name for name in names if name not in absent]
        supported[:, [names.index(name) for name in present]] = support(model, graph, present, core, part)
        npus = np.array([kind_of(name) == "NPU" for name in names])
        if npus.any():
            operations = np.isin(graph.kinds, (NodeKind.OP, NodeKind.SINK))
            supported &= ~np.outer(operations & np.isin(graph.names, with_open_sizes(model)), npus)
        require_support(graph, groups, supported, names, model)
    return ModelAnalysis(model, shapes, graph, tuple(names), supported)


def _assumed_support(
    model: ov.Model, graph: ComputationGraph, names: Sequence[str], absent: Sequence[str], profile: Profile
) -> NDArray[np.bool_]:
    """Predicts which devices run which nodes, bool [nodes, devices], without asking the devices.

    Args:
        model: the normalized model.
        graph: the graph of the model.
        names: names of the devices.
        absent: the devices that are not on this machine. Columns of other devices are incomplete.
        profile: profile of every device.
    """
    supported = cost_model.assumed_support(profile, graph, names)
    if not absent:
        return supported
    operations = np.isin(graph.kinds, (NodeKind.OP, NodeKind.SINK))
    custom = operations & np.isin(graph.names, custom_operations(model))
    open_rank = operations & np.isin(graph.names, with_open_ranks(model))
    inner = {graph.index(name): types for name, types in inner_types(model).items()}
    for column, device in enumerate(map(profile.device, names)):
        if names[column] not in absent or device.kind == "CPU":
            continue
        if device.supported is None:  # otherwise the profile lists all types that the device runs
            supported[custom, column] = False
        if device.kind in RANKS_FIXED:
            supported[open_rank, column] = False
        for node, types in inner.items():
            supported[node, column] &= all(map(device.runs, types))
    return supported


@dataclass(frozen=True, eq=False)
class Session:
    """A device list on a machine with the speeds of its devices, for which models are analysed and priced."""

    core: ov.Core  # answers what its devices support
    devices: DeviceSet  # the devices, in HETERO's order
    profile: Profile  # profile of every device

    @classmethod
    def of(
        cls,
        device: DeviceSet | str | Sequence[str],
        core: ov.Core | None = None,
        profile: Profile | str | PathLike[str] | None = None,
        *,
        memory: Mapping[str, int] | None = None,
        kv_precision: str | None = None,
    ) -> Session:
        """Opens a session.

        Args:
            device: the devices, such as "HETERO:GPU,CPU" or ["GPU", "CPU"].
            core: the Core; a new one by default.
            profile: profile of the devices, or the path of its file; built-in profiles by default.
            memory: limits in place of the profile's, bytes by device name.
            kv_precision: type in which devices keep KV caches, such as "u8"; by default the devices' own.

        Returns:
            The session.

        Raises:
            UserError: there are no devices, a device is unknown, or there is no such profile.
        """
        devices = device if isinstance(device, DeviceSet) else DeviceSet.parse(device)
        core = core or new_core()
        resolved = resolve_profile(profile, devices.names, core)
        return cls(core, devices, resolved.with_memory(memory or {}).with_kv_precision(kv_precision))

    def analyse(
        self,
        model: ov.Model,
        shapes: Mapping[str, Sequence[int]] | None = None,
        phases: Sequence[Phase] = (),
        clock: Clock | None = None,
        placed: bool = False,
    ) -> ModelAnalysis:
        """Analyses a model for the session's devices; see `prepare`.

        Args:
            model: any model; changed in place.
            shapes: example shapes of dynamic inputs, by input name, where there are no phases.
            phases: phases of a workload; the shapes of the last one count.
            clock: measures the phases of placing.
            placed: whether the model carries a placement.

        Returns:
            The analysis of the model.

        Raises:
            UserError: as `prepare`.
            RunError: a device cannot say what it supports.
        """
        shapes = phases[-1].shapes if phases else shapes or None
        return prepare(model, self.devices.names, self.core, self.profile, shapes=shapes, clock=clock, placed=placed)

    def price(
        self,
        analysis: ModelAnalysis,
        objective: str,
        costs: ModelCosts | None = None,
        phases: Sequence[Phase] = (),
        phase_costs: Mapping[str, ModelCosts] | None = None,
    ) -> WorkloadProblem:
        """Makes the problem of one inference, or of a workload.

        The problem of a workload is that of the mean over its inferences, with memory for the largest. Its times are
        those of a mean inference, because costs are additive: times of operations are means over the phases, a transfer
        takes as long as that of the mean bytes, and a submodel is started once in each inference. A phase that does not
        occur counts for memory only.

        Measured costs of operations and boundaries count where they hold, else those of the profile. A warning names
        devices for which measured costs do not hold, because the core reports another device or properties.

        Args:
            analysis: the analysis of the model.
            objective: "latency" or "throughput".
            costs: measured costs of the model, where there are no phases.
            phases: phases of a workload.
            phase_costs: measured costs by the phase's name.

        Returns:
            The problem, with the problems of the phases.

        Raises:
            UserError: shapes of a phase do not fit the model, or the objective is unknown.
        """
        graphs = {phase.name: graph_of(analysis, phase) for phase in phases} or {"": analysis.graph}
        counts = {phase.name: float(phase.count) for phase in phases if phase.count} or {"": 1.0}
        measured = (phase_costs or {}) if phases else {"": costs}
        priced = {}
        for name, count in counts.items():
            by_profile = cost_model.all_costs(self.profile, graphs[name], analysis.devices)
            overlaid = _with_measured_costs(by_profile, graphs[name], analysis.devices, self.core, measured.get(name))
            priced[name] = _Priced(graphs[name], count, overlaid)
        problem = self._problem(analysis, objective, list(priced.values()), graphs.values())
        if not phases:
            return WorkloadProblem(problem, {}, {}, {})
        each = {name: replace(problem, graph=one.graph, moved_bytes=None, **one.costs) for name, one in priced.items()}
        return WorkloadProblem(problem, each, counts, {name: graph.output_bytes for name, graph in graphs.items()})

    def _problem(
        self, analysis: ModelAnalysis, objective: str, parts: Sequence[_Priced], graphs: Iterable[ComputationGraph]
    ) -> PlacementProblem:
        """Makes the problem of the mean over inferences of several sizes; memory counts the largest of all `graphs`."""
        names, profile = analysis.devices, self.profile
        graph, moved = max(parts, key=lambda part: part.count).graph, None
        largest = np.stack([one.output_bytes for one in graphs]).max(axis=0)
        graph = replace(graph, output_bytes=largest) if (largest != graph.output_bytes).any() else graph
        if len(parts) > 1:
            shares = np.array([part.count for part in parts]) / sum(part.count for part in parts)
            moved = np.rint(shares @ np.stack([part.graph.output_bytes for part in parts])).astype(np.int64)
            graph = replace(graph, flops=shares @ np.stack([part.graph.flops for part in parts]))
        storage_ratio = cost_model.storage_ratios(profile, graph, names)
        shared = SharedCores.of(self.core, names)
        held, live = memory_needs(analysis.model, graph, self.core, profile, names, storage_ratio)
        return PlacementProblem(
            graph=graph,
            devices=names,
            objective=objective,
            supported=analysis.supported,
            groups=analysis.graph.legality.groups,
            memory_bytes=np.ceil(profile.memory_bytes(names) / storage_ratio).astype(np.int64),
            rule=colocation.split_rule(ov.__version__),
            storage_ratio=storage_ratio,
            moved_bytes=moved,
            held_bytes=held,
            live_bytes=live,
            core_share=None if shared is None else shared.shares(names),
            **_mean_costs(parts),
        )


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
    """Normalizes `model`, in place, and makes its placement problem.

    Args:
        model: any model; changed in place.
        devices: the devices, in HETERO's order.
        objective: "latency" or "throughput".
        profile: profile of the devices, or the path of its file; built-in profiles by default.
        core: the Core; a new one by default.
        shapes: example shapes of dynamic inputs, by input name.
        costs: measured costs of the model, used where they hold.

    Returns:
        The problem.

    Raises:
        UserError: a device is unknown, the profile lacks a device, or no device runs some operation.
        RunError: a device cannot say what it supports.
    """
    session = Session.of(devices, core, profile)
    return session.price(session.analyse(model, shapes), objective, costs).problem


def resolve_profile(profile: Profile | str | PathLike[str] | None, names: Sequence[str], core: ov.Core) -> Profile:
    """Returns a profile.

    Args:
        profile: a profile, the path of a profile's file, or None for the built-in profiles.
        names: names of the devices, for the built-in profiles.
        core: the Core, which matches the devices of this machine to built-in profiles.

    Returns:
        The profile.

    Raises:
        UserError: the file cannot be read, or no built-in profile stands for a device.
    """
    if isinstance(profile, Profile):
        return profile
    return Profile.load(profile) if profile else builtin_profile(names, core)


def graph_of(analysis: ModelAnalysis, phase: Phase) -> ComputationGraph:
    """Returns the graph of the model with the sizes of a phase. Raises UserError where its shapes do not fit."""
    if analysis.shapes is not None and phase.shapes == analysis.shapes:
        return analysis.graph
    return analysis.graph.resized(analysis.model, phase.shapes)


@dataclass(frozen=True, eq=False)
class WorkloadProblem:
    """The result of `Session.price`; the mappings are empty without a workload."""

    problem: PlacementProblem  # problem of the mean inference
    # problem of each phase that occurs, by its name; they have the groups and the memory of `problem`
    phases: Mapping[str, PlacementProblem]
    counts: Mapping[str, float]  # inferences of each phase in a run of the workload
    # bytes of all outputs in each phase, int64 [outputs], also in phases that do not occur
    output_bytes: Mapping[str, NDArray[np.int64]]

    def summary(self, placement: NDArray[np.integer[Any]]) -> dict[str, dict[str, float]]:
        """Predicts latency_us and throughput_ips of each phase, and its count, for one placement [groups]."""
        predictions = {}
        for name, problem in self.phases.items():
            of_one = problem.summary(placement)
            predictions[name] = {
                "count": self.counts[name],
                **{key: of_one[key] for key in ("latency_us", "throughput_ips")},
            }
        return predictions


@dataclass(frozen=True, eq=False)
class _Priced:
    """Inferences of one size: the graph of that size, their number, and their costs."""

    graph: ComputationGraph  # graph with this size
    count: float  # number of inferences in a run of the workload
    costs: Mapping[str, Any]  # attributes of `PlacementProblem` by the names of `ov_hsdag.costs.terms.TERMS`


def _with_measured_costs(
    costs: Mapping[str, Any], graph: ComputationGraph, names: Sequence[str], core: ov.Core, measured: ModelCosts | None
) -> dict[str, Any]:
    """Replaces costs of the profile by measured ones where these hold, and warns where they do not.

    Args:
        costs: costs of the profile, by the names of `TERMS`; not changed.
        graph: the graph of the model.
        names: names of the devices.
        core: the Core.
        measured: measured costs; None for none. Costs of boundaries count only if costs of all devices hold.

    Returns:
        The costs, by the names of `TERMS`.
    """
    valid_costs = _valid_measured_costs(measured, graph, names, core)
    mixed = {**costs, **{term.name: costs[term.name].copy() for term in NODE_TERMS}}
    boundaries = measured.boundaries_of(names) if measured and len(valid_costs) == len(names) else None
    if boundaries is not None:
        mixed |= boundaries.costs
    for name, device_costs in valid_costs.items():
        column = list(names).index(name)
        for key, values in device_costs.costs.items():
            mixed[key][:, column] = values
    return mixed


def _mean_costs(parts: Sequence[_Priced]) -> dict[str, Any]:
    """Computes the costs of a mean inference, by the names of `TERMS`.

    `fused_with` is that of the most frequent size of inferences. Penalties of other sizes count where they agree with
    it.
    """
    shares = np.array([part.count for part in parts]) / sum(part.count for part in parts)
    most = parts[int(shares.argmax())].costs
    moved = shares * [part.graph.output_bytes.sum() for part in parts]

    def summed(weights: Iterable[float], values: Iterable[Any]) -> Any:
        return sum(weight * value for weight, value in zip(weights, values, strict=True))

    means = {}
    for term in TERMS:
        values = [part.costs[term.name] for part in parts]
        if term.phase_mean == "mean":
            means[term.name] = summed(shares, values)
        elif term.phase_mean == "by bytes":
            means[term.name] = summed(moved, values) / max(sum(moved), 1.0)
        elif term.phase_mean == "of most":
            means[term.name] = most[term.name]
        else:
            alike = [part.costs["fused_with"] == most["fused_with"] for part in parts]
            means[term.name] = summed(shares, [np.where(*one, 0.0) for one in zip(alike, values, strict=True)])
    return means


def _valid_measured_costs(
    costs: ModelCosts | None, graph: ComputationGraph, devices: Sequence[str], core: ov.Core
) -> dict[str, DeviceCosts]:
    """Selects the measured costs that hold for this model and these devices, by device, and warns of the others."""
    if costs is None:
        return {}
    valid_costs = costs.of(graph, devices, core)
    unmeasured = [name for name in devices if costs.device(name) is None]
    if valid_costs and unmeasured:
        warn_caller(
            f"operations are not measured on {', '.join(unmeasured)} (there was no time, it runs none of the"
            " model, or the calibration was one without it): the profile counts there"
        )
    stale = [name for name in devices if name not in valid_costs and name not in unmeasured]
    if stale or not valid_costs:
        warn_caller(
            f"the measured costs beside the model do not hold for {', '.join(stale or devices)} (another model, device,"
            " number of cores, property or release of OpenVINO) and are not used; ov-hsdag calibrate --model measures"
            " them anew"
        )
    return valid_costs
