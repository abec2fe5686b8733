"""`ov-hsdag bench`: every placer's placement is run on real HETERO, and bad input costs nothing."""

from __future__ import annotations

import csv
import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from ov_hsdag.costs.stored import DeviceCosts, ModelCosts, graph_hash, identity, path_beside
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring.evaluator import PIPELINE_HINT, Measurement
from ov_hsdag.placing import rivals
from ov_hsdag.placing.candidates import policy_placers
from ov_hsdag.placing.rivals import AUTO_COPIES, OTHER_MODEL, Result, Rival, contenders, measure
from ov_hsdag.problem.copies import COPIES
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import opset13 as ops
from research.zoo.catalog import ZOO
from tests.commands import assert_one_error_line, ran, run
from tests.graphs import convolutions, only_forty, random_problem, unfused_costs

pytestmark = pytest.mark.usefixtures("quiet_machine", "fast_search")

PAIR = "HETERO:CPU_A,CPU_B"
HAND = ["nodes-0.5", "nodes-0.7"]
SEARCHED = ["mincut", "pipeline", "partitions", "search"]


@pytest.fixture(autouse=True)
def two_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the splits by hand: each costs a process where it is measured."""
    monkeypatch.setattr(rivals, "SHARES", (0.5, 0.7))


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bench as it is, but for the measuring."""

    def of(model: ov.Model, *given: Any, **options: Any) -> list[Result]:
        found: list[Rival] = given[3]
        return [Result(rival, Measurement(1.0, 10.0, 10.0, (1.0,))) for rival in found]

    monkeypatch.setattr(import_module("ov_hsdag.cli.commands.bench"), "measure", of)  # the package has the function


def test_rivals_are_simple_first_and_told_apart() -> None:
    problem = random_problem(3, nodes=20, objective="throughput")
    devices = DeviceSet(problem.devices)
    found = {rival.name: rival for rival in contenders(problem, devices, [])[0]}
    assert list(found) == ["D0", "D1", "hetero", PIPELINE_HINT, COPIES, AUTO_COPIES, *HAND, *SEARCHED]
    assert found[AUTO_COPIES].candidate.device == "AUTO:D0,D1", "the string that `place` names where copies are better"
    # Everything is supported: HETERO fills its first device.
    assert found["hetero"].same_as == "D0"
    assert found[PIPELINE_HINT].placement is None and not found[PIPELINE_HINT].same_as
    assert found["D1"].candidate.device == "D1" and found["D1"].candidate.affinity is None
    split = found["nodes-0.5"].candidate
    assert split.device == devices.hetero and set(split.affinity or {}) == set(problem.graph.names)
    assert PIPELINE_HINT not in {rival.name for rival in contenders(random_problem(3, nodes=20), devices, [])[0]}


def test_what_exceeds_memory_is_no_rival() -> None:
    import dataclasses

    problem = random_problem(3, nodes=20, objective="throughput")
    need = problem.evaluate(problem.single(0)).memory_bytes.max()
    small = dataclasses.replace(problem, memory_bytes=problem.memory_bytes * 0 + need - 1)
    fitting, left_out = contenders(small, DeviceSet(problem.devices), [])
    found = {rival.name: rival for rival in fitting}
    assert {"D0", "D1", "hetero"} <= set(left_out) and not set(left_out) & set(found)
    assert "left out: does not fit, needs" in left_out["D0"] and left_out["D0"].endswith(" on D0")
    assert not {"D0", "D1", "hetero"} & set(found)
    for rival in found.values():
        if rival.placement is not None:
            assert (problem.evaluate(rival.placement).memory_bytes < need).all()


def test_measured_on_real_hetero(two_cpu_core: ov.Core) -> None:
    devices = DeviceSet.parse(PAIR)
    model = ZOO["squeezenet"].build()
    problem = build_problem(model, devices, objective="throughput", core=two_cpu_core)
    some = {*devices.names, "hetero", PIPELINE_HINT, COPIES, "nodes-0.5", "search", "hsdag"}
    every, _ = contenders(problem, devices, policy_placers("base"))
    some |= {rival.same_as for rival in every if rival.name in some}
    found = [rival for rival in every if rival.name in some]
    told: list[str] = []
    results = measure(model, devices, "throughput", two_cpu_core, found, rounds=2, seconds=0.1, report=told.append)
    assert [result.rival.name for result in results] == [rival.name for rival in found]
    by_name = {result.rival.name: result for result in results}
    for result in results:
        assert not result.measurement.failed, result.measurement.error
        assert result.measurement.value > 0 and len(result.measurement.rates) >= 1
        if result.rival.predicted is not None and not result.rival.same_as:
            assert result.measurement.submodels == result.rival.predicted["submodels"]
    # Ratios are to the best single device.
    assert max(by_name[name].measurement.ratio for name in devices.names) == pytest.approx(1)
    assert by_name["hetero"].measurement == by_name["CPU_A"].measurement
    assert sum(text.startswith("compiling ") for text in told) == sum(not rival.same_as for rival in found)


def test_hetero_that_makes_outputs_of_unused_inputs_is_no_rival_and_says_so(two_cpu_core: ov.Core) -> None:
    a = ops.parameter([4, 4], np.float32, name="a")
    unused = ops.parameter([4], np.int64, name="unused")
    model = ov.Model([ops.relu(a), ops.multiply(a, a)], [a, unused], "unused")
    devices = DeviceSet.parse(PAIR)
    problem = build_problem(model, devices, objective="throughput", core=two_cpu_core)
    found, left_out = contenders(problem, devices, [])
    assert "CPU_A" in {rival.name for rival in found}
    assert left_out["hetero"] == left_out[PIPELINE_HINT] == OTHER_MODEL
    assert len(two_cpu_core.compile_model(model, PAIR).outputs) == 3, "else HETERO is right, and is measured again"


def test_the_command(model: Path, tmp_path: Path) -> None:
    options = ("--device", PAIR, "--objective", "throughput", "--rounds", 1, "--policies", "none")
    done = ran("bench", model, *options, "--output", tmp_path / "all.csv", "--json", "-v")
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["device"] == PAIR and document["objective"] == "throughput"
    names = ["CPU_A", "CPU_B", "hetero", PIPELINE_HINT, COPIES, *HAND, *SEARCHED]
    with open(tmp_path / "all.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["placer"] for row in rows] == names
    for row, entry in zip(rows, document["models"][0]["results"], strict=True):
        assert entry["failed"] == row["failed"] == ""
        assert float(row["measured"]) == entry["measured"] > 0
    assert "compiling CPU_A" in done.stderr


@pytest.mark.usefixtures("unmeasured")
def test_the_table_of_several_models(model: Path, tmp_path: Path) -> None:
    options = ("--device", PAIR, "--objective", "throughput", "--policies", "base")
    shown = ran("bench", model, model, *options, "--output", tmp_path / "all.json", COLUMNS="80")
    assert "hsdag" in shown.stdout and "x the best\n" in re.sub(" +\n", "\n", shown.stdout)
    written = json.loads((tmp_path / "all.json").read_text())["models"]
    assert [(one["model"], one["results"][-1]["placer"]) for one in written] == [(str(model), "hsdag")] * 2
    assert "hetero: HETERO's own rule." in " ".join(shown.stdout.split())
    told = shown.stdout.replace(str(model), "model.onnx").replace(str(tmp_path), "")
    told, _, _ = told.partition("next: ")  # a command is as long as it is
    assert max(map(len, told.splitlines())) <= 80


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--device", "HETERO:CPU_A,GPU"), "this machine has no GPU"),
        (("--device", PAIR, "--policies", "nothing-such"), "nothing-such"),
        (("--device", PAIR, "--output", "table.txt"), "table.txt"),
        (("--device", PAIR, "--objective", "power"), "power"),
        (("--device", PAIR, "missing.onnx"), "missing.onnx"),
    ],
)
def test_bad_input_is_refused_in_one_line(model: Path, options: tuple[str, ...], message: str) -> None:
    done = run("bench", model, *options)
    assert done.returncode == 2 and done.stdout == ""
    assert message in done.stderr and done.stderr.count("\n") == 1, done.stderr


class TestSeveralModels:
    def test_all_are_read_before_any_is_measured(self, model: Path, tmp_path: Path) -> None:
        broken = tmp_path / "broken.xml"
        broken.write_text("<net>")
        assert_one_error_line(run("bench", model, broken, "--device", PAIR, "--rounds", 1), "cannot read", "broken.xml")

    def test_one_that_nothing_runs_does_not_cost_the_others(self, model: Path, tmp_path: Path) -> None:
        bad, output = tmp_path / "bad.xml", tmp_path / "results.json"
        ov.save_model(only_forty(), bad)
        done = run(
            "bench", bad, model, "--device", PAIR, "--policies", "none", "--rounds", 1, "--json", "--output", output
        )
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1].startswith(f"error: {bad}: it is not known which sizes the model takes")
        failed, good = json.loads(done.stdout)["models"]
        assert "not known which sizes" in failed["failed"] and failed["results"] == []
        assert {row["placer"] for row in good["results"]} >= {"CPU_A", "CPU_B", "hetero"}
        assert [entry["model"] for entry in json.loads(output.read_text())["models"]] == [str(bad), str(model)]

    @pytest.mark.usefixtures("unmeasured", "two_cpu_core")
    def test_the_table_is_shown_where_the_output_cannot_be_written(
        self, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def full(path: Path, document: object) -> None:
            raise UserError(f"cannot write {path}: No space left on device")

        command = import_module("ov_hsdag.cli.commands.bench")  # the package has the function under this name
        monkeypatch.setattr(command, "_write", full)
        with pytest.raises(UserError, match="No space left"):
            command.bench([model], PAIR, policies="none", rounds=1, output=tmp_path / "results.json")
        assert "mincut" in capsys.readouterr().out


@pytest.mark.usefixtures("unmeasured")
def test_costs_that_lie_beside_the_model_count(two_cpu_core: ov.Core, tmp_path: Path) -> None:
    """Costs in which CPU_B takes a thousand times as long: what bench predicts follows them."""
    path = tmp_path / "convolutions.xml"
    ov.save_model(convolutions(), path, compress_to_fp16=False)
    graph = build_problem(two_cpu_core.read_model(path), DeviceSet.parse(PAIR), core=two_cpu_core).graph
    nodes = graph.nodes
    costs = {
        name: DeviceCosts(identity(two_cpu_core, name), "today", unfused_costs(np.full(nodes, us)))
        for name, us in (("CPU_A", 100.0), ("CPU_B", 100_000.0))
    }
    ModelCosts(graph_hash(graph), costs).save(path_beside(path))
    done = ran("bench", path, "--device", PAIR, "--policies", "none", "--rounds", 1, "--json")
    (entry,) = json.loads(done.stdout)["models"]
    predicted = {row["placer"]: row["predicted_latency_us"] for row in entry["results"]}
    assert 900 < predicted["CPU_B"] / predicted["CPU_A"] < 1100
