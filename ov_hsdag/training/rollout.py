"""Batched rollouts: placements sampled from the policy, judged by the native simulator, and the losses that follow.

A batch is some training problems as one disjoint union of graphs. Clusters come from native parsing of detached edge
scores; a cluster's device is what is sampled. A group that does not run on its cluster's device takes the likeliest
device that it does run on, so every rollout respects support.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ov_hsdag import _native
from ov_hsdag.policy import placer
from ov_hsdag.policy.features import PolicyInput
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.training.network import GraphBatch, HSDAGNetwork, join_clusters
from ov_hsdag.training.search import energies, in_order

WORST_REWARD = -2.0
"""Reward of an infeasible placement, and of any that is more than e² times slower than the reference."""

COUNTERFACTUALS = 48
"""Clusters of a problem that `counterfactual_advantages` tries."""

# Log-probabilities below are those of devices that no member of a cluster runs on.
_IMPOSSIBLE = -1e8


@dataclass(frozen=True, eq=False)
class Example:
    """A training problem, ready for the network.

    Attributes:
        problem: the problem.
        x: its features.
        reference: what rewards are relative to, µs.
        target_score: of the searched placement, µs.
        target: weight of each device in each coarse group of the searched placement, sum 1, float32 [coarse, devices].
        allowed: devices that run at least one group of a coarse group, bool [coarse, devices].
    """

    problem: PlacementProblem
    x: PolicyInput
    reference: float
    target_score: float
    target: NDArray[np.float32]
    allowed: NDArray[np.bool_]

    @classmethod
    def of(
        cls, problem: PlacementProblem, x: PolicyInput, placement: NDArray[np.uint8], score: float, reference: float
    ) -> Example:
        """Makes the example of a problem.

        Args:
            problem: the problem.
            x: its features.
            placement: the searched one, uint8 [groups].
            score: of that placement, µs.
            reference: what rewards are relative to, µs.
        """
        placement = canonical(problem, in_order(problem, placement))
        shape = (len(x.node_x), len(problem.devices))
        target, allowed = np.zeros(shape), np.zeros(shape, bool)
        np.add.at(target, (x.coarse, placement), impact(problem))
        np.logical_or.at(allowed, x.coarse, problem.group_supported)
        return cls(problem, x, reference, score, target.astype(np.float32), allowed)


def impact(problem: PlacementProblem) -> NDArray[np.float64]:
    """Returns how much the device of a group matters: its share of the work and of possible transfers.

    Returns:
        Sum 1, float64 [groups].
    """
    time = np.where(problem.group_supported, problem.group_us, 0).sum(axis=1) / problem.group_supported.sum(axis=1)
    tensors = problem.tensors
    off = ~np.eye(len(problem.devices), dtype=bool)
    moved = problem.transfer_us[off].mean() + problem.transfer_us_per_byte[off].mean() * tensors.bytes
    transfer = np.zeros(problem.group_count)
    np.add.at(transfer, tensors.source, moved)
    np.add.at(transfer, tensors.consumers, moved[tensors.of_consumer])
    # A tensor that is dearer than the model's whole work is never cut: it must not drown the rest.
    transfer = np.minimum(transfer, time.sum() / 4)
    total = time / max(time.sum(), 1e-12) + 0.5 * transfer / max(transfer.sum(), 1e-12) + 0.25 / problem.group_count
    return np.asarray(total / total.sum())


def canonical(problem: PlacementProblem, placement: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Returns the placement with equal devices exchanged so that the first of them comes first in the graph.

    Args:
        problem: decides which devices are equal.
        placement: uint8 [groups].

    Returns:
        uint8 [groups], with the same costs.
    """
    result = np.array(placement, np.uint8)
    place = np.zeros(problem.group_count)
    np.maximum.at(place, problem.groups, np.arange(problem.graph.nodes))
    devices = len(problem.devices)
    for a in range(devices):
        for b in range(a + 1, devices):
            if not _interchangeable(problem, a, b):
                continue
            on_a, on_b = result == a, result == b
            if on_b.any() and (not on_a.any() or place[on_b].mean() < place[on_a].mean()):
                result[on_a], result[on_b] = b, a
    return result


def _interchangeable(problem: PlacementProblem, a: int, b: int) -> bool:
    order = np.arange(len(problem.devices))
    order[[a, b]] = b, a
    return all(
        np.array_equal(
            array, array[..., order] if array.ndim < 2 or len(array) != len(order) else array[order][:, order]
        )
        for array in (
            problem.node_us,
            problem.supported,
            problem.submodel_us,
            problem.memory_bytes,
            problem.transfer_us,
            problem.transfer_us_per_byte,
        )
    )


@dataclass(frozen=True, eq=False)
class Batch:
    """Examples as one disjoint union.

    Attributes:
        examples: the problems.
        graphs: their tensors.
        first: each problem's first node in the union, [problems + 1].
        first_edge: each problem's first edge, [problems + 1].
        allowed: devices that a node's groups run on, bool [n, D].
        target: searched placements, float32 [n, D].
        together: share of their impact that the ends of an edge have on the same devices there, float32 [e].
    """

    examples: tuple[Example, ...]
    graphs: GraphBatch
    first: NDArray[np.int64]
    first_edge: NDArray[np.int64]
    allowed: Tensor
    target: Tensor
    together: Tensor

    @classmethod
    def of(cls, examples: Sequence[Example]) -> Batch:
        """Returns the disjoint union of the examples."""
        graphs = GraphBatch.of([example.x for example in examples])
        devices = graphs.device_x.shape[1]
        target = torch.from_numpy(_stack([example.target for example in examples], devices))
        share = target / target.sum(1, keepdim=True).clamp(min=1e-12)
        producer, consumer = graphs.edge_index
        return cls(
            examples=tuple(examples),
            graphs=graphs,
            first=np.cumsum([0, *(len(example.x.node_x) for example in examples)]),
            first_edge=np.cumsum([0, *(example.x.edge_index.shape[1] for example in examples)]),
            allowed=torch.from_numpy(_stack([example.allowed for example in examples], devices)),
            target=target,
            together=(share[producer] * share[consumer]).sum(1).clamp(0, 1),
        )


def _stack(arrays: Sequence[NDArray[np.generic]], width: int) -> NDArray[np.generic]:
    return np.concatenate([np.pad(array, ((0, 0), (0, width - array.shape[1]))) for array in arrays])


@dataclass(frozen=True, eq=False)
class Policy:
    """The policy on a batch: clusters and log-probabilities of their devices.

    Attributes:
        cluster: cluster of each node, int64 [n].
        log_probability: float32 [c, D]; devices that no member runs on are practically impossible.
        edge_score: float32 [e].
    """

    cluster: Tensor
    log_probability: Tensor
    edge_score: Tensor

    @property
    def entropy(self) -> Tensor:
        """Mean entropy of the clusters' devices, in nats, a scalar."""
        p = self.log_probability.exp()
        return -(p * self.log_probability.clamp(min=-50)).sum(-1).mean()


def parse(network: HSDAGNetwork, batch: Batch, edge_score: Tensor, levels: int | None = None) -> tuple[Tensor, int]:
    """Parses each graph of the union into clusters (Song et al., ICLR 2024), by the native core and without gradient.

    Args:
        network: for its settings.
        batch: n nodes, e edges.
        edge_score: float32 [e].
        levels: how often clusters are merged, 0: every node for itself; None: as the network's configuration has it.

    Returns:
        Cluster of each node, int64 [n], and the number of clusters.
    """
    levels = network.config.levels if levels is None else levels
    if levels == 0:
        return torch.arange(batch.first[-1]), int(batch.first[-1])
    scores = edge_score.detach().numpy()
    clusters = []
    for number, example in enumerate(batch.examples):
        edges = slice(batch.first_edge[number], batch.first_edge[number + 1])
        cluster = _native.parse(
            len(example.x.node_x),
            example.x.edge_index,
            np.ascontiguousarray(scores[edges]),
            levels,
            network.config.min_clusters,
        )
        clusters.append(cluster)
    joined, count = join_clusters(clusters)
    return torch.from_numpy(joined), count


def run_policy(network: HSDAGNetwork, batch: Batch, cluster: Tensor | None = None, levels: int | None = None) -> Policy:
    """Runs encoder, parsing and placer on a batch.

    Args:
        network: the network.
        batch: n nodes.
        cluster: clusters of an earlier pass, int64 [n], to judge its samples again; None: parse.
        levels: of parsing, see `parse`.

    Returns:
        Clusters, and log-probabilities of their devices with a gradient.
    """
    h, edge_score = network.encode(batch.graphs)
    if cluster is None:
        cluster, count = parse(network, batch, edge_score, levels)
    else:
        count = int(cluster.max()) + 1
    logits = network.logits(h, edge_score, batch.graphs, cluster, count)
    runs = torch.zeros(logits.shape, dtype=torch.int64).index_add_(0, cluster, batch.allowed.long()) > 0
    logits = torch.where(runs, logits, logits.new_tensor(-1e9))
    return Policy(cluster, torch.log_softmax(logits, -1), edge_score)


def imitation_loss(policy: Policy, batch: Batch) -> Tensor:
    """Returns the cross entropy against the searched placements: problems count alike, groups by their impact."""
    # A coarse group can mix groups of different support: what its cluster cannot have is no mistake of the policy.
    log_probability = policy.log_probability[policy.cluster].clamp(min=-15)
    return -(batch.target * log_probability).sum() / len(batch.examples)


def edge_loss(policy: Policy, batch: Batch) -> Tensor:
    """Returns the binary cross entropy of edge scores against whether the searched placements keep both ends together.

    Parsing merges along the highest scores, so it should not merge what the answer cuts.
    """
    if not len(batch.together):
        return policy.edge_score.sum()
    return torch.nn.functional.binary_cross_entropy(policy.edge_score.clamp(1e-6, 1 - 1e-6), batch.together)


def expand(
    example: Example, actions: NDArray[np.int64], cluster: NDArray[np.int64], log_probability: NDArray[np.float32]
) -> NDArray[np.uint8]:
    """Expands devices of clusters to placements of groups; a group that cannot run there takes its likeliest device.

    Args:
        example: the problem.
        actions: int64 [samples, c].
        cluster: cluster of each of the problem's coarse groups, int64 [coarse].
        log_probability: float32 [c, D].

    Returns:
        uint8 [samples, groups].
    """
    supported = example.problem.group_supported
    # A batch has as many devices as its largest problem; those that this one lacks are never likely.
    devices = supported.shape[1]
    chosen = np.minimum(actions, devices - 1).astype(np.uint8)
    return placer.expand(chosen, log_probability[:, :devices], cluster[example.x.coarse], supported)


def greedy_scores(network: HSDAGNetwork, batch: Batch) -> NDArray[np.float64]:
    """Returns scores of the likeliest placements, µs, inf where infeasible, float64 [problems]."""
    with torch.no_grad():
        policy = run_policy(network, batch)
    actions = policy.log_probability.argmax(-1, keepdim=True).T.numpy()
    return np.asarray(_scores(policy, batch, actions)[0])


def _scores(policy: Policy, batch: Batch, actions: NDArray[np.int64]) -> NDArray[np.float64]:
    """Simulated scores, µs, inf where infeasible, float64 [samples, problems]."""
    cluster, log_probability = policy.cluster.numpy(), policy.log_probability.detach().numpy()
    columns = []
    for number, example in enumerate(batch.examples):
        nodes = slice(batch.first[number], batch.first[number + 1])
        columns.append(example.problem.scores(expand(example, actions, cluster[nodes], log_probability)))
    return np.stack(columns, axis=1)


@dataclass(frozen=True, eq=False)
class Rollouts:
    """Sampled placements of a batch.

    Attributes:
        cluster: the clusters that were placed, int64 [n].
        actions: device of each cluster, int64 [samples, c].
        log_probability: of each problem's sample when it was drawn, float32 [samples, problems].
        rewards: log(reference / score), float64 [samples, problems].
        advantages: rewards above the baseline, in standard deviations, float32 [samples, problems].
    """

    cluster: Tensor
    actions: Tensor
    log_probability: Tensor
    rewards: NDArray[np.float64]
    advantages: Tensor


def rewards(scores: NDArray[np.float64], references: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns log(reference / score), at least `WORST_REWARD`, which infeasible placements get.

    Args:
        scores: µs, inf where infeasible, float64 […, problems].
        references: µs, float64 [problems].

    Returns:
        float64 […, problems].
    """
    with np.errstate(divide="ignore"):
        return np.asarray(np.maximum(np.log(references) - np.log(np.maximum(scores, 1e-9)), WORST_REWARD))


def sample(
    policy: Policy, batch: Batch, samples: int, generator: torch.Generator, baselines: NDArray[np.float64] | None = None
) -> Rollouts:
    """Draws placements from the policy and scores them on the simulator.

    Args:
        policy: the network's output for `batch`.
        batch: the problems.
        samples: placements of each problem.
        generator: of the draws.
        baselines: moving mean reward of each problem, nan for a new one, float64 [problems]; None: the mean of the
            samples is the baseline.

    Returns:
        The samples, with rewards and advantages.
    """
    probability = policy.log_probability.detach().exp()
    actions = torch.multinomial(probability, samples, replacement=True, generator=generator).T.contiguous()
    references = np.array([example.reference for example in batch.examples])
    reward = rewards(_scores(policy, batch, actions.numpy()), references)
    mean = reward.mean(axis=0)
    # The moving mean steadies the few samples' own.
    baseline = mean if baselines is None else np.where(np.isnan(baselines), mean, 0.5 * (mean + baselines))
    advantage = (reward - baseline) / (reward.std(axis=0) + 0.02)
    with torch.no_grad():
        log_probability = joint_log_probability(policy, batch, actions)
    return Rollouts(policy.cluster, actions, log_probability, reward, torch.from_numpy(advantage.astype(np.float32)))


def joint_log_probability(policy: Policy, batch: Batch, actions: Tensor) -> Tensor:
    """Returns the log-probability of each problem's whole placement.

    Args:
        policy: the network's output.
        batch: the problems.
        actions: device of each cluster, int64 [samples, c].

    Returns:
        float32 [samples, problems], with a gradient.
    """
    chosen = policy.log_probability.gather(1, actions.T).T
    graph = torch.zeros(chosen.shape[1], dtype=torch.int64)
    of_node = batch.graphs.graph if batch.graphs.graph is not None else torch.zeros_like(policy.cluster)
    graph[policy.cluster] = of_node
    return chosen.new_zeros(chosen.shape[0], len(batch.examples)).index_add(1, graph, chosen)


def reinforce_loss(policy: Policy, batch: Batch, rollouts: Rollouts, clip: float | None = None) -> Tensor:
    """Returns the loss of REINFORCE or PPO, averaged over samples and problems.

    REINFORCE: Williams 1992, Machine Learning 8. PPO's clipped surrogate objective: Schulman et al. 2017,
    arXiv:1707.06347, equation 7.

    Args:
        policy: the network's output now, on the rollouts' clusters.
        batch: the problems.
        rollouts: the samples.
        clip: PPO's ε on the ratio of a problem's joint probabilities; None: REINFORCE.

    Returns:
        A scalar, with a gradient.
    """
    log_probability = joint_log_probability(policy, batch, rollouts.actions)
    if clip is None:
        return -(rollouts.advantages * log_probability).mean()
    ratio = (log_probability - rollouts.log_probability).clamp(-10, 10).exp()
    clipped = ratio.clamp(1 - clip, 1 + clip)
    return -torch.minimum(rollouts.advantages * ratio, rollouts.advantages * clipped).mean()


def counterfactual_advantages(
    policy: Policy, batch: Batch, actions: Tensor, generator: torch.Generator, most: int = COUNTERFACTUALS
) -> Tensor:
    """Returns counterfactual advantages: what each device of a cluster would change if all others kept theirs.

    An advantage is log(score before / score after) of the switch: COMA's (Foerster et al. 2018, AAAI, "Counterfactual
    Multi-Agent Policy Gradients") with clusters as agents, the simulator in place of a critic, and the
    present device as the baseline. A placement that exceeds a memory limit counts as slower by what it exceeds: steps
    towards one that does not have a positive advantage. One that cannot run counts as slower by e^-`WORST_REWARD`.

    Args:
        policy: clusters, and the devices that they may have.
        batch: the problems.
        actions: device of each cluster, int64 [c].
        generator: of the clusters that are tried, where a problem has more than `most`.
        most: clusters of each problem.

    Returns:
        float32 [c, D]; 0 for the devices that clusters have, for those they cannot have, and where nothing was tried.
    """
    cluster, log_probability = policy.cluster.numpy(), policy.log_probability.detach().numpy()
    advantages = np.zeros(log_probability.shape, np.float32)
    chosen = actions.numpy()
    for number, example in enumerate(batch.examples):
        nodes = slice(batch.first[number], batch.first[number + 1])
        members = np.unique(cluster[nodes])
        if len(members) > most:
            members = members[torch.randperm(len(members), generator=generator)[:most].numpy()]
        devices = len(example.problem.devices)
        pairs = [(c, d) for c in members.tolist() for d in range(devices)]
        pairs = [(c, d) for c, d in pairs if d != chosen[c] and log_probability[c, d] > _IMPOSSIBLE]
        if not pairs:
            continue
        rows = np.repeat(chosen[None], len(pairs) + 1, axis=0)
        where, to = np.array(pairs).T
        rows[np.arange(1, len(rows)), where] = to
        placements = expand(example, rows, cluster[nodes], log_probability)
        energy, _ = energies(example.problem, placements, 1)
        reward = rewards(energy, np.array(example.reference))
        advantages[where, to] = reward[1:] - reward[0]
    return torch.from_numpy(advantages)


def counterfactual_loss(policy: Policy, advantages: Tensor, unit: float = 0.05, clip: float = 3.0) -> Tensor:
    """Returns minus the expected counterfactual advantage of giving one cluster another device, mean over clusters.

    For devices drawn from the policy its gradient is REINFORCE's, with the sum over a cluster's devices in place of the
    sample (an all-action policy gradient): what other clusters' draws add to a reward, most of its variance, cancels.

    Args:
        policy: the network's output now.
        advantages: see `counterfactual_advantages`, float32 [c, D].
        unit: advantages are divided by it, so that small ones matter.
        clip: largest absolute value of an advantage, in units.

    Returns:
        A scalar, with a gradient.
    """
    return -(policy.log_probability.exp() * (advantages / unit).clamp(-clip, clip)).sum(-1).mean()
