"""Reads values of OpenVINO's properties as plain Python values, in whatever form programs give them.

``openvino.properties.device.priorities("GPU", "CPU")`` and the like wrap values into ``OVAny``, whose text is that of
the object and not of the value. So properties are read only here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PRIORITIES = "MULTI_DEVICE_PRIORITIES"
"""OpenVINO's name of the property (ov::device::priorities) that lists devices if the device string does not."""

DEVICE_PROPERTIES = "DEVICE_PROPERTIES"
"""OpenVINO's name of the property with the properties of single devices."""


def plain(value: Any) -> Any:
    """Returns the value inside of an OVAny; other values as they are."""
    return value.value if type(value).__name__ == "OVAny" else value


def text(config: Mapping[str, Any] | None, key: str) -> str:
    """Returns a property of a configuration as the text that OpenVINO uses; "" if it is not there.

    An enumeration's value is its name without the class.

    Args:
        config: values by property; None for an empty one.
        key: name of the property.
    """
    value = plain((config or {}).get(key, ""))
    return str(getattr(value, "name", value))


def listed_devices(config: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Returns the devices that a configuration lists for HETERO; () if it lists none."""
    return names_in(text(config, PRIORITIES))


def names_in(listed: str) -> tuple[str, ...]:
    """Splits a list of devices such as "GPU,CPU" into names. OpenVINO ends its lists with a comma, which is skipped."""
    return tuple(name.strip() for name in listed.split(",") if name.strip())


def device_properties(config: Mapping[str, Any] | None) -> dict[str, dict[str, Any]] | None:
    """Reads DEVICE_PROPERTIES of a configuration, in any form of OpenVINO's Python API (dictionary, JSON, OVAny).

    Returns:
        Properties by device; {} if there are none; None for any other value, which OpenVINO will refuse.
    """
    value = plain((config or {}).get(DEVICE_PROPERTIES))
    if isinstance(value, str):
        import json  # imported here, because the hook for OpenVINO usually does not need it

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
