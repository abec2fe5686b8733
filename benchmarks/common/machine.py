"""Describes the machine, the versions and the commit that made a table."""

from __future__ import annotations

import datetime
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from ov_hsdag.devices.cpu import usable_cores


def about() -> dict[str, Any]:
    """Machine, versions and date of a table."""
    cores = usable_cores()
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": f"{processor()}, {cores} core{'s' * (cores != 1)} usable",
        "python": platform.python_version(),
        "versions": versions(),
        "commit": commit(),
    }


def commit() -> str | None:
    """The commit of the source tree, followed by "+" if files differ from it; None outside of git."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


def versions() -> dict[str, str | None]:
    """Versions of the packages that influence results; None for packages that are not installed."""
    found: dict[str, str | None] = {}
    for package in ("ov-hsdag", "openvino", "numpy", "scipy", "torch", "torch-geometric", "pymetis", "ortools"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def processor() -> str:
    """The model name of this machine's processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
