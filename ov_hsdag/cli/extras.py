"""Which packages a command needs besides the base installation, checked before any work."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from ov_hsdag.utils.errors import UserError

_PACKAGES = {
    "train": {"torch": "torch", "tensorboard": "tensorboard", "safetensors": "safetensors"},
    "bench": {"torch": "torch", "transformers": "transformers", "onnx": "onnx", "nncf": "nncf", "tflite": "tflite",
              "flatbuffers": "flatbuffers"},
}  # fmt: skip
"""Modules of each extra, and the names of their packages (pyproject.toml has their versions)."""


def require(what: str, extras: Sequence[str]) -> None:
    """Raise UserError, with how to install them, where packages of some extras are missing. what: the command."""
    wanted = {module: name for extra in extras for module, name in _PACKAGES[extra].items()}
    missing = [name for module, name in wanted.items() if find_spec(module) is None]
    if missing:
        listed = ",".join(extras)
        raise UserError(
            f"{what} needs {', '.join(missing)}: install ov-hsdag with"
            f" {'this extra' if len(extras) == 1 else 'these extras'}, in its source folder with"
            f" pip install '.[{listed}]'"
        )
