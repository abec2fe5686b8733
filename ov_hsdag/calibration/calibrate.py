"""Calibration of a model: what its operations, and cuts between them, cost on the devices of this machine."""

from __future__ import annotations

import datetime
import math
import warnings
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

Advance = Callable[[str], None]

# Of a budget, in relation to a device: what the placements get that tell of partition boundaries.
_BOUNDARIES_SHARE = 1.5

# What a compiled model takes, times its weights, and how much of what is free may be used.
_COMPILED_TIMES, _MEMORY_SHARE = 1.5, 0.8

# Copies that are kept for the next phase of a workload, at most, and others beside them.
_MOST_KEPT, _COMING_AND_GOING = 12, 2


def calibrate_prepared(
    prepared: ModelAnalysis,
    core: ov.Core,
    profile: Profile,
    advance: Advance = lambda _: None,
    deadline: Deadline = UNLIMITED,
    compiled: CompiledModels | None = None,
) -> tuple[ModelCosts, dict[str, NodeTimes]]:
    """Measures a model on each device alone, or with the help of another where a device does not run all of it.

    Devices that run nothing of it are left out. profile: says what one run of the whole model cannot: how the time of
    what is executed as one is divided. deadline: of all but a compilation that has begun. What there is
    no time for comes from the profile, with a warning: rounds and placements are saved first, then single operations,
    then devices. compiled: of the same model with inputs of other sizes.

    Returns the costs of the measured devices, whose `boundaries` is None where those were not, and times of each
    device. Raises RunError where no device runs the whole model (or says what it runs), or none did so in time.
    """
    calibration = ModelCalibration(prepared, core, profile, advance, deadline, compiled)
    calibration.measure_operations()
    calibration.measure_boundaries()
    calibration.warn_of_missing()
    return calibration.costs(), calibration.times


class Calibrating(AbstractContextManager["Calibrating"]):
    """A process in which models are calibrated, so that this one compiles nothing. Ends with `close`."""

    def __init__(self, core: ov.Core, names: Sequence[str]) -> None:
        """The process begins with the first call, or `start`; it has a Core like this one, for these devices."""
        self._core, self._names = core, names
        self._kept: dict[int, int] = {}  # number of each model in the process, by its id
        self._started: Compiling | None = None

    def start(self) -> Compiling:
        """The process, which imports OpenVINO while this one does something else. Raises as `Compiling`."""
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
        """As `calibrate_prepared`. Phases of one model share what was compiled, as far as there is memory."""
        model, process = prepared.model, self.start()
        if id(model) not in self._kept:
            self._kept[id(model)] = process.keep(model)
        process.wait()  # so that its imports take nothing of the time
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
    """In the process that compiles: `calibrate_prepared` of a model, by its number; about: the rest of the analysis."""
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
    """As `calibrate_prepared`; where no device runs a model with inputs of the assumed sizes, with smaller ones.

    Returns the analysis with the sizes that run, and the costs.
    """
    deadline, tried = Deadline(seconds), prepared
    for shapes in smaller_shapes(prepared.model, prepared.shapes):
        try:
            return tried, calibrating.calibrate(tried, profile, advance, deadline)[0]
        except NotRunnableError:
            tried = replace(prepared, graph=prepared.graph.resized(prepared.model, shapes), shapes=shapes)
    return tried, calibrating.calibrate(tried, profile, advance, deadline)[0]


class NotRunnableError(RunError):
    """Each device has tried to run the model, and failed."""


class ModelCalibration:
    """A model's calibration, in steps. Arguments as of `calibrate_prepared`."""

    problem: PlacementProblem  # with the measured costs, from `measure_operations` on

    def __init__(
        self,
        prepared: ModelAnalysis,
        core: ov.Core,
        profile: Profile,
        advance: Advance,
        deadline: Deadline = UNLIMITED,
        compiled: CompiledModels | None = None,
    ) -> None:
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
        self.alone: dict[str, NodeTimes] = {}  # of the devices that run the whole model
        self.times: dict[str, NodeTimes] = {}  # of all devices that were measured, those first
        self.as_another: list[str] = []  # devices whose times are divided as those of another of their kind
        # of `fit_scale_factors`, where partition boundaries were measured; ones where the model cannot be split
        self.factors: NDArray[np.float64] | None = None

    def measure_operations(self) -> None:
        """Each device alone, then those that do not run the whole model. Raises RunError where none does."""
        names = self._prepared.devices
        errors: list[str] = []
        failed = 0
        for number, name in enumerate(names):
            # What one leaves of its share, the next ones get.
            share = self._deadline.share(1 / (len(names) - number + _BOUNDARIES_SHARE))
            self._advance(self._deadline.describe(f"measuring the whole model on {name}"))
            try:
                if not self._has_memory({name: 1}, times=1.0):
                    raise RuntimeError("there is not memory enough to compile the model")
                us = self._profile.device(name).submodel_us
                # Of equal devices one is enough.
                counted = not self._equal(name, self.alone) and self._has_memory({name: 2})
                found = self._node_times(self._prepared.model, name, name, share, submodel_us=us, counted=counted)
                self.alone[name] = found
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
        for name, found in self.alone.items():
            self.alone[name] = self._as_alike(name, found)
        self.times = dict(self.alone)
        for name in names:
            if name not in self.alone and self._has_memory({name: 1}, times=1.0):
                share = self._deadline.share(1 / (1 + _BOUNDARIES_SHARE))
                with suppress(RuntimeError, OutOfTime):
                    helped = self._helped(name, next(iter(self.alone)), share)
                    self.times.update({name: helped} if helped else {})
        self.times = self._pooled(self.times)
        self.problem = self._problem(self.times)

    def _pooled(self, times: Mapping[str, NodeTimes]) -> dict[str, NodeTimes]:
        """Equal devices with the mean of their times: what these differ by is what else the machine did meanwhile."""
        found = dict(times)
        for name, own in times.items():
            equal = self._equal(name, times)
            latencies = [one.latency_us for one in equal]
            if own.copies and max(latencies) < UNEQUAL * min(latencies):
                us = np.mean([one.us for one in equal], axis=0)
                found[name] = replace(own, us=us, latency_us=float(np.mean(latencies)))
        return found

    def _equal(self, name: str, times: Mapping[str, NodeTimes]) -> list[NodeTimes]:
        """Times of devices that are the same as this one, as far as operations were counted."""
        of = self._identity
        return [one for other, one in times.items() if one.copies and of[other] == of[name]]

    def _node_times(self, model: ov.Model, runs_on: str, name: str, deadline: Deadline, **options: Any) -> NodeTimes:
        """Times of the device `name` in a model that is compiled for `runs_on`; options: see `node_times`."""
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

    def _as_alike(self, name: str, found: NodeTimes) -> NodeTimes:
        """Times of a device whose operations were not counted: as another of its kind is wrong about the profile's."""
        kind, alike = kind_of(name), self._equal(name, self.alone)
        if not alike and not found.copies:
            alike = [one for other, one in self.alone.items() if one.copies and kind and kind_of(other) == kind]
            self.as_another += [name] if alike else []
        if found.copies or not alike:
            return found
        us, weights = alike[0].us, self._weights[alike[0].device]
        if self._identity[alike[0].device] != self._identity[name]:
            us = np.where(weights > 0, us / np.maximum(weights, 1e-9), 1.0) * self._weights[name]
        us = adding_up(us, found.latency_us, self._profile.device(name).submodel_us)
        return replace(alike[0], device=name, us=us, latency_us=found.latency_us)

    def _has_memory(self, copies: Mapping[str, int], times: float = _COMPILED_TIMES) -> bool:
        """Whether so many compiled copies of the model, all in this process, fit on devices by its weights."""
        size = times * float(self._prepared.graph.weight_bytes.sum())
        needed: dict[str, float] = {}
        for name, count in copies.items():
            memory = discovery.memory_of(self._core, name)
            needed[memory] = needed.get(memory, 0.0) + count * size
        free = {memory: discovery.free_bytes(self._core, memory) for memory in needed}
        return all(known is None or needed[memory] <= _MEMORY_SHARE * known for memory, known in free.items())

    def _helped(self, name: str, helper: str, deadline: Deadline) -> NodeTimes | None:
        """Times of a device that does not run the whole model: in a split that gives it all that it runs.

        Returns None where it runs nothing. Raises RuntimeError where the split does not run.
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
        """Scale factors on what partition boundaries cost, where all devices were measured."""
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
            self.times = self._pooled(self.times)
            problem = self._problem(self.times)
            self.factors = fit_scale_factors(terms(problem, ran, alone), us)
            self.problem = scaled(problem, alone, self.factors)

    def warn_of_missing(self) -> None:
        """Warns of what there was no time or memory for. Who uses the costs reports devices without any."""
        told = "there was no time or memory to measure"
        if self.as_another:
            names = ", ".join(self.as_another)
            warnings.warn(f"{told} single operations on {names}: a device of the same kind counts there", stacklevel=3)
        missing = []
        if coarse := [name for name, found in self.times.items() if found.copies == 0]:
            missing.append(
                f"single operations on {', '.join(coarse)} (the whole model was measured there, and its time is divided"
                " among them as the profile says)"
            )
        if self.factors is None and len(self.times) == len(self._prepared.devices) > 1:
            missing.append("what submodels and transfers cost (that is the profile's)")
        if missing:
            warnings.warn(f"{told} {', nor '.join(missing)}", stacklevel=3)

    def costs(self) -> ModelCosts:
        """What was measured."""
        problem = self.problem
        us, (fused_with, penalty_us) = problem.node_us, problem.fusions
        when = when_measured()
        devices = {
            name: DeviceCosts(self._identity[name], when, us[:, column], fused_with[:, column], penalty_us[:, column])
            for column, name in enumerate(self.times)
        }
        between = BoundaryCosts(problem.devices, problem.submodel_us, problem.transfer_us, problem.transfer_us_per_byte)
        return ModelCosts(graph_hash(self._prepared.graph), devices, None if self.factors is None else between)

    def _problem(self, times: Mapping[str, NodeTimes]) -> PlacementProblem:
        """The problem of placing the model on devices for latency, without memory limits.

        The profile says what submodels and transfers cost, and what operations take by themselves; `times` gives the
        devices and their order, and what they fuse: where single operations were not measured, as the roofline model
        says.
        """
        prepared, profile, names = self._prepared, self._profile, tuple(times)
        graph, roofline = prepared.graph, self._roofline
        found, own = [], []
        for name, measured in times.items():
            device = profile.device(name)
            if measured.copies:
                found.append(fusions(graph, measured.parts, measured.us, roofline.alone_us(device)))
                own.append(measured.own_layout)
            else:
                slower = measured.us.sum() / max(self._weights[name].sum(), 1e-9)
                found.append((roofline.fused_with, roofline.fusion_penalty_us(device) * slower))
                own.append(own_layout(graph))
        fused_with, penalty_us = (np.stack(columns, axis=1) for columns in zip(*found, strict=True))
        fused_with, penalty_us = with_layouts(
            graph, fused_with, penalty_us, np.stack(own, axis=1), profile.layout_us_per_byte(names)
        )
        transfer_us, transfer_us_per_byte = cost_model.transfer_costs(profile, names)
        return PlacementProblem(
            graph=graph,
            devices=names,
            objective="latency",
            node_us=np.stack([measured.us for measured in times.values()], axis=1),
            supported=prepared.supported[:, [prepared.devices.index(name) for name in names]],
            groups=graph.legality.groups,
            transfer_us=transfer_us,
            transfer_us_per_byte=transfer_us_per_byte,
            submodel_us=profile.submodel_us(names),
            memory_bytes=np.full(len(names), -1, np.int64),
            rule=colocation.split_rule(ov.__version__),
            fused_with=fused_with,
            fusion_penalty_us=penalty_us,
        )


def compiled_models(prepared: ModelAnalysis, core: ov.Core) -> CompiledModels:
    """Keeps as many copies of the model as there is memory for beside those that come and go."""
    free = [found for name in prepared.devices if (found := discovery.free_bytes(core, name)) is not None]
    size = _COMPILED_TIMES * max(float(prepared.graph.weight_bytes.sum()), 1.0)
    copies = _MEMORY_SHARE * min(free, default=0) / size - len(prepared.devices) - _COMING_AND_GOING
    return CompiledModels(core, int(np.clip(copies, 0, _MOST_KEPT)))


def when_measured() -> str:
    """ "measured 2026-11-22 with OpenVINO 2026.4.1"."""
    return f"measured {datetime.date.today().isoformat()} with OpenVINO {ov.__version__}"


def scaled(problem: PlacementProblem, alone: Sequence[str], factors: NDArray[np.float64]) -> PlacementProblem:
    """The problem with its costs multiplied by the factors of `fit_scale_factors`; alone: run the whole model."""
    submodels, transfers, layouts, fused, helped = factors
    return replace(
        problem,
        node_us=problem.node_us * np.where([name in alone for name in problem.devices], 1.0, helped),
        submodel_us=problem.submodel_us * submodels,
        transfer_us=problem.transfer_us * transfers,
        transfer_us_per_byte=problem.transfer_us_per_byte * transfers,
        fusion_penalty_us=problem.fusions[1] * np.where(layout_ends(problem.graph), layouts, fused)[:, None],
    )
