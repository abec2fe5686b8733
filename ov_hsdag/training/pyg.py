"""Training problems in the form that PyTorch Geometric's models and loaders take (extra `train`).

Any model of PyG can learn on them; `placement_of` makes a placement of what it says of the nodes.
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
    """A placement problem as a graph of PyG, with the search's placements as labels.

    n nodes (coarse groups), E edges, D devices; all floats are float32. Graphs with equally many devices make batches.

    Args:
        problem: each of its colocation groups has a device that supports it.
        target: what a search found for the problem; None: it is searched now.

    Returns:
        x: features of nodes [n, F]; edge_index: producing and consuming node of each edge, int64 [2, E]; edge_attr:
        features of edges [E, FE]; pair_x: features of each node on each device [n, D, FP]; device_x: features of
        devices [1, D, FD]; us: time of each node on each device, µs, inf where it does not run there [n, D]; y: the
        device that has most of each node in the best placement, int64 [n]; y_share: the share of each node that each
        device has in the mean of all good placements [n, D]; reference_us: the score of the best single device, or of
        the search where none is feasible [1]. Without a feasible placement there are no y and y_share.
    """
    target = Target.of(problem, 0) if target is None else target
    found = policy_input(problem)
    us = CoarseView.of(problem, found.coarse).us
    data = Data(
        x=torch.from_numpy(found.node_x),
        edge_index=torch.from_numpy(found.edge_index),
        edge_attr=torch.from_numpy(found.edge_x),
        pair_x=torch.from_numpy(found.pair_x),
        device_x=torch.from_numpy(found.device_x)[None],
        us=torch.from_numpy(us.astype(np.float32)),
        reference_us=torch.tensor([target.reference], dtype=torch.float32),
    )
    if len(target.elites):
        shares = _shares(problem, found, target.elites)
        data.y = shares[0].argmax(dim=1)
        data.y_share = shares.mean(dim=0)
    return data


def _shares(problem: PlacementProblem, x: PolicyInput, elites: NDArray[np.uint8]) -> torch.Tensor:
    """The share of each node that each device has in each placement, [elites, n, D]."""
    weights = torch.from_numpy(weighted(problem, x, elites))
    return weights / weights.sum(dim=2, keepdim=True).clamp(min=1e-12)


def placement_of(problem: PlacementProblem, devices: torch.Tensor) -> NDArray[np.uint8]:
    """A placement of a problem's colocation groups, uint8 [groups], of devices for the nodes of `to_data`, int64 [n].

    A group that its node's device does not run takes the first that does.
    """
    return problem.where_supported(devices.numpy()[coarse_groups(problem)].astype(np.uint8))


class ProblemDataset(Dataset):  # type: ignore[misc]
    """The first problems of a corpus that have a feasible placement, each as `to_data` makes it when it is asked."""

    def __init__(self, corpus: Corpus, folder: Path, shards: int = 1) -> None:
        """Searches the problems' placements, where the folder does not have them yet: seconds for each shard.

        Args:
            corpus: draws the problems.
            folder: in which placements are kept, as `pretrain` keeps its own.
            shards: each of 16 problems.
        """
        super().__init__()
        self._corpus = corpus
        targets = Targets(corpus, folder)
        every = [target for shard in range(shards) for target in targets.shard(shard)]
        assert len(every) == shards * SHARD
        self._problems = [(number, target) for number, target in enumerate(every) if len(target.elites)]

    def len(self) -> int:
        """How many problems there are."""
        return len(self._problems)

    def get(self, index: int) -> Any:
        """The problem of a number."""
        number, target = self._problems[index]
        problem = self._corpus.draw(number)
        assert problem is not None  # it has placements
        return to_data(problem, target)
