"""Writes measured figures of devices as a profile in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations
from typing import Any

import numpy as np

from ov_hsdag.calibration.boundaries import Boundaries
from ov_hsdag.calibration.calibrate import when_measured
from ov_hsdag.calibration.regression import Figures
from ov_hsdag.costs.profile import DeviceProfile, Profile
from ov_hsdag.devices import discovery
from ov_hsdag.utils.lazy import ov


def profile_document(
    core: ov.Core, known: Profile, figures: Mapping[str, Figures], boundaries: Boundaries
) -> dict[str, Any]:
    """Makes the JSON of a profile; its schema is costs/profile.schema.json.

    Args:
        core: the Core, for the full names of devices.
        known: profile of the devices for figures that were not measured.
        figures: fitted figures by device.
        boundaries: costs of boundaries between the devices, in the order of `figures`.

    Returns:
        The JSON value.
    """
    measurement = when_measured()
    return {
        "version": 1,
        "devices": {
            name: _entry(core, known.device(name), found, boundaries, number, measurement)
            for number, (name, found) in enumerate(figures.items())
        },
        "links": [
            {
                "from": a,
                "to": b,
                "us": {"value": round(float(boundaries.tensor_us[i, j]), 3), "source": measurement + _CHAINS},
                "gbps": {"value": _rate(boundaries.us_per_byte[i, j]), "source": measurement + _CHAINS},
            }
            for (i, a), (j, b) in permutations(enumerate(figures), 2)
        ],
    }


# Source of the figures of boundaries, after the date.
_CHAINS = "; least squares over chains of small operations that are cut at every large tensor, less each device alone"


def _entry(
    core: ov.Core, prior: DeviceProfile, figures: Figures, boundaries: Boundaries, number: int, measurement: str
) -> dict[str, Any]:
    """Makes the JSON of one device.

    Args:
        core: the Core, for the device's full name.
        prior: profile of the device for figures that were not measured.
        figures: fitted figures of the device.
        boundaries: costs of boundaries.
        number: number of the device in `boundaries`.
        measurement: date and release of the measurement, the beginning of the sources of measured figures.

    Returns:
        The value of the device's name under "devices".
    """
    precision = prior.precision

    def prior_figure(key: str) -> dict[str, Any]:
        return {"value": getattr(prior, key), "source": prior.sources.get(key, "the built-in profile")}

    layers = measurement + "; fitted to a built-in set of layers"
    # Efficiencies cannot exceed 1. So where measured rates exceed the datasheet's peak, the peak is raised.
    fastest = float(figures.rate_gflops.max())
    peak = max(prior.peak_gflops[precision], fastest)
    peak_source = prior_figure("peak_gflops")["source"]
    if peak == fastest:
        peak_source = f"{precision}: {measurement}, the fastest of a built-in set of layers; others: {peak_source}"
    rates, bands = (dict(zip(figures.kinds, fitted, strict=True)) for fitted in (figures.rate_gflops, figures.gbps))
    efficiency = {**prior.efficiency, **{f"{kind}@{precision}": _round(rate / peak) for kind, rate in rates.items()}}
    usual = float(np.median([band for kind, band in bands.items() if kind in _STREAMING] or [prior.memory_gbps]))
    elementwise = float(np.median([rate for kind, rate in rates.items() if kind in _STREAMING]))
    efficiency[f"default@{precision}"] = _round(min(elementwise / peak, 1.0))
    gbps = {"default": _round(usual), **{kind: _round(rate) for kind, rate in bands.items()}}
    layout = float(boundaries.layout_us_per_byte[number])
    entry: dict[str, Any] = {
        "kind": prior.kind,
        "description": f"{prior.name}: {discovery.full_name(core, prior.name)}, measured",
        "precision": precision,
        "peak_gflops": {"value": {**prior.peak_gflops, precision: _round(peak)}, "source": peak_source},
        "efficiency": {"value": efficiency, "source": layers},
        "memory_gbps": prior_figure("memory_gbps"),
        "gbps": {"value": gbps, "source": layers},
        "memory_bytes": prior_figure("memory_bytes"),
        "launch_us": {"value": _round(figures.launch_us), "source": layers},
        "submodel_us": {"value": _round(float(boundaries.submodel_us[number])), "source": measurement + _CHAINS},
        "link_us": prior_figure("link_us"),
        "link_gbps": prior_figure("link_gbps"),
    }
    if layout > 0:
        entry["layout_gbps"] = {"value": _rate(layout), "source": measurement + _CHAINS}
    if prior.supported is not None:
        entry["supported"] = list(prior.supported)
    if prior.unsupported:
        entry["unsupported"] = list(prior.unsupported)
    return entry


# Types whose figures stand for types that were not measured, because they read, compute a little and write.
_STREAMING = frozenset({"Add", "Multiply", "Relu", "Concat", "Transpose", "Softmax", "MVN", "ReduceMean"})


def _round(value: float) -> float:
    """Rounds to four significant digits."""
    return float(f"{value:.4g}")


def _rate(us_per_byte: float) -> float:
    """Converts µs per byte to 10^9 bytes per second; costs too small to measure become a very high rate."""
    return _round(1e-3 / max(us_per_byte, 1e-9))
