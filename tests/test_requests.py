"""A placement for throughput gets the requests that it needs from whoever asks for the default number."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.properties.hint as hint
import pytest

import ov_hsdag  # noqa: F401 the hook
from ov_hsdag.devices.requests import MOST
from ov_hsdag.integration.requests import OPTIMAL_NUMBER, advice
from ov_hsdag.model.placement import Placement
from ov_hsdag.utils.errors import PlacementNotFollowedWarning
from ov_hsdag.utils.lazy import opset13 as ops
from tests.processes import ended

pytestmark = pytest.mark.usefixtures("declared")

ROOT = Path(__file__).resolve().parent.parent
DEVICES = ("CPU_A", "CPU_B")
HETERO = "HETERO:CPU_A,CPU_B"


def chain(length: int = 40) -> ov.Model:
    x = ops.parameter([1, 64], np.float32, name="x")
    value = x
    for number in range(length):
        value = ops.tanh(value, name=f"tanh{number}")
    return ov.Model([ops.result(value, name="out")], [x], "chain")


def cut(submodels: int, objective: str = "throughput", devices: Sequence[str] = DEVICES) -> ov.Model:
    """The chain in so many submodels, on the devices in turn."""
    model = chain()
    names = [node.get_friendly_name() for node in model.get_ordered_ops()]
    affinity = {name: devices[index * submodels // len(names) % len(devices)] for index, name in enumerate(names)}
    Placement(tuple(devices), affinity, objective=objective).embed(model)
    return model


def asked(compiled: ov.CompiledModel) -> tuple[int, int]:
    """Submodels, and the requests that the model and AsyncInferQueue agree on."""
    number = compiled.get_property(OPTIMAL_NUMBER)
    assert len(ov.AsyncInferQueue(compiled)) == len(ov.AsyncInferQueue(compiled, jobs=0)) == number
    return int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS")), number


@pytest.mark.parametrize("submodels", [2, 3, 4, 7, 8])
def test_two_requests_for_each_submodel(submodels: int) -> None:
    made, requests = asked(ov.Core().compile_model(cut(submodels), HETERO))
    assert made == submodels
    assert requests == max(2 * submodels, 6)


def test_requests_do_not_grow_without_end() -> None:
    made, requests = asked(ov.Core().compile_model(cut(20), HETERO))
    assert (made, requests) == (20, MOST)


def test_all_requests_of_the_default_queue_compute(tmp_path: Path) -> None:
    path = tmp_path / "model.xml"
    ov.save_model(cut(3), path)
    core = ov.Core()
    inputs = [np.full((1, 64), number / 10, np.float32) for number in range(12)]
    wanted = core.compile_model(chain(), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    queue = ov.AsyncInferQueue(core.compile_model(path, HETERO))
    assert len(queue) == 6
    results: dict[int, np.ndarray] = {}
    queue.set_callback(lambda request, number: results.update({number: request.get_output_tensor().data.copy()}))
    for number, data in enumerate(inputs):
        queue.start_async([data], number)
    queue.wait_all()
    for number, data in enumerate(inputs):
        np.testing.assert_allclose(results[number], wanted([data])[0], rtol=1e-4)


@pytest.mark.parametrize(
    ("config", "requests"),
    [
        (None, 6),
        ({"PERFORMANCE_HINT": "THROUGHPUT"}, 6),
        ({"PERFORMANCE_HINT": "LATENCY"}, 1),
        ({hint.performance_mode(): hint.PerformanceMode.LATENCY}, 1),
        (dict([hint.performance_mode(hint.PerformanceMode.LATENCY)]), 1),
        ({"DEVICE_PROPERTIES": {"CPU_B": {"PERFORMANCE_HINT": "LATENCY"}}}, 1),
        ({"PERFORMANCE_HINT_NUM_REQUESTS": 3}, 3),
        ({"PERFORMANCE_HINT_NUM_REQUESTS": "0"}, 6),
        ({"PERFORMANCE_HINT_NUM_REQUESTS": 9}, 6),
    ],
)
def test_hints_of_the_caller_count(config: dict[str, Any] | None, requests: int) -> None:
    assert asked(ov.Core().compile_model(cut(3), HETERO, config)) == (3, requests)


def test_number_of_the_caller_counts() -> None:
    compiled = ov.Core().compile_model(cut(3), HETERO)
    assert [len(ov.AsyncInferQueue(compiled, jobs)) for jobs in (1, 2, 9)] == [1, 2, 9]
    assert len(ov.AsyncInferQueue(model=compiled, jobs=2)) == 2


def test_nothing_else_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    core = ov.Core()
    assert asked(core.compile_model(cut(3, "latency"), HETERO)) == (3, 1)
    assert asked(core.compile_model(chain(), HETERO)) == (1, 1)
    with pytest.warns(PlacementNotFollowedWarning):
        assert asked(core.compile_model(cut(3), "HETERO:CPU_A")) == (1, 1)
    single = core.compile_model(cut(3), "CPU_A")
    assert len(ov.AsyncInferQueue(single)) == single.get_property(OPTIMAL_NUMBER) == 1
    compiled = core.compile_model(cut(3), HETERO)
    assert compiled.get_property("EXECUTION_DEVICES") == list(DEVICES)
    monkeypatch.setenv("OV_HSDAG_DISABLE", "1")
    assert asked(core.compile_model(cut(3), HETERO)) == (1, 1)


@pytest.mark.parametrize(("unused", "counted"), [(2, 3), (9, 2**64 - 4)])
def test_unused_inputs_of_models_before_change_nothing(unused: int, counted: int) -> None:
    """HETERO subtracts those of unplaced models from the count of later ones; when this fails, it may not any more."""
    core, model = ov.Core(), chain()
    model.add_parameters([ops.parameter([1], np.float32, name=f"unused{number}") for number in range(unused)])
    core.compile_model(model, HETERO)
    placed = cut(5)
    found = Placement.of(placed)
    assert found is not None
    replace(found, predicted={"submodels": 5}).embed(placed)
    assert asked(core.compile_model(placed, HETERO)) == (counted, 10)


def as_bytes(blob: io.BytesIO) -> bytes:
    return blob.getvalue()


def as_tensor(blob: io.BytesIO) -> ov.Tensor:
    return ov.Tensor(np.frombuffer(blob.getvalue(), np.uint8))


def behind_other_content(blob: io.BytesIO) -> io.BytesIO:
    stream = io.BytesIO(b"other content" + blob.getvalue())
    stream.seek(len(b"other content"))
    return stream


@pytest.mark.parametrize("form", [lambda blob: blob, as_bytes, as_tensor, behind_other_content])
@pytest.mark.parametrize("device", [HETERO, "HETERO"])
def test_an_imported_model_asks_for_as_many_as_the_compiled_one(form: Callable[..., Any], device: str) -> None:
    core = ov.Core()
    compiled = core.compile_model(cut(4), HETERO)
    imported = core.import_model(form(compiled.export_model()), device)
    assert asked(imported) == asked(compiled) == (4, 8)
    assert list(imported.get_property("EXECUTION_DEVICES")) == list(DEVICES)
    inputs = [np.full((1, 64), 0.3, np.float32)]
    np.testing.assert_array_equal(imported(inputs)[0], compiled(inputs)[0])


@pytest.mark.parametrize(
    ("objective", "config", "requests"),
    [
        ("latency", None, 1),
        ("throughput", {"PERFORMANCE_HINT": "LATENCY"}, 1),
        ("throughput", {"PERFORMANCE_HINT_NUM_REQUESTS": 3}, 3),
    ],
)
def test_hints_count_when_a_model_is_imported(objective: str, config: dict[str, Any] | None, requests: int) -> None:
    core = ov.Core()
    blob = core.compile_model(cut(3, objective), HETERO).export_model()
    assert asked(core.import_model(blob, HETERO, config)) == (3, requests)


def test_a_blob_is_openvinos_own_but_for_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs without Python import it as well."""
    core = ov.Core()
    compiled = core.compile_model(cut(3), HETERO)
    theirs = ov.CompiledModel.export_model.__wrapped__(compiled)  # type: ignore[attr-defined]
    stream = io.BytesIO()
    compiled.export_model(stream)
    assert stream.tell() == theirs.tell() == 0
    assert stream.getvalue().replace(b' ov_hsdag_requests="6"', b"", 1) == theirs.getvalue()
    with pytest.raises(TypeError):
        compiled.export_model("a file")
    native = ov.Core.import_model.__wrapped__(core, stream, HETERO)  # type: ignore[attr-defined]
    assert native.get_property("HETERO_NUMBER_OF_SUBMODELS") == 3
    monkeypatch.setenv("OV_HSDAG_DISABLE", "1")
    stream.seek(0)
    assert asked(core.import_model(stream, HETERO)) == (3, 1)


def test_other_ways_to_the_same_compiled_model_ask_for_as_many() -> None:
    compiled = ov.Core().compile_model(cut(4), HETERO)
    for other in (ov.CompiledModel(compiled), compiled.create_infer_request().get_compiled_model()):
        assert asked(other) == (4, 8)


@pytest.mark.parametrize("given", ["file", "object"])
@pytest.mark.parametrize("device", ["AUTO:HETERO", "MULTI:HETERO", "BATCH:HETERO"])
def test_devices_around_hetero_follow_the_placement(tmp_path: Path, device: str, given: str) -> None:
    path = tmp_path / "model.xml"
    ov.save_model(cut(4), path)
    core = ov.Core()
    compiled = core.compile_model(path if given == "file" else core.read_model(path), device)
    kinds = [one.get_rt_info()["layerType"].astype(str) for one in compiled.get_runtime_model().get_ops()]
    assert len(kinds) - kinds.count("Input") - kinds.count("Output") == 4  # a layer of each submodel
    if device == "BATCH:HETERO":
        assert list(compiled.get_property("EXECUTION_DEVICES")) == list(DEVICES)
        assert compiled.get_property(OPTIMAL_NUMBER) == len(ov.AsyncInferQueue(compiled)) == 8
    inputs = [np.full((1, 64), 0.3, np.float32)]
    np.testing.assert_allclose(compiled(inputs)[0], core.compile_model(chain(), "CPU_A")(inputs)[0], rtol=1e-4)


def test_devices_around_hetero_that_refuse_the_placement_say_so(tmp_path: Path) -> None:
    path = tmp_path / "model.xml"
    ov.save_model(cut(4), path)
    with pytest.warns(PlacementNotFollowedWarning, match="compiled without the model's placement: BATCH accepts only"):
        compiled = ov.Core().compile_model(path, f"BATCH:{HETERO}")
    assert list(compiled.get_property("EXECUTION_DEVICES")) == ["CPU_A"]


def test_wrong_arguments_are_told_as_ever() -> None:
    for arguments in ((), (3,), (None, 6)):
        with pytest.raises(TypeError):
            ov.AsyncInferQueue(*arguments)
    with pytest.raises(RuntimeError, match="NO_SUCH_PROPERTY"):
        ov.Core().compile_model(cut(3), HETERO).get_property("NO_SUCH_PROPERTY")


@pytest.mark.parametrize(("objective", "requests"), [("throughput", 6), ("latency", 1)])
def test_unmodified_benchmark_app(tmp_path: Path, objective: str, requests: int) -> None:
    path = tmp_path / "model.xml"
    ov.save_model(cut(3, objective), path)
    code = "import ov_hsdag\nfrom openvino.tools.benchmark.main import main\nmain()\n"
    command = (sys.executable, "-c", code, "-m", path, "-d", HETERO, "-hint", "throughput", "-niter", 8)
    done = ended(*command, env={**os.environ, "PYTHONPATH": str(ROOT)})
    found = re.search(r"Start inference asynchronously, (\d+) inference requests", done.stdout)
    assert found is not None, done.stdout
    assert int(found[1]) == requests


def test_placing_says_what_it_takes() -> None:
    affinity = {"a": "CPU_A", "b": "CPU_B"}
    placement = Placement(DEVICES, affinity, objective="throughput", predicted={"submodels": 4})
    said = advice(placement)
    assert said is not None
    assert "\n" not in said
    assert said.startswith("requests: keep 8 in flight ")
    assert said.endswith("-nireq 8)")
    assert advice(Placement(DEVICES, affinity)) is None
    assert advice(Placement(DEVICES, {"a": "CPU_A"}, objective="throughput")) is None
