"""Paths and digests of the files that are sent with a job, and back; the paths are relative to the job's folder."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from ov_hsdag.jobs.job import OUT
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.reading import file_digest


def came_as(name: str) -> PurePosixPath:
    """Returns the relative path on this machine of a job's output file: its path in the job without `OUT`.

    Args:
        name: path in the job's folder; a path outside of `OUT` stays as it is.

    Raises:
        ValueError: as `safe`.
    """
    path = safe(name)
    return path.relative_to(OUT) if path.is_relative_to(OUT) else path


def digest_of(path: Path) -> str:
    """Computes the SHA-256 of a file's content, in hexadecimal. Raises UserError where it cannot be read."""
    try:
        return file_digest(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def safe(name: str) -> PurePosixPath:
    """Checks and returns a relative path that another machine sent.

    Raises:
        ValueError: the path is empty or absolute, or leads out of its folder.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name or "\\" in name:
        raise ValueError(f"a name that leads out of its folder: {name!r:.100}")
    return path
