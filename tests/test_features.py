"""Features: structure against networkx, the rest against plain loops and against what must not change them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ov_hsdag import _native
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.model.graph import NodeKind
from ov_hsdag.policy import features
from ov_hsdag.policy.features import PolicyInput, policy_input
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.problem.problem import PlacementProblem
from research.zoo.catalog import ZOO
from tests.graphs import chain, random_problem
from tests.policy_oracle import reference_structure

PARTS = ("node_x", "edge_x", "pair_x", "device_x")


def random_edges(generator: np.random.Generator, nodes: int, edges: int, reach: int) -> NDArray[np.int64]:
    """Edges of a random acyclic graph whose nodes are numbered in any order."""
    source = generator.integers(0, max(nodes - 1, 1), edges)
    target = np.minimum(source + generator.integers(1, reach + 1, edges), nodes - 1)
    pairs = np.unique(np.stack([source, target]), axis=1)
    pairs = pairs[:, pairs[0] < pairs[1]]
    return np.asarray(generator.permutation(nodes)[pairs], np.int64).reshape(2, -1)


def assert_same_structure(found: dict[str, Any], expected: dict[str, NDArray[Any]]) -> None:
    for key, values in expected.items():
        np.testing.assert_allclose(found[key], values, rtol=1e-9, atol=1e-9, err_msg=key)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 150), st.floats(0, 3, allow_subnormal=False), st.integers(1, 12))
def test_structure_agrees_with_networkx(seed: int, nodes: int, density: float, reach: int) -> None:
    edges = random_edges(np.random.default_rng(seed), nodes, int(density * nodes), reach)
    assert_same_structure(_native.structure_features(nodes, edges), reference_structure(nodes, edges))


@pytest.mark.parametrize("name", ["resnet50", "bert-small", "lstm-stateful"])
def test_structure_of_real_graphs(name: str) -> None:
    problem = build_problem(ZOO[name].build(), DeviceSet.parse("HETERO:GPU,CPU"))
    graph = problem.graph
    by_node = np.unique(np.stack([graph.input_source, graph.input_node]), axis=1).astype(np.int64)
    by_coarse = policy_input(problem)
    for nodes, edges in ((graph.nodes, by_node), (len(by_coarse.node_x), by_coarse.edge_index)):
        assert_same_structure(_native.structure_features(nodes, edges, threads=2), reference_structure(nodes, edges))


def test_structure_with_a_cycle() -> None:
    # 0 → 1 → 2 → 1 (groups of nodes can wait for each other), and 3 apart.
    found = _native.structure_features(4, np.array([[0, 1, 2], [1, 2, 1]]))
    assert found["position"].tolist() == [0, 2, 3, 1]
    assert found["depth"].tolist() == [0, 1, 2, 0]
    assert found["height"].tolist() == [2, 1, 0, 0]
    assert np.isfinite(found["closeness"]).all()


@pytest.mark.parametrize("edges", [[[0], [3]], [[-1], [0]], [[1], [1]]])
def test_structure_refuses(edges: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="expected"):
        _native.structure_features(3, np.array(edges, np.int64))


def scaled(problem: PlacementProblem, factor: float) -> PlacementProblem:
    return dataclasses.replace(
        problem,
        node_us=problem.node_us * factor,
        transfer_us=problem.transfer_us * factor,
        transfer_us_per_byte=problem.transfer_us_per_byte * factor,
        submodel_us=problem.submodel_us * factor,
    )


def assert_close(found: PolicyInput, expected: PolicyInput) -> None:
    for part in PARTS:
        np.testing.assert_allclose(getattr(found, part), getattr(expected, part), atol=1e-5, err_msg=part)


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(3, 40),
    st.integers(2, 4),
    st.sampled_from(["latency", "throughput"]),
    st.floats(0, 0.6, allow_subnormal=False),
)
def test_features_of_random_problems(seed: int, nodes: int, devices: int, objective: str, missing: float) -> None:
    problem = random_problem(
        seed, nodes=nodes, devices=devices, objective=objective, submodel_us=5.0, missing=missing, grouped=True
    )
    x = policy_input(problem)
    size, edges = int(problem.coarse.max()) + 1, x.edge_index.shape[1]
    assert [getattr(x, part).dtype for part in PARTS] == [np.float32] * 4
    assert x.node_x.shape[0] == x.pair_x.shape[0] == size
    assert x.edge_x.shape[0] == edges
    assert x.pair_x.shape[1] == x.device_x.shape[0] == devices
    for part in PARTS:
        assert np.isfinite(getattr(x, part)).all(), part
        assert np.abs(getattr(x, part)).max(initial=0) <= 5, part
    np.testing.assert_array_equal(x.coarse, problem.coarse)

    # Edges: one for each pair of coarse groups between which a tensor passes.
    graph = problem.graph
    node = problem.coarse[problem.groups]
    moves = (graph.kinds[graph.input_source] != NodeKind.CONSTANT) & (graph.kinds[graph.input_node] != NodeKind.RESULT)
    pairs = {
        (int(node[source]), int(node[target]))
        for source, target in zip(graph.input_source[moves], graph.input_node[moves], strict=True)
        if node[source] != node[target]
    }
    assert sorted(pairs) == sorted(map(tuple, x.edge_index.T.tolist()))
    supported = np.ones((size, devices), bool)
    np.logical_and.at(supported, problem.coarse, problem.group_supported)
    np.testing.assert_array_equal(x.pair_x[:, :, 0], supported)
    # A clock that runs differently changes nothing. By a power of two, which rounds nothing: among partitions of equal
    # cost, as whole-number costs have them, rounding would decide. (Which partitions are simulated depends on it.)
    y = policy_input(scaled(problem, 32.0))
    of_partition = 5  # features of pairs
    known = dataclasses.replace(y, pair_x=y.pair_x[..., :-of_partition])
    assert_close(known, dataclasses.replace(x, pair_x=x.pair_x[..., :-of_partition]))
    np.testing.assert_allclose(x.pair_x[..., -1].sum(1), 1, atol=1e-6)


def test_devices_can_be_listed_in_any_order() -> None:
    problem = random_problem(3, nodes=30, devices=3, submodel_us=4.0)
    turn = [2, 0, 1]
    turned = dataclasses.replace(
        problem,
        node_us=problem.node_us[:, turn],
        supported=problem.supported[:, turn],
        transfer_us=problem.transfer_us[np.ix_(turn, turn)],
        transfer_us_per_byte=problem.transfer_us_per_byte[np.ix_(turn, turn)],
    )
    x, y = policy_input(problem), policy_input(turned)
    np.testing.assert_allclose(y.node_x, x.node_x, atol=1e-6)
    np.testing.assert_allclose(y.edge_x, x.edge_x, atol=1e-6)
    # Only what says whose turn is when may change with the order.
    own = slice(0, 8)
    np.testing.assert_allclose(y.pair_x[:, :, own], x.pair_x[:, turn, own], atol=1e-6)
    places = (1, 2, *range(-4, 0))
    np.testing.assert_allclose(np.delete(y.device_x, places, 1), np.delete(x.device_x[turn], places, 1), atol=1e-6)
    assert y.device_x[:, 1].tolist() == [1, 0, 0]
    assert y.device_x[:, 2].tolist() == [0, 0.25, 0.5]


def test_contiguous_parts_balance_work_and_keep_to_memory() -> None:
    # A chain of equal operations; the second device is three times faster.
    problem = dataclasses.replace(chain((300.0, 100.0)), objective="throughput")
    begin, end, begun, left, inside = -4, -3, 8, 9, 12
    x = policy_input(problem)
    np.testing.assert_allclose(x.device_x[:, begin], [0.0, 0.25], atol=0.03)
    np.testing.assert_allclose(x.device_x[:, end], [0.25, 1.0], atol=0.03)
    assert (x.pair_x[:, :, inside].sum(axis=1) == 1).all()
    # An operation on the border, with its middle on one side of it, belongs to that side.
    within = (x.pair_x[:, :, begun] >= 0) & (x.pair_x[:, :, left] >= 0)
    np.testing.assert_array_equal(x.pair_x[:, :, inside], within)

    latency = dataclasses.replace(problem, objective="latency")
    assert policy_input(latency).device_x[:, [begin, end]].tolist() == [[0, 0], [0, 1]]
    need = int(problem.evaluate(problem.single(0)).memory_bytes.sum())
    limited = policy_input(dataclasses.replace(latency, memory_bytes=np.array([-1, need // 2])))
    np.testing.assert_allclose(limited.device_x[:, begin], [0.0, 0.5], atol=0.05)


def test_costs_and_limits_are_seen() -> None:
    problem = random_problem(4, nodes=30)
    x = policy_input(problem)
    faster = policy_input(dataclasses.replace(problem, node_us=problem.node_us * [0.1, 1.0]))
    assert (faster.pair_x[:, 0, 1] <= x.pair_x[:, 0, 1]).all()
    assert (faster.pair_x[:, 0, 1] < x.pair_x[:, 0, 1]).any()
    need = int(problem.evaluate(problem.single(0)).memory_bytes.sum())
    limited = policy_input(dataclasses.replace(problem, memory_bytes=np.array([need // 2, -1])))
    assert limited.device_x[0, 12:15] == pytest.approx([1.0, 0.5, 0.5], abs=0.01)
    assert limited.device_x[1, 12:15] == pytest.approx([0.0, 1.0, 0.5], abs=0.01)
    throughput = policy_input(dataclasses.replace(problem, objective="throughput"))
    assert throughput.device_x[:, 0].tolist() == [1, 1]
    assert x.device_x[:, 0].tolist() == [0, 0]


def test_operation_types_and_shapes_of_a_real_model() -> None:
    problem = build_problem(ZOO["resnet50"].build(), DeviceSet.parse("HETERO:GPU,CPU"))
    x = policy_input(problem)
    graph, node = problem.graph, problem.coarse[problem.groups]
    convolution, other = 2, features.TYPE_COLUMNS - 1
    share = np.zeros(len(x.node_x))
    for group in range(len(share)):
        members = [n for n in np.flatnonzero(node == group) if graph.kinds[n] != NodeKind.CONSTANT]
        share[group] = np.mean([graph.types[n] == "Convolution" for n in members])
        last = max(n for n in members if graph.output_ptr[n] < graph.output_ptr[n + 1])
        shape = graph.output_shapes[graph.output_ptr[last]]
        padded = np.array([0] * (5 - len(shape)) + list(shape))
        np.testing.assert_allclose(x.node_x[group, other + 1 : other + 6], np.log2(1 + padded) / 16, rtol=1e-5)
    np.testing.assert_allclose(x.node_x[:, convolution], share, rtol=1e-6)
    assert share.max() > 0.2
    np.testing.assert_allclose(x.node_x[:, : other + 1].sum(axis=1), 1.0, rtol=1e-5)
    assert not x.node_x[:, other].any()  # no operation without a family


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_features_tell_which_single_moves_improve_the_partition(objective: str) -> None:
    """Nearly: tensors that several groups read are counted for each."""
    told, found = [], []
    for seed in range(12):
        problem = random_problem(seed, nodes=40, devices=3, objective=objective, submodel_us=4.0)
        x = policy_input(problem)
        node, device = (ends.ravel() for ends in np.indices(x.pair_x.shape[:2]))
        moved = np.where(x.coarse == node[:, None], device[:, None], x.partition).astype(np.uint8)
        told += x.pair_x[node, device, -5 if objective == "latency" else -4].tolist()
        found += (problem.scores(moved) - problem.scores(x.partition)[0]).tolist()
    better = np.array(found) < 0
    assert better.sum() > 20
    assert (np.array(told)[better] < 0).mean() > 0.8
    assert (np.array(told)[~better] < 0).mean() < 0.2
