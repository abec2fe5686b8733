"""Chooses the built-in profiles of the devices of a list.

A built-in profile describes one product, and has patterns for the full names of the devices that it describes. A device
that no pattern matches, or that is not on this machine, gets the common profile of its kind, which is then only a guess
(`DeviceProfile.standing_in`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ov_hsdag.costs.profile import DeviceProfile, Profile, builtin_names, load_builtin
from ov_hsdag.devices import cpu, discovery, virtual
from ov_hsdag.devices.device_set import closest_names, is_virtual, kind_of
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import ov

# Common profile of each kind, for devices that no built-in profile matches or that are not on this machine.
_DEFAULTS = {"CPU": "core_ultra_7_155h", "GPU": "iris_xe", "NPU": "npu_core_ultra"}

# Profile of discrete cards. At most one GPU of a list is integrated, so among several GPUs those that are not on this
# machine count as cards.
_CARD = "arc_a770"


def builtin_profile(names: Sequence[str], core: ov.Core | None = None) -> Profile:
    """Combines the built-in profiles of devices.

    - A device of this machine gets the profile that matches its full name, with the precision and the memory that the
      device reports. The rates of a CPU are reduced to the cores that this process may use.
    - A CPU of this machine that no profile matches gets the profile of one core, scaled to the cores that one
      request runs on.
    - Any other device that no profile matches, or that is not on this machine, gets the common profile of its kind.
      Among several GPUs, those that are not on this machine get the profile of a discrete card (`assumed_cards`).
    - If the CPU is the only device of several that is on this machine, the model is meant for another machine. So the
      CPU gets the common profile, too.
    - A virtual CPU device gets the profile of one core, scaled to its number of cores, at its declared precision.

    Args:
        names: names of the devices.
        core: a Core with the devices of this machine; None if all devices count as missing.

    Returns:
        The profile.

    Raises:
        UserError: no built-in profile can stand for a device.
    """
    declared = virtual.virtual_devices()
    present = [name for name in names if core is not None and discovery.full_name(core, name) is not None]
    if present == ["CPU"] != list(names):
        core = None
    cards = assumed_cards(names, core)
    profiles = {name: _builtin_for(name, declared, core) for name in names if name not in cards}
    profiles |= {name: load_builtin(_CARD).standing_in() for name in cards}
    return Profile({name: replace(profiles[name], name=name) for name in names})


def assumed_cards(names: Sequence[str], core: ov.Core | None) -> list[str]:
    """Names the GPUs that count as discrete cards: those that are not on this machine, if the list has several GPUs."""
    gpus = [name for name in names if kind_of(name) == "GPU"]
    return [name for name in gpus if core is None or discovery.full_name(core, name) is None] if len(gpus) > 1 else []


def _builtin_for(name: str, declared: Mapping[str, Mapping[str, str]], core: ov.Core | None) -> DeviceProfile:
    """Chooses the profile of one device, physical or virtual.

    Args:
        name: name of the device.
        declared: properties of the declared virtual devices, by device name.
        core: a Core with the devices of this machine; None if all devices count as missing.

    Returns:
        The profile, still with the name of the built-in device.

    Raises:
        UserError: no built-in profile can stand for the device.
    """
    base = name.partition(".")[0]
    if base in _DEFAULTS:
        return _physical_device_profile(name, base, core)
    present = core is not None and discovery.full_name(core, name) is not None
    if name in declared or (is_virtual(name) and present):
        return _virtual_device_profile(name, declared.get(name, {}), core if present else None)
    hint = f"declare it in {virtual.VIRTUAL_DEVICES_VARIABLE}" if is_virtual(name) else "give a profile that has it"
    known_names = {*_DEFAULTS, "GPU.0", *declared, *(core.available_devices if core is not None else ())}
    raise UserError(
        f'unknown device "{name}": there are built-in profiles for {", ".join(_DEFAULTS)} (and GPU.0 …) and for '
        f"declared virtual CPU devices; {hint}{closest_names(name, known_names)}"
    )


def _physical_device_profile(name: str, kind: str, core: ov.Core | None) -> DeviceProfile:
    """Chooses the profile of a CPU, GPU or NPU, adapted to the device of this machine if there is one.

    Args:
        name: name of the device.
        kind: its kind, a key of `_DEFAULTS`.
        core: a Core with the devices of this machine; None if the device counts as missing.
    """
    common = load_builtin(_DEFAULTS[kind])
    full_name = discovery.full_name(core, name) if core is not None else None
    if core is None or full_name is None:
        return common.standing_in()
    profile = _matching_profile(kind, full_name)
    if kind == "CPU" and profile is not None:
        profile = profile.with_fewer_cores(cpu.usable_cores())
    elif kind == "CPU":
        profile = _one_core(core).with_threads(discovery.request_cores(), common.memory_gbps)
    profile = _with_memory(profile or common.standing_in(), name, core)
    return profile.at_precision(discovery.inference_precision(core, name))


def _with_memory(profile: DeviceProfile, name: str, core: ov.Core) -> DeviceProfile:
    """Replaces the memory of a profile by that which the device `name` of this machine reports, if it does."""
    memory = discovery.memory_bytes(core, name)
    if memory is None:
        return profile
    sources = {**profile.sources, "memory_bytes": f"this machine's {name}"}
    return replace(profile, memory_bytes=memory, sources=sources)


def _matching_profile(kind: str, full_name: str) -> DeviceProfile | None:
    """The built-in profile that matches a device's full name; None if there is none."""
    built_in = (load_builtin(stem) for stem in builtin_names())
    matching = (one for one in built_in if one.kind == kind and any(re.search(each, full_name) for each in one.matches))
    return next(matching, None)


def _one_core(core: ov.Core | None) -> DeviceProfile:
    """The built-in profile of one CPU core: with AMX if this machine's CPU has it, without AMX if `core` is None."""
    return load_builtin("cpu_core_amx" if core is not None and cpu.has_amx_bf16() else "cpu_core").standing_in()


def _virtual_device_profile(name: str, limits: Mapping[str, str], core: ov.Core | None) -> DeviceProfile:
    """Makes the profile of a virtual CPU device: that of one core, scaled to the device's number of threads.

    Args:
        name: name of the device.
        limits: properties that its declaration gives, such as INFERENCE_NUM_THREADS; empty if it is not declared.
        core: a Core that has the device; None if the device is not on this machine.
    """
    threads = int(limits.get("INFERENCE_NUM_THREADS", 0))
    precision = limits.get("INFERENCE_PRECISION_HINT")
    if core is not None:
        threads = threads or discovery.inference_threads(core, name) or 0
        # The device's own report is better than the declaration: a CPU without bf16 infers in f32.
        precision = discovery.inference_precision(core, name) or precision
        threads = threads or discovery.request_cores()
    full_name = discovery.full_name(core, "CPU") if core is not None else None
    whole = (full_name and _matching_profile("CPU", full_name)) or load_builtin(_DEFAULTS["CPU"])
    if core is not None:  # more threads than cores take turns
        threads = min(threads, cpu.usable_cores())
    profile = _one_core(core).with_threads(threads or cpu.usable_cores(), whole.memory_gbps).at_precision(precision)
    return profile if core is None else _with_memory(profile, name, core)


def costs_line(
    used: Sequence[str], where: Path | None, given: object, names: Sequence[str], core: ov.Core, flag: str = "--profile"
) -> str:
    """Describes where costs of operations come from, in a line.

    Args:
        used: devices whose measured costs are used.
        where: the file of the measured costs, where there is one.
        given: the profile that the user gave, as it is printed; nothing if false.
        names: names of all devices.
        core: the Core, which matches the devices of this machine to built-in profiles.
        flag: option that gives another profile, for the message.

    Returns:
        The text, which begins with "costs:".
    """
    parts = [f"measured on {', '.join(used)}{f' ({where})' if where else ''}"] if used else []
    unmeasured = [name for name in names if name not in used]
    if unmeasured and given:
        parts.append(f"{given} for {', '.join(unmeasured)}")
    elif unmeasured:
        builtin = builtin_profile(names, core)
        profiles = ", ".join(f"{builtin.device(name).builtin} for {name}" for name in unmeasured)
        cards = "GPUs that are not here count as discrete cards; " if assumed_cards(names, core) else ""
        parts.append(f"built-in profiles {profiles} ({cards}{flag} gives others)")
    return f"costs: {', '.join(parts)}"
