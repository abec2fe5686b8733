"""Command lines as people type them: the one that is running, and the next ones that commands propose."""

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

# Endings of files that are surely models; .pb or .json may be anything.
_MODELS = (".onnx", ".tflite", ".pdmodel", ".xml")

# Kinds of devices in the order in which a proposed HETERO list has them; None stands for all other kinds.
_ORDER = ("GPU", "NPU", None, "CPU")


def command_line(*words: object) -> str:
    """A command line of ov-hsdag, quoted for a shell where necessary.

    words: those after "ov-hsdag". Pass paths as `Path`: one that begins with a dash gets "./" in front, so that it is
    not read as an option.
    """
    return shlex.join(["ov-hsdag", *map(_word, words)])


def _word(word: object) -> str:
    """One word of a command line, before quoting."""
    return f"./{word}" if isinstance(word, Path) and str(word).startswith("-") else str(word)


def again(*more: str, without: Collection[str] = ()) -> list[str]:
    """Words after "ov-hsdag" of the running command, with `more` added and the flags `without` removed."""
    return [*(word for word in sys.argv[1:] if word not in without), *more]


def command_of(placement: Placement) -> str:
    """The command that makes a placement again, from the settings that a model carries; MODEL stands for its path.

    "" where these do not suffice: for placements of a plan, and for affinities that were given in Python.
    """
    made_with = placement.settings
    if made_with is None or made_with.get("command") == "plan" or placement.chosen == "given":
        return ""  # the command of a plan names other models as well
    if placement.chosen == "affinity" and "affinity" not in made_with:
        return ""  # the affinities were given in memory
    words: list[object] = ["--device", placement.hetero]
    for name, flag in flags().items():
        value = placement.objective if name == "objective" else made_with.get(name)
        words += _words_of(flag, flag.word(name), value)
    return command_line(made_with.get("command", "place"), "MODEL", *words)


def _words_of(flag: Flag, word: str, value: Any) -> list[object]:
    """The words of a command line for one option of placing; [] where it was not given.

    word: the option, "--shape"; value: as `Placement.settings` records it.
    """
    if isinstance(value, bool):
        return [word if value else word.replace("--", "--no-", 1)]
    if isinstance(value, Mapping):
        each = [sized(name, one) if isinstance(one, list) else f"{name}={one}" for name, one in value.items()]
        value = each if flag.several else ",".join(each)
    return options({word: value})


def options(given: Mapping[str, object]) -> list[object]:
    """The words of a command line for options. given: values by option; a list repeats the option, None omits it."""
    words: list[object] = []
    for name, value in given.items():
        for item in value if isinstance(value, list | tuple) else [value]:
            words += [name, item] if item is not None else []
    return words


running: typer.Context | None = None
"""Click's context of the running command, which knows the options that were given; None where a function was called
from Python."""


def given(*flags: str) -> list[object]:
    """The words of those options that were given to the running command. flags: options by their first names."""
    return options({option.opts[0]: value for option, value in given_options() if option.opts[0] in flags})


def given_options() -> Iterator[tuple[Any, Any]]:
    """The options that were given to the running command: click's own objects, and their values."""
    for option in [] if running is None else running.command.params:
        source = running.get_parameter_source(option.name or "") if running else None
        if running and option.param_type_name == "option" and source is not None and source.name != "DEFAULT":
            yield option, running.params[option.name or ""]


def model_here() -> str:
    """A model for an example command: the only unplaced one in the current folder, else "model.onnx"."""
    with contextlib.suppress(OSError):
        here = [path.name for path in Path().iterdir() if path.suffix in _MODELS]
        sources = [name for name in here if not name.endswith("_placed.xml")]
        if len(sources) == 1:
            return sources[0]
    return "model.onnx"


def place_it(model: Path, core: ov.Core, device: str | None = None) -> str:
    """The advice to place a model first, for the end of an error message.

    Args:
        model: its file or folder.
        core: lists the devices of this machine, which are proposed where the user named none.
        device: the devices that the user named.

    Returns:
        "run: " and a command line.
    """
    if device is None:
        return f"run: {first_placing(available(core), model)}"
    return f"run: {command_line('place', model, '--device', device)}"


def in_order(devices: Sequence[DeviceInfo]) -> list[str]:
    """Names of devices in the order of a proposed HETERO list: only virtual devices where there are any, else all."""
    virtual = [device.name for device in devices if device.virtual]
    order = sorted(devices, key=lambda device: _ORDER.index(device.kind if device.kind in _ORDER else None))
    return virtual or [device.name for device in order]


def first_placing(devices: Sequence[DeviceInfo], model: Path | None = None) -> str:
    """The command that places a model on the devices of a machine; with one device, after declaring two virtual ones.

    model: `model_here()` by default.
    """
    named, names = model or model_here(), in_order(devices)
    if len(names) > 1:
        return command_line("place", named, "--device", f"HETERO:{','.join(names)}")
    return f"{TRY_OUT} && {command_line('place', named, '--device', 'HETERO:CPU_A,CPU_B')}"
