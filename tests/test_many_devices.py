"""Sixteen devices: as many as a list may have, equal ones and different ones, with room and without."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import openvino as ov
import pytest

import ov_hsdag
from ov_hsdag.devices import cpu
from ov_hsdag.devices.device_set import MOST_DEVICES
from ov_hsdag.devices.virtual import new_core
from ov_hsdag.model.graph import ComputationGraph
from ov_hsdag.model.support import support
from tests.decoders import generate, stateful_decoder

NAMES = [f"CPU_{number}" for number in range(MOST_DEVICES)]
SHAPES = {"input_ids": [1, 8], "attention_mask": [1, 8], "position_ids": [1, 8], "beam_idx": [1]}


class Counting:
    """A Core that counts what it is asked."""

    def __init__(self, core: ov.Core) -> None:
        self.core, self.asked = core, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.core, name)

    def query_model(self, model: ov.Model, device: str) -> dict[str, str]:
        self.asked[device] += 1
        return self.core.query_model(model, device)


@pytest.fixture
def virtual(monkeypatch: pytest.MonkeyPatch) -> None:
    # As if on a machine that has a core for each: devices that share cores earn nothing.
    monkeypatch.setattr(cpu, "usable_cores", lambda: MOST_DEVICES)
    limits = "INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT=f32"
    monkeypatch.setenv("OV_HSDAG_VIRTUAL_DEVICES", ";".join(f"{name}:{limits}" for name in NAMES))


@pytest.mark.slow
@pytest.mark.usefixtures("virtual")
def test_a_decoder_of_sixteen_layers_runs_on_sixteen_devices() -> None:
    model = stateful_decoder(MOST_DEVICES)
    core = new_core()
    expected = generate(core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}), steps=3)
    placement = ov_hsdag.place(model, NAMES, objective="throughput", shapes=SHAPES)
    assert len(set(placement.affinity.values())) == MOST_DEVICES
    assert placement.predicted is not None
    compiled = core.compile_model(model, f"HETERO:{','.join(NAMES)}")
    assert compiled.get_property("HETERO_NUMBER_OF_SUBMODELS") == placement.predicted["submodels"] == MOST_DEVICES
    for found, wanted in zip(generate(compiled, steps=3), expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("virtual")
def test_sixteen_devices_keep_their_limits() -> None:
    model = stateful_decoder(MOST_DEVICES, heads=8, size=32)
    limit = 7 * 2**19
    placement = ov_hsdag.place(model, NAMES, shapes=SHAPES, policy="none", memory=dict.fromkeys(NAMES, limit))
    assert placement.predicted is not None
    assert max(placement.predicted["memory_bytes"].values()) <= limit
    assert len(set(placement.affinity.values())) > 8


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_devices_that_are_not_here_and_differ(objective: str) -> None:
    """More of them than all orders are tried of."""
    names = [*(f"GPU.{number}" for number in range(9)), "CPU"]
    placement = ov_hsdag.place(stateful_decoder(10), names, objective=objective, shapes=SHAPES)
    assert set(placement.affinity.values()) <= set(names)


@pytest.mark.usefixtures("virtual")
def test_equal_devices_are_asked_once_what_they_support() -> None:
    model = stateful_decoder(2)
    graph = ComputationGraph.from_model(model, shapes=SHAPES)
    core = Counting(new_core())
    found = support(model, graph, NAMES, core)  # type: ignore[arg-type]
    assert core.asked == {NAMES[0]: 1}
    assert found.shape == (graph.nodes, MOST_DEVICES)
    assert (found == found[:, :1]).all()
