"""What OpenVINO says about the devices of this machine.

Three sizes of a device's memory are called for: `memory_bytes`, all that it has, is the limit of placements without
`--memory`; `free_bytes` is what is free now; `usable_bytes`, most of that, is what `fit` lets a model have.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ov_hsdag.devices import cgroups, cpu, virtual
from ov_hsdag.devices.device_set import PRECISIONS, is_virtual, kind_of
from ov_hsdag.utils.lazy import ov


@dataclass(frozen=True)
class DeviceInfo:
    """What OpenVINO says about one device of the machine."""

    name: str
    full_name: str
    kind: str | None  # "CPU", "GPU", "NPU", or None for a device of another kind
    virtual: bool
    capabilities: tuple[str, ...]  # OPTIMIZATION_CAPABILITIES: "FP32", "BF16", "INT8", …
    precision: str | None  # the floating-point precision that the device infers in
    limits: Mapping[str, str] = field(default_factory=dict)  # of a virtual device


def available(core: ov.Core) -> list[DeviceInfo]:
    """The devices that a Core has, virtual ones included when they are registered, in OpenVINO's order.

    A property that a device does not answer (a broken driver, an older plugin) is left empty.
    """
    declared = virtual.virtual_devices()
    return [
        DeviceInfo(
            name=name,
            full_name=full_name(core, name) or "",
            kind=kind_of(name),
            virtual=is_virtual(name),
            capabilities=capabilities(core, name),
            precision=inference_precision(core, name),
            limits=declared.get(name, {}),
        )
        for name in core.available_devices
    ]


def absent(core: ov.Core, names: Iterable[str]) -> list[str]:
    """Those of the devices that are not on this machine."""
    return [name for name in names if full_name(core, name) is None]


def full_name(core: ov.Core, name: str) -> str | None:
    """FULL_DEVICE_NAME, or None when the Core does not have the device."""
    value = _property(core, name, "FULL_DEVICE_NAME")
    return None if value is None else str(value)


def capabilities(core: ov.Core, name: str) -> tuple[str, ...]:
    """OPTIMIZATION_CAPABILITIES ("FP32", "BF16", "INT8", …); empty when the device does not say."""
    return tuple(str(item) for item in _property(core, name, "OPTIMIZATION_CAPABILITIES") or ())


def inference_precision(core: ov.Core, name: str) -> str | None:
    """The precision that a device infers in ("f32", "f16", "bf16"), or None when it does not say."""
    text = property_text(core, name, "INFERENCE_PRECISION_HINT")
    return text if text in PRECISIONS else None


def memory_bytes(core: ov.Core, name: str) -> int | None:
    """Memory that a GPU or an NPU says it has, for CPUs this machine's or container's; None where it is not known."""
    if (declared := virtual.declared_memory(name)) is not None:
        return declared
    if kind_of(name) == "CPU":
        try:
            return int(min(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), cgroups.memory_limit()))
        except (AttributeError, OSError, ValueError):
            return None
    value = _property(core, name, f"{name.partition('.')[0]}_DEVICE_TOTAL_MEM_SIZE")
    return int(value) if isinstance(value, int) and 0 < value < 2**62 else None


def free_bytes(core: ov.Core, name: str) -> int | None:
    """Memory that can still be used: of a CPU (virtual ones too) the machine's or container's, else what a device has.

    A GPU or NPU does not say what other processes use of its memory; one that computes in the machine's memory has no
    more than is free there. None where nothing is known.
    """
    if kind_of(name) != "CPU":
        own = memory_bytes(core, name)
        host = free_bytes(core, "CPU") if uses_host_memory(core, name) else None
        return own if host is None else host if own is None else min(own, host)
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
        free = int(min(int(fields["MemAvailable"].split()[0]) * 1024, cgroups.free_memory()))
    except (OSError, ValueError, KeyError, IndexError):
        return virtual.declared_memory(name)
    declared = virtual.declared_memory(name)
    return free if declared is None else min(free, declared)


# Share of the memory that is free now that a model may have: other programs grow, too.
USABLE = 0.9


def usable_bytes(core: ov.Core, name: str, most: int) -> int | None:
    """What a model may have of the memory that is free now, and of `most`, where that is positive; None: no limit."""
    known = [bytes_ for bytes_ in (free_bytes(core, name), most) if bytes_ is not None and bytes_ > 0]
    return int(USABLE * min(known)) if known else None


def uses_host_memory(core: ov.Core, name: str) -> bool:
    """Whether a device computes in this machine's memory: its CPU, virtual ones too, integrated GPUs and NPUs."""
    if kind_of(name) == "CPU":
        return full_name(core, name) is not None
    return "INTEGRATED" in str(_property(core, name, "DEVICE_TYPE")).upper()


def memory_of(core: ov.Core, name: str) -> str:
    """The memory that a device computes in: "CPU" for this machine's, else its own, by the device's name."""
    return "CPU" if kind_of(name) == "CPU" or uses_host_memory(core, name) else name


def inference_threads(core: ov.Core, name: str) -> int | None:
    """The thread limit of a CPU device, or None when it has none (or does not say)."""
    value = _property(core, name, "INFERENCE_NUM_THREADS")
    return int(value) if value else None


def request_cores() -> int:
    """Cores of the CPU that one request runs on: usable ones, and no more than OpenVINO gives it threads.

    It leaves out hyper-threads on every system, and sockets but one. Where cores are alike and near one memory, all
    usable ones are left; elsewhere OpenVINO is asked.
    """
    usable = cpu.usable_cores()
    told = None if cpu.alike() else _threads_of_a_request(tuple(sorted(cpu.usable_cpus())))
    return usable if told is None else max(min(usable, told), 1)


# Prints how many threads a request has: in a process of its own, as after compiling forked children hang
# (docs/facts.md).
_ASK = """
import openvino as ov
from openvino import opset1
number = opset1.parameter(ov.Shape([1]), ov.Type.f32)
model = ov.Model([opset1.relu(number)], [number])
compiled = ov.Core().compile_model(model, "CPU", {"PERFORMANCE_HINT": "LATENCY", "CACHE_DIR": ""})
threads, streams = (int(compiled.get_property(key)) for key in ("INFERENCE_NUM_THREADS", "NUM_STREAMS"))
print(threads // max(streams, 1) if threads else "")
"""

_ASKING = 60.0  # seconds that this may take


@cache
def _threads_of_a_request(cpus: tuple[int, ...]) -> int | None:
    """Threads that OpenVINO gives a request on the CPU; None where it does not say. cpus: that this process may use."""
    try:
        environment = {**os.environ, "OV_HSDAG_DISABLE": "1"}
        command = [sys.executable, "-c", _ASK]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_ASKING, check=False)
        return int(done.stdout.strip())
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def property_text(core: ov.Core, name: str, key: str) -> str | None:
    """A property as text, a type by its name; None where the device does not say."""
    value = _property(core, name, key)
    return None if value is None else str(getattr(value, "get_type_name", lambda: value)())


def _property(core: ov.Core, name: str, key: str) -> Any:
    try:
        return core.get_property(name, key)
    except (RuntimeError, TypeError):
        return None
