"""Finds libraries that this process has loaded, and keeps that of the HETERO plugin in memory until the process ends.

OpenVINO unloads it together with the last Core that uses it. A thread that ran the last submodel may then still hold an
inference request of HETERO, and freeing that needs the library: some programs that split a model end in a segmentation
fault (OpenVINO 2026.4.1, without ov_hsdag as well; see docs/reference/facts.md).
"""

from __future__ import annotations

import ctypes
import os
import re

_HETERO = b"openvino_hetero_plugin"
"""Part of the file name of the plugin's library that is the same on every system."""

_is_kept = False


def paths_of(part: bytes) -> set[str]:
    """Lists the libraries that this process has loaded, by a part of their names.

    Args:
        part: text that the file name contains.

    Returns:
        Their paths; none on systems other than Linux, which do not list the libraries of a process in /proc.
    """
    try:
        with open("/proc/self/maps", "rb") as file:
            mapped = file.read()
    except OSError:
        return set()
    named = re.compile(rb"/[^\n]*" + re.escape(part) + rb"[^\n/]*$", re.MULTILINE)
    return {os.fsdecode(path) for path in named.findall(mapped)}


def keep_hetero() -> None:
    """Keeps the HETERO plugin in memory, if this process has loaded it; see `paths_of` for other systems."""
    global _is_kept
    if _is_kept:
        return
    for path in paths_of(_HETERO):
        try:
            ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_NOLOAD | os.RTLD_NODELETE)
        except OSError:  # the file was replaced since it was loaded, as when a package is updated
            continue
        _is_kept = True
