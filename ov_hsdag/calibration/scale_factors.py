"""Scale factors on what the simulator charges for partition boundaries, from a few placements on real HETERO.

What one device alone shows (operations) and what purpose-built chains show (one boundary at a time) leaves out how
boundaries add up in real models: skip connections that are rewritten, caches that each device finds cold, threads that
are woken. A few random placements of a model tell how much that is, as factors on the simulator's own terms.

Operations of a device that does not run the whole model are a term of their own: what its counters leave out (what a
launch costs) is part of the latency of a device that runs the model alone, and not of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.calibration.executions import CompiledModels, TimedModel
from ov_hsdag.costs.fusions import layout_ends
from ov_hsdag.model.affinities import remove_affinities, set_affinities
from ov_hsdag.model.graph import Floats
from ov_hsdag.model.inputs import TimedInputs
from ov_hsdag.problem.experts_away import experts_away
from ov_hsdag.problem.problem import MOST_WORK, PlacementProblem, topological_groups
from ov_hsdag.utils.lazy import optimize, ov
from ov_hsdag.utils.timing import UNLIMITED, Deadline, OutOfTime

# Standard deviations of logarithms: of measuring, and of the factors on operations, submodels, transfers, layouts,
# fusions and operations that were not measured alone. Operations of all splits may be slower or faster than those of
# the devices alone: their memory lies elsewhere, and more of it in caches.
_NOISE = 0.05
_SPREAD = np.array([0.1, 1.5, 0.7, 0.7, 0.7, 0.7])

# What is measured: contiguous partitions of so many parts, and uniform random assignments. What placers choose is like
# the former; the latter, which break all fusions, say how boundaries add up, and take longest to compile.
_CONTIGUOUS, _RANDOM = (3, 6, 12, 24), 2

# Cuts that are tried, one after the other, where partitions tear something apart.
_CUTS = 64

# Partitions that use each device once are tried so often where too few of those are feasible.
_TRIES = 20

# Each placement runs at least so often (where time allows), and for about so many seconds, as speed changes over longer
# times than a short inference takes.
_FEWEST_ROUNDS, _MOST_ROUNDS, _SECONDS = 5, 60, 0.5

# What a placement gets where there is no time for all: one round is luck.
_FEW_ROUNDS = 3


def terms(
    problem: PlacementProblem, placements: Sequence[NDArray[np.uint8]], alone: Sequence[str] | None = None
) -> Floats:
    """The simulator's latency in parts, µs, float64 [placements, 6].

    Operations, submodels, transfers, layouts, fusions, and operations of devices that are not among `alone`, those
    that run the whole model (None: all do).
    """
    batch = np.stack(placements)
    found = problem.breakdown(batch)
    known = np.array([alone is None or name in alone for name in problem.devices])[batch[:, problem.groups]]
    own, helped = (np.where(chosen, found.node_us, 0.0).sum(axis=1) for chosen in (known, ~known))
    *_, calls, transfers = found.latency_us.T
    ends = layout_ends(problem.graph)
    layouts, fusions = (found.fusion_us[:, chosen].sum(axis=1) for chosen in (ends, ~ends))
    return np.stack([own, calls, transfers, layouts, fusions, helped], axis=1)


def fit_scale_factors(parts: Floats, us: Floats) -> Floats:
    """The factors on all terms but the first that explain measured latencies best, float64 [5]: see `terms`.

    The first one's, by which the last one's is divided, is of these splits alone. Logarithms have normal priors around
    0: what a model lacks (layouts, in a transformer) stays as it was. `us`: measured latency, float64 [placements].
    """
    measured = np.log(us)

    def residuals(scaled: Floats) -> Floats:
        predicted = parts @ np.exp(scaled * _SPREAD)
        return np.concatenate([(np.log(predicted) - measured) / _NOISE, scaled])

    found = optimize.least_squares(residuals, np.zeros(len(_SPREAD)), loss="soft_l1", f_scale=2.0)
    factors = np.exp(found.x * _SPREAD)
    return np.append(factors[1:-1], factors[-1] / factors[0])


def draw(problem: PlacementProblem, seed: int = 2026, hurry: bool = False) -> list[NDArray[np.uint8]]:
    """Placements to measure, uint8 [groups] each: all feasible, none a single device; in a hurry none at random."""
    random = np.random.default_rng(seed)
    order = topological_groups(problem)
    everyone = np.arange(problem.group_count)

    def partition(cuts: NDArray[np.int64], first: int) -> NDArray[np.uint8]:
        """The parts between these cuts, the devices in turn from the first on."""
        wanted = np.empty(problem.group_count, np.int64)
        wanted[order] = (np.searchsorted(cuts, everyone, side="right") + first) % len(problem.devices)
        return problem.where_supported(wanted)

    def broken(placement: NDArray[np.uint8]) -> bool:
        return bool(problem.evaluate(placement, most_work=MOST_WORK).broken[0])

    def contiguous(parts: int, first: int) -> NDArray[np.uint8]:
        """So many parts of random sizes; fewer where cuts tear something apart, repaired where all do."""
        found = partition(np.sort(random.choice(everyone[1:], parts - 1, replace=False)), first)
        if not broken(found):
            return found
        cuts = everyone[:0]
        for cut in random.permutation(everyone[1:])[:_CUTS]:
            more = np.sort(np.append(cuts, cut))
            if len(more) < parts and not broken(partition(more, first)):
                cuts = more
        return partition(cuts, first) if len(cuts) else problem.legalized(found)

    away = experts_away(problem)
    # Repairing random assignments of decoders with states takes seconds and ends on one device.
    count = 0 if hurry or "ReadValue" in problem.graph.types else _RANDOM
    tries = chain(
        # Of a mixture of experts what people do by hand, which crosses twice in each layer.
        away[-1:] if len(away) > 1 else [],
        [contiguous(min(count, problem.group_count), number) for number, count in enumerate(_CONTIGUOUS)],
        problem.random(random, count),
        # In decoders with states little else is feasible than partitions that use each device once.
        (contiguous(min(len(problem.devices), problem.group_count), number) for number in range(_TRIES)),
    )
    splits = (one for one in tries if one.min() != one.max() and problem.evaluate(one).infeasible[0] == 0)
    return list(islice(splits, len(_CONTIGUOUS) + _RANDOM))


def all_supported_on(problem: PlacementProblem, device: int) -> NDArray[np.uint8]:
    """The placement that gives a device all that it supports and the rest to the first that does, uint8 [groups]."""
    return problem.repair(problem.where_supported(problem.single(device)))


def measure_latencies(
    model: ov.Model,
    problem: PlacementProblem,
    alone: Sequence[str],
    compiled: CompiledModels,
    inputs: TimedInputs,
    placements: Sequence[NDArray[np.uint8]],
    advance: Callable[[str], None] = lambda _: None,
    deadline: Deadline = UNLIMITED,
) -> tuple[Floats, Floats, list[NDArray[np.uint8]]]:
    """Latency of placements and of devices alone, µs, measured interleaved, and the placements that they are of.

    How fast one device is in relation to another is known better than from before, and how fast all are as well where
    caches are refilled before each run, as they are where nothing else runs; else the devices add up to what the
    problem says. What would not end before the deadline is left out: rounds first, then placements (uint8 [groups]
    each); so is a placement that a device refuses to compile or run.

    model: normalised, without affinities; not changed. alone: devices that run the whole model. inputs: what is timed.
    Raises RuntimeError where a device does not run the model.
    """
    hetero = f"HETERO:{','.join(problem.devices)}"
    model, unit = model.clone(), 0.0
    found, sums, ran = list[Floats](), list[float](), list[NDArray[np.uint8]]()
    try:
        yardsticks = [TimedModel(compiled, model, name, inputs, deadline) for name in alone]
        singles = np.stack([problem.single(problem.devices.index(name)) for name in alone])
        unit = float(problem.evaluate(singles).latency_us.sum())
        compiling = max(one.compiling for one in yardsticks)
        # A placement takes as long as the slowest device, about.
        one_round = sum(one.typical for one in yardsticks) + max(one.typical for one in yardsticks)
        for number, placement in enumerate(placements):
            split = placement.tobytes()
            takes = 0.0 if compiled.keeps(hetero, split) else compiling
            plan = _plan(deadline.left, len(placements) - number, takes, one_round)
            if plan is None:
                break
            advance(deadline.describe(f"measuring splits over {hetero}, {number + 1} of {len(placements)}"))
            set_affinities(model, problem.affinity(placement))
            try:
                placed = TimedModel(compiled, model, hetero, inputs, deadline, split)
            except RuntimeError:
                continue
            finally:
                remove_affinities(model)
            compiling = max(compiling, placed.compiling)
            rounds, refill = plan
            rivals = (placed, *yardsticks)
            seconds = np.array([[one.run(refill=refill) for one in rivals] for _ in range(rounds)])
            # What else runs on the machine only ever adds.
            seconds = np.quantile(seconds, 0.25, axis=0)
            found.append(seconds / seconds[1:].sum())
            ran.append(placement)
            if refill:
                sums.append(float(seconds[1:].sum()) * 1e6)
            del placed, rivals  # frees its memory before the next is compiled
    except OutOfTime:  # the machine has become slower
        pass
    latencies = np.reshape(found, (-1, 1 + len(alone))) * (np.median(sums) if sums else unit)
    return latencies[:, 0], np.median(latencies[:, 1:], axis=0) if found else np.empty(0), ran


def _plan(left: float, placements: int, compiling: float, one_round: float) -> tuple[int, bool] | None:
    """(rounds, whether caches are refilled before each run) of a placement within its share of the time; None: no time.

    `left` seconds are shared by so many placements, of which each is compiled, and each round of which takes so long.
    One placement more says more than more rounds of the same, from some on.
    """
    share = left / placements - compiling
    # Each run has one before it; before the first round there are two of the placement. A fifth is left over.
    affordable = 0.8 * share / one_round / 2 - 1
    if affordable >= _FEWEST_ROUNDS:
        return int(min(affordable, np.clip(_SECONDS / one_round / 2, _FEWEST_ROUNDS, _MOST_ROUNDS))), True
    if left < compiling + 2 * one_round:
        return None
    if left > compiling + 4 * _FEW_ROUNDS * one_round:
        return int(np.clip(affordable, _FEW_ROUNDS, _FEWEST_ROUNDS)), True
    return int(np.clip(share / one_round - 1, 1, _FEWEST_ROUNDS)), False
