"""Keeps the library of the HETERO plugin in memory until the process ends.

OpenVINO unloads it together with the last Core that uses it. A thread that ran the last submodel may then still hold an
inference request of HETERO, and freeing that needs the library: about one in 500 programs that split a model end in a
segmentation fault (OpenVINO 2026.4.1, without ov_hsdag as well; see docs/reference/facts.md).
"""

from __future__ import annotations

import ctypes
import os
import re

_LIBRARY = re.compile(rb"/[^\n]*openvino_hetero_plugin[^\n/]*$", re.MULTILINE)
"""The path of the plugin's library at the end of a line of /proc/self/maps."""

_kept: set[bytes] = set()


def keep_loaded() -> None:
    """Keeps the HETERO plugin in memory, if this process has loaded it.

    It does nothing on systems other than Linux, which do not list the libraries of a process in /proc.
    """
    if _kept:
        return
    try:
        with open("/proc/self/maps", "rb") as file:
            paths = set(_LIBRARY.findall(file.read()))
    except OSError:
        return
    for path in paths:
        try:
            ctypes.CDLL(os.fsdecode(path), mode=os.RTLD_NOW | os.RTLD_NOLOAD | os.RTLD_NODELETE)
        except OSError:  # the file was replaced since it was loaded, as when a package is updated
            continue
        _kept.add(path)
