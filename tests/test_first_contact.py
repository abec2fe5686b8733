"""What a newcomer sees first: the command alone, examples that work, and `ov-hsdag doctor`."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest
import typer.main

from ov_hsdag.cli import doctor
from ov_hsdag.cli.app import EXAMPLES, app
from ov_hsdag.cli.doctor import NOTE, OK, PROBLEM, Check, diagnosis
from ov_hsdag.utils.errors import RunError, UserError
from tests.test_cli import MAIN, run

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def checks() -> dict[str, Check]:
    return {check.what: check for check in diagnosis()}


def test_the_command_alone_shows_its_manual() -> None:
    alone, asked = run(), run("--help")
    assert alone.returncode == asked.returncode == 0
    assert alone.stdout.strip() == asked.stdout.strip()
    first = alone.stdout.index("ov-hsdag place model.onnx")
    assert first < alone.stdout.index("Options:") < alone.stdout.index("Commands:")


def test_every_command_has_an_example_whose_options_exist() -> None:
    assert {command.__name__ for command in EXAMPLES} == set(COMMANDS)
    for command, example in EXAMPLES.items():
        program, name, *arguments = shlex.split(example)
        assert (program, name) == ("ov-hsdag", command.__name__)
        COMMANDS[name].make_context(name, arguments, resilient_parsing=False)
    assert "Example:\n    ov-hsdag strip" in run("strip", "--help").stdout


def test_a_machine_that_is_ready() -> None:
    done = run("doctor")
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("ready\n")
    assert "virtual devices: CPU_A, CPU_B" in done.stdout
    found = json.loads(run("doctor", "--json").stdout)
    assert found["ready"]
    assert all(check["fix"] for check in found["checks"] if check["state"] != OK)


def test_what_is_not_ready_comes_with_a_fix() -> None:
    done = run("doctor", OV_HSDAG_DISABLE="1")
    assert done.returncode == 1
    assert done.stdout.startswith("1 problem\n")
    assert "fix: unset OV_HSDAG_DISABLE" in done.stdout.replace("\n    ", " ")
    done = run("doctor", OV_HSDAG_VIRTUAL_DEVICES="x")
    assert done.returncode == 1
    assert "correct or unset OV_HSDAG_VIRTUAL_DEVICES" in done.stdout.replace("\n    ", " ")


def test_hardware_without_its_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "renderD128").touch()
    monkeypatch.setattr(doctor, "_HARDWARE", (("GPU", str(tmp_path), "renderD*", "the driver"),))
    assert checks()["GPU"].state == PROBLEM
    assert checks()["GPU"].fix == "install the driver"
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "may not be opened" in checks()["GPU"].found
    monkeypatch.setattr(doctor, "_HARDWARE", (("GPU", str(tmp_path / "none"), "renderD*", "the driver"),))
    assert "GPU" not in checks()


def test_no_hook_and_no_folder_for_measuring(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "_PROBE", "print(False)")
    assert checks()["hook"].state == PROBLEM
    assert "python -m ov_hsdag" in checks()["hook"].fix

    def refuse() -> None:
        raise RunError("there is no folder for temporary files")

    monkeypatch.setattr("ov_hsdag.measuring.process.require_temporary_folder", refuse)
    assert checks()["measuring"].state == PROBLEM


def test_a_busy_machine_and_a_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (64.0 * (os.cpu_count() or 1), 0.0, 0.0))
    assert checks()["measuring"].state == NOTE

    def missing() -> Path:
        raise UserError("there is no extension library for OpenVINO 2026.4.1 yet: run: ov-hsdag extension --build")

    monkeypatch.setattr("ov_hsdag.integration.extension.extension_path", missing)
    found = checks()["library for C++ and benchmark_app"]
    assert (found.state, found.fix) == (NOTE, "ov-hsdag extension --build")


def test_every_command_is_quiet_or_verbose_when_asked() -> None:
    for name, command in COMMANDS.items():
        options = {option for parameter in command.params for option in parameter.opts}
        assert {"--quiet", "-q", "--verbose", "-v", "--debug"} <= options, name
    both = run("devices", "--quiet", "--verbose")
    assert (both.returncode, both.stdout) == (2, "")
    assert both.stderr == "error: --quiet and --verbose ask for less and for more: give one of them\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.parametrize("arguments", [(), ("--version",), ("place", "--help"), ("devices",), ("devices", "--json")])
def test_a_full_disk_under_standard_output_is_one_line(arguments: tuple[str, ...]) -> None:
    code = f"import os, sys; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); {MAIN}"
    done = run(*arguments, code=code)
    assert done.returncode == 1
    assert done.stderr == "error: cannot write to standard output: No space left on device\n"
