"""Pins of a model that is placed: the operations that the caller keeps on a device while the rest is searched.

A pin (`ov_hsdag.model.pins.Pin`) is a pattern of names or types with a device. `ModelPins` are the nodes of one model
that match pins.
"""

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
    """The pinned nodes of a model, and the devices that pins leave for the search to choose from.

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
        """Finds the nodes that match pins.

        Args:
            analysis: analysis of the model.
            pins: the pins of the caller.
            original: names of the model's operations before normalization, for messages.

        Returns:
            The pins of this model.

        Raises:
            UserError: a pin matches no node, two pins contradict each other, or a device does not run what is pinned to
                it.
        """
        nodes = pinned_nodes(analysis.graph, pins, original)
        allowed = pinned_support(analysis.graph, analysis.supported, analysis.devices, nodes)
        return cls(nodes, allowed, analysis.supported)

    def __str__(self) -> str:
        """The pins as users write them, each in quotes, separated by commas."""
        return ", ".join(dict.fromkeys(f"'{pin}'" for pin in self.nodes.values()))

    def keep(self, problem: PlacementProblem) -> PlacementProblem:
        """Returns the problem with the pins as constraints: each node is supported on its `allowed` devices alone."""
        return replace(problem, supported=self.allowed) if self.nodes else problem

    def unpinned(self, problem: PlacementProblem) -> PlacementProblem:
        """Returns the problem without the pins: each node is supported wherever it runs. It undoes `keep`."""
        return replace(problem, supported=self.supported) if self.nodes else problem
