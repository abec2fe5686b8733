"""Calibration of devices: a profile of each, measured with microbenchmarks, partition boundaries and probe networks."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.calibration.boundaries import Boundaries, measure_boundaries
from ov_hsdag.calibration.calibrate import ModelCalibration, when_measured
from ov_hsdag.calibration.executions import Counters, Executions
from ov_hsdag.calibration.models import PREFIX, image_network, microbenchmark_model, token_network
from ov_hsdag.calibration.node_times import shares
from ov_hsdag.calibration.regression import Figures, Samples, fit_figures
from ov_hsdag.costs.builtin import builtin_profile
from ov_hsdag.costs.profile import DeviceProfile, Profile
from ov_hsdag.costs.roofline import Roofline
from ov_hsdag.devices import discovery, virtual
from ov_hsdag.model.graph import ComputationGraph
from ov_hsdag.model.inputs import timed_inputs
from ov_hsdag.problem.analysis import prepare
from ov_hsdag.utils.errors import RunError, UserError, one_line
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.progress import Stages

Advance = Callable[[str], None]

# Probe networks; a stage each.
_NETWORKS = ("a network of tokens", "a network of images")

# The model of microbenchmarks is compiled so often, and each copy runs so often.
_COPIES, _RUNS = 3, 6


@dataclass(frozen=True)
class DeviceReport:
    """How well a device's figures explain what was measured."""

    microbenchmarks: float  # median relative error of their times
    boundaries: float  # median relative error of the costs of partition boundaries


def check_devices(core: ov.Core, names: Sequence[str]) -> None:
    """Raises UserError where a device is not at hand."""
    for name in discovery.absent(core, names):
        there = ", ".join(core.available_devices) or "none"
        raise UserError(f'device "{name}" is not at hand: calibrating measures; this machine has {there}')


def stages_of(names: Sequence[str]) -> int:
    """Number of the stages of `calibrate_devices`."""
    return len(names) + 1 + len(_NETWORKS)


def calibrate_devices(
    core: ov.Core, names: Sequence[str], stages: Stages | None = None
) -> tuple[dict[str, Any], dict[str, DeviceReport]]:
    """Measures two or more devices and fits their profiles.

    Returns (the profile as a JSON document, how well its figures explain what was measured). Raises UserError: a device
    is not at hand, or of a kind that no profile describes; RunError: a device does not run the built-in models.
    """
    check_devices(core, names)
    stages = stages or Stages(lambda _: None, stages_of(names))
    known = builtin_profile(names, core)
    try:
        figures = _device_figures(core, names, known, stages)
        stages.begin("boundaries")
        boundaries = measure_boundaries(core, names, stages)
        boundaries = _corrected(core, known, figures, boundaries, stages)
    except RuntimeError as error:
        raise RunError(f"calibrating failed: {one_line(error)}") from error
    reports = {name: DeviceReport(figures[name].error, boundaries.error) for name in names}
    return _document(core, known, figures, boundaries), reports


def _device_figures(core: ov.Core, names: Sequence[str], known: Profile, stages: Stages) -> dict[str, Figures]:
    """Figures of each device, fitted to the microbenchmarks."""
    model = microbenchmark_model()
    graph = ComputationGraph.from_model(model)
    roofline = Roofline(graph)
    found = {}
    for name in names:
        stages.begin(f"layers on {name}")
        device = known.device(name)
        samples = _samples(core, name, model, graph, roofline, device, stages)
        rates = [
            device.peak_gflops[device.precision] * device.efficiency_of(kind, device.precision)
            for kind in samples.kinds
        ]
        bands = [device.gbps_of(kind) for kind in samples.kinds]
        found[name] = fit_figures(samples, np.array(rates), np.array(bands), device.launch_us)
    return found


def _corrected(
    core: ov.Core, known: Profile, figures: Mapping[str, Figures], boundaries: Boundaries, stages: Stages
) -> Boundaries:
    """Boundaries as they are in networks: of tokens first, which tell of submodels and transfers, then of images."""
    submodels, transfers, *_ = _probed(core, known, figures, boundaries, stages, 0)
    boundaries = replace(
        boundaries,
        submodel_us=boundaries.submodel_us * submodels,
        tensor_us=boundaries.tensor_us * transfers,
        us_per_byte=boundaries.us_per_byte * transfers,
    )
    submodels, transfers, layouts, *_ = _probed(core, known, figures, boundaries, stages, 1)
    return replace(
        boundaries,
        submodel_us=boundaries.submodel_us * np.sqrt(submodels),
        layout_us_per_byte=boundaries.layout_us_per_byte * layouts * transfers**0.5,
    )


def _probed(
    core: ov.Core,
    known: Profile,
    figures: Mapping[str, Figures],
    boundaries: Boundaries,
    stages: Stages,
    network: int,
) -> NDArray[np.float64]:
    """Scale factors on the boundaries' costs in a probe network, see `fit_scale_factors`, float64 [5]."""
    stages.begin(_NETWORKS[network])
    model = (token_network, image_network)[network]()
    profile = Profile.of(_document(core, known, figures, boundaries), "the calibration")
    calibration = ModelCalibration(prepare(model, tuple(figures), core, profile), core, profile, stages)
    calibration.measure_operations()
    calibration.measure_boundaries()
    return np.ones(5) if calibration.factors is None else calibration.factors


def _document(core: ov.Core, known: Profile, figures: Mapping[str, Figures], boundaries: Boundaries) -> dict[str, Any]:
    """The profile as JSON; its schema is costs/profile.schema.json."""
    how = when_measured()
    return {
        "version": 1,
        "devices": {
            name: _entry(core, known.device(name), found, boundaries, number, how)
            for number, (name, found) in enumerate(figures.items())
        },
        "links": [
            {
                "from": a,
                "to": b,
                "us": {"value": round(float(boundaries.tensor_us[i, j]), 3), "source": how + _CHAINS},
                "gbps": {"value": _rate(boundaries.us_per_byte[i, j]), "source": how + _CHAINS},
            }
            for (i, a), (j, b) in permutations(enumerate(figures), 2)
        ],
    }


_CHAINS = "; least squares over chains of small operations that are cut at every large tensor, less each device alone"


def _samples(
    core: ov.Core,
    name: str,
    model: ov.Model,
    graph: ComputationGraph,
    roofline: Roofline,
    device: DeviceProfile,
    advance: Advance,
) -> Samples:
    (inputs,) = timed_inputs(model)
    config = {**virtual.compile_properties(name), "PERF_COUNT": True}
    times: dict[str, list[float]] = {}
    executions: Executions | None = None
    for copy in range(_COPIES):
        advance(f"measuring layers on {name}, {copy + 1} of {_COPIES}")
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
    boundaries: Boundaries,
    number: int,
    how: str,
) -> dict[str, Any]:
    precision = known.precision

    def kept(key: str) -> dict[str, Any]:
        return {"value": getattr(known, key), "source": known.sources.get(key, "the built-in profile")}

    layers = how + "; fitted to a built-in set of layers"
    # A share of the peak cannot be more than 1: where a datasheet promises less than was measured, the peak gives way.
    fastest = float(figures.rate_gflops.max())
    peak = max(known.peak_gflops[precision], fastest)
    peak_source = kept("peak_gflops")["source"]
    if peak == fastest:
        peak_source = f"{precision}: {how}, the fastest of a built-in set of layers; others: {peak_source}"
    rates, bands = (dict(zip(figures.kinds, fitted, strict=True)) for fitted in (figures.rate_gflops, figures.gbps))
    efficiency = {**known.efficiency, **{f"{kind}@{precision}": _round(rate / peak) for kind, rate in rates.items()}}
    usual = float(np.median([band for kind, band in bands.items() if kind in _STREAMING] or [known.memory_gbps]))
    elementwise = float(np.median([rate for kind, rate in rates.items() if kind in _STREAMING]))
    efficiency[f"default@{precision}"] = _round(min(elementwise / peak, 1.0))
    gbps = {"default": _round(usual), **{kind: _round(rate) for kind, rate in bands.items()}}
    layout = float(boundaries.layout_us_per_byte[number])
    entry: dict[str, Any] = {
        "kind": known.kind,
        "description": f"{known.name}: {discovery.full_name(core, known.name)}, measured",
        "precision": precision,
        "peak_gflops": {"value": {**known.peak_gflops, precision: _round(peak)}, "source": peak_source},
        "efficiency": {"value": efficiency, "source": layers},
        "memory_gbps": kept("memory_gbps"),
        "gbps": {"value": gbps, "source": layers},
        "memory_bytes": kept("memory_bytes"),
        "launch_us": {"value": _round(figures.launch_us), "source": layers},
        "submodel_us": {"value": _round(float(boundaries.submodel_us[number])), "source": how + _CHAINS},
        "link_us": kept("link_us"),
        "link_gbps": kept("link_gbps"),
    }
    if layout > 0:
        entry["layout_gbps"] = {"value": _rate(layout), "source": how + _CHAINS}
    if known.unsupported:
        entry["unsupported"] = list(known.unsupported)
    return entry


# Types whose figures stand for types that were not measured: they read, compute a little and write.
_STREAMING = frozenset({"Add", "Multiply", "Relu", "Concat", "Transpose", "Softmax", "MVN", "ReduceMean"})


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def _rate(us_per_byte: float) -> float:
    """10^9 bytes a second; what could not be told from nothing is very fast."""
    return _round(1e-3 / max(us_per_byte, 1e-9))
