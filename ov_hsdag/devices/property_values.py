"""Values of OpenVINO's properties as plain Python ones, in whatever form programs give them.

``openvino.properties.device.priorities("GPU", "CPU")`` and the like wrap values into ``OVAny``, whose text is that of
the object and not of the value. So properties are read here, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PRIORITIES = "MULTI_DEVICE_PRIORITIES"
"""OpenVINO's name of the property (ov::device::priorities) that lists the devices where the device string does not."""

DEVICE_PROPERTIES = "DEVICE_PROPERTIES"
"""OpenVINO's name of the property that has properties of single devices."""


def plain(value: Any) -> Any:
    """The value inside of an OVAny; any other value as it is."""
    return value.value if type(value).__name__ == "OVAny" else value


def text(config: Mapping[str, Any] | None, key: str) -> str:
    """A property of a configuration as OpenVINO writes it, an enumeration without its class; "" where it lacks it."""
    value = plain((config or {}).get(key, ""))
    return str(getattr(value, "name", value))


def listed_devices(config: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The devices that a configuration lists for HETERO; () where it lists none."""
    return names_in(text(config, PRIORITIES))


def names_in(listed: str) -> tuple[str, ...]:
    """The names in "GPU,CPU"; OpenVINO ends a list of its own with a comma."""
    return tuple(name.strip() for name in listed.split(",") if name.strip())


def device_properties(config: Mapping[str, Any] | None) -> dict[str, dict[str, Any]] | None:
    """DEVICE_PROPERTIES of a configuration in any form that OpenVINO's Python API takes (dictionary, JSON, OVAny).

    Empty where it has none; None where it has something else, which OpenVINO will refuse.
    """
    value = plain((config or {}).get(DEVICE_PROPERTIES))
    if isinstance(value, str):
        import json  # which the hook for OpenVINO does without

        try:
            value = json.loads(value)
        except ValueError:
            return None
    if value is None:
        return {}
    properties = (
        {str(name): plain(of_device) for name, of_device in value.items()} if isinstance(value, Mapping) else {}
    )
    if not isinstance(value, Mapping) or not all(isinstance(item, Mapping) for item in properties.values()):
        return None
    return {name: dict(of_device) for name, of_device in properties.items()}
