"""Fits the figures of a device profile to measured layers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.model.graph import Floats
from ov_hsdag.utils.lazy import optimize

# Standard deviations of logarithms: error of the cost model for a layer, and the priors of a type's efficiency, of its
# bandwidth and of the launch time.
_NOISE, _EFFICIENCY, _BANDWIDTH, _LAUNCH = 0.15, 1.5, 1.0, 1.5

# Shorter times count as this time, because plugins round to whole µs.
_FLOOR_US = 1.0


@dataclass(frozen=True, eq=False)
class Samples:
    """Measured executions, each of one or more operations."""

    us: Floats  # measured time, µs, float64 [samples]
    sample: NDArray[np.int64]  # sample that each operation belongs to, int64 [operations]
    kind: NDArray[np.int64]  # number of each operation's type, int64 [operations]
    flops: Floats  # arithmetic operations of each operation, float64 [operations]
    moved: Floats  # bytes that each operation reads and writes, float64 [operations]
    launched: NDArray[np.bool_]  # whether an operation is launched by itself and not fused, bool [operations]
    kinds: tuple[str, ...]  # names of types, [types]


@dataclass(frozen=True, eq=False)
class Figures:
    """Fitted figures of a device."""

    kinds: tuple[str, ...]  # names of types, [types]
    rate_gflops: Floats  # rate that operations of a type reach, 10^9 operations a second, float64 [types]
    gbps: Floats  # bandwidth that they reach, 10^9 bytes a second, float64 [types]
    launch_us: float  # time to start an executed operation, µs
    error: float  # median relative error of the samples


def fit_figures(samples: Samples, rate_gflops: Floats, gbps: Floats, launch_us: float) -> Figures:
    """Fits figures to samples by regularised robust least squares of logarithms.

    Args:
        samples: measured executions.
        rate_gflops: prior means of the rates, 10^9 operations per second, float64 [types].
        gbps: prior means of the bandwidths, 10^9 bytes per second, float64 [types].
        launch_us: prior mean of the launch time, µs.

    Returns:
        The figures.
    """
    types = len(samples.kinds)
    start = np.log(np.concatenate([rate_gflops, gbps, [max(launch_us, 0.1)]]))
    spread = np.concatenate([np.full(types, _EFFICIENCY), np.full(types, _BANDWIDTH), [_LAUNCH]])
    measured = np.log(np.maximum(samples.us, _FLOOR_US))
    count = len(samples.us)

    def log_us(theta: Floats) -> Floats:
        """Predicts logarithms of the samples' times; `theta` has logarithms of rates, bandwidths and launch time."""
        rate, band, launch = np.exp(theta[:types]), np.exp(theta[types:-1]), np.exp(theta[-1])
        compute = samples.flops / (rate[samples.kind] * 1e3)
        movement = samples.moved / (band[samples.kind] * 1e3)
        us = np.maximum(compute, movement) + launch * samples.launched
        return np.log(np.maximum(np.bincount(samples.sample, us, count), _FLOOR_US))

    def residuals(scaled: Floats) -> Floats:
        """Errors, and the prior; `scaled` are differences from the prior means in standard deviations."""
        return np.concatenate([(log_us(start + scaled * spread) - measured) / _NOISE, scaled])

    # The roofline's maximum has a kink at which the optimizer can stop. So it starts three times: bound by arithmetic,
    # in between, and bound by memory.
    fits = [
        optimize.least_squares(
            residuals, np.concatenate([np.full(types, shift), np.full(types, -shift), [0.0]]), loss="soft_l1"
        )
        for shift in (-0.5, 0.0, 0.5)
    ]
    theta = start + min(fits, key=lambda result: result.cost).x * spread
    error = np.abs(np.expm1(log_us(theta) - measured))
    rate, band, launch = np.exp(theta[:types]), np.exp(theta[types:-1]), float(np.exp(theta[-1]))
    return Figures(samples.kinds, rate, band, launch, float(np.median(error)))


def fit_costs(rows: Floats, us: Floats, weights: Floats) -> Floats:
    """Fits costs that are not negative to measured times: weighted non-negative least squares of rows · costs = us.

    Args:
        rows: how often each cost is part of each time, float64 [times, costs].
        us: measured times, µs, float64 [times].
        weights: inverse errors of the times, 1/µs, float64 [times].

    Returns:
        The costs, µs, float64 [costs].
    """
    scale = np.maximum(np.abs(rows).max(axis=0), 1e-12)
    solution, _ = optimize.nnls(rows / scale * weights[:, None], us * weights)
    return np.asarray(solution / scale, np.float64)
