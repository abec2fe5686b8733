"""`ov-hsdag plan`: several models on one machine, placed together.

An application is several models that run together; one run of it is a number of inferences of each. A plan has the
placement of each model, and predicted and measured figures of the application. It is stored as plan.json.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from ov_hsdag.applications.application_file import of_folder, parse_counts, read_application
from ov_hsdag.applications.plan import is_plan_file
from ov_hsdag.cli import _common as common
from ov_hsdag.cli import applications
from ov_hsdag.cli.command import Command
from ov_hsdag.storage.model_folder import is_model_folder
from ov_hsdag.utils.errors import UserError

Output = Annotated[
    Path | None,
    common.output_option(
        "DIR", "Folder for the placed models and plan.json (of a folder DIR.plan.json); by default APPLICATION_plan."
    ),
]


@common.with_options_of(
    common.options_of("static", "memory", "profile", "policy", "measure", "measure_seconds"), "given"
)
def plan(
    application: Annotated[
        Path,
        typer.Argument(
            help="A file in TOML that names the models, a folder of a pipeline's models, or plan.json to show again."
        ),
    ],
    device: Annotated[
        str | None, common.device_option("Devices in the order of preference, where the file does not name them.")
    ] = None,
    output: Output = None,
    objective: Annotated[
        str | None, typer.Option(metavar="throughput|latency", help="What is to be best, of runs of the application.")
    ] = None,
    count: applications.Counts = None,
    shape: common.Shapes = None,
    workload: common.WorkloadOption = None,
    given: Any = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.svg",
            help="Also draw the models side by side: one run in time, work and memory of each device.",
        ),
    ] = None,
    as_json: common.Json = False,
) -> None:
    """Decide where the models of an application run that share a machine, and write them with their placements.

    One run of the application is a number of inferences of each model (--count). Whole models go to devices; a model is
    split only where that gains. Programs that load the written models on the same device list follow the plan
    unchanged.

    Args:
        application: a file in TOML, a folder of a pipeline's models, or a plan.json to show again.
        device: devices in the order of preference; None for those that the file names.
        output: folder for the placed models; None for APPLICATION_plan.
        objective: "throughput" or "latency"; None for the file's, else "throughput".
        count: runs of models in one run of the application, as --count takes them; for a folder.
        shape: example shapes, as --shape takes them; for a folder.
        workload: prompt and tokens of a decoder, as --workload takes them; for a folder.
        given: other options of placing.
        report: .svg of the plan to write, too.
        as_json: print JSON.

    Raises:
        UserError: options contradict each other, or a model, a device or a file cannot be used.
        RunError: placing failed, see `place_together`.
    """
    if is_plan_file(application):
        own = {"device": device, "output": output, "objective": objective, "count": count, "shape": shape}
        common.refuse_options({**own, "workload": workload, **vars(given)}, "for placing, and this plan is only shown")
        applications.show_stored(application, report, as_json)
        return
    if is_model_folder(application):
        spec = of_folder(application, parse_counts(count), workload, shape)
    else:
        common.check_model(application)
        if count or shape or workload:
            raise UserError("--count, --shape and --workload are for a folder: the file has those of its models")
        spec = read_application(application)
    listed = device or spec.device
    if listed is None:
        raise UserError('no device is given: give --device, or device = "HETERO:GPU,CPU" in the file')
    named = Path(os.path.abspath(application))  # the name of the folder for ".."
    name = named.name if named.is_dir() else named.stem
    how = {**vars(given), "objective": objective or spec.objective or "throughput", "report": report}
    applications.place(spec, listed, output or Path(f"{name}_plan"), application, how, as_json)


COMMAND = Command(plan, position=20, example="ov-hsdag plan app.toml --device HETERO:GPU,CPU --output placed")
