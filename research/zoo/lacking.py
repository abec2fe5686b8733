"""A device that lacks operations, made of one that has them, so that tests and benchmarks know the right answer."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import openvino as ov


class Lacking:
    """A Core one of whose devices runs no operations of certain types, as NPUs do."""

    def __init__(self, core: ov.Core, device: str, types: Collection[str]) -> None:
        self._core, self._device, self._types = core, device, frozenset(types)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def get_property(self, device: str, name: str) -> Any:
        """Returns a property as `Core.get_property`; the device's full name tells that it is another one."""
        value = self._core.get_property(device, name)
        if device == self._device and name == "FULL_DEVICE_NAME":
            return f"{value} without {', '.join(sorted(self._types))}"
        return value

    def query_model(self, model: ov.Model, device: str) -> dict[str, str]:
        """Returns what the Core says that the device runs, without what it lacks; as `Core.query_model`."""
        lacks = {node.get_friendly_name() for node in model.get_ops() if node.get_type_name() in self._types}
        answer = self._core.query_model(model, device)
        return {name: at for name, at in answer.items() if device != self._device or name not in lacks}

    def compile_model(self, model: ov.Model, device: str, config: dict[str, Any] | None = None) -> ov.CompiledModel:
        """Compiles as the Core does. RuntimeError: the device alone is to run what it lacks."""
        if device == self._device and any(node.get_type_name() in self._types for node in model.get_ops()):
            raise RuntimeError(f"{device} does not support some operations")
        return self._core.compile_model(model, device, config or {})
