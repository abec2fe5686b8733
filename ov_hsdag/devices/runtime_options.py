"""Hands the runtime_options of a model on to the devices below HETERO, which loses them.

optimum-intel writes options such as KV_CACHE_PRECISION into a model's rt_info, and a device that compiles the model
takes them as properties. HETERO compiles submodels, which have no such entry. Unless it gets the options as properties,
a language model keeps its states in another precision than on one device, and computes other tokens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from ov_hsdag.devices import virtual
from ov_hsdag.devices.property_values import DEVICE_PROPERTIES, device_properties, plain
from ov_hsdag.utils.lazy import ov

RUNTIME_OPTIONS = "runtime_options"
"""The model-level rt_info entry from which plugins read properties."""


def runtime_options(model: ov.Model) -> dict[str, str]:
    """Returns the options of a model: values as text by property. Empty if the model has none."""
    if not model.has_rt_info([RUNTIME_OPTIONS]):
        return {}
    options = plain(model.get_rt_info([RUNTIME_OPTIONS]))
    if not isinstance(options, Mapping):
        return {}
    return {str(name): str(plain(value)) for name, value in options.items()}


def compile_properties(
    core: ov.Core, model: ov.Model, device: str, config: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Completes a compile_model configuration so that HETERO runs a model as a single device does.

    HETERO hands a property to every device that knows it, so the model's options are added to the configuration.
    Options that the caller configured, for all devices or for one, take precedence; so do those that were set on the
    Core for a device. Virtual devices get their limits (`virtual.compile_properties`). On other devices than HETERO,
    options are left to the plugin.

    Args:
        core: the Core that will compile the model.
        model: the model.
        device: device string to compile for.
        config: the caller's configuration.

    Returns:
        The completed configuration: values by property. An unreadable DEVICE_PROPERTIES is left as it is, without the
        options that were set on the Core; OpenVINO refuses it.
    """
    completed = virtual.compile_properties(device, config)
    names = virtual.hetero_names(device, completed)
    options = {name: value for name, value in runtime_options(model).items() if name not in completed}
    if not names or not options:
        return completed
    core_properties = _options_set_on_core(core, names, options)
    # None: the caller's DEVICE_PROPERTIES cannot be read. They are passed on as they are, and OpenVINO refuses them.
    per_device = device_properties(completed)
    if core_properties and per_device is not None:
        for name, properties in core_properties.items():
            per_device[name] = {**properties, **per_device.get(name, {})}
        completed[DEVICE_PROPERTIES] = per_device
    return {**options, **completed}


def _options_set_on_core(
    core: ov.Core, devices: Sequence[str], options: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Finds the options that were set on the Core for a device: those whose values differ from those of a new Core.

    Args:
        core: the Core.
        devices: names of the devices.
        options: the model's options, by property.

    Returns:
        Values by property, by device; devices without such options are left out.
    """
    set_values: dict[str, dict[str, Any]] = {}
    new_core: ov.Core | None = None
    for device in devices:
        for name in options:
            with contextlib.suppress(RuntimeError):  # the device does not know the property
                value = core.get_property(device, name)
                new_core = new_core or virtual.new_core()
                if value != new_core.get_property(device, name):
                    set_values.setdefault(device, {})[name] = value
    return set_values
