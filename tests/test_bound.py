"""Where devices stay empty, or gain little, a line says what bounds the time between results."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

import ov_hsdag
from ov_hsdag.explaining.bound import describe_bound
from ov_hsdag.explaining.explanation import Explanation
from ov_hsdag.explaining.report_data import ReportSource
from ov_hsdag.placing.candidates import NamedPlacement, best_by_prediction
from ov_hsdag.placing.reasons import margin_that_decides
from ov_hsdag.utils.lazy import opset13 as ops
from tests.commands import DEVICE, ran
from tests.graphs import problem_of


def one_long_operation(size: int = 2048) -> ov.Model:
    """A MatMul that takes most of the time, between short ones."""
    x = ops.parameter([512, 64], ov.Type.f32, name="x")
    generator = np.random.default_rng(0)

    def layer(node: ov.Output, inputs: int, outputs: int, name: str) -> ov.Node:
        weights = ops.constant(generator.standard_normal((outputs, inputs), np.float32))
        return ops.matmul(node, weights, False, True, name=name)

    node = layer(ops.relu(layer(x, 64, size, "first"), name="relu"), size, size, "long")
    return ov.Model([ops.result(layer(ops.relu(node, name="relu2"), size, 64, "last"))], [x], "long")


@pytest.mark.usefixtures("declared")
def test_the_operation_that_bounds_is_named_with_its_share(tmp_path: Path) -> None:
    model = one_long_operation()
    placement = ov_hsdag.place(model, DEVICE, objective="throughput", policy="none")
    assert isinstance(placement.source, ReportSource)
    line = placement.source.bound()
    found = re.fullmatch(
        r"bound: (?:(CPU_[AB]) has nothing: )?long \(MatMul\) alone takes (\d+)% of the time between results"
        r" on the fastest device for it, so that no split gives more than (\d\.\d\d)x the best single device",
        line,
    )
    assert found is not None, line
    gain = placement.predicted_gain(placement.chosen)
    assert gain is not None and gain <= float(found[3]) + 0.005
    assert int(found[2]) >= 80
    assert [found[1]] == [name for name in ("CPU_A", "CPU_B") if name not in placement.used()] or not found[1]
    # The command, explain and the report say the same.
    ov.save_model(one_long_operation(), tmp_path / "long.xml")
    options = ("--device", DEVICE, "--objective", "throughput", "--no-measure", "--policy", "none")
    placed = tmp_path / "placed.xml"
    said = ran("place", tmp_path / "long.xml", *options, "--output", placed, "--report", tmp_path / "a.html").stdout
    told = " ".join(said.split())
    assert "bound: " in told and "so that no split gives more than" in told
    assert "so that no split gives more than" in " ".join(ran("explain", placed).stdout.split())
    assert "so that no split gives more than" in (tmp_path / "a.html").read_text(encoding="utf-8")


def test_devices_that_stay_empty_are_named() -> None:
    us = [[1.0] * 4, [40.0] * 4, [1.0] * 4]
    problem = problem_of([[0], [1], [2]], us, objective="throughput")
    line = describe_bound(Explanation(problem, problem.single(2)))
    empty = [name for number, name in enumerate(problem.devices) if number != 2]
    assert (
        line.startswith(f"bound: {', '.join(empty)} have nothing: ") and "alone takes 93% of the time between" in line
    )
    assert line.endswith("so that no split gives more than 1.07x the best single device")


def test_what_a_split_costs_is_named_where_no_operation_is_too_long() -> None:
    problem = problem_of([[number] for number in range(8)], [[1.0] * 2] * 8, objective="throughput")
    placement = np.array([0, *(number % 2 for number in range(8))], np.uint8)
    line = describe_bound(Explanation(problem, placement))
    assert re.search(r"spends of the time between results \d+% in calls of submodels and \d+% in transfers", line)


def test_operations_that_must_stay_together_are_named_as_such() -> None:
    us = [[1.0] * 3, [40.0] * 3, [40.0] * 3, [1.0] * 3]
    groups = np.array([0, 1, 2, 2, 3, 3], np.int32)  # an input, four operations and an output
    problem = problem_of([[0], [1], [2], [3]], us, objective="throughput", groups=groups)
    line = describe_bound(Explanation(problem, np.array([0, 0, 1, 1], np.uint8)))
    assert "2 operations that must share a device (" in line and ") take 9" in line


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_there_is_no_line_where_devices_are_used_or_take_turns(objective: str) -> None:
    problem = problem_of([[0], [1]], [[50.0] * 2] * 2, objective=objective)
    split = np.array([0, 0, 1], np.uint8) if objective == "throughput" else np.array([0, 0, 0], np.uint8)
    assert describe_bound(Explanation(problem, split)) == ""


def test_explain_is_a_screen_by_default_and_more_on_request(tmp_path: Path) -> None:
    model = one_long_operation(256)
    ov_hsdag.place(model, "HETERO:GPU,CPU", affinity={"first": "GPU", "long": "CPU", "last": "GPU"})
    ov.save_model(model, tmp_path / "placed.xml")
    short = ran("explain", tmp_path / "placed.xml", COLUMNS="200").stdout
    every = ran("explain", tmp_path / "placed.xml", "--all", COLUMNS="200").stdout
    assert short.count("\n") <= 40 and "--all shows every submodel and operation" in short
    assert "--all shows" not in every
    assert all(name in every for name in ("relu2 ", "first ", "last "))


def test_amargin_that_decides_is_said() -> None:
    problem = problem_of([[0], [1]], [[500.0, 498.5]] * 2)
    candidates = [
        NamedPlacement(name, problem.single(device)) for device, name in enumerate(("pipeline", "hsdag (less on GPU)"))
    ]
    assert best_by_prediction(problem, candidates) is candidates[0]
    told = margin_that_decides(candidates[0], problem, candidates, calibrated=False)
    assert told == "hsdag is predicted 0.30% better and not taken: a less simple placement has to gain 0.5%"
    assert margin_that_decides(candidates[1], problem, candidates, calibrated=False) == ""
