"""Factors on what the simulator charges for borders, from a few placements that are measured on real HETERO.

What one device alone shows (operations) and what purpose-built chains show (a border at a time) leaves out how borders
add up in real models: skip connections that are rewritten, caches that each device finds cold, threads that are woken.
A few random placements of a model tell how much that is, as factors on the simulator's own terms.

Operations of a device that does not run the whole model are a term of their own: what its counters leave out (what a
launch costs) is part of the latency of a device that runs the model alone, and not of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from ov_hsdag.calibration.single_request import SingleRequest
from ov_hsdag.costs.fusions import layout_ends
from ov_hsdag.devices import virtual
from ov_hsdag.model.placement import remove_affinities, set_affinities
from ov_hsdag.problem.problem import topological_groups

if TYPE_CHECKING:
    import openvino as ov

    from ov_hsdag.problem.problem import PlacementProblem

Floats = NDArray[np.float64]

# Standard deviations of logarithms: of measuring, and of the factors on submodels, transfers, layouts, fusions and
# operations that were not measured alone.
_NOISE = 0.05
_SPREAD = np.array([1.5, 0.7, 0.7, 0.7, 0.7])

# What is measured: so many contiguous stretches, and placements in which each group goes its own way. What placers
# choose is like the former; the latter, which tear everything, say how borders add up.
_STRETCHES, _TORN = (3, 6, 12, 24), 2

_ROUNDS = 5


def terms(
    problem: PlacementProblem, placements: Sequence[NDArray[np.uint8]], alone: Sequence[str] | None = None
) -> Floats:
    """The simulator's latency in parts, µs, float64 [placements, 6].

    Operations, submodels, transfers, layouts, fusions, and operations of devices that are not among `alone`, those
    that run the whole model (None: all do).
    """
    known = np.array([alone is None or name in alone for name in problem.devices])
    nodes = np.arange(problem.graph.nodes)
    ends = layout_ends(problem.graph)
    rows = []
    for placement in placements:
        device = placement[problem.groups]
        split = problem.split(placement)
        torn = problem.node_fusion_penalty_us(placement, split["submodel"])
        work, calls = problem.node_us[nodes, device], problem.submodel_us[split["submodel_device"]].sum()
        rest = float(problem.evaluate(placement).latency_us[0]) - work.sum() - calls - torn.sum()
        own, helped = work[known[device]].sum(), work[~known[device]].sum()
        rows.append([own, calls, max(rest, 0.0), torn[ends].sum(), torn[~ends].sum(), helped])
    return np.array(rows)


def fit_factors(parts: Floats, us: Floats) -> Floats:
    """Factors on all terms but the first that explain measured latencies best, float64 [5].

    Logarithms of factors have normal priors around 0: what a model lacks (layouts, in a transformer) stays as it was.

    Args:
        parts: from `terms`, [placements, 6].
        us: measured latency, [placements].
    """
    measured = np.log(us)

    def residuals(scaled: Floats) -> Floats:
        predicted = parts[:, 0] + parts[:, 1:] @ np.exp(scaled * _SPREAD)
        return np.concatenate([(np.log(predicted) - measured) / _NOISE, scaled])

    found = least_squares(residuals, np.zeros(len(_SPREAD)), loss="soft_l1", f_scale=2.0)
    return np.asarray(np.exp(found.x * _SPREAD), np.float64)


def draw(problem: PlacementProblem, seed: int = 2026) -> list[NDArray[np.uint8]]:
    """Placements to measure: contiguous stretches, devices in turn, and dice; feasible, none a single device."""
    random = np.random.default_rng(seed)
    order = topological_groups(problem)
    everyone = np.arange(problem.group_count)
    drawn: list[NDArray[np.uint8]] = []
    for number, count in enumerate(_STRETCHES):
        cuts = np.sort(random.choice(everyone[1:], min(count, problem.group_count) - 1, replace=False))
        wanted = np.empty(problem.group_count, np.int64)
        wanted[order] = (np.searchsorted(cuts, everyone, side="right") + number) % len(problem.devices)
        drawn.append(problem.repair(problem.where_supported(wanted)))
    drawn.extend(problem.random(random, _TORN))
    return [
        placement
        for placement in drawn
        if placement.min() != placement.max() and problem.evaluate(placement).infeasible[0] == 0
    ]


def given(problem: PlacementProblem, device: int) -> NDArray[np.uint8]:
    """The placement that gives a device all that it runs, and the rest to the first device that does."""
    return problem.repair(problem.where_supported(problem.single(device)))


def measure_latencies(
    model: ov.Model,
    problem: PlacementProblem,
    alone: Sequence[str],
    core: ov.Core,
    inputs: Sequence[NDArray[Any]],
    placements: Sequence[NDArray[np.uint8]],
    advance: Callable[[str], None] = lambda _: None,
) -> Floats:
    """Latency of placements in µs, [placements]; in turns with devices alone, whose times are the problem's.

    The time of the devices alone is what `problem` says: a machine that is slower now than when they were measured is
    no matter.

    Args:
        model: normalized, without affinities; not changed.
        problem: of the model.
        alone: devices that run the whole model.
        core: has the devices.
        inputs: of the model.
        placements: uint8 [groups] each.
        advance: is told what happens.

    Raises:
        RuntimeError: a device, or HETERO, does not run the model.
    """
    hetero = f"HETERO:{','.join(problem.devices)}"
    model = model.clone()
    yardsticks = [_runner(core, model, name, inputs) for name in alone]
    singles = np.stack([problem.single(problem.devices.index(name)) for name in alone])
    unit = float(problem.evaluate(singles).latency_us.sum())
    found = []
    for number, placement in enumerate(placements):
        advance(f"{hetero}: {number + 1} of {len(placements)}")
        set_affinities(model, problem.affinity(placement))
        placed = _runner(core, model, hetero, inputs)
        remove_affinities(model)
        seconds = np.array([[run() for run in (placed, *yardsticks)] for _ in range(_ROUNDS)])
        # What else runs on the machine only ever adds.
        seconds = np.quantile(seconds, 0.25, axis=0)
        found.append(seconds[0] / seconds[1:].sum() * unit)
    return np.array(found)


def _runner(core: ov.Core, model: ov.Model, device: str, inputs: Sequence[NDArray[Any]]) -> Callable[[], float]:
    """A function that runs the compiled model twice, and returns the seconds of the second run."""
    once = SingleRequest(core.compile_model(model, device, virtual.compile_properties(device)), inputs).run

    def run() -> float:
        once()  # brings back into caches what the others displaced
        return once()

    run()
    return run
