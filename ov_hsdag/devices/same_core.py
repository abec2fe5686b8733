"""Makes a Core in another process like the caller's.

The two have the same libraries of custom operations, registered plugins, properties of devices, and usable CPUs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ov_hsdag.devices import cpu, extensions
from ov_hsdag.devices.virtual import new_core, registered
from ov_hsdag.utils.lazy import ov

# Properties that another process does not get, because nobody uses its compiled models later.
_NOT_COPIED = frozenset({"CACHE_DIR", "LOG_LEVEL", "PERF_COUNT"})

# HETERO has properties of its own, which are copied, too.
_HETERO = "HETERO"


def describe(core: ov.Core, names: Sequence[str]) -> dict[str, Any]:
    """Describes a Core, so that `like` can make one like it in another process.

    Args:
        core: the Core.
        names: names of the devices that are used; others are left out.

    Returns:
        The description, of JSON's types.
    """
    return {
        "extensions": list(extensions.of(core)),
        "plugins": {name: plugin for name, plugin in registered(core).items() if name in names},
        "properties": {name: _settable_properties(core, name) for name in (*names, _HETERO)},
        "cpus": sorted(cpu.usable_cpus()),
    }


def like(description: Mapping[str, Any]) -> ov.Core:
    """Makes a Core like the described one, and lets the calling thread use the same CPUs.

    Args:
        description: as `describe` returns it; {} for a new Core.

    Raises:
        RuntimeError: OpenVINO cannot load a library.
    """
    if description.get("cpus") and hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):  # the parent's calling thread may have been bound to one core
            os.sched_setaffinity(0, description["cpus"])
    core = new_core()
    for name, plugin in description.get("plugins", {}).items():
        with contextlib.suppress(RuntimeError):  # the environment may declare the same device
            core.register_plugin(plugin, name)
    for path in description.get("extensions", ()):
        core.add_extension(path)
    for name, properties in description.get("properties", {}).items():
        present = _settable_properties(core, name)
        for key, text in properties.items():
            if present.get(key) != text:
                with contextlib.suppress(RuntimeError):  # plugins do not accept all values that they report
                    core.set_property(name, {key: text})
    return core


def _settable_properties(core: ov.Core, name: str) -> dict[str, str]:
    """Reads the properties of a device that can be set, as text by name; {} if there is no such device."""
    values: dict[str, str] = {}
    with contextlib.suppress(RuntimeError, TypeError, AttributeError):
        for key, access in core.get_property(name, "SUPPORTED_PROPERTIES").items():
            if access == "RW" and key not in _NOT_COPIED:
                with contextlib.suppress(RuntimeError, TypeError):  # Python does not know the types of some
                    text = _text(core.get_property(name, key))
                    values |= {} if text is None else {key: text}
    return values


def _text(value: Any) -> str | None:
    """Formats a property's value as OpenVINO reads it from text; None if that is not known."""
    if isinstance(value, bool):
        return "YES" if value else "NO"
    if isinstance(value, str | int | float):
        return str(value)
    if hasattr(value, "get_type_name"):
        return str(value.get_type_name())
    name = getattr(value, "name", None)  # members of enumerations are written by name
    return name if isinstance(name, str) and name.replace("_", "").isalnum() else None
