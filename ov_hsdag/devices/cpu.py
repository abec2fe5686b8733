"""Finds out which CPU cores of the machine this process may use, how busy they are, and what they can compute.

A CPU here is what Linux numbers as one: a hyper-thread. A core is a physical one, with one or several hyper-threads.
"""

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
    """Counts the physical CPU cores that this process may use, at least one.

    loky counts physical cores within the CPU affinity; OpenVINO uses one hyper-thread of each for a single request. Two
    things differ from loky's own count. The affinity is that of all threads of the process together, because a library
    may have bound the calling thread to one core. And a control group's quota is rounded down, while loky rounds it up
    (2.5 CPUs keep two threads busy, not three), and is looked up in the groups around the process's own, too.
    """
    # A separate thread, because loky counts for the calling thread on Linux, whose affinity must not change.
    with ThreadPoolExecutor(1) as pool:
        counted = pool.submit(_physical_cores).result()
    return int(min(counted, max(cgroups.cpu_limit(), 1)))


def busy_cores() -> float:
    """Estimates how many usable cores worked in the last minute, from the system's load average; 0 if it has none."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return min(load, float(usable_cores()))


def processor_seconds(cpus: Collection[int]) -> float:
    """Computes the processor time that programs have used on these CPUs since the system started.

    It is computed from the idle time. Linux counts that to the microsecond (and reports hundredths of a second), while
    it only samples running programs every few milliseconds.

    Args:
        cpus: numbers of the CPUs.

    Returns:
        Seconds, all CPUs together; 0 if the system does not report it, or if a control group limits this process to
        fewer CPUs, because the time of other programs does not matter to it then.
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
    """Counts the physical cores within the affinity of all threads; sets the calling thread's affinity to that."""
    # Imported here, because that takes 40 ms.
    from loky import cpu_count

    if hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, usable_cpus())
    # Where /proc/cpuinfo names no cores (on Arm), loky counts CPUs and prints the reason with a traceback.
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        return int(cpu_count(only_physical_cores=True))


def alike() -> bool:
    """Whether Linux reports that all cores are of one kind and near one memory; False on other systems."""
    devices = Path("/sys/devices")
    nodes = list((devices / "system/node").glob("node[0-9]*"))
    return len(nodes) == 1 and not (devices / "cpu_atom").exists()


def usable_cpus() -> set[int]:
    """Numbers of the CPUs (hyper-threads) that threads of this process may run on; empty except on Linux."""
    if not hasattr(os, "sched_getaffinity"):
        return set()
    cpus = set(os.sched_getaffinity(0))
    with contextlib.suppress(OSError):
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):  # the thread has ended
                cpus |= os.sched_getaffinity(int(thread.name))
    return cpus


def has_amx_bf16() -> bool:
    """Whether this machine's CPU multiplies bf16 matrices in hardware tiles; False if that is not known (not on Linux).

    OpenVINO's OPTIMIZATION_CAPABILITIES is "BF16" with and without tiles, though the speeds differ about four times.
    """
    try:
        return " amx_bf16" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
