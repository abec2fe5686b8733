"""`ov-hsdag calibrate`: measure what operations and transfers cost on the devices of this machine."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from ov_hsdag.cli import _common as common
from ov_hsdag.cli import console, remote
from ov_hsdag.cli.child_process import continue_in_child
from ov_hsdag.cli.command import Command
from ov_hsdag.cli.command_lines import given, model_here
from ov_hsdag.costs.stored import ModelCosts, check_replaceable, path_beside
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.jobs.job import OUT, Inputs, Job
from ov_hsdag.jobs.machine_kind import Kind
from ov_hsdag.model.config_sizes import sizes_beside
from ov_hsdag.model.inputs import parse_shapes
from ov_hsdag.storage.files import check_not_input, check_writable, write_json
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.reading import SETTINGS, read_json

Models = Annotated[
    list[Path] | None,
    typer.Option("--model", "-m", metavar="MODEL", help="Measure this model, too; can be given several times."),
]
Seconds = Annotated[
    float,
    typer.Option(
        "--seconds",
        metavar="N",
        min=1,
        help="Time for each model, about, after a minute or two for the devices; no limit by default.",
        show_default=False,
    ),
]
ProfileOutput = Annotated[Path, common.output_option("PROFILE.json", "The device profile to write.")]


def calibrate(
    device: common.Device,
    output: ProfileOutput,
    model: Models = None,
    shape: common.Shapes = None,
    seconds: Seconds = math.inf,
    ray: remote.Ray = None,
    on: remote.On = None,
    as_json: common.Json = False,
) -> None:
    """Measure the devices and write a profile; costs of each --model go into NAME.costs.json in the model's folder.

    `ov-hsdag place --profile PROFILE.json` uses the profile, and the costs of a model wherever they lie beside it.

    Args:
        device: devices to measure.
        output: the profile, .json.
        model: files of models that are measured, too.
        shape: example shapes of their inputs, as --shape takes them.
        seconds: time for each model, about, after a minute or two for the devices; infinite for no limit.
        ray: address of the Ray cluster that measures; None for this machine.
        on: which machines of the cluster, as --on takes them; exactly one where there are models.
        as_json: print JSON.

    Raises:
        UserError: options contradict each other, or a model, a device or a file cannot be used.
        RunError: measuring failed.
    """
    models = list(model or ())
    _check_outputs(output, models)
    remote.check_on(ray, on)

    examples = parse_shapes(shape or ())
    if examples and not models:
        raise UserError("--shape is of a model's input: give the model, too (--model)")

    from ov_hsdag.calibration.machine import calibrate as calibrate_machine

    names = DeviceSet.parse(device).names
    if ray is not None:
        if models and len(on or ()) != 1:
            raise UserError("the costs of a model are those of one kind of machine: name it with --on")
        with console.result(as_json) as show, remote.connected(ray, names, on) as fleet:
            _calibrate_on_cluster(fleet, show, output, models)
        return
    continue_in_child("calibrating")  # the rest runs in a forked child; the parent waits and exits with its status
    begin = time.perf_counter()
    with console.result(as_json) as show:
        core = common.new_core()
        loaded = [common.read_model(core, path) for path in models]
        for path, one in zip(models, loaded, strict=True):
            one.set_friendly_name(path.name)  # the progress line prints this name
        sizes = _with_sizes_beside(models, loaded, examples)
        with console.progress("calibrating") as tell:
            calibration = calibrate_machine(device, loaded, shapes=sizes, seconds=seconds, core=core, report=tell)
        calibration.save(output)
        model_entries = []
        for path, costs, times in zip(models, calibration.costs, calibration.times, strict=True):
            costs.save(path_beside(path))
            latency_us = {one.device: one.latency_us for one in times.values()}
            model_entries.append({"model": str(path), "costs": str(path_beside(path)), "latency_us": latency_us})
        data: dict[str, Any] = {
            "profile": str(output),
            "devices": {
                name: {"layers_error": report.microbenchmarks, "borders_error": report.boundaries}
                for name, report in calibration.reports.items()
            },
            "models": model_entries,
            "seconds": time.perf_counter() - begin,
        }
        show(data, _text(data, output), _table(calibration.document, data["devices"]))
        named = models[0] if models else model_here()
        show.next("place", named, "--device", device, "--profile", output, *given("--shape"))


def _with_sizes_beside(
    paths: Sequence[Path], models: Sequence[ov.Model], examples: Mapping[str, Sequence[int]]
) -> dict[str, Sequence[int]]:
    """The user's example shapes, completed by those from configuration files in the models' folders.

    An input of whose shape the configurations disagree is left out.
    """
    shapes_by_input: dict[str, set[tuple[int, ...]]] = {}
    for path, model in zip(paths, models, strict=True):
        for name, shape in sizes_beside(model, path, examples).items():
            shapes_by_input.setdefault(name, set()).add(shape)
    return {**{name: next(iter(shapes)) for name, shapes in shapes_by_input.items() if len(shapes) == 1}, **examples}


def _calibrate_on_cluster(fleet: remote.Fleet, show: console.Show, output: Path, models: list[Path]) -> None:
    """Runs this command once on each kind of machine of a cluster; writes a profile of each kind, and models' costs.

    A job repeats the options of the running command, such as --device, --shape and --seconds (`remote.words`). The
    models' files travel with it.

    Args:
        fleet: the kinds of machines.
        show: prints results.
        output: the profile; with several kinds of machines, each has a file of its own (`Fleet.target`).
        models: files of the models to measure.

    Raises:
        UserError: a file cannot be written, or the job reports it.
        RunError: a job failed. Results of the other kinds are written before it is raised.
    """
    for kind in fleet.kinds:
        check_writable(fleet.target(output, kind))
    inputs = Inputs()
    names = [inputs.model(path) for path in models]  # paths in a job's folder, as are those of the costs
    costs_names = [path_beside(name).as_posix() for name in names]
    for name in costs_names:  # costs of an earlier calibration do not travel, as the job could not overwrite them
        inputs.files.pop(name, None)
    words = remote.words(inputs, [], {"--model": names, "--output": f"{OUT}/{_PROFILE}"})
    job = Job(tuple(words), inputs.files, inputs.shown, tuple(costs_names))
    with remote.scratch() as scratch:
        profiles: list[Path] = []

        def take_result(kind: Kind, data: dict[str, Any]) -> dict[str, Any]:
            """Writes and shows what a finished job has measured.

            Args:
                kind: the kind of machine that the job ran on.
                data: the JSON that the job printed.

            Returns:
                The JSON to print here: the same with the paths on this machine.
            """
            job_outputs, target = scratch / kind.number, fleet.target(output, kind)
            document = read_json(job_outputs / _PROFILE, SETTINGS)
            write_json(target, document)
            profiles.append(target)
            for number, path in enumerate(models):
                ModelCosts.load(job_outputs / costs_names[number]).save(path_beside(path))
                data["models"][number] |= {"model": str(path), "costs": str(path_beside(path))}
            show.text(_text(data, target, f" on {kind.describe()}"), _table(document, data["devices"]))
            return {**data, "profile": str(target)}

        jobs = [(kind, job, scratch / kind.number) for kind in fleet.kinds]
        failures = fleet.each("calibrating", jobs, take_result, show)
    if profiles:
        model = models[0] if models else model_here()
        show.next("place", model, *given("--device"), "--profile", profiles[0], *given("--shape"))
    remote.end(failures)


def _text(data: dict[str, Any], profile: Path, where: str = "") -> str:
    """The lines for people about a calibration.

    Args:
        data: what the command prints as JSON.
        profile: file of the profile.
        where: words for the machine, " on …"; "" for this one.
    """
    lines = [f"{profile}: {', '.join(data['devices'])}, measured in {data['seconds']:.0f} s{where}"]
    for one in data["models"]:
        latencies = [f"{us / 1000:.2f} ms on {name}" for name, us in one["latency_us"].items()]
        lines.append(f"{one['costs']}: {', '.join(latencies)}")
    return "\n".join(lines)


_PROFILE = "profile.json"  # name of the profile among the output files of a job


def _check_outputs(output: Path, models: list[Path]) -> None:
    """Raises UserError where a file cannot be read or written: measuring takes minutes, so that this comes first."""
    if output.suffix != ".json":
        raise UserError(f"the output is a profile in JSON: its name must end in .json, got '{output}'")
    targets = {os.path.realpath(output): output}
    for path in models:
        common.check_model(path)
        costs = path_beside(path)
        if os.path.realpath(costs) in targets:
            raise UserError(f"{costs} would be written twice: give every model, and the output, a name of its own")
        check_replaceable(costs)
        targets[os.path.realpath(costs)] = costs
    for target in targets.values():
        check_writable(target)
        for path in models:
            check_not_input(target, path)


def _table(document: dict[str, Any], errors: dict[str, Any]) -> Table:
    """The table of the profile `document`; `errors` has each device's "layers_error", a share."""
    table = console.table("device", "precision", "GFLOP/s", "GB/s", "launch µs", "submodel µs", "error")
    table.caption = (
        "launch: starting an operation. submodel: calling a submodel. error: median, of the profile's times for the"
        " layers that were measured."
    )
    for name, entry in document["devices"].items():
        peak, precision = entry["peak_gflops"]["value"][entry["precision"]], entry["precision"]
        shares = entry["efficiency"]["value"]
        best = max(shares.get(f"{kind}@{precision}", 0.0) for kind in ("Convolution", "MatMul"))
        rates = [f"{peak * best:.0f}", f"{entry['gbps']['value']['default']:.0f}"]
        starts = [f"{entry[key]['value']:.1f}" for key in ("launch_us", "submodel_us")]
        table.add_row(name, precision, *rates, *starts, f"{errors[name]['layers_error']:.0%}")
    return table


COMMAND = Command(
    calibrate,
    position=140,
    example="ov-hsdag calibrate --device HETERO:GPU,CPU --model model.xml --output machine.json",
)
