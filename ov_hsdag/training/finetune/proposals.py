"""Proposes the next placement to measure, by Thompson sampling over placements of the policy and of search.

The costs are corrected by factors drawn from the posterior, and every other time by the most likely factors. The
problem with these costs is called believed. Candidates are refined and ranked by the simulator with the believed costs,
and the best one that has not been measured is proposed. The settings say whether the policy, search or both propose
candidates. Fresh candidates are those of this step, in contrast to placements that have been measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ov_hsdag.calibration.correction import Fit
from ov_hsdag.devices.cpu import usable_cores
from ov_hsdag.placers.multilevel import Multilevel
from ov_hsdag.placers.refine import refine
from ov_hsdag.placers.registry import tuning_placers
from ov_hsdag.policy import placer
from ov_hsdag.policy.placer import ClusterLogits
from ov_hsdag.problem.problem import PlacementProblem, topological_groups
from ov_hsdag.training.finetune.settings import Settings
from ov_hsdag.training.finetune.state import State, Task
from ov_hsdag.training.network import HSDAGNetwork
from ov_hsdag.training.rollout import parse

Placements = NDArray[np.uint8]

_LEADERS = 3  # number of the best measured placements that refinement starts from as well

# Least distance (`Task.distance`) of a proposal from all measured placements, if any candidate has it: closer ones
# would tell little that is new.
_DIFFERENT = 0.003

_VARIATIONS = 64  # number of variations that are tried where all other candidates have been measured


@dataclass(frozen=True, eq=False)
class Proposal:
    """A placement to measure.

    Attributes:
        placement: the placement, uint8 [groups].
        source: see `Entry.source`.
        predicted: the ratio to the reference that the most likely correction predicts.
    """

    placement: Placements
    source: str
    predicted: float


def propose(state: State, task: Task, settings: Settings, fit: Fit) -> Proposal | None:
    """Proposes the most promising placement that has not been measured.

    Args:
        state: state of the run.
        task: constant data of the run.
        settings: settings of the run.
        fit: posterior of the corrections.

    Returns:
        The proposal; None where no new placement is found.
    """
    step = len(state.measured)
    generator = np.random.default_rng([settings.seed, 1, step])
    factors = fit.mean if step % settings.certain == 0 else fit.draw(generator)
    believed = task.corrector.apply(factors)

    fresh, origins, scores = _propose_candidates(believed, state, task, settings, generator)
    candidates, sources, scores = _refine_candidates(believed, fresh, origins, scores, state, settings, generator)
    measured = np.stack([entry.placement for entry in state.entries])
    index = _first_unmeasured(task, candidates, np.argsort(scores, kind="stable"), measured)
    if index is None:
        candidates, sources = _vary_leaders(believed, state, generator), ["measured"] * _VARIATIONS
        ranking = np.argsort(believed.scores(candidates, usable_cores()), kind="stable")
        index = _first_unmeasured(task, candidates, ranking, measured)
        if index is None:
            return None
    placement = candidates[index]
    predicted = task.corrector.log_ratio(fit.mean, task.corrector.terms(placement))
    return Proposal(placement, sources[index], float(np.exp(predicted[0])))


def policy_placements(
    network: HSDAGNetwork, task: Task, settings: Settings, generator: np.random.Generator
) -> Placements:
    """Makes the policy's placements, in the same way as the placer `hsdag`; single devices come first.

    The policy is run with two clusterings: parsed clusters, and each coarse group by itself.

    Args:
        network: the policy.
        task: constant data of the run.
        settings: settings of the run, which supply the number of samples.
        generator: source of the random numbers.

    Returns:
        The placements, uint8 [proposals, groups].
    """
    problem, x = task.problem, task.x
    example = task.example(problem, np.zeros((len(x.node_x), len(problem.devices)), np.float32), 1.0)
    batches = [problem.singles]
    with torch.no_grad():
        h, edge_score = network.encode(example.inputs)
        for levels in dict.fromkeys((network.config.levels, 0)):
            cluster = parse(network, example, edge_score, levels)
            logits = network.logits(example.inputs, h, edge_score, cluster).numpy()
            choices = np.concatenate([placer.lean(logits), placer.sample(logits, settings.draws, generator)])
            clusters = ClusterLogits.of(logits, cluster.numpy(), x, network.config.residual)
            batches.append(clusters.expanded(problem, choices))
    return np.concatenate(batches)


def _propose_candidates(
    believed: PlacementProblem, state: State, task: Task, settings: Settings, generator: np.random.Generator
) -> tuple[Placements, list[str], NDArray[np.float64]]:
    """Collects the placements of the proposers, each once; where none is feasible, repaired and random placements.

    Args:
        believed: the problem with corrected costs.
        state: state of the run, with the policy.
        task: constant data of the run.
        settings: settings of the run.
        generator: source of the random numbers.

    Returns:
        The placements, uint8 [candidates, groups], the source of each, and their scores with the believed costs, µs.
    """
    by_proposer: dict[str, Placements] = {}
    if settings.proposer in ("search", "both"):
        placers = tuning_placers()
        placers += [Multilevel(seed=seed) for seed in generator.integers(2**31, size=2).tolist()]
        by_proposer["search"] = np.stack([*believed.singles, *(placer.place(believed) for placer in placers)])
    if settings.proposer in ("policy", "both"):
        by_proposer["policy"] = policy_placements(state.network, task, settings, generator)
    fresh, first = np.unique(np.concatenate(list(by_proposer.values())), axis=0, return_index=True)
    origins = [name for name, placements in by_proposer.items() for _ in placements]
    fresh, origins = fresh[np.argsort(first)], [origins[index] for index in np.sort(first).tolist()]
    scores = believed.scores(fresh, usable_cores())
    if not np.isfinite(scores).any():
        repaired = [believed.repair(placement) for placement in fresh[: settings.refined]]
        fresh = np.concatenate([np.stack(repaired), believed.random(generator, settings.refined)])
        origins = origins[: len(repaired)] + origins[-1:] * settings.refined
        scores = believed.scores(fresh, usable_cores())
    return fresh, origins, scores


def _refine_candidates(
    believed: PlacementProblem,
    fresh: Placements,
    origins: list[str],
    scores: NDArray[np.float64],
    state: State,
    settings: Settings,
    generator: np.random.Generator,
) -> tuple[Placements, list[str], NDArray[np.float64]]:
    """Refines some of the fresh placements and the best measured ones.

    Args:
        believed: the problem with corrected costs.
        fresh: the fresh placements, uint8 [fresh, groups].
        origins: source of each of them, see `Entry.source`.
        scores: score of each of them with the believed costs, µs, inf where infeasible, float64 [fresh].
        state: state of the run, with the measured placements.
        settings: settings of the run.
        generator: source of the random numbers.

    Returns:
        The refined placements, then `fresh`, uint8 [candidates, groups]; the source of each, and their scores with the
        believed costs, µs.
    """
    leaders = _leaders(state)
    order = np.argsort(scores, kind="stable")
    # Most starts are the best by the simulator; two are random ones, as the simulator may be wrong.
    chosen = order[: max(settings.refined - 2, 1)]
    random_picks = generator.permutation(order[len(chosen) :])[: settings.refined - len(chosen)]
    starts = np.concatenate([fresh[chosen], fresh[random_picks], leaders])
    start_sources = [origins[index] for index in (*chosen.tolist(), *random_picks.tolist())]
    sources = [*start_sources, *["measured"] * len(leaders), *origins]
    refined, refined_scores = refine(believed, starts, threads=usable_cores(), seed=int(generator.integers(2**31)))
    return np.concatenate([refined, fresh]), sources, np.concatenate([refined_scores, scores])


def _leaders(state: State) -> Placements:
    """The best measured placements, single devices included, the best first, uint8 [leaders, groups]."""
    ranking = sorted(state.good, key=lambda entry: -entry.measurement.ratio)
    return np.stack([entry.placement for entry in ranking[:_LEADERS]])


def _vary_leaders(believed: PlacementProblem, state: State, generator: np.random.Generator) -> Placements:
    """Moves a run of groups of a leader to another device, `_VARIATIONS` times.

    Where all that the proposers find has been measured, what is most likely to be better lies near the best: a random
    placement has hundreds of submodels. The groups of a run are consecutive in a topological order, so a run is a part
    of the model between two cuts. Its length is drawn log-uniformly, from one group to all.

    Args:
        believed: the problem with corrected costs.
        state: state of the run, with the measured placements.
        generator: source of the random numbers.

    Returns:
        Placements that HETERO can run, uint8 [`_VARIATIONS`, groups].
    """
    leaders, groups, devices = _leaders(state), believed.group_count, len(believed.devices)
    order = topological_groups(believed)
    variations = []
    for leader in leaders[generator.integers(len(leaders), size=_VARIATIONS)]:
        length = round(groups ** generator.random())
        begin = int(generator.integers(groups - length + 1))
        part = order[begin : begin + length]
        device = int(generator.integers(devices))
        varied = leader.copy()
        varied[part[believed.group_supported[part, device]]] = device
        variations.append(believed.legalized(varied))
    return np.stack(variations)


def _first_unmeasured(
    task: Task, candidates: Placements, ranking: NDArray[np.int64], measured: Placements
) -> int | None:
    """Finds the best candidate that has not been measured, with a preference for those that differ from measured ones.

    Args:
        task: constant data of the run, which define the distance of placements.
        candidates: the candidates, uint8 [candidates, groups].
        ranking: indices of the candidates, the best first, int64 [candidates].
        measured: all measured placements, uint8 [measured, groups].

    Returns:
        Index of the first candidate in the ranking at a distance of at least `_DIFFERENT` from all measured placements;
        without any, of the first that is not among them; None if all have been measured.
    """
    first_unmeasured: int | None = None
    for index in ranking.tolist():
        if (measured == candidates[index]).all(axis=1).any():
            continue
        if task.distance(candidates[index], measured).min() >= _DIFFERENT:
            return index
        first_unmeasured = index if first_unmeasured is None else first_unmeasured
    return first_unmeasured
