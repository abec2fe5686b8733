"""Adds libraries of custom operations to a Core, and remembers them for the processes that measure its models."""

from __future__ import annotations

import os

from ov_hsdag.utils.errors import UserError, one_line
from ov_hsdag.utils.lazy import ov

# Attribute of a Core with the added libraries, because OpenVINO does not report them.
_EXTENSIONS_ATTRIBUTE = "_ov_hsdag_extensions"


def add(core: ov.Core, path: str) -> None:
    """Loads a library of custom operations into a Core, and remembers it.

    Raises:
        UserError: it cannot be loaded.
    """
    if not os.path.isfile(path):
        raise UserError(f"no such extension library: {path}")
    try:
        core.add_extension(os.path.abspath(path))
    except RuntimeError as error:
        raise UserError(f"cannot load the extension library {path}: {one_line(error)}") from error
    note(core, path)


def note(core: ov.Core, extension: object) -> None:
    """Remembers an argument of ``Core.add_extension`` if it is a path; other processes cannot load anything else."""
    if isinstance(extension, str | os.PathLike):
        path = os.path.abspath(os.fspath(extension))
        if path not in of(core):
            setattr(core, _EXTENSIONS_ATTRIBUTE, (*of(core), path))


def of(core: ov.Core) -> tuple[str, ...]:
    """Returns the absolute paths of the libraries that were added to a Core."""
    return getattr(core, _EXTENSIONS_ATTRIBUTE, ())
