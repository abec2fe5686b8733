"""The table of the paper's experiment: what it says follows from its numbers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from ov_hsdag.problem.problem import PlacementProblem
from tests.graphs import random_problem
from tests.scripts import loaded

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "paper_table.py"


@pytest.fixture(scope="module")
def table() -> Iterator[ModuleType]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with loaded(SCRIPT) as module:
        yield module
    torch.set_num_threads(threads)


def two_devices(gpu_us: float, cpu_us: float, submodel_us: float = 5.0) -> PlacementProblem:
    problem = random_problem(3, nodes=20, submodel_us=submodel_us)
    return replace(
        problem,
        devices=("GPU", "CPU"),
        node_us=np.tile([float(gpu_us), float(cpu_us)], (problem.graph.nodes, 1)),
        transfer_us=np.full((2, 2), 1.0),
        transfer_us_per_byte=np.zeros((2, 2)),
    )


def made_up(table: ModuleType, rows: dict[str, list[float]]) -> dict[str, Any]:
    """A result with one model: one latency is a baseline's, several are seeds'."""
    return {
        "models": {"M": {"latency_us": {row: values[0] for row, values in rows.items() if len(values) == 1}}},
        "runs": {
            f"M | {row} | {seed}": {"best_us": value}
            for row, values in rows.items()
            if len(values) > 1
            for seed, value in enumerate(values)
        },
    }


def test_comparison_needs_a_difference_beyond_the_seeds(table: ModuleType) -> None:
    result = made_up(
        table,
        {
            "base": [100],
            "fast": [50, 51, 52, 53, 54],
            "wide": [40, 45, 60, 70, 80],
            "same": [100, 100, 100.05, 100, 100],
        },
    )
    sign = {pair: table.compare(result, "", *pair).signs["M"] for pair in (
        ("fast", "base"), ("base", "fast"), ("fast", "wide"), ("same", "base"), ("wide", "base"),
    )}  # fmt: skip
    assert sign == {
        ("fast", "base"): -1,
        ("base", "fast"): 1,
        ("fast", "wide"): 0,
        ("same", "base"): 0,
        ("wide", "base"): -1,
    }


def test_verdicts_name_the_models(table: ModuleType) -> None:
    assert table.Comparison("", {"A": -1, "B": -1}).verdict == "confirmed"
    assert table.Comparison("", {"A": -1, "B": 0}).verdict == "confirmed for A; no difference for B"
    assert table.Comparison("", {"A": 1, "B": 0}).verdict == "not confirmed: no difference for B; the reverse for A"


def test_speed_up_is_the_time_saved(table: ModuleType) -> None:
    assert table.saved(10.0, 4.0) == pytest.approx(60)
    assert table.saved(10.0, 12.5) == pytest.approx(-25)
    result = made_up(
        table,
        {table.CPU: [100], table.GPU: [160], table.CPU_FIRST: [100], table.GPU_FIRST: [150], table.FULL: [70, 80, 90]},
    )
    assert table.gains(result, "") == pytest.approx({"over_cpu_only_percent": 20, "over_others_percent": 50})


def test_optimum_is_single_where_a_cut_proves_it(table: ModuleType) -> None:
    assert table.optimum_is_single(two_devices(1, 10))
    split = two_devices(1, 10, submodel_us=0.0)
    node_us = split.node_us.copy()
    node_us[: len(node_us) // 2] = [100, 1]
    assert not table.optimum_is_single(replace(split, node_us=node_us))


def test_whole_table(
    table: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    problems = {"resnet50": two_devices(1, 2), "bert-base": two_devices(3, 2)}
    monkeypatch.setattr(table, "load", lambda folder, model: (problems[model], model))
    monkeypatch.setattr(table, "ships", lambda name: False)
    output = tmp_path / "table.json"
    arguments = ["paper_table.py", "--models", "ResNet-50", "BERT", "--seeds", "2", "--episodes", "2"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--output", str(output)])
    assert table.main() == 0
    first = capsys.readouterr()
    result = json.loads(output.read_text())
    assert len(result["runs"]) == 2 * 11 * 2 == first.err.count("best")
    assert result["rows"]["GPU only"]["ResNet-50"]["speed_up_percent"] > 40
    assert result["rows"]["GPU only"]["BERT"]["speed_up_percent"] < -40
    for name, model in (("ResNet-50", "resnet50"), ("BERT", "bert-base")):
        singles = problems[model].scores(np.stack([problems[model].single(0), problems[model].single(1)]))
        assert result["models"][name]["latency_us"]["minimum cut"] <= singles.min()
        for key, run in result["runs"].items():
            if key.startswith(f"{name} | ") and run["split_only"]:
                assert all(run["best_groups_on"].values())
    page = output.with_suffix(".md").read_text()
    assert page == first.out.removesuffix("\n")
    assert "Everything here is simulated" in page and "none shipped" in page
    # The same settings again: nothing is trained anew, and the page is the same.
    assert table.main() == 0
    again = capsys.readouterr()
    assert again.err == "" and again.out == first.out
    # Other costs: that model is.
    problems["bert-base"] = two_devices(4, 2)
    assert table.main() == 0
    assert capsys.readouterr().err.count("BERT") == 22
