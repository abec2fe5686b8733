"""The native simulator against a plain Python one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ov_hsdag.model.graph import NodeKind
from ov_hsdag.problem.problem import Evaluation, PlacementProblem
from tests.graphs import random_problem


def reference(problem: PlacementProblem, placement: np.ndarray) -> dict[str, object]:
    """Latency, busy time, memory and transfers from their definitions, given HETERO's split."""
    graph, device = problem.graph, placement[problem.groups]
    split = problem.split(placement)
    busy = np.zeros(len(problem.devices))
    for node in range(graph.nodes):
        busy[device[node]] += problem.node_us[node, device[node]]
        fused_with = problem.fusions[0][node, device[node]]
        if fused_with >= 0 and split["submodel"][fused_with] != split["submodel"][node]:
            busy[device[node]] += problem.fusions[1][node, device[node]]
    for owner in split["submodel_device"]:
        busy[owner] += problem.submodel_us[owner]
    latency, moved = float(busy.sum()), set()
    for edge in range(graph.edges):
        source, target = graph.input_source[edge], graph.input_node[edge]
        if graph.kinds[source] != NodeKind.CONSTANT and graph.kinds[target] != NodeKind.RESULT:
            moved.add((int(graph.input_output[edge]), int(device[source]), int(device[target])))
    moved = {(output, a, b) for output, a, b in moved if a != b}
    for output, a, b in moved:
        us = problem.transfer_us[a, b] + problem.transfer_us_per_byte[a, b] * graph.output_bytes[output]
        latency += us
        for end in (a, b):
            busy[end] += us * problem.transfer_shares[end]
    memory = np.zeros(len(problem.devices), np.int64)
    np.add.at(memory, device, graph.weight_bytes)
    for number, owner in enumerate(split["submodel_device"]):
        memory[owner] += peak(problem, split["submodel"], number)
    return {
        "latency_us": latency,
        "busy_us": busy,
        "memory_bytes": memory,
        "transfer_bytes": sum(int(graph.output_bytes[output]) for output, _, _ in moved),
        "cut_tensors": len(moved),
        "submodels": len(split["submodel_device"]),
    }


def peak(problem: PlacementProblem, submodel: np.ndarray, number: int) -> int:
    """Largest sum of tensors alive at once in a submodel: inputs from the start, outputs to the end."""
    graph = problem.graph
    born, dies = {}, {}
    for edge in range(graph.edges):
        output, source, target = graph.input_output[edge], graph.input_source[edge], graph.input_node[edge]
        if graph.kinds[source] == NodeKind.CONSTANT:
            continue
        if submodel[target] == number and submodel[source] != number:
            born[output], dies[output] = -1, graph.nodes
        if submodel[source] == number:
            leaves = submodel[target] != number or graph.kinds[target] == NodeKind.RESULT
            dies[output] = max(dies.get(output, 0), graph.nodes if leaves else int(target))
    for output in range(graph.outputs):
        node = int(graph.output_node[output])
        if submodel[node] == number and graph.kinds[node] != NodeKind.CONSTANT:
            born[output] = node
            dies.setdefault(output, node)
    times = [-1, *range(graph.nodes)]
    return max(sum(int(graph.output_bytes[o]) for o in born if born[o] <= t <= dies[o]) for t in times)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    nodes=st.integers(3, 25),
    devices=st.integers(1, 4),
    submodel_us=st.integers(0, 5),
    grouped=st.booleans(),
    fusing=st.booleans(),
    sharing=st.booleans(),
)
def test_simulator_equals_the_definitions(
    seed: int, nodes: int, devices: int, submodel_us: int, grouped: bool, fusing: bool, sharing: bool
) -> None:
    problem = random_problem(
        seed, nodes=nodes, devices=devices, submodel_us=submodel_us, grouped=grouped, fusing=fusing
    )
    if sharing:
        problem = dataclasses.replace(problem, transfer_share=np.random.default_rng(seed).integers(0, 3, devices) / 2)
    placements = np.random.default_rng(seed).integers(0, devices, (4, problem.group_count)).astype(np.uint8)
    result = problem.evaluate(placements, threads=2)
    for row, placement in enumerate(placements):
        for key, value in reference(problem, placement).items():
            np.testing.assert_array_equal(getattr(result, key)[row], value, err_msg=key)
        assert result.period_us[row] == result.busy_us[row].max()
    check_breakdown(problem, placements, result)


def check_breakdown(problem: PlacementProblem, placements: np.ndarray, result: Evaluation) -> None:
    """Terms sum up to the results, exactly, as all costs are whole numbers; and each is what it is by definition."""
    found = problem.breakdown(placements)
    for field in dataclasses.fields(Evaluation):
        np.testing.assert_array_equal(getattr(found.evaluation, field.name), getattr(result, field.name))
    np.testing.assert_array_equal(found.latency_us.sum(axis=1), result.latency_us)
    np.testing.assert_array_equal(found.busy_us.sum(axis=2), result.busy_us)
    np.testing.assert_array_equal(found.busy_us[:, :, :3].sum(axis=1), found.latency_us[:, :3])
    assert np.diff(found.transfer_ptr).tolist() == result.cut_tensors.tolist()
    for row, placement in enumerate(placements):
        device, split = placement[problem.groups], problem.split(placement)
        busy = np.zeros((len(problem.devices), 4))
        nodes = np.arange(problem.graph.nodes)
        np.testing.assert_array_equal(found.node_us[row], problem.node_us[nodes, device])
        fused_with, penalty_us = (array[nodes, device] for array in problem.fusions)
        broken = (fused_with >= 0) & (split["submodel"][fused_with] != split["submodel"])
        np.testing.assert_array_equal(found.fusion_us[row], np.where(broken, penalty_us, 0.0))
        np.add.at(busy[:, 0], device, found.node_us[row])
        np.add.at(busy[:, 1], device, found.fusion_us[row])
        np.add.at(busy[:, 2], split["submodel_device"], problem.submodel_us[split["submodel_device"]])
        own = slice(*found.transfer_ptr[row : row + 2])
        source, target = found.transfer_source[own], found.transfer_target[own]
        us = (
            problem.transfer_us[source, target]
            + problem.transfer_us_per_byte[source, target] * (problem.graph.output_bytes[found.transfer_output[own]])
        )
        np.testing.assert_array_equal(found.transfer_us[own], us)
        np.testing.assert_array_equal(found.transfer_source_us[own], us * problem.transfer_shares[source])
        np.testing.assert_array_equal(found.transfer_target_us[own], us * problem.transfer_shares[target])
        np.add.at(busy[:, 3], source, found.transfer_source_us[own])
        np.add.at(busy[:, 3], target, found.transfer_target_us[own])
        np.testing.assert_array_equal(found.busy_us[row], busy)
        assert found.transfer_bytes[own].sum() == result.transfer_bytes[row]
        assert device[problem.graph.output_node[found.transfer_output[own]]].tolist() == source.tolist()
        assert found.latency_us[row, 3] == us.sum()


def test_reasons_for_infeasibility_are_told_apart() -> None:
    problem = random_problem(1, nodes=12)
    everything = problem.evaluate(problem.single(0))
    assert everything.infeasible[0] == 0
    supported = problem.supported.copy()
    supported[5, 0] = False
    lacking = dataclasses.replace(problem, supported=supported)
    assert lacking.evaluate(problem.single(0)).infeasible[0] == 2
    limit = np.array([everything.memory_bytes[0, 0] - 1, -1])
    small = dataclasses.replace(problem, memory_bytes=limit)
    assert small.evaluate(problem.single(0)).infeasible[0] == 4
    assert np.isinf(small.scores(problem.single(0))[0])
    assert small.evaluate(problem.single(1)).infeasible[0] == 0


def test_a_problem_survives_its_file(tmp_path: Path) -> None:
    problem = random_problem(3, nodes=20, devices=3, objective="throughput", submodel_us=2)
    problem.save(tmp_path / "problem.npz")
    read = PlacementProblem.load(tmp_path / "problem.npz")
    placements = np.random.default_rng(0).integers(0, 3, (20, problem.group_count))
    np.testing.assert_array_equal(read.evaluate(placements).period_us, problem.evaluate(placements).period_us)
    assert read.graph.names == problem.graph.names
    assert read.devices == problem.devices
    assert read.objective == "throughput"
    assert read.transfer_share is None
    for shares in (np.zeros(3), np.array([0.0, 0.5, 1.0])):
        dataclasses.replace(problem, transfer_share=shares).save(tmp_path / "shares.npz")
        np.testing.assert_array_equal(PlacementProblem.load(tmp_path / "shares.npz").transfer_shares, shares)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), rule=st.integers(0, 1))
def test_random_placements_are_feasible(seed: int, rule: int) -> None:
    problem = dataclasses.replace(random_problem(seed, nodes=30, devices=3, missing=0.2), rule=rule)
    if not problem.group_supported.all(axis=0).any():
        return
    placements = problem.random(np.random.default_rng(seed), 5)
    assert not (problem.evaluate(placements).infeasible & ~np.uint8(4)).any()
