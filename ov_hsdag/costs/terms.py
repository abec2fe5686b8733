"""The terms of the cost model, in one list: what each is of, its unit, and what sums, corrections and files do with it.

Problems, pricing, measured costs and corrections follow this list. The formulas of a term stand where times are
computed: its estimate from a profile in `ov_hsdag.costs.cost_model`, its share of a placement's time in the simulator
(cpp_ext/simulate.cpp). docs/contributing/adding-a-cost-term.md leads through a new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ov_hsdag.model.graph import Metadata, array

Part = Literal["nodes", "fusions", "submodels", "transfers"]
"""A part of the time of a placement: the simulator tells these apart, and corrections have a factor for each."""

PARTS: Mapping[Part, str] = {
    "nodes": "operations",
    "fusions": "broken fusions",
    "submodels": "calls of submodels",
    "transfers": "transfers",
}
"""Phrases for users by part, in the order of `Term` in cpp_ext/simulate.hpp."""

PhaseMean = Literal["mean", "by bytes", "of most", "where fused alike"]
"""How the costs of a workload's phases make those of a mean inference:

- "mean": the mean over its inferences.
- "by bytes": the mean over the bytes that all tensors of its inferences have.
- "of most": the value of the phase with most inferences, for values that are no times.
- "where fused alike": the mean, with 0 for phases that fuse a node with another one than "of most" says.
"""


@dataclass(frozen=True)
class CostTerm:
    """A term of the cost model.

    Attributes:
        name: name of the attribute of `PlacementProblem`; it ends with the unit.
        unit: "µs", "µs per byte", or "node" for the number of a node, -1 for none.
        axes: meaning of each axis: "nodes" or "devices"; the last one is always "devices".
        part: part of a placement's time that it counts to. A correction of that part multiplies it.
        phase_mean: how phases of a workload are averaged.
        optional: whether problems can lack it, as None: nothing has that cost.
        later: whether files of the first releases lack it, see `ov_hsdag.model.graph.array`.
        key: its name in files; "" for its own name.
    """

    name: str
    unit: Literal["µs", "µs per byte", "node"]
    axes: tuple[str, ...]
    part: Part
    phase_mean: PhaseMean = "mean"
    optional: bool = False
    later: bool = False
    key: str = ""

    @property
    def dtype(self) -> type[np.generic]:
        """Data type of its arrays: int32 for numbers of nodes, else float64."""
        return np.int32 if self.unit == "node" else np.float64

    @property
    def of_nodes(self) -> bool:
        """Whether each node has its own value; else it is a cost of boundaries."""
        return self.axes[0] == "nodes"

    @property
    def file_key(self) -> str:
        """Name in files."""
        return self.key or self.name


TERMS: tuple[CostTerm, ...] = (
    CostTerm("node_us", "µs", ("nodes", "devices"), "nodes"),
    # The node that a node is fused with. It is no time itself, but says when the next term counts.
    CostTerm("fused_with", "node", ("nodes", "devices"), "fusions", "of most", optional=True),
    CostTerm(
        "fusion_penalty_us", "µs", ("nodes", "devices"), "fusions", "where fused alike", optional=True, key="torn_us"
    ),
    CostTerm("submodel_us", "µs", ("devices",), "submodels"),
    CostTerm("transfer_us", "µs", ("devices", "devices"), "transfers"),
    CostTerm("transfer_us_per_byte", "µs per byte", ("devices", "devices"), "transfers", "by bytes"),
)
"""All terms. Files have them in this order."""

NODE_TERMS = tuple(term for term in TERMS if term.of_nodes)
"""Terms of nodes: a device is measured by itself."""

BOUNDARY_TERMS = tuple(term for term in TERMS if not term.of_nodes)
"""Terms of partition boundaries: they are measured for all devices together."""


def cost_array(name: str) -> Metadata:
    """Metadata of the field of `PlacementProblem` that has the term of this name, see `ov_hsdag.model.graph.array`."""
    (term,) = (one for one in TERMS if one.name == name)
    return array(*term.axes, dtype=term.dtype, key=term.key or None, later=term.later)


def no_costs(nodes: int, devices: int) -> dict[str, Any]:
    """Zeros for every term that a problem must have, by name, float64, for a number of nodes and of devices."""
    sizes = {"nodes": nodes, "devices": devices}
    return {term.name: np.zeros([sizes[axis] for axis in term.axes]) for term in TERMS if not term.optional}
