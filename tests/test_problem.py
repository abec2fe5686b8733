"""The placement problem: what it refuses, and what its file, pickles and copies carry."""

from __future__ import annotations

import copy
import pickle
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.utils.errors import UserError
from tests.graphs import random_problem


def make(**options: Any) -> PlacementProblem:
    return random_problem(3, **{"nodes": 20, "devices": 3, "submodel_us": 2, "fusing": True, **options})


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("node_us", lambda a: a[:-1], r"'node_us' of shape \[20, 3\], got \[19, 3\]"),
        ("node_us", lambda a: a.astype(np.float32), "'node_us' of type float64, got float32"),
        ("supported", lambda a: a.astype(np.uint8), "'supported' of type bool, got uint8"),
        ("groups", lambda a: a[:, None], r"'groups' of shape \[20\], got \[20, 1\]"),
        ("groups", lambda a: a.astype(np.int64), "'groups' of type int32, got int64"),
        ("transfer_us", lambda a: a[0], r"'transfer_us' of shape \[3, 3\], got \[3\]"),
        ("transfer_us_per_byte", lambda a: a[:, :2], r"'transfer_us_per_byte' of shape \[3, 3\], got \[3, 2\]"),
        ("submodel_us", lambda a: a[:1], r"'submodel_us' of shape \[3\], got \[1\]"),
        ("submodel_us", lambda a: a.tolist(), "'submodel_us' to be an array, got list"),
        ("memory_bytes", lambda a: a.astype(float), "'memory_bytes' of type int64, got float64"),
        ("fused_with", lambda a: a.T, r"'fused_with' of shape \[20, 3\], got \[3, 20\]"),
        ("fusion_penalty_us", lambda a: a[:5], r"'fusion_penalty_us' of shape \[20, 3\], got \[5, 3\]"),
        ("storage_ratio", lambda _: np.ones(2), r"'storage_ratio' of shape \[3\], got \[2\]"),
        ("devices", lambda _: (), "at least one device"),
    ],
)
def test_arrays_of_other_shapes_and_types_are_refused(name: str, change: Any, expected: str) -> None:
    problem = make()
    with pytest.raises(ValueError, match=expected):
        replace(problem, **{name: change(getattr(problem, name))})


def test_numbers_of_nodes_and_groups_that_do_not_exist_are_refused() -> None:
    problem = make()
    for name, value, least in (("fused_with", 20, -1), ("groups", -1, 0)):
        array = getattr(problem, name).copy()
        array.flat[7] = value
        with pytest.raises(ValueError, match=f"expected numbers from {least} to 19 in '{name}', got {value}"):
            replace(problem, **{name: array}).evaluate(problem.single(0))


def test_an_unknown_objective_is_refused() -> None:
    with pytest.raises(UserError, match="unknown objective 'speed'"):
        make(objective="speed")


def test_every_attribute_survives_the_file(tmp_path: Path) -> None:
    problem = replace(make(), storage_ratio=np.array([1.0, 0.5, 0.75]))
    problem.save(tmp_path / "problem.npz")
    read = PlacementProblem.load(tmp_path / "problem.npz")
    for field in fields(problem):
        if field.name != "graph":
            np.testing.assert_array_equal(getattr(read, field.name), getattr(problem, field.name), field.name)


@pytest.mark.parametrize(("name", "axes"), [("live_bytes", "o"), ("moved_bytes", "o"), ("held_bytes", "nd")])
def test_sizes_of_zero_survive_the_file(tmp_path: Path, name: str, axes: str) -> None:
    problem = make()
    sizes = {"o": problem.graph.outputs, "n": problem.graph.nodes, "d": len(problem.devices)}
    zeros = np.zeros([sizes[axis] for axis in axes], np.int64)
    replace(problem, **{name: zeros}).save(tmp_path / "problem.npz")
    np.testing.assert_array_equal(getattr(PlacementProblem.load(tmp_path / "problem.npz"), name), zeros)


def test_zeros_that_mean_the_default_are_left_out_of_the_file(tmp_path: Path) -> None:
    problem = make()
    nothing_open = replace(problem.graph, open_lengths=np.zeros(problem.graph.nodes, bool))
    replace(problem, graph=nothing_open, core_share=np.zeros(len(problem.devices))).save(tmp_path / "problem.npz")
    read = PlacementProblem.load(tmp_path / "problem.npz")
    assert read.core_share is None and read.graph.open_lengths is None


def test_files_keep_the_names_that_other_releases_read(tmp_path: Path) -> None:
    replace(make(), storage_ratio=np.array([1.0, 0.5, 0.75])).save(tmp_path / "problem.npz")
    with np.load(tmp_path / "problem.npz") as data:
        own = {key for key in data.files if not key.startswith("graph.")}
    assert own == {
        "format", "devices", "objective", "node_us", "supported", "groups", "transfer_us", "transfer_us_per_byte",
        "submodel_us", "memory_bytes", "rule", "fused_with", "torn_us", "kept",
    }  # fmt: skip


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda problem: pickle.loads(pickle.dumps(problem))])
def test_copies_and_pickles_carry_the_attributes_and_nothing_derived(duplicate: Any) -> None:
    problem = make()
    placements = problem.random(np.random.default_rng(0), 10)
    before = problem.evaluate(placements).latency_us
    again = duplicate(problem)
    assert set(vars(again)) == {field.name for field in fields(problem)}
    np.testing.assert_array_equal(again.evaluate(placements).latency_us, before)


def test_a_changed_problem_is_evaluated_by_its_own_arrays() -> None:
    problem = make(fusing=False)
    placement = problem.single(0)
    before = problem.evaluate(placement).latency_us[0]
    slower = replace(problem, node_us=problem.node_us + 1.0)
    assert slower.evaluate(placement).latency_us[0] == before + problem.graph.nodes
    assert problem.evaluate(placement).latency_us[0] == before


def test_devices_of_equal_costs_are_of_one_kind() -> None:
    problem = make(devices=4, fusing=True)
    column = [0, 1, 1, 0]
    arrays = ("node_us", "supported", "fused_with", "fusion_penalty_us")
    alike = replace(
        problem,
        **{name: getattr(problem, name)[:, column] for name in arrays},
        **{name: getattr(problem, name)[column] for name in ("submodel_us", "memory_bytes")},
        transfer_us=np.where(np.eye(4, dtype=bool), 0.0, 2.0),
        transfer_us_per_byte=np.zeros((4, 4)),
    )
    assert alike.kinds.tolist() == [0, 1, 1, 0]
    other = {"node_us": (0, 2), "fusion_penalty_us": (3, 2), "submodel_us": 2, "transfer_us": (2, 0)}
    for name, index in other.items():
        array = getattr(alike, name).copy()
        array[index] += 1
        # A link that is slower from the third to the first device tells the first from the fourth, too.
        expected = [0, 1, 2, 3] if name == "transfer_us" else [0, 1, 2, 0]
        assert replace(alike, **{name: array}).kinds.tolist() == expected, name
    assert replace(alike, held_bytes=np.arange(80).reshape(20, 4)).kinds.tolist() == [0, 1, 2, 3]


def test_what_hetero_runs_is_left_as_it_is_and_the_rest_repaired() -> None:
    problem = random_problem(3, nodes=40, devices=2, grouped=True)
    repaired = 0
    for single in (*problem.singles, *np.random.default_rng(0).integers(0, 2, (20, problem.group_count))):
        legal = problem.legalized(single)
        broken = problem.evaluate(single).broken[0]
        repaired += broken
        assert not problem.evaluate(legal).broken[0] and (broken or (legal == single).all())
    assert repaired and not problem.singles.flags.writeable


def test_what_is_scattered_over_too_many_submodels_to_be_judged_goes_to_the_best_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = random_problem(3, nodes=3000, devices=2, grouped=True)
    scattered = np.random.default_rng(0).integers(0, 2, problem.group_count)
    assert problem.evaluate(scattered).submodels[0] > 300 and (problem.legalized(scattered) == scattered).all()
    monkeypatch.setattr("ov_hsdag.problem.problem.MOST_WORK", 1000)
    assert (problem.legalized(scattered) == problem.singles[problem.scores(problem.singles).argmin()]).all()


def test_what_is_scattered_and_no_device_runs_is_replaced_by_what_a_search_begins_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Repairing it takes many minutes for a model of 20,000 operations."""
    repaired = []
    repair = PlacementProblem.repair
    monkeypatch.setattr(PlacementProblem, "repair", lambda *given: repaired.append(1) or repair(*given))
    monkeypatch.setattr("ov_hsdag.problem.problem._MOST_REPAIRED", 10)
    # No scattered placement is judged within one step, as those of many nodes are not within the usual limit.
    monkeypatch.setattr("ov_hsdag.problem.problem.MOST_WORK", 1)
    given = 0
    for seed in range(8):
        problem = random_problem(seed, nodes=150, devices=2, missing=0.2)
        assert problem.evaluate(problem.singles).broken.all()
        for placement in problem.where_supported(np.random.default_rng(seed).integers(0, 2, (3, problem.group_count))):
            assert problem.evaluate(placement, most_work=1).broken[0]
            assert not problem.evaluate(problem.legalized(placement)).broken[0]
            given += 1
    assert len(repaired) < given / 2
