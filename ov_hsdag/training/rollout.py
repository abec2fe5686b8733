"""Rollouts: the policy on a training problem, placements sampled from it, and what the native simulator says of them.

Clusters come from native parsing of detached edge scores; a cluster's device is what is sampled. A group that does not
run on its cluster's device takes the likeliest device that it does run on, so every rollout respects support.
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
"""Return of an infeasible placement, and of any that is more than e² times slower than the reference."""

COUNTERFACTUALS = 48
"""Clusters of a problem that `counterfactual_advantages` tries."""

_MASKED = -1e9  # logits of devices that no member of a cluster runs on


@dataclass(frozen=True, eq=False)
class Example:
    """A training problem of n coarse groups and D devices, ready for the network."""

    problem: PlacementProblem
    x: PolicyInput  # its features
    inputs: Any  # the same as tensors
    reference: float  # what returns are relative to, µs
    target_score: float  # of the best searched placement, µs
    # weight of each device in each coarse group of each searched placement, sum 1, float32 [elites, n, D]
    elites: Tensor
    together: Tensor  # share of their weight that the ends of an edge have on the same devices there, float32 [edges]
    allowed: Tensor  # devices that run at least one group of a coarse group, bool [n, D]

    @classmethod
    def of(
        cls, problem: PlacementProblem, x: PolicyInput, elites: NDArray[np.float32], score: float, reference: float
    ) -> Example:
        """The example of a problem; for the arguments see `Example`."""
        allowed = np.zeros(elites.shape[1:], bool)
        np.logical_or.at(allowed, x.coarse, problem.group_supported)
        share = elites / np.maximum(elites.sum(2, keepdims=True), 1e-12)
        source, target = x.edge_index
        together = (share[:, source] * share[:, target]).sum(2).mean(0).clip(0, 1)
        tensor = torch.from_numpy
        return cls(problem, x, tensors(x), reference, score, tensor(elites), tensor(together), tensor(allowed))


def weighted(problem: PlacementProblem, x: PolicyInput, placements: NDArray[np.uint8]) -> NDArray[np.float32]:
    """`Example.elites` of placements, uint8 [elites, groups]: groups count by their `impact`."""
    result = np.zeros((len(placements), len(x.node_x), len(problem.devices)), np.float32)
    np.add.at(result, (np.arange(len(placements))[:, None], x.coarse[None], placements), impact(problem)[None])
    return result


def impact(problem: PlacementProblem) -> NDArray[np.float64]:
    """How much the device of a group matters: its share of work and of possible transfers, sum 1, float64 [groups]."""
    time = np.where(problem.group_supported, problem.group_us, 0).sum(axis=1) / problem.group_supported.sum(axis=1)
    tensors_ = problem.tensors
    off = ~np.eye(len(problem.devices), dtype=bool)
    moved = problem.transfer_us[off].mean() + problem.transfer_us_per_byte[off].mean() * tensors_.bytes
    transfer = np.bincount(tensors_.source, moved, problem.group_count)
    np.add.at(transfer, tensors_.consumers, moved[tensors_.of_consumer])
    # A tensor that is dearer than the model's whole work is never cut: it must not drown the rest.
    transfer = np.minimum(transfer, time.sum() / 4)
    total = time / max(time.sum(), 1e-12) + 0.5 * transfer / max(transfer.sum(), 1e-12) + 0.25 / problem.group_count
    return np.asarray(total / total.sum())


@dataclass(frozen=True, eq=False)
class Policy:
    """The policy on a problem: clusters and log-probabilities of their devices."""

    cluster: Tensor  # of each node, int64 [n]
    log_probability: Tensor  # float32 [c, D]; devices that no member runs on are practically impossible
    edge_score: Tensor  # float32 [edges]
    residual: bool  # `HSDAGConfig.residual`

    @property
    def entropy(self) -> Tensor:
        """Mean entropy of the clusters' devices, in nats, a scalar."""
        return -(self.log_probability.exp() * self.log_probability.clamp(min=-50)).sum(-1).mean()


def run_policy(
    network: HSDAGNetwork, example: Example, cluster: Tensor | None = None, levels: int | None = None
) -> Policy:
    """`run_policies` of one problem."""
    return run_policies(network, [example], [cluster], levels)[0]


def run_policies(
    network: HSDAGNetwork,
    examples: Sequence[Example],
    clusters: Sequence[Tensor | None] | None = None,
    levels: int | None = None,
) -> list[Policy]:
    """Encoder, parsing and placer on several problems at once, with a gradient.

    Args:
        network: the policy's.
        examples: problems with equally many devices.
        clusters: of an earlier pass for each problem, int64 [n], to judge its samples again; None: parse.
        levels: how often parsing merges, 0: every node for itself; None: as configured.

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
    """The policy on a problem, of what the network says.

    Args:
        network: says it.
        example: the problem.
        cluster: of each node, int64 [n].
        logits: of devices for clusters, those that no member runs on among them, float32 [c, D].
        edge_score: float32 [edges].
    """
    runs = torch.zeros(logits.shape).index_add_(0, cluster, example.allowed.float()) > 0
    log_probability = torch.log_softmax(logits.masked_fill(~runs, _MASKED), -1)
    return Policy(cluster, log_probability, edge_score, network.config.residual)


def parse(network: HSDAGNetwork, example: Example, edge_score: Tensor, levels: int | None = None) -> Tensor:
    """Cluster of each node, int64 [n]; for the arguments see `run_policy`."""
    levels = network.config.levels if levels is None else levels
    cluster = placer.parse(network.config, example.x, edge_score.detach().numpy(), levels)
    return torch.from_numpy(cluster.astype(np.int64))


def expand(example: Example, actions: NDArray[np.int64], policy: Policy) -> NDArray[np.uint8]:
    """Devices of clusters, int64 [samples, c], as placements of groups, uint8 [samples, groups]."""
    log_probability = policy.log_probability.detach().numpy()
    clusters = placer.ClusterLogits.of(log_probability, policy.cluster.numpy(), example.x, policy.residual)
    return clusters.expanded(example.problem, actions.astype(np.uint8))


def greedy_score(policy: Policy, example: Example) -> float:
    """The score of the likeliest placement, µs, inf where infeasible."""
    return float(example.problem.scores(expand(example, policy.log_probability.argmax(-1).numpy()[None], policy))[0])


@dataclass(frozen=True, eq=False)
class Rollouts:
    """What was sampled from the policy on a problem; updates of later epochs learn from it again."""

    cluster: Tensor  # the clusters that were placed, int64 [n]
    actions: Tensor  # device of each cluster, int64 [samples, c]
    log_probability: Tensor  # of each sample when it was drawn, float32 [samples]
    returns: NDArray[np.float64]  # log(reference / score), float64 [samples]
    advantages: Tensor  # returns above the baseline, in standard deviations, float32 [samples]
    counterfactual: Tensor  # see `counterfactual_advantages`


def returns_of(scores: NDArray[np.float64], reference: float) -> NDArray[np.float64]:
    """log(reference / score), at least `WORST_RETURN`, which infeasible placements (inf) get; µs."""
    return np.maximum(math.log(reference) - np.log(np.maximum(scores, 1e-9)), WORST_RETURN)


def sample(
    policy: Policy,
    example: Example,
    samples: int,
    generator: torch.Generator,
    baseline: float = math.nan,
    around_greedy: bool = True,
) -> Rollouts:
    """Draws placements from the policy and scores them on the simulator.

    baseline: moving mean return of the problem; nan: the mean of the samples. around_greedy: counterfactual advantages
    are those around the greedy choice, which is what counts in the end, or else around the first sample.
    """
    probability = policy.log_probability.detach().exp()
    actions = torch.multinomial(probability, samples, replacement=True, generator=generator).T.contiguous()
    returns = returns_of(example.problem.scores(expand(example, actions.numpy(), policy)), example.reference)
    # The moving mean steadies the few samples' own.
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
    """Log-probability of each placement, float32 [samples]. actions: device of each cluster, int64 [samples, c]."""
    return policy.log_probability.gather(1, actions.T).sum(0)


def counterfactual_advantages(
    policy: Policy, example: Example, actions: Tensor, generator: torch.Generator, most: int = COUNTERFACTUALS
) -> Tensor:
    """log(score before / score after) for each cluster on each device, all others keeping theirs; float32 [c, D].

    COMA's advantage (Foerster et al. 2018, AAAI, "Counterfactual Multi-Agent Policy Gradients") with clusters as
    agents, the simulator in place of a critic, and the present device, int64 [c], as the baseline. A placement that
    exceeds a memory limit counts as slower by what it exceeds: steps towards one that does not have a positive
    advantage. 0 for the devices that clusters have or cannot have, and for clusters beyond `most`, which are drawn.
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
    """Scores in which exceeding a memory limit counts as time, inf for what cannot run, µs, float64 [batch]."""
    result = problem.evaluate(placements)
    value = result.latency_us if problem.objective == "latency" else result.period_us
    over = np.maximum(result.memory_bytes / np.maximum(problem.memory_limits, 1) - 1, 0).sum(axis=1)
    return np.where(result.broken, np.inf, value * (1 + 3 * over + 0.05 * (over > 0)))
