"""Damage to files that knows their formats: JSON stays JSON and .npz stays .npz most of the time."""

from __future__ import annotations

import io
import json
import random
import zipfile
from typing import Any

import numpy as np

_HUGE = 10**400
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31 - 1, 2**31, 2**63, -(2**63) - 1, _HUGE, 1e308, -1e308, 5e-324, 1.5,
    float("nan"), float("inf"), float("-inf"), "", "CPU", "\x00", "\ud800", "../../../etc/passwd", "/dev/zero",
    "a" * 5000, "x\ny", "\x1b[31m", [], [[]], {}, {"": {}}, [None], ["CPU"] * 300, [[0] * 5] * 5, {"a": 1}, "(a+)+$",
    "a{99999999999}",
)  # fmt: skip
"""What readers do not expect."""

_TEXTS = (
    b"", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\x80\x04.", b"PK\x03\x04", b"\x93NUMPY", b"[" * 2000, b'{"a":' * 2000,
    b"NaN", b"1e999", b"-", b"9" * 5000, b'"\\ud800"', b"\x0a\x08location\x12\xff\xff\xff\xff\x0f", b"\r\n", b"]]>",
    b"<net",
)  # fmt: skip


_MOST = 2**21  # bytes: four times fifty copies would take all memory


def mutated(content: bytes, draw: random.Random) -> bytes:
    """The content with one to four changes."""
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        content = (of_structure if draw.random() < 0.75 else of_bytes)(content, draw)[:_MOST]
    return content


def of_structure(content: bytes, draw: random.Random) -> bytes:
    """A change of a value in JSON, or of an array in .npz; of bytes where it is neither."""
    if content[:2] == b"PK":
        return _of_arrays(content, draw)
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return of_bytes(content, draw)
    try:
        return json.dumps(_changed(value, draw)).encode("utf-8", "surrogatepass")
    except RecursionError:
        return content


def of_bytes(content: bytes, draw: random.Random) -> bytes:
    """A change of bytes anywhere."""
    at, end = sorted((draw.randint(0, len(content)), draw.randint(0, len(content))))
    kind = draw.randrange(5)
    if kind == 0:
        return content[:at]
    if kind == 1:
        return content[:at] + content[end:]
    if kind == 2:
        return content[:end] + content[at:end] * draw.choice((1, 3, 50)) + content[end:]
    if kind == 3:
        return content[:at] + draw.choice(_TEXTS) + content[at:]
    flipped = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        if flipped:
            flipped[draw.randrange(len(flipped))] = draw.randrange(256)
    return bytes(flipped)


def _changed(value: Any, draw: random.Random) -> Any:
    """One place of a JSON value changed."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(list(value))
        kind = draw.randrange(8)
        if kind == 0:
            return {other: one for other, one in value.items() if other != key}
        if kind == 1:
            return {**value, draw.choice(("", "a\nb", "../x", "version", "\ud800", "a" * 3000)): value[key]}
        return {**value, key: _changed(value[key], draw)}
    if isinstance(value, list) and value and draw.random() < 0.9:
        at, kind = draw.randrange(len(value)), draw.randrange(8)
        if kind == 0:
            return value[:at] + value[at + 1 :]
        if kind == 1:
            return value + [value[at]] * draw.choice((1, 300))
        return [*value[:at], _changed(value[at], draw), *value[at + 1 :]]
    if isinstance(value, str) and draw.random() < 0.5:
        # Texts that hold JSON, as rt_info has them.
        return of_structure(value.encode("utf-8", "surrogatepass"), draw).decode("latin-1")
    nested: Any = draw.choice(VALUES)
    if draw.random() < 0.03:
        for _ in range(draw.choice((5, 900))):
            nested = [nested]
    return nested


def _of_arrays(content: bytes, draw: random.Random) -> bytes:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    except Exception:  # whatever zipfile thinks of damaged archives
        return of_bytes(content, draw)
    if not entries:
        return of_bytes(content, draw)
    name = draw.choice(list(entries))
    kind = draw.randrange(8)
    if kind == 0:
        del entries[name]
    elif kind == 1:
        entries[name] = of_bytes(entries[name], draw)
    elif kind == 2:
        entries[draw.choice(("../x.npy", "graph.names.npy", "x", "node_us.npy"))] = entries[name]
    else:
        entries[name] = _changed_array(entries[name], draw)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for one, data in entries.items():
            archive.writestr(one, data)
    return packed.getvalue()


def _changed_array(data: bytes, draw: random.Random) -> bytes:
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except Exception:  # was damaged before
        return of_bytes(data, draw)
    kind = draw.randrange(6)
    if array.dtype.kind == "U":
        array = np.array(of_structure(str(array).encode("utf-8", "replace"), draw).decode("latin-1"))
    elif kind == 0:
        array = array.astype(draw.choice((np.float32, np.int8, np.uint64, np.complex64, np.bool_, np.dtype("S3"))))
    elif kind == 1:
        array = array.reshape(-1)[: draw.randint(0, array.size)]
    elif kind == 2:
        array = np.concatenate([array.reshape(-1)] * 3)
    elif array.size:
        array = array.copy()
        odd = (np.nan, np.inf, -1, 0, 2**31 - 1, 2**62, -(2**62), 1e300, array.size, draw.randrange(20))
        with np.errstate(all="ignore"):
            array.reshape(-1)[draw.randrange(array.size)] = np.array(draw.choice(odd)).astype(array.dtype)
    written = io.BytesIO()
    np.save(written, array, allow_pickle=False)
    return written.getvalue()
