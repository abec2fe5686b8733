"""Pins of a model that is placed: the operations that the caller keeps on a device while the rest is searched."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.model.pins import Pin, pinned_nodes, pinned_support
from ov_hsdag.problem.pricing import ModelAnalysis
from ov_hsdag.problem.problem import PlacementProblem


@dataclass(frozen=True, eq=False)
class ModelPins:
    """Pins, found in a model, and the devices that they leave to the search.

    Attributes:
        nodes: pin of each pinned node, by the node's number in the graph.
        allowed: devices that nodes may have, bool [nodes, devices].
        supported: devices that run nodes, bool [nodes, devices]; more than `allowed` where nodes are pinned.
    """

    nodes: Mapping[int, Pin]
    allowed: NDArray[np.bool_]
    supported: NDArray[np.bool_]

    @classmethod
    def of(cls, analysis: ModelAnalysis, pins: Sequence[Pin], original: Collection[str]) -> ModelPins:
        """Finds the nodes of pins.

        Args:
            analysis: of the model.
            pins: as the caller gave them.
            original: names of the model's operations before normalization, for messages.

        Returns:
            The pins of this model.

        Raises:
            UserError: a pin cannot be kept.
        """
        nodes = pinned_nodes(analysis.graph, pins, original)
        allowed = pinned_support(analysis.graph, analysis.supported, analysis.devices, nodes)
        return cls(nodes, allowed, analysis.supported)

    def __str__(self) -> str:
        return ", ".join(dict.fromkeys(f"'{pin}'" for pin in self.nodes.values()))

    def keep(self, problem: PlacementProblem) -> PlacementProblem:
        """The problem in which no placer can break a pin."""
        return replace(problem, supported=self.allowed) if self.nodes else problem

    def unpinned(self, problem: PlacementProblem) -> PlacementProblem:
        """The problem with all devices that run a node allowed for it: the inverse of `keep`."""
        return replace(problem, supported=self.supported) if self.nodes else problem
