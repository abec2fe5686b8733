"""What commands do with an application: several models in one file, or in the folder of a pipeline.

An application is several models that run together; one run of it is a number of inferences of each. A plan has the
placement of each model, and predicted and measured figures of the application. It is stored as plan.json.

A command that takes a model asks `ov_hsdag.applications.plan.is_plan_file` once, where it begins, and leaves a plan to
functions of this module.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ov_hsdag.applications.application_file import ApplicationSpec, to_place
from ov_hsdag.applications.loaded_plan import LoadedPlan, load_plan
from ov_hsdag.applications.plan import Plan
from ov_hsdag.applications.plan_picture import plan_picture
from ov_hsdag.applications.planning import place_together
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
    limits = _memory_limits(given["memory"], spec, devices)
    policy_placers(given["policy"])
    destination = _Destination.of(spec, output, source)
    destination.check(spec, source)
    with console.result(as_json) as show:
        core = common.new_core()
        plan = _place_and_write(spec, core, devices, device, limits, destination, given)
        show_plan(show, plan, destination.plan_file, given["report"])
        _show_next(show, plan, destination.plan_file, core, devices, device)


def _memory_limits(memory: str | None, spec: ApplicationSpec, devices: DeviceSet) -> Mapping[str, int | str]:
    """Returns the memory limits that the user gave, else those of the application's file.

    Args:
        memory: limits as --memory takes them; None where the user gave none.
        spec: the application.
        devices: the devices.
    """
    if memory is None:
        return spec.memory or {}
    return parse_memory(memory, devices.names)


@dataclass(frozen=True)
class _Destination:
    """Where a plan and its models are written.

    Attributes:
        folder: the folder of the models. It is a copy of the source folder, or has a file for each single model and a
            folder for each exported one.
        plan_file: the plan.json.
        is_copy: whether it is such a copy: where all models are of one folder.
    """

    folder: Path
    plan_file: Path
    is_copy: bool

    @classmethod
    def of(cls, spec: ApplicationSpec, output: Path, source: Path) -> _Destination:
        """Determines the files of an output.

        Args:
            spec: the application.
            output: the output that the user gave.
            source: the folder or file of the application.
        """
        if {model_spec.folder for model_spec in spec.models.values()} != {source}:
            return cls(output, output / PLAN, is_copy=False)
        folder = output if output.name else output.absolute()  # "." gives the plan no name
        return cls(folder, folder.with_name(f"{folder.name}.{PLAN}"), is_copy=True)

    def check(self, spec: ApplicationSpec, source: Path) -> None:
        """Raises UserError where something cannot be written, or would take the place of what is read.

        Args:
            spec: the application.
            source: the folder or file of the application.
        """
        if self.is_copy:
            check_folder_output(self.folder, source)
        check_writable(self.plan_file)
        if self.is_copy:
            return
        for name, model_spec in spec.models.items():
            target = self.folder / (model_spec.of if model_spec.folder else f"{name}.xml")
            common.check_output(target, model_spec.folder or model_spec.path)
            for other in spec.models.values() if not model_spec.folder else ():
                if other.path != model_spec.path:  # nor may it take the place of another model
                    check_not_input(target, other.path)

    def write(
        self, plan: Plan, spec: ApplicationSpec, models: Mapping[str, tuple[ov.Model, bool]], hard_links: bool
    ) -> Plan:
        """Writes the models of a plan, and removes the plan that is there.

        Args:
            plan: the plan.
            spec: the application, which says what folder each model is of.
            models: the models by name, each with whether its weights become FP16.
            hard_links: share unchanged weights with the source folders.

        Returns:
            The plan with the models' paths, which are relative to the plan's file.
        """
        if not self.is_copy:  # if writing ends early, no old plan must lie among new models
            with writing(self.plan_file):
                Path(os.path.realpath(self.plan_file)).unlink(missing_ok=True)
        paths = self._write_models(spec, models, hard_links)
        return replace(plan, models={name: replace(one, path=paths[name]) for name, one in plan.models.items()})

    def _write_models(
        self, spec: ApplicationSpec, models: Mapping[str, tuple[ov.Model, bool]], hard_links: bool
    ) -> dict[str, str]:
        """Writes the models, see `write`; returns their paths by name, relative to the plan's file."""
        paths: dict[str, str] = {}
        pipelines: dict[tuple[str, Path], dict[str, tuple[ov.Model, bool]]] = {}
        for name, model_spec in spec.models.items():
            if model_spec.folder is None:
                paths[name] = f"{name}.xml"
                model, half = models[name]
                save_model_atomically(model, self.folder / paths[name], compress_to_fp16=half)
            else:
                inside = model_spec.path.relative_to(model_spec.folder).as_posix()
                pipelines.setdefault((model_spec.of, model_spec.folder), {})[inside] = models[name]
                paths[name] = f"{self.folder.name if self.is_copy else model_spec.of}/{inside}"
        for (of, folder), placed in pipelines.items():
            write_folder(self.folder if self.is_copy else self.folder / of, folder, placed, hard_links=hard_links)
        return paths


def _place_and_write(
    spec: ApplicationSpec,
    core: ov.Core,
    devices: DeviceSet,
    device: str,
    limits: Mapping[str, int | str],
    destination: _Destination,
    given: Mapping[str, Any],
) -> Plan:
    """Places the models of an application, and writes them with the plan.

    Args:
        spec: the application.
        core: Core of the devices.
        devices: the devices.
        device: the devices, as the user gave them.
        limits: memory limits by device.
        destination: where to write.
        given: options by name, see `place`.

    Returns:
        The plan as it is written.
    """
    measure = _is_measured(given["measure"], core, devices)
    fixes_sizes = bool(given["static"]) or has_npu(devices)
    models = to_place(spec, lambda path: common.read_model(core, path), fixes_sizes=fixes_sizes)
    compress = given.get("compress_to_fp16")
    # This is asked first, as placing widens weights.
    half = {name: common.has_fp16_weights(one.model) if compress is None else compress for name, one in models.items()}
    with console.progress(f"placing {len(models)} models on {device}") as tell:
        plan = place_together(
            models,
            device,
            rates=spec.rates,
            measure=measure,
            memory=limits,
            core=core,
            report=tell,
            static=bool(given["static"]),
            **{name: given[name] for name in ("objective", "measure_seconds", "profile", "policy")},
        )
    with console.progress(f"writing {destination.folder}"):
        placed = {name: (one.model, half[name]) for name, one in models.items()}
        written = destination.write(plan, spec, placed, given.get("hardlinks", True))
    written.save(destination.plan_file)
    return written


def _is_measured(given: bool | None, core: ov.Core, devices: DeviceSet) -> bool:
    """Whether plans are measured: as the user says, else where all devices are here and there is a temporary folder."""
    if given is not None:
        return given
    return not absent(core, devices) and common.has_temporary_folder()


def _show_next(show: console.Show, plan: Plan, plan_file: Path, core: ov.Core, devices: DeviceSet, device: str) -> None:
    """Proposes a next command: to verify the plan, or to explain its largest model where devices are absent.

    Args:
        show: shows it.
        plan: the plan.
        plan_file: its file.
        core: Core of the devices.
        devices: the devices.
        device: the devices, as the user gave them.
    """
    if absent(core, devices):
        largest = max(plan.models.values(), key=lambda one: (len(one.devices), sum(one.busy_us.values())))
        show.next("explain", plan_file.parent / (largest.path or ""))
    else:
        show.next("verify", plan_file, "--device", device)


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
        how: options of `ov_hsdag.applications.loaded_plan.load_plan`; memory: as --memory takes it.

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
