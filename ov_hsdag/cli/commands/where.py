"""`ov-hsdag where`: compile a model for any device, and tell what runs where."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from ov_hsdag.cli import _common as common
from ov_hsdag.cli import console
from ov_hsdag.cli.child_process import continue_in_child
from ov_hsdag.cli.command import Command
from ov_hsdag.cli.command_lines import given
from ov_hsdag.cli.placed import terminal_picture
from ov_hsdag.devices.device_set import META_DEVICES, closest_names
from ov_hsdag.devices.discovery import absent
from ov_hsdag.explaining.where import where as what_runs_where
from ov_hsdag.model.names import operations_of
from ov_hsdag.model.placement import Placement
from ov_hsdag.utils.errors import RunError, UserError, one_line

_ANY = "What compile_model takes: AUTO, AUTO:A,B, HETERO:A,B, MULTI:A,B or a single device."
_EXPECT = """End with exit status 1 where less than N percent of the operations are known to run on DEVICE; folded ones
are not counted, and GPU also means GPU.0 and so on. Can be given several times."""
AnyDevice = Annotated[str, common.device_option(_ANY, "DEVICE")]
Expect = Annotated[list[str] | None, typer.Option("--expect", metavar="DEVICE=N%", help=_EXPECT)]


def where(
    model: common.Model,
    device: AnyDevice,
    expect: Expect = None,
    part: common.Part = None,
    as_json: common.Json = False,
) -> None:
    """Compile MODEL for any device, AUTO among them, and tell on which device each operation runs.

    As the compiled model tells it, with counters on (PERF_COUNT); nothing is run. Constants, inputs and outputs are no
    operations. Folded ones are named by no layer that runs: computed while compiling, removed, or part of others.

    Args:
        model: a model's file or an exported folder.
        device: the name of a device for compile_model.
        expect: devices and least shares of the operations, as --expect takes them.
        part: one model of a folder.
        as_json: print JSON.

    Raises:
        UserError: an option is wrong, the model cannot be read, or a device is missing.
        RunError: the device does not compile the model.
        typer.Exit: with status 1 where an expectation is not met.
    """
    wanted = [_expectation(text) for text in expect or ()]
    file = common.one_file(model, part, "compile")
    continue_in_child(f"compiling {model} for {device}")
    with console.result(as_json) as show:
        core = common.new_core()
        head, _, tail = device.partition(":")
        names = tail.split(",") if tail else [] if head in META_DEVICES else [head]
        for name in absent(core, [re.sub(r"^-|\(.*\)$", "", name.strip()) for name in names]):
            there = core.available_devices
            raise UserError(f"there is no {name!r} here, but {', '.join(there)}{closest_names(name, there)}")
        loaded = common.read_model(core, file)
        with console.progress(f"compiling {file} for {device}"):
            # With the fallback, the CPU would run the model until AUTO's device has compiled it.
            auto = {"ENABLE_STARTUP_FALLBACK": False} if head == "AUTO" else {}
            try:
                compiled = core.compile_model(loaded, device, {"PERF_COUNT": True, **auto})
            except RuntimeError as error:
                raise RunError(f"{device} does not compile the model: {one_line(error)}") from error
            result = what_runs_where(compiled, loaded)
        data, count, results = result.to_dict(), len(result.counted), []
        lines = [f"{file} on {device}: {console.count(count, 'operation')}"]
        if len(result.devices) > 1:
            lines += terminal_picture(operations_of(loaded), Placement((*result.devices,), data["operations"]))
        lines.append(str(result))
        for name, percent in wanted:
            on = result.on(name)
            met = 100 * on >= percent * count > 0
            results.append({"device": name, "percent": percent, "operations": on, "met": met})
            lines += [] if met else [f"expected at least {percent:g}% on {name}: {on:,} of {count:,} run there"]
        show({"device": device, **data, "expected": results}, "\n".join(lines))
        if len(result.devices) > 1 and Placement.of(loaded) is not None:
            show.next("verify", model, *given("--device"))
    if not all(one["met"] for one in results):
        raise typer.Exit(1)


def _expectation(text: str) -> tuple[str, float]:
    """Parses DEVICE=N% into the device and the percentage. Raises UserError where it is malformed."""
    match = re.fullmatch(r"([A-Za-z]\w*(?:\.\w+)*)=([0-9]{1,3}(?:\.[0-9]{1,6})?)%", text.strip(), re.ASCII)
    if not match or not 0 < float(match[2]) <= 100:
        raise UserError(f"--expect takes a device and a share of the operations, such as GPU=80%, got '{text}'")
    return match[1], float(match[2])


COMMAND = Command(where, position=70, example="ov-hsdag where model.xml --device AUTO --expect GPU=80%")
