"""Placed models that a program changes between reading and compiling: in Python, and in C++ with the library."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from openvino._offline_transformations import apply_make_stateful_transformation
from openvino.preprocess import PrePostProcessor

import ov_hsdag
from ov_hsdag.model import normalize
from ov_hsdag.model.placement import Placement
from ov_hsdag.utils.lazy import opset13 as ops
from tests.graphs import halved

HETERO = "HETERO:CPU_A,CPU_B"
F32 = {"INFERENCE_PRECISION_HINT": "f32"}
SIZE = 64
STEPS = 2
"""Inferences in a row: the second one sees what the first one left in the states."""


def constant(*shape: int, seed: int = 0) -> ov.Node:
    values = np.random.default_rng(seed).normal(size=shape) / np.sqrt(shape[0])
    return ops.constant(values.astype(np.float32))


def state(name: str, *shape: int, seed: int = 0) -> ov.Node:
    return ops.read_value(constant(*shape, seed=seed), name, ov.Type.f32, ov.PartialShape(list(shape)))


def small_decoder() -> ov.Model:
    """Dense layers around attention, with a state, and with a past that the program keeps itself."""
    x = ops.parameter([1, SIZE], np.float32, name="x")
    past = ops.parameter([1, SIZE], np.float32, name="past")
    x.output(0).set_names({"x"})
    past.output(0).set_names({"past"})

    def dense(value: ov.Node, number: int) -> ov.Node:
        product = ops.matmul(value, constant(SIZE, SIZE, seed=number), False, False, name=f"dense{number}")
        return ops.tanh(product, name=f"tanh{number}")

    value = dense(dense(x, 0), 1)
    memory = ops.add(state("memory", 1, SIZE), value, name="memory")
    heads = ops.reshape(dense(memory, 2), np.array([1, 2, 4, 8]), False, name="heads")
    attended = ops.scaled_dot_product_attention(heads, heads, heads, causal=False)
    attended.set_friendly_name("attention")
    value = dense(dense(ops.reshape(attended, np.array([1, SIZE]), False, name="joined"), 3), 4)
    present = ops.add(past, value, name="present")
    present.output(0).set_names({"present"})
    return ov.Model(
        [ops.result(value, name="out"), ops.result(present, name="out present")],
        [ops.assign(memory, "memory")],
        [x, past],
        "small decoder",
    )


def node(model: ov.Model, name: str) -> ov.Node:
    return next(one for one in model.get_ops() if one.get_friendly_name() == name)


def put_behind(before: ov.Node, make: Callable[[ov.Node], ov.Node]) -> None:
    """Lets all consumers of a node read what is made of it."""
    consumers = before.output(0).get_target_inputs()
    made = make(before)
    for consumer in consumers:
        consumer.replace_source_output(made.output(0))


# --- what programs do; each changes the model, or returns another


def add_output(model: ov.Model) -> None:
    model.add_outputs(node(model, "tanh1").output(0))


def add_output_on_the_other_device(model: ov.Model) -> None:
    model.add_outputs(node(model, "tanh3").output(0))


def remove_output(model: ov.Model) -> None:
    model.remove_result(model.results[0])


def replace_one_output(model: ov.Model) -> None:
    model.remove_result(model.results[0])
    model.add_results([ops.result(node(model, "tanh3"))])


def replace_all_outputs(model: ov.Model) -> None:
    for result in list(model.results):
        source = result.input_value(0)
        model.remove_result(result)
        model.add_results([ops.result(source)])


def add_node_before_a_new_output(model: ov.Model) -> None:
    model.add_results([ops.result(ops.softmax(node(model, "dense1"), 1))])


def add_node_in_between(model: ov.Model) -> None:
    put_behind(node(model, "tanh2"), lambda before: ops.multiply(before, ops.constant(np.float32(0.5))))


def replace_a_node(model: ov.Model) -> None:
    old = node(model, "tanh3")
    put_behind(old, lambda _: ops.sigmoid(old.input_value(0).get_node()))


def make_stateful(model: ov.Model) -> None:
    apply_make_stateful_transformation(model, {"past": "present"})


def add_a_state(model: ov.Model) -> None:
    """As adapters (LoRA) scale a layer by a factor that the program can set."""
    scale = state("scale", 1, 1)
    put_behind(node(model, "dense3"), lambda layer: ops.multiply(layer, scale))
    model.add_sinks([ops.assign(scale, "scale")])


def add_adapters(model: ov.Model) -> None:
    """As openvino.genai adds LoRA adapters in its dynamic mode: their matrices are states, layers get a side branch."""
    for layer in ("dense1", "dense3"):
        down, up = state(f"{layer}.A", SIZE, 4, seed=5), state(f"{layer}.B", 4, SIZE, seed=6)
        alpha = state(f"{layer}.alpha", 1, 1, seed=7)
        source = node(model, layer).input_value(0).get_node()
        branch = ops.matmul(ops.multiply(ops.matmul(source, down, False, False), alpha), up, False, False)
        put_behind(node(model, layer), lambda product, branch=branch: ops.add(product, branch))
        model.add_sinks([ops.assign(value, value.get_variable_id()) for value in (down, alpha, up)])


def show_attention_scores(model: ov.Model) -> None:
    """As openvino.genai does for word_timestamps: attention in single operations, whose scores are outputs."""
    old = node(model, "attention")
    query, key, value = (port.get_node() for port in old.input_values())
    scores = ops.multiply(ops.matmul(query, key, False, True), ops.constant(np.float32(8**-0.5)))
    put_behind(old, lambda _: ops.matmul(ops.softmax(scores, 3), value, False, False))
    shown = ops.result(scores)
    shown.output(0).set_names({"scores"})
    model.add_results([shown])


def add_unused_input(model: ov.Model) -> None:
    model.add_parameters([ops.parameter([3], np.float32)])


def add_input(model: ov.Model) -> None:
    bias = ops.parameter([1, SIZE], np.float32)
    put_behind(node(model, "dense3"), lambda layer: ops.add(layer, bias))
    model.add_parameters([bias])


def turn_a_state_into_an_input(model: ov.Model) -> None:
    read = next(one for one in model.get_ops() if one.get_type_name() == "ReadValue")
    kept = ops.parameter([1, SIZE], np.float32)
    put_behind(read, lambda _: kept)
    (sink,) = model.get_sinks()
    value = sink.input_value(0)
    model.remove_sink(sink)
    model.remove_variable(model.get_variable_by_id("memory"))
    model.add_parameters([kept])
    model.add_results([ops.result(value)])


def add_separate_part(model: ov.Model) -> None:
    other = ops.parameter([1, 3], np.float32)
    model.add_parameters([other])
    model.add_results([ops.result(ops.exp(other))])


def add_separate_state(model: ov.Model) -> None:
    counter = state("counter", 1, 1)
    model.add_sinks([ops.assign(ops.add(counter, ops.constant(np.float32(1))), "counter")])


def preprocess(model: ov.Model) -> ov.Model:
    steps = PrePostProcessor(model)
    steps.input("x").preprocess().scale(2.0)
    steps.output("present").postprocess().convert_element_type(ov.Type.f64)
    return steps.build()


def reshape(model: ov.Model) -> None:
    add_node_in_between(model)
    model.reshape({"x": [1, SIZE], "past": [2, SIZE]})


def make_another_of_its_nodes(model: ov.Model) -> ov.Model:
    end = ops.result(ops.sigmoid(node(model, "tanh4")))
    return ov.Model([end], model.get_sinks(), [node(model, "x")], "part")


def give_all_nodes_one_name(model: ov.Model) -> None:
    for one in model.get_ops():
        one.set_friendly_name("node")
    model.add_results([ops.result(model.results[0].input_value(0).get_node())])


CHANGES: list[Callable[[ov.Model], ov.Model | None]] = [
    add_output,
    add_output_on_the_other_device,
    remove_output,
    replace_one_output,
    replace_all_outputs,
    add_node_before_a_new_output,
    add_node_in_between,
    replace_a_node,
    make_stateful,
    add_a_state,
    add_adapters,
    show_attention_scores,
    add_unused_input,
    add_input,
    turn_a_state_into_an_input,
    add_separate_part,
    add_separate_state,
    preprocess,
    reshape,
]

WITH_AFFINITIES: list[Callable[[ov.Model], ov.Model | None]] = [make_another_of_its_nodes, give_all_nodes_one_name]
"""What takes the placement, but not the affinities, which the library gives to nodes while they are read."""


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("placed") / "model.xml"
    model = small_decoder()
    normalize.normalize(model)
    halved(model).embed(model)
    ov.save_model(model, path, compress_to_fp16=False)
    return path


def outputs(compiled: ov.CompiledModel) -> list[list[NDArray[np.float32]]]:
    """Of each of some inferences, one after the other."""
    request = compiled.create_infer_request()
    random = np.random.default_rng(1)
    found = []
    for _ in range(STEPS):
        request.infer([random.normal(size=tuple(port.shape)).astype(np.float32) for port in compiled.inputs])
        found.append([request.get_output_tensor(number).data.copy() for number in range(len(compiled.outputs))])
    return found


def check_followed(core: ov.Core, placed: Path, change: Callable[[ov.Model], ov.Model | None]) -> None:
    """The changed model runs on both devices, and computes what the changed unplaced one does on one device."""
    plain = ov.Core().read_model(placed)  # without the library
    expected = outputs(core.compile_model(change(plain) or plain, "CPU_A", F32))
    model = core.read_model(placed)
    compiled = core.compile_model(change(model) or model, HETERO, F32)
    assert sorted(compiled.get_property("EXECUTION_DEVICES")) == ["CPU_A", "CPU_B"]
    for own, other in zip(outputs(compiled), expected, strict=True):
        for got, wanted in zip(own, other, strict=True):
            np.testing.assert_allclose(got, wanted, atol=1e-5)


@pytest.mark.filterwarnings("ignore::ov_hsdag.PlacementNotFollowedWarning")
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_python_follows_a_model_that_was_changed_after_reading(
    two_cpu_core: ov.Core, placed: Path, change: Callable[[ov.Model], ov.Model | None]
) -> None:
    check_followed(two_cpu_core, placed, change)


@pytest.mark.parametrize("change", [*CHANGES, *WITH_AFFINITIES], ids=lambda change: change.__name__)
def test_the_library_follows_a_model_that_was_changed_after_reading(
    two_cpu_core: ov.Core,
    library: Path,
    placed: Path,
    change: Callable[[ov.Model], ov.Model | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As C++ programs have it.
    native = getattr(ov.Core.compile_model, "__wrapped__", ov.Core.compile_model)
    monkeypatch.setattr(ov.Core, "compile_model", native)
    monkeypatch.setenv("OV_HSDAG_DEVICE", HETERO)
    two_cpu_core.add_extension(library)
    check_followed(two_cpu_core, placed, change)


@pytest.mark.parametrize("name", ["node", "dense1"])
def test_nodes_that_share_one_name_are_known_to_be_none_of_the_placement(
    two_cpu_core: ov.Core, placed: Path, name: str
) -> None:
    model = two_cpu_core.read_model(placed)
    for one in model.get_ops():
        one.set_friendly_name(name)
    with pytest.warns(ov_hsdag.PlacementNotFollowedWarning, match="the placement knows (none|only 1) of the model's"):
        two_cpu_core.compile_model(model, HETERO, F32)


def test_nodes_that_share_one_name_keep_the_affinities_that_they_have(two_cpu_core: ov.Core, placed: Path) -> None:
    model = two_cpu_core.read_model(placed)
    placement = Placement.of(model)
    assert placement is not None
    placement.apply(model)
    give_all_nodes_one_name(model)
    compiled = two_cpu_core.compile_model(model, HETERO, F32)
    assert sorted(compiled.get_property("EXECUTION_DEVICES")) == ["CPU_A", "CPU_B"]


@pytest.mark.parametrize("change", [*CHANGES, make_another_of_its_nodes], ids=lambda change: change.__name__)
def test_python_completes_what_a_model_that_was_placed_in_memory_becomes(
    two_cpu_core: ov.Core, placed: Path, change: Callable[[ov.Model], ov.Model | None]
) -> None:
    """Without the placement itself, as in a model that a program makes anew: some nodes have affinities."""
    model = two_cpu_core.read_model(placed)
    placement = Placement.of(model)
    assert placement is not None
    placement.apply(model)
    changed = change(model) or model
    if "ov_hsdag" in changed.rt_info:
        del changed.rt_info["ov_hsdag"]
    incomplete = any("affinity" not in one.get_rt_info() for one in changed.get_ops())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = two_cpu_core.compile_model(changed, HETERO, F32)
    told = [str(one.message) for one in caught if "have no affinity, and follow their neighbours" in str(one.message)]
    assert len(told) == incomplete
    assert sorted(compiled.get_property("EXECUTION_DEVICES")) == ["CPU_A", "CPU_B"]
