"""Tests of learning_gates: noise has its share, and agreement does not depend on the numbers of equal devices."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.quality import learning_gates
from tests.graphs import random_problem


def test_a_share_of_the_groups_is_redrawn() -> None:
    problem = random_problem(3, nodes=40, devices=3)
    placement = problem.single(1)
    for share in learning_gates.REDRAWN:
        noisy = learning_gates.redrawn(problem, placement, share, np.random.default_rng(0))
        assert (noisy != placement).sum() == round(share * problem.group_count)


def test_redrawn_groups_go_where_they_are_supported() -> None:
    problem = random_problem(3, nodes=40, devices=3, missing=0.4)
    placement = problem.where_supported(problem.single(1))
    noisy = learning_gates.redrawn(problem, placement, 1.0, np.random.default_rng(0))
    assert problem.group_supported[np.arange(problem.group_count), noisy].all()


def test_equal_devices_may_change_places() -> None:
    problem = random_problem(3, nodes=40, devices=2)
    half = (np.arange(problem.group_count) % 2).astype(np.uint8)
    assert learning_gates.agreement(problem, half, half) == 1.0
    assert learning_gates.agreement(problem, 1 - half, half) == 0.0
    equal = np.repeat(problem.node_us[:, :1], 2, axis=1)
    alike = type(problem)(**{**problem.__getstate__(), "node_us": equal, "transfer_us": np.zeros((2, 2))})
    alike = type(problem)(**{**alike.__getstate__(), "transfer_us_per_byte": np.zeros((2, 2))})
    assert len(set(alike.kinds.tolist())) == 1
    assert learning_gates.agreement(alike, 1 - half, half) == 1.0


def test_gains_are_over_the_search_alone() -> None:
    cell = {"best": 100.0, "scores": {"search alone": [110.0, 110.0], "start": [100.0, 100.0]}, "agreement": {}}
    lines = learning_gates.starts_table([cell, cell]).splitlines()
    assert lines[2].startswith("| search alone | – | 10.00% | 10.0% | +0.00%")
    assert lines[3].startswith("| start | – | 0.00% | 0.0% | +9.53%")


def test_starts_of_a_small_problem_end_no_worse_than_the_oracle() -> None:
    problem = random_problem(5, nodes=30, devices=3, objective="throughput", submodel_us=2.0)
    cell = learning_gates.gate_starts(problem, best_seconds=0.05)
    assert min(cell["scores"]["oracle, 0% redrawn"]) == pytest.approx(cell["best"])
    assert set(cell["agreement"]) == {"shipped policy", "contiguous partition"}
    assert all(len(row) == learning_gates.SEEDS for name, row in cell["scores"].items() if name != "default effort")
