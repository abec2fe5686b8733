"""Groups of nodes that share a device, the devices that support them, and chains of groups.

The rules for which nodes must share a device are in the native core (cpp_ext/colocation.hpp), which the C++ library
uses as well. `ComputationGraph.legality` has their results for a graph.
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
    """Merges chains of co-location groups into coarse groups, as HSDAG does.

    Args:
        graph: the graph of the nodes.
        groups: co-location group of each node by the rules of legality, int32 [nodes].
        supported: devices that each node can run on, bool [nodes, devices]. A chain joins only groups that the same
            devices support. By default every device supports every node.
        weight: weight of each group, float64 [groups]; 0 by default.
        most: largest total weight of a chain; a heavier chain becomes several. No limit by default.

    Returns:
        Coarse group of each node, numbered without gaps, int32 [nodes].
    """
    labels = np.zeros(int(groups.max()) + 1, np.int64)
    if supported is not None:
        allowed = group_support(groups, supported)
        labels = allowed @ (np.int64(1) << np.arange(allowed.shape[1], dtype=np.int64))
    return _native.colocate_chains(
        graph.native, groups, labels, np.zeros(len(labels)) if weight is None else weight, most
    )


def group_support(groups: NDArray[np.int32], supported: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Finds the devices that support every node of a group.

    Args:
        groups: group of each node, int32 [nodes].
        supported: devices that each node can run on, bool [nodes, devices].

    Returns:
        Whether a device supports all nodes of a group, bool [groups, devices].
    """
    allowed = np.ones((int(groups.max()) + 1, supported.shape[1]), bool)
    np.logical_and.at(allowed, groups, supported)
    return allowed


def split_rule(openvino_version: str) -> int:
    """Returns the splitting rule of HETERO in a release of OpenVINO such as "2026.4.1" (native `SplitRule`)."""
    return _native.split_rule_of(openvino_version)
