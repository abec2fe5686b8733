"""Searched placements: what imitation learns from, and the best known that benchmarks measure against.

`teacher` takes the best of everything that is quick: single devices, HETERO's rule, minimum cuts (exact for additive
latency on two devices: Stone 1977, IEEE TSE 3), minimum cuts of Lagrangian relaxations, contiguous partitions, and
local search from the best of them. `anneal` is simulated annealing (Kirkpatrick et al. 1983, Science 220) in many
chains, for minutes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.placers.contiguous import Contiguous, contiguous_placements
from ov_hsdag.placers.mincut import MinCut
from ov_hsdag.placers.refine import refine
from ov_hsdag.placers.single import simple_placers
from ov_hsdag.problem.problem import PlacementProblem, topological_groups

SEARCH = 5
"""Version of `teacher`: another one may find other placements."""

# Sequences of devices in the order of the list: all subsets of up to four devices.
_SEQUENCES = 15

# Moves of the native refinement, in the teacher: a few milliseconds.
_MOVES = 20_000

# Steps of the subgradient method: the first one, and the ratio of successive ones.
_STEP, _SHRINK = 0.7, 0.8


@dataclass(frozen=True, eq=False)
class Found:
    """What a search found.

    Attributes:
        placement: uint8 [groups].
        score: of the placement, µs, inf where infeasible.
        method: that found it.
    """

    placement: NDArray[np.uint8]
    score: float
    method: str


def limits_bind(problem: PlacementProblem) -> bool:
    """Returns whether some placement may exceed a memory limit."""
    limited = np.isfinite(problem.memory_limits)
    if not limited.any():
        return False
    needs = problem.evaluate(problem.singles).memory_bytes
    return bool((needs.max(axis=1) * 1.2 > problem.memory_limits).any())


def simple(problem: PlacementProblem) -> list[tuple[str, NDArray[np.uint8]]]:
    """Returns placements that need no search, uint8 [groups], by name.

    They are each single device, HETERO's rule ("hetero"), and the fastest device of each group ("groups"), repaired.
    """
    found = [(placer.name, placer.place(problem)) for placer in simple_placers(problem)]
    found.append(("groups", problem.repair(problem.group_us.argmin(axis=1))))
    return found


def lagrangian_cuts(problem: PlacementProblem, rounds: int = 6) -> list[NDArray[np.uint8]]:
    """Returns minimum cuts of Lagrangian relaxations, by a subgradient method (Fisher 1981, Management Science 27).

    What couples the groups of a problem is relaxed into costs per group, which a minimum cut can take. For throughput
    the multiplier of a device's time rises with its share of the busiest device's work; under memory limits a group
    pays a multiplier for its weights on a device that is too full. Each round's cut is a candidate for the simulator.

    Args:
        problem: any; for latency without limits that bind there is nothing to relax, and the result is empty.
        rounds: updates of the multipliers.

    Returns:
        Placements, uint8 [groups] each, which may be infeasible.
    """
    devices = len(problem.devices)
    limited = limits_bind(problem)
    if problem.objective == "latency" and not limited:
        return []
    weights = np.zeros(problem.group_count)
    np.add.at(weights, problem.groups, problem.graph.weight_bytes.astype(float))
    scale = np.nanmean(np.where(np.isfinite(problem.group_us), problem.group_us, np.nan)) / max(weights.mean(), 1.0)
    time_multipliers, memory_multipliers = np.ones(devices), np.zeros(devices)
    step, found = _STEP, []
    for _ in range(rounds):
        placement = MinCut().place(_relaxed(problem, time_multipliers, memory_multipliers))
        found.append(placement)
        result = problem.evaluate(placement)
        if problem.objective == "throughput":
            busy = result.busy_us[0]
            time_multipliers *= np.exp(step * (busy / max(busy.max(), 1e-9) - busy.mean() / max(busy.max(), 1e-9)))
            time_multipliers /= time_multipliers.mean()
        if limited:
            limits = np.maximum(problem.memory_limits, 1)
            over = result.memory_bytes[0] / limits - 1
            slope = step * 2 * scale * np.where(over > 0, 1 + over, over)
            memory_multipliers = np.maximum(0, memory_multipliers + slope)
        step *= _SHRINK
    return found


def _relaxed(
    problem: PlacementProblem, time_multipliers: NDArray[np.float64], memory_multipliers: NDArray[np.float64]
) -> PlacementProblem:
    """The relaxation: latency without limits, its costs weighted by the multipliers [devices]."""
    link_multipliers = np.maximum(time_multipliers[:, None], time_multipliers[None, :])
    return replace(
        problem,
        objective="latency",
        node_us=problem.node_us * time_multipliers + problem.graph.weight_bytes[:, None] * memory_multipliers,
        transfer_us=problem.transfer_us * link_multipliers,
        transfer_us_per_byte=problem.transfer_us_per_byte * link_multipliers,
        memory_bytes=np.full(len(problem.devices), -1, np.int64),
    )


def teacher(problem: PlacementProblem, seed: int = 0, budget: int = 4000) -> Found:
    """Returns the best that the quick methods find, refined.

    Args:
        problem: the problem.
        seed: of the local search.
        budget: evaluations that the local search may spend; where limits bind, three times as many.

    Returns:
        The placement; its score is inf where nothing feasible was found.
    """
    limited = limits_bind(problem)
    methods, placements = _starts(problem, limited)
    scores = problem.scores(placements)
    first = int(scores.argmin())
    best = Found(placements[first], float(scores[first]), methods[first])
    refined, _ = refine(problem, placements, max_moves=_MOVES, seed=seed)
    best = _better(problem, best, refined, "refine")

    exact = problem.objective == "latency" and len(problem.devices) == 2 and not limited
    evaluations = budget // 4 if exact else 3 * budget if limited else budget
    if evaluations > 0:
        # Where limits bind, the best answers are often next to placements that exceed them.
        starts = np.concatenate([refined, placements])
        order = np.argsort(energies(problem, starts, 1)[0] if limited else problem.scores(starts), kind="stable")
        heat = 0.02 if limited else 0.003
        found = anneal(problem, starts[order[:4]], evaluations=evaluations, seed=seed, heat=heat)
        best = _better(problem, best, found.placement[None], "search")
        refined, _ = refine(problem, found.placement, max_moves=_MOVES, seed=seed)
        best = _better(problem, best, refined, "search")
    return best


def _starts(problem: PlacementProblem, limited: bool) -> tuple[list[str], NDArray[np.uint8]]:
    """Methods and their placements, uint8 [methods, groups], repaired where HETERO does not run them."""
    candidates = simple(problem)
    candidates.append(("mincut", MinCut().place(problem)))
    candidates += [("lagrangian", placement) for placement in lagrangian_cuts(problem)]
    if problem.objective == "throughput" or limited:
        candidates.append(("pipeline", Contiguous().place(problem)))
    placements = np.stack([problem.legalized(placement) for _, placement in candidates])
    return [method for method, _ in candidates], placements


def _better(problem: PlacementProblem, best: Found, placements: NDArray[np.uint8], method: str) -> Found:
    """The best of what was found before and `placements`, uint8 [batch, groups]."""
    scores = problem.scores(placements)
    first = int(scores.argmin())
    if scores[first] < best.score * (1 - 1e-9) or not np.isfinite(best.score):
        return Found(placements[first], float(scores[first]), method)
    return best


def in_order(problem: PlacementProblem, found: NDArray[np.uint8], tolerance: float = 0.05) -> NDArray[np.uint8]:
    """Returns a placement about as good as `found` whose parts follow the order of the device list, where there is one.

    For throughput it often hardly matters which device comes first in the graph. Answers that begin on any device have
    nothing in common that imitation could learn; those in the order of the list have.

    Args:
        problem: the problem.
        found: a searched placement, uint8 [groups].
        tolerance: by how much the result's score may be worse, as a share.

    Returns:
        uint8 [groups]; `found` itself for latency, and where there is none.
    """
    if problem.objective != "throughput" or (found == found[0]).all():
        return found
    starts = contiguous_placements(problem, in_list_order=True, sequences=_SEQUENCES, per_sequence=6)
    if not starts:
        return found
    placements = np.stack(starts)
    scores = problem.scores(placements)
    best = np.argsort(scores, kind="stable")[:3]
    refined, _ = refine(problem, placements[best], max_moves=_MOVES)
    close = problem.scores(found)[0] * (1 + tolerance)
    for candidates in (refined, placements[best]):
        values = problem.scores(candidates)
        first = int(values.argmin())
        if np.isfinite(values[first]) and values[first] <= close:
            return np.asarray(candidates[first], np.uint8)
    return found


def anneal(
    problem: PlacementProblem,
    starts: NDArray[np.uint8],
    *,
    evaluations: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    chains: int = 24,
    heat: float = 0.02,
    threads: int = 1,
) -> Found:
    """Simulated annealing: chains of moves from the given placements, judged by the simulator.

    A move puts a group, a coarse group, an interval of the topological order, or one side of a cut tensor on another
    device. A placement that exceeds a memory limit counts as slower by the share that it exceeds it by.

    Args:
        problem: the problem.
        starts: uint8 [starts, groups]; the chains are divided among them.
        evaluations: how many placements to judge.
        seconds: time to spend; one of the two.
        seed: decides all moves.
        chains: chains that run side by side.
        heat: first temperature, as a share of the score; it falls to a thousandth of that.
        threads: of the simulator.

    Returns:
        The best placement that was met; its method is "start" or "search".

    Raises:
        ValueError: both or none of `evaluations` and `seconds` are given.
    """
    if (evaluations is None) == (seconds is None):
        raise ValueError("expected one of 'evaluations' and 'seconds'")
    generator = np.random.default_rng(seed)
    mover = _Mover(problem, generator)
    current = np.array(starts, np.uint8)[np.arange(chains) % len(starts)]
    energy, _ = energies(problem, current, threads)
    scores = problem.scores(np.array(starts, np.uint8))
    best = Found(np.array(starts[scores.argmin()], np.uint8), float(scores.min()), "start")
    begin, done = time.perf_counter(), 0
    while True:
        share = done / evaluations if evaluations is not None else (time.perf_counter() - begin) / (seconds or 1.0)
        if share >= 1:
            return best
        proposed = current.copy()
        for chain in range(chains):
            mover.move(proposed[chain])
        new, scores = energies(problem, proposed, threads)
        done += chains
        temperature = heat * 10 ** (-3 * share)
        with np.errstate(invalid="ignore", over="ignore"):
            worse = (new - energy) / np.maximum(energy, 1e-9)
            accepted = (new <= energy) | (generator.random(chains) < np.exp(-worse / temperature))
        current[accepted], energy[accepted] = proposed[accepted], new[accepted]
        row = int(scores.argmin())
        if scores[row] < best.score:
            best = Found(proposed[row].copy(), float(scores[row]), "search")
        if generator.random() < chains / 4000:
            # The worst chain goes on where the best is.
            worst, leader = int(np.argmax(energy)), int(np.argmin(energy))
            current[worst], energy[worst] = current[leader], energy[leader]


def energies(
    problem: PlacementProblem, placements: NDArray[np.uint8], threads: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Evaluates placements for a search that may pass through infeasible ones.

    Args:
        problem: the problem.
        placements: uint8 [batch, groups].
        threads: of the simulator.

    Returns:
        Scores in which exceeding a memory limit counts as time, inf for what cannot run, µs, float64 [batch]; and the
        true scores, inf where infeasible, µs, float64 [batch].
    """
    result = problem.evaluate(placements, threads)
    value = result.latency_us if problem.objective == "latency" else result.period_us
    limits = np.maximum(problem.memory_limits, 1)
    over = np.maximum(result.memory_bytes / limits - 1, 0).sum(axis=1)
    energy = np.where(result.broken, np.inf, value * (1 + 3 * over + 0.05 * (over > 0)))
    return energy, result.score(problem.objective)


class _Mover:
    """Random moves of an annealing chain; they respect support."""

    def __init__(self, problem: PlacementProblem, generator: np.random.Generator) -> None:
        self.generator = generator
        self.supported = problem.group_supported
        self.devices = len(problem.devices)
        self.order = topological_groups(problem)
        self.coarse = problem.coarse
        by_coarse = np.argsort(self.coarse, kind="stable")
        self.coarse_members = np.split(by_coarse, np.cumsum(np.bincount(self.coarse))[:-1])
        self.rank = np.empty(problem.group_count, np.int64)
        self.rank[self.order] = np.arange(problem.group_count)
        tensors = problem.tensors
        self.source = tensors.source[tensors.of_consumer]
        self.target = tensors.consumers

    def move(self, placement: NDArray[np.uint8]) -> None:
        """Makes a random move, in place; uint8 [groups]."""
        generator, groups = self.generator, len(placement)
        kind = generator.random()
        if kind < 0.5 and len(self.source):
            # Where something is cut, one side may follow the other.
            cut = np.flatnonzero(placement[self.source] != placement[self.target])
            if len(cut):
                edge = cut[generator.integers(len(cut))]
                a, b = int(self.source[edge]), int(self.target[edge])
                mover, host = (a, b) if generator.random() < 0.5 else (b, a)
                self._put(placement, self._neighbourhood(placement, mover), int(placement[host]))
                return
        device = int(generator.integers(self.devices))
        if kind < 0.65:
            members = np.array([generator.integers(groups)])
        elif kind < 0.8:
            members = self.coarse_members[generator.integers(len(self.coarse_members))]
        else:
            length = int(np.exp(generator.uniform(0, np.log(groups + 1))))
            begin = int(generator.integers(groups))
            members = self.order[begin : begin + length]
        self._put(placement, members, device)

    def _neighbourhood(self, placement: NDArray[np.uint8], group: int) -> NDArray[np.int64]:
        """A group, its coarse group, or neighbours in the topological order, those on the same device; [members]."""
        kind = self.generator.random()
        if kind < 0.4:
            return np.array([group])
        if kind < 0.6:
            members = self.coarse_members[self.coarse[group]]
        else:
            length = int(np.exp(self.generator.uniform(0, np.log(min(len(placement), 64) + 1))))
            place = int(self.rank[group])
            before = int(self.generator.integers(2)) * length
            members = self.order[max(0, place - before) : place - before + length + 1]
        return np.asarray(members[placement[members] == placement[group]])

    def _put(self, placement: NDArray[np.uint8], members: NDArray[np.int64], device: int) -> None:
        allowed = members[self.supported[members, device]]
        placement[allowed] = device
