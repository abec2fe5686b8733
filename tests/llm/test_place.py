"""Exports as they come, with weights in f16 and in int8: placed between layers, and verified."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import nncf
import openvino as ov
import pytest

from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.model.placement import Placement
from ov_hsdag.problem.pricing import build_problem
from tests.llm.families import LAYERS, model_file
from tests.llm.layers import cut
from tests.processes import ended

DEVICE = "HETERO:CPU_A,CPU_B"


def split(model: ov.Model, core: ov.Core, device: str = DEVICE) -> ov.Model:
    """The model with a placement of half of its layers on each device."""
    copy = model.clone()  # preparing a model changes it
    devices = DeviceSet.parse(device)
    problem = build_problem(copy, devices, core=core)
    Placement(devices.names, problem.affinity(cut(problem, [LAYERS // 2], [0, 1]))).embed(copy)
    return copy


def verified(core: ov.Core, model: ov.Model, weights: str, folder: Path) -> dict[str, Any]:
    """What `ov-hsdag verify --json` says of the model with such weights and a placement."""
    if weights == "int8":
        model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)
    path = folder / "placed.xml"
    ov.save_model(split(model, core), path, compress_to_fp16=weights == "f16")
    program = Path(sys.executable).with_name("ov-hsdag")
    found: dict[str, Any] = json.loads(ended(program, "verify", path, "--device", DEVICE, "--json").stdout)
    return found


@pytest.mark.parametrize("weights", ["f16", "int8"])
def test_placed_exports_are_verified(core: ov.Core, family: str, weights: str, tmp_path: Path) -> None:
    found = verified(core, core.read_model(model_file(family)), weights, tmp_path)
    assert found["equal"] and found["followed"] and found["submodels"] == 2
    assert found["inferences"] == 12


def test_optimums_command_line_places(core: ov.Core, family: str, tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("optimum-cli")
    folder, placed = model_file(family).parent, tmp_path / "placed"
    ended(program, "place", folder, "--device", "HETERO:GPU,CPU", "--no-measure", "--output", placed)
    assert Placement.of(core.read_model(placed / model_file(family).name)) is not None
    wrong = ended(program, "place", tmp_path / "nothing", "--device", DEVICE, status=2)
    assert wrong.stderr.startswith("error: no such model")
