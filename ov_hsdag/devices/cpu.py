"""The machine's CPU: cores that this process may use, and what they can do."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path

from ov_hsdag.devices import cgroups


def usable_cores(system: Path = Path("/sys/devices/system/cpu")) -> int:
    """CPU cores that this process may use, at least one.

    On Linux cores are counted, not their hyper-threads, of which OpenVINO uses one for a single request; elsewhere
    hyper-threads. A container that may use so many CPUs' time has no more cores than that.
    """
    return int(min(len(cpus_by_core(system)), max(cgroups.cpu_limit(), 1)))


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
