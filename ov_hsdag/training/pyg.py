"""Training problems as graphs of PyTorch Geometric (extra `train`).

Any model of PyG can learn on them; `placement_of` turns its devices for nodes into a placement.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data, Dataset

from ov_hsdag.policy.features import PolicyInput, coarse_groups, policy_input
from ov_hsdag.problem.coarse import CoarseView
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.training.corpus import Corpus
from ov_hsdag.training.problems import SHARD, Target, Targets
from ov_hsdag.training.rollout import weighted


def to_data(problem: PlacementProblem, target: Target | None = None) -> Data:
    """Converts a placement problem to a graph of PyG, with searched placements as labels.

    It has n nodes (coarse groups), E edges and D devices; all floats are float32. Graphs with equally many devices can
    be put into one batch.

    Args:
        problem: the problem; each of its colocation groups has a device that supports it.
        target: searched placements of the problem; by default they are searched now.

    Returns:
        The graph, with these attributes. x: features of nodes [n, F]. edge_index: producing and consuming node of each
        edge, int64 [2, E]. edge_attr: features of edges [E, FE]. pair_x: features of each node on each device
        [n, D, FP]. device_x: features of devices [1, D, FD]. us: time of each node on each device, µs, inf where it
        does not run there [n, D]. y: the device that has most of each node in the best placement, int64 [n]. y_share:
        the share of each node on each device, mean over all good placements [n, D]. reference_us: the score of the best
        single device, or of the search where no single device is feasible, µs [1]. Without a feasible placement there
        are no y and y_share.
    """
    target = Target.of(problem, 0) if target is None else target
    features = policy_input(problem)
    us = CoarseView.of(problem, features.coarse).us
    data = Data(
        x=torch.from_numpy(features.node_x),
        edge_index=torch.from_numpy(features.edge_index),
        edge_attr=torch.from_numpy(features.edge_x),
        pair_x=torch.from_numpy(features.pair_x),
        device_x=torch.from_numpy(features.device_x)[None],
        us=torch.from_numpy(us.astype(np.float32)),
        reference_us=torch.tensor([target.reference], dtype=torch.float32),
    )
    if len(target.elites):
        shares = _shares(problem, features, target.elites)
        data.y = shares[0].argmax(dim=1)
        data.y_share = shares.mean(dim=0)
    return data


def _shares(problem: PlacementProblem, x: PolicyInput, elites: NDArray[np.uint8]) -> torch.Tensor:
    """Computes the share of each node that is on each device in each placement, weighted by `impact`.

    Args:
        problem: the problem.
        x: its features.
        elites: placements, uint8 [elites, groups].

    Returns:
        Shares, with a sum of 1 for each node, float32 [elites, n, D].
    """
    weights = torch.from_numpy(weighted(problem, x, elites))
    return weights / weights.sum(dim=2, keepdim=True).clamp(min=1e-12)


def placement_of(problem: PlacementProblem, devices: torch.Tensor) -> NDArray[np.uint8]:
    """Turns devices of the nodes of `to_data` into a placement.

    Args:
        problem: the problem.
        devices: device number of each node, int64 [n].

    Returns:
        The device number of each colocation group, uint8 [groups]; a group that its node's device does not run goes to
        the first device that does.
    """
    return problem.where_supported(devices.numpy()[coarse_groups(problem)].astype(np.uint8))


class ProblemDataset(Dataset):  # type: ignore[misc]
    """The first problems of a corpus that have a feasible placement, as graphs of `to_data`."""

    def __init__(self, corpus: Corpus, folder: Path, shards: int = 1) -> None:
        """Searches placements of the problems that the folder lacks, which takes some seconds for each shard.

        Args:
            corpus: the corpus.
            folder: folder in which placements are kept, as `pretrain` keeps its own.
            shards: number of shards of 16 problems each.
        """
        super().__init__()
        self._corpus = corpus
        targets = Targets(corpus, folder)
        all_targets = [target for shard in range(shards) for target in targets.shard(shard)]
        assert len(all_targets) == shards * SHARD
        self._problems = [(number, target) for number, target in enumerate(all_targets) if len(target.elites)]

    def len(self) -> int:
        """The number of problems."""
        return len(self._problems)

    def get(self, index: int) -> Any:
        """The graph of problem number `index`."""
        number, target = self._problems[index]
        problem = self._corpus.draw(number)
        assert problem is not None  # it has placements
        return to_data(problem, target)
