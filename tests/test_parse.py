"""Graph parsing: the native one against quotient graphs that are really built."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ov_hsdag import _native
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.policy.features import policy_input
from ov_hsdag.problem.pricing import build_problem
from research.zoo.catalog import ZOO
from tests.policy_oracle import reference_parse


def edges_of(*pairs: tuple[int, int]) -> NDArray[np.int64]:
    return np.array(pairs, np.int64).reshape(-1, 2).T


@st.composite
def scored_graphs(draw: st.DrawFn) -> tuple[int, NDArray[np.int64], NDArray[np.float32]]:
    nodes = draw(st.integers(1, 30))
    pairs = st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1)).filter(lambda pair: pair[0] != pair[1])
    edges = draw(st.lists(pairs, max_size=60)) if nodes > 1 else []
    # Few values, so that equal scores are common.
    scores = draw(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=len(edges), max_size=len(edges)))
    return nodes, edges_of(*edges), np.array(scores, np.float32)


@settings(max_examples=300, deadline=None)
@given(scored_graphs(), st.integers(0, 4), st.integers(1, 12))
def test_agrees_with_reference(
    graph: tuple[int, NDArray[np.int64], NDArray[np.float32]], levels: int, min_clusters: int
) -> None:
    cluster = _native.parse(*graph, levels, min_clusters)
    np.testing.assert_array_equal(cluster, reference_parse(*graph, levels, min_clusters))


def test_levels_of_a_path() -> None:
    edges = edges_of((0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7))
    scores = np.array([0.9, 0.1, 0.8, 0.2, 0.7, 0.1, 0.6], np.float32)
    assert _native.parse(8, edges, scores, 0, 1).tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert _native.parse(8, edges, scores, 1, 1).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    # Second level: {0,1} and {6,7} have one neighbour each, {2,3} and {4,5} prefer each other.
    assert _native.parse(8, edges, scores, 2, 1).tolist() == [0] * 8
    # Only as many as leave three clusters: the edge of score 0.2 first.
    assert _native.parse(8, edges, scores, 2, 3).tolist() == [0, 0, 1, 1, 1, 1, 2, 2]


def test_ties_go_to_the_lower_edge() -> None:
    edges = edges_of((1, 2), (0, 1), (2, 3))
    # Nodes 1 and 2 prefer edge 0; the last level then takes edge 1 before edge 2.
    assert _native.parse(4, edges, np.ones(3, np.float32), 1, 2).tolist() == [0, 0, 0, 1]


def test_parts_without_edges_stay_apart() -> None:
    cluster = _native.parse(5, edges_of((0, 4)), np.ones(1, np.float32), 9, 1)
    assert cluster.tolist() == [0, 1, 2, 3, 0]
    assert _native.parse(0, edges_of(), np.zeros(0, np.float32), 1, 1).shape == (0,)


@pytest.mark.parametrize("name", ["squeezenet", "bert-small"])
def test_real_graphs(name: str) -> None:
    x = policy_input(build_problem(ZOO[name].build(), DeviceSet.parse("HETERO:GPU,CPU")))
    nodes = len(x.node_x)
    for seed in range(5):
        scores = np.random.default_rng(seed).random(x.edge_index.shape[1], np.float32)
        for levels in (1, 2, 9):
            cluster = _native.parse(nodes, x.edge_index, scores, levels, 4)
            np.testing.assert_array_equal(cluster, reference_parse(nodes, x.edge_index, scores, levels, 4))
        assert cluster.max() == 3  # a connected graph goes down to the least number


@pytest.mark.parametrize(
    ("nodes", "edges", "scores", "levels", "least"),
    [
        (2, [[0], [2]], [1.0], 1, 1), (2, [[0], [-1]], [1.0], 1, 1), (2, [[0], [1]], [1.0, 2.0], 1, 1),
        (2, [[0], [1]], [float("nan")], 1, 1), (2, [[0], [1]], [1.0], -1, 1), (2, [[0], [1]], [1.0], 1, 0),
        (2, [[0, 1]], [1.0, 1.0], 1, 1),
    ],
)  # fmt: skip
def test_refuses(nodes: int, edges: list[list[int]], scores: list[float], levels: int, least: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        _native.parse(nodes, np.array(edges, np.int64), np.array(scores, np.float32), levels, least)
