"""Names and digests of the files that travel with a job."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from ov_hsdag.jobs.job import OUT
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.reading import file_digest


def came_as(name: str) -> PurePosixPath:
    """The relative path on this machine of a job's output file: without `OUT`. Raises ValueError as `safe` does."""
    path = safe(name)
    return path.relative_to(OUT) if path.is_relative_to(OUT) else path


def digest_of(path: Path) -> str:
    """SHA-256 of a file's content. Raises UserError where it cannot be read."""
    try:
        return file_digest(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def safe(name: str) -> PurePosixPath:
    """Checks a relative path that another machine sent. Raises ValueError where it leads out of its folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name or "\\" in name:
        raise ValueError(f"a name that leads out of its folder: {name!r:.100}")
    return path
