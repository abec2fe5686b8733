"""What a newcomer sees first: the command alone, examples that work, and `ov-hsdag doctor`."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
import typer.main

from ov_hsdag.cli import command_lines, console
from ov_hsdag.cli.app import COMMANDS, app
from ov_hsdag.cli.command_lines import command_line
from ov_hsdag.cli.commands import doctor
from ov_hsdag.cli.commands.doctor import NOTE, OK, PROBLEM, Check, diagnosis
from ov_hsdag.cli.commands.verify import _may_round
from ov_hsdag.devices.cpu import usable_cores
from ov_hsdag.devices.device_set import TRY_OUT
from ov_hsdag.devices.discovery import DeviceInfo
from ov_hsdag.devices.virtual import new_core
from ov_hsdag.policy import bundle, tuned
from ov_hsdag.utils.errors import RunError, UserError
from tests.commands import DEVICE, MAIN, PACKAGE, assert_one_error_line, ran, run, verified
from tests.conftest import ONE_CORE
from tests.graphs import random_numbers
from tests.processes import ended

CLICK_COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def checks() -> dict[str, Check]:
    return {check.what: check for check in diagnosis()}


def test_the_command_alone_shows_its_manual() -> None:
    alone, asked = run(), run("--help")
    assert alone.returncode == asked.returncode == 0
    assert alone.stdout.strip() == asked.stdout.strip()
    first = alone.stdout.index("ov-hsdag place model.onnx")
    assert first < alone.stdout.index("Options:") < alone.stdout.index("Commands:")


def test_every_command_has_an_example_whose_options_exist() -> None:
    assert [command.name for command in COMMANDS] == [*CLICK_COMMANDS]
    for command in COMMANDS:
        program, name, *arguments = shlex.split(command.example)
        assert (program, name) == ("ov-hsdag", command.name)
        CLICK_COMMANDS[name].make_context(name, arguments, resilient_parsing=False)
    assert "Example:\n    ov-hsdag strip" in run("strip", "--help").stdout


def test_every_command_has_its_place_in_the_help() -> None:
    assert len({command.position for command in COMMANDS}) == len(COMMANDS)
    listed = run("--help").stdout.partition("Commands:\n")[2].partition("\n\n")[0]
    shown = [line.split()[0] for line in listed.splitlines() if re.match(r"  \S", line)]
    assert shown == [command.name for command in COMMANDS if not command.hidden]


def test_a_machine_that_is_ready() -> None:
    done = run("doctor")
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("ready\n")
    assert "virtual devices: CPU_A, CPU_B" in done.stdout
    assert " of it free now" in checks()["memory"].found
    found = json.loads(run("doctor", "--json").stdout)
    assert found["ready"]
    assert all(check["fix"] for check in found["checks"] if check["state"] != OK)


def test_what_is_not_ready_comes_with_a_fix() -> None:
    done = run("doctor", OV_HSDAG_DISABLE="1")
    assert done.returncode == 1
    assert done.stdout.startswith("1 problem\n")
    assert "fix: unset OV_HSDAG_DISABLE" in done.stdout.replace("\n    ", " ")
    assert run("doctor", COLUMNS="0").returncode == 0
    done = run("doctor", OV_HSDAG_VIRTUAL_DEVICES="x", COLUMNS="30")
    assert done.returncode == 1
    assert "    fix: correct or unset OV_HSDAG_VIRTUAL_DEVICES" in done.stdout.splitlines()  # to be copied, whole


def test_hardware_without_its_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "renderD128").touch()
    core = new_core()

    def gpu() -> Check | None:
        return {check.what: check for check in doctor._devices(core)}.get("GPU")

    monkeypatch.setattr(doctor, "_HARDWARE", (("GPU", str(tmp_path), "renderD*", "the driver"),))
    found = gpu()
    assert found and (found.state, found.fix) == (PROBLEM, "install the driver")
    monkeypatch.setattr(os, "access", lambda *_: False)
    found = gpu()
    assert found and "may not be opened" in found.found
    monkeypatch.setattr(doctor, "_HARDWARE", (("GPU", str(tmp_path / "none"), "renderD*", "the driver"),))
    assert gpu() is None


def test_two_discrete_gpus_come_with_what_to_try() -> None:
    class Cards:
        """A Core with a discrete GPU, and a second one of a kind."""

        available_devices = ("CPU", "GPU.0", "GPU.1")

        def __init__(self, kind: str) -> None:
            self.kinds = {"GPU.0": "Type.DISCRETE", "GPU.1": kind}

        def get_property(self, device: str, key: str) -> str | None:
            return {"FULL_DEVICE_NAME": device, "DEVICE_TYPE": self.kinds.get(device)}.get(key)

    for kind, states in (("Type.DISCRETE", [NOTE]), ("Type.INTEGRATED", [])):
        found = [one for one in doctor._devices(Cards(kind)) if one.what == "two GPUs"]  # type: ignore[arg-type]
        assert [one.state for one in found] == states
        assert all("GPU.0 and GPU.1" in one.found and "HETERO:GPU.0,CPU" in one.fix for one in found)


def test_doctor_names_the_policy_that_place_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    virtual = f"CPU_A:{ONE_CORE};CPU_B:{ONE_CORE}"
    monkeypatch.setenv("OV_HSDAG_VIRTUAL_DEVICES", virtual)
    monkeypatch.setenv(tuned.VARIABLE, str(tmp_path))
    core = new_core()
    assert doctor._policy(core).found.endswith("ships with the package")
    tuned.keep(bundle.find(None), core, ("CPU_A", "CPU_B"))
    folder = tuned.find(core, ("CPU_A", "CPU_B"))
    assert doctor._policy(core) == Check(
        "policy", OK, f"{folder}, fine-tuned on HETERO:CPU_A,CPU_B; place --policy base leaves it aside"
    )


def test_no_hook_and_no_folder_for_measuring(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "_PROBE", "print(False)")
    hook = doctor._hook()
    assert hook.state == PROBLEM and "python -m ov_hsdag" in hook.fix

    def refuse() -> None:
        raise RunError("there is no folder for temporary files")

    monkeypatch.setattr(doctor, "require_temporary_folder", refuse)
    assert doctor._measuring().state == PROBLEM


def test_a_busy_machine_and_a_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (64.0 * (os.cpu_count() or 1), 0.0, 0.0))
    found, cores = doctor._measuring(), usable_cores()
    assert found.state == NOTE and found.found.startswith(f"{cores}.0 of {cores} cores are at work")

    def missing() -> Path:
        raise UserError("there is no extension library for OpenVINO 2026.4.1 yet: run: ov-hsdag extension --build")

    monkeypatch.setattr(doctor, "extension_path", missing)
    found = doctor._extension()
    assert (found.state, found.fix) == (NOTE, "ov-hsdag extension --build")


def test_warnings_of_libraries_about_themselves_are_not_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    console.one_line_warnings()
    show, folder = warnings.showwarning, "/opt/app/lib/python3.12/site-packages"
    for path in (f"{folder}/torch/jit/_script.py", f"{folder}/tensorflow/__init__.py"):
        show("use something else", FutureWarning, path, 1)
    show("there was no time", UserWarning, f"{folder}/ov_hsdag/placing/place.py", 1)
    assert capsys.readouterr().err == "warning: there was no time\n"


def test_every_command_is_quiet_or_verbose_when_asked() -> None:
    for name, command in CLICK_COMMANDS.items():
        options = {option for parameter in command.params for option in parameter.opts}
        assert {"--quiet", "-q", "--verbose", "-v", "--debug"} <= options, name
    both = run("devices", "--quiet", "--verbose")
    assert (both.returncode, both.stdout) == (2, "")
    assert both.stderr == "error: --quiet and --verbose ask for less and for more: give one of them\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.parametrize("arguments", [(), ("devices",), ("devices", "--json")])
def test_a_full_disk_under_standard_output_is_one_line(arguments: tuple[str, ...]) -> None:
    code = f"import os, sys; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); {MAIN}"
    done = run(*arguments, code=code)
    assert done.returncode == 1
    assert done.stderr == "error: cannot write to standard output: its disk is full\n"


def test_hints_come_last_and_not_with_quiet_or_json(model: Path, tmp_path: Path) -> None:
    placed = tmp_path / "it's placed.xml"
    options = ("--device", "HETERO:CPU_A,CPU_B", "--no-measure", "--output", placed)
    told = run("place", model, *options)
    *_, use, following = told.stdout.splitlines()
    assert use == f"run with: openvino.Core().compile_model({str(placed)!r}, 'HETERO:CPU_A,CPU_B')"
    assert following.startswith("next: ov-hsdag ")
    words = shlex.split(following.removeprefix("next: "))
    assert words == ["ov-hsdag", "verify", str(placed), "--device", "HETERO:CPU_A,CPU_B"]
    quiet = run("place", model, *options, "--quiet")
    assert (quiet.returncode, quiet.stderr) == (0, "")
    assert quiet.stdout == told.stdout.partition("* chosen.")[0]
    assert "next" not in run("place", model, *options, "--json").stdout


def test_messages_name_what_was_typed(model: Path) -> None:
    assert_one_error_line(run("place", model), "Missing option '--device' / '-d' (see ov-hsdag place --help)")
    assert_one_error_line(run("verfy"), "Did you mean 'verify'?", "(see ov-hsdag --help)")
    for command in (("show",), ("verify", "--device", "HETERO:CPU_B,CPU_A")):
        device = command[-1] if len(command) > 1 else "HETERO:CPU_A,CPU_B"
        again = f"carries no placement; run: ov-hsdag place {model} --device {device}"
        assert_one_error_line(run(command[0], model, *command[1:]), again)
    assert_one_error_line(run("bench", model, "--device", "HETERO:GPU,CPU_A"), "no GPU; it has CPU, CPU_A, CPU_B")


def test_outputs_that_differ_are_compared_strictly_next() -> None:
    differs = {"equal": False, "differing": ["y"], "varying": [], "device": "HETERO:CPU_A,CPU_B"}
    assert _may_round(differs)
    assert _may_round({**differs, "operation_by_operation": {"wrong": ["HETERO:CPU_A,CPU_B", "CPU_A"]}})
    assert not _may_round({**differs, "operation_by_operation": {"wrong": ["CPU_A"]}})
    assert not _may_round({**differs, "equal": True, "differing": []})


def test_random_numbers_are_not_compared(tmp_path: Path) -> None:
    printed = " ".join(verified(random_numbers(), tmp_path).split())
    assert "NOT VERIFIED: " in printed and printed.endswith(
        ": a single device gives other values when the same inputs run once more"
    )


def test_a_placement_for_another_machine_is_explained_next(model: Path, tmp_path: Path) -> None:
    done = ran("place", model, "--device", "HETERO:GPU,CPU", "--output", tmp_path / "placed.xml")
    assert done.stdout.splitlines()[-1] == f"next: ov-hsdag explain {tmp_path / 'placed.xml'}"


def test_calibrating_is_advised_where_there_are_two_devices() -> None:
    advised = "ov-hsdag calibrate --device HETERO:CPU_A,CPU_B --output machine.json"
    assert advised in run("doctor").stdout.replace("\n    ", " ")
    assert "calibrate" not in run("doctor", OV_HSDAG_VIRTUAL_DEVICES="").stdout


def test_verbose_tells_the_phases_of_placing_with_their_times(model: Path, tmp_path: Path) -> None:
    where = ("--device", "HETERO:CPU_A,CPU_B", "--output", tmp_path / "placed.xml")
    done = ran("place", model, *where, "--no-measure", "--search-seconds", 0.2, "--verbose")
    lines = done.stderr.splitlines()
    assert lines and all(re.fullmatch(r"took \d+\.\d\d s: (reading|placing|writing) .+", line) for line in lines)
    steps = [line.partition(" s: ")[2] for line in lines]
    for step in (f"reading {model}", f"placing {model} on HETERO:CPU_A,CPU_B", f"writing {tmp_path / 'placed.xml'}"):
        assert step in steps
    (searching,) = [line for line in lines if line.endswith(": searching")]
    assert float(searching.split()[1]) >= 0.2
    assert "took" not in done.stdout


def test_what_stands_for_the_model_is_the_one_that_is_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert command_lines.model_here() == "model.onnx"
    (tmp_path / "mine.onnx").touch()
    (tmp_path / "mine_placed.xml").touch()
    assert command_lines.model_here() == "mine.onnx"
    (tmp_path / "other.tflite").touch()
    assert command_lines.model_here() == "model.onnx"


def device(name: str, kind: str | None, *, virtual: bool = False) -> DeviceInfo:
    return DeviceInfo(name, name, kind, virtual, (), None)


def test_the_first_placing_is_on_all_devices_that_there_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    cpu, gpu, npu = device("CPU", "CPU"), device("GPU", "GPU"), device("NPU", "NPU")
    place = "ov-hsdag place model.onnx --device HETERO:"
    assert command_lines.first_placing([cpu, gpu, npu]) == f"{place}GPU,NPU,CPU"
    parts = [device(name, "CPU", virtual=True) for name in ("CPU_A", "CPU_B")]
    assert command_lines.first_placing([cpu, *parts]) == f"{place}CPU_A,CPU_B"
    assert command_lines.first_placing([cpu]) == f"{TRY_OUT} && {place}CPU_A,CPU_B"
    assert command_lines.options({"--a": None, "--b": ["x", "y"], "--c": 3}) == ["--b", "x", "--b", "y", "--c", 3]


WAY = ["doctor", "place", "verify", "explain", "report"]

WRAPPER = """#!/bin/sh
# The time for measuring is what a test has; everything else is as it was typed.
case "$1" in place) set -- "$@" --measure-seconds 4;; esac
exec "{python}" -c "{main}" "$@"
"""


def write_onnx(path: Path) -> None:
    """Two branches of convolutions, written as an exporter writes them."""
    random, nodes, weights = np.random.default_rng(0), [], []

    def convolution(data: str, inputs: int, name: str) -> str:
        values = random.standard_normal((16, inputs, 3, 3)).astype(np.float32) / 12
        weights.append(onnx.numpy_helper.from_array(values, f"{name}.weight"))
        nodes.append(
            onnx.helper.make_node("Conv", [data, f"{name}.weight"], [f"{name}.out"], name=name, pads=[1, 1, 1, 1])
        )
        nodes.append(onnx.helper.make_node("Relu", [f"{name}.out"], [f"{name}.relu"], name=f"{name}/relu"))
        return f"{name}.relu"

    stem = convolution("image", 3, "stem")
    nodes.append(onnx.helper.make_node("Add", [convolution(stem, 16, n) for n in ("left", "right")], ["out"], name="+"))
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, channels, 32, 32])
        for name, channels in (("image", 3), ("out", 16))
    ]
    graph = onnx.helper.make_graph(nodes, "model", ends[:1], ends[1:], weights)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="needs a shell")
def test_the_next_command_can_be_typed_where_a_file_begins_with_a_dash() -> None:
    assert command_line("verify", Path("-dash.xml"), "--device", "-d") == "ov-hsdag verify ./-dash.xml --device -d"
    assert command_line("verify", Path("/tmp/-dash.xml")) == "ov-hsdag verify /tmp/-dash.xml"


def test_names_of_models_as_long_as_a_file_may_have_are_placed(model: Path, tmp_path: Path) -> None:
    long = tmp_path / f"{'a' * 245}.xml"
    for suffix in (".xml", ".bin"):
        shutil.copy(model.with_suffix(suffix), long.with_suffix(suffix))
    ran("place", long, "--device", DEVICE, "--no-measure", "--output", tmp_path / "placed.xml")
    failed = run("place", tmp_path / f"{'b' * 300}.xml", "--device", DEVICE)
    assert failed.returncode == 2 and failed.stderr.startswith("error: no such model: ")


@pytest.mark.slow
def test_each_command_leads_to_the_next(tmp_path: Path) -> None:
    """From `ov-hsdag` alone and an ONNX file to the end of the way, each command as the one before printed it."""
    folder, programs = tmp_path / "work", tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    write_onnx(folder / "own model.onnx")
    program = programs / "ov-hsdag"
    program.write_text(WRAPPER.format(python=sys.executable, main=MAIN))
    program.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, [PACKAGE, os.environ.get("PYTHONPATH")])),
    }
    environment.pop("OV_HSDAG_VIRTUAL_DEVICES", None)
    typed, command = [], "ov-hsdag"
    exported = ""  # what the newcomer's shell keeps
    while command:
        typed.append(command)
        done = ended("sh", "-c", exported + command, cwd=folder, env=environment)
        exported += f"{command.partition(' && ')[0]}; " if command.startswith("export ") else ""
        last = done.stdout.splitlines()[-1].strip()
        command = last.removeprefix("next: ") if last.startswith("next: ") else ""
        assert command not in typed
    words = [shlex.split(line.partition(" && ")[2] or line) for line in typed]
    assert words[0] == ["ov-hsdag"]
    assert [line[1] for line in words[1:]] == WAY
    assert "<html" in (folder / "report.html").read_text(encoding="utf-8")
    assert words[2][2] == "own model.onnx" and words[3][2] == words[4][2] == "own model_placed.xml"
