"""What the scripts share: two devices on any machine, placements, and how a script ends."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NoReturn

# ov-hsdag, where it is installed, follows placements and mends some of these faults: what is to be seen is OpenVINO.
os.environ["OV_HSDAG_DISABLE"] = "1"
os.environ.pop("OV_HSDAG_VIRTUAL_DEVICES", None)
try:
    import numpy as np
    import openvino as ov

    try:
        from openvino import opset13 as ops
    except ImportError:
        from openvino.runtime import opset13 as ops  # up to 2024
except ImportError as error:
    print(f"not tried: {error}")
    sys.exit(2)

__all__ = ["PAIR", "np", "on_gpu", "ops", "ov", "place", "tell", "two_devices", "untried"]

PRESENT, MENDED, UNTRIED, FAILED = range(4)
"""Exit statuses; Python's own where a script fails would be that of a mended fault."""

PAIR = "HETERO:CPU_A,CPU_B"


def two_devices() -> ov.Core:
    """A Core with the CPU plugin twice, as CPU_A and CPU_B, both in f32."""
    core = ov.Core()
    for name in ("CPU_A", "CPU_B"):
        core.register_plugin("openvino_intel_cpu_plugin", name)
        core.set_property(name, {"INFERENCE_PRECISION_HINT": "f32"})
    return core


def place(model: ov.Model, device: str, others: Mapping[str, str] | None = None) -> ov.Model:
    """The model, each node on `device` but those that `others` has: friendly name → device."""
    for node in model.get_ops():
        node.get_rt_info()["affinity"] = (others or {}).get(node.get_friendly_name(), device)
    return model


def on_gpu(model: ov.Model, data: Any) -> Any:
    """The model's first output in the GPU rig (tests/rig) with the plugin's kernels as they are, in f32."""
    core = ov.Core()
    if os.environ.get("OV_HSDAG_RIG_KERNELS") != "plain" or "GPU" not in core.available_devices:
        untried("it needs the GPU rig with OV_HSDAG_RIG_KERNELS=plain")
    try:
        return core.compile_model(model, "GPU", {"INFERENCE_PRECISION_HINT": "f32"})(data)[0]
    except RuntimeError as error:
        untried(str(error))


def tell(present: bool, expected: str, found: object) -> NoReturn:
    """End the script with what was expected and found, a line each."""
    print(f"expected: {expected}\nfound: {' '.join(str(found).split())}")
    sys.exit(PRESENT if present else MENDED)


def untried(why: str) -> NoReturn:
    """End the script where the fault cannot be tried."""
    print(f"not tried: {' '.join(why.split())}")
    sys.exit(UNTRIED)


def _failed(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    traceback.print_exception(kind, error, trace)
    sys.stderr.flush()
    os._exit(FAILED)


sys.excepthook = _failed
