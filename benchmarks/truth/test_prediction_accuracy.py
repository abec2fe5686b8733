"""Tests the benchmark of predictions: its placements are legal, and its tables follow from its numbers."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from benchmarks.field.unseen import DEVICES, declared
from benchmarks.truth import prediction_accuracy as script
from ov_hsdag.devices.virtual import register
from ov_hsdag.problem.pricing import build_problem
from research.zoo.catalog import ZOO


def test_draws_are_legal_different_and_of_all_kinds(two_cpu_core: ov.Core) -> None:
    problem = build_problem(ZOO["mobilenet-v2-small"].build(), DEVICES, core=two_cpu_core)
    drawn = script.draw(problem, 15)
    placements = np.stack([placement for _, placement in drawn])
    assert (problem.evaluate(placements).infeasible == 0).all()
    assert len(np.unique(placements, axis=0)) == 15
    assert len({kind for kind, _ in drawn}) == script.KINDS
    assert all(placement.min() != placement.max() for placement in placements)
    assert [script._text(placement) for _, placement in script.draw(problem, 15)] == [
        script._text(placement) for placement in placements
    ]


def test_disturbed_turns_are_found() -> None:
    quiet, loud = [[9.0, 9.1], [1.0, 1.01], [4.0, 4.1]], [[18.0, 18.1], [2.0, 2.1], [4.0, 4.1]]
    entries = [{"turns_us": quiet} for _ in range(10)] + [{"turns_us": loud}]
    entries[3] = {"turns_us": quiet, "periods_us": [[3.0, 3.0], [1.0, 1.0]]}
    entries[4] = {"turns_us": quiet, "periods_us": [[3.0, 3.0], [1.0, 1.0]]}
    entries[5] = {"turns_us": quiet, "periods_us": [[6.0, 6.0], [2.0, 2.0]]}
    assert script._disturbed(entries, "turns_us") == [10]
    assert script._disturbed(entries, "periods_us") == [5]
    assert script._disturbed([], "turns_us") == []


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2, reason="binds threads to two cores"
)
def test_pipelines_are_bound_to_one_core_for_each_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own, as the threads of earlier models would be in the way."""
    model = ZOO["mobilenet-v2-small"]
    monkeypatch.setenv("OV_HSDAG_VIRTUAL_DEVICES", declared("bf16"))
    core = ov.Core()
    register(core)
    problem = build_problem(model.build(), DEVICES, core=core)
    path = tmp_path / "measured.json"
    drawn = [script._text(placement) for _, placement in script.draw(problem, 2)]
    path.write_text(json.dumps({"placements": [{"kind": "any", "placement": text} for text in drawn]}))
    script.measure_pipelines(model, path, time.perf_counter() + 3000)
    first, second = json.loads(path.read_text())["placements"]
    assert "periods_us" not in second  # two of five
    assert np.shape(first["periods_us"]) == (2, script.PERIODS)
    assert (np.array(first["periods_us"]) > 0).all()


def test_misses_name_what_is_below_its_floor() -> None:
    good = {
        "spearman": 0.99,
        "median_error": 0.05,
        "worst_error": 0.1,
        "throughput_spearman": 0.95,
        "throughput_median_error": 0.07,
    }
    result = {"name": "m", "placements": 40, "throughput_placements": 16, "model": good, "devices": dict(good)}
    assert script.misses(result) == []
    assert "| m, with the model | 40 (16) | 0.990 | 5.0% | 10% | 0.950 | 7.0% |" in script.table([result])
    bad = {**result, "devices": {**good, "median_error": 0.3}, "model": {**good, "throughput_spearman": 0.8}}
    assert len(script.misses(bad)) == 2
