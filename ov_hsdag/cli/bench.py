"""`ov-hsdag bench`: all placers on the same models and devices, measured on real HETERO in turns."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ov_hsdag.cli import _common as common
from ov_hsdag.cli import console
from ov_hsdag.cli.place import Objective, ProfileFile
from ov_hsdag.utils.errors import UserError

if TYPE_CHECKING:
    import openvino as ov
    from rich.progress import Progress

    from ov_hsdag.costs.profile import Profile
    from ov_hsdag.devices.device_set import DeviceSet
    from ov_hsdag.measuring.rivals import Result
    from ov_hsdag.policy.placer import HSDAGPlacer

Models = Annotated[list[Path], typer.Argument(metavar="MODEL...", help="What OpenVINO reads, one or several.")]
Policies = Annotated[
    str | None,
    typer.Option("--policies", metavar="A,B", help='Learned policies, names or folders; "none" for none.'),
]
Rounds = Annotated[int, typer.Option("--rounds", min=1, metavar="N", help="Turns of each placement, at most.")]
Table_ = Annotated[
    Path | None, typer.Option("--output", metavar="FILE", help="Results: all of them as .json, or the rows as .csv.")
]


def bench(
    models: Models,
    device: common.Device,
    objective: Objective = "latency",
    policies: Policies = None,
    profile: ProfileFile = None,
    rounds: Rounds = 12,
    output: Table_ = None,
    as_json: common.Json = False,
    debug: common.Debug = False,
) -> None:
    """Run every placer's placement of each MODEL on its devices, in turns, and compare them."""
    for model in models:
        common.check_model(model)
    _check_table(output)

    from ov_hsdag.devices.device_set import DeviceSet
    from ov_hsdag.devices.virtual import register
    from ov_hsdag.problem.problem import check_objective

    check_objective(objective)
    devices = DeviceSet.parse(device)
    learned = _policies(policies)

    import openvino as ov

    from ov_hsdag.costs.profile import Profile
    from ov_hsdag.devices.discovery import absent

    costs = Profile.load(profile) if profile else None
    core = ov.Core()
    register(core)
    missing = absent(core, devices.names)
    if missing:
        raise UserError(f"this machine has no {', '.join(missing)}: bench measures, so that all devices must be there")
    with console.result(as_json) as show:
        found: list[dict[str, Any]] = []
        with console.bar() as bar:
            for model in models:
                results = _run(core, model, devices, objective, costs, learned, rounds, bar)
                found.append({"model": str(model), "results": [result.to_dict() for result in results]})
        document = {
            "device": devices.hetero,
            "objective": objective,
            "openvino": ov.__version__,
            "models": found,
        }
        if output is not None:
            _write(output, document)
        for entry in found if not as_json else ():
            show({}, f"{entry['model']}, {objective}", _table(entry["results"], objective))
        if as_json:
            show(document)


def _run(
    core: ov.Core,
    path: Path,
    devices: DeviceSet,
    objective: str,
    costs: Profile | None,
    policies: Sequence[HSDAGPlacer],
    rounds: int,
    bar: Progress,
) -> list[Result]:
    from ov_hsdag.measuring.rivals import measure, rivals
    from ov_hsdag.problem.pricing import build_problem

    task = bar.add_task(f"{path.name}: placing", total=None)
    loaded = common.read_model(core, path)
    problem = build_problem(loaded, devices, objective=objective, profile=costs, core=core)
    found = rivals(problem, devices, policies)
    # Compiling each takes a step, and so does measuring all of them.
    bar.update(task, total=sum(not rival.same_as for rival in found) + 1, completed=0)

    def report(text: str) -> None:
        bar.update(task, description=f"{path.name}: {text[:60]}")
        bar.advance(task, 0 if text.startswith("measuring") else 1)
        if bar.disable:
            console.message(f"{path.name}: {text}")

    results = measure(loaded, devices, objective, core, found, rounds=rounds, report=report)
    bar.update(task, completed=bar.tasks[task].total, description=path.name)
    return results


def _policies(text: str | None) -> list[HSDAGPlacer]:
    """The learned placers, under different names. Raises UserError where one cannot be used."""
    from ov_hsdag.policy.candidates import policy_placers

    names = [None] if text is None else [name.strip() for name in text.split(",") if name.strip()]
    found = [(name, placer) for name in names for placer in policy_placers(name)]
    if len(found) == 1:
        return [found[0][1]]
    return [replace(placer, name=f"hsdag:{name}") for name, placer in found]


def _check_table(path: Path | None) -> None:
    from ov_hsdag.utils.files import check_writable

    if path is None:
        return
    if path.suffix not in (".json", ".csv"):
        raise UserError(f"results are written as .json or .csv, got '{path}'")
    check_writable(path)


def _write(path: Path, document: dict[str, Any]) -> None:
    from ov_hsdag.utils.files import atomic_file, write_json

    if path.suffix == ".json":
        write_json(path, document)
        return
    rows = [{"model": entry["model"], **row} for entry in document["models"] for row in entry["results"]]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    with atomic_file(path) as file:
        file.write(text.getvalue())


def _table(rows: Sequence[dict[str, Any]], objective: str) -> Table:
    table = Table(box=None)
    unit = "ms" if objective == "latency" else "inferences/s"
    for column in (
        "placer",
        f"predicted, {unit}",
        f"measured, {unit}",
        "times the best device",
        "95%",
        "submodels",
        "",
    ):
        table.add_column(column, justify="left" if column in ("placer", "") else "right")
    for row in rows:
        predicted = row["predicted_latency_us"] if objective == "latency" else row["predicted_ips"]
        scale = 1e-3 if objective == "latency" else 1.0
        note = row["failed"] or (f"as {row['same_as']}" if row["same_as"] else "")
        cells = ("-", "-", "-")
        if not row["failed"]:
            interval = f"{row['ratio_low']:.3f} - {row['ratio_high']:.3f}"
            cells = (f"{row['measured'] * scale:.2f}", f"{row['ratio']:.3f}", interval)
        table.add_row(
            row["placer"], "-" if predicted is None else f"{predicted * scale:.2f}", *cells, str(row["submodels"]), note
        )
    return table
