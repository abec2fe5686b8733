"""Tests of comparisons of methods: budgets, the objective that counts, and tables."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from benchmarks.common import harness
from benchmarks.common.contestants import LEARNED, NO_NETWORK, OURS, SHIPPED, SIMPLE
from benchmarks.common.machine import about
from benchmarks.common.ranks import attainable, spearman
from benchmarks.common.tables import spread, write
from benchmarks.field import measured, outside, pipelines, several_models
from benchmarks.field.unseen import DEVICES
from ov_hsdag.applications.application_file import read_application
from ov_hsdag.policy.placer import HSDAGPlacer
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.problem.problem import PlacementProblem
from research.baselines.budget import Budget
from research.instances import Instance
from research.zoo.catalog import ZOO
from tests.graphs import convolutions, random_problem
from tests.test_tarnawski import node, written


@pytest.mark.slow
def test_runs_keep_their_budget_and_say_why_they_have_no_figure() -> None:
    problem = random_problem(3, nodes=20, devices=2)
    cell = harness.run(problem, LEARNED[0], Budget(evaluations=30), seed=2)
    assert cell["evaluations"] == 30
    placement = np.frombuffer(bytes.fromhex(cell["placement"]), np.uint8)
    assert cell["us"] == pytest.approx(problem.scores(placement)[0])
    late = harness.run(problem, OURS[1], Budget(seconds=0.0))
    assert (late["us"], late["why"]) == (None, "no placement within 0 s")
    full = replace(problem, memory_bytes=np.zeros(2, np.int64))
    assert {harness.run(full, one, Budget())["why"] for one in OURS} == {"finds no placement"}
    assert harness.run(full, SIMPLE[0], Budget())["why"] == "infeasible"


def test_a_policy_is_asked_unless_it_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(3, nodes=20, devices=2)
    asked: list[PlacementProblem] = []
    first = HSDAGPlacer.place
    monkeypatch.setattr(HSDAGPlacer, "place", lambda self, problem: asked.append(problem) or first(self, problem))
    none, shipped = OURS
    assert harness.run(problem, none, Budget())["us"] is not None and not asked
    assert harness.run(problem, shipped, Budget())["us"] is not None and len(asked) == 1


def test_instances_are_judged_by_their_own_objective(tmp_path: Path) -> None:
    nodes = [node(k, 8.0, 2.0, size=60.0) for k in range(3)]
    instance = Instance.load(written(tmp_path, nodes, [(0, 1, 0.5), (1, 2, 0.5)], maxFPGAs=2))
    problem = instance.problem()
    placements = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 2, 0]], np.uint8)
    found = outside.judge(instance, problem, placements) * 1e3
    # Two nodes do not fit into an accelerator; what it sends and receives counts there alone.
    np.testing.assert_allclose(found, [24.0, 16.0, np.inf, 8.0])


def cells_of(text: str) -> dict[str, list[str]]:
    """Rows of a Markdown table by their first cell; all have as many cells as the head."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    assert len({len(line) for line in lines}) == 1
    return {line[0]: line[1:] for line in lines[2:]}


def test_tables_are_written_and_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert spread([{"us": None, "why": "late"}], "us") == "*late*"
    assert spread([{"us": 3.0}, {"us": 4.0}], "us") == "3.50 (3.00 … 4.00)"
    write(tmp_path / "some.json", {"about": about(), "settings": {"seconds": 1.0}}, {"Costs:": "| |"})
    written = (tmp_path / "some.md").read_text(encoding="utf-8")
    assert written == capsys.readouterr().out[:-1] and "seconds 1.0\n\nCosts:\n\n|" in written


def test_the_measured_tables_mark_what_is_faster() -> None:
    def row(centre: float) -> dict[str, Any]:
        return {"value": 1.0, "of_ours": [centre, centre - 0.01, centre + 0.01], "same_as": ""}

    ours = measured.MEASURED
    cell = {ours: row(1.0), "METIS": row(1.2), "copies": {"why": "needs the whole model on a device"}}
    result = {"cells": {"a": {"throughput": cell}, "b": {"throughput": {ours: row(1.0), "METIS": row(0.9)}}}}
    (text,) = measured.tables(result).values()
    rows = cells_of(text)
    assert rows["METIS"] == ["**1.200**", "0.900", "1.039"]
    assert "copies" not in rows and rows[ours] == ["1.000", "1.000", "1.000"]


OURS_NAMES = (NO_NETWORK, SHIPPED, measured.MEASURED)


@pytest.mark.slow
def test_runs_that_a_file_has_are_not_made_again(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    settings = {"seconds": 1.0}
    path.write_text(json.dumps({"settings": settings, "about": {"wall_seconds": 7}, "cells": {"a": {"x": 1, "y": 2}}}))
    assert harness.earlier(path, settings, None) == harness.earlier(path, {"seconds": 2.0}, []) == {}
    assert harness.earlier(path, settings, ["x"])["cells"] == {"a": {"y": 2}}
    known = {"a": {"seconds": 1.0, "why": ""}, "b": {"seconds": 0.0, "why": "not installed: no module"}}
    runs = harness.Runs(_made_again, known.get)
    found = runs.of(["c", "a", "b"])
    assert list(found) == ["c", "a", "b"] and found["a"] is known["a"] and runs.made == 2
    assert found["b"] == found["c"] == {"seconds": 2.0, "why": ""}
    told = harness.made(harness.earlier(path, settings, []), runs, found.values())
    assert told["processor_seconds"] == 5 and told["wall_seconds"] >= 7


@pytest.mark.slow
def test_what_runs_have_found_is_saved_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "SAVE_EVERY", -1.0)
    saved: list[list[str]] = []
    runs = harness.Runs(_made_again, {"a": {"seconds": 1.0, "why": ""}}.get, lambda results: saved.append([*results]))
    assert list(runs.of(["c", "a", "b"])) == ["c", "a", "b"]
    assert saved == [["a", "c"], ["a", "c", "b"]]


def test_ranks_are_told_beside_what_noise_lets_them_be() -> None:
    random = np.random.default_rng(0)
    truth = random.normal(size=2000)
    halves = [truth + random.normal(size=2000) for _ in range(2)]
    exact = spearman(truth, np.mean(halves, axis=0))
    assert exact is not None and attainable(*halves) == pytest.approx(exact, abs=0.03)
    assert spearman([1.0, 2.0], [1.0, 2.0]) is None is attainable([1.0], [1.0])
    assert attainable([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) == 0


def test_pipelines_are_applications(tmp_path: Path) -> None:
    for name in ("embedder", "reranker", "detector", "resnet", "mobilenet", "whisper", "llama"):
        (tmp_path / f"{name}.xml").touch()
    counts = {}
    for name, text in pipelines.APPLICATIONS.items():
        (tmp_path / "app.toml").write_text("[models]\n" + re.sub('"(whisper|llama)"', r'"\1.xml"', text))
        counts[name] = [one.count for one in read_application(tmp_path / "app.toml").models.values()]
    assert counts == {"whisper": [1], "retrieval": [1, 4, 1], "vision": [1, 4, 4]}


def _made_again(name: str) -> dict[str, Any]:
    return {"seconds": 2.0, "why": ""}


@pytest.mark.slow
def test_every_way_to_run_a_model_is_measured(two_cpu_core: ov.Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "LEARNED", ())
    problem = build_problem(ZOO["bert-small"].build(), DEVICES, objective="throughput", core=two_cpu_core)
    drawn = measured.methods(problem, 3.0, {})
    known = measured.methods(problem, 3.0, {**drawn, "METIS": {"why": "as it was", "seconds": 0.0}})
    assert known["METIS"]["why"] == "as it was" and known[SHIPPED] is drawn[SHIPPED]
    settings = {"rounds": 3, "seconds": 0.05, "measure_seconds": 5.0, "measure_in": ["throughput"]}
    cell = measured.run(ZOO["bert-small"], "throughput", two_cpu_core, drawn, settings)
    assert all(("of_ours" in row) != ("why" in row) for row in cell.values())
    for name in ("CPU_A", "hetero", "hetero-pipeline", "copies", "AUTO", "METIS", *OURS_NAMES):
        assert "of_ours" in cell[name], cell[name]


@pytest.mark.slow
def test_applications_are_judged(tmp_path: Path) -> None:
    (tmp_path / "hear").mkdir()
    for name, channels in {"encoder": 8, "decoder": 16}.items():
        model = convolutions(channels)
        model.inputs[0].set_names({name})
        ov.save_model(model, tmp_path / f"hear/openvino_{name}_model.xml")
    (tmp_path / "app.toml").write_text('[models.hear]\npath = "hear"\nshape = "encoder=[1,3,32,32]"')
    output = tmp_path / "found.json"
    several_models.main([str(tmp_path / "app.toml"), "--seconds=5", "--rounds=1", f"--output={output}"])
    (row,) = json.loads(output.read_text())["applications"]
    assert row["models"] == {"hear/encoder_model": 1, "hear/decoder_model": 1} and not row["failed"]
    assert row["ran"] >= 3 and row["measured"]["of_single"] > 0
