"""Writes files so that they appear whole or not at all, including the two files of an OpenVINO IR.

A file is written under a temporary name in the same directory, synced to the disk and renamed over its target.
Temporary files are created exclusively (O_EXCL) under names that nobody can predict. So in a directory that others can
write to, nobody can place a link under such a name beforehand. A process that is killed leaves at most its temporary
files. Their names have the target, the host and the process, and the next write to the same target removes those whose
process is gone.

If the name of an output is a symbolic link, a single file is written through it, as other tools do. An IR replaces
links under its two names, because the files that they point to may be shared (caches of models), and need not be a
pair.
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
"""Prefix of temporary names.

A name is ``.ov_hsdag-<crc of target>-<crc of host>-<pid>-<start of process>-<random>.tmp[.xml|.bin]``.
"""

ALIGNMENT = 4096
"""Alignment in bytes of a second set of weights in one .bin file: a page, as mapped constants may rely on."""

# Bytes beyond a model's size that its files must be able to take after a failed save, else the disk counts as full.
_SPARE_BYTES = 2**20

# Temporary names; earlier versions had no start of the process, and a number in place of the random part.
_TEMPORARY = re.compile(
    re.escape(PREFIX) + r"([0-9a-f]{8})-([0-9a-f]{8})-(\d+)-(?:(\d+)-)?[0-9a-f]+\.tmp(?:\.xml|\.bin)?"
)

_RELEASE = "OpenVINO Runtime"  # rt_info entry of a model with the release that wrote its file
_release_is_written: bool | None = None  # whether this release writes it, which the first saved model shows


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str], mode: str = "w") -> Iterator[IO[Any]]:
    """Opens a file for writing that takes its name only when the block ends without an error.

    Missing directories are created. A symbolic link is followed and stays. A target that is no regular file (a pipe,
    /dev/stdout) is written directly.

    Args:
        path: the file.
        mode: "w" for UTF-8 text, or "wb" for bytes.

    Raises:
        UserError: the target cannot be written.
        ValueError: the mode is unknown.
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
            yield file  # outside of `writing`: errors of the caller are passed on as they are
            with writing(path):
                _sync(file)
        with writing(path):
            _replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a text file (UTF-8) atomically.

    Raises:
        UserError: it cannot be written.
    """
    with writing(path), atomic_file(path) as file:
        file.write(text)


def write_bytes(path: str | os.PathLike[str], pieces: Iterable[bytes]) -> None:
    """Writes a file from pieces atomically, like `write_text`.

    Args:
        path: the file.
        pieces: the content. If making a piece fails, the error is passed on and the file stays as it was.

    Raises:
        UserError: the file cannot be written.
    """
    with atomic_file(path, "wb") as file:
        file.writelines(pieces)


def write_json(path: str | os.PathLike[str], value: object) -> None:
    """Writes a value as indented JSON (UTF-8), like `write_text`; characters beyond ASCII are not escaped."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def check_writable(path: str | os.PathLike[str]) -> None:
    """Checks that a file can be created at ``path``, without creating directories or leaving anything behind.

    Commands call it, and the other checks, before long work, so that an output that cannot be written is an error at
    once.

    Raises:
        UserError: no file can be created.
    """
    target = _target(path)
    with writing(path):
        folder = refuse_impossible(target)
        if not _is_special(target):
            tempfile.TemporaryFile(dir=folder).close()


def check_model_output(
    xml_path: str | os.PathLike[str], source: str | os.PathLike[str] | None = None, *, replace_source: bool = False
) -> None:
    """Checks that ``X.xml`` and ``X.bin`` can be written, and would replace only an earlier IR.

    Args:
        xml_path: path of the .xml file.
        source: file that the model is read from. Neither it nor the files that belong to it (weights of an IR, external
            data of ONNX) may be overwritten. A link to it may be: the file that it points to stays.
        replace_source: whether an IR may replace itself.

    Raises:
        UserError: the files cannot be written, or something else would be replaced.
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
        with _locked(target.parent):  # an IR between the two renames of another process would look foreign
            refuse_foreign_model(target, xml_path)


def check_not_input(path: str | os.PathLike[str], source: str | os.PathLike[str]) -> None:
    """Checks that an output file is not the model that is read, its .bin, or external data of it (ONNX).

    Args:
        path: the output file.
        source: file of the model.

    Raises:
        UserError: it is.
    """
    with writing(path):
        refuse_input(source, _target(path), shown=path)


def save_model_atomically(model: ov.Model, xml_path: str | os.PathLike[str], compress_to_fp16: bool = True) -> None:
    """Saves a model as ``X.xml`` and ``X.bin`` so that at every moment the two files are the old model or the new one.

    Two files cannot be renamed at once. If there is a model already, its weights and the new ones share the .bin file
    while the .xml files are exchanged (which needs room for both; see :func:`_exchange`). So after an interrupted write
    the model can be read and computes as the old or the new one does; its .bin may be larger than necessary.

    A symbolic link under one of the two names is replaced by the file, and the file that it points to stays as it is:
    in a cache (Hugging Face's, for one) links of many folders share a file.

    Args:
        model: the model.
        xml_path: path of the .xml file.
        compress_to_fp16: whether to store f32 weights as f16, as in openvino.save_model.

    Raises:
        UserError: the path does not end in ".xml", cannot be written, or is there and not an IR of that name.
        RunError: OpenVINO cannot save the model.
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
    """Removes temporary files and folders of a target that were left by processes of this host which have ended.

    Args:
        target: the file or folder that they were made for.
        unused: a file is removed only if its last change is more than these seconds ago; -inf for any file.
    """
    ours = _key(target.name)
    host = _key(socket.gethostname())
    for entry in os.scandir(target.parent):
        match = _TEMPORARY.fullmatch(entry.name)
        # It is not known whether a process of another host (in a shared directory) still runs, so its files stay.
        if not match or match[1] != ours or match[2] != host or process_runs(int(match[3]), match[4]):
            continue
        with contextlib.suppress(OSError):  # files in a folder of temporary files may belong to another user
            if time.time() - entry.stat(follow_symlinks=False).st_mtime <= unused:
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)


def _install(new_xml: Path, new_bin: Path, xml: Path, bin_: Path) -> None:
    """Renames a saved IR to its final names; at every moment these hold the old model or the new one.

    Args:
        new_xml: the new .xml under its temporary name.
        new_bin: the new .bin under its temporary name.
        xml: the final name of the .xml, where an old one may be.
        bin_: the final name of the .bin.
    """
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
    """Replaces an IR by one with other weights, one rename at a time; every state on the way is a valid model.

    The arguments are those of `_install`. With P = max(old bytes, new bytes), aligned:

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
    shifted_xml, combined_bin = temporary_name(xml, ".xml"), temporary_name(xml, ".bin")
    try:
        with open(shifted_xml, "xb") as file:
            file.write(rewritten_constants(new_xml.read_bytes(), lambda name, offset, _: (name, offset + second)))
            _sync(file)
        _concatenate(bin_, new_bin, second, combined_bin)
        _replace(combined_bin, bin_)
        _replace(shifted_xml, xml)
        _concatenate(new_bin, new_bin, second, combined_bin)
        _replace(combined_bin, bin_)
        _replace(new_xml, xml)
        _replace(new_bin, bin_)
    finally:
        shifted_xml.unlink(missing_ok=True)
        combined_bin.unlink(missing_ok=True)


def _concatenate(first: Path, second: Path, offset: int, target: Path) -> None:
    """Writes ``first`` at 0 and ``second`` at ``offset`` (with a hole between them), and syncs the file to the disk."""
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
    """Lets OpenVINO save a model under a name that does not exist yet, with its .bin beside it.

    Without compression the model itself is written, and not a copy of it as `openvino.save_model` does: that halves the
    time for a large model. The model then loses the names of nodes that were fused, which no file has.

    Args:
        model: the model.
        xml: path of the .xml file.
        compress_to_fp16: whether to store f32 weights as f16.
        shown: the user's name of the output, for messages.
        sync: whether to sync the files to the disk.

    Raises:
        UserError: a file cannot be written.
        RunError: OpenVINO cannot save the model.
    """
    from openvino._offline_transformations import apply_fused_names_cleanup

    with writing(shown):
        # OpenVINO would follow a link, and does not give the reason if a directory cannot be written.
        for path in (xml, xml.with_suffix(".bin")):
            open(path, "xb").close()
    try:
        if compress_to_fp16:
            ov.save_model(model, str(xml))
        else:
            apply_fused_names_cleanup(model)
            with _with_release(model) if _writes_release(xml) else contextlib.nullcontext():
                ov.serialize(model, str(xml))
    except Exception as error:
        with writing(shown):
            # OpenVINO does not report a full disk, and has removed the incomplete files.
            _try_to_grow(xml, _SPARE_BYTES)
            constants = (node for node in model.get_ops() if node.get_type_name() == "Constant")
            size = sum(int(node.get_byte_size()) for node in constants) // (2 if compress_to_fp16 else 1)
            _try_to_grow(xml.with_suffix(".bin"), _SPARE_BYTES + size)
        raise RunError(f"OpenVINO cannot save the model as {os.fspath(shown)!r}: {one_line(error)}") from error
    if sync:
        with writing(shown):
            for path in (xml, xml.with_suffix(".bin")):
                sync_file(path)


@contextlib.contextmanager
def _with_release(model: ov.Model) -> Iterator[None]:
    """Adds the release to the model's rt_info for the duration of the block, as openvino.save_model does."""
    earlier_release = model.get_rt_info([_RELEASE]).astype(str) if model.has_rt_info([_RELEASE]) else None
    model.set_rt_info(ov.get_version(), [_RELEASE])
    try:
        yield
    finally:
        if earlier_release is None:
            del model.rt_info[_RELEASE]
        else:
            model.set_rt_info(earlier_release, [_RELEASE])


def _writes_release(xml: Path) -> bool:
    """Whether openvino.save_model writes the release (2026.4 does, 2026.0 does not); it saves an empty model to see."""
    global _release_is_written
    if _release_is_written is None:
        ov.save_model(ov.Model([], [], "nothing"), str(xml), compress_to_fp16=False)
        _release_is_written = _RELEASE.encode() in xml.read_bytes()
    return _release_is_written


def _try_to_grow(path: Path, size: int) -> None:
    """Grows a file to `size` bytes, or checks the free space for that, to raise the OSError that prevents it."""
    with open(path, "ab", buffering=0) as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        elif shutil.disk_usage(path.parent).free < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def sync_file(path: Path) -> None:
    """Syncs a file's content to the disk. Raises OSError."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _target(path: str | os.PathLike[str], *, follow: bool = True) -> Path:
    """Returns the path of the file to write.

    Args:
        path: the user's path.
        follow: whether the file that a symbolic link points to is written; if not (for an IR), the link is replaced.

    Raises:
        UserError: the path is a directory.
    """
    target = Path(path)
    with writing(path):
        if target.is_dir():
            raise UserError(f"cannot write {os.fspath(path)!r}: it is a directory; name a file in it")
        if follow and _is_special(target):
            return target
        return Path(os.path.realpath(target)) if follow else Path(os.path.realpath(target.parent)) / target.name


def _is_special(target: Path) -> bool:
    """Whether the target is a pipe, a terminal or the like, which is written and not replaced."""
    return target.exists() and not target.is_file()


def _prepare(target: Path) -> None:
    """Checks permissions, makes the directory of a target, and removes what killed processes left. Raises OSError."""
    refuse_impossible(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target)


def refuse_impossible(target: Path) -> Path:
    """Checks whether an existing target may be replaced, and finds the directory in which to create it.

    Returns:
        The nearest directory above the target that exists.

    Raises:
        OSError: the target is write-protected, or a file is in the place of a directory.
    """
    effective = os.access in os.supports_effective_ids
    # Renaming would replace a write-protected file without an error. A link may be replaced: its file stays.
    if target.exists() and not target.is_symlink() and not os.access(target, os.W_OK, effective_ids=effective):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    directory = target.parent
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    if not directory.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    return directory


def temporary_name(target: Path, suffix: str = "") -> Path:
    """Makes a temporary name beside the target, for a file or folder that is to be created exclusively (mode "x").

    Args:
        target: the final name.
        suffix: ending of the name; see `PREFIX` for the rest of it.
    """
    host, pid = _key(socket.gethostname()), os.getpid()
    process = f"{pid}-{_started(pid) or 0}"
    return target.with_name(f"{PREFIX}{_key(target.name)}-{host}-{process}-{secrets.token_hex(8)}.tmp{suffix}")


def _key(text: str) -> str:
    """Returns the CRC-32 of a name in eight hexadecimal digits, for temporary names."""
    return f"{zlib.crc32(text.encode('utf-8', 'surrogateescape')):08x}"


def process_runs(pid: int, started: str | None = None) -> bool:
    """Whether a process of this host runs; True also if that cannot be determined.

    Args:
        pid: number of the process.
        started: its start in clock ticks since the system started. A process with another start is a later one with the
            same number. "0" or None if not known.
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
    """Reads the start of a process in clock ticks since the system started; None if the system does not report it."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name of the program, in parentheses, may hold anything.
            return file.read().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        return None


def _sync(file: IO[Any]) -> None:
    """Syncs an open file to the disk."""
    file.flush()
    os.fsync(file.fileno())


def _replace(source: Path, target: Path) -> None:
    """Renames `source` to `target`, which it replaces, with the mode of the replaced file; syncs the directory."""
    if not target.is_symlink():  # a link's file may be shared, so its mode is not taken over
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
    """Lets one process at a time run the block for a directory; has no effect where locks are not supported."""
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
    """Turns an OSError of the block into a UserError that names `path`, the file that the user asked for."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"cannot write {os.fspath(path)!r}: {reason}; choose another output") from error
