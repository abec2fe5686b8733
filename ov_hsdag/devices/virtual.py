"""Registers virtual CPU devices: OpenVINO's CPU plugin under further names, each with its properties.

So a machine with one CPU has several really different devices (threads, precision). They are declared in the
environment variable ``OV_HSDAG_VIRTUAL_DEVICES``::

    CPU_A:INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT=bf16;CPU_B:INFERENCE_NUM_THREADS=1,MEMORY=2GiB

All properties except ``MEMORY`` are OpenVINO's. ``MEMORY`` is the device's memory that placing counts with; the CPU
plugin does not know it.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ov_hsdag import _env
from ov_hsdag.devices.device_set import HETERO
from ov_hsdag.devices.memory import parse_amount
from ov_hsdag.devices.property_values import DEVICE_PROPERTIES, device_properties, listed_devices, names_in
from ov_hsdag.utils.errors import RunError, UserError, one_line, shortened
from ov_hsdag.utils.lazy import ov

VIRTUAL_DEVICES_VARIABLE = _env.VIRTUAL_DEVICES
"""Name of the environment variable with the declaration."""

MEMORY = "MEMORY"
"""Property of a virtual device that is not OpenVINO's: its memory, as "2GiB"."""

# Names that OpenVINO's CPU plugin accepts.
_VIRTUAL_NAME = re.compile(r"[A-Za-z0-9_]*CPU[A-Za-z0-9_]*")

# Longest declaration, in characters: OpenVINO gets values from it, and each declared device loads a plugin.
_LONGEST_DECLARATION = 10_000

_VIRTUAL_PRECISIONS = ("f32", "f16", "bf16")  # precisions in which a CPU can infer

# Properties that are taken from the definition in a placed model's file; all others are ignored.
_DEFINABLE_PROPERTIES = ("INFERENCE_NUM_THREADS", "INFERENCE_PRECISION_HINT", MEMORY)

# Properties that keep virtual devices apart in a split model, see docs/reference/profiles.md. HETERO sets
# EXCLUSIVE_ASYNC_REQUESTS on every submodel, which drops INFERENCE_NUM_THREADS. And pinned threads
# (`_VIRTUAL_DEFAULTS`) of two one-core devices are both on the machine's first core, so that the devices never run at
# the same time.
_SPLIT_MODEL_PROPERTIES = {"EXCLUSIVE_ASYNC_REQUESTS": False}

# Attribute of a Core with the plugins that were registered on it.
_PLUGINS_ATTRIBUTE = "_ov_hsdag_plugins"

_VIRTUAL_DEFAULTS = {"ENABLE_CPU_PINNING": "NO"}  # for the reason above


def virtual_devices(text: str | None = None) -> dict[str, dict[str, str]]:
    """Reads the declared virtual devices.

    Args:
        text: the declaration; by default that of ``OV_HSDAG_VIRTUAL_DEVICES``.

    Returns:
        Properties of each device, by its name.

    Raises:
        UserError: the text is malformed, a name is there twice or cannot be one of a CPU plugin, or a limit is bad.
    """
    source = VIRTUAL_DEVICES_VARIABLE if text is None else "the virtual devices in the placed model"
    try:
        return _parse(os.environ.get(VIRTUAL_DEVICES_VARIABLE, "") if text is None else text)
    except ValueError as error:
        raise UserError(f"{source}: {shortened(str(error), 500)}") from error


def _parse(text: str) -> dict[str, dict[str, str]]:
    """Reads a declaration, see `virtual_devices`. Raises ValueError if it is malformed, UserError for a bad MEMORY."""
    if not (text.isascii() and text.isprintable()) or len(text) > _LONGEST_DECLARATION:
        raise ValueError(
            f"expected at most {_LONGEST_DECLARATION} printable ASCII characters, such as CPU_A:INFERENCE_NUM_THREADS=1"
        )
    devices: dict[str, dict[str, str]] = {}
    for entry in filter(None, (part.strip() for part in text.split(";"))):
        name, _, tail = entry.partition(":")
        name = name.strip()
        if name == "CPU" or not _VIRTUAL_NAME.fullmatch(name):
            raise ValueError(
                f'"{name}" cannot name a virtual device; use letters, digits and "_" with CPU in it, such as CPU_A'
            )
        if name in devices:
            raise ValueError(f'"{name}" is declared twice; declare every device once')
        devices[name] = _parse_properties(name, tail)
    return devices


def _parse_properties(name: str, text: str) -> dict[str, str]:
    """Reads "KEY=VALUE,…", the properties of the device `name`. Raises the errors of `_parse`."""
    properties: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not key or not equals or not value:
            raise ValueError(f'"{item}" of {name} is not KEY=VALUE, such as INFERENCE_NUM_THREADS=1')
        if key in properties:
            raise ValueError(f"{name} has {key} twice; give every property once")
        if key == "INFERENCE_NUM_THREADS" and (not re.fullmatch(r"[0-9]{1,6}", value) or int(value) == 0):
            raise ValueError(f'{name} has INFERENCE_NUM_THREADS "{value}"; give a positive number of threads')
        if key == MEMORY:
            parse_amount(value, f"{name} has {MEMORY}")
        if key == "INFERENCE_PRECISION_HINT" and value not in _VIRTUAL_PRECISIONS:
            raise ValueError(
                f'{name} has INFERENCE_PRECISION_HINT "{value}"; use one of {", ".join(_VIRTUAL_PRECISIONS)}'
            )
        properties[key] = value
    return properties


def declared_memory(name: str) -> int | None:
    """Returns the bytes of memory that a virtual device declares; None if it declares none, or for other devices."""
    amount = virtual_devices().get(name, {}).get(MEMORY)
    return None if amount is None else parse_amount(amount, MEMORY)


def _openvino_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Selects the properties that the CPU plugin knows."""
    return {key: value for key, value in properties.items() if key != MEMORY}


def definition(names: Collection[str]) -> str:
    """Formats the declaration of those declared virtual devices that are among `names`; "" if there are none."""
    selected = {name: properties.items() for name, properties in virtual_devices().items() if name in names}
    return ";".join(f"{name}:{','.join(map('='.join, properties))}" for name, properties in selected.items())


def register_defined(core: ov.Core, text: str, names: Collection[str]) -> None:
    """Registers virtual devices that the file of a placed model defines and the environment does not declare.

    Args:
        core: the Core.
        text: result of `definition` where the model was placed; only threads, precision and memory are taken from it.
        names: names of the devices that are needed.

    Raises:
        UserError: the text is malformed, or the CPU plugin refuses a property.
        RunError: the plugin cannot be registered.
    """
    present = virtual_devices()
    defined = {
        name: {key: value for key, value in properties.items() if key in _DEFINABLE_PROPERTIES}
        for name, properties in virtual_devices(text).items()
        if name in names and name not in present
    }
    register(core, defined)


def check_declared(text: str, names: Collection[str]) -> None:
    """Checks that the environment declares the virtual devices that are needed.

    Args:
        text: result of `definition` where the model was placed; "" if it is not known.
        names: names of the devices that are needed.

    Raises:
        UserError: one is not declared; the message has the command that declares it.
    """
    missing = [name for name in names if name in virtual_devices(text) and name not in virtual_devices()]
    if missing:
        are = "is a virtual device that is" if len(missing) == 1 else "are virtual devices that are"
        raise UserError(
            f"{' and '.join(missing)} {are} not declared here: export {VIRTUAL_DEVICES_VARIABLE}={shlex.quote(text)}"
        )


def register(core: ov.Core, declared: Mapping[str, Mapping[str, str]] | None = None) -> tuple[str, ...]:
    """Registers virtual devices on a Core and sets their properties.

    It may be called again, and for a Core that already has them: then it only sets the properties.

    Args:
        core: the Core.
        declared: properties of each device, by its name; by default those that the environment declares.

    Returns:
        Names of the devices.

    Raises:
        UserError: the declaration is malformed, or the CPU plugin refuses a property.
        RunError: the plugin cannot be registered.
    """
    declared = virtual_devices() if declared is None else declared
    plugin = f"openvino_{'arm' if platform.machine().lower() in ('arm64', 'aarch64') else 'intel'}_cpu_plugin"
    for name, properties in declared.items():
        try:
            core.register_plugin(plugin, name)
            note_plugin(core, plugin, name)
        except RuntimeError as error:
            if "already registered" not in str(error):
                raise RunError(f"cannot register virtual device {name}: {one_line(error)}") from error
        try:
            core.set_property(name, {**_VIRTUAL_DEFAULTS, **_openvino_properties(properties)})
            _load_plugin(core, name)  # the plugin checks the properties when it is loaded
        except RuntimeError as error:
            refused = shortened(f"OpenVINO refuses the properties of {name}: {one_line(error)}", 500)
            raise UserError(f"{VIRTUAL_DEVICES_VARIABLE}: {refused}") from error
    return tuple(declared)


def note_plugin(core: ov.Core, plugin: str, name: str) -> None:
    """Remembers a registered plugin on the Core, because OpenVINO does not report the registered ones.

    Args:
        core: the Core.
        plugin: name or path of the plugin's library.
        name: name of the device.
    """
    setattr(core, _PLUGINS_ATTRIBUTE, {**registered(core), name: plugin})


def registered(core: ov.Core) -> dict[str, str]:
    """Returns the plugins that were registered on a Core (name or path of the library), by the device's name."""
    return dict(getattr(core, _PLUGINS_ATTRIBUTE, {}))


def _load_plugin(core: ov.Core, name: str) -> None:
    """Loads the plugin of a virtual device, in a thread that ends at once.

    The CPU plugin gives the thread that loads it a stack for signals. At its own end it restores the stack from before,
    which may belong to another plugin that has ended already (docs/reference/facts.md): a signal would then end the
    process.
    """
    with ThreadPoolExecutor(1) as thread:
        thread.submit(core.get_property, name, "INFERENCE_NUM_THREADS").result()


def new_core() -> ov.Core:
    """Makes a Core with the declared virtual devices. Raises the errors of `register`."""
    core = ov.Core()
    register(core)
    return core


def compile_properties(device: str, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Completes a compile_model configuration so that virtual devices keep their limits in split models.

    Every virtual device of a HETERO device string, or of MULTI_DEVICE_PRIORITIES, gets an entry in DEVICE_PROPERTIES
    with its declared limits and EXCLUSIVE_ASYNC_REQUESTS off. The caller's configuration takes precedence: a property
    for the device first, then one for all devices. Without such a device, the result equals the configuration.

    Args:
        device: device string to compile for.
        config: the caller's configuration, which is not changed; None for an empty one.

    Returns:
        The completed configuration: values by property.
    """
    completed = dict(config or {})
    names = hetero_names(device, completed)
    virtual = {name: limits for name, limits in virtual_devices().items() if name in names} if names else {}
    if not virtual:
        return completed
    per_device = device_properties(completed)
    if per_device is None:  # OpenVINO will report the error
        return completed
    for name, limits in virtual.items():
        wanted: dict[str, Any] = {**_VIRTUAL_DEFAULTS, **_SPLIT_MODEL_PROPERTIES, **_openvino_properties(limits)}
        defaults = {key: value for key, value in wanted.items() if key not in completed}
        per_device[name] = {**defaults, **per_device.get(name, {})}
    completed[DEVICE_PROPERTIES] = per_device
    return completed


def hetero_names(device: str, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of the devices in a HETERO device string as written there; () for any other device string.

    Args:
        device: the device string. "HETERO" without a list has the devices of MULTI_DEVICE_PRIORITIES in `config`.
        config: the configuration for compiling.
    """
    head, _, tail = device.partition(":")
    if head != HETERO:
        return ()
    return names_in(tail) or listed_devices(config)
