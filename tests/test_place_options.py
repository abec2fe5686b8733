"""An option of placing stands in one place, and every way to place has it."""

from __future__ import annotations

import argparse
import inspect
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
import typer

import ov_hsdag
from ov_hsdag.cli import command_lines, remote
from ov_hsdag.cli.app import app
from ov_hsdag.cli.commands.place import place as place_command
from ov_hsdag.integration import converters
from ov_hsdag.jobs.job import Inputs
from ov_hsdag.model.placement import Placement
from ov_hsdag.model.workload import Workload
from ov_hsdag.placing import selection
from ov_hsdag.placing.options import PlaceOptions, flags
from ov_hsdag.placing.request import settings_of
from ov_hsdag.utils.errors import UserError
from tests.graphs import convolutions, random_model

WITHOUT_FLAG = {"costs"}  # of Python alone: measured costs lie beside a model


def test_the_command_has_a_flag_for_each_option() -> None:
    assert {one.name for one in fields(PlaceOptions)} - flags().keys() == WITHOUT_FLAG
    assert flags().keys() <= inspect.signature(place_command).parameters.keys()


def test_python_takes_each_option_by_name_and_refuses_others() -> None:
    options = PlaceOptions.of(PlaceOptions(context=64, objective="throughput"), {"context": 32, "measure": False})
    assert (options.context, options.objective, options.measure) == (32, "throughput", False)
    flat = inspect.signature(ov_hsdag.place).parameters
    assert flat["more"].kind is inspect.Parameter.VAR_KEYWORD
    assert flat.keys() - {"model", "device", "core", "report", "options", "more"} <= flags().keys()
    with pytest.raises(TypeError, match="there is no option 'contexts' of placing"):
        PlaceOptions.of(None, {"contexts": 64})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"memory": "3"}, r"memory must be Mapping\[str, int or str\] or None, got '3'"),
        ({"workload": 3}, "workload must be Workload or str or None, got 3"),
        ({"context": "x"}, "context must be int or None, got 'x'"),
        ({"search_seconds": "x"}, "search_seconds must be float or None, got 'x'"),
        ({"shapes": [1]}, r"shapes must be Mapping\[str, Sequence\[int\]\] or None, got \[1\]"),
        ({"affinity": 3}, r"affinity must be Mapping\[str, str\] or Placement or str or PathLike\[str\]"),
        ({"profile": 3}, "profile must be Profile or str"),
        ({"policy": 3}, "policy must be str or PathLike"),
        ({"measure": "x"}, "measure must be bool or None, got 'x'"),
    ],
)
def test_values_of_other_types_are_refused(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        ov_hsdag.place(random_model(1), "HETERO:GPU,CPU", **given)


def test_numbers_that_make_no_sense_are_refused() -> None:
    for batch, expected in ((0, "batch must be at least 1, got 0"), ("x", "batch must be int, got 'x'")):
        with pytest.raises(UserError, match=expected):
            ov_hsdag.fit(random_model(1), "HETERO:GPU,CPU", batch=batch)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="seconds must be at least 0, got -1"):
        ov_hsdag.calibrate("CPU", seconds=-1)
    with pytest.raises(UserError, match=r"takes a model in memory and got 3"):
        ov_hsdag.calibrate("CPU", [3])  # type: ignore[list-item]


def test_a_job_for_another_machine_gets_each_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values: dict[str, Any] = {
        name: [f"{name}=1", f"{name}=2"]
        if flag.several
        else {bool: False, int: 7, float: 1.5, str: name, "file": tmp_path / f"{name}.json"}[flag.kind]
        for name, flag in flags().items()
    }
    values["inputs"] = [f"x={tmp_path / 'first.npy'}", f"y={tmp_path / 'second.png'}"]
    for name, flag in flags().items():
        if flag.kind == "file":
            values[name].write_text("{}")
    for file in ("first.npy", "second.png"):
        (tmp_path / file).write_bytes(b"")
    given = []
    for name, flag in flags().items():
        text = f"--{(flag.name or name).replace('_', '-')}"
        if flag.kind is bool:
            given.append(text.replace("--", "--no-"))
        for value in [] if flag.kind is bool else values[name] if flag.several else [values[name]]:
            given += [text, str(value)]
    command = typer.main.get_command(app).commands["place"]  # type: ignore[attr-defined]
    inputs = Inputs()
    more = ["--device", "HETERO:gpu,CPU", "--json", "--ray", "auto", "--verbose"]
    context = command.make_context("place", ["model.xml", *given, *more])
    monkeypatch.setattr(command_lines, "running", context)
    words = remote.words(inputs, ["in0/model.xml"], {"--output": "out/placed.xml"})
    assert words[:2] == ["place", "in0/model.xml"]
    assert words[-3:] == ["--output", "out/placed.xml", "--json"]
    assert words[words.index("--device") + 1] == "HETERO:GPU,CPU"
    assert "--verbose" in words
    assert "--ray" not in words
    for name, flag in flags().items():
        text = f"--{(flag.name or name).replace('_', '-')}"
        if flag.kind is bool:
            assert text.replace("--", "--no-") in words
        else:
            assert words.count(text) == (2 if flag.several else 1)
    samples = [words[number + 1].partition("=")[2] for number, word in enumerate(words) if word == "--input"]
    files = {words[words.index(f"--{name}") + 1] for name in ("profile", "affinity")} | set(samples)
    assert files == set(inputs.files) and len(files) == 2 + len(samples) == 4
    context = command.make_context("place", ["model.xml", "--device", "HETERO:GPU,CPU"])
    monkeypatch.setattr(command_lines, "running", context)
    assert remote.words(Inputs(), [], {}) == ["place", "--device", "HETERO:GPU,CPU", "--json"]


def test_the_recorded_command_has_each_option_that_was_given() -> None:
    given: dict[str, Any] = {
        "objective": "throughput",
        "profile": Path("folder/speeds.json"),
        "policy": "folder/tuned",
        "affinity": Path("folder/affinity.json"),
        "pin": {"type:Softmax": "CPU", "layer.*": "GPU"},
        "experts": "CPU:2",
        "memory": {"CPU": 1 << 30},
        "shapes": {"x": np.array([1, 8]), "y": [2]},
        "inputs": {"x": ["folder/a.npy", Path("folder/b.npz")], "y": "c.png", "z": np.ones(2)},
        "static": True,
        "workload": Workload.parse("prompt=16,generate=4"),
        "context": 64,
        "kv_precision": "u8",
        "measure": False,
        "measure_seconds": 5.5,
        "search_seconds": 2.5,
    }
    expected = given | {
        "profile": Path("speeds.json"),
        "policy": "tuned",
        "affinity": Path("affinity.json"),
        "pin": ["type:Softmax=CPU", "layer.*=GPU"],
        "memory": f"CPU={1 << 30}",
        "shapes": ["x=[1,8]", "y=[2]"],
        "inputs": ["x=a.npy", "x=b.npz", "y=c.png"],
        "workload": "prompt=16,generate=4,batch=1",
    }
    assert given.keys() == flags().keys(), "an option without a value here"
    model = random_model(1)
    affinity = {node.get_friendly_name(): "CPU" for node in model.get_ops()}
    settings = settings_of(PlaceOptions(**given), given["memory"], ("GPU", "CPU"))
    Placement(("GPU", "CPU"), affinity, "throughput", chosen="affinity", settings=settings).embed(model)
    recorded = Placement.of(model)
    assert recorded is not None
    words = shlex.split(command_lines.command_of(recorded))
    assert words[:3] == ["ov-hsdag", "place", "MODEL"]
    command = typer.main.get_command(app).commands["place"]  # type: ignore[attr-defined]
    typed = command.make_context("place", words[2:]).params
    assert {name: typed[name] for name in flags()} == expected
    assert typed["device"] == "HETERO:GPU,CPU"


def test_options_that_were_not_given_are_not_in_the_recorded_command() -> None:
    model = random_model(1)
    placement = ov_hsdag.place(model, "HETERO:GPU,CPU", policy="none")
    assert command_lines.command_of(placement) == (
        "ov-hsdag place MODEL --device HETERO:GPU,CPU --objective latency --policy none --no-measure"
    )
    given = ov_hsdag.place(model, "HETERO:GPU,CPU", affinity=placement)
    assert not command_lines.command_of(given), "what was given in memory is in no file"


def test_converters_have_the_options_that_are_for_them() -> None:
    parser = converters.wrap_parser(argparse.ArgumentParser, lambda _: "model.xml")()
    shown = parser.format_help()
    assert all((f"--placement_{name}" in shown) == flag.converters for name, flag in flags().items())


def test_measuring_keeps_its_share_of_a_budget_that_calibrating_overran(
    two_cpu_core: ov.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where one compilation takes longer than all of it."""
    left: list[float] = []

    def select(*arguments: Any, seconds: float, **options: Any) -> selection.Result:
        left.append(seconds)
        return selection.Result({}, None, {})

    monkeypatch.setattr(selection, "select", select)
    options = {"measure": True, "measure_seconds": 0.01, "policy": "none"}
    ov_hsdag.place(convolutions(8), "HETERO:CPU_A,CPU_B", core=two_cpu_core, **options)
    assert left == [pytest.approx(0.006)]
