"""One run of a contestant on a problem under a budget, and what all tables say of the machine that made them."""

from __future__ import annotations

import datetime
import math
import os
import platform
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from multiprocessing import get_context
from typing import Any, TypeVar

import numpy as np

from benchmarks.contestants import Contestant
from ov_hsdag.baselines.budget import Budget, Environment, Judge
from ov_hsdag.devices.cpu import usable_cores
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.utils.errors import RunError, UserError, one_line

T = TypeVar("T")
R = TypeVar("R")

TIE = 0.005
"""Placements whose costs differ by no more, as a share, are tied: what `ov_hsdag.place` needs to prefer a split."""


def run(
    problem: PlacementProblem,
    contestant: Contestant,
    budget: Budget,
    *,
    noise: float = 0.0,
    seed: int = 0,
    judge: Judge | None = None,
) -> dict[str, Any]:
    """Lets a contestant place a problem within a budget, which the environment keeps.

    Args:
        problem: to place.
        contestant: who places it.
        budget: of evaluations and of processor seconds.
        noise: standard deviation of the logarithm of a measurement.
        seed: of the contestant and of the noise.
        judge: of placements; None: the simulator.

    Returns:
        us: of the best placement as it is, without noise, µs; None where there is none, and then `why` says why.
        drawn_us: as it was measured when it was found; again_us: measured once more.
        evaluations, seconds: that were spent. devices: how many devices the placement uses. placement: the bytes of its
        device numbers as hexadecimal digits.
    """
    environment = Environment(problem, budget, judge=judge, noise=noise, seed=seed)
    why = ""
    try:
        environment.run(contestant.make(), seed)
    except ImportError as error:
        why = f"not installed: {one_line(error)}"
    except (RunError, UserError, RuntimeError, MemoryError) as error:
        why = one_line(error) or type(error).__name__
    best = environment.best
    spent = {"evaluations": environment.evaluations, "seconds": round(environment.seconds, 3)}
    if best is None:
        return {"us": None, "drawn_us": None, "again_us": None, "why": why or _why(environment), **spent}
    exact = float(environment.exact(best.placement)[0]) * 1e6
    again = exact * math.exp(noise * np.random.default_rng([seed, 1]).standard_normal())
    return {
        "us": exact,
        "drawn_us": best.cost * 1e6,
        "again_us": again,
        "why": why,
        **spent,
        "devices": len(np.unique(best.placement)),
        "placement": best.placement.tobytes().hex(),
    }


def _why(environment: Environment) -> str:
    limit = environment.budget.seconds
    if not environment.evaluations:
        late = limit is not None and environment.seconds >= limit
        return f"no placement within {limit:g} s" if late else "finds no placement"
    tried = environment.evaluations
    return "infeasible" if tried == 1 else f"infeasible, all {tried} that it tried"


def about() -> dict[str, Any]:
    """Machine, versions and date of a table."""
    versions = {}
    for package in ("ov-hsdag", "openvino", "numpy", "scipy", "torch", "torch-geometric", "pymetis"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": f"{_processor()}, {usable_cores()} cores usable",
        "python": platform.python_version(),
        "versions": versions,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def in_parallel(function: Callable[[T], R], tasks: Iterable[T]) -> Iterator[tuple[T, R]]:
    """Results of tasks in their order, on as many processes as there are cores, each with one thread of its own."""
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    every = list(tasks)
    with ProcessPoolExecutor(usable_cores(), mp_context=get_context("spawn")) as pool:
        yield from zip(every, pool.map(function, every), strict=True)
