"""Placements that need no search: one device for everything, and what HETERO does by itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.problem.problem import PlacementProblem


@dataclass(frozen=True)
class SingleDevice:
    """Everything on one device. Groups that it does not support make the placement infeasible."""

    device: str

    @property
    def name(self) -> str:
        return self.device

    def place(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        return problem.single(problem.devices.index(self.device))


@dataclass(frozen=True)
class HeteroDefault:
    """HETERO's own choice: the first device of the list takes all that it supports, the next one the rest, and so on.

    Source: openvinotoolkit/openvino, src/plugins/hetero/src/plugin.cpp, query_model_update.
    """

    name: str = "hetero"

    def place(self, problem: PlacementProblem) -> NDArray[np.uint8]:
        return problem.group_supported.argmax(axis=1).astype(np.uint8)
