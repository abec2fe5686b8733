"""Calibration: device profiles and costs of models, measured on the devices of this machine."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.calibration.blocks import image_network, token_network
from ov_hsdag.calibration.borders import Borders, measure_borders
from ov_hsdag.calibration.executions import Counters, Executions
from ov_hsdag.calibration.factors import draw, fit_factors, given, measure_latencies, terms
from ov_hsdag.calibration.fit import Figures, Samples, fit_figures
from ov_hsdag.calibration.layers import PREFIX, layer_model
from ov_hsdag.calibration.node_times import NodeTimes, node_times, shares
from ov_hsdag.costs import cost_model
from ov_hsdag.costs.builtin import builtin_profile
from ov_hsdag.costs.fusions import fusions, layout_ends, with_layouts
from ov_hsdag.costs.profile import DeviceProfile, Profile
from ov_hsdag.costs.roofline import Roofline
from ov_hsdag.costs.stored import BorderCosts, DeviceCosts, ModelCosts, graph_hash, identity
from ov_hsdag.devices import discovery, virtual
from ov_hsdag.model import repair
from ov_hsdag.model.graph import ComputationGraph
from ov_hsdag.model.inputs import random_inputs
from ov_hsdag.model.placement import set_affinities
from ov_hsdag.problem.analysis import Prepared, prepare
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.utils.errors import RunError, UserError, one_line

if TYPE_CHECKING:
    import openvino as ov

Advance = Callable[[str], None]

# The model of layers is compiled so often, and each copy runs so often.
_COPIES, _RUNS = 3, 6


@dataclass(frozen=True)
class DeviceReport:
    """How well a device's figures explain what was measured: median relative errors."""

    layers: float
    borders: float


def check_devices(core: ov.Core, names: Sequence[str]) -> None:
    """Raises UserError where a device is not at hand."""
    for name in discovery.absent(core, names):
        there = ", ".join(core.available_devices) or "none"
        raise UserError(f'device "{name}" is not at hand: calibrating measures; this machine has {there}')


def calibrate_devices(
    core: ov.Core, names: Sequence[str], advance: Advance = lambda _: None
) -> tuple[dict[str, Any], dict[str, DeviceReport]]:
    """Measures devices and fits their profiles.

    Args:
        core: has the devices.
        names: two or more devices.
        advance: is told what happens.

    Returns:
        (the profile as a JSON document, how well its figures explain what was measured).

    Raises:
        UserError: a device is not at hand, or of a kind that no profile describes.
        RunError: a device does not run the built-in models.
    """
    check_devices(core, names)
    known = builtin_profile(names, core)
    model = layer_model()
    graph = ComputationGraph.from_model(model)
    roofline = Roofline(graph)
    try:
        figures = {}
        for name in names:
            device = known.device(name)
            samples = _samples(core, name, model, graph, roofline, device, advance)
            rates = [
                device.peak_gflops[device.precision] * device.efficiency_of(kind, device.precision)
                for kind in samples.kinds
            ]
            bands = [device.gbps_of(kind) for kind in samples.kinds]
            figures[name] = fit_figures(samples, np.array(rates), np.array(bands), device.launch_us), samples.kinds
        borders = measure_borders(core, names, advance)
    except RuntimeError as error:
        raise RunError(f"calibrating failed: {one_line(error)}") from error
    how = _how()

    def written(borders: Borders) -> dict[str, Any]:
        return _document(core, known, names, figures, borders, how)

    try:
        borders = _corrected(core, names, Profile.of(written(borders), "the calibration"), borders, advance)
    except RuntimeError as error:
        raise RunError(f"calibrating failed: {one_line(error)}") from error
    return written(borders), {name: DeviceReport(figures[name][0].error, borders.error) for name in names}


def _corrected(core: ov.Core, names: Sequence[str], profile: Profile, borders: Borders, advance: Advance) -> Borders:
    """Borders as they are in networks: of tokens first, which tell of submodels and transfers, then of images."""
    for network in (token_network(), image_network()):
        prepared = prepare(network, names, core, profile)
        graph = prepared.graph
        roofline, inputs = Roofline(graph), random_inputs(network)
        times = {
            name: node_times(
                network,
                name,
                core,
                graph=graph,
                weights=shares(graph, roofline, roofline.node_us(profile.device(name))),
                inputs=inputs,
                advance=advance,
            )
            for name in names
        }
        fused_with, torn_us = _fusions(graph, roofline, times, profile)
        problem = _problem(prepared, tuple(names), profile, times, fused_with, torn_us)
        problem = replace(
            problem,
            submodel_us=borders.submodel_us,
            transfer_us=borders.tensor_us,
            transfer_us_per_byte=borders.us_per_byte,
        )
        submodels, transfers, layouts, *_ = _factors(network, problem, names, core, inputs, advance)
        if layout_ends(graph).any():
            return replace(
                borders,
                submodel_us=borders.submodel_us * np.sqrt(submodels),
                layout_us_per_byte=borders.layout_us_per_byte * layouts * transfers**0.5,
            )
        borders = replace(
            borders,
            submodel_us=borders.submodel_us * submodels,
            tensor_us=borders.tensor_us * transfers,
            us_per_byte=borders.us_per_byte * transfers,
        )
    return borders


def _document(
    core: ov.Core,
    known: Profile,
    names: Sequence[str],
    figures: Mapping[str, tuple[Figures, Sequence[str]]],
    borders: Borders,
    how: str,
) -> dict[str, Any]:
    return {
        "version": 1,
        "devices": {
            name: _entry(core, known.device(name), *figures[name], borders, number, how)
            for number, name in enumerate(names)
        },
        "links": [
            {
                "from": a,
                "to": b,
                "us": {"value": round(float(borders.tensor_us[i, j]), 3), "source": how + _BORDERS},
                "gbps": {"value": _rate(borders.us_per_byte[i, j]), "source": how + _BORDERS},
            }
            for i, a in enumerate(names)
            for j, b in enumerate(names)
            if i != j
        ],
    }


_BORDERS = "; least squares over chains of small operations that are cut at every large tensor, less each device alone"


def _samples(
    core: ov.Core,
    name: str,
    model: ov.Model,
    graph: ComputationGraph,
    roofline: Roofline,
    device: DeviceProfile,
    advance: Advance,
) -> Samples:
    inputs = random_inputs(model)
    config = {**virtual.compile_properties(name), "PERF_COUNT": True}
    times: dict[str, list[float]] = {}
    executions: Executions | None = None
    for copy in range(_COPIES):
        advance(f"{name}: layers, {copy + 1} of {_COPIES}")
        compiled = core.compile_model(model, name, config)
        counters = Counters(compiled, inputs)
        for _ in range(_RUNS):
            counters.run()
        executions = Executions.of(compiled, graph, counters.us())
        for item in executions.items:
            times.setdefault(item.name, []).append(item.us)
    assert executions is not None
    moved = roofline.moved_bytes(device)
    executed = shares(graph, roofline, np.ones(graph.nodes)) > 0
    kinds: dict[str, int] = {}
    us: list[float] = []
    rows: list[tuple[int, int, float, float, bool]] = []
    for item in executions.items:
        nodes = [node for node in item.nodes if executed[node]]
        if item.us <= 0 or not any(graph.names[node].startswith(PREFIX) for node in nodes):
            continue
        for node in nodes:
            kind = kinds.setdefault(graph.types[node], len(kinds))
            rows.append((len(us), kind, graph.flops[node], moved[node], not roofline.fused[node]))
        us.append(statistics.median(times[item.name]))
    sample, kind_of, flops, bytes_, launched = (np.array(column) for column in zip(*rows, strict=True))
    return Samples(np.array(us), sample, kind_of, flops, bytes_, launched, tuple(kinds))


def _entry(
    core: ov.Core,
    known: DeviceProfile,
    figures: Figures,
    kinds: Sequence[str],
    borders: Borders,
    number: int,
    how: str,
) -> dict[str, Any]:
    precision = known.precision
    layers = how + "; fitted to a built-in set of layers"
    # A share of the peak cannot be more than 1: where a datasheet promises less than was measured, the peak gives way.
    peak = max(known.peak_gflops[precision], float(figures.rate_gflops.max()))
    efficiency = dict(known.efficiency)
    efficiency.update(
        {f"{kind}@{precision}": _round(rate / peak) for kind, rate in zip(kinds, figures.rate_gflops, strict=True)}
    )
    bands = dict(zip(kinds, figures.gbps, strict=True))
    usual = float(np.median([bands[kind] for kind in kinds if kind in _STREAMING] or [known.memory_gbps]))
    elementwise = float(
        np.median([rate for kind, rate in zip(kinds, figures.rate_gflops, strict=True) if kind in _STREAMING])
    )
    efficiency[f"default@{precision}"] = _round(min(elementwise / peak, 1.0))
    layout = float(borders.layout_us_per_byte[number])
    entry: dict[str, Any] = {
        "kind": known.kind,
        "description": f"{known.name}: {discovery.full_name(core, known.name)}, measured",
        "precision": precision,
        "peak_gflops": {
            "value": {**known.peak_gflops, precision: _round(peak)},
            "source": known.sources.get("peak_gflops", "the built-in profile"),
        },
        "efficiency": {"value": efficiency, "source": layers},
        "memory_gbps": {"value": known.memory_gbps, "source": known.sources.get("memory_gbps", "the built-in profile")},
        "gbps": {
            "value": {"default": _round(usual), **{kind: _round(rate) for kind, rate in bands.items()}},
            "source": layers,
        },
        "memory_bytes": {
            "value": known.memory_bytes,
            "source": known.sources.get("memory_bytes", "the built-in profile"),
        },
        "launch_us": {"value": _round(figures.launch_us), "source": layers},
        "submodel_us": {"value": _round(float(borders.submodel_us[number])), "source": how + _BORDERS},
        "link_us": {"value": known.link_us, "source": known.sources.get("link_us", "the built-in profile")},
        "link_gbps": {"value": known.link_gbps, "source": known.sources.get("link_gbps", "the built-in profile")},
    }
    if layout > 0:
        entry["layout_gbps"] = {"value": _rate(layout), "source": how + _BORDERS}
    if known.unsupported:
        entry["unsupported"] = list(known.unsupported)
    return entry


# Types whose figures stand for types that were not measured: they read, compute a little and write.
_STREAMING = frozenset({"Add", "Multiply", "Relu", "Concat", "Transpose", "Softmax", "MVN", "ReduceMean"})


def _how() -> str:
    import openvino as ov

    return f"measured {datetime.date.today().isoformat()} with OpenVINO {ov.__version__}"


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def _rate(us_per_byte: float) -> float:
    """10^9 bytes a second; what could not be told from nothing is very fast."""
    return _round(1e-3 / max(us_per_byte, 1e-9))


def calibrate_model(
    model: ov.Model,
    core: ov.Core,
    names: Sequence[str],
    profile: Profile,
    advance: Advance = lambda _: None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> tuple[ModelCosts, dict[str, NodeTimes]]:
    """Measures a model that is not prepared; a copy of it is. Arguments and results as in `calibrate_prepared`.

    Raises:
        UserError: a device that no profile describes, or an operation that no device runs.
        RunError: no device runs the whole model, or one does not say what it runs.
    """
    return calibrate_prepared(prepare(model.clone(), names, core, profile, shapes=shapes), core, profile, advance)


def calibrate_prepared(
    prepared: Prepared, core: ov.Core, profile: Profile, advance: Advance = lambda _: None
) -> tuple[ModelCosts, dict[str, NodeTimes]]:
    """Measures a model on each device alone, or with the help of another where a device does not run all of it.

    Args:
        prepared: the model; devices that run nothing of it are left out.
        core: has the devices.
        profile: of the devices, for what one run of the whole model cannot tell: how the time of operations that are
            executed as one is divided, and what each takes by itself.
        advance: is told what happens.

    Returns:
        (costs, times of each device that was measured).

    Raises:
        RunError: no device runs the whole model.
    """
    model, graph, names = prepared.model, prepared.graph, prepared.devices
    roofline = Roofline(graph)
    inputs: list[NDArray[Any]] = random_inputs(model, shapes=prepared.shapes)
    weights = {name: shares(graph, roofline, roofline.node_us(profile.device(name))) for name in names}
    alone: dict[str, NodeTimes] = {}
    errors: list[str] = []
    for name in names:
        try:
            alone[name] = node_times(
                model,
                name,
                core,
                graph=graph,
                weights=weights[name],
                inputs=inputs,
                submodel_us=profile.device(name).submodel_us,
                advance=advance,
            )
        except RuntimeError as error:
            errors.append(f"{name}: {one_line(error)}")
    if not alone:
        raise RunError(f"no device runs the whole model: {'; '.join(errors)}")
    times = dict(alone)
    for name in names:
        if name not in alone:
            with suppress(RuntimeError):
                helped = _helped(prepared, name, next(iter(alone)), core, profile, weights, alone, inputs, advance)
                times.update({name: helped} if helped else {})
    fused_with, torn_us = _fusions(graph, roofline, times, profile)
    problem = _problem(prepared, tuple(times), profile, times, fused_with, torn_us)
    borders = None
    if len(times) == len(names) > 1:
        try:
            problem = _with_factors(
                problem, tuple(alone), _factors(model, problem, tuple(alone), core, inputs, advance)
            )
            borders = BorderCosts(
                problem.devices, problem.submodel_us, problem.transfer_us, problem.transfer_us_per_byte
            )
        except RuntimeError as error:
            raise RunError(f"calibrating failed: {one_line(error)}") from error
    assert problem.fusion_penalty_us is not None  # set when it was made
    when, node_us, torn_us = _how(), problem.node_us, problem.fusion_penalty_us
    costs = {
        name: DeviceCosts(identity(core, name), when, node_us[:, column], fused_with[:, column], torn_us[:, column])
        for column, name in enumerate(times)
    }
    return ModelCosts(graph_hash(graph), costs, borders), times


def _helped(
    prepared: Prepared,
    name: str,
    helper: str,
    core: ov.Core,
    profile: Profile,
    weights: Mapping[str, NDArray[np.float64]],
    alone: Mapping[str, NodeTimes],
    inputs: Sequence[NDArray[Any]],
    advance: Advance,
) -> NodeTimes | None:
    """Times of a device that does not run the whole model: in a split that gives it all that it runs.

    Returns None where it runs nothing. Raises RuntimeError where the split does not run.
    """
    graph = prepared.graph
    nothing = np.full(graph.nodes, -1, np.int32)
    guess = NodeTimes(name, weights[name], nothing, nothing >= 0, float(weights[name].sum()), 0)
    both = {name: guess, helper: alone[helper]}
    unfused = np.stack([nothing, nothing], axis=1)
    problem = _problem(prepared, (name, helper), profile, both, unfused, np.zeros((graph.nodes, 2)))
    placement = given(problem, 0)
    inside = (placement == 0)[problem.groups] & (weights[name] > 0)
    if not inside.any():
        return None
    split = prepared.model.clone()
    set_affinities(split, problem.affinity(placement))
    return node_times(
        split,
        f"HETERO:{name},{helper}",
        core,
        graph=graph,
        weights=weights[name],
        inputs=inputs,
        advance=advance,
        inside=inside,
    )


def _fusions(
    graph: ComputationGraph, roofline: Roofline, times: Mapping[str, NodeTimes], profile: Profile
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    found = [
        fusions(graph, measured.parts, measured.us, roofline.alone_us(profile.device(name)))
        for name, measured in times.items()
    ]
    return with_layouts(
        graph,
        np.stack([fused for fused, _ in found], axis=1),
        np.stack([torn for _, torn in found], axis=1),
        np.stack([measured.own_layout for measured in times.values()], axis=1),
        profile.layout_us_per_byte(tuple(times)),
    )


def _problem(
    prepared: Prepared,
    names: tuple[str, ...],
    profile: Profile,
    times: Mapping[str, NodeTimes],
    fused_with: NDArray[np.int32],
    torn_us: NDArray[np.float64],
) -> PlacementProblem:
    import openvino as ov

    transfer_us, transfer_us_per_byte = cost_model.transfer_costs(profile, names)
    return PlacementProblem(
        graph=prepared.graph,
        devices=names,
        objective="latency",
        node_us=np.stack([measured.us for measured in times.values()], axis=1),
        supported=prepared.supported_by(names),
        groups=prepared.groups,
        transfer_us=transfer_us,
        transfer_us_per_byte=transfer_us_per_byte,
        submodel_us=profile.submodel_us(names),
        memory_bytes=np.full(len(names), -1, np.int64),
        rule=repair.split_rule(ov.__version__),
        fused_with=fused_with,
        fusion_penalty_us=torn_us,
    )


def _factors(
    model: ov.Model,
    problem: PlacementProblem,
    alone: Sequence[str],
    core: ov.Core,
    inputs: Sequence[NDArray[Any]],
    advance: Advance,
) -> NDArray[np.float64]:
    """Factors on the terms of the simulator but the first; ones where the model cannot be split."""
    helped = [device for device, name in enumerate(problem.devices) if name not in alone]
    placements = draw(problem) + [given(problem, device) for device in helped]
    if not placements:
        return np.ones(5)
    latencies = measure_latencies(model, problem, alone, core, inputs, placements, advance)
    return fit_factors(terms(problem, placements, alone), latencies)


def _with_factors(problem: PlacementProblem, alone: Sequence[str], factors: NDArray[np.float64]) -> PlacementProblem:
    submodels, transfers, layouts, fused, helped = factors
    assert problem.fusion_penalty_us is not None  # set when it was made
    return replace(
        problem,
        node_us=problem.node_us * np.where([name in alone for name in problem.devices], 1.0, helped),
        submodel_us=problem.submodel_us * submodels,
        transfer_us=problem.transfer_us * transfers,
        transfer_us_per_byte=problem.transfer_us_per_byte * transfers,
        fusion_penalty_us=problem.fusion_penalty_us * np.where(layout_ends(problem.graph), layouts, fused)[:, None],
    )
