"""A command of ov-hsdag as a job for another machine: its words, the files that it reads and those that it writes.

On the other machine the command runs in a new folder, the job's folder. Paths in the job are relative to it. Inputs are
in folders "in0", "in1", … there, and outputs in `OUT`.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ov_hsdag.costs.stored import path_beside
from ov_hsdag.model.config_sizes import CONFIGURATIONS
from ov_hsdag.model.samples import parse_inputs
from ov_hsdag.storage.overwriting import external_data

OUT = "out"
"""Folder of a job for its output files, which are copied back."""

# Suffixes of weights of IR, Paddle and TensorFlow, which lie in the model's folder under the model's stem.
_BESIDE = (".bin", ".pdiparams", ".pdiparams.info", ".index")


@dataclass(frozen=True)
class Job:
    """A command for another machine. Paths in the job are relative to the job's folder."""

    # words after "ov-hsdag"; paths are relative to the job's folder, as in `files`, and outputs are in `OUT`
    words: tuple[str, ...]
    # files that it reads: path in the job's folder → file on this machine
    files: Mapping[str, Path] = field(default_factory=dict)
    # path in the job's folder → the path on this machine, for messages
    shown: Mapping[str, str] = field(default_factory=dict)
    beside: tuple[str, ...] = ()  # output files outside of `OUT` that are copied back as well, where they exist
    saved: str = ""  # a file or folder of the job that is copied back whenever it changes; "" for none
    resumed: tuple[str, ...] = ()  # words of the command that continues from `saved`

    def translated(self, text: str) -> str:
        """Returns a message of the job in which paths in the job are replaced by those on this machine."""
        for path in sorted(self.shown, key=len, reverse=True):
            text = text.replace(path, self.shown[path])
        return text


@dataclass
class Inputs:
    """Collects the files that a job reads. Each path gets a folder in the job; adding it again changes nothing."""

    files: dict[str, Path] = field(default_factory=dict)  # see `Job.files`
    shown: dict[str, str] = field(default_factory=dict)  # see `Job.shown`

    def file(self, path: Path | None) -> str | None:
        """Adds a file or folder that the job only reads; returns its path in the job, and None for None."""
        return None if path is None else self.folder(path, [path])

    def named_file(self, text: str) -> str:
        """Adds the file that a value of --input names; returns the value with the path in the job.

        Args:
            text: "NAME=FILE", or FILE alone.
        """
        ((name, (path,)),) = parse_inputs([text]).items()
        return f"{name}={self.file(Path(path))}" if name else str(self.file(Path(path)))

    def model(self, path: Path) -> str:
        """Adds a model with the files that belong to it; returns its path in the job."""
        return self.folder(path, model_files_of(path))

    def folder(self, path: Path, files: Sequence[Path]) -> str:
        """Adds a folder, or a file with further files; nothing where `path` was added before.

        Args:
            path: the folder, or the file.
            files: files and folders to send, on this machine. They keep their paths relative to the folder that
                contains `path`; files from elsewhere are put beside it.

        Returns:
            The path in the job that stands for `path`.
        """
        existing = next((name for name, shown in self.shown.items() if shown == str(path)), None)
        if existing is not None:
            return existing
        folder, absolute = f"in{len(self.shown)}", Path(os.path.abspath(path))
        for file in files:
            for source in sorted(file.rglob("*")) if file.is_dir() else [file]:
                if source.is_file():
                    self.files[f"{folder}/{_relative_to_model(Path(os.path.abspath(source)), absolute)}"] = source
        name = f"{folder}/{absolute.name}"
        self.shown[name] = str(path)
        return name


def model_files_of(path: Path) -> list[Path]:
    """Lists the files that belong to a model.

    Args:
        path: the model's file, or a folder.

    Returns:
        The model's file with its weights, stored costs and configuration, as far as they exist; for a folder, the
        folder alone.
    """
    if path.is_dir():
        return [path]
    stem = path.stem
    candidates = [path, path_beside(path), *(path.parent / name for name in CONFIGURATIONS)]
    candidates += [path.with_name(stem + suffix) for suffix in _BESIDE]
    candidates += path.parent.glob(f"{glob.escape(stem)}.data-*-of-*")
    candidates += [data for data in external_data(path) if data.is_relative_to(path.parent.resolve())]
    # os.path, as methods of Path raise OSError for a name that is too long, which a model may contain.
    return list(dict.fromkeys(file for file in candidates if os.path.isfile(file)))


def _relative_to_model(file: Path, model: Path) -> str:
    """Returns the path of a file relative to the folder that contains the model; its name where it is elsewhere."""
    for base in (model.parent, model.parent.resolve()):
        if file.is_relative_to(base):
            return file.relative_to(base).as_posix()
    return file.name
