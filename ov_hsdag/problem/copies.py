"""Copies: the whole model on each device at once. They need no placement, but every device must hold the model."""

from __future__ import annotations

from typing import Any

import numpy as np

from ov_hsdag.problem.problem import PlacementProblem

COPIES = "copies"
"""Name of this way to run a model. HETERO cannot run it, so no placement has this name."""


def copy_devices(problem: PlacementProblem) -> tuple[str, ...]:
    """Devices that can run and hold the whole model; () if they are fewer than two, or the objective is latency."""
    if problem.objective != "throughput":
        return ()
    able = np.isfinite(problem.scores(problem.singles))
    names = tuple(name for name, one in zip(problem.devices, able, strict=True) if one)
    return names if len(names) > 1 else ()


def copies_summary(problem: PlacementProblem) -> dict[str, Any] | None:
    """Predicts copies, in the form of `PlacementProblem.summary`; None where `copy_devices` is empty.

    Throughput is that of all copies together, latency that of the slowest. Devices are assumed not to disturb each
    other where there are cores for all of them. Copies on CPU devices share the bandwidth of one memory, so measured
    throughput may be lower.
    """
    names = copy_devices(problem)
    if not names:
        return None
    alone = {name: problem.summary(problem.single(problem.devices.index(name))) for name in names}
    # In the mean time between two results, of whichever copies, every device works all the time.
    us = 1e6 / max(sum(summary["throughput_ips"] for summary in alone.values()), 1e-9)
    period = problem.periods(np.array([[us if name in alone else 0.0 for name in problem.devices]]))
    return {
        "latency_us": max(summary["latency_us"] for summary in alone.values()),
        "throughput_ips": round(1e6 / float(period[0]), 3),
        "memory_bytes": {name: alone[name]["memory_bytes"][name] if name in alone else 0 for name in problem.devices},
        "submodels": 0,
        "transfer_bytes": 0,
    }
