"""The benchmark of predictions: what it draws is legal, and what it says follows from its numbers."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import openvino as ov
import pytest

from ov_hsdag.bench.zoo import ZOO
from ov_hsdag.place import build_problem

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "prediction_accuracy.py"


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("prediction_accuracy", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["prediction_accuracy"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["prediction_accuracy"]


def test_draws_are_legal_different_and_of_all_kinds(script: ModuleType, two_cpu_core: ov.Core) -> None:
    problem = build_problem(ZOO["mobilenet-v2-small"].build(), script.DEVICES, core=two_cpu_core)
    drawn = script.draw(problem, 15)
    placements = np.stack([placement for _, placement in drawn])
    assert (problem.evaluate(placements).infeasible == 0).all()
    assert len(np.unique(placements, axis=0)) == 15
    assert len({kind for kind, _ in drawn}) == script.KINDS
    assert all(placement.min() != placement.max() for placement in placements)
    assert [script._text(placement) for _, placement in script.draw(problem, 15)] == [
        script._text(placement) for placement in placements
    ]


def test_disturbed_turns_are_found(script: ModuleType) -> None:
    quiet, loud = [[9.0, 9.1], [1.0, 1.01], [4.0, 4.1]], [[18.0, 18.1], [2.0, 2.1], [4.0, 4.1]]
    entries = [{"turns_us": quiet} for _ in range(10)] + [{"turns_us": loud}]
    entries[3] = {"turns_us": quiet, "periods_us": [[3.0, 3.0], [1.0, 1.0]]}
    entries[4] = {"turns_us": quiet, "periods_us": [[3.0, 3.0], [1.0, 1.0]]}
    entries[5] = {"turns_us": quiet, "periods_us": [[6.0, 6.0], [2.0, 2.0]]}
    assert script._disturbed(entries) == [5, 10]
    assert script._disturbed([]) == []


def test_period_by_cores_is_between_the_largest_submodel_and_all_work(
    script: ModuleType, two_cpu_core: ov.Core
) -> None:
    problem = build_problem(ZOO["mobilenet-v2-small"].build(), script.DEVICES, core=two_cpu_core)
    placements = np.stack([placement for _, placement in script.draw(problem, 10)])
    latency = problem.evaluate(placements).latency_us
    period = script.cores_period(problem, placements)
    assert (period >= latency / 2 - 1e-9).all()
    assert (period <= latency + 1e-9).all()
    alone = script.cores_period(problem, problem.single(0)[None])
    assert alone[0] == pytest.approx(problem.node_us[:, 0].sum())


def test_misses_name_what_is_below_its_floor(script: ModuleType) -> None:
    good = {
        "spearman": 0.99,
        "median_error": 0.05,
        "worst_error": 0.1,
        "throughput_spearman": 0.95,
        "cores_spearman": 0.9,
    }
    result = {"name": "m", "placements": 40, "throughput_placements": 16, "model": good, "devices": dict(good)}
    assert script.misses(result) == []
    assert "| m | 40 (16) | 0.990 | 5.0% | 10% | 0.950 |" in script.table([result])
    bad = {**result, "devices": {**good, "median_error": 0.3}, "model": {**good, "throughput_spearman": 0.8}}
    assert len(script.misses(bad)) == 2
