"""OpenVINO, imported by the first use of it, so that modules which name its types cost nothing to import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import openvino as ov
else:

    class _OpenVINO:
        """Stands for the package. Importing OpenVINO takes 0.2 s and starts threads: a process forks before it."""

        def __getattr__(self, name: str) -> Any:
            import openvino

            return getattr(openvino, name)

    ov = _OpenVINO()

__all__ = ["ov"]
