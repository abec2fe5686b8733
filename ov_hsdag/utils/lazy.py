"""OpenVINO and SciPy, imported by their first use, so that modules which name what they have cost nothing to import."""

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
        """Stands for a module.

        Importing OpenVINO takes 0.2 s and starts threads: a process forks before it. Importing scipy.optimize takes
        half a second, which placing by prediction does without.
        """

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            try:
                return getattr(import_module(self._name), name)
            except ModuleNotFoundError:  # what 2024 has in openvino.runtime, which is gone in 2026
                return getattr(import_module(self._name.replace("openvino", "openvino.runtime")), name)

    ov, op, passes, node_factory = map(
        _Module, ("openvino", "openvino.op", "openvino.passes", "openvino.utils.node_factory")
    )
    optimize = _Module("scipy.optimize")
    opset1, opset13, opset15 = map(_Module, ("openvino.opset1", "openvino.opset13", "openvino.opset15"))

__all__ = ["node_factory", "op", "opset1", "opset13", "opset15", "optimize", "ov", "passes"]
