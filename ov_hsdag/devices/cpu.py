"""The machine's CPU: cores that this process may use, and what they can do."""

from __future__ import annotations

import contextlib
import io
import os
import time
import warnings
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ov_hsdag.devices import cgroups


def usable_cores() -> int:
    """Number of physical CPU cores that this process may use, at least one.

    Counted by loky: physical cores (of whose hyper-threads OpenVINO uses one for a single request) within the CPU
    affinity. Two cases differ from loky's own: the affinity is that of all threads of the process together, since a
    library may have bound the calling thread to one core; and a control group's quota is rounded down where loky rounds
    it up (2.5 CPUs keep two threads busy, not three), and is looked for in the groups around the process's own, too.
    """
    # In a thread of its own: on Linux loky counts for the calling thread, whose affinity must not change.
    with ThreadPoolExecutor(1) as pool:
        counted = pool.submit(_physical_cores).result()
    return int(min(counted, max(cgroups.cpu_limit(), 1)))


def busy_cores() -> float:
    """How many of the usable cores have worked in the last minute, on average; 0 where the system does not say."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return min(load, float(usable_cores()))


def processor_seconds(cpus: Collection[int]) -> float:
    """Processor time that programs have had on these CPUs since the system began, seconds.

    It is what idle time leaves: Linux counts that to the microsecond (and tells hundredths of a second of it), while it
    only samples what runs, every few milliseconds.

    Returns:
        0 where the system does not say, or where a control group lets this process use fewer CPUs: what others use is
        none of its own then.
    """
    idle, counted = 0, 0
    with contextlib.suppress(OSError, ValueError), open("/proc/stat", encoding="ascii") as file:
        usable = {f"cpu{number}" for number in cpus} if cgroups.cpu_limit() >= len(cpus) else set()
        for name, *ticks in (line.split() for line in file):
            if name in usable:  # user, nice, system, idle, waiting for input and output, interrupts
                idle += sum(map(int, ticks[3:5]))
                counted += 1
    return counted * time.monotonic() - idle / os.sysconf("SC_CLK_TCK") if idle else 0.0


def _physical_cores() -> int:
    """Physical cores within the affinity of all threads. Widens the affinity of the calling thread to that."""
    # Takes 40 ms to import.
    from loky import cpu_count

    if hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, usable_cpus())
    # Where /proc/cpuinfo names no cores (on Arm) loky counts CPUs, and prints why with a traceback.
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        return int(cpu_count(only_physical_cores=True))


def alike() -> bool:
    """Whether all cores of the machine are of one kind and near one memory, as far as Linux says; False elsewhere."""
    devices = Path("/sys/devices")
    nodes = list((devices / "system/node").glob("node[0-9]*"))
    return len(nodes) == 1 and not (devices / "cpu_atom").exists()


def usable_cpus() -> set[int]:
    """Numbers of the CPUs (hyper-threads) that threads of this process may run on; empty but on Linux."""
    if not hasattr(os, "sched_getaffinity"):
        return set()
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
    try:
        return " amx_bf16" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
