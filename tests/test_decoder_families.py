"""Decoders with other states than keys and values that grow: cut between layers anywhere, on real HETERO."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

from ov_hsdag.devices import virtual
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.model.normalize import normalize
from ov_hsdag.model.steps import REORDERED, StatefulInputs
from ov_hsdag.model.workload import decoder_shapes
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.problem.problem import PlacementProblem
from tests.decoders import EXACT, compiled, convolution_decoder, cross_attention_decoder

LAYERS = 4
NAMES = ("CPU_A", "CPU_B", "CPU_C", "CPU_D")

families = pytest.mark.parametrize("build", [cross_attention_decoder, convolution_decoder])


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> ov.Core:
    monkeypatch.setenv(virtual.VIRTUAL_DEVICES_VARIABLE, ";".join(f"{name}:INFERENCE_NUM_THREADS=1" for name in NAMES))
    core = virtual.new_core()
    return core


def layer_of_groups(problem: PlacementProblem) -> NDArray[np.int64]:
    """The layer that each group of nodes needs, int64 [groups].

    What needs no layer itself (states that are made from inputs) is in the first layer that needs it.
    """
    graph = problem.graph
    source, target = problem.groups[graph.input_source], problem.groups[graph.input_node]
    layer = np.zeros(problem.group_count, np.int64)
    for boundary in range(1, LAYERS):
        entering = graph.input_source == graph.index(f"into_layer_{boundary}")
        np.maximum.at(layer, problem.groups[graph.input_node[entering]], boundary)
    for _ in range(graph.nodes):
        np.maximum.at(layer, target, layer[source])
    first = np.full(problem.group_count, LAYERS)
    tokens = problem.groups[[graph.index(name) for name in graph.names if name == "input_ids"]]
    depends = np.zeros(problem.group_count, bool)
    depends[tokens] = True
    for _ in range(graph.nodes):
        np.logical_or.at(depends, target, depends[source])
    for _ in range(graph.nodes):
        reached = np.where(depends, layer, first)
        np.minimum.at(first, source, reached[target])
    return np.where(depends | (first == LAYERS), layer, first)


def generated(model: ov.Model, compiled: ov.CompiledModel) -> list[NDArray[Any]]:
    """Logits of a prompt and eight further tokens with beams exchanged on the way, twice with a reset between."""
    request = compiled.create_infer_request()
    found = []
    for seed in range(2):
        for step in StatefulInputs(model, {}, sequences=2).conversation(seed, further=8):
            request.infer(step)
            found.append(request.get_output_tensor(0).data[:, -1].copy())
        request.reset_state()
    return found


@pytest.mark.slow
@families
def test_any_cuts_between_layers_compute_what_one_device_does(core: ov.Core, build: Callable[[int], ov.Model]) -> None:
    random = np.random.default_rng(0)
    expected = generated(build(LAYERS), core.compile_model(build(LAYERS), "CPU_A", EXACT))
    sets = [([boundary], [0, 1]) for boundary in range(1, LAYERS)]
    for _ in range(4):
        count = int(random.integers(2, 5))
        sets.append((sorted(random.permutation(LAYERS - 1)[: count - 1] + 1), random.permutation(count).tolist()))
    for boundaries, devices in sets:
        model, used = build(LAYERS), DeviceSet(NAMES[: len(devices)])
        problem = build_problem(model, used, core=core)
        part = np.searchsorted(np.array(boundaries), layer_of_groups(problem), side="right")
        placement = np.array(devices, np.uint8)[part]
        assert not problem.evaluate(placement).infeasible[0]
        split = compiled(core, model, problem, placement)
        assert split.get_property("HETERO_NUMBER_OF_SUBMODELS") == len(devices)
        assert problem.summary(placement)["submodels"] == len(devices)
        for own, other in zip(generated(model, split), expected, strict=True):
            np.testing.assert_allclose(own, other, atol=1e-4)


def test_models_without_attention_get_a_mask_of_the_new_tokens_and_positions_of_their_window() -> None:
    model = convolution_decoder(window=4)
    steps = StatefulInputs(model, sequences=2).conversation()
    names = [port.any_name for port in model.inputs]
    past = 0
    for number, arrays in enumerate(steps):
        step = dict(zip(names, arrays, strict=True))
        tokens = step["input_ids"].shape[1]
        assert step["attention_mask"].shape == (2, tokens)
        assert step["cache_position"].tolist() == ([past] if number else [0, 1, 2, 3])
        assert step["beam_idx"].tolist() == ([1, 0] if number == REORDERED else [0, 1])
        past += tokens


def test_a_further_token_of_a_model_without_attention_comes_after_a_prompt() -> None:
    model = convolution_decoder(window=4)
    for total, tokens in ((9, 9), (9, 1)):
        inputs = StatefulInputs(model, decoder_shapes(model, 1, tokens, total))
        before, steps = inputs.timed()
        assert [dict(zip(names_of(model), one, strict=True))["cache_position"].tolist() for one in before] == (
            [] if tokens > 1 else [[0, 1, 2, 3]]
        )
        first = dict(zip(names_of(model), steps[0], strict=True))
        assert first["cache_position"].tolist() == ([0, 1, 2, 3] if tokens > 1 else [4])
        assert first["input_ids"].shape == first["attention_mask"].shape == (1, tokens)


def names_of(model: ov.Model) -> list[str]:
    return [port.any_name for port in model.inputs]


@families
def test_copies_have_the_same_names_when_they_are_made_again(build: Callable[..., ov.Model]) -> None:
    """OpenVINO's clean-up merges copies again: a placement of a placed model names other nodes otherwise."""
    model = build(LAYERS)
    first = normalize(model)
    again = normalize(model)
    assert any("/copy_" in name for name in first.names)
    assert again.names == first.names
    np.testing.assert_array_equal(again.input_output, first.input_output)
