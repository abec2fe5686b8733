"""Placers that need no search: one device for everything, HETERO's own choice, and splits as people make by hand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.model.graph import NodeKind
from ov_hsdag.placers.base import Placer
from ov_hsdag.problem.problem import PlacementProblem, topological_groups


@dataclass(frozen=True)
class SingleDevice:
    """Puts everything on one device. Groups that it does not support make the placement infeasible.

    Attributes:
        device: name of the device.
    """

    device: str

    @property
    def name(self) -> str:
        """The device's name."""
        return self.device

    def place(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        """Finds a placement, see `Placer.place`. Raises ValueError where the problem has no such device."""
        return problem.single(problem.devices.index(self.device))


@dataclass(frozen=True)
class HeteroDefault:
    """HETERO's own choice: the first device of the list takes all that it supports, the next one the rest, and so on.

    Source: openvinotoolkit/openvino, src/plugins/hetero/src/plugin.cpp, query_model_update.
    """

    name: str = "hetero"

    def place(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        """Finds a placement, see `Placer.place`; whether HETERO can order its submodels is not checked."""
        return problem.group_supported.argmax(axis=1).astype(np.uint8)


def simple_placers(problem: PlacementProblem) -> list[Placer]:
    """Placers of the choices that need no placement: each single device of the problem, then HETERO's own choice."""
    return [*(SingleDevice(name) for name in problem.devices), HeteroDefault()]


@dataclass(frozen=True)
class NodeCount:
    """Puts the first operations on the first device and equal parts of the rest on the others, as people do by hand.

    Attributes:
        share: share of the operations on the first device, 0 … 1.
    """

    share: float

    @property
    def name(self) -> str:
        """Name of the placer, such as "nodes-0.7"."""
        return f"nodes-{self.share:g}"

    def place(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        """Finds a placement, see `Placer.place`; a group that its device does not run goes to the first that does."""
        order = topological_groups(problem)
        operations = np.bincount(problem.groups, problem.graph.kinds == NodeKind.OP, problem.group_count)[order]
        # Share of all operations that come before the middle of each group.
        done = (operations.cumsum() - operations / 2) / max(operations.sum(), 1)
        other_devices = max(len(problem.devices) - 1, 1)
        rest = 1 + np.floor((done - self.share) / max(1 - self.share, 1e-9) * other_devices)
        device = np.where(done < self.share, 0, np.clip(rest, 1, other_devices)).astype(np.int64)
        placement = np.empty(problem.group_count, np.int64)
        placement[order] = np.minimum(device, len(problem.devices) - 1)
        return problem.repair(problem.where_supported(placement))
