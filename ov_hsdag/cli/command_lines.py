"""Command lines as people type them: the one that runs, and those that commands print for what comes next."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from ov_hsdag.devices.device_set import TRY_OUT
from ov_hsdag.devices.discovery import DeviceInfo, available
from ov_hsdag.model.placement import Placement
from ov_hsdag.model.shapes import sized
from ov_hsdag.placing.options import Flag, flags
from ov_hsdag.utils.lazy import ov

# Endings of files that are models for certain.
_MODELS = (".onnx", ".tflite", ".pdmodel", ".xml")

# Kinds of devices in the order in which HETERO is given them; others come before the CPU.
_ORDER = ("GPU", "NPU", None, "CPU")


def command_line(*words: object) -> str:
    """One of our commands as people type it. words: those after "ov-hsdag"; quoted for a shell where necessary.

    Paths are given as `Path`: one that begins with a dash would be read as an option, and is named from its folder.
    """
    return shlex.join(["ov-hsdag", *map(_word, words)])


def _word(word: object) -> str:
    """A word of a command line."""
    return f"./{word}" if isinstance(word, Path) and str(word).startswith("-") else str(word)


def again(*more: str, without: Collection[str] = ()) -> list[str]:
    """Words of the command that runs, after "ov-hsdag", with some more, and without some flags."""
    return [*(word for word in sys.argv[1:] if word not in without), *more]


def command_of(placement: Placement) -> str:
    """The command that makes a placement, without paths, as what is inside a model records it; "" where it does not."""
    made_with = placement.settings
    if made_with is None or made_with.get("command") == "plan" or placement.chosen == "given":
        return ""  # a plan's command names other models as well
    if placement.chosen == "affinity" and "affinity" not in made_with:
        return ""  # it was given in memory
    words: list[object] = ["--device", placement.hetero]
    for name, flag in flags().items():
        value = placement.objective if name == "objective" else made_with.get(name)
        words += _words_of(flag, flag.word(name), value)
    return command_line(made_with.get("command", "place"), "MODEL", *words)


def _words_of(flag: Flag, word: str, value: Any) -> list[object]:
    """Words that give an option of placing a value as it is recorded; none where it was not given."""
    if isinstance(value, bool):
        return [word if value else word.replace("--", "--no-", 1)]
    if isinstance(value, Mapping):
        each = [sized(name, one) if isinstance(one, list) else f"{name}={one}" for name, one in value.items()]
        value = each if flag.several else ",".join(each)
    return options({word: value})


def options(given: Mapping[str, object]) -> list[object]:
    """Words of options, from their values by name: a list is given value by value, and None not at all."""
    found: list[object] = []
    for name, value in given.items():
        for one in value if isinstance(value, list | tuple) else [value]:
            found += [name, one] if one is not None else []
    return found


running: typer.Context | None = None
"""Of the command that runs: click's own object, which knows what was given; None where a function was called."""


def given(*flags: str) -> list[object]:
    """Words of some options of the command that runs, by their first names, where they were given."""
    return options({option.opts[0]: value for option, value in given_options() if option.opts[0] in flags})


def given_options() -> Iterator[tuple[Any, Any]]:
    """The options that were given to the command that runs, click's own objects, and their values."""
    for option in [] if running is None else running.command.params:
        source = running.get_parameter_source(option.name or "") if running else None
        if running and option.param_type_name == "option" and source is not None and source.name != "DEFAULT":
            yield option, running.params[option.name or ""]


def model_here() -> str:
    """A model to name: the only one in the current folder that nobody placed, else "model.onnx"."""
    with contextlib.suppress(OSError):
        here = [path.name for path in Path().iterdir() if path.suffix in _MODELS]
        sources = [name for name in here if not name.endswith("_placed.xml")]
        if len(sources) == 1:
            return sources[0]
    return "model.onnx"


def place_it(model: Path, core: ov.Core, device: str | None = None) -> str:
    """What to do with a model that carries no placement, as the end of an error.

    Args:
        model: its file or folder.
        core: has the devices of this machine, which are proposed where none are named.
        device: the devices that the user named.
    """
    if device is None:
        return f"run: {first_placing(available(core), model)}"
    return f"run: {command_line('place', model, '--device', device)}"


def in_order(devices: Sequence[DeviceInfo]) -> list[str]:
    """Names of the devices of a machine as HETERO is given them: the virtual ones where there are some, else all."""
    virtual = [device.name for device in devices if device.virtual]
    order = sorted(devices, key=lambda device: _ORDER.index(device.kind if device.kind in _ORDER else None))
    return virtual or [device.name for device in order]


def first_placing(devices: Sequence[DeviceInfo], model: Path | None = None) -> str:
    """How to place a model on the devices of a machine; on virtual ones where it has some, or lacks a second one.

    model: by default `model_here`.
    """
    named, names = model or model_here(), in_order(devices)
    if len(names) > 1:
        return command_line("place", named, "--device", f"HETERO:{','.join(names)}")
    return f"{TRY_OUT} && {command_line('place', named, '--device', 'HETERO:CPU_A,CPU_B')}"
