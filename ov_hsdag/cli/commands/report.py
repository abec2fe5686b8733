"""`ov-hsdag report`: what runs where in a placed model, as a page to look at, or a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ov_hsdag.applications.plan import is_plan_file
from ov_hsdag.cli import _common as common
from ov_hsdag.cli import applications, console, kit
from ov_hsdag.cli.command import Command
from ov_hsdag.cli.command_lines import command_of
from ov_hsdag.cli.placed_model import PlacedModel, explained
from ov_hsdag.explaining.report_data import write
from ov_hsdag.report.write import check_report
from ov_hsdag.storage.files import check_not_input
from ov_hsdag.utils.byte_sizes import format_bytes

ReportOutput = Annotated[
    Path | None,
    common.output_option(
        "FILE.html|svg|png",
        "The page, or the picture of the split alone; by default MODEL_report.html in the current directory.",
    ),
]


@common.with_options_of(PlacedModel, "placed")
def report(model: common.Model, placed: PlacedModel, output: ReportOutput = None, as_json: common.Json = False) -> None:
    """Write what runs where in a placed MODEL, and why, as one HTML page.

    The page needs no network and no other file. It has all that `ov-hsdag explain` knows; what was measured when the
    model was placed is as it was stored. A name that ends in .svg or .png asks for the picture of the split alone. Of a
    plan.json the models are drawn side by side, as .svg. Of what `ov-hsdag bench --kit` wrote the page has a table.

    Args:
        model: the placed model, its folder, a plan.json, or results of the kit.
        placed: the options that `explain` has as well.
        output: the .html, .svg or .png to write; None for MODEL_report.html.
        as_json: print JSON.
    """
    results = kit.read_results(model) if model.suffix == ".json" else None
    if results is not None:
        common.refuse_options(vars(placed), "for one model, not for results of the kit")
        kit.report(results, model, output, as_json)
        return
    if is_plan_file(model):
        common.refuse_options(vars(placed), "for one model, not for a plan")
        applications.report(model, output, as_json)
        return
    file = common.one_file(model, placed.part, "report")

    output = Path(f"{file.stem}_report.html") if output is None else output
    check_report(output)
    check_not_input(output, file)

    with console.result(as_json) as show:
        found = explained(model, file, placed)
        with console.progress(f"explaining {model}") as tell:
            write(output, found, file.stem, {"command": command_of(found.placement)}, tell)
        size = output.stat().st_size if output.is_file() else 0
        show({"output": str(output), "bytes": size}, f"{output}: {format_bytes(size)}, for any browser")


COMMAND = Command(report, position=80, example="ov-hsdag report model_placed.xml --output report.html")
