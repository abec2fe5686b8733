"""Devices: parsing "HETERO:GPU,CPU", what a machine has, and virtual CPU devices.

A virtual CPU device is OpenVINO's CPU plugin registered a second time under another name with its own properties
(threads, precision), so that a machine with one CPU has several truly different devices. They are declared in the
environment variable ``OV_HSDAG_VIRTUAL_DEVICES``::

    CPU_A:INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT=bf16;CPU_B:INFERENCE_NUM_THREADS=1
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ov_hsdag import container
from ov_hsdag.errors import RunError, UserError, one_line

if TYPE_CHECKING:
    import openvino as ov

VIRTUAL_DEVICES_VARIABLE = "OV_HSDAG_VIRTUAL_DEVICES"
PRECISIONS = ("f32", "f16", "bf16", "i8")

_HETERO = "HETERO"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z0-9]+)*")
_VIRTUAL_NAME = re.compile(r"[A-Za-z0-9_]*CPU[A-Za-z0-9_]*")
_META_DEVICES = ("HETERO", "AUTO", "MULTI", "BATCH")
_VIRTUAL_PRECISIONS = ("f32", "f16", "bf16")

# What a split model does to the CPU plugin unless it is told otherwise, see docs/profiles.md: HETERO sets
# EXCLUSIVE_ASYNC_REQUESTS on every submodel, which drops INFERENCE_NUM_THREADS; and pinned threads of two one-core
# devices both land on the machine's first core, so that the devices never run at the same time.
_SPLIT_MODEL_PROPERTIES = {"EXCLUSIVE_ASYNC_REQUESTS": False}
_VIRTUAL_DEFAULTS = {"ENABLE_CPU_PINNING": "NO"}


@dataclass(frozen=True)
class DeviceSet:
    """The devices of a HETERO device string, in its order of priority."""

    names: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> DeviceSet:
        """Read a device string such as "HETERO:GPU,CPU".

        Raises:
            UserError: not a HETERO string, an empty or malformed name, fewer than two devices, or a device twice
                ("GPU" and "GPU.0" are the same device).
        """
        example = 'give at least two devices, for example "HETERO:GPU,CPU"'
        head, colon, tail = text.strip().partition(":")
        if head != _HETERO or not colon:
            raise UserError(f'device "{text}" is not a HETERO device list; {example}')
        names = tuple(name.strip() for name in tail.split(","))
        for name in names:
            if not name:
                raise UserError(f'device list "{text}" has an empty device name; {example}')
            if not _NAME.fullmatch(name) or name.upper() in _META_DEVICES:
                raise UserError(f'device list "{text}": "{name}" is not the name of a physical device; {example}')
        if len(names) < 2:
            raise UserError(f'device list "{text}" has only one device; {example}')
        seen: dict[str, str] = {}
        for name in names:
            first = seen.setdefault(name.removesuffix(".0"), name)
            if first is not name:
                same = f'lists "{name}" twice' if first == name else f'lists "{first}" and "{name}", the same device'
                raise UserError(f'device list "{text}" {same}; name every device once')
        return cls(names)

    @property
    def hetero(self) -> str:
        """The device string that OpenVINO takes."""
        return f"{_HETERO}:{','.join(self.names)}"

    def index(self, name: str) -> int:
        """Position of a device. Raises UserError when it is not in the list."""
        if name not in self.names:
            raise UserError(f'device "{name}" is not in {self.hetero}')
        return self.names.index(name)

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)


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


def kind_of(name: str) -> str | None:
    """Kind of a device from its name: "CPU" (virtual ones too), "GPU", "NPU" or None."""
    base = name.partition(".")[0]
    if base in ("GPU", "NPU"):
        return base
    return "CPU" if "CPU" in base else None


def available(core: ov.Core) -> list[DeviceInfo]:
    """The devices that a Core has, virtual ones included when they are registered, in OpenVINO's order.

    A property that a device does not answer (a broken driver, an older plugin) is left empty.
    """
    declared = virtual_devices()
    return [
        DeviceInfo(
            name=name,
            full_name=full_name(core, name) or "",
            kind=kind_of(name),
            virtual=is_virtual(name),
            capabilities=tuple(str(item) for item in _property(core, name, "OPTIMIZATION_CAPABILITIES") or ()),
            precision=inference_precision(core, name),
            limits=declared.get(name, {}),
        )
        for name in core.available_devices
    ]


def is_virtual(name: str) -> bool:
    """Whether a device name can only be that of a CPU plugin registered again ("CPU_A", never "CPU" or "CPU.0")."""
    base = name.partition(".")[0]
    return base != "CPU" and kind_of(name) == "CPU"


def absent(core: ov.Core, names: Iterable[str]) -> list[str]:
    """Those of the devices that are not on this machine."""
    return [name for name in names if full_name(core, name) is None]


def full_name(core: ov.Core, name: str) -> str | None:
    """FULL_DEVICE_NAME, or None when the Core does not have the device."""
    value = _property(core, name, "FULL_DEVICE_NAME")
    return None if value is None else str(value)


def inference_precision(core: ov.Core, name: str) -> str | None:
    """The precision that a device infers in ("f32", "f16", "bf16"), or None when it does not say."""
    value = _property(core, name, "INFERENCE_PRECISION_HINT")
    text = getattr(value, "get_type_name", lambda: str(value))()
    return text if text in PRECISIONS else None


def memory_bytes(core: ov.Core, name: str) -> int | None:
    """Memory that a GPU or an NPU says it has, for the CPU this machine's or container's; None where none can tell."""
    if name == "CPU":
        try:
            return int(min(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), container.memory_limit()))
        except (AttributeError, OSError, ValueError):
            return None
    value = _property(core, name, f"{name.partition('.')[0]}_DEVICE_TOTAL_MEM_SIZE")
    return int(value) if isinstance(value, int) and 0 < value < 2**62 else None


def inference_threads(core: ov.Core, name: str) -> int | None:
    """The thread limit of a CPU device, or None when it has none (or does not say)."""
    value = _property(core, name, "INFERENCE_NUM_THREADS")
    return int(value) if value else None


def usable_cores(system: Path = Path("/sys/devices/system/cpu")) -> int:
    """CPU cores that this process may use, at least one.

    On Linux cores are counted, not their hyper-threads, of which OpenVINO uses one for a single request; elsewhere
    hyper-threads. A container that may use so many CPUs' time has no more cores than that.
    """
    return int(min(len(cpus_by_core(system)), max(container.cpu_limit(), 1)))


def request_cores(core: ov.Core, name: str) -> int:
    """Cores of a CPU device that one request runs on: usable ones, and no more than OpenVINO gives it threads.

    It leaves out hyper-threads on every system, and sockets but one.
    """
    import openvino as ov

    from ov_hsdag.compat import op, opset1

    number = op.Parameter(ov.Type.f32, ov.Shape([1]))
    try:
        compiled = core.compile_model(
            ov.Model([opset1.relu(number)], [number]), name, {"PERFORMANCE_HINT": "LATENCY", "CACHE_DIR": ""}
        )
        threads, streams = (int(compiled.get_property(key)) for key in ("INFERENCE_NUM_THREADS", "NUM_STREAMS"))
    except RuntimeError:
        return usable_cores()
    return max(min(usable_cores(), threads // max(streams, 1)), 1)


def cpus_by_core(system: Path = Path("/sys/devices/system/cpu")) -> dict[str, int]:
    """The lowest number of the CPUs (hyper-threads) that this process may use of each core, by the core's siblings."""
    found: dict[str, int] = {}
    for cpu in sorted(_usable_cpus()):
        try:
            siblings = (system / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text("ascii")
        except (OSError, ValueError):
            siblings = str(cpu)
        found.setdefault(siblings.strip(), cpu)
    return found


def _usable_cpus() -> set[int]:
    """Numbers of the CPUs that threads of this process may run on. A library may have bound the one that asks."""
    if not hasattr(os, "sched_getaffinity"):
        return set(range(os.cpu_count() or 1))
    cpus = set(os.sched_getaffinity(0))
    with contextlib.suppress(OSError):
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):  # it has ended
                cpus |= os.sched_getaffinity(int(thread.name))
    return cpus


def has_amx_bf16() -> bool:
    """Whether this machine's CPU multiplies bf16 matrices in hardware tiles. Known on Linux only, else False.

    OpenVINO's own OPTIMIZATION_CAPABILITIES says "BF16" with and without tiles, whose speed differs about four times.
    """
    if platform.system() != "Linux":
        return False
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return any(line.startswith("flags") and " amx_bf16" in line for line in file)
    except OSError:
        return False


def _property(core: ov.Core, name: str, key: str) -> Any:
    try:
        return core.get_property(name, key)
    except (RuntimeError, TypeError):
        return None


def virtual_devices(text: str | None = None) -> dict[str, dict[str, str]]:
    """Declared virtual devices: name → properties, from ``text`` or else ``OV_HSDAG_VIRTUAL_DEVICES``.

    Returns an empty dictionary when none are declared.

    Raises:
        UserError: malformed text, a name twice, a name that OpenVINO's CPU plugin cannot have, or a bad limit.
    """
    if text is None:
        text = os.environ.get(VIRTUAL_DEVICES_VARIABLE, "")
    devices: dict[str, dict[str, str]] = {}
    for entry in filter(None, (part.strip() for part in text.split(";"))):
        name, _, tail = entry.partition(":")
        name = name.strip()
        if name == "CPU" or not _VIRTUAL_NAME.fullmatch(name):
            _refuse(f'"{name}" cannot name a virtual device; use letters, digits and "_" with CPU in it, such as CPU_A')
        if name in devices:
            _refuse(f'"{name}" is declared twice; declare every device once')
        devices[name] = _parse_properties(name, tail)
    return devices


def _parse_properties(name: str, text: str) -> dict[str, str]:
    properties: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not key or not equals or not value:
            _refuse(f'"{item}" of {name} is not KEY=VALUE, such as INFERENCE_NUM_THREADS=1')
        if key in properties:
            _refuse(f"{name} has {key} twice; give every property once")
        if key == "INFERENCE_NUM_THREADS" and (not re.fullmatch(r"[0-9]{1,6}", value) or int(value) == 0):
            _refuse(f'{name} has INFERENCE_NUM_THREADS "{value}"; give a positive number of threads')
        if key == "INFERENCE_PRECISION_HINT" and value not in _VIRTUAL_PRECISIONS:
            _refuse(f'{name} has INFERENCE_PRECISION_HINT "{value}"; use one of {", ".join(_VIRTUAL_PRECISIONS)}')
        properties[key] = value
    return properties


def _refuse(reason: str) -> None:
    raise UserError(f"{VIRTUAL_DEVICES_VARIABLE}: {reason}")


def register(core: ov.Core) -> tuple[str, ...]:
    """Register the declared virtual devices on a Core and set their properties; names of those devices.

    Safe to call again, and on a Core that already has them: only the properties are then set again.

    Raises:
        UserError: the declaration is malformed, or the CPU plugin refuses a property or its value.
        RunError: OpenVINO's CPU plugin cannot be registered.
    """
    declared = virtual_devices()
    for name, properties in declared.items():
        _register_cpu_plugin(core, name)
        try:
            core.set_property(name, {**_VIRTUAL_DEFAULTS, **properties})
            core.get_property(name, "INFERENCE_NUM_THREADS")  # loads the plugin, which is when it checks the properties
        except RuntimeError as error:
            _refuse(f"OpenVINO refuses the properties of {name}: {one_line(error)}")
    return tuple(declared)


def _register_cpu_plugin(core: ov.Core, name: str) -> None:
    arm = platform.machine().lower() in ("arm64", "aarch64")
    try:
        core.register_plugin(f"openvino_{'arm' if arm else 'intel'}_cpu_plugin", name)
    except RuntimeError as error:
        if "already registered" not in str(error):
            raise RunError(f"cannot register virtual device {name}: {one_line(error)}") from error


def compile_properties(device: str, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Complete a compile_model configuration so that virtual devices keep their limits in split models.

    Every virtual device of a HETERO device string gets an entry in DEVICE_PROPERTIES with its declared limits and
    EXCLUSIVE_ASYNC_REQUESTS off. What the caller configures wins: a property of the device first, then one given for
    all devices. Anything else (another device string, no virtual device in it) comes back as it was.

    Args:
        device: device string given to compile_model, "HETERO:CPU_A,CPU_B", or "HETERO" with
            MULTI_DEVICE_PRIORITIES in the configuration.
        config: the caller's configuration; not changed.
    """
    completed = dict(config or {})
    names = _hetero_names(device, completed)
    virtual = {name: limits for name, limits in virtual_devices().items() if name in names} if names else {}
    if not virtual:
        return completed
    given = _device_properties(completed.get("DEVICE_PROPERTIES"))
    if given is None:  # OpenVINO says what is wrong with it
        return completed
    for name, limits in virtual.items():
        wanted: dict[str, Any] = {**_VIRTUAL_DEFAULTS, **_SPLIT_MODEL_PROPERTIES, **limits}
        kept = {key: value for key, value in wanted.items() if key not in completed}
        given[name] = {**kept, **given.get(name, {})}
    completed["DEVICE_PROPERTIES"] = given
    return completed


def _hetero_names(device: str, config: Mapping[str, Any]) -> tuple[str, ...]:
    head, _, tail = device.partition(":")
    if head != _HETERO:
        return ()
    return tuple(name.strip() for name in (tail or str(config.get("MULTI_DEVICE_PRIORITIES", ""))).split(","))


def _device_properties(value: Any) -> dict[str, dict[str, Any]] | None:
    """DEVICE_PROPERTIES in any form that OpenVINO's Python API takes (dictionary, JSON, OVAny); None if neither."""
    value = getattr(value, "value", value)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(item, Mapping) for item in value.values()):
        return None
    return {str(name): dict(properties) for name, properties in value.items()}
