"""What goes wrong between placing a model and running it: each ends in one clear line and a model that works."""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino.preprocess import PrePostProcessor

import ov_hsdag
from ov_hsdag.integration import core as hook
from ov_hsdag.model import complete, normalize
from ov_hsdag.model.placement import Placement
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import opset13 as ops
from research.zoo.compare import TOLERANCE, infer, largest_difference
from research.zoo.generated import Case
from tests.conftest import TWO_CORES
from tests.graphs import halved, submodels

pytestmark = pytest.mark.usefixtures("fast_search")

DEVICE = "HETERO:CPU_A,CPU_B"
F32 = {"INFERENCE_PRECISION_HINT": "f32"}


@pytest.fixture(autouse=True)
def hooked(declared: None) -> None:
    hook.patch(ov)


@pytest.fixture
def core() -> ov.Core:
    return ov.Core()


def network(seed: int = 0, layers: int = 4) -> Case:
    """Images through convolutions, with a residual and a head; names are layer_0 … and head."""
    random = np.random.default_rng(seed)
    x = ops.parameter([1, 3, 16, 16], ov.Type.f32, name="image")
    x.output(0).get_tensor().set_names({"image"})
    value, channels = x, 3
    for number in range(layers):
        weights = ops.constant(random.normal(size=(8, channels, 3, 3)).astype(np.float32) / 5)
        weights.set_friendly_name(f"weights_{number}")
        made = ops.relu(ops.convolution(value, weights, [1, 1], [1, 1], [1, 1], [1, 1], name=f"layer_{number}"))
        made.set_friendly_name(f"activation_{number}")
        value = made if channels == 3 else ops.add(made, value, name=f"sum_{number}")
        channels = 8
    pooled = ops.reduce_mean(value, ops.constant(np.array([2, 3])), False, name="pool")
    head = ops.matmul(pooled, ops.constant(random.normal(size=(8, 10)).astype(np.float32)), False, False, name="head")
    model = ov.Model([ops.result(head, name="logits")], [x], "network")
    return Case(model, [[random.normal(size=(1, 3, 16, 16)).astype(np.float32)]])


def half_placed(model: ov.Model, devices: tuple[str, str] = ("CPU_A", "CPU_B")) -> Placement:
    """The first half of a model's nodes on the first device, the others on the second."""
    normalize.normalize(model)
    return Placement(devices, complete.complete(model, halved(model, devices).affinity, devices))


def placed_file(folder: Path, case: Case, devices: tuple[str, str] = ("CPU_A", "CPU_B")) -> Path:
    half_placed(case.model, devices).embed(case.model)
    ov.save_model(case.model, folder / "model.xml", compress_to_fp16=False)
    return folder / "model.xml"


def outputs(compiled: ov.CompiledModel, inputs: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
    return infer(compiled, [dict(enumerate(arrays)) for arrays in inputs])  # type: ignore[misc]


def alike(core: ov.Core, compiled: ov.CompiledModel, model: Any, inputs: list[list[np.ndarray]]) -> bool:
    """Whether outputs are those of one device."""
    expected = outputs(core.compile_model(model, "CPU", F32), inputs)
    return largest_difference(expected, outputs(compiled, inputs)) <= TOLERANCE


def devices(compiled: ov.CompiledModel) -> set[str]:
    return set(compiled.get_property("EXECUTION_DEVICES"))


# Devices


class Refusing(ov.Core):
    """A Core some of whose devices promise all and compile nothing but the smallest model: full, or badly driven."""

    refuse: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.compiled: list[int] = []  # nodes of each model that was to be compiled

    def compile_model(self, model: Any, device_name: Any = None, config: Any = None, *, weights: Any = None) -> Any:
        nodes = model.get_ops() if isinstance(model, ov.Model) else []
        self.compiled.append(len(nodes))
        for node in nodes:
            info = node.get_rt_info()
            if "affinity" in info and info["affinity"].astype(str) in self.refuse:
                raise RuntimeError(
                    f"Exception from src/device.cpp:7:\nout of {info['affinity'].astype(str)}'s memory\n"
                )
        return inspect.unwrap(ov.Core.compile_model)(self, model, device_name, config, weights=weights)


class Compiled(ov.CompiledModel): ...


class Request(ov.InferRequest): ...


class Queue(ov.AsyncInferQueue): ...


hook.patch(SimpleNamespace(Core=Refusing, CompiledModel=Compiled, InferRequest=Request, AsyncInferQueue=Queue))


@pytest.mark.parametrize("refusing, other", [("CPU_A", "CPU_B"), ("CPU_B", "CPU_A")])
@pytest.mark.parametrize("config", [None, {"DEVICE_PROPERTIES": {"CPU_B": {"NUM_STREAMS": 1}}}])
def test_a_device_that_refuses_its_part_is_left_out(
    core: ov.Core, tmp_path: Path, refusing: str, other: str, config: Any
) -> None:
    case = network()
    path = placed_file(tmp_path, case)
    full = Refusing()
    full.refuse = (refusing,)
    with pytest.warns(ov_hsdag.PlacementNotFollowedWarning) as caught:
        compiled = full.compile_model(path, DEVICE, config)
    (line,) = [str(warning.message) for warning in caught]
    assert line == (
        f"ov_hsdag: the placement does not compile with {refusing}; the model runs on {other}:"
        f" out of {refusing}'s memory; placed on this machine, where {refusing} is asked and tried, the rest of the"
        f" model can use {refusing}: ov-hsdag place {path} --device {DEVICE}"
    )
    assert caught[0].filename == __file__
    assert devices(compiled) == {other}
    assert alike(core, compiled, path, case.inputs)


def test_two_of_three_that_refuse(core: ov.Core, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OV_HSDAG_VIRTUAL_DEVICES", f"{TWO_CORES};CPU_C:INFERENCE_PRECISION_HINT=f32")
    full = Refusing()
    full.refuse = ("CPU_A", "CPU_C")
    case = network()
    three = ("CPU_A", "CPU_B", "CPU_C")
    names = [node.get_friendly_name() for node in case.model.get_ordered_ops()]
    affinity = {name: three[3 * index // len(names)] for index, name in enumerate(names)}
    Placement(three, affinity).embed(case.model)
    ov.save_model(case.model, tmp_path / "m.xml", compress_to_fp16=False)
    with pytest.warns(RuntimeWarning, match=r"does not compile with CPU_A, CPU_C; the model runs on CPU_B: "):
        compiled = full.compile_model(tmp_path / "m.xml", "HETERO:CPU_A,CPU_B,CPU_C")
    assert devices(compiled) == {"CPU_B"}
    assert alike(core, compiled, tmp_path / "m.xml", case.inputs)


def test_where_every_device_refuses_each_set_of_devices_is_tried_once(tmp_path: Path) -> None:
    path = placed_file(tmp_path, network())
    full = Refusing()
    full.refuse = ("CPU_A", "CPU_B")
    with pytest.warns(RuntimeWarning, match="compiled without its placement: out of CPU_A's memory"):
        compiled = full.compile_model(path, DEVICE)
    assert devices(compiled) == {"CPU_A"}
    whole = [nodes for nodes in full.compiled if nodes > 10]
    assert len(whole) == 3  # on both devices, then on each alone


WRONG = "INFERENCE_PRECISION_HINT|NUM_STREAMS|many|PERFORMANCE_HINT|stoi|properties.hpp"


@pytest.mark.parametrize(
    "config",
    [
        {"DEVICE_PROPERTIES": {"CPU_A": {"INFERENCE_PRECISION_HINT": "i4"}}},
        {"DEVICE_PROPERTIES": {name: {"INFERENCE_PRECISION_HINT": "i4"} for name in ("CPU_A", "CPU_B")}},
        {"PERFORMANCE_HINT": "FAST"},
    ],
)
@pytest.mark.usefixtures("silence")
def test_a_wrong_property_is_openvinos_error_after_two_compilations_at_most(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    path = placed_file(tmp_path, network())
    core = Refusing()
    with pytest.raises(RuntimeError, match=WRONG) as error:
        core.compile_model(path, DEVICE, config)
    assert error.value.__context__ is None
    whole, *probes, as_called = core.compiled  # a file has no nodes yet
    assert (whole > 10, as_called) == (True, 0)
    assert 0 < max(probes) <= 3


@pytest.mark.parametrize("wrong", ["many", "-7"])
def test_a_wrong_property_of_a_device_that_heteros_own_choice_does_not_use_costs_the_placement(
    core: ov.Core, tmp_path: Path, wrong: str
) -> None:
    """Without the placement such a call works, so that it works with one, too."""
    case = network()
    path = placed_file(tmp_path, case)
    config = {"DEVICE_PROPERTIES": {"CPU_B": {"NUM_STREAMS": wrong}, "CPU_A": {"NUM_STREAMS": 1}}}
    with pytest.warns(ov_hsdag.PlacementNotFollowedWarning, match=f"compiled without its placement: .*({WRONG})"):
        compiled = core.compile_model(path, DEVICE, config)
    assert devices(compiled) == {"CPU_A"}
    assert alike(core, compiled, path, case.inputs)


@pytest.mark.parametrize("refusing", [(), ("CPU_B",)])
def test_filters_that_make_warnings_errors_cost_the_placement_nothing(
    tmp_path: Path, refusing: tuple[str, ...]
) -> None:
    path = placed_file(tmp_path, network(), ("CPU_A", "CPU_B"))
    core = Refusing()
    core.refuse = refusing
    wanted = DEVICE if refusing else "HETERO:CPU,CPU_A"
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        core.compile_model(path, wanted)
    as_ever, core.compiled = core.compiled, []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(
            ov_hsdag.PlacementNotFollowedWarning, match="does not compile" if refusing else "uses CPU_B"
        ):
            core.compile_model(path, wanted)
    assert core.compiled == as_ever


# The model is not what it was


def preprocessed(case: Case) -> Case:
    steps = PrePostProcessor(case.model)
    steps.input().tensor().set_element_type(ov.Type.u8).set_layout(ov.Layout("NHWC"))
    steps.input().model().set_layout(ov.Layout("NCHW"))
    steps.input().preprocess().convert_element_type(ov.Type.f32).mean(100.0).scale(50.0)
    image = np.random.default_rng(1).integers(0, 255, (1, 16, 16, 3), np.uint8)
    return Case(steps.build(), [[image]])


def renamed(case: Case) -> Case:
    for number, node in enumerate(case.model.get_ordered_ops()):
        if number % 3 == 0:
            node.set_friendly_name(f"new_{number}")
    return case


def all_renamed(case: Case) -> Case:
    for number, node in enumerate(case.model.get_ordered_ops()):
        node.set_friendly_name(f"new_{number}")
    return case


def removed(case: Case) -> Case:
    for node in case.model.get_ordered_ops():
        if node.get_type_name() == "Relu":
            for target in node.output(0).get_target_inputs():
                target.replace_source_output(node.input_value(0))
    return case


def extended(case: Case) -> Case:
    (result,) = case.model.get_results()
    logits = result.input_value(0)
    case.model.add_results([ops.result(ops.softmax(logits, 1)), ops.result(ops.relu(logits))])
    for node in case.model.get_ordered_ops():
        if node.get_friendly_name().startswith("sum"):
            node.input(0).replace_source_output(ops.tanh(node.input_value(0)).output(0))
    return case


def larger(case: Case) -> Case:
    case.model.reshape([3, 3, 20, 20])
    return Case(case.model, [[np.random.default_rng(1).normal(size=(3, 3, 20, 20)).astype(np.float32)]])


def dynamic(case: Case) -> Case:
    case.model.reshape(ov.PartialShape([-1, 3, -1, -1]))
    shapes = ((1, 3, 16, 16), (2, 3, 8, 24))
    return Case(case.model, [[np.random.default_rng(1).normal(size=shape).astype(np.float32)] for shape in shapes])


def cut_off(case: Case) -> Case:
    inner = next(node for node in case.model.get_ordered_ops() if node.get_friendly_name() == "sum_2")
    return Case(ov.Model([ops.result(inner)], case.model.get_parameters(), "head"), case.inputs)


CHANGES = (preprocessed, renamed, removed, extended, larger, dynamic)


@pytest.mark.usefixtures("silence")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("compress", [False, True])
def test_a_model_that_changed_after_placing_keeps_both_devices(
    core: ov.Core, tmp_path: Path, change: Callable[[Case], Case], compress: bool
) -> None:
    case = network()
    half_placed(case.model).embed(case.model)
    changed = change(case)
    ov.save_model(changed.model, tmp_path / "m.xml", compress_to_fp16=compress)
    for model in (tmp_path / "m.xml", core.read_model(tmp_path / "m.xml")):
        compiled = core.compile_model(model, DEVICE)
        assert devices(compiled) == {"CPU_A", "CPU_B"}
        assert alike(core, compiled, tmp_path / "m.xml", changed.inputs)
    changed = change(Case(core.read_model(placed_file(tmp_path, network())), case.inputs))
    compiled = core.compile_model(changed.model, DEVICE)
    assert devices(compiled) == {"CPU_A", "CPU_B"}
    assert alike(core, compiled, changed.model, changed.inputs)


@pytest.mark.parametrize(
    ("kept", "told"),
    [
        ("", "none of the model's nodes, and HETERO decides"),
        ("head", r"only 1 of the model's \d+ nodes, and the others follow these"),
    ],
)
def test_a_model_of_which_little_is_left_says_so_and_runs(core: ov.Core, tmp_path: Path, kept: str, told: str) -> None:
    case = all_renamed(Case(core.read_model(placed_file(tmp_path, network())), network().inputs))
    if kept:
        next(node for node in case.model.get_ops() if node.get_type_name() == "MatMul").set_friendly_name(kept)
    with pytest.warns(RuntimeWarning, match=f"placement knows {told}") as caught:
        compiled = core.compile_model(case.model, DEVICE)
    assert caught[0].filename == __file__
    assert alike(core, compiled, case.model, case.inputs)


@pytest.mark.usefixtures("silence")
def test_a_part_of_a_placed_model_runs(core: ov.Core, tmp_path: Path) -> None:
    case = cut_off(Case(core.read_model(placed_file(tmp_path, network())), network().inputs))
    assert alike(core, core.compile_model(case.model, DEVICE), case.model, case.inputs)


# The placement is not this model's, or is no placement


def test_an_affinity_file_of_another_model_is_refused(tmp_path: Path) -> None:
    other, case = network(layers=6), network()
    half_placed(other.model).save(tmp_path / "other.json")
    with pytest.raises(UserError, match=r"names '.*, which the model lacks: was it made for another model") as error:
        ov_hsdag.place(case.model, DEVICE, affinity=tmp_path / "other.json")
    assert "\n" not in str(error.value)
    assert Placement.of(case.model) is None
    assert not any("affinity" in node.get_rt_info() for node in case.model.get_ops())


UNREADABLE = "compiled without its placement: the model's embedded placement cannot be read"


@pytest.mark.parametrize(
    "key, value, line",
    [
        ("version", "2", "has version 2, this ov-hsdag reads up to 1: upgrade it"),
        ("version", "x", UNREADABLE),
        ("devices", "[]", "compiled without its placement: the placement uses 'CPU_A', 'CPU_B'"),
        ("default", "NPU", "compiled without its placement: the placement uses 'NPU', which its device list"),
        ("exceptions", '{"NPU": ["elsewhere"]}', "compiled without its placement: the placement uses 'NPU'"),
        ("default_nodes", '{"a": 1}', None),  # the others follow those of the other device
        ("objective", "", None),  # does not matter any more
    ],
)
def test_a_damaged_placement_is_left_aside(
    core: ov.Core, tmp_path: Path, key: str, value: str, line: str | None
) -> None:
    case = network()
    path = placed_file(tmp_path, case)
    model = core.read_model(path)
    model.set_rt_info(value, ["ov_hsdag", key])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = core.compile_model(model, DEVICE)
    told = [str(warning.message) for warning in caught]
    assert len(told) == (line is not None)
    assert all(text.startswith("ov_hsdag: ") and str(line) in text and "\n" not in text for text in told)
    assert alike(core, compiled, path, case.inputs)


def test_an_entry_that_is_only_text_is_left_aside(core: ov.Core) -> None:
    case = network()
    case.model.set_rt_info("yes", ["ov_hsdag"])
    with pytest.warns(RuntimeWarning, match="without its placement: the model's embedded placement cannot be read"):
        compiled = core.compile_model(case.model, DEVICE)
    assert alike(core, compiled, case.model, case.inputs)


# Many at once


@pytest.mark.usefixtures("silence")
def test_two_placed_models_in_one_process(core: ov.Core, tmp_path: Path) -> None:
    cases = [network(seed, layers) for seed, layers in ((0, 4), (1, 6))]
    folders = [tmp_path / name for name in "ab"]
    compiled = []
    for case, folder, order in zip(cases, folders, (("CPU_A", "CPU_B"), ("CPU_B", "CPU_A")), strict=True):
        folder.mkdir()
        compiled.append(core.compile_model(placed_file(folder, case, order), DEVICE))
    for number in (0, 1, 0, 1):
        assert devices(compiled[number]) == {"CPU_A", "CPU_B"}
        assert alike(core, compiled[number], folders[number] / "model.xml", cases[number].inputs)


@pytest.mark.usefixtures("silence")
@pytest.mark.parametrize("shared_core", [True, False])
@pytest.mark.parametrize("shared_model", [True, False])
def test_threads_compile_one_model_at_once(tmp_path: Path, shared_core: bool, shared_model: bool) -> None:
    case = network()
    path = placed_file(tmp_path, case)
    core = ov.Core()
    expected = outputs(core.compile_model(path, "CPU", F32), case.inputs)
    model = core.read_model(path) if shared_model else path
    together = threading.Barrier(6)

    def compile_and_run(_: int) -> tuple[int, set[str], float]:
        own = core if shared_core else ov.Core()
        together.wait(60)
        compiled = own.compile_model(model, DEVICE)
        return submodels(compiled), devices(compiled), largest_difference(expected, outputs(compiled, case.inputs))

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(compile_and_run, range(6)))
    assert {result[0] for result in results} == {2}
    assert all(used == {"CPU_A", "CPU_B"} for _, used, _ in results)
    assert max(difference for _, _, difference in results) <= TOLERANCE


def test_threads_place_at_once(core: ov.Core) -> None:
    cases = [network(seed, layers) for seed, layers in enumerate((3, 4, 5, 6))]
    alone = [ov_hsdag.place(case.model.clone(), DEVICE, objective="throughput", core=core) for case in cases]
    together = threading.Barrier(8)

    def place(number: int) -> tuple[ov.Model, Placement]:
        model = cases[number % 4].model.clone()
        together.wait(60)
        return model, ov_hsdag.place(model, DEVICE, objective="throughput", core=core if number < 4 else None)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(place, range(8)))
    for number, (model, placement) in enumerate(results):
        case = cases[number % 4]
        assert placement.predicted == alone[number % 4].predicted
        assert alike(core, core.compile_model(model, DEVICE), case.model, case.inputs)


# Caches and blobs


@pytest.mark.skipif(
    tuple(int(part) for part in ov.__version__.split(".")[:1]) < (2026,),
    reason="this OpenVINO cannot import several submodels, whoever placed them",
)
@pytest.mark.usefixtures("silence")
def test_an_exported_model_keeps_its_placement(core: ov.Core, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = network()
    path = placed_file(tmp_path, case)
    compiled = core.compile_model(path, DEVICE)
    blob = compiled.export_model()
    blob = blob.getvalue() if hasattr(blob, "getvalue") else bytes(blob)
    monkeypatch.setenv("OV_HSDAG_DISABLE", "1")  # who imports it needs nothing of ours
    imported = core.import_model(blob, DEVICE)
    assert devices(imported) == {"CPU_A", "CPU_B"}
    assert submodels(imported) == submodels(compiled) == 2
    assert alike(core, imported, path, case.inputs)
