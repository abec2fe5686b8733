"""Write files so that they appear whole or not at all, the two files of an OpenVINO IR included.

A file is written under a temporary name in the same directory, synced to the disk and renamed over its target.
Temporary files are created exclusively (O_EXCL) and under names that nobody can predict, so that in a directory that
others can write to no link lies in wait. A process that is killed leaves at most its temporary files; their names carry
the target, the host and the process, and the next write to the same target removes those whose process is gone.

Where the name of an output is a symbolic link, a single file is written through it, as other tools do. An IR replaces
links under its two names: what they point to may be shared (caches of models), and need not be a pair.
"""

from __future__ import annotations

import contextlib
import errno
import filecmp
import json
import math
import os
import re
import secrets
import shutil
import socket
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from ov_hsdag.storage.ir_text import rewritten_constants
from ov_hsdag.storage.overwriting import refuse_foreign_model, refuse_input
from ov_hsdag.utils.errors import RunError, UserError, one_line
from ov_hsdag.utils.lazy import ov

PREFIX = ".ov_hsdag-"
"""Temporary names: ``.ov_hsdag-<crc of target>-<crc of host>-<pid>-<start of process>-<random>.tmp[.xml|.bin]``."""

ALIGNMENT = 4096
"""Bytes to which a second set of weights in one .bin file is aligned: a page, as mapped constants may rely on."""

# Where a model could not be saved and its files take what it needs and that many bytes more, the disk is not full.
_MORE = 2**20

# Earlier versions wrote no start, and a number in place of the random part.
_TEMPORARY = re.compile(
    re.escape(PREFIX) + r"([0-9a-f]{8})-([0-9a-f]{8})-(\d+)-(?:(\d+)-)?[0-9a-f]+\.tmp(?:\.xml|\.bin)?"
)

_RELEASE = "OpenVINO Runtime"  # rt_info of a model that says which release wrote its file
_names_release: bool | None = None  # whether this release writes it; found out with the first model


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str], mode: str = "w") -> Iterator[IO[Any]]:
    """Open a file for writing ("w" UTF-8 text, "wb" bytes) that takes its name only when the block ends well.

    Missing directories are created. A symbolic link is followed and keeps existing; a target that is no regular file (a
    pipe, /dev/stdout) is written directly. Raises UserError where the target cannot be written.
    """
    if mode not in ("w", "wb"):
        raise ValueError(f"mode must be 'w' or 'wb', got {mode!r}")
    encoding = None if mode == "wb" else "utf-8"
    target = _target(path)
    if _is_special(target):
        with writing(path), open(target, mode, encoding=encoding) as file:
            yield file
        return
    with writing(path):
        _prepare(target)
        temporary = temporary_name(target)
        # Closed below, before the file is renamed.
        file = open(temporary, mode.replace("w", "x"), encoding=encoding)  # noqa: SIM115
    try:
        with file:
            yield file  # what the caller raises is the caller's
            with writing(path):
                _sync(file)
        with writing(path):
            _replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file (UTF-8), whole or not at all. UserError: it cannot be written."""
    with writing(path), atomic_file(path) as file:
        file.write(text)


def write_bytes(path: str | os.PathLike[str], pieces: Iterable[bytes]) -> None:
    """Write a file of some pieces, as `write_text`; an error in making a piece leaves the file as it was."""
    with atomic_file(path, "wb") as file:
        file.writelines(pieces)


def write_json(path: str | os.PathLike[str], value: object) -> None:
    """Write a value as JSON (UTF-8, indented, names as they are), as `write_text`."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise UserError where no file can be created at ``path``; creates no directory and leaves nothing behind.

    Commands call it, and the other checks, before long work, so that what cannot be written is an error at once.
    """
    target = _target(path)
    with writing(path):
        folder = refuse_impossible(target)
        if not _is_special(target):
            tempfile.TemporaryFile(dir=folder).close()


def check_model_output(
    xml_path: str | os.PathLike[str], source: str | os.PathLike[str] | None = None, *, replace_source: bool = False
) -> None:
    """Raise UserError where ``X.xml`` and ``X.bin`` cannot be written, or would replace more than an earlier IR.

    source: The file that the model is read from; neither it nor what belongs to it (weights of an IR, external data of
    ONNX) is overwritten. A link to it is: what it points to stays. replace_source: Whether an IR may replace itself.
    """
    target = _target(xml_path, follow=False)
    bin_ = target.with_suffix(".bin")
    with writing(xml_path):
        tempfile.TemporaryFile(dir=refuse_impossible(target)).close()
        if bin_.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(bin_))
        refuse_impossible(bin_)
        if source is not None:
            refuse_input(source, target, bin_, shown=xml_path, replace_source=replace_source)
        with _locked(target.parent):  # between its two renames, a first save of another process looks foreign
            refuse_foreign_model(target, xml_path)


def check_not_input(path: str | os.PathLike[str], source: str | os.PathLike[str]) -> None:
    """Raise UserError where a file to be written is the model that is read, its .bin, or external data of it (ONNX)."""
    with writing(path):
        refuse_input(source, _target(path), shown=path)


def save_model_atomically(model: ov.Model, xml_path: str | os.PathLike[str], compress_to_fp16: bool = True) -> None:
    """Save a model as ``X.xml`` and ``X.bin`` so that at every moment the two files are the old model or the new one.

    Two files cannot be renamed at once. Where a model stands already, its weights and the new ones share the .bin file
    while the .xml files change places (needs room for both; see :func:`_exchange`). An interrupted write thus leaves a
    model that reads and computes as the old or the new one does, if need be with a .bin that is larger than necessary.

    A symbolic link under one of the two names is replaced by the file, and what it points to stays as it is: in a cache
    (Hugging Face's, for one) links of many folders share a file. Raises UserError where the path does not end in
    ".xml", cannot be written, or is there and not of an IR of that name; RunError where OpenVINO cannot save the model.
    """
    target = _target(xml_path, follow=False)
    if target.suffix != ".xml":
        raise UserError(f"the output model must end in .xml, got {os.fspath(xml_path)!r}")
    with writing(xml_path):
        refuse_impossible(target.with_suffix(".bin"))
        _prepare(target)
    new_xml = temporary_name(target, ".xml")
    new_bin = new_xml.with_suffix(".bin")
    try:
        save_model(model, new_xml, compress_to_fp16, xml_path)
        with writing(xml_path), _locked(target.parent):
            refuse_foreign_model(target, xml_path)
            _install(new_xml, new_bin, target, target.with_suffix(".bin"))
    finally:
        new_xml.unlink(missing_ok=True)
        new_bin.unlink(missing_ok=True)


def remove_leftovers(target: Path, unused: float = -math.inf) -> None:
    """Remove what processes that are gone left for a target, not written to for so many seconds (`unused`)."""
    ours = _key(target.name)
    host = _key(socket.gethostname())
    for entry in os.scandir(target.parent):
        match = _TEMPORARY.fullmatch(entry.name)
        # Whether a process of another host (a shared directory) still runs is not known here.
        if not match or match[1] != ours or match[2] != host or process_runs(int(match[3]), match[4]):
            continue
        with contextlib.suppress(OSError):  # in a folder of temporary files they may be anybody's
            if time.time() - entry.stat(follow_symlinks=False).st_mtime <= unused:
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)


def _install(new_xml: Path, new_bin: Path, xml: Path, bin_: Path) -> None:
    """Rename a saved pair to its final names; at every moment these hold the old model or the new one."""
    if not (xml.exists() and bin_.exists()):
        # Without an .xml there is no model yet, and an .xml without its .bin uses no weights (or never worked).
        _replace(new_bin, bin_)
        _replace(new_xml, xml)
    elif filecmp.cmp(bin_, new_bin, shallow=False):
        if bin_.is_symlink():
            _replace(new_bin, bin_)
        _replace(new_xml, xml)
    else:
        _exchange(new_xml, new_bin, xml, bin_)


def _exchange(new_xml: Path, new_bin: Path, xml: Path, bin_: Path) -> None:
    """Replace a pair by one with other weights, one rename at a time, every state on the way a valid model.

    With P = max(old bytes, new bytes), aligned:

    ====  ============================  ============================  =========
    step  .bin                          .xml                          model
    ====  ============================  ============================  =========
    0     old                           old                           old
    1     old at 0, new at P            old                           old
    2     old at 0, new at P            new, offsets increased by P   new
    3     new at 0, new at P            new, offsets increased by P   new
    4     new at 0, new at P            new                           new
    5     new                           new                           new
    ====  ============================  ============================  =========
    """
    size = max(bin_.stat().st_size, new_bin.stat().st_size)
    second = -(-size // ALIGNMENT) * ALIGNMENT
    shifted_xml, both = temporary_name(xml, ".xml"), temporary_name(xml, ".bin")
    try:
        with open(shifted_xml, "xb") as file:
            file.write(rewritten_constants(new_xml.read_bytes(), lambda name, offset, _: (name, offset + second)))
            _sync(file)
        _concatenate(bin_, new_bin, second, both)
        _replace(both, bin_)
        _replace(shifted_xml, xml)
        _concatenate(new_bin, new_bin, second, both)
        _replace(both, bin_)
        _replace(new_xml, xml)
        _replace(new_bin, bin_)
    finally:
        shifted_xml.unlink(missing_ok=True)
        both.unlink(missing_ok=True)


def _concatenate(first: Path, second: Path, offset: int, target: Path) -> None:
    """Write ``first`` at 0 and ``second`` at ``offset`` (a hole between them) and sync the file to the disk."""
    with open(target, "xb") as file:
        for source, position in ((first, 0), (second, offset)):
            file.seek(position)
            with open(source, "rb") as part:
                shutil.copyfileobj(part, file, 1 << 20)
        file.truncate(max(offset, file.tell()))
        _sync(file)


def save_model(
    model: ov.Model, xml: Path, compress_to_fp16: bool, shown: str | os.PathLike[str], *, sync: bool = True
) -> None:
    """Let OpenVINO save a model under a name that is not there yet; its .bin stands beside it. shown: the user's name.

    Without compression the model itself is written, not a copy of it as `openvino.save_model` would: half of the time
    for a large one. It loses the names of what was fused into its nodes, then, which no file has. Raises UserError
    where a file cannot be written, RunError where OpenVINO cannot save the model.
    """
    from openvino._offline_transformations import apply_fused_names_cleanup

    with writing(shown):
        # OpenVINO would follow a link; and its message for a directory that cannot be written names no reason.
        for path in (xml, xml.with_suffix(".bin")):
            open(path, "xb").close()
    try:
        if compress_to_fp16:
            ov.save_model(model, str(xml))
        else:
            apply_fused_names_cleanup(model)
            with _release_named(model) if _writes_release(xml) else contextlib.nullcontext():
                ov.serialize(model, str(xml))
    except Exception as error:
        with writing(shown):
            # OpenVINO does not say that a disk is full, and has removed what it had written.
            _try_to_grow(xml, _MORE)
            constants = (node for node in model.get_ops() if node.get_type_name() == "Constant")
            size = sum(int(node.get_byte_size()) for node in constants) // (2 if compress_to_fp16 else 1)
            _try_to_grow(xml.with_suffix(".bin"), _MORE + size)
        raise RunError(f"OpenVINO cannot save the model as {os.fspath(shown)!r}: {one_line(error)}") from error
    if sync:
        with writing(shown):
            for path in (xml, xml.with_suffix(".bin")):
                sync_file(path)


@contextlib.contextmanager
def _release_named(model: ov.Model) -> Iterator[None]:
    """While this lasts, the model says which release writes it, as one that openvino.save_model writes does."""
    known = model.get_rt_info([_RELEASE]).astype(str) if model.has_rt_info([_RELEASE]) else None
    model.set_rt_info(ov.get_version(), [_RELEASE])
    try:
        yield
    finally:
        if known is None:
            del model.rt_info[_RELEASE]
        else:
            model.set_rt_info(known, [_RELEASE])


def _writes_release(xml: Path) -> bool:
    """Whether openvino.save_model names the release (2026.4 does, 2026.0 does not), by saving an empty model."""
    global _names_release
    if _names_release is None:
        ov.save_model(ov.Model([], [], "nothing"), str(xml), compress_to_fp16=False)
        _names_release = _RELEASE.encode() in xml.read_bytes()
    return _names_release


def _try_to_grow(path: Path, size: int) -> None:
    """Raise the OSError that keeps a file, which is to be removed, from having so many bytes."""
    with open(path, "ab", buffering=0) as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        elif shutil.disk_usage(path.parent).free < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def sync_file(path: Path) -> None:
    """Sync a file's content to the disk. Raises OSError."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _target(path: str | os.PathLike[str], *, follow: bool = True) -> Path:
    """The file that is written: of a link what it points to, but for an IR. Raises UserError for a directory."""
    target = Path(path)
    with writing(path):
        if target.is_dir():
            raise UserError(f"cannot write {os.fspath(path)!r}: it is a directory; name a file in it")
        if follow and _is_special(target):
            return target
        return Path(os.path.realpath(target)) if follow else Path(os.path.realpath(target.parent)) / target.name


def _is_special(target: Path) -> bool:
    """Whether it is a pipe, a terminal or the like, which is written, not replaced."""
    return target.exists() and not target.is_file()


def _prepare(target: Path) -> None:
    refuse_impossible(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target)


def refuse_impossible(target: Path) -> Path:
    """Raise OSError for what permissions forbid. Returns the nearest directory above the target that exists."""
    effective = os.access in os.supports_effective_ids
    # Renaming would replace a write-protected file; of a link, it replaces the link only.
    if target.exists() and not target.is_symlink() and not os.access(target, os.W_OK, effective_ids=effective):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    directory = target.parent
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    if not directory.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    return directory


def temporary_name(target: Path, suffix: str = "") -> Path:
    """A name beside the target for a file or folder that is yet to be created: mode "x", which is O_EXCL."""
    host, pid = _key(socket.gethostname()), os.getpid()
    process = f"{pid}-{_started(pid) or 0}"
    return target.with_name(f"{PREFIX}{_key(target.name)}-{host}-{process}-{secrets.token_hex(8)}.tmp{suffix}")


def _key(text: str) -> str:
    return f"{zlib.crc32(text.encode('utf-8', 'surrogateescape')):08x}"


def process_runs(pid: int, started: str | None = None) -> bool:
    """Whether a process of this host runs; True also where that cannot be determined.

    started: when, in clock ticks since the system did; a process that started at another time is a later one of the
    same number. "0" or None: not known.
    """
    if os.name == "nt":  # there os.kill(pid, 0) ends the process
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return started in (None, "0") or _started(pid) in (None, started)


def _started(pid: int) -> str | None:
    """When a process started, in clock ticks since the system did; None where the system does not say."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name of the program, in parentheses, may hold anything.
            return file.read().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        return None


def _sync(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _replace(source: Path, target: Path) -> None:
    """Rename a file over another, of which it takes the mode."""
    if not target.is_symlink():  # the mode of what a link points to is that of a shared file
        with contextlib.suppress(OSError):
            shutil.copymode(target, source)
    os.replace(source, target)
    # The order of renames survives a power failure only when the directory is synced between them.
    with contextlib.suppress(OSError, AttributeError):  # not every file system and platform can sync a directory
        directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Let one writer at a time rename pairs in a directory, where the platform and its file system have such locks."""
    try:
        import fcntl

        descriptor = os.open(directory, os.O_RDONLY)
    except (ImportError, OSError):
        yield
        return
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn a failure of the file system into one line that names the file the user asked for."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"cannot write {os.fspath(path)!r}: {reason}; choose another output") from error
