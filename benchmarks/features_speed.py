"""Structural features and parsing: the native core against networkx and NumPy; and placing's native steps together.

The reference computes the same numbers in the plain way (degrees, topological order, depths, fractal dimension and
closeness by networkx; parsing by dictionaries and networkx's components); that they agree is asserted. CPU time of the
one thread is counted. The exit status is 1 when the native core is less than 100 times faster, or too slow where the
table has a limit.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ov_hsdag import _native
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.model.graph import ComputationGraph, NodeKind
from ov_hsdag.model.repair import split_rule
from ov_hsdag.placers.refine import refine
from ov_hsdag.policy.features import policy_input
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.problem.problem import PlacementProblem
from research.zoo.catalog import ZOO

MODELS = ("resnet50", "swin-tiny", "densenet121")
FACTOR = 100
LEVELS, CLUSTERS = 2, 8
CANDIDATES = 32
# Milliseconds for features, parsing and refinement together.
LIMITS = {"swin-tiny": 40.0, "generated": 2000.0}
GENERATED_NODES = 20_000


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


def generated_problem(nodes: int, seed: int = 0) -> PlacementProblem:
    """A deep network of residual blocks with four branches each, on two devices."""
    generator = np.random.default_rng(seed)
    feeds: list[list[int]] = [[]]
    while len(feeds) < nodes - 1:
        entry, ends = len(feeds) - 1, []
        for _ in range(4):
            last = entry
            for _ in range(int(generator.integers(1, 7))):
                feeds.append([last])
                last = len(feeds) - 1
            ends.append(last)
        feeds.append(ends)
        feeds.append([len(feeds) - 1, entry])
    feeds = [*feeds[: nodes - 1], [nodes - 2]]
    kinds = np.full(nodes, NodeKind.OP, np.uint8)
    kinds[0], kinds[-1] = NodeKind.PARAMETER, NodeKind.RESULT
    outputs = nodes - 1
    graph = ComputationGraph(
        names=tuple(f"node_{i}" for i in range(nodes)),
        types=("Parameter", *["Convolution", "Relu"] * (nodes // 2 - 1), *["Add"] * (nodes % 2), "Result"),
        kinds=kinds,
        input_ptr=np.concatenate([[0], np.cumsum([len(feed) for feed in feeds])]).astype(np.int32),
        input_output=np.array([source for feed in feeds for source in feed], np.int32),
        output_ptr=np.minimum(np.arange(nodes + 1), outputs).astype(np.int32),
        output_bytes=generator.integers(10_000, 1_000_000, outputs),
        output_shapes=((1, 64, 56, 56),) * outputs,
        output_ranks=np.full(outputs, 4, np.int16),
        output_movable=np.ones(outputs, bool),
        output_types=("f32",) * outputs,
        flops=generator.uniform(1e6, 1e8, nodes),
        weight_bytes=np.zeros(nodes, np.int64),
        variables=("",) * nodes,
    )
    # Results stay with their producer.
    groups = np.minimum(np.arange(nodes), nodes - 2).astype(np.int32)
    return PlacementProblem(
        graph=graph,
        devices=("A", "B"),
        objective="latency",
        node_us=generator.lognormal(3.0, 1.0, (nodes, 2)),
        supported=np.ones((nodes, 2), bool),
        groups=groups,
        transfer_us=np.array([[0.0, 5.0], [5.0, 0.0]]),
        transfer_us_per_byte=np.array([[0.0, 1e-5], [1e-5, 0.0]]),
        submodel_us=np.array([20.0, 20.0]),
        memory_bytes=np.full(2, -1, np.int64),
        rule=split_rule(ov.__version__),
    )


def milliseconds(work: Callable[[], object], repeat: int = 1) -> float:
    """CPU time of one call, the least of some."""
    spent = []
    for _ in range(repeat):
        start = time.process_time()
        work()
        spent.append(time.process_time() - start)
    return 1e3 * min(spent)


def candidates(problem: PlacementProblem, cluster: NDArray[np.int32], seed: int) -> NDArray[np.uint8]:
    """Random devices for clusters, as an untrained policy would propose. [CANDIDATES, groups]"""
    generator = np.random.default_rng(seed)
    devices = generator.integers(0, len(problem.devices), (CANDIDATES, int(cluster.max()) + 1))
    return problem.where_supported(devices[:, cluster[problem.coarse]])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS, help=f"models of the zoo (default {' '.join(MODELS)})")
    parser.add_argument(
        "--device", default="HETERO:GPU,CPU", help="device list; built-in profiles (default %(default)s)"
    )
    parser.add_argument("--objective", default="latency", help="latency or throughput (default latency)")
    parser.add_argument("--nodes", type=int, default=GENERATED_NODES, help="nodes of the generated graph")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    failed = False
    print(f"{'model':14} {'groups':>7} {'coarse':>7} {'networkx ms':>12} {'native ms':>10} {'factor':>8}", end="")
    print(f" {'features ms':>12} {'parse ms':>9} {'refine ms':>10} {'sum ms':>8} {'limit':>7}")
    devices = DeviceSet.parse(arguments.device)
    for name in (*arguments.models, "generated"):
        if name == "generated":
            problem = generated_problem(arguments.nodes, arguments.seed)
        else:
            problem = build_problem(ZOO[name].build(), devices, objective=arguments.objective)
        x = policy_input(problem)
        nodes, edges = len(x.node_x), x.edge_index
        scores = np.random.default_rng(arguments.seed).random(edges.shape[1], np.float32)
        cluster = _native.parse(nodes, edges, scores, LEVELS, CLUSTERS)
        comparison = f"{'':12} {'':10} {'':8}"
        if name != "generated":
            expected = reference_structure(nodes, edges)
            found = _native.structure_features(nodes, edges)
            assert all(np.allclose(found[key], expected[key], atol=1e-9) for key in expected)
            parsed = reference_parse(nodes, edges, scores, LEVELS, CLUSTERS)
            assert np.array_equal(cluster, parsed)

            def slow(nodes: int = nodes, edges: Any = edges, scores: Any = scores) -> None:
                reference_structure(nodes, edges)
                reference_parse(nodes, edges, scores, LEVELS, CLUSTERS)

            def fast(nodes: int = nodes, edges: Any = edges, scores: Any = scores) -> None:
                _native.structure_features(nodes, edges)
                _native.parse(nodes, edges, scores, LEVELS, CLUSTERS)

            ours, theirs = milliseconds(fast, 20), milliseconds(slow, 3)
            failed |= theirs < FACTOR * ours
            comparison = f"{theirs:12.1f} {ours:10.3f} {theirs / ours:7.0f}x"
        batch = candidates(problem, cluster, arguments.seed)
        steps = (
            milliseconds(lambda problem=problem: policy_input(problem), 3),  # type: ignore[misc]
            milliseconds(lambda n=nodes, e=edges, s=scores: _native.parse(n, e, s, LEVELS, CLUSTERS), 3),  # type: ignore[misc]
            milliseconds(lambda problem=problem, batch=batch: refine(problem, batch)),  # type: ignore[misc]
        )
        limit = LIMITS.get(name)
        failed |= limit is not None and sum(steps) > limit
        print(f"{name:14} {problem.group_count:7} {nodes:7} {comparison}", end="")
        print(f" {steps[0]:12.2f} {steps[1]:9.3f} {steps[2]:10.1f} {sum(steps):8.1f} {limit or '':>7}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
