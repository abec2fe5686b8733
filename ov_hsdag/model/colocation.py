"""Groups of nodes that share a device, which devices run them, and chains of them.

The rules of what must share a device stand in the native core (cpp_ext/colocation.hpp), which the C++ library uses as
well; `ComputationGraph.legality` has what they say of a graph.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ov_hsdag import _native
from ov_hsdag.model.graph import ComputationGraph


def coarsen(
    graph: ComputationGraph,
    groups: NDArray[np.int32],
    supported: NDArray[np.bool_] | None = None,
    weight: NDArray[np.float64] | None = None,
    most: float = np.inf,
) -> NDArray[np.int32]:
    """HSDAG's co-location of chains on top of legality groups (int32 [nodes]); dense coarse groups, int32 [nodes].

    supported: devices that each node can run on, bool [nodes, devices]; chains join only groups that agree in it.
    weight: of each legality group, float64 [groups], 0 by default; a chain of more than `most` becomes several.
    """
    labels = np.zeros(int(groups.max()) + 1, np.int64)
    if supported is not None:
        allowed = group_support(groups, supported)
        labels = allowed @ (np.int64(1) << np.arange(allowed.shape[1], dtype=np.int64))
    return _native.colocate_chains(
        graph.native, groups, labels, np.zeros(len(labels)) if weight is None else weight, most
    )


def group_support(groups: NDArray[np.int32], supported: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Devices that support every node of a group. [nodes], [nodes, devices] → bool [groups, devices]."""
    allowed = np.ones((int(groups.max()) + 1, supported.shape[1]), bool)
    np.logical_and.at(allowed, groups, supported)
    return allowed


def split_rule(openvino_version: str) -> int:
    """Which of HETERO's splitting rules a release of OpenVINO ("2026.4.1-…") has (native `SplitRule`)."""
    return _native.split_rule_of(openvino_version)
