"""Makes topological orders of a graph that another file of the same model could have.

Tests use them to check that a result does not depend on how a file numbers the nodes.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.model.graph import ComputationGraph


def random_order(graph: ComputationGraph, seed: int) -> NDArray[np.int64]:
    """A random topological order of a graph's nodes, int64 [nodes]."""
    ranks = np.random.default_rng(seed).random(graph.nodes)
    waits = np.diff(graph.input_ptr)
    readers: list[list[int]] = [[] for _ in range(graph.nodes)]
    for source, node in zip(graph.input_source.tolist(), graph.input_node.tolist(), strict=True):
        readers[source].append(node)
    ready = [(ranks[node], node) for node in np.flatnonzero(waits == 0).tolist()]
    heapify(ready)
    order = []
    while ready:
        node = heappop(ready)[1]
        order.append(node)
        for reader in readers[node]:
            waits[reader] -= 1
            if not waits[reader]:
                heappush(ready, (ranks[reader], reader))
    return np.array(order)


def breadth_first_order(graph: ComputationGraph) -> NDArray[np.int64]:
    """The breadth-first topological order of a graph's nodes, beginning with all sources, int64 [nodes]."""
    waits = np.diff(graph.input_ptr)
    readers: list[list[int]] = [[] for _ in range(graph.nodes)]
    for source, node in zip(graph.input_source.tolist(), graph.input_node.tolist(), strict=True):
        readers[source].append(node)
    ready = deque(np.flatnonzero(waits == 0).tolist())
    order = []
    while ready:
        order.append(ready.popleft())
        for reader in readers[order[-1]]:
            waits[reader] -= 1
            if waits[reader] == 0:
                ready.append(reader)
    return np.array(order)
