"""The paper's experiment made again: the machines that may have been the paper's, budgets, and what the tables say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from benchmarks.common import harness
from benchmarks.common.contestants import ABLATIONS, LEARNED, NO_NETWORK, OURS, SHIPPED, SIMPLE, Published
from benchmarks.common.machine import about
from benchmarks.common.tables import spread, write
from benchmarks.field import measured, outside, paper_machines, paper_table
from benchmarks.field.paper_machines import interval
from ov_hsdag.costs.profile import Profile
from ov_hsdag.devices import virtual
from ov_hsdag.model.colocation import split_rule
from ov_hsdag.policy.placer import HSDAGPlacer
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.training import corpus
from research.baselines.budget import Budget, Environment
from research.instances import Instance
from research.zoo.catalog import ZOO
from tests.graphs import random_problem
from tests.test_tarnawski import node, written


@pytest.fixture(scope="module")
def fitted() -> PlacementProblem:
    """A small model on the fitted profile."""
    template = corpus.extract(ZOO["inception-v3-small"].build(), split_rule(ov.__version__))
    return paper_machines.priced(template, Profile.load(paper_machines.PROFILE))


def test_intervals_follow_from_the_papers_percentages() -> None:
    bert = interval("BERT")
    assert bert.low == pytest.approx(1 - 0.582)
    # GPU alone at the upper end: HSDAG saves 60.24% of it.
    assert 1 - bert.low / bert.high == pytest.approx(0.6024)


def test_the_profile_says_where_each_figure_comes_from() -> None:
    profile = Profile.load(paper_machines.PROFILE)
    assert tuple(profile.devices) == paper_machines.DEVICES
    for device in profile.devices.values():
        assert all(device.sources.values())
    assert "paper_machines.py" in profile.device("GPU").sources["efficiency"]
    assert profile.device("GPU").sources["efficiency"].startswith("estimate")


def test_drawn_machines_keep_what_is_known(fitted: PlacementProblem) -> None:
    alone = paper_machines.singles_us(fitted)
    bounds = interval("Inception-V3")
    drawn = [paper_machines.draw(fitted, "Inception-V3", number) for number in range(12)]
    ratios = []
    for problem in drawn:
        gpu, cpu = paper_machines.singles_us(problem)
        assert cpu == pytest.approx(alone[1])
        ratios.append(gpu / cpu)
        assert bounds.low * 0.999 <= ratios[-1] <= bounds.high * 1.001
    assert max(ratios) > 1.2 * min(ratios)
    again = paper_machines.draw(fitted, "Inception-V3", 3)
    np.testing.assert_array_equal(again.node_us, drawn[3].node_us)
    # A machine's transfers are the same for every model; residuals are not one factor for all operations.
    other = paper_machines.draw(fitted, "BERT", 3)
    np.testing.assert_array_equal(other.transfer_us, again.transfer_us)
    moved = again.node_us[:, 0] > 0
    assert np.std(np.log(again.node_us[moved, 0] / fitted.node_us[moved, 0])) > 0.05


def test_the_fit_finds_factors_that_reach_the_middles() -> None:
    """Ratios that are a product of the factors, so that there is one answer but for the wish to stay at 1."""

    def ratios(factors: np.ndarray[Any, Any]) -> dict[str, float]:
        return {"Inception-V3": 1.0 / factors[0], "ResNet-50": 0.5 * factors[1], "BERT": 0.4 * factors[2]}

    found = ratios(paper_machines.fit(ratios))
    for model, ratio in found.items():
        assert ratio == pytest.approx(interval(model).middle, rel=0.02)


def test_runs_keep_their_budget_and_say_why_they_have_no_figure() -> None:
    problem = random_problem(3, nodes=20, devices=2)
    learns = next(one for one in LEARNED if one.name == "HSDAG as published")
    cell = harness.run(problem, learns, Budget(evaluations=30), noise=0.1, seed=2)
    assert cell["evaluations"] == 30
    assert cell["us"] != cell["drawn_us"] != cell["again_us"]
    assert cell["us"] == problem.scores(np.frombuffer(bytes.fromhex(cell["placement"]), np.uint8))[0]
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


def test_hsdag_as_published_pays_for_every_placement() -> None:
    problem = random_problem(4, nodes=30, devices=2, objective="throughput")
    environment = Environment(problem, Budget(evaluations=50))
    best = environment.run(Published(), seed=1)
    assert environment.evaluations == 50
    assert best is not None
    assert best.cost * 1e6 == problem.scores(best.placement)[0]


def test_instances_are_judged_by_their_own_objective(tmp_path: Path) -> None:
    nodes = [node(k, 8.0, 2.0, size=60.0) for k in range(3)]
    instance = Instance.load(written(tmp_path, nodes, [(0, 1, 0.5), (1, 2, 0.5)], maxFPGAs=2))
    problem = instance.problem()
    placements = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 2, 0]], np.uint8)
    found = outside.judge(instance, problem, placements) * 1e3
    # Two nodes do not fit into an accelerator; what it sends and receives counts there alone.
    np.testing.assert_allclose(found, [24.0, 16.0, np.inf, 8.0])


def _cell(us: float | None, **more: Any) -> dict[str, Any]:
    noisy = None if us is None else us * 0.97
    why = "" if us is not None else "out of memory"
    return {"us": us, "drawn_us": noisy, "again_us": us, "why": why, "evaluations": 9, "seconds": 1.0, **more}


def made_up_paper() -> dict[str, Any]:
    """CPU 100, GPU 80; ours 70 where it wins; one method has no answer."""
    rows = [one.name for one in paper_table.contestants()]
    times = dict.fromkeys(rows, 80.0) | {"CPU only": 100.0, SHIPPED: 70.0}
    models = list(paper_machines.MODELS)

    def cells(row: str) -> list[dict[str, Any]]:
        return [_cell(None if row == "RNN-based" else times[row])]

    entry = {"nodes": 5, "groups": 4, "coarse_groups": 3, "gpu_over_cpu": 0.8, "gpu_over_cpu_allowed": [0.5, 1.5]}
    return {
        "about": {**about(), "wall_seconds": 60, "processor_seconds": 90},
        "settings": {
            "evaluations": 9, "seconds": 1.0, "noise": 0.016, "seeds": 1, "machines": 2, "learned_machines": 1,
        },
        "models": {model: {**entry, "paper_saved_percent": 50.0} for model in models},
        "fitted": {model: {row: cells(row) for row in rows} for model in models},
        "drawn": {
            model: {row: {k: cells(row)[0] for k in ("0", "1")} for row in rows} for model in models
        },
        "bounds": {model: {"profile": 60.0, "0": 60.0, "1": 70.0} for model in models},
        "ablations": [
            {"model": model, "machine": 0, "objective": objective, "row": one.name, "seed": seed, **_cell(us)}
            for model in models
            for objective in ("latency", "throughput")
            for one in ABLATIONS
            for seed in range(5)
            for us in [80.0 + seed + (50 if one.name == "not trained" else 0)]
        ],
    }  # fmt: skip


def cells_of(text: str) -> dict[str, list[str]]:
    """Rows of a Markdown table by their first cell; all have as many cells as the head."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    assert len({len(line) for line in lines}) == 1
    return {line[0]: line[1:] for line in lines[2:]}


def test_the_papers_tables_have_a_row_for_each_method() -> None:
    layout, drawn, ablations = map(cells_of, paper_table.tables(made_up_paper()).values())
    assert list(layout) == list(drawn) == [one.name for one in paper_table.contestants()]
    models = len(paper_machines.MODELS)
    assert layout[SHIPPED] == ["0.07", "0.07", "30.0"] * models  # 70 of 100 µs
    assert layout["RNN-based"] == ["inf", "inf", "-inf"] * models
    assert drawn[SHIPPED] == ["100", "12.5", "0.0"] * models
    assert drawn[NO_NETWORK] == ["0", "0", "14.3"] * models
    assert ablations["not trained"][0].startswith("**1.6") and ablations["four clusters"][0] == "1.000"


def test_tables_are_written_and_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert spread([{"us": None, "why": "late"}], "us") == "*late*"
    assert spread([_cell(3.0), _cell(4.0)], "us") == "3.50 (3.00 … 4.00)"
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


def _made_again(name: str) -> dict[str, Any]:
    return {"seconds": 2.0, "why": ""}


@pytest.mark.slow
def test_every_way_to_run_a_model_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = "INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT=f32"
    monkeypatch.setenv("OV_HSDAG_VIRTUAL_DEVICES", f"CPU_A:{limits};CPU_B:{limits}")
    core = ov.Core()
    virtual.register(core)
    monkeypatch.setattr(measured, "LEARNED", ())
    problem = build_problem(ZOO["bert-small"].build(), measured.DEVICES, objective="throughput", core=core)
    drawn = measured.methods(problem, 3.0, {})
    known = measured.methods(problem, 3.0, {**drawn, "METIS": {"why": "as it was", "seconds": 0.0}})
    assert known["METIS"]["why"] == "as it was" and known[SHIPPED] is drawn[SHIPPED]
    settings = {"rounds": 3, "seconds": 0.05, "measure_seconds": 5.0, "measure_in": ["throughput"]}
    cell = measured.run(ZOO["bert-small"], "throughput", core, drawn, settings)
    assert all(("of_ours" in row) != ("why" in row) for row in cell.values())
    for name in ("CPU_A", "hetero", "hetero-pipeline", "copies", "AUTO", "METIS", *OURS_NAMES):
        assert "of_ours" in cell[name], cell[name]
