"""`ov-hsdag verify`: does a placed model compute on HETERO what it computes on one device?"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from ov_hsdag.cli import _common as common
from ov_hsdag.cli import console
from ov_hsdag.cli.child_process import continue_in_child
from ov_hsdag.cli.command_lines import options, place_it
from ov_hsdag.measuring import agreement
from ov_hsdag.model.inputs import conversations, example_shapes, parse_shapes
from ov_hsdag.storage.model_folder import is_model_folder, model_files, models_of
from ov_hsdag.utils.errors import PlacementNotFollowedWarning, RunError, UserError, one_line

if TYPE_CHECKING:
    import openvino as ov

    from ov_hsdag.utils.progress import Tell

EXACT = {"INFERENCE_PRECISION_HINT": "f32"}

EXACT_STATES = {"KV_CACHE_PRECISION": "f32"}
"""The same of the states of language models; of CPU devices, which keep them in 8 bits otherwise."""

F16_ONLY = ("NPU",)
"""Kinds of devices that refuse EXACT; with one of them in the list, differences up to TOLERANCE_F16 are accepted."""

TOLERANCE_F16 = 2e-2

SEEDS = (0, 1)
"""Of the random inputs: an output that is the same for all of them shows nothing."""

DEPLOYED, F32 = "deployed", "f32"

Precision = Annotated[
    str,
    typer.Option(
        "--precision",
        metavar=f"{DEPLOYED}|{F32}",
        help="Compute as an application does that sets nothing, or in f32 for a strict comparison.",
    ),
]

Outputs = list[NDArray[Any]]
Inputs = list[NDArray[Any]]


def verify(
    model: common.Model,
    device: common.Device,
    precision: Precision = DEPLOYED,
    shape: common.Shapes = None,
    part: common.Parts = None,
    as_json: common.Json = False,
) -> None:
    """Compile MODEL on HETERO with the placement inside and compare its outputs with those of single devices.

    Ends with exit status 1 where outputs differ, and where agreement would prove nothing: the placement is not
    followed, outputs are not finite, or none of them depends on the inputs; and where OpenVINO crashes. A model with
    states is run for several inferences: a prompt, further tokens with a change of beams, and another prompt after a
    reset.
    """
    if precision not in (DEPLOYED, F32):
        raise UserError(f"the precision must be '{DEPLOYED}' or '{F32}', got '{precision}'")
    common.check_model(model)
    folder = is_model_folder(model)
    if folder or part:
        model_files(model, part or ())  # says what is wrong with them
    examples = parse_shapes(shape or ())

    from ov_hsdag._env import disabled
    from ov_hsdag.devices.device_set import DeviceSet

    if disabled():
        raise UserError("OV_HSDAG_DISABLE is set, so that HETERO ignores placements: unset it to verify one")
    devices = DeviceSet.parse(device).names
    continue_in_child(f"running {model} on {device}")
    with console.result(as_json) as show:
        core = common.new_core()
        results, good = {}, True
        files = _placed_files(model, part or ())
        with console.progress(f"reading {model}"):
            loaded = [_read_placed(core, file, device) for file in files]
        for file, one, shapes in zip(files, loaded, example_shapes(loaded, examples), strict=True):
            with console.progress(f"verifying {file} on {device}") as tell:
                result, unproven = _verified(core, one, devices, device, precision, shapes, tell)
            results[file.name] = result
            good = good and bool(result["equal"]) and not unproven
            if not folder:
                show(result, _text(result, unproven))
            elif not as_json:
                show({}, f"{file.name}: {_text(result, unproven)}")
        if folder and as_json:
            show({"models": results})
        if good:
            several = folder and len(model_files(model)) > 1
            words = options({"--part": files[0].stem if several else None, "--shape": shape})
            show.next("explain", model, *words)
        elif precision == DEPLOYED and not all(result["equal"] for result in results.values()):
            # Whether rounding is why they differ.
            show.next("verify", model, "--device", device, *options({"--precision": F32, "--shape": shape}))
    if not good:
        raise typer.Exit(1)


def _placed_files(model: Path, parts: Sequence[str]) -> list[Path]:
    """The files to verify: of a folder, by default all models that carry a placement. Raises UserError without any."""
    from ov_hsdag.integration.core import file_carries

    if parts or not is_model_folder(model):
        return model_files(model, parts)
    # Without any the main ones, which then say so.
    return [file for file in models_of(model).values() if file_carries(file)] or model_files(model)


def _read_placed(core: ov.Core, file: Path, device: str) -> ov.Model:
    """Read a model. Raises UserError where it carries no placement."""
    from ov_hsdag.model.placement import Placement

    model = common.read_model(core, file)
    if Placement.of(model) is None:
        raise UserError(f"{file} carries no placement; {place_it(file, device)}")
    return model


def _verified(
    core: ov.Core,
    loaded: ov.Model,
    devices: Sequence[str],
    device: str,
    precision: str,
    shapes: Mapping[str, Sequence[int]] | None,
    tell: Tell,
) -> tuple[dict[str, Any], list[str]]:
    """The comparison of a model's outputs, and why they prove nothing. Raises RunError where it cannot be run."""
    from ov_hsdag.devices.discovery import full_name

    inputs = conversations(loaded, SEEDS, shapes)
    tell("compiling the placement")
    compiled, ignored = _compile_placed(core, loaded, device, _hetero_config(devices, precision))
    present = [name for name in devices if full_name(core, name) is not None]
    try:
        references = _references(core, loaded, present or ["CPU"], precision, inputs, tell)
    except RunError:
        if len(inputs[0]) == 1:
            raise
        inputs = [steps[:1] for steps in inputs]
        references = _references(core, loaded, present or ["CPU"], precision, inputs, tell)
        console.message("warning: only first inferences are compared, as it is not known what its inputs mean")
    tell("running the placement")
    outputs = _outputs(compiled, inputs)
    result = {
        "device": device,
        "devices": list(compiled.get_property("EXECUTION_DEVICES")),
        "submodels": int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS")),
        "precision": {name: _computes_in(core, name, precision) for name in present},
        **_compared(loaded, outputs, references),
        "inferences": sum(map(len, inputs)),
        "tolerance": _tolerance(core, loaded, present, precision),
        "followed": not ignored,
    }
    result["equal"] = result["max_relative_error"] <= result["tolerance"]
    unproven = _unproven(result, ignored)
    return result, unproven


def _hetero_config(devices: Sequence[str], precision: str) -> dict[str, Any]:
    if precision == DEPLOYED:
        return {}
    return {"DEVICE_PROPERTIES": {name: _exact(name) for name in devices if _can_compute_f32(name)}}


def _exact(device: str) -> dict[str, str]:
    return {**EXACT, **EXACT_STATES} if "CPU" in device else EXACT


def _compile_placed(
    core: ov.Core, model: ov.Model, device: str, config: Mapping[str, Any]
) -> tuple[ov.CompiledModel, list[str]]:
    """Compile as an unchanged script does.

    Returns:
        The compiled model, and in what ways the placement is not followed: a line each.

    Raises:
        RunError: OpenVINO refuses.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            compiled = core.compile_model(model, device, config)
        except RuntimeError as error:
            raise RunError(f"cannot compile on {device}: {one_line(error)}") from error
    for warning in caught:
        console.message(f"warning: {warning.message}")
    ignored = [warning for warning in caught if issubclass(warning.category, PlacementNotFollowedWarning)]
    return compiled, [str(warning.message).removeprefix("ov_hsdag: ") for warning in ignored]


def _references(
    core: ov.Core,
    model: ov.Model,
    devices: Sequence[str],
    precision: str,
    inputs: Sequence[Sequence[Inputs]],
    tell: Tell,
) -> dict[str, list[Outputs]]:
    """Outputs of each device that can run the whole model alone.

    Raises:
        RunError: None can.
    """
    results: dict[str, list[Outputs]] = {}
    for name in devices:
        tell(f"running on {name} alone")
        exact = precision == F32 and _can_compute_f32(name)
        try:
            results[name] = _outputs(core.compile_model(model, name, _exact(name) if exact else {}), inputs)
        except RuntimeError as error:
            console.message(f"{name} cannot run the model alone: {one_line(error)}")
    if not results:
        raise RunError("there is no device to compare with: none can run the whole model alone")
    return results


def _outputs(compiled: ov.CompiledModel, inputs: Sequence[Sequence[Inputs]]) -> list[Outputs]:
    """Outputs of all inferences that belong together, one after the other, for each set of them.

    States begin anew with each set: by a reset where they are used, by a request of its own where there are none.
    """
    results = []
    request = compiled.create_infer_request()
    for steps in inputs:
        found: Outputs = []
        for arrays in steps:
            got = request.infer(arrays)
            found += [np.array(got[port]) for port in compiled.outputs]
        results.append(found)
        if request.query_state():
            request.reset_state()
        else:
            request = compiled.create_infer_request()
    return results


def _compared(model: ov.Model, outputs: list[Outputs], references: Mapping[str, list[Outputs]]) -> dict[str, Any]:
    differences = {name: agreement.largest_difference(found, outputs) for name, found in references.items()}
    names = [result.get_friendly_name() for result in model.get_results()]
    runs = [arrays for found in (outputs, *references.values()) for arrays in found]
    first, *others = outputs
    varying = any(not _same(array, other[number]) for other in others for number, array in enumerate(first))
    return {
        "max_relative_error": max(differences.values()),
        "relative_errors": differences,
        "not_finite": [
            name
            for number, name in enumerate(names)
            if not all(_finite(array) for run in runs for array in run[number :: len(names)])
        ],
        "depends_on_inputs": varying or not model.get_parameters(),
    }


def _same(a: NDArray[Any], b: NDArray[Any]) -> bool:
    return np.array_equal(a, b, equal_nan=bool(np.issubdtype(a.dtype, np.floating)))


def _finite(array: NDArray[Any]) -> bool:
    return not np.issubdtype(array.dtype, np.floating) or bool(np.isfinite(array).all())


def _tolerance(core: ov.Core, model: ov.Model, devices: Sequence[str], precision: str) -> float:
    if precision == DEPLOYED and devices:
        return agreement.tolerance(core, devices, model)
    rougher = any(not _can_compute_f32(name) for name in devices)
    return max(agreement.quantised_tolerance(model), TOLERANCE_F16 if rougher else 0)


def _computes_in(core: ov.Core, device: str, precision: str) -> str:
    from ov_hsdag.devices.discovery import inference_precision

    if precision == F32 and _can_compute_f32(device):
        return F32
    return inference_precision(core, device) or "its own choice"


def _can_compute_f32(device: str) -> bool:
    return not device.startswith(F16_ONLY)


def _unproven(result: Mapping[str, Any], ignored: Sequence[str]) -> list[str]:
    """Why equal outputs would say nothing about the placement, a line each."""
    lines = list(ignored)
    if result["not_finite"]:
        lines.append(f"not all values are finite in {', '.join(result['not_finite'])}")
    if not result["depends_on_inputs"]:
        lines.append("no output depends on the inputs")
    return lines


def _text(result: Mapping[str, Any], unproven: Sequence[str]) -> str:
    computed = ", ".join(f"{name} in {kind}" for name, kind in result["precision"].items())
    lines = [f"{result['device']} runs on {', '.join(result['devices'])} in {result['submodels']} submodel(s)"]
    if computed:
        lines.append(f"computed on {computed}")
    for name, difference in result["relative_errors"].items():
        lines.append(f"largest difference from {name}: {difference:.1e} of the output's largest value")
    if not result["equal"]:
        lines.append(f"outputs DIFFER (more than {result['tolerance']:g})")
    elif not unproven:
        times = f" in {result['inferences']} inferences" if result["inferences"] > len(SEEDS) else ""
        lines.append(f"outputs agree{times} (within {result['tolerance']:g})")
    lines += [f"NOT VERIFIED: {line}" for line in unproven]
    return "\n".join(lines)
