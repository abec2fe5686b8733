"""`ov-hsdag run`: run a program in which every load on HETERO places the model first."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ov_hsdag.cli import _common as common
from ov_hsdag.cli import console
from ov_hsdag.cli.command import Command
from ov_hsdag.costs.profile import Profile
from ov_hsdag.integration.device_name import AUTO_VARIABLE, LOG_VARIABLE
from ov_hsdag.problem.problem import check_objective
from ov_hsdag.utils.errors import UserError

Program = Annotated[
    list[str],
    typer.Argument(metavar="PROGRAM [ARGUMENT...]", help="A Python script, or a program that is written in Python."),
]
Measure = Annotated[
    bool, typer.Option("--measure", help="Measure candidates at the first load of a model, for a minute at most.")
]


def run(
    program: Program,
    objective: common.Objective = "latency",
    measure: Measure = False,
    memory: common.Memory = None,
    profile: common.ProfileFile = None,
) -> None:
    """Run PROGRAM so that each model that it compiles for HETERO, and that nobody has placed, is placed at its load.

    Placements are kept for the loads that follow. What was placed is told on standard error when PROGRAM has ended; the
    exit status is that of PROGRAM.

    Args:
        program: the program or script, and its arguments.
        objective: "latency" or "throughput".
        measure: measure candidates at the first load of a model.
        memory: limits of devices, as --memory takes them.
        profile: file of a device profile; None for built-in profiles.

    Raises:
        UserError: an option is wrong, or there is no such program.
        typer.Exit: with the exit status of the program.
    """
    check_objective(objective)
    if profile is not None:
        Profile.load(profile)
    command = _command(program)
    with tempfile.TemporaryDirectory(prefix="ov_hsdag-run-") as folder:
        log = Path(folder) / "loads"
        settings = {
            AUTO_VARIABLE: objective,
            LOG_VARIABLE: str(log),
            "OV_HSDAG_MEASURE": "1" if measure else "",
            "OV_HSDAG_MEMORY": memory or "",
            "OV_HSDAG_PROFILE": "" if profile is None else str(profile.absolute()),
        }
        status = _status(subprocess.call(command, env={**os.environ, **settings}))
        loads = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []
    for line in _summary(loads):
        console.message(line)
    raise typer.Exit(status)


def _command(program: Sequence[str]) -> list[str]:
    """The words that start a program; a script is run by this Python. Raises UserError where there is none."""
    name, *arguments = program
    if Path(name).suffix == ".py":
        if not Path(name).is_file():
            raise UserError(f"there is no script '{name}'")
        return [sys.executable, name, *arguments]
    program_path = shutil.which(name)
    if program_path is None:
        raise UserError(f"there is no program '{name}' on PATH; a script's name ends in .py")
    return [program_path, *arguments]


def _status(code: int) -> int:
    """The exit status that a shell has for a program: 128 plus the signal's number where a signal ended it."""
    return code if code >= 0 else 128 - code


def _summary(loads: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each model and device list, in the order of their first loads."""
    if not loads:
        return ["ov-hsdag run: no model without a placement was compiled for HETERO or HSDAG"]
    lines: dict[tuple[object, ...], str] = {}
    for load in loads:
        if "failure" in load:
            lines.setdefault((load["model"], load["failure"]), f"{load['model']}: not placed: {load['failure']}")
            continue
        how = "kept from an earlier load" if load["reused"] else f"placed in {load['seconds']:.1f} s"
        where = f"; {load['file']}" if load["file"] else "; not kept"
        lines.setdefault((load["model"], load["file"]), f"{load['model']}: {load['summary']} ({how}{where})")
    return list(lines.values())


COMMAND = Command(
    run, position=90, example="ov-hsdag run --objective throughput service.py --port 8000", runs_program=True
)
