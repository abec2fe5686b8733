"""Makes temporary folders, and removes those that killed processes have left."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ov_hsdag.storage.files import remove_leftovers, temporary_name
from ov_hsdag.utils.errors import RunError, one_line

# Seconds without a write after which a folder counts as unused; folders in use are written often. Process numbers alone
# are not enough, because containers may share the folder and the host's name without sharing process numbers.
_UNUSED = 3600.0


def scratch_folder() -> Path:
    """Makes a new temporary folder that only this user can read; first removes those of processes that were killed.

    Raises:
        RunError: there is no place for one.
    """
    try:
        place = Path(tempfile.gettempdir()) / "ov_hsdag-measure"
        remove_leftovers(place, _UNUSED)
        folder = temporary_name(place)
        folder.mkdir(0o700)
        return folder
    except OSError as error:
        raise _no_folder(error) from error


def require_temporary_folder() -> None:
    """Checks that there is a place for temporary folders.

    Raises:
        RunError: nothing can be written there.
    """
    try:
        tempfile.gettempdir()
    except OSError as error:
        raise _no_folder(error) from error


def _no_folder(error: OSError) -> RunError:
    """Makes the error for a machine without a place for temporary folders."""
    return RunError(f"measuring needs a temporary folder (TMPDIR): {one_line(error)}")
