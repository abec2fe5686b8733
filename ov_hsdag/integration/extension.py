"""Finds or compiles the library that lets programs without Python follow a placement.

A compiled library fits one release of OpenVINO only. setup.py compiles it where OpenVINO is installed already;
``ov-hsdag extension --build`` compiles the sources inside the package, into the user's cache.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import stat
import zlib
from pathlib import Path

from ov_hsdag._version import __version__
from ov_hsdag.integration import extension_build
from ov_hsdag.utils.errors import RunError, UserError

PACKAGE = Path(__file__).parents[1]
_BUILD = "run: ov-hsdag extension --build"


def extension_path() -> Path:
    """Finds the library for ``core.add_extension`` and ``benchmark_app -extensions`` of the installed OpenVINO.

    Returns:
        Its path; the part for the installed release is in the same folder.

    Raises:
        UserError: OpenVINO is not installed, or there is no library for its release; the message has the remedy.
    """
    package = _openvino()
    try:
        release = extension_build.release(package)
    except extension_build.BuildError as error:
        raise UserError(f"there is no extension library: {error}") from error
    folders = _folders()
    for folder in folders:
        if (folder / f"{extension_build.LOADER}.{release}").exists() and (folder / extension_build.LOADER).exists():
            return folder / extension_build.LOADER
    others = sorted(
        {path.suffix[1:] for folder in folders for path in folder.glob(f"{extension_build.LOADER}.*") if path.exists()}
    )
    if others:
        built = ", ".join(_shown(other) for other in others)
        raise UserError(f"the extension library is built for OpenVINO {built}, this is {_shown(release)}: {_BUILD}")
    raise UserError(f"there is no extension library for OpenVINO {_shown(release)} yet: {_BUILD}")


def build() -> Path:
    """Compiles the library for the installed OpenVINO into the user's cache.

    Returns:
        Its path.

    Raises:
        UserError: OpenVINO is not installed, or there is no folder for the cache.
        RunError: it cannot be compiled or written.
    """
    try:
        return extension_build.build(_sources(), _openvino(), _cache())
    except extension_build.BuildError as error:
        raise RunError(f"the extension library cannot be built: {error}") from error
    except OSError as error:
        raise RunError(f"the extension library cannot be written to {_cache()}: {error.strerror or error}") from error


def _openvino() -> Path:
    """Finds the folder of the installed package openvino. Raises UserError where it is not installed."""
    spec = importlib.util.find_spec("openvino")
    if spec is None or spec.origin is None:
        raise UserError("there is no extension library without OpenVINO: pip install openvino")
    return Path(spec.origin).parent


def _folders() -> tuple[Path, ...]:
    """Lists the folders where a library may be: one in the installed package, and the one that ``build`` writes to.

    The second is left out where there is no cache folder, or others can write to it.
    """
    installed = PACKAGE / "lib"
    try:
        cache = _cache()
    except UserError:  # there is no cache folder, which only `build` needs
        return (installed,)
    return (installed, cache) if _is_private(cache) else (installed,)


def _is_private(cache: Path) -> bool:
    """Whether only this user and root can write to the cache, whose libraries this user's programs execute."""
    if not hasattr(os, "getuid"):
        return True
    for path in (cache.parent, cache, *cache.glob("*")):
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            if status.st_uid not in (0, os.getuid()) or status.st_mode & stat.S_IWOTH:
                return False
    return True


def _cache() -> Path:
    """The folder in the user's cache for the library; its name changes with the version and with the sources."""
    checksum = 0
    for path in extension_build.sources(_sources()):
        checksum = zlib.crc32(path.read_bytes(), checksum)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    if base.startswith("~"):
        raise UserError("there is no home directory for the extension library: set XDG_CACHE_HOME")
    return Path(base) / "ov_hsdag" / f"extension-{__version__}-{checksum:08x}"


def _sources() -> Path:
    """The folder with cpp_ext/ and transformations/: inside an installed package, or the root of a source tree."""
    inside = PACKAGE / "native_sources"
    return inside if inside.is_dir() else PACKAGE.parent


def _shown(release: str) -> str:
    """A release as people write it: "2026.4.1" for "2641"."""
    return f"20{release[:2]}.{release[2]}.{release[3:]}" if len(release) >= 4 else release
