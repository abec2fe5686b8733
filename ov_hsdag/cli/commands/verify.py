"""`ov-hsdag verify`: does a placed model compute on HETERO what it computes on one device?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ov_hsdag._env import disabled
from ov_hsdag.applications.plan import Plan, is_plan_file
from ov_hsdag.cli import _common as common
from ov_hsdag.cli import console
from ov_hsdag.cli.child_process import continue_in_child
from ov_hsdag.cli.command import Command
from ov_hsdag.cli.command_lines import given, options, place_it
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring.verification import verify as verify_model
from ov_hsdag.measuring.verification_runs import DEPLOYED, F32
from ov_hsdag.model.inputs import example_shapes, parse_shapes
from ov_hsdag.model.placement import Placement
from ov_hsdag.model.samples import inputs_of_each, parse_inputs
from ov_hsdag.storage.ir_text import file_carries
from ov_hsdag.storage.model_folder import is_model_folder, model_files, models_of
from ov_hsdag.utils.errors import UserError

Precision = Annotated[
    str,
    typer.Option(
        "--precision",
        metavar=f"{DEPLOYED}|{F32}",
        help="Compute as an application does that sets nothing, or in f32 for a strict comparison.",
    ),
]


PlacedDevice = Annotated[
    str | None, common.device_option("Devices in the order of preference; by default those that MODEL was placed for.")
]


def verify(
    model: common.Model,
    device: PlacedDevice = None,
    precision: Precision = DEPLOYED,
    shape: common.Shapes = None,
    input: common.GivenInputs = None,
    part: common.Parts = None,
    as_json: common.Json = False,
) -> None:
    """Compile MODEL on HETERO with the placement inside and compare its outputs with those of single devices.

    Ends with exit status 1 where outputs differ, and where agreement would prove nothing: the placement is not
    followed, no value of an output is finite, or none changes with the inputs; and where OpenVINO crashes. Where
    outputs differ, operations are run one by one to say which side is wrong. A model with states is run for several
    inferences: a prompt, further tokens with a change of beams, and another prompt after a reset. --input gives other
    inputs than made-up ones. Of a plan.json all models are verified.

    Args:
        model: the placed model, its folder, or a plan.json.
        device: devices in the order of preference; None for those of the placement.
        precision: `DEPLOYED` or `F32`.
        shape: example shapes, as --shape takes them.
        input: files of inputs, as --input takes them.
        part: models of a folder; None for all that carry a placement.
        as_json: print JSON.

    Raises:
        UserError: an option is wrong, a model cannot be read, or it carries no placement.
        RunError: the model does not run.
        typer.Exit: with status 1 where outputs differ, or agreement would prove nothing.
    """
    if precision not in (DEPLOYED, F32):
        raise UserError(f"the precision must be '{DEPLOYED}' or '{F32}', got '{precision}'")
    common.check_model(model)
    subject = _subject(model, part or ())
    files, several = subject.files, subject.several
    examples, inputs = parse_shapes(shape or ()), parse_inputs(input or ())

    if disabled():
        raise UserError("OV_HSDAG_DISABLE is set, so that HETERO ignores placements: unset it to verify one")
    if device is not None:
        DeviceSet.parse(device)
    where = f" on {device}" if device is not None else ""
    continue_in_child(f"running {model}{where}")
    with console.result(as_json) as show:
        core = common.new_core()
        results, good = {}, True
        with console.progress(f"reading {model}"):
            loaded = [common.read_model(core, file) for file in files.values()]
        for file in (file for file, one in zip(files.values(), loaded, strict=True) if Placement.of(one) is None):
            raise UserError(f"{file} carries no placement; {place_it(file, core, device)}")
        each = zip(files.items(), loaded, example_shapes(loaded, examples), inputs_of_each(loaded, inputs), strict=True)
        for (name, file), loaded_model, shapes, samples in each:
            with console.progress(f"verifying {file}{where}") as tell:
                done = verify_model(
                    loaded_model,
                    device,
                    precision=precision,
                    shapes=shapes,
                    inputs=samples,
                    core=core,
                    report=tell,
                    warn=console.warn,
                )
            results[name] = done.result
            good = good and done.good
            show.text(f"{name}: {done}" if several else str(done))
        show.json({"models": results} if several else next(iter(results.values())))
        if good and subject.explainable:
            named = options({"--part": next(iter(files.values())).stem if len(models_of(model)) > 1 else None})
            show.next("explain", model, *named, *given("--shape"))
        elif not good and precision == DEPLOYED and any(_may_round(result) for result in results.values()):
            show.next("verify", model, *given("--device"), "--precision", F32, *given("--shape", "--input"))
    if not good:
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Subject:
    """What is verified: a model, models of a folder, or those of a plan.

    Attributes:
        files: the models' files, by the names that results have.
        several: whether JSON has an object of results by model, as for a folder with a single model, too.
        explainable: whether `ov-hsdag explain` is what a user may want next.
    """

    files: Mapping[str, Path]
    several: bool
    explainable: bool


def _subject(model: Path, parts: Sequence[str]) -> _Subject:
    """Finds the models to verify: all of a plan, and of a folder, by default, all that carry a placement.

    Args:
        model: a model, a folder or a plan.json.
        parts: names of models of a folder; empty for the default.

    Raises:
        UserError: there is no such model, or the plan cannot be read.
    """
    if is_plan_file(model) and not parts:
        return _Subject(Plan.load(model).files(model), several=True, explainable=False)
    folder = is_model_folder(model) and not parts
    placed = [file for file in models_of(model).values() if file_carries(file)] if folder else []
    # A folder without a placement gives its main models, for an error message that names them.
    files = {file.name: file for file in placed or model_files(model, parts)}
    return _Subject(files, several=is_model_folder(model), explainable=True)


def _may_round(result: Mapping[str, Any]) -> bool:
    """Whether rounding may explain that outputs differ, so that comparing in f32 is worth a try.

    It does not where outputs vary between two runs or two compilations, or where running the operations one by one has
    shown the placement right. result: of a model, as JSON has it.
    """
    wrong = result.get("operation_by_operation", {}).get("wrong", [result["device"]])
    return bool(result["differing"]) and not result["varying"] and (not wrong or result["device"] in wrong)


COMMAND = Command(verify, position=40, example="ov-hsdag verify model_placed.xml --device HETERO:GPU,CPU")
