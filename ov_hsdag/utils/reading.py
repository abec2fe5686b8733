"""Reads files that anybody may have made, with bounded size and time, and without running code from them.

All limits of sizes are here. A refused file raises OSError (it cannot be read: missing, no regular file, too large) or
ValueError (it has the wrong content). Callers turn these into the one line that users see.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, NoReturn

from ov_hsdag.utils.byte_sizes import format_bytes
from ov_hsdag.utils.errors import quoted, shortened

if TYPE_CHECKING:
    from numpy.typing import NDArray

MIB = 2**20  # bytes

SETTINGS = 8 * MIB
"""Largest size in bytes of a file with settings.

Such files are a device profile, policy.json, config.json, and remembered facts of a model.
"""

TABLES = 128 * MIB
"""Largest size in bytes of a file with figures of each node: an affinity file, measured costs.

A character of JSON may take 20 bytes of memory.
"""

ARRAYS = 4096 * MIB
"""Largest size in bytes of all unpacked arrays of a placement problem or of searched placements."""

WEIGHTS = 4096 * MIB
"""Largest size in bytes of a policy's weights, and of a checkpoint."""

RT_INFO = 128 * MIB
"""Largest size in bytes of an IR's part behind its edges, which is its rt_info.

It has names of all nodes, and settings of converters and tools.
"""

SAMPLES = 1024 * MIB
"""Largest unpacked size in bytes of a file with inputs of a model: an array, an image, texts."""

_ENTRIES = 1000
"""Largest number of arrays in a file."""

_CHUNK = MIB  # bytes that are read at once

# Prefixes of pipes that a shell or a parent process has opened. A named pipe in a folder is refused, because it may be
# that nobody ever writes to it.
_OPEN_PIPES = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")


@contextmanager
def opened(path: str | bytes | os.PathLike[Any]) -> Iterator[IO[bytes]]:
    """Opens a regular file for reading, or a pipe that was handed on open (``<(command)``, /dev/stdin).

    Raises:
        OSError: it cannot be opened, or is a folder, a named pipe, a device or a socket.
    """
    # Without O_NONBLOCK, opening a pipe that nobody writes to would wait for ever.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags)
    except ValueError as error:  # the name has a NUL character
        raise OSError(errno.EINVAL, f"invalid file name ({error})") from None
    with os.fdopen(descriptor, "rb") as file:
        mode, name = os.fstat(descriptor).st_mode, os.fsdecode(path)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        if stat.S_ISFIFO(mode) and name.startswith(_OPEN_PIPES):
            os.set_blocking(descriptor, True)
        elif not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is no file but a pipe or a device", name)
        yield file


def read_bytes(path: str | os.PathLike[str], most: int) -> bytes:
    """Reads a file (see :func:`opened`) of at most `most` bytes.

    Raises:
        OSError: it cannot be read, or is larger.
    """
    with opened(path) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise _too_large(path, most)
        parts, remaining = [], most
        while part := file.read(min(_CHUNK, remaining + 1)):
            parts.append(part)
            remaining -= len(part)
            if remaining < 0:  # the file has grown, or is a pipe
                raise _too_large(path, most)
    return b"".join(parts)


def file_digest(path: str | os.PathLike[str]) -> str:
    """Computes the SHA-256 of a file's content, in hexadecimal digits. Raises OSError."""
    import hashlib

    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_CHUNK):
            digest.update(block)
    return digest.hexdigest()


def read_json(path: str | os.PathLike[str], most: int, *, strict: bool = False) -> Any:
    """Reads the value of a JSON file. A byte order mark, which PowerShell writes, is skipped.

    Args:
        path: the file.
        most: largest size in bytes.
        strict: whether to refuse repeated keys of an object, NaN and infinities.

    Returns:
        The value.

    Raises:
        OSError: the file cannot be read, or is larger.
        ValueError: it is no JSON, or nested too deep.
    """
    return parse_json(read_bytes(path, most).decode("utf-8-sig"), strict=strict)


def parse_json(text: str, *, strict: bool = False) -> Any:
    """Parses a JSON text, see :func:`read_json`.

    Raises:
        ValueError: it is no JSON, or nested too deep.
    """
    import json  # imported here, because the hook for OpenVINO usually does not need it

    hooks: dict[str, Any] = (
        {"object_pairs_hook": _without_repeated_keys, "parse_constant": _no_constant} if strict else {}
    )
    try:
        return json.loads(text, **hooks)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Makes the dictionary of a JSON object. Raises ValueError where a key is repeated."""
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"it names {quoted(key)} twice")
        values[key] = value
    return values


def _no_constant(text: str) -> NoReturn:
    """Raises ValueError for NaN and infinities, which are no JSON."""
    raise ValueError(f"expected numbers as JSON has them, got {text}")


def read_arrays(path: str | os.PathLike[str], most: int | None = None) -> dict[str, NDArray[Any]]:
    """Reads the arrays of an .npz file by name. Arrays of objects are refused, because pickles are never read.

    Sizes are checked before memory of that size is allocated, so nothing of a "zip bomb" is unpacked.

    Args:
        path: the file.
        most: largest size in bytes of all arrays together; no limit by default, for files of our own child processes.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no .npz file, is damaged, or has more bytes.
    """
    import struct
    import zipfile
    import zlib

    # Errors that zipfile raises for archives that are damaged, cut, encrypted, or too large for this machine.
    damages = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, OverflowError, MemoryError)
    with opened(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                entries = archive.infolist()
                size = sum(entry.file_size for entry in entries)
                if any(entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for entry in entries):
                    raise ValueError("it is packed in a way that NumPy does not pack")
                if most is not None and (size > most or len(entries) > _ENTRIES):
                    raise ValueError(f"its arrays take {size:,} bytes, at most {most:,} are read")
                names = [entry.filename.removesuffix(".npy") for entry in entries]
                if len(set(names)) < len(names):
                    raise ValueError("it has an array twice")
                return {name: _array(archive.read(entry)) for name, entry in zip(names, entries, strict=True)}
        except damages as error:
            raise ValueError(f"it is no archive of arrays: {shortened(str(error)) or type(error).__name__}") from error


def read_array(path: str | os.PathLike[str], most: int) -> NDArray[Any]:
    """Reads the array of an .npy file of at most `most` bytes, see :func:`read_arrays`.

    Raises:
        OSError: the file cannot be read, or is larger.
        ValueError: it is no .npy file, or is damaged.
    """
    return _array(read_bytes(path, most))


def read_lines(path: str | os.PathLike[str], most: int) -> list[str]:
    """Reads the lines of a UTF-8 text file of at most `most` bytes; a byte order mark is skipped.

    Raises:
        OSError: it cannot be read, or is larger.
        ValueError: it is no text.
    """
    return read_bytes(path, most).decode("utf-8-sig").splitlines()


def _array(data: bytes) -> NDArray[Any]:
    """Reads the array in the content of an .npy file. Raises ValueError where it is damaged or of an unknown type."""
    import io

    import numpy as np

    stream = io.BytesIO(data)
    try:
        # For an array that claims to be larger than its data, memory is reserved but never written to.
        array: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
    except Exception as error:  # NumPy passes on the errors of Python's tokenizer and parser
        raise ValueError(f"an array is damaged: {shortened(str(error)) or type(error).__name__}") from error
    if array.dtype.kind not in "biufcSU" or stream.read(1):
        raise ValueError(f"an array has type {shortened(str(array.dtype))} or more bytes than it says")
    return array


def _too_large(path: str | os.PathLike[str], most: int) -> OSError:
    """Makes the error for a file of more than `most` bytes."""
    return OSError(errno.EFBIG, f"it has more than {format_bytes(most)}, which no such file has", os.fspath(path))
