"""What verifying compares, what it accepts, and whom it blames."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest

import ov_hsdag
from ov_hsdag.calibration.calibrate import Calibrating, calibrate_where_it_runs
from ov_hsdag.cli._common import assumed_shapes
from ov_hsdag.costs.builtin import builtin_profile
from ov_hsdag.measuring import verification_runs
from ov_hsdag.measuring.agreement import largest_difference
from ov_hsdag.measuring.one_by_one import OneByOne
from ov_hsdag.measuring.verification import verify
from ov_hsdag.measuring.verification_runs import F32
from ov_hsdag.model.inputs import conversations
from ov_hsdag.model.replay import infer
from ov_hsdag.model.shapes import counted_input_shapes, fitting_input_shapes
from ov_hsdag.problem.pricing import prepare
from ov_hsdag.utils.errors import RunError
from ov_hsdag.utils.lazy import opset13 as ops

DEVICE = "HETERO:CPU_A,CPU_B"
RANDOM = np.random.default_rng(0)


def weights(*shape: int) -> ov.Node:
    return ops.constant((RANDOM.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32))


def embedded() -> tuple[list[ov.Node], ov.Node]:
    """input_ids and attention_mask [?, ?] i64, and the rows [?, ?, 16] of a table that the first picks."""
    inputs = []
    for name in ("input_ids", "attention_mask"):
        inputs.append(ops.parameter([-1, -1], np.int64, name=name))
        inputs[-1].output(0).set_names({name})
    return inputs, ops.gather(weights(50, 16), inputs[0], np.int64(0))


def up_to_20_tokens() -> ov.Model:
    """Positions are rows of a table of 20: no shape is known where there are more tokens."""
    inputs, x = embedded()
    tokens = ops.gather(ops.shape_of(inputs[0]), np.array([1]), np.int64(0))
    positions = ops.slice(weights(20, 16), np.array([0]), tokens, np.array([1]), np.array([0]))
    x = ops.multiply(ops.add(x, positions), ops.unsqueeze(ops.convert(inputs[1], "f32"), np.array([2])))
    return ov.Model([ops.result(ops.relu(ops.matmul(x, weights(16, 16), False, False)))], inputs, "up_to_20_tokens")


def sixteen_tokens() -> ov.Model:
    """All tokens that the mask leaves are added to 16 rows. How many there are is known when it runs."""
    inputs, x = embedded()
    left = ops.gather_nd(x, ops.transpose(ops.non_zero(inputs[1], "i64"), np.array([1, 0])))
    x = ops.relu(ops.matmul(ops.add(left, weights(16, 16)), weights(16, 16), False, False))
    return ov.Model([ops.result(x)], inputs, "sixteen_tokens")


def shared_weights(share: float = 1.0) -> ov.Model:
    """Two outputs: of quantised numbers, and of two MatMuls with the same int8 weights, plain and transposed."""
    x = ops.parameter([4, 16], np.float32, name="x")
    low, high = np.float32(-3), np.float32(3)
    quantised = ops.fake_quantize(ops.relu(ops.matmul(x, weights(16, 16), False, False)), low, high, low, high, 256)
    numbers = ops.constant(RANDOM.integers(-100, 100, (16, 16)).astype(np.int8))
    square = ops.multiply(ops.convert(numbers, "f32"), np.float32(0.01))
    back = ops.tanh(ops.matmul(x, square, False, False, name="plain"), name="between")
    for number in range(2):
        back = ops.tanh(ops.matmul(back, weights(16, 16), False, False), name=f"between{number}")
    back = ops.tanh(ops.matmul(back, square, False, True, name="transposed"), name="last")
    sums = ops.add(ops.multiply(back, np.float32(share)), x, name="sums")
    return ov.Model([ops.result(quantised, name="quantised"), ops.result(sums, name="floats")], [x], "shared_weights")


def running_mean() -> ov.Model:
    """A state, int8 weights, a tensor without elements and a computed shape."""
    x = ops.parameter([-1, 8], np.float32, name="x")
    x.output(0).set_names({"x"})
    read = ops.read_value(ops.constant(np.zeros((1, 8), np.float32)), "mean", ov.Type.f32, ov.PartialShape([1, 8]))
    mean = ops.multiply(ops.add(read, ops.reduce_mean(x, np.array([0]), True)), np.float32(0.5))
    packed = ops.convert(ops.constant(RANDOM.integers(-9, 9, (8, 8)).astype(np.int8)), "f32")
    y = ops.softmax(ops.matmul(ops.add(x, mean), ops.multiply(packed, np.float32(0.1)), False, True), -1)
    empty = ops.slice(y, np.array([0]), np.array([0]), np.array([1]), np.array([0]))
    y = ops.reshape(ops.concat([empty, y], 0), ops.concat([ops.shape_of(x), np.array([1])], 0), False)
    return ov.Model([ops.result(y)], [ops.assign(mean, "mean")], [x], "running_mean")


def placed(model: ov.Model, core: ov.Core, affinity: dict[str, str] | None = None) -> ov.Model:
    ov_hsdag.place(model, DEVICE, objective="throughput", core=core, affinity=affinity)
    return model


@pytest.mark.parametrize("how", [infer, lambda request, inputs: request.infer(inputs)], ids=["ours", "OpenVINO's"])
def test_a_failing_inference_raises(two_cpu_core: ov.Core, how: Any) -> None:
    """On one thread OpenVINO's returns an empty tensor instead; when that raises, too, ours is of no use any more."""
    x = ops.parameter([-1, -1], np.float32)
    model = ov.Model([ops.result(ops.tanh(ops.reshape(ops.relu(x), np.array([0, -1, 4]), True)))], [x])
    request = two_cpu_core.compile_model(model, "CPU_A").create_infer_request()
    if how is not infer:
        how(request, [np.ones((5, 3), np.float32)])
        assert request.get_output_tensor(0).data.size == 0
        return
    for _ in range(2):
        with pytest.raises(RuntimeError, match="reshape"):
            how(request, [np.ones((5, 3), np.float32)])


def test_a_model_that_fails_is_not_verified(two_cpu_core: ov.Core) -> None:
    model, warnings = placed(sixteen_tokens(), two_cpu_core), list[str]()
    shapes = {"input_ids": [1, 24], "attention_mask": [1, 24]}
    with pytest.raises(RunError, match="none can run the whole model alone"):
        verify(model, DEVICE, core=two_cpu_core, shapes=shapes, warn=warnings.append)
    assert "CPU_A cannot run the model alone: " in warnings[0] and "mismatch" in warnings[0]


def test_assumed_sizes_are_those_that_the_model_takes(two_cpu_core: ov.Core) -> None:
    model = up_to_20_tokens()
    assert counted_input_shapes(model) == [(1, 16), (1, 16)]
    assert counted_input_shapes(model, {"input_ids": [1, 8]}) == [(1, 8), (1, 8)]
    done = verify(placed(model, two_cpu_core), DEVICE, core=two_cpu_core)
    assert done.result["equal"] and not done.unproven


def test_assumed_sizes_that_do_not_run_are_made_smaller(two_cpu_core: ov.Core) -> None:
    model = sixteen_tokens()
    assert counted_input_shapes(model) == [(1, 128), (1, 128)]
    warnings: list[str] = []
    done = verify(placed(model, two_cpu_core), DEVICE, core=two_cpu_core, warn=warnings.append)
    assert done.result["equal"] and not done.unproven
    assert [text[:32] for text in warnings] == ["compared with input_ids=[1,16], "]
    profile = builtin_profile(("CPU_A", "CPU_B"), two_cpu_core)
    prepared = prepare(sixteen_tokens(), ("CPU_A", "CPU_B"), two_cpu_core, profile)
    with Calibrating(two_cpu_core, ("CPU_A", "CPU_B")) as calibrating:
        found, costs = calibrate_where_it_runs(prepared, calibrating, profile)
    assert found.shapes == {"input_ids": (1, 16), "attention_mask": (1, 16)}
    assert set(costs.devices) == {"CPU_A", "CPU_B"}


def test_classifiers_of_one_size_get_the_size_of_images(two_cpu_core: ov.Core) -> None:
    """The pooling before the classifier has a fixed window, as in networks for ImageNet of older files."""

    def classifier(size: int) -> ov.Model:
        x = ops.parameter([-1, 3, -1, -1], np.float32, name="x")
        y = ops.relu(ops.convolution(x, weights(8, 3, 2, 2), [2, 2], [0, 0], [0, 0], [1, 1]))
        window = [size // 2, size // 2]
        y = ops.reshape(ops.avg_pool(y, window, [0, 0], [0, 0], window, False), np.array([-1, 8]), False)
        return ov.Model([ops.result(ops.matmul(y, weights(8, 10), False, False))], [x], "classifier")

    model = classifier(224)
    assert counted_input_shapes(model) == fitting_input_shapes(model) == [(1, 3, 224, 224)]
    assert verify(placed(model, two_cpu_core), DEVICE, core=two_cpu_core).good
    model = classifier(800)  # which the window of the pooling tells
    assert counted_input_shapes(model) == fitting_input_shapes(model) == [(1, 3, 800, 800)]
    assert assumed_shapes(model, None) == "costs assume x=[1,3,800,800]; --shape assumes other sizes"
    assert verify(placed(model, two_cpu_core), DEVICE, core=two_cpu_core).good


def test_operations_one_by_one_compute_the_same(two_cpu_core: ov.Core) -> None:
    model = running_mean()
    request = two_cpu_core.compile_model(model, "CPU_A").create_infer_request()
    alone = OneByOne(two_cpu_core, "CPU_A", model, lambda _: None)
    for step in conversations(model, [0])[0][:3]:
        infer(request, step)
        assert largest_difference([[np.array(request.get_output_tensor(0).data)]], [alone.infer(step)]) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["deployed", F32])
@pytest.mark.parametrize("share", [1.0, 0.03])
def test_it_tells_which_side_is_wrong(two_cpu_core: ov.Core, share: float, precision: str) -> None:
    """One CPU device computes the transposed MatMul as the plain one (2026.4). In a split they have their own weights.

    With the smaller share that moves an output by less than what one quantised operation allowed all of them. When this
    fails, OpenVINO may have mended it.
    """
    split = {
        "plain": "CPU_A",
        "between": "CPU_A",
        "between0": "CPU_A",
        "between1": "CPU_B",
        "transposed": "CPU_B",
        "last": "CPU_B",
        "sums": "CPU_B",
    }
    model = placed(shared_weights(share), two_cpu_core, split)
    done = verify(model, DEVICE, core=two_cpu_core, precision=precision)
    assert not done.result["equal"] and done.result["differing"] == ["floats"]
    assert done.result["operation_by_operation"]["wrong"] == ["CPU_A", "CPU_B"]
    assert any("the placement is right" in note for note in done.notes)


def noise_in_first_inferences(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Each request's first inference leaves other values, as where an operation reads what nothing wrote before."""
    random, begun = np.random.default_rng(seed), set[int]()
    kept = []  # else a later request may have the same id

    def noisy(request: ov.InferRequest, arrays: Any) -> None:
        infer(request, arrays)
        if id(request) not in begun and random.random() < 0.7:
            request.get_output_tensor(0).data[...] = random.random(8)
        begun.add(id(request))
        kept.append(request)

    monkeypatch.setattr(verification_runs, "infer", noisy)


@pytest.mark.parametrize("seed", range(4))
def test_first_inferences_that_differ_give_one_verdict(
    two_cpu_core: ov.Core, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    x = ops.parameter([1, 8], np.float32, name="x")
    results = [ops.result(ops.relu(x), name="first"), ops.result(ops.multiply(x, x), name="steady")]
    model = placed(ov.Model(results, [x], "unsteady"), two_cpu_core)
    noise_in_first_inferences(monkeypatch, seed)
    done = verify(model, DEVICE, core=two_cpu_core)
    assert not done.good
    assert done.result["equal"] is None
    assert (done.result["varying"], done.result["differing"]) == (["first"], [])
    assert "first: a single device gives other values when the same inputs run once more" in repr(done)
    assert "first inferences alone differ: when they are repeated, all agree" in repr(done)


def test_a_difference_in_second_runs_alone_is_found(two_cpu_core: ov.Core, monkeypatch: pytest.MonkeyPatch) -> None:
    x = ops.parameter([1, 8], np.float32, name="x")
    model = placed(ov.Model([ops.result(ops.relu(x), name="y")], [x], "worn"), two_cpu_core)
    met: list[ov.InferRequest] = []

    def worn(request: ov.InferRequest, arrays: Any) -> None:
        """On HETERO a request computes something else when it is used again."""
        infer(request, arrays)
        properties = request.get_compiled_model().get_property("SUPPORTED_PROPERTIES")
        if "HETERO_NUMBER_OF_SUBMODELS" in properties and any(request is one for one in met):
            request.get_output_tensor(0).data[...] = 5.0
        met.append(request)

    monkeypatch.setattr(verification_runs, "infer", worn)
    done = verify(model, DEVICE, core=two_cpu_core)
    assert (done.result["equal"], done.result["differing"]) == (False, ["y"])
    assert done.result["operation_by_operation"]["wrong"] == [DEVICE]
    assert "so the placement is wrong" in done.notes


def test_a_sequence_of_random_numbers_that_is_the_same_everywhere_is_compared(two_cpu_core: ov.Core) -> None:
    x = ops.parameter([1, 8], np.float32, name="x")
    bounds = (ops.constant(np.array([1, 8], np.int64)), ops.constant(np.float32(0)), ops.constant(np.float32(1)))
    noise = ops.random_uniform(*bounds, "f32", global_seed=3, op_seed=5)
    model = placed(ov.Model([ops.result(ops.relu(ops.add(x, noise)))], [x], "seeded"), two_cpu_core)
    assert verify(model, DEVICE, core=two_cpu_core).good


def test_whole_numbers_that_differ_are_not_called_infinite(
    two_cpu_core: ov.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = ops.parameter([4], np.int32, name="x")
    model = placed(ov.Model([ops.result(ops.multiply(x, x), name="y")], [x], "whole"), two_cpu_core)
    runs = iter(range(1000))

    def counted(request: ov.InferRequest, arrays: Any) -> None:
        infer(request, arrays)
        request.get_output_tensor(0).data[...] = next(runs)

    monkeypatch.setattr(verification_runs, "infer", counted)
    printed = repr(verify(model, DEVICE, core=two_cpu_core))
    assert "difference from CPU_A: another shape, other whole numbers or texts, or NaN elsewhere" in printed
    assert "inf" not in printed.replace("inference", "")
