"""A command of ours as a job for another machine: its words, the files that it reads and those that it writes."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from ov_hsdag.costs.stored import path_beside
from ov_hsdag.model.config_sizes import CONFIGURATIONS
from ov_hsdag.model.samples import parse_inputs
from ov_hsdag.storage.overwriting import external_data
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.reading import file_digest

OUT = "out"
"""Folder of a job that its command writes to; what is in there comes back."""

# What stands beside a model and belongs to it, by its stem: weights of IR, Paddle and TensorFlow, measured costs.
_BESIDE = (".bin", ".pdiparams", ".pdiparams.info", ".index")


@dataclass(frozen=True)
class Job:
    """A command for another machine."""

    # after "ov-hsdag"; files are named relative to the job's folder, as in `files`, and outputs are in `OUT`
    words: tuple[str, ...]
    # what is there when it begins: path in the job's folder → file here
    files: Mapping[str, Path] = field(default_factory=dict)
    # path in the job's folder → what it is called here, in messages
    shown: Mapping[str, str] = field(default_factory=dict)
    beside: tuple[str, ...] = ()  # files outside of `OUT` that come back as well, where they are
    saved: str = ""  # a file of the job, or a folder, that comes back whenever it changes; "" for none
    resumed: tuple[str, ...] = ()  # words that go on from `saved`

    def translated(self, text: str) -> str:
        """A message of the job with the names that files have here."""
        for path in sorted(self.shown, key=len, reverse=True):
            text = text.replace(path, self.shown[path])
        return text


@dataclass
class Inputs:
    """Collects the files of a job."""

    files: dict[str, Path] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)

    def file(self, path: Path | None) -> str | None:
        """A file or a folder that is only read; what it is called in the job. None stays None."""
        return None if path is None else self.folder(path, [path])

    def named_file(self, text: str) -> str:
        """The same for "NAME=FILE", or FILE alone."""
        ((name, (path,)),) = parse_inputs([text]).items()
        return f"{name}={self.file(Path(path))}" if name else str(self.file(Path(path)))

    def model(self, path: Path) -> str:
        """A model with the files that belong to it; what it is called in the job."""
        return self.folder(path, model_files_of(path))

    def folder(self, path: Path, files: Sequence[Path]) -> str:
        """Some files of a folder; what it is called in the job. Files keep their places relative to that of `path`."""
        known = next((name for name, shown in self.shown.items() if shown == str(path)), None)
        if known is not None:
            return known
        folder, given = f"in{len(self.shown)}", Path(os.path.abspath(path))
        for file in files:
            for one in sorted(file.rglob("*")) if file.is_dir() else [file]:
                if one.is_file():
                    self.files[f"{folder}/{_near(Path(os.path.abspath(one)), given)}"] = one
        name = f"{folder}/{given.name}"
        self.shown[name] = str(path)
        return name


def model_files_of(path: Path) -> list[Path]:
    """A model's file, or folder, and the files that belong to it."""
    if path.is_dir():
        return [path]
    stem = path.stem
    found = [path, path_beside(path), *(path.parent / name for name in CONFIGURATIONS)]
    found += [path.with_name(stem + suffix) for suffix in _BESIDE]
    found += path.parent.glob(f"{glob.escape(stem)}.data-*-of-*")
    found += [data for data in external_data(path) if data.is_relative_to(path.parent.resolve())]
    # os.path, since a Path raises of a name that is too long, as a model may say.
    return list(dict.fromkeys(file for file in found if os.path.isfile(file)))


def came_as(name: str) -> PurePosixPath:
    """What a file that comes back is called here: without `OUT`. Raises ValueError as `safe`."""
    path = safe(name)
    return path.relative_to(OUT) if path.is_relative_to(OUT) else path


def digest_of(path: Path) -> str:
    """SHA-256 of a file's content. Raises UserError where it cannot be read."""
    try:
        return file_digest(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def safe(name: str) -> PurePosixPath:
    """A path inside a folder, from another machine. Raises ValueError where it leads out of it."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name or "\\" in name:
        raise ValueError(f"a name that leads out of its folder: {name!r:.100}")
    return path


def _near(file: Path, model: Path) -> str:
    """The name of a file beside a model, or below the model's folder."""
    for base in (model.parent, model.parent.resolve()):
        if file.is_relative_to(base):
            return file.relative_to(base).as_posix()
    return file.name
