"""A Core in another process that is like the caller's: libraries, plugins, properties of devices, usable CPUs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ov_hsdag.devices import cpu, extensions
from ov_hsdag.devices.virtual import new_core, registered
from ov_hsdag.utils.lazy import ov

# Properties that another process does not get: what it compiles is of no use to anybody later.
_LEFT_OUT = frozenset({"CACHE_DIR", "LOG_LEVEL", "PERF_COUNT"})

# HETERO itself has properties, too.
_HETERO = "HETERO"


def describe(core: ov.Core, names: Sequence[str]) -> dict[str, Any]:
    """What `like` needs to make a Core as this one, JSON-able; names: of the devices that are used."""
    return {
        "extensions": list(extensions.of(core)),
        "plugins": {name: plugin for name, plugin in registered(core).items() if name in names},
        "properties": {name: _settable(core, name) for name in (*names, _HETERO)},
        "cpus": sorted(cpu.usable_cpus()),
    }


def like(description: Mapping[str, Any]) -> ov.Core:
    """A Core as `describe` found it, in this process; {} makes a new one. Raises RuntimeError as OpenVINO does."""
    if description.get("cpus") and hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):  # the calling thread of the parent may have been bound to one
            os.sched_setaffinity(0, description["cpus"])
    core = new_core()
    for name, plugin in description.get("plugins", {}).items():
        with contextlib.suppress(RuntimeError):  # the environment may declare the same device
            core.register_plugin(plugin, name)
    for path in description.get("extensions", ()):
        core.add_extension(path)
    for name, wanted in description.get("properties", {}).items():
        present = _settable(core, name)
        for key, text in wanted.items():
            if present.get(key) != text:
                with contextlib.suppress(RuntimeError):  # what a plugin tells is not always what it takes
                    core.set_property(name, {key: text})
    return core


def _settable(core: ov.Core, name: str) -> dict[str, str]:
    """The properties of a device that can be set, as text by name; {} of a device that is not there."""
    found: dict[str, str] = {}
    with contextlib.suppress(RuntimeError, TypeError, AttributeError):
        for key, access in core.get_property(name, "SUPPORTED_PROPERTIES").items():
            if access == "RW" and key not in _LEFT_OUT:
                with contextlib.suppress(RuntimeError, TypeError):  # types that Python does not know
                    text = _text(core.get_property(name, key))
                    found |= {} if text is None else {key: text}
    return found


def _text(value: Any) -> str | None:
    """A property's value as OpenVINO reads it from text; None where that is not known."""
    if isinstance(value, bool):
        return "YES" if value else "NO"
    if isinstance(value, str | int | float):
        return str(value)
    if hasattr(value, "get_type_name"):
        return str(value.get_type_name())
    name = getattr(value, "name", None)  # of an enumeration's member
    return name if isinstance(name, str) and name.replace("_", "").isalnum() else None
