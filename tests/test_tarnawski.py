"""Tarnawski et al.'s instances: what their loads are, and that the placement problem made of one means the same."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ov_hsdag.placers.multilevel import search
from research.instances import Instance


def node(identifier: int, cpu: float, accelerator: float, size: float = 1.0, **more: Any) -> dict[str, Any]:
    return {
        "id": identifier,
        "supportedOnFpga": True,
        "cpuLatency": cpu,
        "fpgaLatency": accelerator,
        "isBackwardNode": False,
        "size": size,
        **more,
    }


def written(folder: Path, nodes: list[dict[str, Any]], edges: list[tuple[int, int, float]], **more: Any) -> Path:
    path = folder / "instance_inference.json"
    costs = [{"sourceId": a, "destId": b, "cost": cost} for a, b, cost in edges]
    header = {"maxSizePerFPGA": 100.0, "maxFPGAs": 2, "maxCPUs": 1, **more}
    path.write_text(json.dumps({**header, "nodes": nodes, "edges": costs}))
    return path


def diamond(folder: Path, **more: Any) -> Instance:
    """7 → 3 → 5 and 7 → 4 → 5; 3 and 4 have one color."""
    nodes = [node(5, 10, 1), node(3, 20, 2, colorClass=8), node(4, 30, 3, colorClass=8), node(7, 40, 4, size=60.0)]
    return Instance.load(written(folder, nodes, [(7, 3, 0.5), (7, 4, 0.5), (3, 5, 0.25), (4, 5, 0.125)], **more))


def test_nodes_come_after_what_they_read(tmp_path: Path) -> None:
    instance = diamond(tmp_path)
    place = {identifier: k for k, identifier in enumerate(instance.ids)}
    assert sorted(instance.ids) == [3, 4, 5, 7]
    assert (instance.edges[:, 0] < instance.edges[:, 1]).all()
    assert instance.colors[place[3]] == instance.colors[place[4]]
    assert len(set(instance.colors.tolist())) == 3
    with pytest.raises(ValueError, match="cycle"):
        Instance.load(written(tmp_path, [node(1, 1, 1), node(2, 1, 1)], [(1, 2, 1.0), (2, 1, 1.0)]))
    with pytest.raises(ValueError, match="two costs"):
        Instance.load(written(tmp_path, [node(i, 1, 1) for i in range(3)], [(0, 1, 1.0), (0, 2, 2.0)]))


def test_loads_by_hand(tmp_path: Path) -> None:
    instance = diamond(tmp_path)
    split = {"cpus": [], "fpgas": [{"nodes": [7]}, {"nodes": [3, 4, 5]}]}
    # One tensor leaves 7, and is received once though two nodes read it.
    np.testing.assert_allclose(instance.loads(instance.placement(split)), [0, 4.5, 6.5])
    split = {"cpus": [{"nodes": [5]}], "fpgas": [{"nodes": [7]}, {"nodes": [3, 4]}]}
    np.testing.assert_allclose(instance.loads(instance.placement(split)), [10, 4.5, 5 + 0.5 + 0.375])
    with pytest.raises(ValueError, match="color"):
        instance.loads(instance.placement({"cpus": [{"nodes": [3]}], "fpgas": [{"nodes": [4, 5, 7]}]}))
    with pytest.raises(ValueError, match="memory"):
        small = diamond(tmp_path, maxSizePerFPGA=59.0)
        small.loads(small.placement({"cpus": [], "fpgas": [{"nodes": [3, 4, 5, 7]}]}))
    with pytest.raises(ValueError, match="leaves out"):
        instance.placement({"cpus": [], "fpgas": [{"nodes": [3, 4, 5]}]})


def random_instance(folder: Path, seed: int) -> Instance:
    generator = np.random.default_rng(seed)
    nodes = []
    for identifier in range(6):
        color = {"colorClass": int(generator.integers(3))} if generator.random() < 0.5 else {}
        times = generator.integers(1, 20, 2).tolist()
        nodes.append(node(identifier, *times, size=float(generator.integers(1, 50)), **color))
        nodes[-1]["supportedOnFpga"] = bool(generator.random() < 0.9)
    costs = generator.integers(1, 9, 6) / 8
    pairs = [(a, b) for a, b in itertools.combinations(range(6), 2) if generator.random() < 0.4]
    return Instance.load(written(folder, nodes, [(a, b, float(costs[a])) for a, b in pairs]))


@pytest.mark.parametrize("seed", range(8))
def test_the_problem_means_the_same(tmp_path: Path, seed: int) -> None:
    """For all placements: feasibility alike, periods never below the load, and equal where nothing is sent twice."""
    instance = random_instance(tmp_path, seed)
    problem = instance.problem()
    equal = 0
    for devices in itertools.product(range(3), repeat=problem.group_count):
        placement = np.array(devices, np.uint8)
        device = placement[problem.groups].astype(np.int64)
        result = problem.evaluate(placement)
        if result.infeasible[0]:
            with pytest.raises(ValueError, match="accelerator"):
                instance.loads(device)
            continue
        load = instance.loads(device).max()
        source, target = instance.edges.T
        cut = device[source] != device[target]
        receivers = np.unique(np.column_stack([source, device[target]])[cut], axis=0)[:, 0]

        if len(set(receivers.tolist())) < len(receivers):
            assert result.period_us[0] >= load - 1e-6
        else:
            assert result.period_us[0] == pytest.approx(load)
            equal += 1
    assert equal > 3


@pytest.mark.parametrize("seed", range(6))
def test_the_search_is_no_worse_than_any_contiguous_split(tmp_path: Path, seed: int) -> None:
    """Than all placements whose devices do not wait for each other in a circle."""
    instance = random_instance(tmp_path, seed)
    problem = instance.problem()
    best = np.inf
    for devices in itertools.product(range(3), repeat=problem.group_count):
        device = np.array(devices)[problem.groups]
        before = np.eye(3, dtype=bool)
        before[device[instance.edges[:, 0]], device[instance.edges[:, 1]]] = True
        before = np.linalg.matrix_power(before.astype(int), 3) > 0
        if (before & before.T).sum() > 3 or problem.evaluate(np.array(devices)).infeasible[0]:
            continue
        best = min(best, instance.loads(device).max())
    placement = search(problem).placement
    assert instance.loads(placement[problem.groups].astype(np.int64)).max() <= best * (1 + 1e-9)
