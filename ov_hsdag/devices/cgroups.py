"""Reads the limits of the control groups that this process is in (Linux, versions 1 and 2), such as a container's.

A process is in one group for each resource (controller), and in all groups around that one. The tightest limit holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

# The folder of the control groups, and the file with the groups of this process.
_GROUPS, _PROCESS_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def cpu_limit(groups: Path = _GROUPS, own: Path = _PROCESS_GROUPS) -> float:
    """Returns the number of CPUs whose time the process may use, which may be fractional; inf without a limit.

    Args:
        groups: folder of the control groups.
        own: file that lists the groups of this process, see cgroups(7).
    """
    limits = [math.inf]
    for folder in _folders("cpu", groups, own):
        limit = _numbers(folder / "cpu.max", 2) or tuple(
            number for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us") for number in _numbers(folder / name, 1)
        )
        quota, period = limit if len(limit) == 2 else (0.0, 0.0)
        if quota > 0 and period > 0:
            limits.append(quota / period)
    return min(limits)


def memory_limit(groups: Path = _GROUPS, own: Path = _PROCESS_GROUPS) -> float:
    """Returns the bytes that the process may use; inf without a limit. The arguments are those of `cpu_limit`."""
    return min((limit for limit, _ in _memory(groups, own)), default=math.inf)


def free_memory(groups: Path = _GROUPS, own: Path = _PROCESS_GROUPS) -> float:
    """Returns the bytes that the process may still use; inf without a limit.

    Cached files that the kernel would drop count as free. The arguments are those of `cpu_limit`.
    """
    return min((free for _, free in _memory(groups, own)), default=math.inf)


def _memory(groups: Path, own: Path) -> Iterator[tuple[float, float]]:
    """Yields (limit, free) in bytes for each control group with a memory limit; free is inf if its use is not known."""
    for folder in _folders("memory", groups, own):
        for names in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            limit, used = (_numbers(folder / name, 1) for name in names)
            if limit and limit[0] > 0:
                yield limit[0], max(limit[0] - used[0] + _reclaimable_bytes(folder), 0.0) if used else math.inf


def _reclaimable_bytes(folder: Path) -> float:
    """Returns the bytes of a group's inactive files in memory, which the kernel drops when needed; 0 if not known."""
    try:
        entries = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return float(entries.get("total_inactive_file", entries.get("inactive_file", "0")))
    except (OSError, ValueError):
        return 0.0


def _folders(controller: str, groups: Path, own: Path) -> Iterator[Path]:
    """Yields the folders of the process's control group and of the groups around it.

    A container sees its own group as the root, and its path in the host may not be there. So a folder may not exist.

    Args:
        controller: the resource, "cpu" or "memory".
        groups: folder of the control groups.
        own: file that lists the groups of this process.
    """
    try:
        lines = own.read_text().splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and controller not in controllers.split(","):
            continue
        root = groups / controller if controllers else groups
        inner = root / path.lstrip("/")
        yield inner
        yield from (folder for folder in inner.parents if folder.is_relative_to(root))


def _numbers(file: Path, count: int) -> tuple[float, ...]:
    """Reads the numbers of a file, "max" as inf.

    Returns:
        The numbers; () if there is no such file, or it does not have exactly `count` numbers.
    """
    try:
        numbers = tuple(math.inf if word == "max" else float(word) for word in file.read_text().split())
    except (OSError, ValueError):
        return ()
    return numbers if len(numbers) == count else ()
