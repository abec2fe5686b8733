"""Scale factors on the simulator's costs of partition boundaries, from a few placements on HETERO.

Measurements of single devices (operations) and of purpose-built chains (one boundary at a time) leave out effects of
boundaries in real models: skip connections that are rewritten, caches that each device finds cold, threads that are
woken. A few random placements of a model show these effects, as factors on the terms of the simulator's latency:
operations, calls of submodels, transfers, rewritten layouts, and other broken fusions.

Operations of a device that does not run the whole model are a separate term. Counters leave out the launch of
operations, which is part of the latency of a device that runs the model alone, and missing for other devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
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

# Standard deviations of logarithms: of a measurement, and of the factors on operations, submodels, transfers, layouts,
# fusions, and operations of devices that do not run the whole model. Operations in splits may be slower or faster than
# on the devices alone, because their memory lies elsewhere, and more of it is in caches.
_NOISE = 0.05
_SPREAD = np.array([0.1, 1.5, 0.7, 0.7, 0.7, 0.7])

# Measured placements: numbers of parts of contiguous partitions, and the number of uniform random assignments. Placers
# choose placements like the former. The latter break all fusions, so they show many boundaries at once, and take
# longest to compile.
_CONTIGUOUS, _RANDOM = (3, 6, 12, 24), 2

# Cuts that are tried one after the other if HETERO cannot run a partition.
_MOST_TRIED_CUTS = 64

# Tries of partitions that use each device once, if too few other placements are feasible.
_MOST_TRIES = 20

# Rounds of each placement, at least (if there is time) and at most, and seconds that they should take: the machine's
# speed changes over longer times than a short inference takes.
_FEWEST_ROUNDS, _MOST_ROUNDS, _SECONDS = 5, 60, 0.5

# Rounds of a placement if there is no time for more; the result of a single round would be luck.
_FEW_ROUNDS = 3


def terms(
    problem: PlacementProblem, placements: Sequence[NDArray[np.uint8]], alone: Sequence[str] | None = None
) -> Floats:
    """Splits the latencies that the simulator predicts into the terms on which factors are fitted.

    Args:
        problem: the problem.
        placements: placements, uint8 [groups] each.
        alone: names of the devices that run the whole model; by default all.

    Returns:
        Times of operations on devices of `alone`, calls of submodels, transfers, rewritten layouts, other broken
        fusions, and operations on the other devices, in this order, µs, float64 [placements, 6].
    """
    batch = np.stack(placements)
    breakdown = problem.breakdown(batch)
    runs_alone = np.array([alone is None or name in alone for name in problem.devices])[batch[:, problem.groups]]
    alone_us, helped_us = (np.where(chosen, breakdown.node_us, 0.0).sum(axis=1) for chosen in (runs_alone, ~runs_alone))
    *_, calls, transfers = breakdown.latency_us.T
    ends = layout_ends(problem.graph)
    layouts, fusions = (breakdown.fusion_us[:, chosen].sum(axis=1) for chosen in (ends, ~ends))
    return np.stack([alone_us, calls, transfers, layouts, fusions, helped_us], axis=1)


def fit_scale_factors(parts: Floats, us: Floats) -> Floats:
    """Fits factors on all terms but the first to measured latencies.

    The factor of the first term is specific to these splits, so it is not returned; that of the last term is divided by
    it. Logarithms of factors have normal priors around 0, so the factor of a term that a model does not have (layouts,
    in a transformer) stays 1.

    Args:
        parts: the terms of each placement, µs, float64 [placements, 6], see `terms`.
        us: measured latency of each placement, µs, float64 [placements].

    Returns:
        Factors of submodels, transfers, layouts, fusions, and operations on devices that do not run the whole model,
        float64 [5].
    """
    measured = np.log(us)

    def residuals(scaled: Floats) -> Floats:
        predicted = parts @ np.exp(scaled * _SPREAD)
        return np.concatenate([(np.log(predicted) - measured) / _NOISE, scaled])

    solution = optimize.least_squares(residuals, np.zeros(len(_SPREAD)), loss="soft_l1", f_scale=2.0)
    factors = np.exp(solution.x * _SPREAD)
    return np.append(factors[1:-1], factors[-1] / factors[0])


def draw(problem: PlacementProblem, seed: int = 2026, hurry: bool = False) -> list[NDArray[np.uint8]]:
    """Draws placements to measure; all are feasible and use several devices.

    Args:
        problem: the problem.
        seed: seed of the random numbers.
        hurry: whether to leave out random assignments, which take longest to compile.

    Returns:
        Placements, uint8 [groups] each; they may be fewer than usual.
    """
    random = np.random.default_rng(seed)
    order = topological_groups(problem)
    everyone = np.arange(problem.group_count)

    def partition(cuts: NDArray[np.int64], first: int) -> NDArray[np.uint8]:
        """The placement with these cuts, with the devices in turn from `first` on."""
        devices_in_turn = np.empty(problem.group_count, np.int64)
        devices_in_turn[order] = (np.searchsorted(cuts, everyone, side="right") + first) % len(problem.devices)
        return problem.where_supported(devices_in_turn)

    def broken(placement: NDArray[np.uint8]) -> bool:
        """Whether HETERO cannot run the placement, see `Evaluation.broken`."""
        return bool(problem.evaluate(placement, most_work=MOST_WORK).broken[0])

    def contiguous(parts: int, first: int) -> NDArray[np.uint8]:
        """A partition with `parts` parts of random sizes; with fewer, or repaired, if HETERO cannot run it."""
        placement = partition(np.sort(random.choice(everyone[1:], parts - 1, replace=False)), first)
        if not broken(placement):
            return placement
        cuts = everyone[:0]
        for cut in random.permutation(everyone[1:])[:_MOST_TRIED_CUTS]:
            more = np.sort(np.append(cuts, cut))
            if len(more) < parts and not broken(partition(more, first)):
                cuts = more
        return partition(cuts, first) if len(cuts) else problem.legalized(placement)

    away = experts_away(problem)
    # Repairing random assignments of decoders with states takes seconds and ends on one device.
    count = 0 if hurry or "ReadValue" in problem.graph.types else _RANDOM
    tries = chain(
        # For a mixture of experts the placement that users make by hand, which crosses twice in each layer.
        away[-1:] if len(away) > 1 else [],
        [contiguous(min(count, problem.group_count), number) for number, count in enumerate(_CONTIGUOUS)],
        problem.random(random, count),
        # For decoders with states, hardly any placements are feasible except partitions that use each device once.
        (contiguous(min(len(problem.devices), problem.group_count), number) for number in range(_MOST_TRIES)),
    )
    splits = (one for one in tries if one.min() != one.max() and problem.evaluate(one).infeasible[0] == 0)
    return list(islice(splits, len(_CONTIGUOUS) + _RANDOM))


def all_supported_on(problem: PlacementProblem, device: int) -> NDArray[np.uint8]:
    """Places everything that a device supports on it, and the rest on the first device that supports it.

    Args:
        problem: the problem.
        device: number of the device.

    Returns:
        The repaired placement, uint8 [groups].
    """
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
    """Measures latencies of placements on HETERO and of the whole model on single devices, interleaved.

    A round runs the placement once, and the model once on each device of `alone`. Interleaved runs show the ratio
    between devices better than earlier measurements. If caches are refilled before each run, as if nothing else ran,
    they also show the devices' absolute times; otherwise the sum of the devices' times is scaled to that of the
    problem. If the time is too short, rounds are left out first, then placements. Placements that a device refuses to
    compile or run are left out, too.

    Args:
        model: the normalized model without affinities, which is not changed.
        problem: the problem.
        alone: names of the devices that run the whole model.
        compiled: store of compiled copies.
        inputs: inputs of the timed inferences.
        placements: placements to measure, uint8 [groups] each.
        advance: called with lines of progress.
        deadline: budget.

    Returns:
        placement_us: latencies of the measured placements, µs, float64 [measured].
        alone_us: latencies of the devices of `alone`, µs, float64 [alone]; empty if no placement was measured.
        measured: the measured placements, in their order.

    Raises:
        RuntimeError: a device does not run the model.
    """
    trials = list[_SplitTrial]()
    with suppress(OutOfTime):  # the machine became slower than the plan assumed
        rounds = _InterleavedRounds(model.clone(), problem, alone, compiled, inputs, deadline)
        for number, placement in enumerate(placements):
            plan = rounds.plan(placement, len(placements) - number)
            if plan is None:
                break
            progress = f"measuring splits over {rounds.hetero}, {number + 1} of {len(placements)}"
            advance(deadline.describe(progress))
            trial = rounds.run(placement, plan)
            if trial is not None:
                trials.append(trial)
    if not trials:
        return np.empty(0), np.empty(0), []
    latencies_us = np.stack([trial.relative for trial in trials]) * _sum_of_devices_us(trials, problem, alone)
    return latencies_us[:, 0], np.median(latencies_us[:, 1:], axis=0), [trial.placement for trial in trials]


@dataclass(frozen=True)
class _RoundPlan:
    """How a placement is measured within its share of the time."""

    rounds: int  # number of rounds
    refill: bool  # whether caches are refilled before each run


@dataclass(frozen=True, eq=False)
class _SplitTrial:
    """A placement that was measured, in turns with the model on single devices."""

    placement: NDArray[np.uint8]  # device number of each co-location group, uint8 [groups]
    # time of the placement, then of the model on each device, relative to the sum of the latter, float64 [1 + alone]
    relative: Floats
    devices_us: float | None  # sum of the model's times on the devices, µs; None where caches were not refilled


class _InterleavedRounds:
    """Rounds that run a placement once, and the whole model once on each of some devices.

    Attributes:
        hetero: device string of the placements.
    """

    def __init__(
        self,
        model: ov.Model,
        problem: PlacementProblem,
        alone: Sequence[str],
        compiled: CompiledModels,
        inputs: TimedInputs,
        deadline: Deadline,
    ) -> None:
        """Compiles the model for single devices, and runs it there.

        Args:
            model: the normalized model without affinities; it has affinities while a placement is compiled.
            problem: the problem.
            alone: names of the devices that run the whole model.
            compiled: store of compiled copies.
            inputs: inputs of the timed inferences.
            deadline: budget.

        Raises:
            RuntimeError: a device does not run the model.
            OutOfTime: the deadline has come.
        """
        self.hetero = f"HETERO:{','.join(problem.devices)}"
        self._model, self._problem, self._compiled = model, problem, compiled
        self._inputs, self._deadline = inputs, deadline
        self._single_devices = [TimedModel(compiled, model, name, inputs, deadline) for name in alone]
        typical = [timed.typical for timed in self._single_devices]
        self._one_round = sum(typical) + max(typical)  # a placement is assumed to take as long as the slowest device
        self._longest_compiling = max(timed.compiling for timed in self._single_devices)  # seconds

    def plan(self, placement: NDArray[np.uint8], left: int) -> _RoundPlan | None:
        """Plans the rounds of a placement; `left` is the number of placements left. None if there is no time."""
        kept = self._compiled.keeps(self.hetero, placement.tobytes())
        compiling = 0.0 if kept else self._longest_compiling
        return _plan_rounds(self._deadline.left, left, compiling, self._one_round)

    def run(self, placement: NDArray[np.uint8], plan: _RoundPlan) -> _SplitTrial | None:
        """Runs the rounds of a placement.

        Args:
            placement: the placement, uint8 [groups]. Its memory is free again afterwards, unless the copy is kept.
            plan: the plan.

        Returns:
            The measured times; None if a device refuses to compile or run the placement.

        Raises:
            RuntimeError: a device fails in the rounds.
            OutOfTime: the deadline has come.
        """
        placed = self._compile(placement)
        if placed is None:
            return None
        self._longest_compiling = max(self._longest_compiling, placed.compiling)
        rivals = (placed, *self._single_devices)
        runs = np.array([[timed.run(refill=plan.refill) for timed in rivals] for _ in range(plan.rounds)])
        # Other programs only make runs slower, so a low quantile is closer to the undisturbed time.
        seconds = np.quantile(runs, 0.25, axis=0)
        devices_seconds = seconds[1:].sum()
        devices_us = float(devices_seconds) * 1e6 if plan.refill else None
        return _SplitTrial(placement, seconds / devices_seconds, devices_us)

    def _compile(self, placement: NDArray[np.uint8]) -> TimedModel | None:
        """Compiles a placement and runs it; None if a device refuses that."""
        set_affinities(self._model, self._problem.affinity(placement))
        try:
            split = placement.tobytes()
            return TimedModel(self._compiled, self._model, self.hetero, self._inputs, self._deadline, split)
        except RuntimeError:
            return None
        finally:
            remove_affinities(self._model)


def _sum_of_devices_us(trials: Sequence[_SplitTrial], problem: PlacementProblem, alone: Sequence[str]) -> float:
    """Determines the sum of the model's times on single devices to which relative times are scaled, µs.

    Args:
        trials: the measured placements.
        problem: the problem, whose costs count where caches were refilled in none of the trials.
        alone: names of the devices that run the whole model.
    """
    measured_us = [trial.devices_us for trial in trials if trial.devices_us is not None]
    if measured_us:
        return float(np.median(measured_us))
    singles = np.stack([problem.single(problem.devices.index(name)) for name in alone])
    return float(problem.evaluate(singles).latency_us.sum())


def _plan_rounds(seconds_left: float, placements: int, compiling: float, one_round: float) -> _RoundPlan | None:
    """Plans how many rounds measure a placement within its share of the time that is left.

    Further placements say more than further rounds of the same one, once there are enough.

    Args:
        seconds_left: seconds left for all placements.
        placements: number of placements left, each of which is compiled.
        compiling: seconds to compile one.
        one_round: seconds of a round.

    Returns:
        The plan; None if there is no time.
    """
    share = seconds_left / placements - compiling
    # Each run has another one before it, and there are two runs of the placement before the first round. A fifth of the
    # time is a reserve.
    affordable = 0.8 * share / one_round / 2 - 1
    if affordable >= _FEWEST_ROUNDS:
        usual = np.clip(_SECONDS / one_round / 2, _FEWEST_ROUNDS, _MOST_ROUNDS)
        return _RoundPlan(int(min(affordable, usual)), refill=True)
    if seconds_left < compiling + 2 * one_round:
        return None
    if seconds_left > compiling + 4 * _FEW_ROUNDS * one_round:
        return _RoundPlan(int(np.clip(affordable, _FEW_ROUNDS, _FEWEST_ROUNDS)), refill=True)
    return _RoundPlan(int(np.clip(share / one_round - 1, 1, _FEWEST_ROUNDS)), refill=False)
