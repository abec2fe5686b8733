"""`ov-hsdag bench --kit`: its models, what it measures of them, the file and the page."""

from __future__ import annotations

import getpass
import json
import socket
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.devices.virtual import VIRTUAL_DEVICES_VARIABLE, new_core
from ov_hsdag.kit import measure
from ov_hsdag.kit.measure import BY_PREDICTION, anonymous, device_lists, run_kit
from ov_hsdag.kit.models import KIT, KitModel
from ov_hsdag.model.placement import Placement
from ov_hsdag.placing import rivals
from ov_hsdag.report.kit_page import kit_page
from ov_hsdag.utils.errors import RunError, UserError
from tests.commands import DEVICE, assert_one_error_line, ran, run
from tests.conftest import TWO_CORES
from tests.graphs import convolutions

NAMES = ("CPU_A", "CPU_B")

STRUCTURES = (
    {"Convolution", "Softmax"},
    {"Convolution", "FakeQuantize"},
    {"Convolution", "GroupConvolution"},
    {"Convolution", "Concat", "Transpose"},
    {"MatMul", "MVN", "Softmax"},
    {"MatMul", "MVN", "Softmax"},
    {"MatMul", "ReadValue", "Assign"},
    {"MatMul", "ReadValue", "TopK"},
)
"""Types of operations that each model of the kit must have, in the kit's order."""


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """Results of a small model, and of one that cannot be measured, in place of the kit's."""

    def refused() -> ov.Model:
        raise RunError(f"{Path.home()}/cache of {socket.gethostname()} is full <now>")

    models = [KitModel("small", lambda: convolutions(4)), KitModel("refused", refused)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VIRTUAL_DEVICES_VARIABLE, TWO_CORES)
        return run_kit(new_core(), device_lists(NAMES), minutes=0.5, models=models)


def test_all_devices_come_first_then_pairs() -> None:
    assert [one.hetero for one in device_lists(["GPU", "NPU", "CPU"])] == [
        "HETERO:GPU,NPU,CPU",
        "HETERO:GPU,NPU",
        "HETERO:GPU,CPU",
        "HETERO:NPU,CPU",
    ]
    assert [one.hetero for one in device_lists(NAMES)] == [DEVICE]
    with pytest.raises(UserError, match="this machine has CPU alone"):
        device_lists(["CPU"])


def test_models_of_open_sizes_are_not_measured_on_npus() -> None:
    fixed, dynamic = KitModel("fixed", KIT[0].build), KitModel("open", KIT[5].build, {"input_ids": (1, 8)})
    lists = [DeviceSet(names) for names in (("GPU", "NPU", "CPU"), ("GPU", "CPU"), ("NPU", "CPU"))]
    pairs = [(model.name, devices.hetero) for model, devices in measure._pairs(lists, [fixed, dynamic])]
    assert pairs == [
        ("fixed", "HETERO:GPU,NPU,CPU"),
        ("open", "HETERO:GPU,CPU"),
        ("fixed", "HETERO:GPU,CPU"),
        ("fixed", "HETERO:NPU,CPU"),
    ]


@pytest.mark.parametrize(("kit_model", "kinds"), [*zip(KIT, STRUCTURES, strict=True)], ids=[one.name for one in KIT])
def test_every_model_has_the_structure_that_it_stands_for(kit_model: KitModel, kinds: set[str]) -> None:
    first, second = kit_model.build(), kit_model.build()
    types = [node.get_type_name() for node in first.get_ops()]
    assert kinds <= {*types} and types == [node.get_type_name() for node in second.get_ops()]
    weights = [
        [node.data for node in model.get_ops() if node.get_type_name() == "Constant"] for model in (first, second)
    ]
    assert all(np.array_equal(one, other) for one, other in zip(*weights, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("kit_model", KIT, ids=lambda one: one.name)
def test_every_model_is_made_on_the_spot_and_runs(kit_model: KitModel, core: ov.Core) -> None:
    model = kit_model.build()
    assert model.is_dynamic() == bool(kit_model.shapes) or kit_model.name == "detector"
    request = core.compile_model(model, "CPU").create_infer_request()
    inputs = {}
    for port in model.inputs:
        name = port.get_any_name()
        shape = kit_model.shapes.get(name) or port.get_shape()
        inputs[name] = np.ones(tuple(shape), port.get_element_type().to_dtype())
    for output in request.infer(inputs).values():
        assert output.size and np.isfinite(output).all()


@pytest.mark.slow
def test_every_way_is_measured_and_what_fails_costs_its_own_row(document: dict[str, Any]) -> None:
    small, refused = document["comparisons"][:2], document["comparisons"][2:]
    assert [one["objective"] for one in small] == ["throughput", "latency"]
    for one in small:
        rows = {row["placer"]: row for row in one["rows"]}
        assert {*NAMES, "hetero", "pipeline", BY_PREDICTION} <= rows.keys()
        assert not rows[BY_PREDICTION]["failed"] and rows[BY_PREDICTION]["measured"] > 0
        assert one["predicted_gain"] >= 1 and one["operations"] > 4 and not one["failed"]
    assert "copies" in {row["placer"] for row in small[0]["rows"]}
    assert all("is full" in one["failed"] and not one["rows"] for one in refused)
    assert [one["name"] for one in document["devices"]] == [*NAMES]


def test_the_file_names_neither_user_nor_machine(document: dict[str, Any]) -> None:
    text = json.dumps(document)
    assert str(Path.home()) not in text and "~/cache" in text
    assert len(socket.gethostname()) <= 3 or socket.gethostname() not in text
    if getpass.getuser() != "root":
        assert anonymous(f"of {getpass.getuser()}") == "of USER"


def test_what_there_was_no_time_for_is_named(two_cpu_core: ov.Core) -> None:
    models = [KitModel("small", lambda: convolutions(4))]
    found = run_kit(two_cpu_core, device_lists(NAMES), minutes=0, models=models)
    assert [one["failed"] for one in found["comparisons"]] == ["left out: the time was over"] * 2


def test_what_is_measured_as_hsdag_is_what_a_load_follows(
    two_cpu_core: ov.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = KitModel("small", lambda: convolutions(4))
    measured: list[rivals.Rival] = []

    def recorded(model: ov.Model, devices: DeviceSet, objective: str, core: ov.Core, found: Any, **more: Any) -> Any:
        measured.append(found[-1])
        return []

    monkeypatch.setattr(measure, "measure", recorded)
    run_kit(two_cpu_core, device_lists(NAMES), minutes=10, models=[model])
    loaded = two_cpu_core.compile_model(model.build(), "HSDAG:CPU_A,CPU_B", {"PERFORMANCE_HINT": "THROUGHPUT"})
    followed = Placement.of(loaded.get_runtime_model())
    assert measured[0].name == BY_PREDICTION and measured[0].candidate.affinity
    devices = {*measured[0].candidate.affinity.values()}
    assert followed is None or {*followed.affinity.values()} == devices
    assert loaded.get_property("HETERO_NUMBER_OF_SUBMODELS") == measured[0].predicted["submodels"]  # type: ignore[index]


def test_the_page_shows_each_comparison(document: dict[str, Any]) -> None:
    page = kit_page(document, predicted=BY_PREDICTION)
    assert page.count("<tr>") == 1 + 2 + 1 + 4  # devices and comparisons with their heads
    assert "&lt;now&gt;" in page and "<now>" not in page
    row = next(one for one in document["comparisons"][0]["rows"] if one["placer"] == BY_PREDICTION)
    assert f"{row['ratio']:.2f}" in page


def test_report_draws_a_file_of_results(document: dict[str, Any], tmp_path: Path) -> None:
    path, page = tmp_path / "kit.json", tmp_path / "page.html"
    path.write_text(json.dumps(document))
    assert str(page) in ran("report", path, "--output", page).stdout
    assert page.read_text().startswith("<!doctype html>")
    path.write_text(json.dumps({"format": document["format"]}))
    assert_one_error_line(run("report", path, "--output", page), "kit.json: is damaged", status=2)


def test_commands_that_make_no_sense_end_in_a_line(tmp_path: Path) -> None:
    assert_one_error_line(run("bench", "--device", DEVICE), "which model?", status=2)
    assert_one_error_line(run("bench", "model.onnx"), "which devices?", status=2)
    assert_one_error_line(run("bench", "--kit", tmp_path / "kit.csv"), "are written as .json", status=2)
    told = "--kit makes its own models, and has no use for MODEL"
    assert_one_error_line(run("bench", "model.onnx", "--kit", tmp_path / "kit.json"), told, status=2)
    unused = run("bench", "--kit", tmp_path / "kit.json", "--shape", "x=[1,2]")
    assert_one_error_line(unused, "--shape is for models of your own, not for --kit: leave it out", status=2)
    missing = run("bench", "--kit", tmp_path / "kit.json", "--device", "HETERO:GPU,CPU_A")
    assert_one_error_line(missing, "this machine has no GPU", status=2)


@pytest.mark.slow
def test_the_command_writes_what_the_report_reads(tmp_path: Path) -> None:
    path = tmp_path / "kit.json"
    done = ran("bench", "--kit", path, "--minutes", "1", "--json")
    assert json.loads(done.stdout)["comparisons"] == json.loads(path.read_text())["comparisons"]
    assert ran("report", path, "--output", tmp_path / "kit.html").returncode == 0
