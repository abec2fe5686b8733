"""Writes a placement into a model's rt_info, and reads it back from there or from a file of affinities.

A placement is stored as entries: JSON values by name. Files may come from anybody, so every entry that is read is
checked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike, fspath
from typing import Any

from ov_hsdag.model import output_tags
from ov_hsdag.utils.errors import UserError, listed, quoted, shortened
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.reading import TABLES, parse_json, read_json

RT_INFO = "ov_hsdag"
"""The model-level rt_info entry that holds an embedded placement; it survives saving and reading an IR."""

VERSION = 1
"""Version of the embedded form; newer versions are refused."""

_MOST_DEVICES = 255  # the native core counts devices in a byte

# Entries of figures that must be numbers or intervals, if they are there.
_NUMBERS = ("latency_us", "throughput_ips", "submodels", "transfer_bytes", "ratio", "times_best_single", "times_chosen")
_INTERVALS = ("ci", "times_best_single_ci", "times_chosen_ci")

# Entries of settings, by their types, which are checked if the entries are there.
_TEXTS = ("command", "workload", "kv_precision", "profile", "virtual_devices", "affinity", "experts", "policy")
_SWITCHES = ("static", "measure")
_SECONDS = ("measure_seconds", "search_seconds")


# Entries that are stored as plain text; all others are JSON.
_PLAIN = ("version", "default", "objective", "policy", "chosen")
_JSON = ("devices", "default_nodes", "exceptions", "prediction", "measured", "baselines", "settings")


def to_entries(devices: Sequence[str], affinity: Mapping[str, str], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a placement to JSON-able entries; only NumPy's numbers in `facts` are left as they are.

    Args:
        devices: the devices, in HETERO's order.
        affinity: device of each node, by friendly name.
        facts: further entries by name; those that are None are left out.

    Returns:
        The entries. "default" is the device with most nodes; "default_nodes" are its nodes, so that nodes which appear
        later can be told from them; "exceptions" are the nodes of the other devices: {device: [names]}.
    """
    nodes = _nodes_by_device(devices, affinity)
    default = max(devices, key=lambda device: len(nodes[device]))
    entries = {
        "version": VERSION,
        "devices": list(devices),
        "default": default,
        "default_nodes": nodes[default],
        "exceptions": {device: names for device, names in nodes.items() if names and device != default},
        **facts,
    }
    return {key: value for key, value in entries.items() if value is not None}


def from_entries(entries: Mapping[str, Any], node_names: Callable[[], Iterable[str]]) -> dict[str, Any]:
    """Reads the fields of a `Placement` from entries that `to_entries` made.

    Args:
        entries: entries of any file; everything in them is checked.
        node_names: returns the friendly names of the model's nodes, for entries without "default_nodes", as other tools
            write them.

    Returns:
        The fields by name.

    Raises:
        UserError: a newer ov-hsdag wrote the entries.
        ValueError, TypeError, AttributeError, KeyError: the entries are not a placement.
    """
    version = int(entries["version"])
    if version > VERSION:
        raise UserError(f"the model's placement has version {version}, this ov-hsdag reads up to {VERSION}: upgrade it")
    devices = _names(entries["devices"])
    if len(devices) > _MOST_DEVICES or not all(map(str.isprintable, devices)):
        raise ValueError("expected names of devices")
    affinity = {name: device for device, names in entries["exceptions"].items() for name in _names(names)}
    default_nodes = entries.get("default_nodes")
    if default_nodes is None:
        default_nodes = [name for name in node_names() if name not in affinity]
    affinity.update(dict.fromkeys(_names(default_nodes), _text(entries["default"])))
    predicted = entries.get("prediction")
    return {
        "devices": devices,
        "affinity": affinity,
        "objective": _text(entries["objective"]),
        "predicted": None if predicted is None else _figures(predicted),
        "measured": _all_figures(entries.get("measured")),
        "baselines": _all_figures(entries.get("baselines")) or {},
        "policy": None if entries.get("policy") is None else _text(entries["policy"]),
        "chosen": _text(entries["chosen"]),
        "settings": _settings(entries.get("settings")),
    }


def write(model: ov.Model, devices: Sequence[str], affinity: Mapping[str, str], facts: Mapping[str, Any]) -> None:
    """Stores a placement in the model's rt_info and replaces an earlier one.

    Every value is a string, because rt_info is read from a file as text. The outputs get tags for readers without
    Python (`output_tags`).

    Args:
        model: the model; changed in place.
        devices: the devices, in HETERO's order.
        affinity: device of each node, by friendly name.
        facts: further entries by name; see `to_entries`.
    """
    remove(model)
    for key, value in to_entries(devices, affinity, facts).items():
        # Names and numbers are plain text, so that a C++ reader needs no JSON for them.
        text = str(value) if isinstance(value, str | int) else json.dumps(value, default=plain)
        model.set_rt_info(text, [RT_INFO, key])
    output_tags.write(model, _nodes_by_device(devices, affinity))


def read(model: ov.Model) -> dict[str, Any] | None:
    """Reads the fields of the `Placement` that is embedded in a model; None where there is none.

    Raises:
        UserError: the placement cannot be read.
    """
    if not model.has_rt_info([RT_INFO]):
        return None
    try:
        entries: dict[str, Any] = {}
        for key in (*_PLAIN, *_JSON):
            if model.has_rt_info([RT_INFO, key]):
                text = str(model.get_rt_info([RT_INFO, key]).astype(str))
                entries[key] = text if key in _PLAIN else parse_json(text)
        return from_entries(entries, lambda: [node.get_friendly_name() for node in model.get_ops()])
    except (RuntimeError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise UserError(
            "the model's embedded placement cannot be read: place the model again, or remove it (ov-hsdag strip)"
        ) from error


def _nodes_by_device(devices: Sequence[str], affinity: Mapping[str, str]) -> dict[str, list[str]]:
    """Returns the friendly names of each device's nodes, also of devices without nodes."""
    nodes: dict[str, list[str]] = {device: [] for device in devices}
    for name, device in affinity.items():
        nodes[device].append(name)
    return nodes


def remove(model: ov.Model) -> None:
    """Removes an embedded placement from a model, in place; without one, the model stays as it is."""
    if RT_INFO in model.rt_info:
        del model.rt_info[RT_INFO]
    output_tags.remove(model)


def read_affinities(path: str | PathLike[str], devices: Sequence[str] | None) -> tuple[tuple[str, ...], dict[str, str]]:
    """Reads a JSON file {"node": "device"}, see `Placement.load`.

    Args:
        path: the file.
        devices: the devices that it may use, in order; None for those of the file, in order of appearance.

    Returns:
        (devices, affinity): the devices, and the device of each node by friendly name.

    Raises:
        UserError: the file cannot be read, is no such JSON, or uses a device that is not in `devices`.
    """
    shown = fspath(path)
    try:
        affinity = read_json(path, TABLES, strict=True)
    except OSError as error:
        raise UserError(f"cannot read affinity file {shown!r}: {error.strerror or error}") from error
    except ValueError as error:
        raise UserError(f"affinity file {shown!r} is no JSON: {error}") from error
    if not isinstance(affinity, dict) or not affinity:
        raise UserError(f'affinity file {shown!r} must hold one object {{"node": "device", …}}')
    for name, device in affinity.items():
        if not isinstance(device, str) or not device or not device.isprintable():
            raise UserError(
                f"affinity file {shown!r}: the device of {quoted(name)} must be a name, got {quoted(device)}"
            )
    used_devices = tuple(dict.fromkeys(affinity.values()))
    if devices is None:
        return used_devices, affinity
    unknown = [device for device in used_devices if device not in devices]
    if unknown:
        device_list = shortened(f"HETERO:{','.join(devices)}")
        raise UserError(f"affinity file {shown!r} uses {listed(unknown)}, which is not in {device_list}")
    return tuple(devices), affinity


def _names(value: Any) -> tuple[str, ...]:
    """Checks that a JSON value is a list of names. Raises TypeError, like the other checks."""
    names = tuple(value)
    if not all(isinstance(name, str) for name in names):
        raise TypeError("expected names")
    return names


def _text(value: Any) -> str:
    """Checks that a JSON value is a text. Raises TypeError, like the other checks."""
    if not isinstance(value, str):
        raise TypeError("expected a text")
    return value


def _is_number(value: Any) -> bool:
    """Whether a JSON value is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _figures(value: Any) -> dict[str, Any]:
    """Checks the figures of one placement from JSON, and returns a copy of them.

    Values that are computed with must be numbers or null. Raises TypeError or AttributeError, like the other checks.
    """
    intervals = [value.get(key) for key in _INTERVALS]
    numbers = [value.get(key) for key in _NUMBERS] + list((value.get("memory_bytes") or {}).values())
    if not all(
        value_or_none is None or (len(value_or_none) == 2 and all(map(_is_number, value_or_none)))
        for value_or_none in intervals
    ):
        raise TypeError("expected intervals of two numbers")
    if not all(value_or_none is None or _is_number(value_or_none) for value_or_none in numbers):
        raise TypeError("expected numbers")
    if not isinstance(value.get("failed"), str | None):
        raise TypeError("expected a reason")
    _names(value.get("measured_costs") or ())
    return dict(value)


def _all_figures(value: Any) -> dict[str, Any] | None:
    """Checks the figures of several placements by name, and returns a copy; None for None."""
    return None if value is None else {name: _figures(figures) for name, figures in value.items()}


def _settings(value: Any) -> dict[str, Any] | None:
    """Checks the settings of a placement from JSON by their types, and returns a copy; None for None.

    Raises TypeError or AttributeError, like the other checks.
    """
    if value is None:
        return None
    shapes, memory = value.get("shapes") or {}, value.get("memory") or {}
    sizes = [size for shape in shapes.values() for size in shape]
    for least, numbers in ((0, sizes), (1, [*memory.values(), value.get("context", 1)])):
        if not all(type(number) is int and least <= number < 1 << 62 for number in numbers):
            raise TypeError("expected positive numbers")
    if not all(isinstance(value.get(key, ""), str) for key in _TEXTS):
        raise TypeError("expected texts")
    if not all(isinstance(value.get(key, False), bool) for key in _SWITCHES):
        raise TypeError("expected switches")
    if not all(_is_number(value.get(key, 0)) for key in _SECONDS):
        raise TypeError("expected seconds")
    if not isinstance(value.get("pin", []), list):
        raise TypeError("expected a list")
    _names(value.get("pin", ()))
    return dict(value)


def plain(value: Any) -> Any:
    """Converts NumPy's scalars and arrays to numbers and lists, as `default` of `json.dumps`.

    Raises:
        TypeError: the value is of another type.
    """
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"cannot store {type(value).__name__} in a model")
