"""What commands do with an application: several models in one file, or in the folder of a pipeline.

An application is several models that run together; one run of it is a number of inferences of each. A plan has the
placement of each model, and predicted and measured figures of the application. It is stored as plan.json.

A command that takes a model asks `ov_hsdag.applications.plan.is_plan_file` once, where it begins, and leaves a plan to
functions of this module.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ov_hsdag.applications.application_file import ApplicationSpec, to_place
from ov_hsdag.applications.plan import Plan
from ov_hsdag.applications.plan_picture import plan_picture
from ov_hsdag.applications.planning import LoadedPlan, load_plan, place_together
from ov_hsdag.cli import _common as common
from ov_hsdag.cli import console
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.devices.discovery import absent
from ov_hsdag.devices.memory import parse_memory
from ov_hsdag.model.shapes import has_npu
from ov_hsdag.placing.candidates import policy_placers
from ov_hsdag.problem.problem import check_objective
from ov_hsdag.storage.files import check_not_input, check_writable, save_model_atomically, write_text, writing
from ov_hsdag.storage.folder_writing import check_folder_output, write_folder
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import ov

PLAN = "plan.json"
"""The file of a plan in the folder of its models."""

Counts = Annotated[
    list[str] | None,
    typer.Option(
        "--count",
        metavar="NAME=N",
        help="Runs of a model in one run of the application, instead of the usual number; can be given several times.",
    ),
]


def place(
    spec: ApplicationSpec, device: str, output: Path, source: Path, given: Mapping[str, Any], as_json: bool
) -> None:
    """Places an application's models together, writes and shows them; raises what `ov-hsdag plan` raises.

    Args:
        spec: the application.
        device: devices in the order of preference.
        output: folder for the models and the plan; where all models are of one folder, the copy of that folder.
        source: the folder or file of the application.
        given: options of `ov-hsdag plan` by name: "objective", "report", and those of placing. Those of
            `ov-hsdag place`, "compress_to_fp16" and "hardlinks", may be among them.
        as_json: print JSON.
    """
    check_objective(given["objective"])
    check_picture(given["report"])
    devices = DeviceSet.parse(device)
    memory = given["memory"]
    limits = spec.memory or {} if memory is None else parse_memory(memory, devices.names)
    policy_placers(given["policy"])
    folders = {one.folder for one in spec.models.values()}
    alone = source if folders == {source} else None  # in this case the output is a copy of the folder
    if alone is not None:
        output = output if output.name else output.absolute()  # "." gives the plan no name
        check_folder_output(output, source)
    where = output.with_name(f"{output.name}.{PLAN}") if alone else output / PLAN
    check_writable(where)
    if alone is None:
        for name, model_spec in spec.models.items():
            target = output / (model_spec.of if model_spec.folder else f"{name}.xml")
            common.check_output(target, model_spec.folder or model_spec.path)
            for other in spec.models.values() if not model_spec.folder else ():
                if other.path != model_spec.path:  # nor may it take the place of another model
                    check_not_input(target, other.path)

    with console.result(as_json) as show:
        core = common.new_core()
        measure = given["measure"]
        if measure is None:
            measure = not absent(core, devices) and common.has_temporary_folder()
        fixes_sizes = bool(given["static"]) or has_npu(devices)
        models = to_place(spec, lambda path: common.read_model(core, path), fixes_sizes=fixes_sizes)
        compress = given.get("compress_to_fp16")
        half = {
            name: common.has_fp16_weights(one.model) if compress is None else compress for name, one in models.items()
        }
        with console.progress(f"placing {len(models)} models on {device}") as tell:
            how = {name: given[name] for name in ("objective", "measure_seconds", "profile", "policy")}
            how["static"] = bool(given["static"])
            placed_plan = place_together(
                models, device, rates=spec.rates, measure=measure, memory=limits, core=core, report=tell, **how
            )
        with console.progress(f"writing {output}"):
            written = {name: (one.model, half[name]) for name, one in models.items()}
            if alone is None:  # if writing ends early, no old plan must lie among new models
                with writing(where):
                    Path(os.path.realpath(where)).unlink(missing_ok=True)
            placed_plan = _written(placed_plan, spec, written, output, alone, given.get("hardlinks", True))
        placed_plan.save(where)
        show_plan(show, placed_plan, where, given["report"])
        if absent(core, devices):
            largest = max(placed_plan.models.values(), key=lambda one: (len(one.devices), sum(one.busy_us.values())))
            show.next("explain", where.parent / (largest.path or ""))
        else:
            show.next("verify", where, "--device", device)


def check_picture(path: Path | None) -> None:
    """Raises UserError where the picture of a plan cannot be written; None, for no picture, is fine."""
    if path is None:
        return
    if path.suffix != ".svg":
        raise UserError(f"the picture of a plan is an .svg: got '{path}'")
    check_writable(path)


def read_plan(where: Path, core: ov.Core, device: str | None, **how: Any) -> LoadedPlan:
    """Reads a plan and its models, and prices them.

    Args:
        where: the plan.json.
        core: reads the models.
        device: devices in place of the plan's; None for these.
        how: options of `ov_hsdag.applications.planning.load_plan`; memory: as --memory takes it.

    Returns:
        The plan with new predictions, and its models.
    """
    stored_plan = Plan.load(where)
    if how.get("memory"):
        how["memory"] = parse_memory(how["memory"], DeviceSet.parse(device).names if device else stored_plan.devices)
    models = {name: common.read_model(core, file) for name, file in stored_plan.files(where).items()}
    return load_plan(stored_plan, models, device, core, **how)


def explain(where: Path, given: Any, as_json: bool) -> None:
    """Explains the whole of a written plan: shows it, and what moving each model to another device would cost.

    Args:
        where: the plan.json.
        given: the options of `ov-hsdag explain`, a `PlacedModel`; of these device, objective, profile and memory are
            used.
        as_json: print JSON.
    """
    how = {name: getattr(given, name) for name in ("objective", "profile", "memory")}
    with console.result(as_json) as show:
        loaded = read_plan(where, common.new_core(), given.device, **how)
        show_plan(show, loaded.plan, where, moves=loaded.application.moves(loaded.assignment))


def report(where: Path, output: Path | None, as_json: bool) -> None:
    """Shows a plan, and draws its models side by side.

    Args:
        where: the plan.json.
        output: the .svg to write; None for one in the current folder that is named after the plan.
        as_json: print JSON.
    """
    picture = output or Path(f"{where.stem}.svg")
    check_picture(picture)
    with console.result(as_json) as show:
        show_plan(show, Plan.load(where), where, picture)


def show_stored(where: Path, picture: Path | None, as_json: bool) -> None:
    """Shows a plan as it was stored.

    Args:
        where: the plan.json.
        picture: the .svg to write; None for none.
        as_json: print JSON.
    """
    check_picture(picture)
    with console.result(as_json) as show:
        show_plan(show, Plan.load(where), report=picture)


def _written(
    plan: Plan,
    spec: ApplicationSpec,
    models: Mapping[str, tuple[ov.Model, bool]],
    output: Path,
    alone: Path | None,
    hard_links: bool,
) -> Plan:
    """Writes the models of a plan.

    Args:
        plan: the plan.
        spec: the application, which says what folder each model is of.
        models: the models by name, each with whether its weights become FP16.
        output: the folder to write.
        alone: the exported folder, where all models are of one; `output` is then a copy of it. None otherwise: `output`
            then gets a file for each single model and a folder for each exported one.
        hard_links: share unchanged weights with the source folders.

    Returns:
        The plan with the models' paths, which are relative to the plan's file.
    """
    paths: dict[str, str] = {}
    pipelines: dict[tuple[str, Path], dict[str, tuple[ov.Model, bool]]] = {}
    for name, model_spec in spec.models.items():
        if model_spec.folder is None:
            paths[name] = f"{name}.xml"
            model, half = models[name]
            save_model_atomically(model, output / paths[name], compress_to_fp16=half)
        else:
            inside = model_spec.path.relative_to(model_spec.folder).as_posix()
            pipelines.setdefault((model_spec.of, model_spec.folder), {})[inside] = models[name]
            paths[name] = f"{output.name if alone else model_spec.of}/{inside}"
    for (of, folder), placed in pipelines.items():
        write_folder(output if alone else output / of, folder, placed, hard_links=hard_links)
    return replace(plan, models={name: replace(one, path=paths[name]) for name, one in plan.models.items()})


def show_plan(
    show: console.Show,
    plan: Plan,
    where: Path | None = None,
    report: Path | None = None,
    moves: Mapping[str, Mapping[str, float | None]] | None = None,
) -> None:
    """Prints a plan as text or JSON, and draws it where that is asked for.

    Args:
        show: prints it.
        plan: the plan.
        where: its file, for titles; None for none.
        report: the .svg to write; None for none.
        moves: the cost in µs of moving each model to each other device, from `Application.moves`; None to omit them.
    """
    if report is not None:
        write_text(report, plan_picture(plan.to_dict(), str(where or "plan")))
    heads = ("model", "runs", "where", *plan.devices, "memory", "moved to" if moves else "")
    table = console.table(*heads, left=(0, 2, len(heads) - 1))
    rows = plan.rows()
    costs = [[*one.items()] for one in (moves or {}).values()] + [[] for _ in rows]
    for row, own in zip(rows, costs, strict=False):
        told = [f"{to} {'-' if us is None else f'{us / 1e3:+,.3f} ms'}" for to, us in own]
        table.add_row(*row, "\n".join(told), style="bold" if row[0] == "all" else None)
    data = plan.to_dict() | ({"full": plan.full, "moves": moves} if moves else {})
    show(data, f"{where}: {plan.summary()}" if where else plan.summary(), table)
    others = console.table("plan", "predicted", "measured", "x best without splits", "", left=(0, 4))
    for row in plan.compared():
        others.add_row(*row)
    show.text("", others if plan.baselines else None)
