"""Inputs of stateful models fit together step after step, and what is measured is the same step each time."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest

from ov_hsdag.measuring.runner import Runner
from ov_hsdag.model.inputs import conversations, timed_inputs
from ov_hsdag.model.replay import Replay
from ov_hsdag.model.steps import FILLED, REORDERED, TIMED_STEPS, StatefulInputs, is_stateful
from ov_hsdag.utils.lazy import opset13 as ops
from research.zoo.catalog import ZOO
from tests.decoders import VOCABULARY, stateful_decoder

SHAPES = {"input_ids": [1, 4], "position_ids": [1, 4], "attention_mask": [1, 20], "beam_idx": [1]}


def by_name(model: ov.Model, arrays: list[np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    return {port.any_name: array for port, array in zip(model.inputs, arrays, strict=True)}


def test_a_conversation_goes_on_where_it_was() -> None:
    model = stateful_decoder()
    steps = [by_name(model, step) for step in StatefulInputs(model, sequences=2).conversation()]
    assert len(steps) == 6
    past = 0
    for number, step in enumerate(steps):
        tokens = step["input_ids"].shape[1]
        assert tokens == (1 if number else 128)
        assert step["input_ids"].shape == step["position_ids"].shape == (2, tokens)
        assert step["attention_mask"].shape == (2, past + tokens) and step["attention_mask"].all()
        assert (step["position_ids"] == np.arange(past, past + tokens)).all()
        assert step["beam_idx"].tolist() == ([1, 0] if number == REORDERED else [0, 1])
        past += tokens
    prompt = steps[0]["input_ids"]
    assert len(np.unique(prompt)) > 2 and prompt.min() >= 0 and prompt.max() < VOCABULARY


def test_example_shapes_say_what_is_in_the_states_already() -> None:
    model = stateful_decoder()
    inputs = StatefulInputs(model, SHAPES, sequences=2)
    assert inputs.past == 16
    steps = [by_name(model, step) for step in inputs.conversation()]
    assert [step["attention_mask"].shape for step in steps[:3]] == [(1, 16), (1, 20), (1, 21)]
    (timed,) = timed_inputs(model, SHAPES)
    (before,), (only,) = timed.before, timed.steps
    assert by_name(model, before)["input_ids"].shape == (1, 16)
    step = by_name(model, only)
    assert step["attention_mask"].shape == (1, 20) and step["position_ids"].tolist() == [[16, 17, 18, 19]]
    assert not timed_inputs(model)[0].before


def test_values_are_those_that_the_names_and_tables_ask_for() -> None:
    """Random masks hide whole rows, of which Softmax makes NaN; random numbers point outside of tables."""
    types = {"ids": "i64", "decoder_attention_mask:0": "i64", "position_ids": "i64", "beam_idx": "i32", "kinds": "i32"}
    inputs = {
        name: ops.parameter([3] if name == "beam_idx" else [3, 9], np.dtype(kind.replace("i", "int")), name=name)
        for name, kind in types.items()
    }
    tables = {name: np.ones((rows, 4), np.float32) for name, rows in (("ids", 50), ("position_ids", 5), ("kinds", 1))}
    found = [
        ops.gather(ops.constant(table), ops.convert(inputs[name], "i32"), axis)  # Paddle's have a rank
        for (name, table), axis in zip(tables.items(), (np.int64(0), np.array([0]), np.array([0])), strict=True)
    ]
    found += [inputs["decoder_attention_mask:0"], inputs["beam_idx"]]
    for name, one in inputs.items():
        one.output(0).get_tensor().set_names({name})
    ids, mask, positions, beams, kinds = conversations(ov.Model(found, list(inputs.values())), [0])[0][0]
    assert 2 < ids.max() < 50 and ids.min() >= 0 and len(np.unique(ids)) > 5
    assert mask.all() and not kinds.any()
    assert positions.tolist() == [[0, 1, 2, 3, 4, 0, 1, 2, 3]] * 3
    assert beams.tolist() == [0, 1, 2] and beams.dtype == np.int32


def test_models_without_states_get_one_inference() -> None:
    x = ops.parameter([2, 3], np.float32)
    model = ov.Model([ops.relu(x)], [x])
    assert not is_stateful(model)
    (only,), (other,) = conversations(model, (0, 1))
    assert [array.shape for array in only] == [(2, 3)] and not np.array_equal(only[0], other[0])


@pytest.mark.parametrize("name", ["llama-stateful", "lstm-stateful", "llama-beams"])
def test_conversations_run(name: str) -> None:
    model = ZOO[name].build()
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    request = compiled.create_infer_request()
    for steps in conversations(model, (0, 1)):
        assert len(steps) == 6
        for step in steps:
            request.infer(step)
            assert np.isfinite(request.get_output_tensor(0).data).all()
        request.reset_state()


@pytest.mark.parametrize("objective", ["latency", "throughput"])
@pytest.mark.parametrize("device", ["CPU_A", "HETERO:CPU_A,CPU_B"])
def test_each_inference_that_is_measured_finds_the_same_states(
    two_cpu_core: ov.Core, objective: str, device: str
) -> None:
    model = stateful_decoder()
    (timed,) = timed_inputs(model, SHAPES)
    (before,), (inputs,) = timed.before, timed.steps
    compiled = two_cpu_core.compile_model(model, device, {"KV_CACHE_PRECISION": "f32"})
    request = compiled.create_infer_request()
    request.infer(before)
    request.infer(inputs)
    expected = request.get_output_tensor(0).data
    runner = Runner(compiled, [timed], objective, 2)
    assert runner.rate(0.05) > 0
    for one in runner.queue:
        assert {tuple(state.state.shape) for state in one.query_state()} == {(1, 2, 20, 8)}
        np.testing.assert_allclose(one.get_output_tensor(0).data, expected, atol=1e-6)
    np.testing.assert_allclose(runner.outputs()[0], expected, atol=1e-6)


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_tokens_that_are_timed_go_on_from_the_context(two_cpu_core: ov.Core, objective: str) -> None:
    """States that hold more tokens than are read to fill them are as long as the context, and grow with each token."""
    model = stateful_decoder()
    past = 3 * FILLED + 7
    shapes = {"input_ids": [1, 1], "position_ids": [1, 1], "attention_mask": [1, past + 1]}
    (timed,) = timed_inputs(model, shapes)
    assert timed.past == past
    assert [by_name(model, one)["input_ids"].shape[1] for one in timed.before] == [FILLED - 1, 1]
    assert [by_name(model, one)["attention_mask"].shape[1] for one in timed.steps[:3]] == [past + 1, past + 2, past + 3]
    request = two_cpu_core.compile_model(model, "CPU_A").create_infer_request()
    replay = Replay(request, timed)
    for _ in range(TIMED_STEPS + 3):
        request.infer(replay.next())
        mask = request.get_tensor("attention_mask").shape[1]
        assert {tuple(state.state.shape) for state in request.query_state()} == {(1, 2, mask, 8)}
    assert mask == past + 5  # set back once; one token is run before those that are timed
    assert replay.inferences == 2 + 2
    runner = Runner(two_cpu_core.compile_model(model, "HETERO:CPU_A,CPU_B"), [timed], objective, 2)
    assert runner.rate(0.05) > 0
