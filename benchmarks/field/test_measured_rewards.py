"""Tests of learning from measured rewards, with a simulator in place of devices."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openvino as ov
import pytest

from benchmarks.field import measured_rewards
from benchmarks.field.measured_rewards import CORRECTED, METHODS, TUNED, Cell, Meter
from ov_hsdag.measuring.evaluator import Measurement
from ov_hsdag.problem.problem import PlacementProblem
from tests.graphs import random_problem


class SimulatedMeasurer:
    """The simulator in place of devices. `measured` counts its measurements; after `ends_after` it is interrupted."""

    measured = 0
    ends_after = 10**9

    def __init__(self, model: Any, devices: Any, objective: str, core: Any, *, reference: str | None, **_: Any) -> None:
        self.problem = problem()
        self.reference = reference or self.problem.devices[0]
        self.singles = {name: self._of(self.problem.single(k)) for k, name in enumerate(self.problem.devices)}

    def measure(self, affinity: dict[str, str], *, rounds: int) -> Measurement:
        if type(self).measured >= type(self).ends_after:
            raise KeyboardInterrupt
        type(self).measured += 1
        return self._of(self.problem.placement_of(affinity))

    def close(self) -> None:
        pass

    def _of(self, placement: np.ndarray) -> Measurement:
        score, reference = self.problem.scores(np.stack([placement, self.problem.single(0)]))
        if not np.isfinite(score):
            return Measurement(0.0, error="it did not run")
        return Measurement(reference / score, score, reference, (reference / score,), seconds=1.0)


def problem() -> PlacementProblem:
    return random_problem(3, nodes=25, devices=2, objective="latency")


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    SimulatedMeasurer.measured, SimulatedMeasurer.ends_after = 0, 10**9
    monkeypatch.setattr(measured_rewards, "Measurer", SimulatedMeasurer)
    monkeypatch.setattr(measured_rewards, "build_problem", lambda *_, **__: problem())
    monkeypatch.setattr(measured_rewards, "ZOO", {"a": SimpleNamespace(build=lambda: None)})


def settings(measurements: int) -> dict[str, Any]:
    return {"measurements": measurements, "trial_seconds": 0.1, "seed": 0}


def test_a_placement_is_measured_once_and_counts_each_time(tmp_path: Path) -> None:
    meter = Meter(problem(), ov.Core(), ov.Model([], [], ""), tmp_path / "log.jsonl", 0.1)
    batch = np.stack([problem().single(0), problem().single(1), problem().single(0)])
    costs = meter.costs(batch)
    np.testing.assert_allclose(costs, problem().scores(batch) * 1e-6)
    assert SimulatedMeasurer.measured == 2 and len(meter.history) == 3
    walls = [wall for _, wall in meter.history]
    assert walls[0] >= 1 and walls[1] >= 2 and walls[2] < 3  # the third took no time of the devices
    again = Meter(problem(), ov.Core(), ov.Model([], [], ""), tmp_path / "log.jsonl", 0.1)
    np.testing.assert_array_equal(again.costs(batch), costs)
    assert SimulatedMeasurer.measured == 2


@pytest.mark.parametrize("method", [*METHODS[:4], pytest.param(TUNED, marks=pytest.mark.slow), CORRECTED])
def test_a_run_that_was_interrupted_goes_on_as_if_it_was_not(method: str, tmp_path: Path) -> None:
    cell, count = Cell("a", "latency", method), 6 if method in (TUNED, CORRECTED) else 24
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole = measured_rewards.run_cell(tmp_path / "whole", settings(count), cell)
    assert len(whole["history"]) >= count > whole["failed"]
    distinct = SimulatedMeasurer.measured
    SimulatedMeasurer.measured, SimulatedMeasurer.ends_after = 0, min(distinct - 1, 4)
    with pytest.raises(KeyboardInterrupt):
        measured_rewards.run_cell(tmp_path / "parts", settings(count), cell)
    log = tmp_path / "parts" / f"{cell.stem}.jsonl"
    log.write_text(log.read_text() + '{"placement": "00')  # cut off
    SimulatedMeasurer.ends_after = 10**9
    parts = measured_rewards.run_cell(tmp_path / "parts", settings(count), cell)
    assert [cost for cost, _ in parts["history"]] == [cost for cost, _ in whole["history"]]
    assert parts["placement"] == whole["placement"]
    assert SimulatedMeasurer.measured <= distinct + 1
    # A finished run is not made again.
    SimulatedMeasurer.ends_after = 0
    assert measured_rewards.run_cell(tmp_path / "parts", settings(count), cell) == json.loads(
        (tmp_path / "parts" / f"{cell.stem}.json").read_text()
    )


def test_tables_tell_the_best_so_far() -> None:
    history = [[2.0, 10.0], [None, 50.0], [1.0, 70.0], [0.5, 400.0]]
    run = {"reference_seconds": 1.0, "history": history}
    cell = {
        "runs": dict.fromkeys(METHODS, run),
        "turns": {TUNED: {"of_single": [1.5, 1.4, 1.6], "submodels": 2}, "copies": {"why": "no memory"}},
    }
    settings = {"measurements": 100, "models": ["a"], "objectives": ["latency"]}
    turns, by_count, by_time = measured_rewards.tables({"settings": settings, "cells": {"a, latency": cell}}).values()
    assert f"| {TUNED} | 1.500 (1.400 … 1.600) |" in turns and "| copies | – |" in turns
    assert "| GO | 2.000, 2.000, 2.000 |" in by_count
    assert "| GO | 0.500, 1.000, 2.000, 2.000 |" in by_time
