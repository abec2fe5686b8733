"""Models on which OpenVINO's own clean-up fails are placed as they are."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import numpy as np
import openvino as ov
import openvino._offline_transformations as transformations
import pytest

from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.model import clean_up
from ov_hsdag.model.placement import Placement
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.utils.lazy import opset13 as ops
from ov_hsdag.utils.lazy import opset15
from tests.commands import ran

DEVICES = DeviceSet(("CPU_A", "CPU_B"))


def col2im() -> ov.Model:
    """x → relu → Col2Im, whose image is an input: OpenVINO 2026.4 infers no shape of it where x has an unknown size."""
    x = ops.parameter([1, 5, 5], np.float32, name="x")
    sizes = [ops.parameter([2], np.int64, name=name) for name in ("image", "block")]
    image = opset15.col2im(ops.relu(x, name="relu"), *sizes)
    image.set_friendly_name("col2im")
    return ov.Model([ops.result(ops.tanh(image, name="tanh"))], [x, *sizes], "col2im")


def inputs() -> list[np.ndarray]:
    values = np.random.default_rng(0).standard_normal((1, 5, 5)).astype(np.float32)
    return [values, np.array([5, 5], np.int64), np.array([1, 5], np.int64)]


def stateful() -> ov.Model:
    """A sum that goes on from inference to inference."""
    x = ops.parameter(ov.PartialShape([-1, 4]), np.float32, name="x")
    read = ops.read_value(ops.constant(np.zeros((1, 4), np.float32)), "sum", ov.Type.f32, [1, 4], name="read")
    total = ops.add(read, ops.reduce_sum(x, ops.constant(np.array([0])), keep_dims=True), name="total")
    total.output(0).set_names({"sum so far"})
    return ov.Model([ops.result(total)], [ops.assign(total, "sum")], [x], "stateful")


def test_the_clean_up_fails_as_it_did() -> None:
    """When this fails, OpenVINO has mended its Col2Im, and the tests below need another operation."""
    with pytest.raises(RuntimeError, match="dynamic shape"):
        transformations.apply_moc_transformations(col2im(), cf=False, smart_reshape=True)


@pytest.mark.parametrize("seed", range(4))
def test_a_model_that_it_fails_on_splits_and_computes_the_same(two_cpu_core: ov.Core, seed: int) -> None:
    expected = two_cpu_core.compile_model(col2im(), "CPU_A")(inputs())[0]
    model = col2im()
    problem = build_problem(model, DEVICES, core=two_cpu_core)
    placement = problem.random(np.random.default_rng(seed), 1)[0]
    Placement(devices=DEVICES.names, affinity=problem.affinity(placement)).apply(model)
    compiled = two_cpu_core.compile_model(model, DEVICES.hetero)
    assert compiled.get_property("HETERO_NUMBER_OF_SUBMODELS") == problem.evaluate(placement).submodels[0]
    np.testing.assert_allclose(compiled(inputs())[0], expected, rtol=1e-5)


@pytest.mark.parametrize("build", [col2im, stateful])
def test_what_a_failed_clean_up_has_changed_is_put_back(
    build: Callable[[], ov.Model], monkeypatch: pytest.MonkeyPatch, two_cpu_core: ov.Core
) -> None:
    """Nodes, shapes and states: whatever it had done when it failed."""
    model = build()
    nodes = len(model.get_ops())
    before = {node.get_friendly_name() for node in model.get_ops() if node.get_friendly_name() != node.get_name()}
    ports = [(port, port.get_partial_shape(), port.get_names()) for port in (*model.inputs, *model.outputs)]
    tried: list[ov.Model] = []

    def half_done(half: ov.Model, **_: object) -> None:
        tried.append(half)
        for parameter in half.get_parameters():
            parameter.set_partial_shape(ov.PartialShape.dynamic(parameter.get_partial_shape().rank))
        for result in half.get_results():
            result.input(0).replace_source_output(ops.negative(result.input_value(0)).output(0))
        for sink in half.get_sinks():
            sink.input(0).replace_source_output(ops.negative(sink.input_value(0)).output(0))
        raise RuntimeError("to_shape was called on a dynamic shape.")

    monkeypatch.setattr(transformations, "apply_moc_transformations", half_done)
    assert clean_up.clean_up(model) == (None, None) and tried
    assert len(model.get_ops()) == nodes
    assert before <= {node.get_friendly_name() for node in model.get_ops()}
    assert [(port, port.get_partial_shape(), port.get_names()) for port in (*model.inputs, *model.outputs)] == ports
    own, reference = (two_cpu_core.compile_model(one, "CPU_A").create_infer_request() for one in (model, build()))
    for _ in range(3):
        values = inputs() if build is col2im else [np.ones((2, 4), np.float32)]
        np.testing.assert_array_equal(own.infer(values)[0], reference.infer(values)[0])


def test_bits_compute_the_same_after_placing() -> None:
    """The CPU plugin wrote outside of its memory: a process of its own ends with the status of that."""
    code = """
        import numpy as np, openvino as ov, ov_hsdag
        from ov_hsdag.devices.virtual import new_core
        from ov_hsdag.utils.lazy import opset13 as ops

        packed = np.random.default_rng(0).integers(0, 256, 8, np.uint8)
        bits = ops.constant(ov.Tensor(packed, ov.Shape([8, 8]), ov.Type.u1))
        x = ops.parameter([4, 8], np.float32)
        signs = ops.multiply(ops.subtract(ops.convert(bits, "f32"), np.float32(0.5)), np.float32(2))
        model = ov.Model([ops.result(ops.tanh(ops.matmul(ops.relu(x), signs, False, False)))], [x], "bits")
        core, values = new_core(), np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)
        expected = core.compile_model(model.clone(), "CPU_A")([values])[0]
        ov_hsdag.place(model, "HETERO:CPU_A,CPU_B", objective="throughput")
        for device in ("CPU_A", "HETERO:CPU_A,CPU_B"):
            for _ in range(3):
                np.testing.assert_allclose(core.compile_model(model, device)([values])[0], expected, atol=1e-5)
    """
    ran(code=textwrap.dedent(code))
