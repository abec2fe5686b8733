"""Temporary folders of processes, which the next one removes where theirs were killed."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ov_hsdag.storage.files import remove_leftovers, temporary_name
from ov_hsdag.utils.errors import RunError, one_line

# Seconds after which a folder that nothing was written to is not in use. Containers may share the place of it and the
# host's name, and not the process numbers: what is in use changes often.
_UNUSED = 3600.0


def scratch_folder() -> Path:
    """A new folder that only this user can read. Raises RunError where there is no place for one."""
    try:
        place = Path(tempfile.gettempdir()) / "ov_hsdag-measure"
        remove_leftovers(place, _UNUSED)
        folder = temporary_name(place)
        folder.mkdir(0o700)
        return folder
    except OSError as error:
        raise _no_folder(error) from error


def require_temporary_folder() -> None:
    """Checks that there is a place for temporary folders. Raises RunError where nothing can be written there."""
    try:
        tempfile.gettempdir()
    except OSError as error:
        raise _no_folder(error) from error


def _no_folder(error: OSError) -> RunError:
    return RunError(f"measuring needs a temporary folder (TMPDIR): {one_line(error)}")
