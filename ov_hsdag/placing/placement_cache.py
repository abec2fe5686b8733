"""A folder that keeps placements which were made when a model was first loaded, for later loads.

An entry is one JSON file, named by a digest of everything that the placement depends on, and written whole or not at
all. Entries decide what runs where, so a folder that other users can write to is not used. A damaged entry counts as
missing. Files ending in ".lock" keep two processes from placing the same model at the same time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ov_hsdag._version import __version__
from ov_hsdag.model.placement import Placement
from ov_hsdag.model.stored_placement import plain
from ov_hsdag.storage.files import write_text
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.reading import TABLES, read_json

if TYPE_CHECKING:
    from ov_hsdag.model.nodes import Nodes

FOLDER_VARIABLE = "OV_HSDAG_CACHE"
"""Environment variable that names another folder for kept placements; with "0" none are kept."""

MOST_ENTRIES = 500
"""Largest number of entries in a folder; beyond it the least recently used ones are removed."""

MOST_BYTES = 256 * 2**20
"""Largest size of a folder, bytes; an entry has about 60 bytes for each operation of its model."""

LOCK_SECONDS = 120.0
"""Longest wait, seconds, for another process that places the same model.

After it the model is placed here as well, which does no harm."""

_POLL_SECONDS = 0.02
"""Pause, seconds, between two attempts to take a lock; short against the time that placing a model takes."""

_VERSION = 1
"""Version of the format of entries; entries of another version count as damaged."""

_SUFFIX = ".placement.json"
"""Ending of the names of entries' files."""

_DIGITS = 40
"""Hexadecimal digits of an entry's name; 160 bits, so that no two keys meet."""


@dataclass(frozen=True)
class CachedModel:
    """A description of the model of an entry, with which it can be placed again without its program.

    Attributes:
        name: friendly name of the model.
        operations: number of its nodes.
        source: absolute path of the file that it was read from; None for a model that was made in memory.
        shapes: shape of each input as OpenVINO writes it ("[1,3,224,224]", "[?,?]"), by the input's name.
    """

    name: str
    operations: int
    source: str | None
    shapes: dict[str, str]


@dataclass(frozen=True)
class CacheEntry:
    """A kept placement.

    Attributes:
        key: name of the entry, see `cache_key`.
        devices: names of the devices that the load named; the placement may use fewer (an NPU takes no open sizes).
        placement: the placement, with its predicted and measured figures.
        model: description of the model.
        limits: memory limits by device when the model was placed, bytes.
        options: further arguments of placing as texts, such as the profile's path.
        seconds: time that placing took, seconds.
    """

    key: str
    devices: tuple[str, ...]
    placement: Placement
    model: CachedModel
    limits: dict[str, int]
    options: dict[str, str]
    seconds: float

    def to_json(self) -> str:
        """The text of the entry's file."""
        value = {
            "version": _VERSION,
            "devices": list(self.devices),
            "placement": self.placement.to_entries(),
            "model": asdict(self.model),
            "limits": self.limits,
            "options": self.options,
            "seconds": self.seconds,
        }
        return json.dumps(value, default=plain)

    @classmethod
    def read(cls, path: Path) -> CacheEntry:
        """Reads an entry's file.

        Raises:
            OSError: the file cannot be read.
            ValueError: the file is damaged, or has another version.
        """
        value = read_json(path, TABLES)
        try:
            if value["version"] != _VERSION:
                raise ValueError("another version wrote it")
            model = value["model"]
            return cls(
                key=path.name.removesuffix(_SUFFIX),
                devices=tuple(str(name) for name in value["devices"]),
                placement=Placement.from_entries(value["placement"]),
                model=CachedModel(
                    name=str(model["name"]),
                    operations=int(model["operations"]),
                    source=None if model["source"] is None else str(model["source"]),
                    shapes={str(name): str(shape) for name, shape in model["shapes"].items()},
                ),
                limits={str(name): int(limit) for name, limit in value["limits"].items()},
                options={str(name): str(text) for name, text in value["options"].items()},
                seconds=float(value["seconds"]),
            )
        except (UserError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"it is no kept placement ({type(error).__name__})") from error


def model_digest(nodes: Nodes) -> str:
    """Computes a digest of a model's structure, shapes, element types and names, without the values of its weights."""
    digest = hashlib.sha256()
    for column in (nodes.names, nodes.types, nodes.outputs):
        digest.update(repr(column).encode("utf-8", "surrogatepass"))
    edges = nodes.edges
    for numbers in (edges.ptr, edges.source, edges.output):
        digest.update(numbers.tobytes())
    return digest.hexdigest()


def cache_key(model: str, devices: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> str:
    """Computes the name of the entry of a placement.

    Args:
        model: digest of the model, see `model_digest`.
        devices: record of each device, in HETERO's order: name, full name, driver, memory, properties.
        settings: the other arguments of placing: objective, limits that the user set, and profile.

    Returns:
        Hexadecimal digits. This release of ov-hsdag is part of the key, as another one may place better.
    """
    value = [__version__, model, list(devices), dict(settings)]
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:_DIGITS]


@dataclass(frozen=True)
class PlacementCache:
    """A folder of kept placements.

    Attributes:
        folder: the folder, which exists and belongs to this user alone.
    """

    folder: Path

    @classmethod
    def in_folder(cls, parent: Path) -> PlacementCache | None:
        """Opens the cache in the folder `parent`/ov_hsdag/placements, which is created if missing.

        Returns:
            The cache; None where the folder cannot be made, or other users could write to it.
        """
        folder = parent / "ov_hsdag" / "placements"
        try:
            parent.mkdir(parents=True, exist_ok=True)
            for created in (folder.parent, folder):
                created.mkdir(mode=0o700, exist_ok=True)
        except OSError:
            return None
        if not (_is_private(folder) and _is_private(folder.parent) and _keeps_its_entries(parent)):
            return None
        return cls(folder)

    @classmethod
    def default(cls, cache_dir: str = "") -> PlacementCache | None:
        """Opens the cache that a load uses.

        Args:
            cache_dir: the CACHE_DIR property of the load; "" where it has none.

        Returns:
            The cache in the folder that `FOLDER_VARIABLE` names, else in `cache_dir`, else in the user's own cache
            folder; None where placements are not kept.
        """
        named = os.environ.get(FOLDER_VARIABLE, "")
        if named == "0":
            return None
        if named or cache_dir:
            return cls.in_folder(Path(named or cache_dir))
        try:
            return cls.in_folder(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"))
        except RuntimeError:  # no home directory
            return None

    def path(self, key: str) -> Path:
        """The file of an entry."""
        return self.folder / f"{key}{_SUFFIX}"

    def load(self, key: str) -> CacheEntry | None:
        """Reads the entry of a key, and marks it as used now; returns None where there is none.

        Raises:
            ValueError: the entry is damaged.
        """
        path = self.path(key)
        try:
            entry = CacheEntry.read(path)
        except OSError:
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # the least recently used entries are removed first
        return entry

    def save(self, entry: CacheEntry) -> None:
        """Writes an entry, whole or not at all, and removes the least recently used ones where there are too many.

        Raises:
            UserError: the file cannot be written.
        """
        write_text(self.path(entry.key), entry.to_json())
        self._evict(keep=entry.key)

    def entries(self) -> list[CacheEntry]:
        """Reads all entries, the most recently used first; those that cannot be read are left out."""
        entries = []
        for path, _ in self._entry_files():
            with contextlib.suppress(OSError, ValueError):
                entries.append(CacheEntry.read(path))
        return entries

    def clear(self) -> int:
        """Removes all entries and locks; returns how many entries there were."""
        files = self._entry_files()
        for path, _ in files:
            path.unlink(missing_ok=True)
        for lock in self.folder.glob("*.lock"):
            lock.unlink(missing_ok=True)
        return len(files)

    @contextlib.contextmanager
    def locked(self, key: str) -> Iterator[None]:
        """Holds the lock of an entry, so that threads and processes that load a model at once place it once.

        Where the lock cannot be taken within `LOCK_SECONDS`, the block runs without it.
        """
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                file = stack.enter_context(open(self.folder / f"{key}.lock", "ab"))
                deadline = time.monotonic() + LOCK_SECONDS
                while not _try_lock(file.fileno()) and time.monotonic() < deadline:
                    time.sleep(_POLL_SECONDS)
            yield

    def _entry_files(self) -> list[tuple[Path, os.stat_result]]:
        """Lists the files of the entries with their status, the most recently used first."""
        files = []
        for path in self.folder.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(OSError):
                files.append((path, path.stat()))
        return sorted(files, key=lambda item: item[1].st_mtime_ns, reverse=True)

    def _evict(self, keep: str) -> None:
        """Removes the least recently used entries beyond the limits of the folder, except the entry with key `keep`."""
        total = 0
        for number, (path, status) in enumerate(self._entry_files()):
            total += status.st_size
            if (number >= MOST_ENTRIES or total > MOST_BYTES) and path != self.path(keep):
                path.unlink(missing_ok=True)
                self.folder.joinpath(f"{path.name.removesuffix(_SUFFIX)}.lock").unlink(missing_ok=True)


def _is_private(folder: Path) -> bool:
    """Whether a folder is this user's (or the administrator's), and nobody else can write to it."""
    if not hasattr(os, "getuid"):  # Windows: a user's folders are closed to others by default
        return True
    status = folder.lstat()
    others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(status.st_mode) and status.st_uid in (os.getuid(), 0) and not others_write


def _keeps_its_entries(folder: Path) -> bool:
    """Whether other users cannot rename this user's entries of a folder.

    That holds where they cannot write to the folder, or where it is sticky like /tmp.
    """
    if not hasattr(os, "getuid"):
        return True
    status = folder.stat()
    others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return not others_write or bool(status.st_mode & stat.S_ISVTX)


def _try_lock(descriptor: int) -> bool:
    """Tries to take the lock of an open file, without waiting; the system releases it when the file is closed.

    Args:
        descriptor: descriptor of the file.

    Returns:
        Whether the lock was taken.
    """
    try:
        import fcntl
    except ImportError:
        import msvcrt

        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        except OSError:
            return False
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
