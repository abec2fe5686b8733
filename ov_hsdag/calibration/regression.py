"""Fits the figures of a device profile to measured layers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.model.graph import Floats
from ov_hsdag.utils.lazy import optimize

# Standard deviations of logarithms: of what the cost model says of a layer, and of what is known of a figure before.
_NOISE, _EFFICIENCY, _BANDWIDTH, _LAUNCH = 0.15, 1.5, 1.0, 1.5

# Times shorter than this are as much rounding as work.
_FLOOR_US = 1.0


@dataclass(frozen=True, eq=False)
class Samples:
    """Measured executions, each of one or more operations."""

    us: Floats  # measured time, float64 [samples]
    sample: NDArray[np.int64]  # sample that each operation belongs to, int64 [operations]
    kind: NDArray[np.int64]  # number of each operation's type, int64 [operations]
    flops: Floats  # float64 [operations]
    moved: Floats  # bytes that it reads and writes, float64 [operations]
    launched: NDArray[np.bool_]  # whether it starts an execution, bool [operations]
    kinds: tuple[str, ...]  # names of types, [types]


@dataclass(frozen=True, eq=False)
class Figures:
    """What was fitted."""

    kinds: tuple[str, ...]  # names of types, [types]
    rate_gflops: Floats  # rate that operations of a type reach, 10^9 operations a second, float64 [types]
    gbps: Floats  # bandwidth that they reach, 10^9 bytes a second, float64 [types]
    launch_us: float  # start of an executed operation
    error: float  # median relative error of the samples


def fit_figures(samples: Samples, rate_gflops: Floats, gbps: Floats, launch_us: float) -> Figures:
    """The figures that explain the samples best, by regularised robust least squares of logarithms.

    rate_gflops, gbps (both float64 [types]) and launch_us: the prior means.
    """
    types = len(samples.kinds)
    start = np.log(np.concatenate([rate_gflops, gbps, [max(launch_us, 0.1)]]))
    spread = np.concatenate([np.full(types, _EFFICIENCY), np.full(types, _BANDWIDTH), [_LAUNCH]])
    measured = np.log(np.maximum(samples.us, _FLOOR_US))
    most = len(samples.us)

    def log_us(theta: Floats) -> Floats:
        rate, band, launch = np.exp(theta[:types]), np.exp(theta[types:-1]), np.exp(theta[-1])
        compute = samples.flops / (rate[samples.kind] * 1e3)
        movement = samples.moved / (band[samples.kind] * 1e3)
        us = np.maximum(compute, movement) + launch * samples.launched
        return np.log(np.maximum(np.bincount(samples.sample, us, most), _FLOOR_US))

    def residuals(scaled: Floats) -> Floats:
        return np.concatenate([(log_us(start + scaled * spread) - measured) / _NOISE, scaled])

    # The maximum has a kink, where a search can be caught: begin as bound by arithmetic, by memory, and in between.
    found = [
        optimize.least_squares(
            residuals, np.concatenate([np.full(types, shift), np.full(types, -shift), [0.0]]), loss="soft_l1"
        )
        for shift in (-0.5, 0.0, 0.5)
    ]
    theta = start + min(found, key=lambda result: result.cost).x * spread
    error = np.abs(np.expm1(log_us(theta) - measured))
    rate, band, launch = np.exp(theta[:types]), np.exp(theta[types:-1]), float(np.exp(theta[-1]))
    return Figures(samples.kinds, rate, band, launch, float(np.median(error)))


def fit_costs(rows: Floats, us: Floats, weights: Floats) -> Floats:
    """Costs >= 0 whose sums explain measured times best: weighted least squares of rows · costs = us, float64 [costs].

    rows: how often each cost is in each time, float64 [times, costs]; us and weights (inverse errors): float64 [times].
    """
    scale = np.maximum(np.abs(rows).max(axis=0), 1e-12)
    solution, _ = optimize.nnls(rows / scale * weights[:, None], us * weights)
    return np.asarray(solution / scale, np.float64)
