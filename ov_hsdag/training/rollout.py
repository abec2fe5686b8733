"""Rollouts: runs the policy on a training problem, samples placements, and computes their returns by simulation.

Native parsing of detached edge scores makes the clusters, and a device is sampled for each of them. A group that does
not run on its cluster's device takes the likeliest device that it runs on, so every rollout respects support. A score
is a placement's objective in µs, and its return is log(reference / score): positive if it is better than the
reference, which is mostly the best single device.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ov_hsdag.policy import placer
from ov_hsdag.policy.features import PolicyInput
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.training.network import GraphBatch, HSDAGNetwork, tensors

WORST_RETURN = -2.0
"""Return of an infeasible placement, and of any that is more than e² times slower than the reference.

The bound keeps single bad samples from dominating the baseline and the gradient."""

COUNTERFACTUALS = 48
"""Number of clusters of a problem for which `counterfactual_advantages` tries other devices; it bounds its time."""

_MASKED = -1e9  # logit of a device that no member of a cluster runs on: its probability becomes 0


@dataclass(frozen=True, eq=False)
class Example:
    """A training problem of n coarse groups and D devices, prepared for the network.

    Attributes:
        problem: the problem.
        x: its features.
        inputs: `x` with torch tensors in place of arrays, see `ov_hsdag.training.network.tensors`.
        reference: score that returns are relative to, µs.
        target_score: score of the best searched placement, µs.
        elites: searched placements: the `impact` of the co-location groups that each coarse group has on each device,
            whose sum is 1 for a placement, float32 [elites, n, D].
        together: for each edge, the share of its ends' weight that is on the same devices in the searched placements,
            float32 [edges].
        allowed: whether a device runs at least one colocation group of a coarse group, bool [n, D].
    """

    problem: PlacementProblem
    x: PolicyInput
    inputs: Any
    reference: float
    target_score: float
    elites: Tensor
    together: Tensor
    allowed: Tensor

    @classmethod
    def of(
        cls, problem: PlacementProblem, x: PolicyInput, elites: NDArray[np.float32], score: float, reference: float
    ) -> Example:
        """Prepares a problem.

        Args:
            problem: the problem.
            x: its features.
            elites: weights of searched placements, see `weighted`, float32 [elites, n, D].
            score: score of the best searched placement, µs.
            reference: score that returns are relative to, µs.

        Returns:
            The example.
        """
        allowed = np.zeros(elites.shape[1:], bool)
        np.logical_or.at(allowed, x.coarse, problem.group_supported)
        share = elites / np.maximum(elites.sum(2, keepdims=True), 1e-12)
        source, target = x.edge_index
        together = (share[:, source] * share[:, target]).sum(2).mean(0).clip(0, 1)
        tensor = torch.from_numpy
        return cls(problem, x, tensors(x), reference, score, tensor(elites), tensor(together), tensor(allowed))


def weighted(problem: PlacementProblem, x: PolicyInput, placements: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Sums the `impact` of co-location groups by coarse group and device, for each placement.

    Args:
        problem: the problem.
        x: its features.
        placements: the placements, uint8 [elites, groups].

    Returns:
        `Example.elites`, float32 [elites, n, D].
    """
    result = np.zeros((len(placements), len(x.node_x), len(problem.devices)), np.float32)
    np.add.at(result, (np.arange(len(placements))[:, None], x.coarse[None], placements), impact(problem)[None])
    return result


def impact(problem: PlacementProblem) -> NDArray[np.float64]:
    """Estimates how much the device of each co-location group matters, by its work and its possible transfers.

    Returns:
        Weights with a sum of 1, float64 [groups].
    """
    time = np.where(problem.group_supported, problem.group_us, 0).sum(axis=1) / problem.group_supported.sum(axis=1)
    tensors_ = problem.tensors
    off = ~np.eye(len(problem.devices), dtype=bool)
    moved = problem.transfer_us[off].mean() + problem.transfer_us_per_byte[off].mean() * tensors_.bytes
    transfer = np.bincount(tensors_.source, moved, problem.group_count)
    np.add.at(transfer, tensors_.consumers, moved[tensors_.of_consumer])
    # A tensor whose transfer costs more than the whole work is never cut, so it must not outweigh everything else.
    transfer = np.minimum(transfer, time.sum() / 4)
    total = time / max(time.sum(), 1e-12) + 0.5 * transfer / max(transfer.sum(), 1e-12) + 0.25 / problem.group_count
    return np.asarray(total / total.sum())


@dataclass(frozen=True, eq=False)
class Policy:
    """The output of the policy network for a problem: c clusters, and log-probabilities of their devices.

    The nodes of the network's graph are the problem's n coarse groups.

    Attributes:
        cluster: cluster of each coarse group, int64 [n].
        log_probability: log-probability of each device for each cluster, float32 [c, D]; that of devices which no
            member runs on is very low.
        edge_score: score of each edge, float32 [edges].
        residual: see `HSDAGConfig.residual`.
    """

    cluster: Tensor
    log_probability: Tensor
    edge_score: Tensor
    residual: bool

    @property
    def entropy(self) -> Tensor:
        """The mean entropy of the clusters' devices, nats, a scalar."""
        return -(self.log_probability.exp() * self.log_probability.clamp(min=-50)).sum(-1).mean()


def run_policy(
    network: HSDAGNetwork, example: Example, cluster: Tensor | None = None, levels: int | None = None
) -> Policy:
    """Runs encoder, parsing and placer on one problem, with a gradient.

    Args:
        network: the policy's network.
        example: the problem.
        cluster: cluster of each coarse group from an earlier pass, see `run_policies`, int64 [n]; None to parse.
        levels: number of merging rounds of the parser, see `run_policies`; None for that of the network's settings.

    Returns:
        The policy on the problem.
    """
    return run_policies(network, [example], [cluster], levels)[0]


def run_policies(
    network: HSDAGNetwork,
    examples: Sequence[Example],
    clusters: Sequence[Tensor | None] | None = None,
    levels: int | None = None,
) -> list[Policy]:
    """Runs the policy on several problems at once, with a gradient: encoder, parser of clusters, and placer.

    Parsing has no gradient.

    Args:
        network: the policy's network.
        examples: the problems, all with the same number of devices.
        clusters: cluster of each coarse group, int64 [n], for each problem: those of an earlier pass, to get the
            probabilities of its samples under the present weights. None to parse the edge scores.
        levels: number of merging rounds of the parser; with 0 each coarse group is its own cluster. None for the number
            in the network's configuration.

    Returns:
        The policy on each problem.
    """
    inputs = examples[0].inputs if len(examples) == 1 else GraphBatch.of([example.inputs for example in examples])
    h, edge_score = network.encode(inputs)
    edge_scores = edge_score.split([example.inputs.edge_index.shape[1] for example in examples])
    given = clusters or [None] * len(examples)
    parsed = [
        parse(network, example, scores, levels) if cluster is None else cluster
        for example, scores, cluster in zip(examples, edge_scores, given, strict=True)
    ]
    counts = [int(cluster.max()) + 1 for cluster in parsed]
    firsts = itertools.accumulate(counts[:-1], initial=0)
    joined = torch.cat([cluster + first for cluster, first in zip(parsed, firsts, strict=True)])
    logits = network.logits(inputs, h, edge_score, joined).split(counts)
    return [
        policy_of(network, example, *outputs)
        for example, *outputs in zip(examples, parsed, logits, edge_scores, strict=True)
    ]


def policy_of(network: HSDAGNetwork, example: Example, cluster: Tensor, logits: Tensor, edge_score: Tensor) -> Policy:
    """Makes a `Policy` of the network's logits, in which devices that no member of a cluster runs on are masked.

    Args:
        network: the network.
        example: the problem.
        cluster: cluster of each coarse group, int64 [n].
        logits: logits of devices for clusters, float32 [c, D].
        edge_score: score of each edge, float32 [edges].

    Returns:
        Clusters and log-probabilities.
    """
    runs = torch.zeros(logits.shape).index_add_(0, cluster, example.allowed.float()) > 0
    log_probability = torch.log_softmax(logits.masked_fill(~runs, _MASKED), -1)
    return Policy(cluster, log_probability, edge_score, network.config.residual)


def parse(network: HSDAGNetwork, example: Example, edge_score: Tensor, levels: int | None = None) -> Tensor:
    """Parses a problem's nodes into clusters, without a gradient.

    Args:
        network: the network, for its settings.
        example: the problem.
        edge_score: score of each edge, float32 [edges].
        levels: number of merging rounds; by default that of the network's settings.

    Returns:
        The cluster of each node, int64 [n].
    """
    levels = network.config.levels if levels is None else levels
    cluster = placer.parse(network.config, example.x, edge_score.detach().numpy(), levels)
    return torch.from_numpy(cluster.astype(np.int64))


def expand(example: Example, actions: NDArray[np.int64], policy: Policy) -> NDArray[np.uint8]:
    """Turns devices of clusters into placements of co-location groups.

    Args:
        example: the problem.
        actions: device number of each cluster, int64 [samples, c].
        policy: clusters and log-probabilities.

    Returns:
        Device numbers of colocation groups, uint8 [samples, groups].
    """
    log_probability = policy.log_probability.detach().numpy()
    clusters = placer.ClusterLogits.of(log_probability, policy.cluster.numpy(), example.x, policy.residual)
    return clusters.expanded(example.problem, actions.astype(np.uint8))


def greedy_score(policy: Policy, example: Example) -> float:
    """The score of the policy's likeliest placement, µs, inf where it is infeasible."""
    return float(example.problem.scores(expand(example, policy.log_probability.argmax(-1).numpy()[None], policy))[0])


@dataclass(frozen=True, eq=False)
class Rollouts:
    """Placements that were sampled from the policy on a problem, from which all epochs of a step learn.

    Attributes:
        cluster: clusters that were placed, int64 [n].
        actions: device number of each cluster, int64 [samples, c].
        log_probability: log-probability of each sample when it was drawn, float32 [samples].
        returns: log(reference / score) of each sample, float64 [samples].
        advantages: returns less the baseline, in standard deviations, float32 [samples].
        counterfactual: see `counterfactual_advantages`, float32 [c, D].
    """

    cluster: Tensor
    actions: Tensor
    log_probability: Tensor
    returns: NDArray[np.float64]
    advantages: Tensor
    counterfactual: Tensor


def returns_of(scores: NDArray[np.float64], reference: float) -> NDArray[np.float64]:
    """Computes the returns log(reference / score), which are at least `WORST_RETURN`, as for infeasible placements.

    Args:
        scores: scores, µs, inf for infeasible placements, float64 [samples].
        reference: score of the reference, µs.

    Returns:
        The returns, float64 [samples].
    """
    return np.maximum(math.log(reference) - np.log(np.maximum(scores, 1e-9)), WORST_RETURN)


def sample(
    policy: Policy,
    example: Example,
    samples: int,
    generator: torch.Generator,
    baseline: float = math.nan,
    around_greedy: bool = True,
) -> Rollouts:
    """Draws placements from the policy and scores them by simulation.

    Args:
        policy: clusters and log-probabilities.
        example: the problem.
        samples: number of placements.
        generator: source of the random numbers.
        baseline: moving mean return of the problem; nan where it has none, then the samples' mean counts alone.
        around_greedy: whether counterfactual advantages are those around the likeliest placement, which counts in the
            end; otherwise around the first sample.

    Returns:
        The sampled placements with their returns and advantages.
    """
    probability = policy.log_probability.detach().exp()
    actions = torch.multinomial(probability, samples, replacement=True, generator=generator).T.contiguous()
    returns = returns_of(example.problem.scores(expand(example, actions.numpy(), policy)), example.reference)
    # The mean of few samples is noisy; the moving mean steadies it.
    mean = returns.mean()
    advantage = (returns - (mean if math.isnan(baseline) else 0.5 * (mean + baseline))) / (returns.std() + 0.02)
    around = policy.log_probability.argmax(-1) if around_greedy else actions[0]
    return Rollouts(
        cluster=policy.cluster,
        actions=actions,
        log_probability=joint_log_probability(policy, actions).detach(),
        returns=returns,
        advantages=torch.from_numpy(advantage.astype(np.float32)),
        counterfactual=counterfactual_advantages(policy, example, around, generator),
    )


def joint_log_probability(policy: Policy, actions: Tensor) -> Tensor:
    """Computes the log-probabilities of placements under a policy.

    Args:
        policy: clusters and log-probabilities.
        actions: device number of each cluster, int64 [samples, c].

    Returns:
        Log-probabilities, float32 [samples].
    """
    return policy.log_probability.gather(1, actions.T).sum(0)


def counterfactual_advantages(
    policy: Policy, example: Example, actions: Tensor, generator: torch.Generator, most: int = COUNTERFACTUALS
) -> Tensor:
    """Computes the advantages log(score before / score after) of moving single clusters to other devices.

    This is COMA's advantage (Foerster et al. 2018, AAAI, "Counterfactual Multi-Agent Policy Gradients"), with clusters
    as agents, the simulator in place of a critic, and the present device as the baseline. A placement that exceeds a
    memory limit counts as slower by the excess, so that steps towards a feasible one have a positive advantage.

    Args:
        policy: clusters and log-probabilities.
        example: the problem.
        actions: present device of each cluster, int64 [c].
        generator: source of the random numbers.
        most: number of clusters that are tried, drawn at random.

    Returns:
        The advantage of each cluster on each device, float32 [c, D]; 0 for present and impossible devices, and for
        clusters that are not tried.
    """
    possible = policy.log_probability.detach().numpy() > _MASKED / 2
    possible[np.arange(len(possible)), actions.numpy()] = False
    possible[torch.randperm(len(possible), generator=generator)[most:].numpy()] = False
    where, to = np.nonzero(possible)
    rows = np.repeat(actions.numpy()[None], len(where) + 1, axis=0)
    rows[np.arange(1, len(rows)), where] = to
    scores = _softened_scores(example.problem, expand(example, rows, policy))
    advantages = np.zeros(possible.shape, np.float32)
    found = returns_of(scores, example.reference)
    advantages[where, to] = found[1:] - found[0]
    return torch.from_numpy(advantages)


def _softened_scores(problem: PlacementProblem, placements: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Scores placements, with an excess of memory counted as time.

    Args:
        problem: the problem.
        placements: device numbers, uint8 [batch, groups].

    Returns:
        Scores, µs, inf for placements that break another rule than memory limits, float64 [batch].
    """
    result = problem.evaluate(placements)
    value = result.latency_us if problem.objective == "latency" else result.period_us
    over = np.maximum(result.memory_bytes / np.maximum(problem.memory_limits, 1) - 1, 0).sum(axis=1)
    return np.where(result.broken, np.inf, value * (1 + 3 * over + 0.05 * (over > 0)))
