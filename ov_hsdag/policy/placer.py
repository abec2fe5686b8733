"""The placer of HSDAG, the learned policy.

Its steps are: features → encoder → parsing → placer → proposals → simulator → refinement → best. The nodes of the
network's graph are coarse groups; parsing merges them into clusters, and the placer gives each cluster logits of the
devices. A proposal is a placement that follows from a choice of a device for each cluster. There are n nodes, e edges,
c clusters and D devices.

Duan et al., "A structure-aware framework for learning device placements on computation graphs", NeurIPS 2024
(arXiv:2405.14185). Clusters come from a graph parsing network (Song et al., "Graph parsing networks", ICLR 2024), and
their features from DeepSets over their members (Zaheer et al., "Deep sets", NeurIPS 2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike

import numpy as np
from numpy.typing import NDArray

from ov_hsdag import _native
from ov_hsdag.placers.base import distinct
from ov_hsdag.placers.partitions import ranked
from ov_hsdag.placers.refine import refine
from ov_hsdag.policy.bundle import PolicyFolder
from ov_hsdag.policy.config import HSDAGConfig
from ov_hsdag.policy.features import PolicyInput, policy_input
from ov_hsdag.problem.problem import PlacementProblem

# Values that are added to one device's logits, to lean a greedy placement towards the device or away from it.
_LEANINGS = (-4.0, -2.0, -1.0, -0.5, 0.5, 1.0, 2.0, 4.0)

# Temperatures of the softmax from which placements are sampled.
_TEMPERATURES = (0.5, 1.0, 2.0)

_MOVES = 150_000  # moves of the local search from the best proposal; 10 to 50 ms on one core for some hundred groups

# Number of groups above which there are fewer moves and no samples. The last moves perturb the placement, and judging
# parts that wait for each other takes tens of milliseconds then. A greedy choice was better than all samples in 24 of
# 24 such problems.
_MOST_SAMPLED_GROUPS, _MOVES_OF_MANY = 1000, 120_000

# Limit of work for evaluating a proposal, see `PlacementProblem.evaluate`. One that is scattered over hundreds of
# submodels is not worth more.
_MOST_WORK = 200_000

# Nodes that the simulator may visit for all proposals together, see `ranked`.
_SIMULATED_NODES = 50_000

# Submodels up to which the best proposal is repaired if HETERO cannot run it. Each round of a repair moves a group.
_MOST_REPAIRED = 50


@dataclass(frozen=True, eq=False)
class ClusterLogits:
    """The policy's output for a problem."""

    logits: NDArray[np.float32]  # logits of devices for clusters [c, D]
    of_group: NDArray[np.integer]  # cluster of each co-location group [groups]
    # contiguous partition, [groups]: its groups keep their devices if their cluster is given the device that most of
    # the cluster's groups have in it. None without a partition
    partition: NDArray[np.uint8] | None

    @classmethod
    def of(
        cls, logits: NDArray[np.float32], cluster: NDArray[np.integer], x: PolicyInput, residual: bool
    ) -> ClusterLogits:
        """Translates clusters of an input's nodes to clusters of groups.

        Args:
            logits: logits of devices for clusters, float32 [c, D].
            cluster: cluster of each node, [n].
            x: the input.
            residual: whether groups may keep their devices of the contiguous partition, see `HSDAGConfig`.

        Returns:
            The logits with the clusters of groups.
        """
        return cls(logits, cluster[x.coarse], x.partition if residual else None)

    def expanded(self, problem: PlacementProblem, choices: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Expands choices for clusters to placements of groups, uint8 [batch, groups].

        A group that does not support its cluster's device takes the best supported one.

        Args:
            problem: the problem.
            choices: devices of clusters, uint8 [batch, c].
        """
        supported, logits, cluster = problem.group_supported, self.logits, self.of_group
        placements = choices[:, cluster]
        instead = np.where(supported, logits[cluster], -np.inf).argmax(1).astype(np.uint8)
        placements = np.where(supported[np.arange(len(cluster)), placements], placements, instead)
        if self.partition is not None:
            votes = np.bincount(cluster.astype(np.int64) * logits.shape[1] + self.partition, None, logits.size)
            stays = choices == votes.reshape(logits.shape).argmax(1)
            placements = np.where(stays[:, cluster], self.partition, placements)
        return placements


@dataclass(frozen=True)
class HSDAGPlacer:
    """Proposes placements by the policy, and refines the best by the simulator with a short local search."""

    policy: str | PathLike[str] | None = None  # name or folder of a policy; the shipped one by default
    samples: int = 5  # sampled placements for each temperature, for problems of up to `_MOST_SAMPLED_GROUPS` groups
    moves: int = _MOVES  # moves of the refinement; 0 for no refinement
    seed: int = 0  # seed of samples and refinement; the same problem always gets the same placement
    optional: bool = False  # whether placing continues with a warning if the policy fails
    name: str = "hsdag"

    def place(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        """Returns a placement, see `Placer.place`; it is never worse than a single device.

        Raises:
            UserError: the policy does not exist, or does not fit.
        """
        # One thread, because counting the cores takes longer than ranking.
        best = ranked(problem, self.propose(problem), 1, _MOST_WORK, nodes=_SIMULATED_NODES)[0]
        evaluation = problem.evaluate(best, most_work=_MOST_WORK)
        if evaluation.broken[0] and evaluation.submodels[0] <= _MOST_REPAIRED:
            best = problem.repair(best)
        if not self.moves:
            return best
        moves = min(self.moves, _MOVES_OF_MANY) if problem.group_count > _MOST_SAMPLED_GROUPS else self.moves
        refined, _ = refine(problem, best, max_moves=moves, seed=self.seed)
        return refined[0]

    def propose(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        """Lists single devices, then the policy's proposals by preference, each once; uint8 [proposals, groups]."""
        proposal = self.cluster_logits(problem)
        count = 0 if problem.group_count > _MOST_SAMPLED_GROUPS else self.samples
        samples = sample(proposal.logits, count, np.random.default_rng(self.seed))
        choices = distinct(np.concatenate([lean(proposal.logits), samples]))
        return distinct(np.concatenate([problem.singles, proposal.expanded(problem, choices)]))

    def cluster_logits(self, problem: PlacementProblem) -> ClusterLogits:
        """Runs the policy on a problem: features, encoder, parsing and placer.

        Raises:
            UserError: the policy does not exist, or does not fit.
        """
        policy = PolicyFolder.load(self.policy)
        x = policy_input(problem)
        h, edge_score = policy.encode(x)
        cluster = parse(policy.config, x, edge_score, policy.config.levels)
        return ClusterLogits.of(policy.place(x, h, edge_score, cluster), cluster, x, policy.config.residual)


def parse(config: HSDAGConfig, x: PolicyInput, edge_score: NDArray[np.float32], levels: int) -> NDArray[np.int32]:
    """Merges nodes into clusters along the edges with the highest scores (cpp_ext/parse.hpp).

    With `residual`, only edges within a part of the contiguous partition count, so that no cluster crosses two parts.

    Args:
        config: settings of the network.
        x: the features.
        edge_score: scores of edges, float32 [e].
        levels: number of times that parsing merges; 0 gives each node its own cluster.

    Returns:
        Cluster of each node, int32 [n].
    """
    if not levels:
        return np.arange(len(x.node_x), dtype=np.int32)
    edges = x.edge_index
    if config.residual:
        device = x.pair_x[..., -1].argmax(1)
        inside = device[edges[0]] == device[edges[1]]
        edges, edge_score = edges[:, inside], edge_score[inside]
    return _native.parse(len(x.node_x), edges, edge_score, levels, config.min_clusters)


def lean(logits: NDArray[np.float32], leanings: Sequence[float] = _LEANINGS) -> NDArray[np.uint8]:
    """Makes the greedy choice, then greedy choices that lean to or from each device in turn.

    A policy may be right about which clusters gain most from a device, and wrong about how many should have it (memory
    limits, balance). Then it is right with one of the leanings.

    Args:
        logits: logits of devices for clusters, float32 [c, D].
        leanings: values that are added to a device's logits.

    Returns:
        Devices of clusters, uint8 [1 + D * leanings, c].
    """
    devices = logits.shape[1]
    added = np.asarray(leanings, np.float32)[:, None, None] * np.eye(devices, dtype=np.float32)
    added = np.concatenate([np.zeros((1, devices), np.float32), added.reshape(-1, devices)])
    return (logits + added[:, None, :]).argmax(2).astype(np.uint8)


def sample(logits: NDArray[np.float32], count: int, generator: np.random.Generator) -> NDArray[np.uint8]:
    """Draws choices from the softmax of logits / temperature.

    Args:
        logits: logits of devices for clusters, float32 [c, D].
        count: number of draws for each temperature.
        generator: the source of random numbers.

    Returns:
        Devices of clusters, uint8 [draws, c].
    """
    noise = generator.gumbel(size=(len(_TEMPERATURES), count, *logits.shape)).astype(np.float32)
    scale = 1 / np.asarray(_TEMPERATURES, np.float32)[:, None, None, None]
    # The maximum of logits with Gumbel noise is a draw from their softmax.
    return (logits * scale + noise).argmax(3).reshape(-1, len(logits)).astype(np.uint8)
