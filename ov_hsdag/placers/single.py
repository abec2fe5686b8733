"""Placements that need no search: one device for everything, what HETERO does by itself, and splits by hand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.model.graph import NodeKind
from ov_hsdag.placers.base import Placer
from ov_hsdag.problem.problem import PlacementProblem, topological_groups


@dataclass(frozen=True)
class SingleDevice:
    """Everything on one device. Groups that it does not support make the placement infeasible."""

    device: str  # its name, which is the placer's name as well

    @property
    def name(self) -> str:
        return self.device

    def place(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        """See `Placer.place`. Raises ValueError where the problem has no such device."""
        return problem.single(problem.devices.index(self.device))


@dataclass(frozen=True)
class HeteroDefault:
    """HETERO's own choice: the first device of the list takes all that it supports, the next one the rest, and so on.

    Source: openvinotoolkit/openvino, src/plugins/hetero/src/plugin.cpp, query_model_update.
    """

    name: str = "hetero"

    def place(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        """See `Placer.place`. Groups go where HETERO puts them; that it can order its submodels is not checked."""
        return problem.group_supported.argmax(axis=1).astype(np.uint8)


def simple_placers(problem: PlacementProblem) -> list[Placer]:
    """What users have without a placement: each single device of the problem, then HETERO's own choice."""
    return [*(SingleDevice(name) for name in problem.devices), HeteroDefault()]


@dataclass(frozen=True)
class NodeCount:
    """The first `share` of the operations on the first device; the others have equal parts of the rest, in order."""

    share: float  # 0 … 1

    @property
    def name(self) -> str:
        """ "nodes-0.7"."""
        return f"nodes-{self.share:g}"

    def place(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        """See `Placer.place`. A group that its device does not run goes to the first that does."""
        order = topological_groups(problem)
        operations = np.bincount(problem.groups, problem.graph.kinds == NodeKind.OP, problem.group_count)[order]
        # The middle of each group among all operations.
        done = (operations.cumsum() - operations / 2) / max(operations.sum(), 1)
        others = max(len(problem.devices) - 1, 1)
        rest = 1 + np.floor((done - self.share) / max(1 - self.share, 1e-9) * others)
        device = np.where(done < self.share, 0, np.clip(rest, 1, others)).astype(np.int64)
        placement = np.empty(problem.group_count, np.int64)
        placement[order] = np.minimum(device, len(problem.devices) - 1)
        return problem.repair(problem.where_supported(placement))
