"""Calibration of a machine: a profile of its devices, and the measured costs of models.

Microbenchmarks (single layers) give a device's rates, and chains that are cut at every large tensor give the costs of
partition boundaries. Probe networks, which are built as real models are, correct these costs. A stage is one of these
steps, or the calibration of one model; progress is reported by stage.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.calibration.boundaries import Boundaries, measure_boundaries
from ov_hsdag.calibration.calibrate import Calibrating, ModelCalibration
from ov_hsdag.calibration.device_profile import profile_document
from ov_hsdag.calibration.executions import CompiledModels, Counters, Executions
from ov_hsdag.calibration.models import PREFIX, image_network, microbenchmark_model, token_network
from ov_hsdag.calibration.node_times import NodeTimes, shares
from ov_hsdag.calibration.regression import Figures, Samples, fit_figures
from ov_hsdag.costs.builtin import builtin_profile
from ov_hsdag.costs.profile import DeviceProfile, Profile
from ov_hsdag.costs.roofline import Roofline
from ov_hsdag.costs.stored import ModelCosts
from ov_hsdag.devices import discovery
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.devices.virtual import new_core
from ov_hsdag.model.compiling import Here
from ov_hsdag.model.graph import ComputationGraph
from ov_hsdag.model.inputs import example_shapes, timed_inputs
from ov_hsdag.problem.pricing import prepare
from ov_hsdag.storage.files import write_json
from ov_hsdag.utils.arguments import check_argument, check_in_memory
from ov_hsdag.utils.errors import RunError, UserError, one_line
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.timing import Deadline

# Names and builders of the probe networks; each is a stage.
_NETWORKS = (("a network of tokens", token_network), ("a network of images", image_network))

# Number of compiled copies of the microbenchmarks, and of runs of each copy.
_COPIES, _RUNS = 3, 6


@dataclass(frozen=True)
class DeviceReport:
    """How well a device's figures explain the measurements."""

    microbenchmarks: float  # median relative error of the microbenchmarks' times
    boundaries: float  # median relative error of the costs of partition boundaries


@dataclass(frozen=True, eq=False)
class Calibration:
    """The result of `calibrate`."""

    profile: Profile  # measured profile of the devices, for `ov_hsdag.place(profile=…)`
    document: dict[str, Any]  # the same profile as JSON
    reports: dict[str, DeviceReport]  # how well each device's figures explain the measurements, by device
    costs: tuple[ModelCosts, ...]  # costs of each model, for `ov_hsdag.place(costs=…)`
    times: tuple[dict[str, NodeTimes], ...]  # for each model the times of its operations by device

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the profile's file.

        Raises:
            UserError: the file cannot be written.
        """
        write_json(path, self.document)


def calibrate(
    device: str | Sequence[str],
    models: Sequence[ov.Model] = (),
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seconds: float = math.inf,
    core: ov.Core | None = None,
    report: Callable[[str], None] | None = None,
) -> Calibration:
    """Measures devices of this machine, and the costs of models on them.

    Args:
        device: the devices: "HETERO:GPU,CPU", or ["GPU", "CPU"].
        models: models to measure, which are not changed.
        shapes: example shapes of the models' dynamic inputs, by input name.
        seconds: approximate time for each model; no limit by default.
        core: a Core with the devices; a new one by default.
        report: called with a few words at each step.

    Returns:
        The profile and the costs.

    Raises:
        UserError: bad input, or a device that is not on this machine.
        RunError: a device does not run the built-in models, or none runs a whole model.
    """
    check_argument("seconds", seconds, float, least=0)
    for model in models:
        check_in_memory("calibrate", model)
    names = DeviceSet.parse(device).names
    core = core or new_core()
    examples = example_shapes(models, shapes or {})
    for name in discovery.absent(core, names):
        available_devices = ", ".join(core.available_devices) or "none"
        raise UserError(f'device "{name}" is not at hand: calibrating measures; this machine has {available_devices}')
    tell, total = report or (lambda _: None), len(names) + 1 + len(_NETWORKS) + len(models)
    builtin = builtin_profile(names, core)
    # Models are analysed before minutes of measuring, so that an operation which no device runs is an error at once.
    analyses = [
        prepare(model.clone(), names, core, builtin, shapes=example)
        for model, example in zip(models, examples, strict=True)
    ]
    measured = []
    with Calibrating(core, names) as calibrating:
        figures, boundaries = calibrating.start().call(
            _measure_devices, builtin, total, doing="calibrating", report=tell
        )
        number = count(total - len(models) + 1)
        document = profile_document(core, builtin, figures, boundaries)
        profile = Profile.of(document, "the calibration")
        for model, analysis in zip(models, analyses, strict=True):
            advance = _begin_stage(tell, number, total, model.get_friendly_name())
            measured.append(calibrating.calibrate(analysis, profile, advance, Deadline(seconds)))
    costs, times = zip(*measured, strict=True) if measured else ((), ())
    reports = {name: DeviceReport(figures[name].error, boundaries.error) for name in names}
    return Calibration(profile, document, reports, costs, times)


def _begin_stage(tell: Callable[[str], None], number: Iterator[int], total: int, name: str) -> Callable[[str], None]:
    """Begins the next stage.

    Args:
        tell: gets each line of progress.
        number: supplies the number of the stage.
        total: number of all stages.
        name: what the stage measures.

    Returns:
        A function that reports a step of the stage.
    """
    at = f"stage {next(number)} of {total}, {name}"
    return lambda step: tell(f"{at}: {step}")


def _measure_devices(here: Here, prior: Profile, total: int) -> tuple[dict[str, Figures], Boundaries]:
    """Runs in the compiling process: measures layers and boundaries.

    Args:
        here: the context of the process.
        prior: a profile of the devices, with prior figures.
        total: number of stages, including those of models.

    Returns:
        The fitted figures by device name, and the costs of boundaries, corrected by probe networks.

    Raises:
        RunError: a device does not run a built-in model.
    """
    stage, core = partial(_begin_stage, here.report, count(1), total), here.core
    try:
        figures = {
            name: _fit_device_figures(core, prior_device, stage(f"layers on {name}"))
            for name, prior_device in prior.devices.items()
        }
        boundaries = measure_boundaries(core, tuple(figures), stage("boundaries"))
        return figures, _correct_by_probe_networks(core, prior, figures, boundaries, stage)
    except RuntimeError as error:
        raise RunError(f"calibrating failed: {one_line(error)}") from error


def _fit_device_figures(core: ov.Core, device: DeviceProfile, advance: Callable[[str], None]) -> Figures:
    """Runs the microbenchmarks on a device and fits its figures to them.

    Args:
        core: the Core.
        device: profile of the device, with the prior figures.
        advance: called with a line of progress before each compiled copy.

    Returns:
        The fitted figures.

    Raises:
        RuntimeError: the device does not run the microbenchmarks.
    """
    model, name = microbenchmark_model(), device.name
    graph = ComputationGraph.from_model(model)
    roofline = Roofline(graph)
    (inputs,) = timed_inputs(model)
    times: dict[str, list[float]] = {}
    executions: Executions | None = None
    models = CompiledModels(core)
    for copy in range(_COPIES):
        advance(f"measuring layers on {name}, {copy + 1} of {_COPIES}")
        compiled = models.get(model, name, counters=True)
        counters = Counters(compiled, inputs)
        for _ in range(_RUNS):
            counters.run()
        executions = Executions.of(compiled.model, graph, counters.us())
        for item in executions.items:
            times.setdefault(item.name, []).append(item.us)
    assert executions is not None
    executed = shares(graph, roofline, np.ones(graph.nodes)) > 0
    layers = []
    for item in executions.items:
        nodes = [node for node in item.nodes if executed[node]]
        if item.us > 0 and any(graph.names[node].startswith(PREFIX) for node in nodes):
            layers.append((statistics.median(times[item.name]), nodes))
    sample = np.repeat(np.arange(len(layers)), [len(nodes) for _, nodes in layers])
    node = np.concatenate([nodes for _, nodes in layers])
    types, kind = np.unique(np.array(graph.types)[node], return_inverse=True)
    kinds, moved = tuple(types.tolist()), roofline.moved_bytes(device)[node]
    us = np.array([us for us, _ in layers])
    samples = Samples(us, sample, kind, graph.flops[node], moved, ~roofline.fused[node], kinds)
    peak = device.peak_gflops[device.precision]
    rates = np.array([peak * device.efficiency_of(one, device.precision) for one in kinds])
    return fit_figures(samples, rates, np.array([device.gbps_of(one) for one in kinds]), device.launch_us)


def _correct_by_probe_networks(
    core: ov.Core,
    prior: Profile,
    figures: Mapping[str, Figures],
    boundaries: Boundaries,
    stage: Callable[[str], Callable[[str], None]],
) -> Boundaries:
    """Corrects the costs of boundaries by splits of the probe networks.

    The network of tokens corrects submodels and transfers. Then the network of images corrects layouts, and submodels
    once more by half (on a logarithmic scale). Its error of transfers is put down to layouts, also by half.

    Args:
        core: the Core.
        prior: profile of the devices for figures that were not measured.
        figures: fitted figures by device name.
        boundaries: the measured costs.
        stage: begins a stage of this name, see `_begin_stage`.

    Returns:
        The corrected costs.
    """

    def factors(network: int) -> NDArray[np.float64]:
        """Factors on the costs of boundaries in a probe network, see `fit_scale_factors`, float64 [5]."""
        name, build_network = _NETWORKS[network]
        profile = Profile.of(profile_document(core, prior, figures, boundaries), "the calibration")
        calibration = ModelCalibration(
            prepare(build_network(), tuple(figures), core, profile), core, profile, stage(name)
        )
        calibration.measure_operations()
        calibration.measure_boundaries()
        return np.ones(5) if calibration.factors is None else calibration.factors

    submodels, transfers, *_ = factors(0)
    boundaries = replace(
        boundaries,
        submodel_us=boundaries.submodel_us * submodels,
        tensor_us=boundaries.tensor_us * transfers,
        us_per_byte=boundaries.us_per_byte * transfers,
    )
    submodels, transfers, layouts, *_ = factors(1)
    return replace(
        boundaries,
        submodel_us=boundaries.submodel_us * np.sqrt(submodels),
        layout_us_per_byte=boundaries.layout_us_per_byte * layouts * transfers**0.5,
    )
