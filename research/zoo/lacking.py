"""Simulates a device that lacks some operations on one that has them, so that correct outputs are known."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import openvino as ov


class Lacking:
    """A Core in which one device does not support certain types of operations, as is usual for NPUs."""

    def __init__(self, core: ov.Core, device: str, types: Collection[str]) -> None:
        """Wraps a Core.

        Args:
            core: the real Core.
            device: name of the device.
            types: types of operations that it lacks.
        """
        self._core, self._device, self._types = core, device, frozenset(types)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def get_property(self, device: str, name: str) -> Any:
        """Like `Core.get_property`; the full name lists what the device lacks, so that it counts as another device."""
        value = self._core.get_property(device, name)
        if device == self._device and name == "FULL_DEVICE_NAME":
            return f"{value} without {', '.join(sorted(self._types))}"
        return value

    def query_model(self, model: ov.Model, device: str) -> dict[str, str]:
        """Like `Core.query_model`, without the operations that the device lacks."""
        lacks = {node.get_friendly_name() for node in model.get_ops() if node.get_type_name() in self._types}
        answer = self._core.query_model(model, device)
        return {name: at for name, at in answer.items() if device != self._device or name not in lacks}

    def compile_model(self, model: ov.Model, device: str, config: dict[str, Any] | None = None) -> ov.CompiledModel:
        """Like `Core.compile_model`.

        Args:
            model: the model.
            device: device string.
            config: properties.

        Returns:
            The compiled model.

        Raises:
            RuntimeError: the model has operations that the device lacks, and this device alone shall run it.
        """
        if device == self._device and any(node.get_type_name() in self._types for node in model.get_ops()):
            raise RuntimeError(f"{device} does not support some operations")
        return self._core.compile_model(model, device, config or {})
