"""A copy of the whole model on each device: what throughput needs no placement for, where every device holds it."""

from __future__ import annotations

from typing import Any

import numpy as np

from ov_hsdag.problem.problem import PlacementProblem

COPIES = "copies"
"""Name of this way to run a model. HETERO cannot run it, so no placement is ever called so."""


def copy_devices(problem: PlacementProblem) -> tuple[str, ...]:
    """Devices that run and hold the whole model; () where those are fewer than two, or latency is asked for."""
    if problem.objective != "throughput":
        return ()
    able = np.isfinite(problem.scores(problem.singles))
    names = tuple(name for name, one in zip(problem.devices, able, strict=True) if one)
    return names if len(names) > 1 else ()


def copies_summary(problem: PlacementProblem) -> dict[str, Any] | None:
    """As `PlacementProblem.summary`: throughput of a copy on each device together, latency of the slowest, bytes.

    None where `copy_devices` names none. Devices are taken to work undisturbed where there are cores for all of them;
    copies on CPU devices share one memory's bandwidth, so that what is measured may be less.
    """
    names = copy_devices(problem)
    if not names:
        return None
    alone = {name: problem.summary(problem.single(problem.devices.index(name))) for name in names}
    # Between two inferences, of whichever copy, all devices are at work.
    us = 1e6 / max(sum(one["throughput_ips"] for one in alone.values()), 1e-9)
    period = problem.periods(np.array([[us if name in alone else 0.0 for name in problem.devices]]))
    return {
        "latency_us": max(one["latency_us"] for one in alone.values()),
        "throughput_ips": round(1e6 / float(period[0]), 3),
        "memory_bytes": {name: alone[name]["memory_bytes"][name] if name in alone else 0 for name in problem.devices},
        "submodels": 0,
        "transfer_bytes": 0,
    }
