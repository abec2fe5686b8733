"""Tests the legality table on a few models of each kind."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from benchmarks.truth import legality_table as table
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.model.graph import NodeKind
from ov_hsdag.problem.pricing import build_problem
from research.zoo.catalog import ZOO
from tests.processes import ended

MODELS = (
    "bert-small-fp16", "llama-beams", "llama-small-int4-weights", "nms-detector", "scan", "splitting", "masked-pooling",
    "tensor-iterator", "string-classifier", "mobilenet-tflite", "branching",
)  # fmt: skip


def run(*arguments: str | Path, status: int = 0) -> str:
    """Runs the script, which must end with a status. Returns what it printed."""
    return ended(sys.executable, "-m", table.MODULE, *arguments, status=status, cwd=table.ROOT).stdout


@pytest.mark.slow
def test_every_kind_of_model_runs_split_and_goes_on_where_it_ended(tmp_path: Path) -> None:
    output = tmp_path / "table.json"
    options = ("--pairs", "cpu", "npu", "--placements", "2", "--jobs", "2", "--output", output)
    run(*options, *MODELS[:4])
    tried = [line.split()[1] for line in run(*options, *MODELS).splitlines() if ": right " in line]
    assert sorted(tried) == sorted(f"{name}:" for name in MODELS[4:] * 2)
    rows = json.loads(output.read_text())
    assert {(row["model"], row["pair"]) for row in rows} == {(name, pair) for name in MODELS for pair in ("cpu", "npu")}
    for row in rows:
        assert row["placements"] == row["compiled"] == row["equal"] == row["exact"] == 2, row
    assert f"{len(MODELS)} models, {2 * len(MODELS)} placements" in output.with_suffix(".md").read_text()


def test_a_row_that_fails_is_kept_and_ends_with_status_1(tmp_path: Path) -> None:
    output = tmp_path / "table.json"
    run("--pairs", "cpu", "--row-seconds", "0.01", "--output", output, "lstm", status=1)
    assert json.loads(output.read_text())[0]["failures"] == ["not done after 0 s"]
    assert "lstm: not done after 0 s" in output.with_suffix(".md").read_text()


@pytest.mark.parametrize("name", ["lstm-stateful", "nms-detector", "mixture-of-experts-small"])
def test_a_device_that_lacks_operations_gets_none_of_them(two_cpu_core: ov.Core, name: str) -> None:
    problem = build_problem(ZOO[name].build(), DeviceSet(("CPU_A", "CPU_B")), core=two_cpu_core)
    lacking = table.lacking(problem, "CPU_A")
    types = np.array(problem.graph.types)
    inside = (problem.graph.kinds == NodeKind.OP) | (problem.graph.kinds == NodeKind.SINK)
    missing = inside & ~np.isin(types, table.SUPPORTED.split())
    assert missing.any()
    for placement in table.draw(lacking, 3, seed=0):
        assert placement.min() != placement.max()
        assert (placement[lacking.groups][missing] == 1).all()
