"""What the native core computes for policies, in the plain way: structural features and parsing by networkx."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray


def reference_structure(nodes: int, edge_index: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """What `_native.structure_features` computes exactly, for a graph without cycles."""
    graph = nx.DiGraph()
    graph.add_nodes_from(range(nodes))
    graph.add_edges_from(edge_index.T.tolist())
    order = list(nx.lexicographical_topological_sort(graph))
    position, depth, height = (np.zeros(nodes, np.int32) for _ in range(3))
    position[order] = np.arange(nodes)
    for node in order:
        depth[node] = max((depth[other] + 1 for other in graph.predecessors(node)), default=0)
    for node in reversed(order):
        height[node] = max((height[other] + 1 for other in graph.successors(node)), default=0)
    closeness = nx.closeness_centrality(graph)
    undirected = graph.to_undirected()
    dimension = np.zeros(nodes)
    for node in range(nodes):
        hops = np.fromiter(nx.single_source_shortest_path_length(undirected, node).values(), np.int64)
        within = np.bincount(hops).cumsum()[1:]
        if len(within) > 1:
            dimension[node] = np.polyfit(np.log(np.arange(1, len(within) + 1)), np.log(within), 1)[0]
    return {
        "in_degree": np.array([degree for _, degree in sorted(graph.in_degree())]),
        "out_degree": np.array([degree for _, degree in sorted(graph.out_degree())]),
        "position": position,
        "depth": depth,
        "height": height,
        "fractal_dimension": dimension,
        "closeness": np.array([closeness[node] for node in range(nodes)]),
    }


def reference_parse(
    nodes: int, edge_index: NDArray[np.int64], scores: NDArray[np.float32], levels: int, min_clusters: int
) -> NDArray[np.int32]:
    """What `_native.parse` computes, on quotient graphs that are really built."""
    cluster = np.arange(nodes)
    for _ in range(levels):
        count = len(np.unique(cluster))
        # The quotient graph: between two clusters the best edge, the first of equally good ones.
        quotient: dict[tuple[int, int], int] = {}
        for edge, ends in enumerate(cluster[edge_index].T.tolist()):
            pair = (min(ends), max(ends))
            if pair[0] != pair[1] and (pair not in quotient or scores[edge] > scores[quotient[pair]]):
                quotient[pair] = edge
        best: dict[int, int] = {}
        for pair, edge in quotient.items():
            for end in pair:
                if end not in best or (-scores[edge], edge) < (-scores[best[end]], best[end]):
                    best[end] = edge
        joined = nx.Graph()
        joined.add_nodes_from(np.unique(cluster).tolist())
        for edge in sorted(set(best.values()), key=lambda edge: (-scores[edge], edge)):
            if count <= min_clusters:
                break
            a, b = cluster[edge_index[:, edge]].tolist()
            if not nx.has_path(joined, a, b):
                joined.add_edge(a, b)
                count -= 1
        for members in nx.connected_components(joined):
            cluster[np.isin(cluster, list(members))] = min(members)
    return np.unique(cluster, return_inverse=True)[1].astype(np.int32)
