"""Tests the command for ONNX's node tests on a sample of cases."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Cases on which OpenVINO's own clean-up fails.
COL2IM = ("test_col2im", "test_col2im_strides", "test_col2im_pads", "test_col2im_dilations")
SPLIT = (
    "test_affine_grid_2d", "test_argmax_no_keepdims_example", "test_attention_3d_attn_mask", "test_celu_expanded",
    "test_group_normalization_example_expanded", "test_layer_normalization_2d_axis1_expanded", "test_mvn_expanded",
    "test_nllloss_NCd1d2_with_weight_reduction_mean_expanded", "test_thresholdedrelu_expanded_ver18",
)  # fmt: skip
# Cases whose nodes must share a device.
WHOLE = ("test_loop11", "test_if", "test_nonzero_example")


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs the command in a child process."""
    command = [sys.executable, "-m", "benchmarks.truth.onnx_node_cases", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)


@pytest.mark.slow
def test_operators_are_placed_split_and_right(tmp_path: Path) -> None:
    output = tmp_path / "cases.json"
    cases = (*COL2IM, *SPLIT, *WHOLE)
    ended = run(*cases, "--placements", "1", "--output", output)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = {row["case"]: row for row in json.loads(output.read_text())["rows"]}
    assert set(rows) == set(cases)
    for row in rows.values():
        assert row["alone"] == "as ONNX" and row["placed"] >= 1 and not row["failures"]
    assert all(min(rows[case]["submodels"]) >= 2 for case in SPLIT)
    assert all(rows[case]["submodels"] == [] for case in WHOLE)


@pytest.mark.slow
def test_a_case_that_hangs_costs_itself_and_ends_with_status_1(tmp_path: Path) -> None:
    output = tmp_path / "cases.json"
    ended = run("test_abs", "--case-seconds", "0.01", "--output", output)
    assert ended.returncode == 1
    (row,) = json.loads(output.read_text())["rows"]
    assert row["failures"] == ["not done after 0 s"]
