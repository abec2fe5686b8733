"""Which nodes must share a device, so that every placement compiles and computes the same outputs.

The rules stand in the native core (cpp_ext/colocation.hpp), which the C++ library uses as well; here they are asked
about a `ComputationGraph`, which computes them once (`ComputationGraph.legality`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ov_hsdag import _native
from ov_hsdag.model.graph import ComputationGraph


def constant_nodes(graph: ComputationGraph) -> NDArray[np.bool_]:
    """Constants and operations that rest on constants alone and give the same at each run. Returns bool [nodes]."""
    return graph.legality.constant


def replicable_producers(graph: ComputationGraph) -> NDArray[np.bool_]:
    """Nodes that must be where their consumers are, and are copied where these are on several devices.

    They are constants, nodes that rest on constants alone (decompressed weights), and shape arithmetic (ShapeOf …
    Gather … Concat → Reshape), without which a consumer's submodel has no static shapes. Returns bool [nodes].
    """
    return graph.legality.replicable


def colocation_constraints(graph: ComputationGraph) -> NDArray[np.int32]:
    """Pairs of nodes that must share a device, but replicable producers with their consumers, int32 [pairs, 2].

    The nodes of a state and all between its ReadValue and Assign, Results with their producers, both ends of a tensor
    that HETERO cannot hand over, Parameters with a consumer, and attention that the CPU plugin misreads when it is cut
    (docs/facts.md).
    """
    return graph.legality.colocated


def same_submodel_constraints(graph: ComputationGraph) -> NDArray[np.int32]:
    """Pairs of nodes that must share a submodel, not only a device, int32 [pairs, 2].

    HETERO splits devices further against cycles. Shape arithmetic and decompressed weights with their consumers
    (constants alone are never taken off), tensors that HETERO cannot hand over with theirs, and each ReadValue with its
    Assign.
    """
    return graph.legality.same_submodel


def colocation(graph: ComputationGraph) -> NDArray[np.int32]:
    """Colocation groups: nodes of a group must share a device, and any assignment of devices to groups is legal.

    Replicable producers are in the group of their consumers; `normalize` has copied those whose consumers are in
    several groups, otherwise they join these groups. Dense numbers, in the order of the groups' first nodes, int32
    [nodes].
    """
    return graph.legality.groups


def coarsen(
    graph: ComputationGraph,
    groups: NDArray[np.int32],
    supported: NDArray[np.bool_] | None = None,
    weight: NDArray[np.float64] | None = None,
    most: float = np.inf,
) -> NDArray[np.int32]:
    """HSDAG's co-location of chains on top of legality groups; dense coarse groups, int32 [nodes].

    Args:
        groups: dense legality groups, int32 [nodes].
        supported: devices that each node can run on, bool [nodes, devices]; chains join only groups that agree in it.
        weight: of each legality group, float64 [groups]; nothing weighs anything by default.
        most: what a chain may weigh; longer ones become several coarse groups.
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
