"""Calibration of a model: measures its operations and its partition boundaries on the devices of this machine.

First the whole model is measured on each device that runs all of it ("alone"), which gives times of its operations. A
device that runs only a part is measured in a split with one that runs the whole model (its helper). Then a few splits
over all devices are measured. They give factors on the costs of submodels, transfers and broken fusions
(`ov_hsdag.calibration.scale_factors`), which are the profile's otherwise. Equal devices are those whose conditions of
measuring are the same (`ov_hsdag.costs.stored.identity`).
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.calibration.executions import CompiledModels
from ov_hsdag.calibration.node_times import NodeTimes, adding_up, node_times, shares
from ov_hsdag.calibration.scale_factors import all_supported_on, draw, fit_scale_factors, measure_latencies, terms
from ov_hsdag.costs import cost_model
from ov_hsdag.costs.fusions import fusions, layout_ends, own_layout, with_layouts
from ov_hsdag.costs.profile import Profile
from ov_hsdag.costs.roofline import Roofline
from ov_hsdag.costs.stored import UNEQUAL, BoundaryCosts, DeviceCosts, ModelCosts, graph_hash, identity
from ov_hsdag.costs.terms import BOUNDARY_TERMS, NODE_TERMS
from ov_hsdag.devices import discovery
from ov_hsdag.devices.device_set import kind_of
from ov_hsdag.model import colocation
from ov_hsdag.model.affinities import set_affinities
from ov_hsdag.model.compiling import Compiling, Here
from ov_hsdag.model.inputs import timed_inputs
from ov_hsdag.model.shapes import smaller_shapes
from ov_hsdag.problem.pricing import ModelAnalysis
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.utils.errors import RunError, one_line
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.timing import UNLIMITED, Deadline, OutOfTime
from ov_hsdag.utils.warn import warn_caller

Advance = Callable[[str], None]

# Share of the time for measuring placements, which show the costs of boundaries, as a multiple of a device's share.
_BOUNDARIES_SHARE = 1.5

# Memory of a compiled model as a multiple of its weights, and the share of the free memory that may be used.
_COMPILED_SIZE_FACTOR, _MEMORY_SHARE = 1.5, 0.8

# Largest number of compiled models that are kept for the next phase of a workload, and the number of others that are
# in memory at the same time.
_MOST_KEPT, _TRANSIENT_MODELS = 12, 2


def calibrate_prepared(
    prepared: ModelAnalysis,
    core: ov.Core,
    profile: Profile,
    advance: Advance = lambda _: None,
    deadline: Deadline = UNLIMITED,
    compiled: CompiledModels | None = None,
) -> tuple[ModelCosts, dict[str, NodeTimes]]:
    """Measures a model on each device alone, or in a split with another one if a device does not run all of it.

    Devices that run nothing of the model are left out. If the time is too short, the profile replaces measurements,
    with a warning: first repetitions and splits are left out, then single operations, then devices.

    Args:
        prepared: the analysis of the model.
        core: the Core.
        profile: profile of the devices. It divides the time of nodes that are executed as one.
        advance: called with lines of progress.
        deadline: budget of everything except a compilation that has begun.
        compiled: compiled copies of the same model, possibly used with inputs of other sizes; new ones by default.

    Returns:
        The costs of the measured devices, whose `boundaries` is None if those were not measured; and the times of each
        device by name.

    Raises:
        RunError: no device runs the whole model (`NotRunnableError`), none did so in time, or a split does not run.
    """
    calibration = ModelCalibration(prepared, core, profile, advance, deadline, compiled)
    calibration.measure_operations()
    calibration.measure_boundaries()
    calibration.warn_of_missing()
    return calibration.costs(), calibration.times


class Calibrating(AbstractContextManager["Calibrating"]):
    """A child process in which models are calibrated, so that this process compiles nothing.

    It begins with the first call, or with `start`, and ends with `close`. It keeps compiled copies of each model for
    later calls.
    """

    def __init__(self, core: ov.Core, names: Sequence[str]) -> None:
        """Prepares the process; `core` has the devices and their settings, `names` are the devices to compile for."""
        self._core, self._names = core, names
        self._kept: dict[int, int] = {}  # number of each model in the process, by Python's id of the model
        self._started: Compiling | None = None

    def start(self) -> Compiling:
        """Starts the process, which imports OpenVINO while this one goes on.

        Raises:
            RunError: the process cannot be started.
        """
        if self._started is None:
            self._started = Compiling(self._core, self._names)
        return self._started

    def calibrate(
        self,
        prepared: ModelAnalysis,
        profile: Profile,
        advance: Advance = lambda _: None,
        deadline: Deadline = UNLIMITED,
    ) -> tuple[ModelCosts, dict[str, NodeTimes]]:
        """Runs `calibrate_prepared` in the process. Phases of one model share compiled copies, as far as memory allows.

        Args:
            prepared: the analysis of the model.
            profile: profile of the devices.
            advance: called with lines of progress.
            deadline: budget of everything except a compilation that has begun.

        Returns:
            Costs and times, as `calibrate_prepared`.

        Raises:
            RunError: as `calibrate_prepared`.
            ChildError: the process has ended.
        """
        model, process = prepared.model, self.start()
        if id(model) not in self._kept:
            self._kept[id(model)] = process.keep(model)
        process.wait()  # its imports must not use up the budget
        about = (prepared.shapes, prepared.graph, prepared.devices, prepared.supported)
        arguments = (self._kept[id(model)], about, profile, deadline.left)
        return process.call(_calibrate_here, *arguments, doing="calibrating", report=advance)

    def close(self) -> None:
        """Ends the process, if there is one."""
        if self._started is not None:
            self._started.close()
        self._started = None
        self._kept.clear()

    def __exit__(self, *_: object) -> None:
        self.close()


def _calibrate_here(
    here: Here, number: int, about: Sequence[Any], profile: Profile, seconds: float
) -> tuple[ModelCosts, dict[str, NodeTimes]]:
    """Runs in the compiling process: `calibrate_prepared` for a model.

    Compiled copies are kept in `here.kept` for later calls with the same model.

    Args:
        here: the context of the process.
        number: number of the model, see `Compiling.keep`.
        about: the fields of `ModelAnalysis` after `model`, in their order.
        profile: profile of the devices.
        seconds: budget of everything except a compilation that has begun.

    Returns:
        Costs and times, as `calibrate_prepared`.

    Raises:
        RunError: as `calibrate_prepared`.
    """
    deadline, prepared, key = Deadline(seconds), ModelAnalysis(here.model(number), *about), f"compiled {number}"
    if key not in here.kept:
        here.kept[key] = compiled_models(prepared, here.core)
    return calibrate_prepared(prepared, here.core, profile, here.report, deadline, here.kept[key])


def calibrate_where_it_runs(
    prepared: ModelAnalysis,
    calibrating: Calibrating,
    profile: Profile,
    advance: Advance = lambda _: None,
    seconds: float = math.inf,
) -> tuple[ModelAnalysis, ModelCosts]:
    """Calibrates a model with the assumed sizes of its inputs; if no device runs it, with smaller ones.

    Args:
        prepared: the analysis of the model with the assumed sizes.
        calibrating: the process.
        profile: profile of the devices.
        advance: called with lines of progress.
        seconds: budget for all sizes together.

    Returns:
        The analysis with the sizes that run, and the costs.

    Raises:
        RunError: as `calibrate_prepared`.
    """
    deadline, tried = Deadline(seconds), prepared
    for shapes in smaller_shapes(prepared.model, prepared.shapes):
        try:
            return tried, calibrating.calibrate(tried, profile, advance, deadline)[0]
        except NotRunnableError:
            tried = replace(prepared, graph=prepared.graph.resized(prepared.model, shapes), shapes=shapes)
    return tried, calibrating.calibrate(tried, profile, advance, deadline)[0]


class NotRunnableError(RunError):
    """Each device has tried to run the model and failed."""


class ModelCalibration:
    """A model's calibration in steps: `measure_operations`, then `measure_boundaries`, then `costs`.

    Attributes:
        problem: the problem with the measured costs, from `measure_operations` on.
        alone: times of the devices that run the whole model, by name.
        times: times of all measured devices, those of `alone` first.
        as_another: devices whose time is divided in the proportions of another device of their kind.
        factors: factors of `fit_scale_factors` if boundaries were measured; ones if the model cannot be split.
    """

    problem: PlacementProblem

    def __init__(
        self,
        prepared: ModelAnalysis,
        core: ov.Core,
        profile: Profile,
        advance: Advance,
        deadline: Deadline = UNLIMITED,
        compiled: CompiledModels | None = None,
    ) -> None:
        """Prepares a calibration; the arguments are those of `calibrate_prepared`.

        Args:
            prepared: the analysis of the model.
            core: the Core.
            profile: profile of the devices.
            advance: called with lines of progress.
            deadline: budget of everything except a compilation that has begun.
            compiled: compiled copies of the same model; new ones by default.
        """
        self._prepared, self._core, self._profile = prepared, core, profile
        self._compiled = compiled or CompiledModels(core)
        self._identity = {name: identity(core, name) for name in prepared.devices}
        self._advance, self._deadline = advance, deadline
        self._roofline = Roofline(prepared.graph)
        (self._inputs,) = timed_inputs(prepared.model, prepared.shapes)
        us = cost_model.node_us(profile, prepared.graph, prepared.devices)
        self._weights = {
            name: shares(prepared.graph, self._roofline, us[:, number]) for number, name in enumerate(prepared.devices)
        }
        self.alone: dict[str, NodeTimes] = {}
        self.times: dict[str, NodeTimes] = {}
        self.as_another: list[str] = []
        self.factors: NDArray[np.float64] | None = None

    def measure_operations(self) -> None:
        """Measures each device alone, then devices that do not run the whole model, each in a split with a helper.

        Sets `alone`, `times`, `as_another` and `problem`. Devices that lack time or memory are left out.

        Raises:
            RunError: no device runs the whole model, or none did so in time.
        """
        names = self._prepared.devices
        errors: list[str] = []
        failed = 0
        for number, name in enumerate(names):
            # Time that a device leaves unused goes to the next ones.
            share = self._deadline.share(1 / (len(names) - number + _BOUNDARIES_SHARE))
            self._advance(self._deadline.describe(f"measuring the whole model on {name}"))
            try:
                if not self._has_memory({name: 1}, times=1.0):
                    raise RuntimeError("there is not memory enough to compile the model")
                us = self._profile.device(name).submodel_us
                # Operations are counted on one of several equal devices.
                counted = not self._times_of_equal_devices(name, self.alone) and self._has_memory({name: 2})
                times = self._node_times(self._prepared.model, name, name, share, submodel_us=us, counted=counted)
                self.alone[name] = times
            except RuntimeError as error:
                failed += 1
                errors.append(f"{name}: {one_line(error)}")
            except OutOfTime as error:
                errors.append(f"{name}: {error}")
        if not self.alone:
            if not failed:
                raise RunError("the time is too short to run the model on any device")
            why = f"no device runs the whole model: {'; '.join(errors)}"
            raise NotRunnableError(why) if failed == len(errors) else RunError(why)
        for name, times in self.alone.items():
            self.alone[name] = self._as_alike(name, times)
        self.times = dict(self.alone)
        for name in names:
            if name not in self.alone and self._has_memory({name: 1}, times=1.0):
                share = self._deadline.share(1 / (1 + _BOUNDARIES_SHARE))
                with suppress(RuntimeError, OutOfTime):
                    helped = self._times_in_split(name, next(iter(self.alone)), share)
                    self.times.update({name: helped} if helped else {})
        self.times = self._with_means_of_equal_devices(self.times)
        self.problem = self._problem(self.times)

    def _with_means_of_equal_devices(self, times: Mapping[str, NodeTimes]) -> dict[str, NodeTimes]:
        """Replaces times of equal devices by their mean, because their differences come from other programs.

        Times stay as they are where single operations were not measured, or where latencies differ by `UNEQUAL` or
        more, so that the devices are not equal in fact.

        Args:
            times: measured times, by device name.

        Returns:
            All times, by device name.
        """
        pooled = dict(times)
        for name, device_times in times.items():
            equal = self._times_of_equal_devices(name, times)
            latencies = [equal_times.latency_us for equal_times in equal]
            if device_times.copies and max(latencies) < UNEQUAL * min(latencies):
                us = np.mean([equal_times.us for equal_times in equal], axis=0)
                pooled[name] = replace(device_times, us=us, latency_us=float(np.mean(latencies)))
        return pooled

    def _times_of_equal_devices(self, name: str, times: Mapping[str, NodeTimes]) -> list[NodeTimes]:
        """Selects times with measured operations, of devices with the same identity as the device `name`.

        Args:
            name: name of the device, which need not be in `times`.
            times: measured times, by device name.
        """
        identity_of = self._identity
        return [
            other_times
            for other, other_times in times.items()
            if other_times.copies and identity_of[other] == identity_of[name]
        ]

    def _node_times(self, model: ov.Model, runs_on: str, name: str, deadline: Deadline, **options: Any) -> NodeTimes:
        """Measures the times of the device `name` in a model that is compiled for `runs_on`, see `node_times`.

        Args:
            model: the model.
            runs_on: device string for compiling.
            name: the device whose weights divide the times.
            deadline: budget.
            options: further arguments of `node_times`.
        """
        return node_times(
            model,
            runs_on,
            self._compiled,
            graph=self._prepared.graph,
            weights=self._weights[name],
            inputs=self._inputs,
            advance=self._advance,
            deadline=deadline,
            **options,
        )

    def _as_alike(self, name: str, measured: NodeTimes) -> NodeTimes:
        """Divides a device's latency among operations as on a similar device, if only its latency was measured.

        The similar device is an equal one, else one of the same kind; then `name` is added to `as_another`. From a
        device that is not equal, the ratios of measured to predicted times of operations are assumed.

        Args:
            name: name of the device.
            measured: its times; returned unchanged if its operations were measured, or there is no similar device.

        Returns:
            The times of the device.
        """
        kind, similar_times = kind_of(name), self._times_of_equal_devices(name, self.alone)
        if not similar_times and not measured.copies:
            similar_times = [one for other, one in self.alone.items() if one.copies and kind and kind_of(other) == kind]
            self.as_another += [name] if similar_times else []
        if measured.copies or not similar_times:
            return measured
        us, weights = similar_times[0].us, self._weights[similar_times[0].device]
        if self._identity[similar_times[0].device] != self._identity[name]:
            us = np.where(weights > 0, us / np.maximum(weights, 1e-9), 1.0) * self._weights[name]
        us = adding_up(us, measured.latency_us, self._profile.device(name).submodel_us)
        return replace(similar_times[0], device=name, us=us, latency_us=measured.latency_us)

    def _has_memory(self, copies: Mapping[str, int], times: float = _COMPILED_SIZE_FACTOR) -> bool:
        """Whether compiled copies of the model fit into the free memory, all at once in this process.

        Args:
            copies: number of copies by device name.
            times: memory of a copy as a multiple of its weights.

        Returns:
            False if a memory lacks room; memory whose free bytes cannot be found out counts as enough.
        """
        size = times * float(self._prepared.graph.weight_bytes.sum())
        needed: dict[str, float] = {}
        for name, count in copies.items():
            memory = discovery.memory_of(self._core, name)
            needed[memory] = needed.get(memory, 0.0) + count * size
        free = {memory: discovery.free_bytes(self._core, memory) for memory in needed}
        return all(known is None or needed[memory] <= _MEMORY_SHARE * known for memory, known in free.items())

    def _times_in_split(self, name: str, helper: str, deadline: Deadline) -> NodeTimes | None:
        """Measures a device that does not run the whole model, in a split that gives it everything that it runs.

        Args:
            name: name of the device.
            helper: name of a device that runs the whole model, and gets the rest.
            deadline: budget.

        Returns:
            The times; None where it runs nothing.

        Raises:
            RuntimeError: the split does not run.
            OutOfTime: no operations were measured before the deadline.
        """
        graph, weights = self._prepared.graph, self._weights[name]
        nothing = np.full(graph.nodes, -1, np.int32)
        guess = NodeTimes(name, weights, nothing, nothing >= 0, float(weights.sum()), 0)
        problem = self._problem({name: guess, helper: self.alone[helper]})
        placement = all_supported_on(problem, 0)
        inside = (placement == 0)[problem.groups] & (weights > 0)
        if not inside.any():
            return None
        split = self._prepared.model.clone()
        set_affinities(split, problem.affinity(placement))
        pair, counted = f"HETERO:{name},{helper}", self._has_memory({name: 2})
        return self._node_times(split, pair, name, deadline, inside=inside, split=placement.tobytes(), counted=counted)

    def measure_boundaries(self) -> None:
        """Measures splits and fits factors on the costs of boundaries, if all devices were measured and memory allows.

        Sets `factors`, multiplies the costs of `problem` by them, and updates `times` by the latencies of the devices
        that were measured between the splits.

        Raises:
            RunError: a device does not run the model any more.
        """
        alone, problem = tuple(self.alone), self.problem
        together = {**dict.fromkeys(alone, 1), alone[0]: 2}  # each device alone, and a split
        if not len(self.times) == len(self._prepared.devices) > 1 or not self._has_memory(together):
            return
        helped = range(len(alone), len(problem.devices))
        placements = draw(problem, hurry=math.isfinite(self._deadline.left))
        placements += [all_supported_on(problem, device) for device in helped]
        if not placements:
            self.factors = np.ones(5)
            return
        try:
            how = (self._compiled, self._inputs, placements, self._advance, self._deadline)
            us, alone_us, ran = measure_latencies(self._prepared.model, problem, alone, *how)
        except RuntimeError as error:
            raise RunError(f"calibrating failed: {one_line(error)}") from error
        if len(us):
            for name, together_us in zip(alone, alone_us.tolist(), strict=True):
                node_us = adding_up(self.times[name].us, together_us, self._profile.device(name).submodel_us)
                self.times[name] = replace(self.times[name], us=node_us, latency_us=together_us)
            self.times = self._with_means_of_equal_devices(self.times)
            problem = self._problem(self.times)
            self.factors = fit_scale_factors(terms(problem, ran, alone), us)
            self.problem = scaled(problem, alone, self.factors)

    def warn_of_missing(self) -> None:
        """Warns of measurements that lacked time or memory. Callers report devices without any costs."""
        introduction = "there was no time or memory to measure"
        if self.as_another:
            names = ", ".join(self.as_another)
            warn_caller(f"{introduction} single operations on {names}: a device of the same kind counts there")
        missing = []
        if coarse := [name for name, device_times in self.times.items() if device_times.copies == 0]:
            missing.append(
                f"single operations on {', '.join(coarse)} (the whole model was measured there, and its time is divided"
                " among them as the profile says)"
            )
        if self.factors is None and len(self.times) == len(self._prepared.devices) > 1:
            missing.append("what submodels and transfers cost (that is the profile's)")
        if missing:
            warn_caller(f"{introduction} {', nor '.join(missing)}")

    def costs(self) -> ModelCosts:
        """Returns the measured costs of all devices of `times`; `boundaries` is None if `factors` is."""
        problem = self.problem
        when = when_measured()
        of_nodes = problem.costs_of(NODE_TERMS)
        devices = {
            name: DeviceCosts(self._identity[name], when, {key: values[:, column] for key, values in of_nodes.items()})
            for column, name in enumerate(self.times)
        }
        between = BoundaryCosts(problem.devices, problem.costs_of(BOUNDARY_TERMS))
        return ModelCosts(graph_hash(self._prepared.graph), devices, None if self.factors is None else between)

    def _problem(self, times: Mapping[str, NodeTimes]) -> PlacementProblem:
        """Makes the problem of placing the model on the devices of `times` for latency, without memory limits.

        The profile gives the costs of submodels, transfers and layouts, and the times of operations that run without
        fusion. Where single operations were not measured, fusions are those of the roofline model.

        Args:
            times: times of the devices, by name; their order is that of the problem's devices.
        """
        prepared, profile, names = self._prepared, self._profile, tuple(times)
        graph, roofline = prepared.graph, self._roofline
        device_fusions, layouts = [], []
        for name, measured in times.items():
            device = profile.device(name)
            if measured.copies:
                device_fusions.append(fusions(graph, measured.parts, measured.us, roofline.alone_us(device)))
                layouts.append(measured.own_layout)
            else:
                slower = measured.us.sum() / max(self._weights[name].sum(), 1e-9)
                device_fusions.append((roofline.fused_with, roofline.fusion_penalty_us(device) * slower))
                layouts.append(own_layout(graph))
        fused_with, penalty_us = (np.stack(columns, axis=1) for columns in zip(*device_fusions, strict=True))
        fused_with, penalty_us = with_layouts(
            graph, fused_with, penalty_us, np.stack(layouts, axis=1), profile.layout_us_per_byte(names)
        )
        return PlacementProblem(
            graph=graph,
            devices=names,
            objective="latency",
            node_us=np.stack([measured.us for measured in times.values()], axis=1),
            supported=prepared.supported[:, [prepared.devices.index(name) for name in names]],
            groups=graph.legality.groups,
            memory_bytes=np.full(len(names), -1, np.int64),
            rule=colocation.split_rule(ov.__version__),
            fused_with=fused_with,
            fusion_penalty_us=penalty_us,
            **cost_model.boundary_costs(profile, names),
        )


def compiled_models(prepared: ModelAnalysis, core: ov.Core) -> CompiledModels:
    """Makes an empty store that keeps as many compiled copies of the model as there is memory for.

    Memory is left for a copy on each device, and for copies that are in use only for a while (`_TRANSIENT_MODELS`).
    """
    free = [found for name in prepared.devices if (found := discovery.free_bytes(core, name)) is not None]
    size = _COMPILED_SIZE_FACTOR * max(float(prepared.graph.weight_bytes.sum()), 1.0)
    copies = _MEMORY_SHARE * min(free, default=0) / size - len(prepared.devices) - _TRANSIENT_MODELS
    return CompiledModels(core, int(np.clip(copies, 0, _MOST_KEPT)))


def when_measured() -> str:
    """The date and the release: "measured 2026-11-22 with OpenVINO 2026.4.1"."""
    return f"measured {datetime.date.today().isoformat()} with OpenVINO {ov.__version__}"


def scaled(problem: PlacementProblem, alone: Sequence[str], factors: NDArray[np.float64]) -> PlacementProblem:
    """Multiplies the costs of a problem by the factors of `fit_scale_factors`.

    Args:
        problem: the problem.
        alone: names of the devices that run the whole model.
        factors: factors of submodels, transfers, layouts, fusions, and operations of other devices, float64 [5].

    Returns:
        The problem with the scaled costs.
    """
    submodels, transfers, layouts, fused, helped = factors
    return problem.with_scaled_costs(
        {
            "nodes": np.where([name in alone for name in problem.devices], 1.0, helped),
            "fusions": np.where(layout_ends(problem.graph), layouts, fused)[:, None],
            "submodels": float(submodels),
            "transfers": float(transfers),
        }
    )
