"""Properties that OpenVINO reports about the devices of this machine.

There are three sizes of a device's memory. `memory_bytes` is all of it, the limit of placements without `--memory`;
`free_bytes` is the part that is free now; `usable_bytes` is the share of the free part that `fit` allows a model.
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
    """Properties of one device of the machine."""

    name: str  # OpenVINO's name, such as "GPU.1"
    full_name: str  # FULL_DEVICE_NAME, "" if not known
    kind: str | None  # "CPU", "GPU", "NPU", or None for a device of another kind
    virtual: bool  # whether it is a virtual CPU device
    capabilities: tuple[str, ...]  # OPTIMIZATION_CAPABILITIES: "FP32", "BF16", "INT8", …
    precision: str | None  # the floating-point precision that the device infers in
    limits: Mapping[str, str] = field(default_factory=dict)  # declared properties of a virtual device


def available(core: ov.Core) -> list[DeviceInfo]:
    """Lists the devices of a Core in OpenVINO's order, including registered virtual devices.

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
    """Returns those of the named devices that the Core does not have."""
    return [name for name in names if full_name(core, name) is None]


def full_name(core: ov.Core, name: str) -> str | None:
    """Reads a device's FULL_DEVICE_NAME; None if the Core does not have the device."""
    value = _property(core, name, "FULL_DEVICE_NAME")
    return None if value is None else str(value)


def capabilities(core: ov.Core, name: str) -> tuple[str, ...]:
    """Reads a device's OPTIMIZATION_CAPABILITIES ("FP32", "BF16", "INT8", …); () if it does not report them."""
    return tuple(str(item) for item in _property(core, name, "OPTIMIZATION_CAPABILITIES") or ())


def inference_precision(core: ov.Core, name: str) -> str | None:
    """Reads the precision that a device infers in ("f32", "f16", "bf16"); None if it does not report it."""
    text = property_text(core, name, "INFERENCE_PRECISION_HINT")
    return text if text in PRECISIONS else None


def memory_bytes(core: ov.Core, name: str) -> int | None:
    """Returns the size of a device's memory in bytes; None if not known.

    GPUs and NPUs report it. A CPU has the memory of the machine or container, a virtual device what it declares.
    """
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
    """Returns the memory of a device that can still be used, in bytes; None if not known.

    For a CPU (and virtual ones) it is the free memory of the machine or container. A GPU or NPU does not report the
    memory that other processes use, so it counts as free as a whole; one that computes in the machine's memory has at
    most the free part of that.
    """
    if kind_of(name) != "CPU":
        device_bytes = memory_bytes(core, name)
        host = free_bytes(core, "CPU") if uses_host_memory(core, name) else None
        return device_bytes if host is None else host if device_bytes is None else min(device_bytes, host)
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
        free = int(min(int(fields["MemAvailable"].split()[0]) * 1024, cgroups.free_memory()))
    except (OSError, ValueError, KeyError, IndexError):
        return virtual.declared_memory(name)
    declared = virtual.declared_memory(name)
    return free if declared is None else min(free, declared)


# Share of the free memory that a model may have, as other programs may need more as well.
USABLE = 0.9


def usable_bytes(core: ov.Core, name: str, most: int) -> int | None:
    """Returns the memory that a model may take on a device: a share of what is free.

    Args:
        core: the Core.
        name: name of the device.
        most: a further limit in bytes; none if it is not positive.

    Returns:
        Bytes: `USABLE` of the free memory or of `most`, whichever is less; None if neither is known.
    """
    positive_limits = [bytes_ for bytes_ in (free_bytes(core, name), most) if bytes_ is not None and bytes_ > 0]
    return int(USABLE * min(positive_limits)) if positive_limits else None


def uses_host_memory(core: ov.Core, name: str) -> bool:
    """Whether a device computes in this machine's memory: CPUs (also virtual ones), integrated GPUs and NPUs."""
    if kind_of(name) == "CPU":
        return full_name(core, name) is not None
    return "INTEGRATED" in str(_property(core, name, "DEVICE_TYPE")).upper()


def memory_of(core: ov.Core, name: str) -> str:
    """Returns a name for the memory that a device computes in: "CPU" for this machine's, else the device's name."""
    return "CPU" if kind_of(name) == "CPU" or uses_host_memory(core, name) else name


def inference_threads(core: ov.Core, name: str) -> int | None:
    """Returns the largest number of threads that a CPU device computes with; None if it has or reports no limit."""
    value = _property(core, name, "INFERENCE_NUM_THREADS")
    return int(value) if value else None


def request_cores() -> int:
    """Returns the number of CPU cores that one request runs on.

    These are the usable cores, but at most as many as the threads that OpenVINO gives a request.

    OpenVINO leaves out hyper-threads on every system, and all sockets but one. Where cores are alike and near one
    memory, all usable ones remain; elsewhere OpenVINO is asked.
    """
    usable = cpu.usable_cores()
    threads = None if cpu.alike() else _threads_of_a_request(tuple(sorted(cpu.usable_cpus())))
    return usable if threads is None else max(min(usable, threads), 1)


# A program that prints the number of threads of a request. It runs in a separate process, because forked children of a
# process that has compiled hang (docs/reference/facts.md).
_THREADS_PROGRAM = """
import openvino as ov
from openvino import opset1
number = opset1.parameter(ov.Shape([1]), ov.Type.f32)
model = ov.Model([opset1.relu(number)], [number])
compiled = ov.Core().compile_model(model, "CPU", {"PERFORMANCE_HINT": "LATENCY", "CACHE_DIR": ""})
threads, streams = (int(compiled.get_property(key)) for key in ("INFERENCE_NUM_THREADS", "NUM_STREAMS"))
print(threads // max(streams, 1) if threads else "")
"""

_THREADS_PROGRAM_SECONDS = 60.0  # seconds after which that program is stopped


@cache
def _threads_of_a_request(cpus: tuple[int, ...]) -> int | None:
    """Asks OpenVINO in another process how many threads it gives a request on the CPU; None if it does not say.

    Args:
        cpus: numbers of the CPUs that this process may use; the result is cached by them.
    """
    try:
        environment = {**os.environ, "OV_HSDAG_DISABLE": "1"}
        command = [sys.executable, "-c", _THREADS_PROGRAM]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_THREADS_PROGRAM_SECONDS, check=False
        )
        return int(done.stdout.strip())
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def property_text(core: ov.Core, name: str, key: str) -> str | None:
    """Reads a property as text.

    Args:
        core: the Core.
        name: name of the device.
        key: name of the property.

    Returns:
        The value as text, an element type by its name; None if the device does not report it.
    """
    value = _property(core, name, key)
    return None if value is None else str(getattr(value, "get_type_name", lambda: value)())


def _property(core: ov.Core, name: str, key: str) -> Any:
    """Reads the property `key` of the device `name`; None if the device does not report it."""
    try:
        return core.get_property(name, key)
    except (RuntimeError, TypeError):
        return None
