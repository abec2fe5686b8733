"""compile_model follows the placement that a model carries, on real HETERO; nobody else notices the hook."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import openvino as ov
import openvino.properties.device as device_properties
import pytest

import ov_hsdag
from ov_hsdag.devices import extensions
from ov_hsdag.integration import core as hook
from ov_hsdag.model import normalize
from ov_hsdag.model.placement import Placement
from ov_hsdag.placing.options import PlaceOptions
from ov_hsdag.storage.ir_text import file_carries
from ov_hsdag.utils.errors import PlacementNotFollowedWarning, UserError
from ov_hsdag.utils.lazy import opset13 as ops
from tests.commands import PACKAGE
from tests.graphs import halved, submodels, unflattening_model
from tests.processes import ended

try:
    from openvino.passes import Manager
except ImportError:  # 2024
    from openvino.runtime.passes import Manager

pytestmark = pytest.mark.usefixtures("declared", "fast_search")

DEVICE = "HETERO:CPU_A,CPU_B"
F32 = {"INFERENCE_PRECISION_HINT": "f32"}
SQUEEZENET = Path(onnx.__file__).parent / "backend/test/data/light/light_squeezenet.onnx"
ABSENT = "GPU.9"


@pytest.fixture
def core() -> ov.Core:
    return ov.Core()


@pytest.fixture(scope="module")
def plain() -> ov.Model:
    model = ov.convert_model(SQUEEZENET)
    normalize.normalize(model)
    return model


@pytest.fixture(scope="module")
def directory(plain: ov.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    model = plain.clone()
    ov.save_model(model, path / "plain.xml")
    halved(model).embed(model)
    ov.save_model(model, path / "placed.xml")  # compressed to fp16, as ovc does
    halved(model, (ABSENT, "CPU_A")).embed(model)
    ov.save_model(model, path / "absent.xml")
    return path


@pytest.fixture
def placed(directory: Path) -> Path:
    return directory / "placed.xml"


@pytest.fixture(scope="module")
def image() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(1, 3, 224, 224)).astype(np.float32)


def devices(compiled: ov.CompiledModel) -> list[str]:
    return list(compiled.get_property("EXECUTION_DEVICES"))


def close(a: ov.CompiledModel, b: ov.CompiledModel, x: np.ndarray) -> bool:
    got, want = a([x])[0].copy(), b([x])[0].copy()
    return bool(np.abs(got - want).max() <= 1e-3 * np.abs(want).max())


def unlike_hetero(core: ov.Core, path: Path) -> None:
    """Without a placement HETERO takes one device for all of this model, or these tests would show nothing."""
    assert devices(core.compile_model(path, DEVICE)) == ["CPU_A"]


@pytest.mark.usefixtures("silence")
def test_saved_placement_is_followed_and_computes_the_same(
    core: ov.Core, directory: Path, placed: Path, image: np.ndarray
) -> None:
    unlike_hetero(core, directory / "plain.xml")
    compiled = core.compile_model(placed, DEVICE)
    assert devices(compiled) == ["CPU_A", "CPU_B"]
    assert submodels(compiled) == 2
    assert close(compiled, core.compile_model(placed, "CPU", F32), image)


def native(model: ov.Model) -> object:
    """The model that pybind knows, which openvino.compile_model hands over from 2025 on."""
    return getattr(model, "_Model__model", model)


@pytest.mark.usefixtures("silence")
@pytest.mark.parametrize(
    "call",
    [
        lambda core, path: core.compile_model(str(path), DEVICE),
        lambda core, path: core.compile_model(path, DEVICE, {}),
        lambda core, path: core.compile_model(model=path, device_name=DEVICE, config={"NUM_STREAMS": 1}),
        lambda core, path: core.compile_model(path, config=None, device_name=DEVICE),
        lambda core, path: core.compile_model(core.read_model(path), DEVICE),
        lambda core, path: core.compile_model(native(core.read_model(path)), DEVICE),
        lambda core, path: core.compile_model(path.read_text(), DEVICE, weights=path.with_suffix(".bin").read_bytes()),
        lambda core, path: core.compile_model(path.read_bytes(), DEVICE, weights=path.with_suffix(".bin").read_bytes()),
        lambda core, path: core.compile_model(path, "HETERO"),
        lambda core, path: core.compile_model(path, "HETERO", {"MULTI_DEVICE_PRIORITIES": "CPU_B,CPU_A"}),
        lambda core, path: core.compile_model(path, "HETERO", {device_properties.priorities: "CPU_A,CPU_B"}),
        lambda core, path: core.compile_model(path, "HETERO", dict([device_properties.priorities("CPU_A", "CPU_B")])),
        lambda core, path: core.compile_model(path, "HETERO:CPU_B,CPU_A"),
        lambda core, path: core.compile_model(path, "HETERO:CPU,CPU_A,CPU_B"),
        lambda core, path: core.compile_model(path, DEVICE, {"DEVICE_PROPERTIES": {"CPU_A": {"NUM_STREAMS": 1}}}),
        lambda core, path: ov.compile_model(path, DEVICE),
        lambda core, path: ov.compile_model(core.read_model(path), device_name=DEVICE),
        lambda core, path: type("Mine", (ov.Core,), {})().compile_model(path, DEVICE),
    ],
)
def test_every_way_to_call_it(core: ov.Core, placed: Path, image: np.ndarray, call: Any) -> None:
    compiled = call(core, placed)
    assert sorted(devices(compiled)) == ["CPU_A", "CPU_B"]
    assert submodels(compiled) == 2
    assert np.isfinite(compiled([image])[0]).all()


def test_weights_in_memory_outlive_the_caller(core: ov.Core, placed: Path, image: np.ndarray) -> None:
    weights = bytearray(placed.with_suffix(".bin").read_bytes())
    compiled = core.compile_model(placed.read_text(), DEVICE, weights=bytes(weights))
    del weights
    assert close(compiled, core.compile_model(placed, "CPU", F32), image)


@pytest.mark.usefixtures("silence")
def test_the_users_model_is_not_touched(core: ov.Core, placed: Path) -> None:
    model = core.read_model(placed)
    before = [(node.get_friendly_name(), node.get_type_name()) for node in model.get_ordered_ops()]
    core.compile_model(model, DEVICE)
    assert [(node.get_friendly_name(), node.get_type_name()) for node in model.get_ordered_ops()] == before
    assert not any("affinity" in node.get_rt_info() for node in model.get_ops())


@pytest.mark.usefixtures("silence")
def test_other_devices_ignore_the_placement(core: ov.Core, placed: Path, image: np.ndarray) -> None:
    for device, executes in (("CPU", "CPU"), ("CPU_B", "CPU_B"), ("AUTO:CPU", "CPU")):
        compiled = core.compile_model(placed, device)
        assert [name.strip("()") for name in devices(compiled)] == [executes]
        with pytest.raises(RuntimeError, match="HETERO_NUMBER_OF_SUBMODELS"):
            submodels(compiled)
    model = core.read_model(placed)
    halved(model).apply(model)
    assert close(core.compile_model(model, "CPU", F32), core.compile_model(placed, "CPU", F32), image)


@pytest.mark.usefixtures("silence")
def test_cache_tells_placements_apart(core: ov.Core, plain: ov.Model, tmp_path: Path, image: np.ndarray) -> None:
    reference = core.compile_model(plain, "CPU", F32)
    counts = []
    for share in (0.5, 0.5, 0.3):
        model = plain.clone()
        halved(model, share=share).embed(model)
        ov.save_model(model, tmp_path / "m.xml", compress_to_fp16=False)
        compiled = core.compile_model(tmp_path / "m.xml", DEVICE, {"CACHE_DIR": str(tmp_path / "cache")})
        assert submodels(compiled) == 2
        assert close(compiled, reference, image)
        counts.append(len(list((tmp_path / "cache").iterdir())))
    assert counts[0] == counts[1] < counts[2]


def test_a_model_that_cannot_be_split_any_more_says_so(core: ov.Core) -> None:
    model = unflattening_model()
    normalize.unique_names(model)
    open_sizes = model.input().partial_shape
    model.reshape([2, 9, 3])
    affinity = {node.get_friendly_name(): "CPU_A" for node in model.get_ops()}
    Placement(("CPU_A", "CPU_B"), {**affinity, "exp": "CPU_B"}).embed(model)
    model.reshape(open_sizes)  # the submodel before exp does not know the sizes that the model has there
    with pytest.warns(PlacementNotFollowedWarning, match=r"nothing runs on CPU_\w: shapes or nodes were changed"):
        compiled = core.compile_model(model, DEVICE)
    assert len(compiled.get_property("EXECUTION_DEVICES")) == 1


def test_device_that_the_machine_lacks_is_replaced_with_a_warning(
    core: ov.Core, directory: Path, image: np.ndarray
) -> None:
    with pytest.warns(
        ov_hsdag.PlacementNotFollowedWarning, match=rf"uses {ABSENT}, .* its nodes run: \d+ on CPU_A"
    ) as caught:
        compiled = core.compile_model(directory / "absent.xml", f"HETERO:{ABSENT},CPU_A")
    assert caught[0].filename == __file__
    assert devices(compiled) == ["CPU_A"]
    assert close(compiled, core.compile_model(directory / "plain.xml", "CPU", F32), image)


def test_requested_devices_win_over_those_of_the_placement(core: ov.Core, placed: Path) -> None:
    with pytest.warns(
        ov_hsdag.PlacementNotFollowedWarning, match=r"uses CPU_B, which is not among the devices here \(CPU, CPU_A\)"
    ):
        compiled = core.compile_model(placed, "HETERO:CPU,CPU_A")
    assert devices(compiled) == ["CPU_A", "CPU"]


def test_requested_device_that_is_missing_and_unused_is_left_out(core: ov.Core, placed: Path) -> None:
    with pytest.warns(UserWarning, match=rf"{ABSENT} is not available here and is left out") as caught:
        compiled = core.compile_model(placed, f"HETERO:{ABSENT},CPU_A,CPU_B")
    assert caught[0].filename == __file__
    assert submodels(compiled) == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda core, path: core.compile_model(path, f"HETERO:{ABSENT}"),
        lambda core, path: core.compile_model(path, "HETERO:XPU"),
        lambda core, path: core.compile_model(path, DEVICE, {"PERFORMANCE_HINT": "NONSENSE"}),
        lambda core, path: core.compile_model(path.with_name("missing.xml"), DEVICE),
        lambda core, path: core.compile_model(path.with_suffix(".bin"), DEVICE),
        lambda core, path: core.compile_model(path, "XPU"),
        lambda core, path: core.compile_model(),
        lambda core, path: core.compile_model(path, DEVICE, {}, b"weights"),
        lambda core, path: core.compile_model(path, DEVICE, device_name=DEVICE),
        lambda core, path: core.compile_model(path, 7),
        lambda core, path: core.compile_model(None, DEVICE),
        lambda core, path: core.compile_model("<net>", DEVICE, weights=b""),
    ],
)
def test_errors_are_openvinos_own(core: ov.Core, placed: Path, monkeypatch: pytest.MonkeyPatch, call: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(Exception) as ours:
            call(core, placed)
    monkeypatch.setenv("OV_HSDAG_DISABLE", "1")
    with pytest.raises(Exception) as theirs:
        call(core, placed)
    assert (ours.type, str(ours.value)) == (theirs.type, str(theirs.value))
    assert ours.value.__context__ is None


def half_set(model: ov.Model) -> ov.Model:
    """A model of which only some nodes have an affinity: HETERO refuses it."""
    convolution = next(node for node in model.get_ordered_ops() if node.get_type_name() == "Convolution")
    convolution.get_rt_info()["affinity"] = "CPU_B"
    return model


ENDING = """
import gc, sys
import openvino as ov
from ov_hsdag import _autoload
_autoload.install()
core = ov.Core()
device, path = sys.argv[1:]
core.compile_model(path, device)
del core
gc.collect()
with open("/proc/self/maps") as file:
    print("openvino_hetero_plugin" in file.read())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.parametrize(
    ("device", "environment"),
    [(DEVICE, {}), ("HSDAG:CPU_A,CPU_B", {}), (DEVICE, {"OV_HSDAG_DISABLE": "1"}), ("CPU", {})],
    ids=["HETERO", "HSDAG", "disabled", "CPU"],
)
def test_heteros_library_outlives_the_core(
    placed: Path, tmp_path: Path, device: str, environment: dict[str, str]
) -> None:
    """A thread of a CPU device may free an inference request of HETERO after the Core has unloaded the plugin."""
    environment = {"PYTHONPATH": PACKAGE, "OV_HSDAG_CACHE": str(tmp_path)} | environment
    done = ended(sys.executable, "-c", ENDING, device, placed, env={**os.environ, **environment})
    assert done.stdout.split() == [str(device != "CPU")], done.stderr


@pytest.mark.usefixtures("silence")
def test_affinities_set_by_hand_are_not_touched(core: ov.Core, plain: ov.Model) -> None:
    model = plain.clone()
    halved(model, share=0.3).apply(model)
    assert submodels(core.compile_model(model, DEVICE)) == 2


def test_affinities_on_some_nodes_are_completed_with_a_warning(core: ov.Core, plain: ov.Model) -> None:
    model = half_set(plain.clone())
    nodes = len(model.get_ops())
    said = f"{nodes - 1} of the model's {nodes} nodes have no affinity, and follow their neighbours"
    for given in (model, native(model)):
        with pytest.warns(PlacementNotFollowedWarning, match=said):
            compiled = core.compile_model(given, DEVICE)
        assert devices(compiled) == ["CPU_B"]
    assert sum("affinity" in node.get_rt_info() for node in model.get_ops()) == 1  # the user's model is as it was


def test_affinities_that_cannot_be_completed_are_dropped_with_a_warning(
    core: ov.Core, plain: ov.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> None:
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr("ov_hsdag.model.placement.set_affinities", broken)
    with pytest.warns(PlacementNotFollowedWarning, match="without its placement: a bug of ours"):
        compiled = core.compile_model(half_set(plain.clone()), DEVICE)
    assert devices(compiled) == ["CPU_A"]


@pytest.mark.usefixtures("silence")
def test_affinity_set_by_hand_wins_over_the_embedded_one(core: ov.Core, placed: Path) -> None:
    model = core.read_model(placed)
    for node in model.get_ops():
        node.get_rt_info()["affinity"] = "CPU_B"
    assert devices(core.compile_model(model, DEVICE)) == ["CPU_B"]


def test_failure_of_ours_compiles_without_the_placement(
    core: ov.Core, placed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> None:
        raise ZeroDivisionError("a bug\nof ours")

    monkeypatch.setattr("ov_hsdag.model.complete.complete", broken)
    for model in (placed, core.read_model(placed), half_set(core.read_model(placed))):
        with pytest.warns(
            ov_hsdag.PlacementNotFollowedWarning, match="compiled without its placement: a bug of ours"
        ) as caught:
            compiled = core.compile_model(model, DEVICE)
        assert caught[0].filename == __file__
        assert devices(compiled) == ["CPU_A"]


def test_disabled_hook_ignores_placements_and_keeps_virtual_devices(
    core: ov.Core, placed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OV_HSDAG_DISABLE", "1")
    unlike_hetero(core, placed)
    assert devices(ov.Core().compile_model(placed, DEVICE)) == ["CPU_A"]


def test_core_has_the_virtual_devices(core: ov.Core, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"CPU_A", "CPU_B"} <= set(core.available_devices)
    monkeypatch.setenv("OV_HSDAG_VIRTUAL_DEVICES", "CPU_A;CPU_A")
    with pytest.raises(UserError, match="declared twice"):
        ov.Core()
    monkeypatch.delenv("OV_HSDAG_VIRTUAL_DEVICES")
    assert "CPU_A" not in ov.Core().available_devices


class RecordingCore:
    """Stands for openvino's Core: keeps what reaches it."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def add_extension(self, library_path: object) -> None:
        """As ov.Core's."""

    def register_plugin(self, plugin: object, device_name: str, config: Any = None) -> None:
        """As ov.Core's."""

    def import_model(self, model_stream: object, device_name: str, config: Any = None) -> str:
        """Imports."""
        return "imported"

    def compile_model(self, model: object, device_name: Any = None, config: Any = None, *, weights: Any = None) -> str:
        """Compiles."""
        self.calls.append(((model, device_name, config), {"weights": weights}))
        return "compiled"


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> RecordingCore:
    class Fresh(RecordingCore): ...

    class Compiled(ov.CompiledModel): ...

    class Request(ov.InferRequest): ...

    class Queue(ov.AsyncInferQueue): ...

    hook.patch(SimpleNamespace(Core=Fresh, CompiledModel=Compiled, InferRequest=Request, AsyncInferQueue=Queue))
    with monkeypatch.context() as patched:
        patched.delenv("OV_HSDAG_VIRTUAL_DEVICES")  # it has no plugins to register
        return Fresh()


def test_extensions_may_be_given_by_name(recording: RecordingCore, tmp_path: Path) -> None:
    recording.add_extension(library_path=tmp_path / "libone.so")
    recording.add_extension("libtwo.so")
    assert extensions.of(recording) == (str(tmp_path / "libone.so"), os.path.abspath("libtwo.so"))  # type: ignore


def test_models_without_a_placement_reach_openvino_as_they_came(
    recording: RecordingCore, plain: ov.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OV_HSDAG_VIRTUAL_DEVICES")
    config: dict[str, Any] = {"A": object()}
    for device in (DEVICE, "CPU", None):
        for model in (plain, "no/such/file.xml", object()):
            assert recording.compile_model(model, device, config) == "compiled"
            (got_model, got_device, got_config), _ = recording.calls[-1]
            assert got_model is model
            assert got_device is device
            assert got_config is config


def test_limits_of_virtual_devices_reach_split_models_without_a_placement_too(
    recording: RecordingCore, plain: ov.Model
) -> None:
    recording.compile_model(plain, DEVICE, {"DEVICE_PROPERTIES": {"CPU_B": {"NUM_STREAMS": 2}}})
    (_, _, config), _ = recording.calls[-1]
    assert config["DEVICE_PROPERTIES"]["CPU_A"]["EXCLUSIVE_ASYNC_REQUESTS"] is False
    assert config["DEVICE_PROPERTIES"]["CPU_B"]["NUM_STREAMS"] == 2
    assert config["DEVICE_PROPERTIES"]["CPU_B"]["INFERENCE_NUM_THREADS"] == "1"


def test_patching_again_changes_nothing() -> None:
    before = ov.Core.compile_model, ov.Core.__init__
    hook.patch(ov)
    assert (ov.Core.compile_model, ov.Core.__init__) == before


def test_signature_and_documentation_stay() -> None:
    original = inspect.unwrap(ov.Core.compile_model)
    assert original is not ov.Core.compile_model
    assert inspect.signature(ov.Core.compile_model) == inspect.signature(original)
    assert ov.Core.compile_model.__doc__ == original.__doc__
    assert "CompiledModel" in (ov.Core.compile_model.__doc__ or "")


def test_only_irs_with_an_entry_are_read(tmp_path: Path, placed: Path, directory: Path) -> None:
    assert file_carries(placed)
    assert file_carries(placed, step=7)
    assert not file_carries(directory / "plain.xml")
    assert not file_carries(placed.with_suffix(".bin"))
    assert not file_carries(SQUEEZENET)
    assert not file_carries(tmp_path)
    assert not file_carries(tmp_path / "missing.xml")
    assert not file_carries("no\0file")
    x = ops.parameter([1], np.float32, name="<ov_hsdag>")
    ov.save_model(ov.Model([ops.relu(x, name="</edges><ov_hsdag>")], [x], "<ov_hsdag>"), tmp_path / "m.xml")
    assert not file_carries(tmp_path / "m.xml")


@pytest.mark.usefixtures("silence")
def test_pass_in_a_manager_places_the_model(core: ov.Core, image: np.ndarray, tmp_path: Path) -> None:
    model = ov.convert_model(SQUEEZENET)
    step = ov_hsdag.HSDAGPlacement(device=DEVICE, objective="throughput")
    manager = Manager()
    manager.register_pass(step)
    manager.run_passes(model)
    embedded = Placement.of(model)
    assert embedded is not None
    assert step.placement is not None
    assert embedded.affinity == step.placement.affinity
    assert all("affinity" in node.get_rt_info() for node in model.get_ops())
    ov.save_model(model, tmp_path / "m.xml", compress_to_fp16=False)
    compiled = core.compile_model(tmp_path / "m.xml", DEVICE)
    assert devices(compiled) == ["CPU_A", "CPU_B"]
    assert close(compiled, core.compile_model(ov.convert_model(SQUEEZENET), "CPU", F32), image)


def test_pass_hands_all_options_to_placing(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []

    def place(model: ov.Model, device: Any, **arguments: Any) -> Placement:
        calls.append({"device": device, **arguments})
        return Placement(("CPU_A", "CPU_B"), {})

    monkeypatch.setattr(importlib.import_module("ov_hsdag.placing.place"), "place", place)
    model = ov.convert_model(SQUEEZENET)
    given: dict[str, Any] = {one.name: object() for one in dataclasses.fields(PlaceOptions)}
    monkeypatch.setattr("ov_hsdag.placing.options.check_argument", lambda *_: None)
    core, report = object(), object()
    ov_hsdag.HSDAGPlacement(DEVICE, core=core, report=report, **given).run_on_model(model)
    ov_hsdag.HSDAGPlacement(DEVICE, options=PlaceOptions(objective="throughput")).run_on_model(model)
    assert calls == [
        {"device": DEVICE, "core": core, "report": report, "options": PlaceOptions(**given)},
        {"device": DEVICE, "core": None, "report": None, "options": PlaceOptions(objective="throughput")},
    ]
    with pytest.raises(TypeError, match="there is no option 'objectives' of placing; there are objective, profile,"):
        ov_hsdag.HSDAGPlacement(DEVICE, objectives="latency")


@pytest.mark.slow
@pytest.mark.usefixtures("quiet_machine")
def test_pass_keeps_to_the_memory_and_reports_what_it_measures(core: ov.Core) -> None:
    lines: list[str] = []
    step = ov_hsdag.HSDAGPlacement(
        ["CPU_A", "CPU_B"], core=core, memory={"CPU_A": 1}, measure=True, measure_seconds=180, report=lines.append
    )
    step.run_on_model(ov.convert_model(SQUEEZENET))
    assert step.placement is not None and step.placement.used() == ("CPU_B",)
    assert step.placement.measured and lines


def test_pass_raises_what_placing_raises() -> None:
    manager = Manager()
    manager.register_pass(ov_hsdag.HSDAGPlacement(device="HETERO:GPU,CPU", objective="speed"))
    with pytest.raises(UserError, match="unknown objective"):
        manager.run_passes(ov.convert_model(SQUEEZENET))
