"""The device name HSDAG: ``core.compile_model(model, "HSDAG:GPU,CPU")`` places an unplaced model, then uses HETERO.

OpenVINO parses the device list of the name HETERO only, so that no plugin can serve another name. Therefore the methods
of ``Core`` that take a device name are wrapped, and pass HETERO's name on. Where ``OV_HSDAG_AUTO`` is set, "HETERO:…"
means the same as "HSDAG:…".

The module is imported while openvino itself is being imported, so it imports neither openvino nor large packages at the
top.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ov_hsdag._env import disabled, has_virtual_devices
from ov_hsdag.devices.property_values import PRIORITIES, names_in, plain
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import ov

if TYPE_CHECKING:
    from ov_hsdag.placing.first_load import LoadedPlacement, LoadRequest

NAME = "HSDAG"
HETERO = "HETERO"

AUTO_VARIABLE = "OV_HSDAG_AUTO"
"""Environment variable: "latency" or "throughput"; a load on HETERO of a model without a placement then places it."""

LOG_VARIABLE = "OV_HSDAG_LOAD_LOG"
"""Environment variable: a file that gets a line of JSON for each load that placed a model or reused a placement."""

PROPERTIES = ("HSDAG_OBJECTIVE", "HSDAG_MEMORY", "HSDAG_PROFILE", "HSDAG_MEASURE")
"""Properties of the device beside HETERO's: "latency|throughput", limits such as "GPU=2GiB", a file of device profiles,
and "1" to measure candidates at the first load. Each is also an environment variable, "OV_" and its name."""

_OBJECTIVES = ("latency", "throughput")

_HINTS = {"LATENCY": "latency", "THROUGHPUT": "throughput", "CUMULATIVE_THROUGHPUT": "throughput"}
"""Objective by the value of PERFORMANCE_HINT."""

_SET = "_ov_hsdag_properties"
"""Attribute of a Core: the properties that ``set_property("HSDAG", …)`` gave it."""

SOURCE = "_ov_hsdag_source"
"""Attribute of an ov.Model: the file that ``read_model`` read it from."""


@dataclass(frozen=True)
class AutomaticLoad:
    """A load on HSDAG: the model is placed first, unless it carries a placement.

    Attributes:
        device: HETERO's device string for the load.
        config: the properties of the call and of the device, without those that HETERO does not know.
        request: devices, objective and limits to place for; devices that the machine lacks are left out.
        missing: devices that the call names and the machine lacks.
    """

    device: str
    config: dict[str, Any]
    request: LoadRequest
    missing: tuple[str, ...]


def is_hsdag(device: object) -> bool:
    """Whether a device string is "HSDAG" or "HSDAG:…"."""
    return isinstance(device, str) and device.partition(":")[0] == NAME


def is_automatic(device: object) -> bool:
    """Whether a load on this device places a model that carries no placement."""
    if disabled() or not isinstance(device, str):
        return False
    return is_hsdag(device) or (device.partition(":")[0] == HETERO and bool(os.environ.get(AUTO_VARIABLE)))


def hetero_device(core: ov.Core, device: str, config: Mapping[str, Any] | None = None) -> str:
    """Translates a device string of HSDAG into one of HETERO.

    Args:
        core: lists the devices of the machine.
        device: "HSDAG" or "HSDAG:A,B".
        config: properties of the call, which may list devices as well.

    Returns:
        "HETERO:A,B", with all devices of the machine where none are listed.
    """
    return f"{HETERO}:{','.join(_listed(core, device, config))}"


def automatic_load(
    core: ov.Core, device: str, config: Mapping[str, Any] | None, source: str | None = None
) -> AutomaticLoad:
    """Collects the settings of a load on HSDAG, or on HETERO with `AUTO_VARIABLE`.

    Settings come from the call, else from `Core.set_property`, else from environment variables.

    Args:
        core: lists the devices of the machine.
        device: the device string of the call.
        config: the properties of the call.
        source: file that the model is read from; None where it is in memory.

    Returns:
        The load, with HETERO's device string.

    Raises:
        UserError: a property, or the environment variable of one, has no valid value.
    """
    from ov_hsdag.devices.discovery import absent
    from ov_hsdag.placing.first_load import LoadRequest

    settings = {**getattr(core, _SET, {}), **(config or {})}
    names = _listed(core, device, settings)
    missing = tuple(absent(core, names))
    cache_dir = settings.get("CACHE_DIR")
    if cache_dir is None:
        with contextlib.suppress(RuntimeError):
            cache_dir = core.get_property(HETERO, "CACHE_DIR")
    request = LoadRequest(
        devices=tuple(name for name in names if name not in missing),
        objective=_objective(settings, is_hsdag(device)),
        memory=_setting(settings, "HSDAG_MEMORY"),
        profile=_setting(settings, "HSDAG_PROFILE"),
        measure=_setting(settings, "HSDAG_MEASURE").upper() in ("1", "YES", "TRUE"),
        cache_dir=str(plain(cache_dir) or ""),
        source=source,
    )
    passed = {key: value for key, value in settings.items() if key not in (*PROPERTIES, PRIORITIES)}
    return AutomaticLoad(f"{HETERO}:{','.join(request.devices or names)}", passed, request, missing)


def record(loaded: LoadedPlacement, model: ov.Model, source: str | None) -> None:
    """Appends the placement of a load to the file of `LOG_VARIABLE`, where that is set. Raises nothing.

    Args:
        loaded: the placement, with whether it was made now or kept from an earlier load.
        model: the model.
        source: its file; None where it is in memory.
    """
    placement = loaded.placement
    _log(
        {
            "model": source or model.get_friendly_name(),
            "devices": list(placement.devices),
            "used": list(placement.used()),
            "objective": placement.objective,
            "chosen": placement.chosen,
            "summary": placement.summary(),
            "reused": loaded.reused,
            "seconds": loaded.seconds,
            "file": None if loaded.file is None else str(loaded.file),
        }
    )


def record_failure(model: str, failure: str) -> None:
    """Appends the reason why a load was not placed to the file of `LOG_VARIABLE`, where that is set. Raises nothing."""
    _log({"model": model, "failure": failure})


def _log(entry: Mapping[str, Any]) -> None:
    """Appends a line of JSON to the file of `LOG_VARIABLE`; does nothing where that is not set or not writable."""
    path = os.environ.get(LOG_VARIABLE)
    if not path:
        return
    import json  # here, as the hook must import little

    line = json.dumps(entry)
    # A line in one write to a file opened for appending does not mix with the lines of other processes.
    with contextlib.suppress(OSError), open(path, "a", encoding="utf-8") as file:
        file.write(line + "\n")


def patch(core: Any) -> None:
    """Wraps the methods of a ``Core`` class that read a model or take a device name, except those that compile it."""
    wrappers = {
        "read_model": _wrap_read_model,
        "get_property": _wrap_get_property,
        "set_property": _wrap_set_property,
        "get_versions": _wrap_get_versions,
        "import_model": _wrap_import_model,
    }
    for name, wrap in wrappers.items():
        if hasattr(core, name):  # not every release of OpenVINO has all of them
            setattr(core, name, wrap(getattr(core, name)))


def _wrap_read_model(original: Callable[..., ov.Model]) -> Callable[..., ov.Model]:
    """Wraps ``Core.read_model``, so that models remember the file that they come from (`SOURCE`)."""

    @functools.wraps(original)
    def read_model(self: ov.Core, *args: Any, **kwargs: Any) -> ov.Model:
        model = original(self, *args, **kwargs)
        path = args[0] if args else kwargs.get("model")
        if isinstance(path, str | os.PathLike) and len(os.fspath(path)) < _LONGEST_PATH:
            with contextlib.suppress(AttributeError, TypeError, ValueError):
                setattr(model, SOURCE, os.fsdecode(path))
        return model

    return read_model


_LONGEST_PATH = 4096
"""Characters of a path on Linux (PATH_MAX); a longer string is the text of a model."""


def _wrap_get_property(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps ``Core.get_property``: HSDAG has the properties of HETERO and `PROPERTIES`."""

    @functools.wraps(original)
    def get_property(self: ov.Core, *args: Any, **kwargs: Any) -> Any:
        device = args[0] if args else kwargs.get("device_name")
        if not is_hsdag(device) or disabled():
            return original(self, *args, **kwargs)
        key = args[1] if len(args) > 1 else kwargs.get("property", kwargs.get("name", ""))
        key = str(key() if callable(key) else key)
        set_before = getattr(self, _SET, {})
        if key in set_before:
            return plain(set_before[key])
        if key == "FULL_DEVICE_NAME":
            return NAME
        if key == "SUPPORTED_PROPERTIES":
            more = dict.fromkeys((*PROPERTIES, "PERFORMANCE_HINT", "CACHE_DIR"), "RW")
            return {**original(self, HETERO, key), **more}
        if key in PROPERTIES:
            return os.environ.get(f"OV_{key}", "")
        return original(self, HETERO, key)

    return get_property


def _wrap_set_property(original: Callable[..., None]) -> Callable[..., None]:
    """Wraps ``Core.set_property``: those of HSDAG are kept in the Core (`_SET`)."""

    @functools.wraps(original)
    def set_property(self: ov.Core, *args: Any, **kwargs: Any) -> None:
        device = args[0] if args else kwargs.get("device_name")
        if not is_hsdag(device) or disabled():
            return original(self, *args, **kwargs)
        value = args[1] if len(args) > 1 else kwargs.get("properties", kwargs.get("property"))
        properties = dict([value]) if isinstance(value, tuple) else dict(value or {})
        _objective({**properties}, hint_counts=True)  # raises UserError for an unknown objective
        setattr(self, _SET, {**getattr(self, _SET, {}), **properties})
        return None

    return set_property


def _wrap_import_model(original: Callable[..., ov.CompiledModel]) -> Callable[..., ov.CompiledModel]:
    """Wraps ``Core.import_model``: a blob for HSDAG is imported on HETERO."""

    @functools.wraps(original)
    def import_model(self: ov.Core, *args: Any, **kwargs: Any) -> ov.CompiledModel:
        arguments = dict(zip(("model_stream", "device_name", "config"), args, strict=False)) | kwargs
        device = arguments.get("device_name")
        if not is_hsdag(device):
            return original(self, *args, **kwargs)
        config = {**getattr(self, _SET, {}), **(arguments.get("config") or {})}
        arguments["device_name"] = hetero_device(self, str(device), config)
        arguments["config"] = {key: value for key, value in config.items() if key not in (*PROPERTIES, PRIORITIES)}
        return original(self, **arguments)

    return import_model


def _wrap_get_versions(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps ``Core.get_versions``: the versions of HSDAG are those of HETERO and its devices."""

    @functools.wraps(original)
    def get_versions(self: ov.Core, device_name: str) -> Any:
        if not is_hsdag(device_name) or disabled():
            return original(self, device_name)
        return original(self, hetero_device(self, device_name))

    return get_versions


def _listed(core: ov.Core, device: str, config: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Finds the devices of a call: those of the device string, else of a property, else all of the machine, NPUs last.

    Args:
        core: lists the devices of the machine.
        device: device string, such as "HSDAG:GPU,CPU".
        config: properties; MULTI_DEVICE_PRIORITIES lists devices.
    """
    names = names_in(device.partition(":")[2]) or names_in(str(plain((config or {}).get(PRIORITIES, ""))))
    if names:
        return names
    available = list(core.available_devices)
    if has_virtual_devices():
        from ov_hsdag.devices.virtual import virtual_devices

        # Virtual devices are parts of the CPU, which would otherwise be listed twice.
        available = [name for name in available if name != "CPU" or not set(virtual_devices()) & set(available)]
    return tuple(sorted(available, key=lambda name: name.startswith("NPU")))


def _objective(config: Mapping[str, Any], hint_counts: bool) -> str:
    """Finds the objective of a load: HSDAG_OBJECTIVE, else PERFORMANCE_HINT or `AUTO_VARIABLE`, else "latency".

    Args:
        config: properties of the call and of the device.
        hint_counts: whether PERFORMANCE_HINT precedes `AUTO_VARIABLE`, as it does where a program names HSDAG;
            otherwise it comes after it.

    Raises:
        UserError: the objective is neither "latency" nor "throughput".
    """
    environment = os.environ.get(AUTO_VARIABLE, "")
    hint = _HINTS.get(str(plain(config.get("PERFORMANCE_HINT", ""))).rpartition(".")[2].upper(), "")
    explicit = _setting(config, "HSDAG_OBJECTIVE")
    objective = explicit or (hint or environment if hint_counts else environment or hint) or _OBJECTIVES[0]
    if objective not in _OBJECTIVES:
        name = "HSDAG_OBJECTIVE" if explicit else AUTO_VARIABLE
        raise UserError(f"{name} must be latency or throughput, got '{objective:.40}'")
    return objective


def _setting(config: Mapping[str, Any], name: str) -> str:
    """Reads one of `PROPERTIES` from the properties of a call, else from the environment; "" where neither has it."""
    return str(plain(config.get(name, os.environ.get(f"OV_{name}", ""))))
