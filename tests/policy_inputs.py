"""Random inputs of the policy network, and a plain parsing, for tests that need no model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.policy.features import PolicyInput

WIDTHS = {"node": 23, "edge": 5, "pair": 7, "device": 6}


def random_input(generator: np.random.Generator, nodes: int, devices: int, edges: int | None = None) -> PolicyInput:
    """A random DAG with normal features."""
    edges = int(1.4 * nodes) if edges is None else edges
    ends = np.sort(generator.integers(0, nodes, (2, edges)), axis=0)
    edge_index = np.unique(ends[:, ends[0] < ends[1]], axis=1).astype(np.int64)

    def normal(*shape: int) -> NDArray[np.float32]:
        return generator.standard_normal(shape).astype(np.float32)

    return PolicyInput(
        node_x=normal(nodes, WIDTHS["node"]),
        edge_index=edge_index,
        edge_x=normal(edge_index.shape[1], WIDTHS["edge"]),
        pair_x=normal(nodes, devices, WIDTHS["pair"]),
        device_x=normal(devices, WIDTHS["device"]),
        coarse=np.arange(nodes, dtype=np.int32),
        partition=generator.integers(0, devices, nodes).astype(np.uint8),
    )


def random_clusters(generator: np.random.Generator, nodes: int) -> NDArray[np.int32]:
    """Clusters of about three nodes, numbered without gaps."""
    drawn = generator.integers(0, max(nodes // 3, 1), nodes)
    return np.unique(drawn, return_inverse=True)[1].astype(np.int32)
