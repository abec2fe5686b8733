"""Placements that need no search: one device for everything, and what HETERO does by itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.placers.base import Placer
from ov_hsdag.problem.problem import PlacementProblem


@dataclass(frozen=True)
class SingleDevice:
    """Everything on one device. Groups that it does not support make the placement infeasible."""

    device: str  # its name, which is the placer's name as well

    @property
    def name(self) -> str:
        """The device's name."""
        return self.device

    def place(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        """See `Placer.place`.

        Raises:
            ValueError: the problem has no such device.
        """
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
