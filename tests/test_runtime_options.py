"""Options that a model carries, such as the precision of its states, reach the devices of HETERO."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from ov_hsdag.devices import runtime_options
from ov_hsdag.measuring.process import Candidate, WorkerPool
from ov_hsdag.model.inputs import timed_inputs
from ov_hsdag.placing.place import place
from ov_hsdag.utils.errors import PlacementNotFollowedWarning
from tests.commands import run
from tests.decoders import generate, stateful_decoder

DEVICE = "HETERO:CPU_A,CPU_B"
KEY = "KV_CACHE_PRECISION"
# The CPU plugin's own choice is u8, and it does not have the second.
OPTIONS = {KEY: "f16", "ACTIVATIONS_SCALE_FACTOR": "8.0"}


def with_options(model: ov.Model) -> ov.Model:
    for name, value in OPTIONS.items():
        model.set_rt_info(value, ["runtime_options", name])
    return model


@pytest.fixture
def placed(two_cpu_core: ov.Core) -> ov.Model:
    model = with_options(stateful_decoder(heads=4, shared=4, size=16))
    placement = place(model, DEVICE, core=two_cpu_core, measure=False, objective="throughput")
    assert set(placement.used()) == {"CPU_A", "CPU_B"}
    return model


def precisions(compiled: ov.CompiledModel) -> dict[str, str]:
    return {
        name: properties[KEY].get_type_name() for name, properties in compiled.get_property("DEVICE_PROPERTIES").items()
    }


def test_states_have_the_precision_that_the_model_asks_for(two_cpu_core: ov.Core, placed: ov.Model) -> None:
    assert precisions(two_cpu_core.compile_model(placed, DEVICE)) == {"CPU_A": "f16", "CPU_B": "f16"}


def test_numbers_are_those_of_one_device(two_cpu_core: ov.Core, placed: ov.Model) -> None:
    alone = generate(two_cpu_core.compile_model(placed, "CPU_A"))
    split = two_cpu_core.compile_model(placed, DEVICE)
    assert split.get_property("HETERO_NUMBER_OF_SUBMODELS") > 1
    for own, other in zip(generate(split), alone, strict=True):
        np.testing.assert_allclose(own, other, atol=1e-6)
    coarse = generate(two_cpu_core.compile_model(placed, "CPU_A", {KEY: "u8"}))
    assert max(abs(own - other).max() for own, other in zip(coarse, alone, strict=True)) > 1e-5


@pytest.mark.parametrize("by_path", [False, True])
def test_what_the_user_sets_wins(two_cpu_core: ov.Core, placed: ov.Model, by_path: bool, tmp_path: Path) -> None:
    model: Any = placed
    if by_path:
        model = tmp_path / "placed.xml"
        ov.save_model(placed, model)
    for_all = two_cpu_core.compile_model(model, DEVICE, {KEY: "u8"})
    assert precisions(for_all) == {"CPU_A": "u8", "CPU_B": "u8"}
    for_one = two_cpu_core.compile_model(model, DEVICE, {"DEVICE_PROPERTIES": {"CPU_B": {KEY: "f32"}}})
    assert precisions(for_one) == {"CPU_A": "f16", "CPU_B": "f32"}
    two_cpu_core.set_property("CPU_A", {KEY: "f32"})
    assert precisions(two_cpu_core.compile_model(model, DEVICE)) == {"CPU_A": "f32", "CPU_B": "f16"}


def test_options_reach_the_devices_where_the_placement_cannot_be_followed(
    two_cpu_core: ov.Core, placed: ov.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("ov_hsdag.model.complete.complete", broken)
    with pytest.warns(PlacementNotFollowedWarning):
        compiled = two_cpu_core.compile_model(placed, DEVICE)
    assert set(precisions(compiled).values()) == {"f16"}


def test_a_model_without_a_placement_is_openvinos_own(two_cpu_core: ov.Core) -> None:
    compiled = two_cpu_core.compile_model(with_options(stateful_decoder()), DEVICE)
    assert set(precisions(compiled).values()) == {"u8"}


def test_other_devices_and_models_get_nothing(two_cpu_core: ov.Core, placed: ov.Model) -> None:
    assert runtime_options.compile_properties(two_cpu_core, placed, "CPU_A", {"NUM_STREAMS": 1}) == {"NUM_STREAMS": 1}
    assert KEY not in runtime_options.compile_properties(two_cpu_core, stateful_decoder(), DEVICE)
    assert runtime_options.runtime_options(placed) == OPTIONS
    assert runtime_options.runtime_options(stateful_decoder()) == {}


def test_measured_placements_run_with_the_options_too(two_cpu_core: ov.Core, placed: ov.Model) -> None:
    """Outputs of a second step show it: those of the first do not depend on how states are kept."""
    affinity = {node.get_friendly_name(): "CPU_B" for node in placed.get_ops()}
    shapes = {"input_ids": [1, 4], "position_ids": [1, 4], "attention_mask": [1, 12]}
    (timed,) = timed_inputs(placed, shapes)
    (before,), (inputs,) = timed.before, timed.steps
    request = two_cpu_core.compile_model(placed, "CPU_A").create_infer_request()
    request.infer(before)
    request.infer(inputs)
    with WorkerPool(placed, [timed], "latency") as pool:
        (found,) = pool.start().compile(Candidate(DEVICE, affinity), 60)
    np.testing.assert_allclose(found, request.get_output_tensor(0).data, atol=1e-6)


class TestVerify:
    @pytest.fixture
    def path(self, placed: ov.Model, tmp_path: Path) -> Path:
        ov.save_model(placed, tmp_path / "placed.xml")
        return tmp_path / "placed.xml"

    def test_runs_several_steps(self, path: Path) -> None:
        printed = json.loads(run("verify", path, "-d", DEVICE, "--json").stdout)
        assert printed["inferences"] == 12 and printed["submodels"] > 1
        assert printed["max_relative_error"] < 1e-6
        assert "outputs agree in 12 inferences" in run("verify", path, "-d", DEVICE).stdout

    @pytest.mark.parametrize("precision", ["deployed", "f32"])
    def test_sees_states_of_another_precision(
        self, path: Path, precision: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first step alone would not: what it reads has not been rounded yet. In f32 all states are that."""
        monkeypatch.setattr(runtime_options, "runtime_options", lambda model: {})
        printed = json.loads(run("verify", path, "-d", DEVICE, "--precision", precision, "--json").stdout)
        assert (printed["max_relative_error"] > 1e-5) == (precision == "deployed")
