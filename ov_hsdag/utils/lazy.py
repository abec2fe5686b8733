"""OpenVINO and SciPy, imported at their first use, so that modules which refer to them are quick to import."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import openvino as ov
    from openvino import op, opset1, opset13, opset15, passes
    from openvino.utils import node_factory
    from scipy import optimize
else:

    class _Module:
        """Stands for a module that is imported at its first use.

        Importing OpenVINO takes 0.2 s and starts threads, so processes fork before it. Importing scipy.optimize takes
        half a second, and placing by prediction does not need it.
        """

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            try:
                return getattr(import_module(self._name), name)
            except ModuleNotFoundError:  # 2024 has these modules in openvino.runtime, which 2026 does not have
                return getattr(import_module(self._name.replace("openvino", "openvino.runtime")), name)

    ov, op, passes, node_factory = map(
        _Module, ("openvino", "openvino.op", "openvino.passes", "openvino.utils.node_factory")
    )
    optimize = _Module("scipy.optimize")
    opset1, opset13, opset15 = map(_Module, ("openvino.opset1", "openvino.opset13", "openvino.opset15"))

__all__ = ["node_factory", "op", "opset1", "opset13", "opset15", "optimize", "ov", "passes"]
