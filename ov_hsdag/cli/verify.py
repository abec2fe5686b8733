"""`ov-hsdag verify`: does a placed model compute on HETERO what it computes on one device?"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import typer
from numpy.typing import NDArray

from ov_hsdag.cli import _common as common
from ov_hsdag.cli import console
from ov_hsdag.measuring.agreement import largest_difference, quantised_tolerance
from ov_hsdag.model.inputs import random_inputs
from ov_hsdag.utils.errors import RunError, UserError, one_line

if TYPE_CHECKING:
    import openvino as ov

EXACT = {"INFERENCE_PRECISION_HINT": "f32"}

F16_ONLY = ("NPU",)
"""Kinds of devices that refuse EXACT; with one of them in the list, differences up to TOLERANCE_F16 are accepted."""

TOLERANCE_F16 = 2e-2


def verify(
    model: common.Model, device: common.Device, as_json: common.Json = False, debug: common.Debug = False
) -> None:
    """Compile MODEL on HETERO with the placement inside and compare its outputs with those of single devices."""
    common.check_model(model)

    import openvino as ov

    from ov_hsdag._env import disabled
    from ov_hsdag.devices.device_set import DeviceSet
    from ov_hsdag.model.placement import Placement

    if disabled():
        raise UserError("OV_HSDAG_DISABLE is set, so that HETERO ignores placements: unset it to verify one")
    devices = DeviceSet.parse(device).names
    with console.result(as_json) as show:
        core = ov.Core()
        loaded = common.read_model(core, model)
        if Placement.of(loaded) is None:
            raise UserError(f"{model} carries no placement: write one with ov-hsdag place")
        inputs = random_inputs(loaded)
        with console.progress(f"running {model} on {device}"):
            compiled = _compile_placed(core, loaded, device, devices)
            outputs = _outputs(compiled, inputs)
        references = _references(core, loaded, devices, inputs)
        differences = {name: largest_difference([reference], [outputs]) for name, reference in references.items()}

        tolerance = quantised_tolerance(loaded)
        if any(name.startswith(F16_ONLY) for name in devices):
            tolerance = max(tolerance, TOLERANCE_F16)
        largest = max(differences.values())
        result = {
            "device": device,
            "devices": list(compiled.get_property("EXECUTION_DEVICES")),
            "submodels": int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS")),
            "max_relative_error": largest,
            "relative_errors": differences,
            "tolerance": tolerance,
            "equal": largest <= tolerance,
        }
        show(result, _text(result))
    if not result["equal"]:
        raise typer.Exit(1)


def _compile_placed(core: ov.Core, model: ov.Model, device: str, devices: Sequence[str]) -> ov.CompiledModel:
    """Compile as an unchanged script does. RunError where the placement would not be followed."""
    config = {"DEVICE_PROPERTIES": {name: EXACT for name in devices if _computes_f32(name)}}
    with warnings.catch_warnings():
        # What a script is warned of (the placement cannot be followed) is a failure here.
        warnings.filterwarnings("error", message="ov_hsdag: the model is compiled without", category=RuntimeWarning)
        try:
            return core.compile_model(model, device, config)
        except (RuntimeError, RuntimeWarning) as error:
            raise RunError(f"cannot compile on {device}: {one_line(error)}") from error


def _references(
    core: ov.Core, model: ov.Model, devices: Sequence[str], inputs: list[NDArray[Any]]
) -> dict[str, list[NDArray[Any]]]:
    """Outputs of each device of the list that is there (else of CPU) and can run the whole model alone."""
    from ov_hsdag.devices.discovery import full_name

    present = [name for name in devices if full_name(core, name) is not None]
    results: dict[str, list[NDArray[Any]]] = {}
    for name in present or ["CPU"]:
        try:
            compiled = core.compile_model(model, name, EXACT if _computes_f32(name) else {})
            results[name] = _outputs(compiled, inputs)
        except RuntimeError as error:
            console.message(f"{name} cannot run the model alone: {one_line(error)}")
    if not results:
        raise RunError("there is no device to compare with: none can run the whole model alone")
    return results


def _outputs(compiled: ov.CompiledModel, inputs: list[NDArray[Any]]) -> list[NDArray[Any]]:
    results = compiled.create_infer_request().infer(inputs)
    return [np.array(results[port]) for port in compiled.outputs]


def _computes_f32(device: str) -> bool:
    return not device.startswith(F16_ONLY)


def _text(result: dict[str, Any]) -> str:
    lines = [f"{result['device']} runs on {', '.join(result['devices'])} in {result['submodels']} submodel(s)"]
    for name, difference in result["relative_errors"].items():
        lines.append(f"largest difference from {name}: {difference:.1e} of the output's largest value")
    lines.append("outputs agree" if result["equal"] else f"outputs DIFFER (more than {result['tolerance']:g})")
    return "\n".join(lines)
