"""A source tree without the compiled core gives way to an installed package.

Python puts a script's folder (``-m``, ``-c``: the working directory) before everything that is installed, so in a
checkout its ``ov_hsdag`` is found first. Unless the core was compiled there, it can do nothing; the installed one can.
"""

from __future__ import annotations

import os
import sys
from _imp import extension_suffixes  # importlib.machinery.EXTENSION_SUFFIXES, without loading importlib


def has_core(folder: str) -> bool:
    """Whether a folder holds the compiled core for this interpreter."""
    return any(os.path.exists(os.path.join(folder, f"_native{suffix}")) for suffix in extension_suffixes())


def gave_way(folder: str) -> bool:
    """Put an installed package in the place of this one where only that has the compiled core.

    Called while ``ov_hsdag`` is being imported: the import returns what ``sys.modules`` holds in the end.

    folder: Of this package. Returns whether another package took its place.
    """
    if has_core(folder):
        return False
    places = (os.path.abspath(os.path.join(entry, "ov_hsdag")) for entry in sys.path if isinstance(entry, str))
    installed = next(filter(has_core, places), None)
    if installed is None:
        return False
    from importlib.util import module_from_spec, spec_from_file_location

    start = os.path.join(installed, "__init__.py")
    spec = spec_from_file_location("ov_hsdag", start, submodule_search_locations=[installed])
    if spec is None or spec.loader is None:
        return False
    for name in [name for name in sys.modules if name == "ov_hsdag" or name.startswith("ov_hsdag.")]:
        del sys.modules[name]
    sys.modules["ov_hsdag"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return True


def advice(folder: str) -> str:
    """What to do where there is no compiled core, in one line."""
    if not os.path.exists(os.path.join(os.path.dirname(folder), "setup.py")):
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return (
            f"the package {folder} has no compiled core for Python {version}: it was installed for another Python, or"
            " in part; install ov-hsdag again with this one, with `--force-reinstall`"
        )
    return (
        f"the source tree {os.path.dirname(folder)} has no compiled core for this Python:"
        " run `pip install -e .` there, or `pip install .` and start again"
    )
