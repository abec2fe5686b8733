"""Exports as they come, with weights in f16 and in int8: placed between layers, and verified."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nncf
import openvino as ov
import pytest

from ov_hsdag.cli.verify import verify
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.model.placement import Placement
from ov_hsdag.problem.pricing import build_problem
from tests.llm.families import LAYERS, model_file
from tests.llm.layers import cut

DEVICE = "HETERO:CPU_A,CPU_B"


def split(model: ov.Model, core: ov.Core) -> ov.Model:
    """The model with a placement of half of its layers on each device."""
    copy = model.clone()  # preparing a model changes it
    problem = build_problem(copy, DeviceSet.parse(DEVICE), core=core)
    Placement(("CPU_A", "CPU_B"), problem.affinity(cut(problem, [LAYERS // 2], [0, 1]))).embed(copy)
    return copy


@pytest.mark.parametrize("weights", ["f16", "int8"])
def test_placed_exports_are_verified(
    core: ov.Core, family: str, weights: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = core.read_model(model_file(family))
    if weights == "int8":
        model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)
    path = tmp_path / "placed.xml"
    ov.save_model(split(model, core), path, compress_to_fp16=weights == "f16")
    capfd.readouterr()
    verify(path, DEVICE, as_json=True)
    found: dict[str, Any] = json.loads(capfd.readouterr().out)
    assert found["equal"] and found["followed"] and found["submodels"] > 1
    assert found["inferences"] == 12
