"""Co-location groups: their chains, and the devices that support them.

A co-location group is a set of nodes that must share a device. The rules for which nodes these are stand in the native
core (cpp_ext/colocation.hpp), which the C++ library uses as well. `ComputationGraph.legality` has their results for a
graph. In a chain of groups, each group is the only successor of the one before, which is its only predecessor.
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
    """Merges chains of co-location groups into coarse groups, as the paper on HSDAG does (arXiv:2405.14185).

    Unlike in the paper, the weight of a merged group is limited. cpp_ext/coarsen.hpp has the algorithm.

    Args:
        graph: the graph of the nodes.
        groups: co-location group of each node by the rules of legality, numbered without gaps, int32 [nodes].
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
    """Finds the devices that support all nodes of each group.

    Args:
        groups: group of each node, numbered without gaps, int32 [nodes].
        supported: devices that each node can run on, bool [nodes, devices].

    Returns:
        Whether each device supports all nodes of each group, bool [groups, devices].
    """
    allowed = np.ones((int(groups.max()) + 1, supported.shape[1]), bool)
    np.logical_and.at(allowed, groups, supported)
    return allowed


def split_rule(openvino_version: str) -> int:
    """Returns the number of the rule by which HETERO of a release of OpenVINO cuts a model into submodels.

    Args:
        openvino_version: version of the release, such as "2026.4.1".

    Returns:
        A value of the native core's `SplitRule` (cpp_ext/hetero.hpp).
    """
    return _native.split_rule_of(openvino_version)
