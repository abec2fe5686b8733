"""Command lines as people type them: the running one, and those that commands propose to run next.

"Words" are the parts of a command line after "ov-hsdag", before they are quoted for a shell.
"""

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
    """Joins words to a command line of ov-hsdag, quoted for a shell where necessary.

    words: those after "ov-hsdag". Pass paths as `Path`: one that begins with a dash gets "./" in front, so that it is
    not read as an option.
    """
    return shlex.join(["ov-hsdag", *map(_word, words)])


def _word(word: object) -> str:
    """Returns a word as text; a path that begins with a dash gets "./" in front."""
    return f"./{word}" if isinstance(word, Path) and str(word).startswith("-") else str(word)


def again(*more: str, without: Collection[str] = ()) -> list[str]:
    """Returns the words of the running command, with the words `more` added and the flags `without` removed."""
    return [*(word for word in sys.argv[1:] if word not in without), *more]


def command_of(placement: Placement) -> str:
    """Returns the command line that makes a placement again, from the settings that the placement records.

    MODEL stands for the model's path, which the settings do not have. The result is "" where the settings do not
    suffice: for placements of a plan, and for affinities that were given in Python.
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
    """Makes the words of a command line for one option of placing.

    Args:
        flag: describes the option.
        word: the option as it is typed, "--shape".
        value: its value, as `Placement.settings` records it; None where it was not given.

    Returns:
        The words; [] where the option was not given.
    """
    if isinstance(value, bool):
        return [word if value else word.replace("--", "--no-", 1)]
    if isinstance(value, Mapping):
        each = [sized(name, one) if isinstance(one, list) else f"{name}={one}" for name, one in value.items()]
        value = each if flag.several else ",".join(each)
    return options({word: value})


def options(given: Mapping[str, object]) -> list[object]:
    """Makes the words of a command line for options.

    given: values by option as it is typed ("--shape"). A list repeats the option for each item; None omits it.
    """
    words: list[object] = []
    for name, value in given.items():
        for item in value if isinstance(value, list | tuple) else [value]:
            words += [name, item] if item is not None else []
    return words


running: typer.Context | None = None
"""Click's context of the running command, which knows the options that were given; None where a function was called
from Python."""


def given(*flags: str) -> list[object]:
    """Repeats some options of the running command as words, as far as they were given. flags: such as "--shape"."""
    return options({option.opts[0]: value for option, value in given_options() if option.opts[0] in flags})


def given_options() -> Iterator[tuple[Any, Any]]:
    """Yields the options that were given to the running command, each as click's parameter object and its value.

    Yields nothing where a command's function was called from Python.
    """
    for option in [] if running is None else running.command.params:
        source = running.get_parameter_source(option.name or "") if running else None
        if running and option.param_type_name == "option" and source is not None and source.name != "DEFAULT":
            yield option, running.params[option.name or ""]


def model_here() -> str:
    """Names a model for an example command: the only unplaced one in the current folder, else "model.onnx"."""
    with contextlib.suppress(OSError):
        here = [path.name for path in Path().iterdir() if path.suffix in _MODELS]
        sources = [name for name in here if not name.endswith("_placed.xml")]
        if len(sources) == 1:
            return sources[0]
    return "model.onnx"


def place_it(model: Path, core: ov.Core, device: str | None = None) -> str:
    """Advises to place a model first, for the end of an error message.

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
    """Returns names of devices in the order of a proposed HETERO list, see `_ORDER`.

    Where there are virtual devices, these alone are returned, in the given order.
    """
    virtual = [device.name for device in devices if device.virtual]
    order = sorted(devices, key=lambda device: _ORDER.index(device.kind if device.kind in _ORDER else None))
    return virtual or [device.name for device in order]


def first_placing(devices: Sequence[DeviceInfo], model: Path | None = None) -> str:
    """Proposes the command line that places a model on the devices of a machine.

    On a machine with a single device, a command that declares two virtual devices comes before it.

    Args:
        devices: the machine's devices.
        model: the model; None for `model_here()`.
    """
    named, names = model or model_here(), in_order(devices)
    if len(names) > 1:
        return command_line("place", named, "--device", f"HETERO:{','.join(names)}")
    return f"{TRY_OUT} && {command_line('place', named, '--device', 'HETERO:CPU_A,CPU_B')}"
