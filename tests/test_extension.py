"""Placements without Python: the pass ApplyPlacement, the extension library, the C++ sample and benchmark_app."""

from __future__ import annotations

import html
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops
from openvino.preprocess import PrePostProcessor
from openvino.utils import get_cmake_path

import ov_hsdag
from ov_hsdag.devices.cpu import usable_cores
from ov_hsdag.devices.requests import MOST, requests_in_flight
from ov_hsdag.integration import extension, extension_build
from ov_hsdag.model import normalize, output_tags, shapes
from ov_hsdag.model.graph import ComputationGraph
from ov_hsdag.model.placement import Placement
from ov_hsdag.utils.errors import PlacementNotFollowedWarning, RunError, UserError
from tests import commands
from tests.conftest import TWO_CORES
from tests.fuzz.mutation import mutated
from tests.graphs import attention, halved, random_model, submodels, unflattening_model
from tests.processes import ended

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = (ROOT / "tools" / "wheels" / "releases.txt").read_text(encoding="utf-8").split()
DEVICES = ("CPU_A", "CPU_B")
HETERO = "HETERO:CPU_A,CPU_B"
F32 = {"INFERENCE_PRECISION_HINT": "f32"}


@pytest.fixture(autouse=True)
def no_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here follows a placement in Python, unless a test says so; and the library knows the devices of tests."""
    monkeypatch.delenv("OV_HSDAG_DISABLE", raising=False)
    monkeypatch.setattr(ov.Core, "compile_model", getattr(ov.Core.compile_model, "__wrapped__", ov.Core.compile_model))
    monkeypatch.setenv("OV_HSDAG_DEVICE", HETERO)


def new_core(library: Path | None = None) -> ov.Core:
    core = ov.Core()
    for name in DEVICES:
        core.register_plugin("openvino_intel_cpu_plugin", name)
        core.set_property(name, F32)
    if library is not None:
        core.add_extension(library)
    return core


@pytest.fixture
def core(library: Path) -> ov.Core:
    """Follows placements by the library."""
    return new_core(library)


@pytest.fixture
def stock() -> ov.Core:
    return new_core()


# --- models


def convnet() -> ov.Model:
    """Branches of convolutions over an image."""
    generator = np.random.default_rng(0)
    image = ops.parameter([1, 3, 32, 32], np.float32, name="image")

    def convolution(value: ov.Node, inputs: int, size: int) -> ov.Node:
        weights = generator.normal(size=(8, inputs, size, size)) / np.sqrt(inputs * size * size)
        padding = [size // 2] * 2
        return ops.relu(
            ops.convolution(value, ops.constant(weights.astype(np.float32)), [1, 1], padding, padding, [1, 1])
        )

    value = convolution(image, 3, 3)
    for _ in range(3):
        value = ops.concat([convolution(value, value.shape[1], 1), convolution(value, value.shape[1], 3)], 1)
    return ov.Model([ops.result(ops.reduce_mean(value, ops.constant([2, 3]), False))], [image], "convnet")


def stateful() -> ov.Model:
    """A state, a Parameter that nobody uses, two parts that nothing connects, and a constant for two consumers."""
    x = ops.parameter([1, 4], np.float32, name="x")
    unused = ops.parameter([2], np.float32, name="unused")
    apart = ops.parameter([1, 4], np.float32, name="apart")
    read = ops.read_value(ops.constant(np.zeros((1, 4), np.float32)), "state", ov.Type.f32, [1, 4], name="read")
    total = ops.add(read, x, name="total")
    shared = ops.constant(np.full((1, 4), 0.5, np.float32), name="shared")
    y = ops.relu(ops.multiply(ops.tanh(total, name="tanh"), shared, name="scaled"), name="y")
    z = ops.exp(ops.multiply(ops.sigmoid(apart, name="sigmoid"), shared, name="scaled apart"), name="z")
    return ov.Model(
        [ops.result(y, name="out"), ops.result(z, name="out apart")],
        [ops.assign(total, "state")],
        [x, unused, apart],
        "stateful",
    )


def dynamic() -> ov.Model:
    """Shape arithmetic that two branches share, with a body of its own beside it."""
    x = ops.parameter([-1, 8], np.float32, name="x")
    rows = ops.gather(ops.shape_of(x, name="shape"), ops.constant([0]), ops.constant(0), name="rows")
    pattern = ops.concat([rows, ops.constant(np.array([2, 4]))], 0, name="pattern")
    left = ops.relu(ops.reshape(ops.tanh(x), pattern, False, name="left"))
    right = ops.exp(ops.reshape(ops.sigmoid(x), pattern, False, name="right"))
    condition = ops.parameter([], bool, name="condition")
    then_in = ops.parameter([-1, 2, 4], np.float32, name="then in")
    else_in = ops.parameter([-1, 2, 4], np.float32, name="else in")
    then_body = ov.Model([ops.result(ops.relu(then_in))], [then_in], "then")
    else_body = ov.Model([ops.result(ops.negative(else_in))], [else_in], "else")
    choice = ops.if_op(condition)
    choice.set_then_body(then_body)
    choice.set_else_body(else_body)
    choice.set_input(ops.add(left, right).output(0), then_in, else_in)
    out = choice.set_output(then_body.results[0], else_body.results[0])
    return ov.Model([ops.result(out), ops.result(left)], [x, condition], "dynamic")


MODELS: dict[str, Callable[[], ov.Model]] = {
    "convnet": convnet,
    "stateful": stateful,
    "dynamic": dynamic,
    **{f"random {seed}": lambda seed=seed: random_model(seed) for seed in range(4)},
}
SMALL = [name for name in MODELS if name != "convnet"]


def legal_placement(model: ov.Model, seed: int, devices: Sequence[str] = DEVICES) -> Placement:
    """Normalizes the model; a device for each legality group by uniform random assignment."""
    normalize.normalize(model)
    graph = ComputationGraph.from_model(model)
    groups = graph.legality.groups
    dice = np.random.default_rng(seed).integers(0, len(devices), int(groups.max()) + 1)
    return Placement(tuple(devices), {name: devices[dice[g]] for name, g in zip(graph.names, groups, strict=True)})


def affinities(model: ov.Model) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for node in model.get_ordered_ops():
        rt_info = node.get_rt_info()
        found[node.get_friendly_name()] = rt_info["affinity"].astype(str) if "affinity" in rt_info else None
    return found


def follow(model: ov.Model) -> None:
    """Applies the placement inside, as Python's hook does."""
    placement = Placement.of(model)
    assert placement is not None
    placement.apply(model)


def example(model: ov.Model | ov.CompiledModel) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    result = []
    for port in model.inputs:
        shape = [d.get_length() if d.is_static else 3 for d in port.get_partial_shape()]
        kind = port.get_element_type().to_dtype()
        result.append((generator.normal(size=shape) if kind == np.float32 else np.arange(np.prod(shape))).astype(kind))
        result[-1] = result[-1].reshape(shape)
    return result


def check_outputs(placed: ov.CompiledModel, plain: ov.Model, core: ov.Core) -> None:
    inputs = example(placed)
    got, want = placed(inputs), core.compile_model(plain, "CPU", F32)(inputs)
    for a, b in zip(got.values(), want.values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3 * max(1e-6, float(np.abs(b).max())))


@pytest.fixture(scope="module")
def placed_convnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("convnet") / "model.xml"
    model = convnet()
    normalize.normalize(model)
    halved(model).embed(model)
    ov.save_model(model, path)
    return path


def with_text(placed: Path, folder: Path, text: str) -> Path:
    """A copy of an IR, with another text."""
    path = folder / "model.xml"
    path.write_text(text, encoding="utf-8")
    shutil.copy(placed.with_suffix(".bin"), path.with_suffix(".bin"))
    return path


# --- the library


@pytest.mark.parametrize("build", [dynamic, unflattening_model], ids=["dynamic", "unflattening"])
def test_reading_settles_what_is_not_legal_as_python_does(
    core: ov.Core, stock: ov.Core, tmp_path: Path, build: Callable[[], ov.Model]
) -> None:
    for seed in range(12):
        model = build()
        normalize.normalize(model)
        dice = np.random.default_rng(seed)
        names = [node.get_friendly_name() for node in model.get_ordered_ops()]
        Placement(DEVICES, {name: DEVICES[dice.integers(2)] for name in names}).embed(model)
        ov.save_model(model, tmp_path / "model.xml")
        wanted = stock.read_model(tmp_path / "model.xml")
        follow(wanted)
        assert affinities(core.read_model(tmp_path / "model.xml")) == affinities(wanted)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_reading_applies_what_python_applies(core: ov.Core, stock: ov.Core, tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.xml"
    for seed in range(3):
        model = MODELS[name]()
        legal_placement(model, seed).embed(model)
        ov.save_model(model, path)
        wanted = stock.read_model(path)
        follow(wanted)
        read = core.read_model(path)
        assert affinities(read) == affinities(wanted)
        compiled = core.compile_model(read, HETERO)
        assert submodels(compiled) == submodels(stock.compile_model(wanted, HETERO))
        check_outputs(compiled, stock.read_model(path), stock)


def test_outputs_look_like_openvinos_own(core: ov.Core, placed_convnet: Path) -> None:
    model = core.read_model(placed_convnet)
    for one in (model, model.clone(), preprocessed(model)):
        for output in one.outputs:
            assert type(output.node) is type(ops.result(ops.constant(1)))
            output.node.layout  # noqa: B018 what benchmark_app prints


def test_stock_openvino_reads_the_same_file_as_ever(stock: ov.Core, placed_convnet: Path) -> None:
    model = stock.read_model(placed_convnet)
    assert set(affinities(model).values()) == {None}
    assert submodels(stock.compile_model(model, HETERO)) == 1


def preprocessed(model: ov.Model) -> ov.Model:
    steps = PrePostProcessor(model)
    steps.input().tensor().set_element_type(ov.Type.u8).set_layout(ov.Layout("NHWC"))
    steps.input().model().set_layout(ov.Layout("NCHW"))
    steps.input().preprocess().convert_element_type(ov.Type.f32).mean([1.0, 2.0, 3.0])
    steps.output().tensor().set_element_type(ov.Type.f16)
    return steps.build()


def test_preprocessing_and_reshape_after_reading(core: ov.Core, stock: ov.Core, placed_convnet: Path) -> None:
    model = preprocessed(core.read_model(placed_convnet))
    assert None in affinities(model).values()  # HETERO would refuse it
    compiled = core.compile_model(model, HETERO)
    assert (submodels(compiled), list(compiled.get_property("EXECUTION_DEVICES"))) == (2, list(DEVICES))
    check_outputs(compiled, model, stock)
    assert submodels(core.compile_model(model.clone(), HETERO)) == 2
    assert None in affinities(model).values()  # the caller's model is only looked at
    python = stock.read_model(placed_convnet)
    placement = Placement.of(python)
    assert placement is not None
    python = preprocessed(python)
    placement.apply(python)
    assert by_type(model.clone()) == by_type(python)  # names of new nodes are numbers
    model.reshape([2, 224, 224, 3])
    assert submodels(core.compile_model(model, HETERO)) == 2


def test_nodes_that_are_added_after_reading_may_share_a_constant(
    core: ov.Core, stock: ov.Core, placed_convnet: Path
) -> None:
    """As a program's own transformations leave them; the copy that HETERO makes has the constant on each device."""

    def changed(core: ov.Core) -> ov.Model:
        model = core.read_model(placed_convnet)
        shared = ops.unsqueeze(ops.constant(np.float32([0.5])), np.int64(0))
        for node in model.get_ordered_ops():
            if node.get_type_name() == "Relu":
                readers = node.output(0).get_target_inputs()
                scaled = ops.multiply(node, ops.squeeze(shared, np.int64(0)))
                for reader in readers:
                    reader.replace_source_output(scaled.output(0))
        model.validate_nodes_and_infer_types()
        return model

    model = changed(core)
    copy = model.clone()
    devices = affinities(copy)
    added = [one for one in copy.get_ordered_ops() if one.get_type_name() == "Multiply"]
    assert {devices[one.get_friendly_name()] for one in added} == {*DEVICES}
    compiled = core.compile_model(model, HETERO)
    assert submodels(compiled) == submodels(core.compile_model(core.read_model(placed_convnet), HETERO)) == 2
    check_outputs(compiled, changed(stock), stock)


def by_type(model: ov.Model) -> list[tuple[str, str]]:
    return [(n.get_type_name(), n.get_rt_info()["affinity"].astype(str)) for n in model.get_ordered_ops()]


def test_saving_a_model_that_was_read_keeps_its_placement(
    core: ov.Core, stock: ov.Core, placed_convnet: Path, tmp_path: Path
) -> None:
    for number, reader in enumerate((core, stock)):
        path = tmp_path / f"{number}.xml"
        ov.save_model(preprocessed(reader.read_model(placed_convnet)), path)
        assert submodels(core.compile_model(path, HETERO)) == 2


def test_cache_keeps_the_placement(core: ov.Core, placed_convnet: Path, tmp_path: Path) -> None:
    for _ in range(2):
        compiled = core.compile_model(placed_convnet, HETERO, {"CACHE_DIR": str(tmp_path)})
        assert submodels(compiled) == 2


def test_threads_that_compile_one_model(core: ov.Core, placed_convnet: Path) -> None:
    model = preprocessed(core.read_model(placed_convnet))
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda _: submodels(core.compile_model(model, HETERO)), range(4))) == [2] * 4


def test_model_outlives_its_core(library: Path, placed_convnet: Path) -> None:
    core = new_core(library)
    model = core.read_model(placed_convnet)
    del core
    assert affinities(model.clone()) == affinities(model)


def test_models_without_a_placement_are_left_alone(
    core: ov.Core, stock: ov.Core, placed_convnet: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    placed = core.read_model(placed_convnet)  # one that has a placement is alive in the same thread
    for name in SMALL:
        ov.save_model(MODELS[name](), tmp_path / "model.xml")
        model = core.read_model(tmp_path / "model.xml")
        assert set(affinities(model).values()) == {None}
        assert set(affinities(model.clone()).values()) == {None}
        compiled = core.compile_model(model, HETERO)
        assert submodels(compiled) == submodels(stock.compile_model(tmp_path / "model.xml", HETERO))
    assert None not in affinities(placed).values()
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_several_placements_in_one_process(core: ov.Core, tmp_path: Path) -> None:
    paths = {seed: tmp_path / f"{seed}.xml" for seed in range(3)}
    counts = {}
    for seed, path in paths.items():
        model = random_model(4, nodes=20)
        legal_placement(model, seed).embed(model)
        ov.save_model(model, path)
        counts[seed] = submodels(core.compile_model(path, HETERO))
    models = {seed: core.read_model(path) for seed, path in paths.items()}
    again = {seed: submodels(core.compile_model(model, HETERO)) for seed, model in models.items()}
    assert again == counts
    with ThreadPoolExecutor(len(paths)) as threads:
        found = threads.map(lambda path: submodels(core.compile_model(path, HETERO)), paths.values())
        assert dict(zip(paths, found, strict=True)) == counts
    assert len(set(counts.values())) > 1


def test_affinities_that_a_program_sets_or_removes_are_its_own(core: ov.Core, placed_convnet: Path) -> None:
    model = core.read_model(placed_convnet)
    for node in model.get_ops():
        node.get_rt_info()["affinity"] = "CPU_B"
    assert list(core.compile_model(model, HETERO).get_property("EXECUTION_DEVICES")) == ["CPU_B"]
    for node in model.get_ops():
        del node.get_rt_info()["affinity"]
    assert list(core.compile_model(model, HETERO).get_property("EXECUTION_DEVICES")) == ["CPU_A"]


def test_outputs_of_any_opset(core: ov.Core, placed_convnet: Path, tmp_path: Path) -> None:
    text = placed_convnet.read_text(encoding="utf-8")
    newer = text.replace('type="Result" version="opset1"', 'type="Result" version="opset8"')
    assert newer != text
    assert submodels(core.compile_model(with_text(placed_convnet, tmp_path, newer), HETERO)) == 2


# --- a model that changed after it was placed


def changed_files(tmp_path: Path) -> dict[str, Path]:
    """Models that were placed, changed and saved by somebody who knows of no placement."""

    def save(name: str, change: Callable[[ov.Model], object], model: ov.Model | None = None) -> None:
        model = stateful() if model is None else model
        legal_placement(model, 1).embed(model)
        change(model)
        ov.save_model(model, tmp_path / f"{name}.xml")

    def by_name(model: ov.Model) -> dict[str, ov.Node]:
        return {node.get_friendly_name(): node for node in model.get_ops()}

    def rename(model: ov.Model) -> None:
        for node in model.get_ops():
            node.set_friendly_name(f"new {node.get_friendly_name()}")

    def add_in_between(model: ov.Model) -> None:
        y = by_name(model)["y"]
        y.input(0).replace_source_output(ops.negative(y.input_value(0)).output(0))

    save("output added", lambda model: model.add_outputs(by_name(model)["tanh"].output(0)))
    save("output removed", lambda model: model.remove_result(model.results[1]))
    # Left to itself, HETERO of 2026.4 cannot compile what would be left of the stateful one.
    x = ops.parameter([1, 4], np.float32)
    simple = ov.Model([ops.result(ops.exp(x)), ops.result(ops.tanh(x))], [x], "simple")
    save("first output removed", lambda model: model.remove_result(model.results[0]), simple)
    save("input removed", lambda model: model.remove_parameter(by_name(model)["unused"]))
    save("all nodes renamed", rename)
    save("node added", add_in_between)
    return {path.stem: path for path in tmp_path.glob("*.xml")}


def cut_attention(fused: bool, path: Path) -> None:
    """Attention of 8 tokens and 4 heads with its last Transpose on the other device, as files from before that rule."""
    model = attention(8, 4, fused)
    normalize.normalize(model)
    names = [node.get_friendly_name() for node in model.get_ordered_ops() if node.get_type_name() != "Constant"]
    later = names[names.index("tokens first") :]
    Placement(DEVICES, {name: DEVICES[name in later] for name in names}).embed(model)
    ov.save_model(model, path, compress_to_fp16=False)


@pytest.mark.skipif(
    tuple(int(part) for part in ov.__version__.split(".")[:2]) < (2025, 4),
    reason="wrong in older releases where a Transpose before attention is in another submodel, too "
    "(docs/reference/facts.md)",
)
@pytest.mark.parametrize("when", ["in the file", "after reading", "with preprocessing"])
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])
def test_attention_reshaped_to_as_many_tokens_as_heads_is_not_cut(
    core: ov.Core, stock: ov.Core, tmp_path: Path, fused: bool, when: str
) -> None:
    path = tmp_path / "model.xml"
    cut_attention(fused, path)
    if when == "in the file":
        changed = stock.read_model(path)
        changed.reshape([1, 4, 32])
        path = tmp_path / "reshaped.xml"
        ov.save_model(changed, path, compress_to_fp16=False)
    model = core.read_model(path)
    if when != "in the file":
        model.reshape([1, 4, 32])
    if when == "with preprocessing":
        steps = PrePostProcessor(model)
        steps.input().preprocess().scale(2.0)
        model = steps.build()
    copied = affinities(model.clone())
    assert copied["attention"] == copied["tokens first"] and set(DEVICES) <= set(copied.values())
    check_outputs(core.compile_model(model, HETERO), model, stock)


def test_changed_models_run(core: ov.Core, stock: ov.Core, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = changed_files(tmp_path)
    assert len(files) == 6
    for name, path in files.items():
        compiled = core.compile_model(core.read_model(path), HETERO)
        check_outputs(compiled, stock.read_model(path), stock)
        said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("ov_hsdag")]
        gone = "the output that carried it was removed; place the model again"
        expected = [gone] if name == "first output removed" else []
        assert [line.removeprefix("ov_hsdag: a model is read without its placement: ") for line in said] == expected
    # What is left of the placement is followed, except where the layer that had it is gone.
    for name in ("output added", "output removed", "input removed", "node added"):
        found = set(affinities(core.read_model(files[name])).values())
        assert found <= {*DEVICES}, name
    assert set(affinities(core.read_model(files["first output removed"])).values()) == {None}


# --- files that something is wrong with


def broken_files(path: Path) -> dict[str, str]:
    """Texts of an IR whose tags are damaged, and what the one line about them says."""
    text = path.read_text(encoding="utf-8")
    first = re.search(r'alt_width="(ov_hsdag:1:\w+:0/1:)(\{.*?\})"', text)
    assert first is not None
    start, body = first.groups()
    return {
        "no valid JSON": text.replace(body, body[: len(body) // 2]),
        "tag is incomplete": text.replace(start + body, "ov_hsdag:"),
        "tag has no number": text.replace(start, "ov_hsdag:1:abc:x/1:"),
        "it has version 7, this library reads up to 1": text.replace("ov_hsdag:1:", "ov_hsdag:7:"),
        "it lists no devices": text.replace(body, "{&quot;devices&quot;:[]}"),
        "it lists more devices than there are": text.replace(body, _with_devices(body, 256)),
        "": text.replace(start, start.replace("0/1", "0/3")),  # two outputs never come
    }


def _with_devices(body: str, count: int) -> str:
    """The text of a tag that lists so many devices, none of which but the first two has nodes."""
    own = ",".join(f"&quot;{name}&quot;" for name in DEVICES)
    assert own in body
    return body.replace(own, ",".join([own, *(f"&quot;GPU.{number}&quot;" for number in range(count - 2))]))


def test_numbers_of_devices_are_bytes(core: ov.Core, placed_convnet: Path, tmp_path: Path) -> None:
    text = placed_convnet.read_text(encoding="utf-8")
    body = re.search(r'alt_width="ov_hsdag:[^{]*(\{.*?\})"', text)
    assert body is not None
    path = with_text(placed_convnet, tmp_path, text.replace(body[1], _with_devices(body[1], 255)))
    assert submodels(core.compile_model(path, HETERO)) == 2


def test_names_in_tags_cannot_command_a_terminal(
    core: ov.Core, placed_convnet: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = placed_convnet.read_text(encoding="utf-8").replace("CPU_B", r"GPU\u001b]0;title\u0007\u007f")
    core.compile_model(with_text(placed_convnet, tmp_path, text), HETERO)
    said = capfd.readouterr().err
    assert "the placement uses GPU?]0;title??, which is not among the devices here" in said
    assert not set(said) & set("\x1b\x07\x7f")


def test_damaged_tags_cost_the_placement_and_nothing_else(
    core: ov.Core, placed_convnet: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for reason, text in broken_files(placed_convnet).items():
        compiled = core.compile_model(with_text(placed_convnet, tmp_path, text), HETERO)
        said = capfd.readouterr().err.splitlines()
        if reason:
            assert submodels(compiled) == 1
            assert len(said) == 1
            assert said[0].startswith("ov_hsdag: a model is read without its placement: ")
            assert reason in said[0]
        else:
            assert submodels(compiled) == 2
            assert said == []


def test_device_that_the_machine_lacks(
    core: ov.Core, stock: ov.Core, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OV_HSDAG_DEVICE", "HETERO:GPU.9,CPU_B")
    model = convnet()
    normalize.normalize(model)
    halved(model, ("GPU.9", "CPU_B")).embed(model)
    ov.save_model(model, tmp_path / "model.xml")
    compiled = core.compile_model(tmp_path / "model.xml", "HETERO:GPU.9,CPU_B")
    assert list(compiled.get_property("EXECUTION_DEVICES")) == ["CPU_B"]
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("ov_hsdag")]
    assert len(lines) == 1
    said = r"the placement uses GPU\.9, which is not among the devices here \(CPU_B\); its nodes run: \d+ on CPU_B"
    assert re.fullmatch(f"ov_hsdag: {said}", lines[0])
    check_outputs(compiled, stock.read_model(tmp_path / "model.xml"), stock)


# What the library said in a process of its own, then the devices and the submodels.
READ_AND_COMPILE = """
import contextlib, os, sys, openvino as ov
core = ov.Core()
for name in ("CPU_A", "CPU_B") if "REGISTER" in os.environ else ():
    with contextlib.suppress(RuntimeError):  # the hook has done it
        core.register_plugin("openvino_intel_cpu_plugin", name)
core.add_extension(sys.argv[1])
model = core.read_model(sys.argv[2])
print(sum("affinity" in node.get_rt_info() for node in model.get_ops()), "affinities")
compile_model = getattr(ov.Core.compile_model, "__wrapped__", ov.Core.compile_model)
compiled = compile_model(core, model, sys.argv[3])
print(*compiled.get_property("EXECUTION_DEVICES"))
"""


@pytest.fixture
def read_and_compile(library: Path, placed_convnet: Path) -> Callable[..., tuple[list[str], list[str]]]:
    """Reads through the library and compiles without the hook: what was printed, and what the library said."""

    def read_and_compile(device: str, **environment: str) -> tuple[list[str], list[str]]:
        variables = {key: value for key, value in os.environ.items() if not key.startswith("OV_HSDAG_")}
        words = (sys.executable, "-c", READ_AND_COMPILE, library, placed_convnet, device)
        done = ended(*words, env={**variables, **environment})
        said = [line for line in done.stderr.splitlines() if line.startswith("ov_hsdag: ")]
        return done.stdout.splitlines(), said

    return read_and_compile


def test_disabled_library_reads_an_ordinary_model(read_and_compile: Callable[..., tuple[list[str], list[str]]]) -> None:
    for device in ("HETERO:CPU", HETERO):
        switches = {"OV_HSDAG_DISABLE": "1", "OV_HSDAG_DEVICE": HETERO, "REGISTER": "1"}
        assert read_and_compile(device, **switches) == (["0 affinities", device[7:].split(",")[0]], [])


def test_devices_that_are_not_registered_leave_an_ordinary_model(
    read_and_compile: Callable[..., tuple[list[str], list[str]]],
) -> None:
    printed, said = read_and_compile("HETERO:CPU")
    assert printed == ["0 affinities", "CPU"]
    assert len(said) == 1
    assert said[0].startswith("ov_hsdag: a model is read without its placement: none of its devices is known here")
    assert "OV_HSDAG_DEVICE=HETERO:CPU_A,CPU_B" in said[0]


def test_variable_is_the_list_that_reading_lacks(read_and_compile: Callable[..., tuple[list[str], list[str]]]) -> None:
    # HETERO takes affinities whatever its list is; that is said, once.
    (_, devices), said = read_and_compile("HETERO:CPU", REGISTER="1", OV_HSDAG_VIRTUAL_DEVICES="CPU_A;CPU_B")
    assert devices == "CPU_A CPU_B"
    assert len(said) == 1
    assert said[0].startswith("ov_hsdag: placements are followed on CPU_A, CPU_B, in C++ whatever devices HETERO is")
    for listed, used in (("HETERO:CPU_B", "CPU_B"), ("CPU_B,CPU_A", "CPU_A CPU_B"), ("HETERO", "")):
        (_, devices), said = read_and_compile("HETERO:CPU", REGISTER="1", OV_HSDAG_DEVICE=listed)
        assert devices == (used or "CPU")
        assert all("; its nodes run: " in line or not used for line in said)


def test_library_of_another_openvino_says_so(library: Path, tmp_path: Path) -> None:
    lone = Path(shutil.copy(library, tmp_path))
    with pytest.raises(
        RuntimeError, match=r"was not built for the OpenVINO of this program .*ov-hsdag extension --build"
    ):
        ov.Core().add_extension(lone)


# --- tags


def test_library_takes_the_part_of_the_openvino_that_calls_it(
    library: Path, placed_convnet: Path, tmp_path: Path
) -> None:
    """A wheel has parts for many releases side by side. Those of others are never looked into."""
    own = extension_build.release(Path(ov.__file__).parent)
    years = [f"{release[2:4]}{release[5]}{release[7:]}" for release in PUBLISHED]
    assert own in years, "tools/wheels/releases.txt lacks the release that the tests run on"
    loader = shutil.copy(library, tmp_path)
    for release in years:
        (tmp_path / f"{extension_build.LOADER}.{release}").write_bytes(b"of another release")
    shutil.copy(library.with_name(f"{library.name}.{own}"), tmp_path)
    code = """
import sys, openvino as ov
core = ov.Core()
core.add_extension(sys.argv[1])
print(*sorted({line.split()[-1] for line in open("/proc/self/maps") if "ov_hsdag_extension" in line}))
print(len({node.get_rt_info()["affinity"].astype(str) for node in core.read_model(sys.argv[2]).get_ops()}))
"""
    loaded, devices = run(sys.executable, "-c", code, loader, placed_convnet, OV_HSDAG_DISABLE="0").stdout.splitlines()
    assert loaded.split() == [str(loader), f"{loader}.{own}"]
    assert devices == "2"


def test_tags_go_with_the_placement(stock: ov.Core, tmp_path: Path) -> None:
    model = stateful()
    placement = legal_placement(model, 0)
    model.get_results()[0].get_rt_info()[output_tags.ATTRIBUTE] = "somebody else's"
    model.get_results()[1].get_rt_info()[output_tags.ATTRIBUTE] = f"{output_tags.PREFIX}old"
    placement.embed(model)
    placement.embed(model)

    def tagged(one: ov.Model) -> list[str]:
        found = []
        for node in one.get_ops():
            rt_info = node.get_rt_info()
            if output_tags.ATTRIBUTE in rt_info:
                found.append(rt_info[output_tags.ATTRIBUTE].astype(str))
        return found

    ov.save_model(model, tmp_path / "model.xml")
    kept = tagged(stock.read_model(tmp_path / "model.xml"))
    assert sorted(kept) == sorted(tagged(model))
    assert sorted(re.fullmatch(r"ov_hsdag:1:\w+:(\d)/4:.*", tag, re.S)[1] for tag in kept) == list("0123")
    Placement.strip(model)
    assert tagged(model) == []


# --- the path of the library, and building it


def test_path_is_public_and_printed(library: Path) -> None:
    assert ov_hsdag.extension_path() == library
    done = commands.run("extension")
    assert (done.returncode, done.stdout.strip()) == (0, str(library)), done.stderr


def test_path_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(extension, "_folders", lambda: (tmp_path,))
    with pytest.raises(
        UserError, match=r"no extension library for OpenVINO 20\d\d\.\d\.\d yet: run: ov-hsdag extension"
    ):
        extension.extension_path()
    for name in (extension_build.LOADER, f"{extension_build.LOADER}.2540"):
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=r"is built for OpenVINO 2025\.4\.0, this is 20\d\d\.\d\.\d: run: ov-hsdag ext"):
        extension.extension_path()


@pytest.mark.parametrize(
    ("compiler", "reason"), [("no-such-compiler", "no C\\+\\+ compiler"), ("false", "the compiler refuses")]
)
def test_building_that_fails_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compiler: str, reason: str
) -> None:
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(RunError, match=f"the extension library cannot be built: .*{reason}"):
        extension.build()
    assert list(tmp_path.rglob("*")) == []


# --- C++ programs


# OpenVINO keeps plugins and their threads until the end, which would be leaks; and it finds plugins beside itself where
# it calls dlopen, but not where AddressSanitizer does so in its place. oneTBB's variable keeps it from RTLD_DEEPBIND.
SANITIZED = {
    "ASAN_OPTIONS": "detect_leaks=0",
    "LD_LIBRARY_PATH": str(Path(ov.__file__).parent / "libs"),
    "TBB_ENABLE_SANITIZERS": "1",
}

# Undefined behaviour is everything but what the library does on purpose: its Results say that they are OpenVINO's.
SANITIZE = "-O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize=vptr -fno-sanitize-recover=all"


def run(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return ended(*command, env={**os.environ, **SANITIZED, **environment})


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the programs of samples/cpp and tests/cpp and the extension library, built with sanitizers.

    They are AddressSanitizer and UndefinedBehaviorSanitizer. The build is against an installation of transformations/.
    """
    cmake = shutil.which("cmake") or Path(sys.executable).with_name("cmake")
    folder = tmp_path_factory.mktemp("cpp")
    prefix, binaries = folder / "installed", folder / "bin"
    common = (f"-DOpenVINO_DIR={get_cmake_path()}", f"-DCMAKE_CXX_FLAGS={SANITIZE}", "-DCMAKE_INSTALL_LIBDIR=lib")
    for source, options in (
        ("transformations", [f"-DCMAKE_INSTALL_PREFIX={prefix}", "-DOV_HSDAG_WERROR=ON"]),
        ("samples/cpp", [f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_RUNTIME_OUTPUT_DIRECTORY={binaries}"]),
        ("tests/cpp", [f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_RUNTIME_OUTPUT_DIRECTORY={binaries}"]),
    ):
        build = folder / source.replace("/", "-")
        run(cmake, "-S", ROOT / source, "-B", build, *common, *options)
        run(cmake, "--build", build, "--parallel", usable_cores())
        if source == "transformations":
            run(cmake, "--install", build)
    for path in (prefix / "lib").glob("libov_hsdag_extension.so*"):
        shutil.copy(path, binaries)
    return binaries


def by_model(output: str) -> dict[str, list[str]]:
    """What the programs of tests/cpp print, by the model's path."""
    return {text.split("\n", 1)[0]: text.splitlines()[1:] for text in output.split("model ")[1:]}


# States, dynamic shapes, detectors, text, int8 and control flow.
ZOO_SAMPLE = ("lstm-stateful", "llama-stateful", "gpt2-past", "bert-dynamic", "t5-encoder-dynamic", "squeezenet", "gru")


@pytest.mark.slow
def test_c_plus_plus_reads_of_a_model_what_python_reads(
    programs: Path, stock: ov.Core, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from research.zoo.catalog import ZOO

    # Costs, which the library has no part in, count with open sizes that the model runs with and are refused where none
    # are known; the library assumes one.
    monkeypatch.setattr(shapes, "SMALLER_DIMENSIONS", ())
    monkeypatch.setattr(shapes, "suggested_sizes", lambda model: [])

    builds = {
        **MODELS,
        "unflattening": unflattening_model,
        "attention": lambda: attention(4, 4, True),
        **{name: ZOO[name].build for name in ZOO_SAMPLE},
    }
    paths = {name: tmp_path / f"{name.replace(' ', '_')}.xml" for name in builds}
    for name, build in builds.items():
        ov.save_model(build(), paths[name], compress_to_fp16=False)
    found = by_model(run(programs / "node_arrays", *paths.values()).stdout)
    for name, path in paths.items():
        model = stock.read_model(path)
        normalize.unique_names(model)
        # The library inserts nothing that would relax a shape.
        graph = replace(ComputationGraph.from_model(model, counted=False), output_relaxable=None)
        lines = [f"node {kind} {variable}" for kind, variable in zip(graph.types, graph.variables, strict=True)]
        for output, shape in enumerate(graph.output_shapes):
            numbers = (int(graph.output_movable[output]), graph.output_ranks[output], *shape)
            lines.append(f"output {' '.join(map(str, numbers))}")
        lines.append(f"groups {' '.join(map(str, graph.legality.groups))}")
        assert found[str(path)] == lines, name


@pytest.mark.slow
def test_library_under_sanitizers_follows_as_python_does(programs: Path, stock: ov.Core, tmp_path: Path) -> None:
    library = programs / extension_build.LOADER
    wanted = {}
    for name, build in MODELS.items():
        path = tmp_path / f"{name.replace(' ', '_')}.xml"
        model = build()
        legal_placement(model, 1).embed(model)
        ov.save_model(model, path)
        model = stock.read_model(path)
        follow(model)
        wanted[str(path)] = [f"{device} {node}" for node, device in affinities(model).items()]
    found = by_model(run(programs / "read_placed", library, "-", *wanted).stdout)
    for name, lines in found.items():
        assert lines[1 : lines.index("copied")] == wanted[name]
        assert not [line for line in lines[lines.index("copied") :] if line.startswith(("none", "error"))]
    cut = tmp_path / "attention.xml"
    cut_attention(True, cut)
    lines = by_model(run(programs / "read_placed", library, "[1,4,32]", cut).stdout)[str(cut)]
    copied = lines[lines.index("copied") + 1 :]
    assert {"CPU_A attention", "CPU_A tokens first"} <= set(copied)
    assert not [line for line in copied if line.startswith(("none", "error"))]


# What a file has of ours: entries of its rt_info, and tags. OpenVINO reads the rest.
EMBEDDED = re.compile(r'(<(?:devices|default|default_nodes|exceptions|version|objective) value=|alt_width=)"([^"]*)"')


def damaged(text: str, draw: random.Random) -> str:
    """The text of a placed IR with one to three of its parts that are ours changed."""
    for _ in range(draw.randint(1, 3)):
        part = draw.choice(list(EMBEDDED.finditer(text)))
        head, body = "", html.unescape(part[2])
        if part[1].startswith("alt_width") and draw.random() < 0.7:  # what is behind the numbers of a tag is JSON
            head, brace, rest = body.partition("{")
            body = brace + rest
        changed = head + mutated(body.encode(), draw)[:20_000].decode("utf-8", "replace")
        changed = html.escape(changed.replace("\0", "\\u0000"))
        text = text[: part.start(2)] + changed + text[part.end(2) :]
    return text


@pytest.mark.slow
def test_damaged_placements_under_sanitizers(programs: Path, placed_convnet: Path, tmp_path: Path) -> None:
    """Read, or left aside; the programs go on with the next model."""
    good, weights = placed_convnet.read_text(encoding="utf-8"), placed_convnet.with_suffix(".bin")
    assert len(EMBEDDED.findall(good)) >= 5
    draw = random.Random(os.environ.get("OV_HSDAG_DAMAGED", ""))
    left = int(os.environ.get("OV_HSDAG_DAMAGED", "150"))
    for begin in range(0, left, 150):
        paths = [tmp_path / f"{number}.xml" for number in range(min(150, left - begin))]
        for path in paths:
            path.write_text(damaged(good, draw), encoding="utf-8")
            if not path.with_suffix(".bin").exists():
                path.with_suffix(".bin").symlink_to(weights)
        found = by_model(run(programs / "read_placed", programs / extension_build.LOADER, "-", *paths).stdout)
        assert set(found) == set(map(str, paths))
        assert all(lines[0] == "read" or lines[0].startswith("error") for lines in found.values())
        applied = by_model(run(programs / "apply_placement", "-", *paths).stdout)
        assert set(applied) == set(map(str, paths))


def dice(model: ov.Model, seed: int) -> Placement:
    """A device for each node, legal or not, and none for a few."""
    normalize.unique_names(model)
    generator = np.random.default_rng(seed)
    names = [node.get_friendly_name() for node in model.get_ordered_ops()]
    devices = ("CPU_A", "GPU", "NPU")
    return Placement(devices, {name: devices[generator.integers(0, 3)] for name in names if generator.random() < 0.95})


@pytest.mark.slow
def test_pass_does_what_python_does(programs: Path, stock: ov.Core, tmp_path: Path) -> None:
    """Placements that are not legal, so that completion has to copy, to settle and to repair."""
    wanted: dict[str, list[tuple[str, str]]] = {}
    for name, build in MODELS.items():
        for seed in range(3):
            path = tmp_path / f"{name.replace(' ', '_')}-{seed}.xml"
            model = build()
            dice(model, seed).embed(model)
            ov.save_model(model, path)
            read = stock.read_model(path)
            follow(read)
            wanted[str(path)] = [(str(device), node) for node, device in affinities(read).items()]
    output = run(programs / "apply_placement", "-", *wanted).stdout
    got = by_model(output)
    assert set(got) == set(wanted)
    for name, (changed, *lines) in got.items():
        assert changed == "changed 1"
        assert [tuple(line.split(" ", 1)) for line in lines] == wanted[name], name


@pytest.mark.slow
def test_pass_replaces_devices_and_refuses_nonsense(programs: Path, stock: ov.Core, tmp_path: Path) -> None:
    model = convnet()
    plain = tmp_path / "plain.xml"
    ov.save_model(model, plain)
    placement = dice(model, 0)
    placement.embed(model)
    placed = tmp_path / "placed.xml"
    ov.save_model(model, placed)
    model.set_rt_info("{", ["ov_hsdag", "devices"])
    broken = tmp_path / "broken.xml"
    ov.save_model(model, broken)
    many = [f"GPU.{number}" for number in range(256)]
    model.set_rt_info(json.dumps([*placement.devices, *many[:254]]), ["ov_hsdag", "devices"])
    crowded = tmp_path / "crowded.xml"
    ov.save_model(model, crowded)
    done = run(programs / "apply_placement", "HETERO:CPU_A,GPU.1", plain, placed, broken, crowded)
    texts = done.stdout.split("model ")[1:]
    assert texts[0].split("\n", 1)[1] == "changed 0\n"
    read = stock.read_model(placed)
    with pytest.warns(PlacementNotFollowedWarning, match="uses") as warned:
        mapped = Placement.of(read).map_to(("CPU_A", "GPU.1"))  # type: ignore[union-attr]
    mapped.apply(read)
    lines = texts[1].splitlines()[2:]
    assert [tuple(line.split(" ", 1)) for line in lines] == [(d, n) for n, d in affinities(read).items()]
    assert sorted(done.stderr.splitlines()) == sorted(str(one.message) for one in warned)
    assert "error" in texts[2]
    assert "ov_hsdag: the model's embedded placement cannot be read" in texts[2]
    assert "it lists more devices than there are" in texts[3]
    done = run(programs / "apply_placement", f"HETERO:{','.join(many)}", placed)
    assert "more devices are named than there are" in done.stdout


def compiled_as(output: str) -> list[tuple[str, int, int]]:
    """Devices, submodels and requests of each model that tests/cpp/compile_model printed."""
    found = []
    for lines in by_model(output).values():
        assert [line.split(" ", 1)[0] for line in lines] == ["devices", "submodels", "requests"], output
        devices, submodels, requests = (line.split(" ", 1)[1] for line in lines)
        found.append((devices, int(submodels), int(requests)))
    return found


@pytest.mark.parametrize("read", ["by OpenVINO", "by the library"])
@pytest.mark.parametrize("way", ["function", "pass"])
@pytest.mark.slow
def test_program_keeps_to_its_own_devices(programs: Path, placed_convnet: Path, way: str, read: str) -> None:
    """Also where the library has set affinities for others while reading."""
    full = f"{way}+{programs / extension_build.LOADER}" if read == "by the library" else way

    def compiled(device: str, **environment: str) -> tuple[str, int, int]:
        done = run(programs / "compile_model", full, device, placed_convnet, REGISTER="1", **environment)
        (found,) = compiled_as(done.stdout)
        return found

    assert compiled(HETERO) == ("CPU_A CPU_B", 2, requests_in_flight(1, 2, 2))
    assert compiled("HETERO:CPU") == ("CPU", 1, 1)
    assert compiled("HETERO:CPU_B") == ("CPU_B", 1, 1)
    assert compiled(HETERO, OV_HSDAG_DISABLE="1") == ("CPU_A", 1, 1)
    if way == "function":
        assert compiled("HETERO") == ("CPU_A CPU_B", 2, requests_in_flight(1, 2, 2))
        assert compiled("HETERO:GPU.9,CPU_A") == ("CPU_A", 1, 1)


@pytest.mark.slow
def test_function_says_what_it_cannot_follow(programs: Path, placed_convnet: Path, tmp_path: Path) -> None:
    program = programs / "compile_model"
    # Devices that are not registered: OpenVINO's "not registered" is no answer to HETERO:CPU.
    done = run(program, "function", "HETERO:CPU", placed_convnet)
    assert compiled_as(done.stdout) == [("CPU", 1, 1)]
    assert len(re.findall(r"ov_hsdag: the placement uses CPU_[AB], which is not among the devices", done.stderr)) == 2
    text = placed_convnet.read_text(encoding="utf-8")
    broken = with_text(placed_convnet, tmp_path, re.sub(r'(<devices value=")[^"]*', r"\1{", text))
    done = run(program, "function", HETERO, broken, REGISTER="1")
    assert compiled_as(done.stdout) == [("CPU_A", 1, 1)]
    assert "ov_hsdag: the model is compiled without its placement: the model's embedded placement" in done.stderr


def printed_submodels(text: str) -> int:
    found = re.search(r"(?:submodels|HETERO_NUMBER_OF_SUBMODELS): (\d+)", text)
    assert found is not None, text[-3000:]
    return int(found[1])


HOOKED_BENCHMARK_APP = """
import ov_hsdag
from openvino.tools.benchmark.main import main
main()
"""

COMPILE = """
import sys, ov_hsdag, openvino as ov
compiled = ov.Core().compile_model(sys.argv[1], sys.argv[2])
print("submodels:", compiled.get_property("HETERO_NUMBER_OF_SUBMODELS"))
"""


@pytest.mark.slow
def test_sample_and_benchmark_app_run_the_placement_of_python(
    library: Path, programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.xml"
    model = convnet()
    legal_placement(model, 7).embed(model)
    ov.save_model(model, path)
    stored = path.read_bytes()

    sample = programs / "placed_inference"
    by_pass = run(sample, path, HETERO).stdout
    by_library = run(sample, path, HETERO, library).stdout
    assert by_pass == by_library

    program = ROOT / "tools/wheels/benchmark_app.py"
    options = ("-m", path, "-d", HETERO, "-hint", "none", "-niter", "1", "-nireq", "1")
    by_extension = run(sys.executable, program, *options, "-extensions", library).stdout
    alone = run(sys.executable, program, *options).stdout
    assert "u8" in by_extension  # its own preprocessing

    monkeypatch.setenv("OV_HSDAG_VIRTUAL_DEVICES", TWO_CORES)
    by_hook = run(sys.executable, "-c", HOOKED_BENCHMARK_APP, *options, PYTHONPATH=str(ROOT)).stdout
    in_python = run(sys.executable, "-c", COMPILE, path, HETERO, PYTHONPATH=str(ROOT)).stdout

    counts = [printed_submodels(text) for text in (in_python, by_pass, by_library, by_extension, by_hook)]
    assert counts == [counts[0]] * 5
    assert counts[0] > 2
    assert printed_submodels(alone) == 1
    assert "devices: CPU_A CPU_B" in by_pass or "devices: CPU_B CPU_A" in by_pass
    assert path.read_bytes() == stored


# --- what has to be the same in several places


def test_cmake_project_has_the_version_of_the_package() -> None:
    text = (ROOT / "transformations/CMakeLists.txt").read_text(encoding="utf-8")
    function = (ROOT / "transformations/src/compile_model.cpp").read_text(encoding="utf-8")
    assert f"kMost = {MOST};" in function
    assert f"project(ov_hsdag VERSION {ov_hsdag.__version__} " in text
