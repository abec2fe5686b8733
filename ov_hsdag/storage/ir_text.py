"""What is read of the text of an OpenVINO IR without OpenVINO.

OpenVINO writes names as they are, with control characters that XML does not allow, and its own parser takes them. So
the text is searched, and given to no parser of Python's.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

from ov_hsdag.utils.errors import RunError
from ov_hsdag.utils.reading import RT_INFO, opened

_BEGINNING = 512
"""Bytes in which OpenVINO looks for the root of an IR."""

_ROOT = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<(?:\?.*?\?|!--.*?--)>\s*)*<net[\s>]", re.DOTALL)

_ENTRY = b"<ov_hsdag>"  # a placement's entry in the model's rt_info
_EDGES_END = b"</edges>"  # the model's rt_info stands behind the last of them

# Bytes of a file that are read at once, from its end: first, and at most.
_FIRST_STEP, _LONGEST_STEP = 1 << 16, 1 << 22

# Attributes of a constant's <data> in an IR. Other layers have an attribute "offset" too (PriorBox).
_CONSTANT = re.compile(
    rb'\btype="Const"[^>]{0,200}>\s*<data\b(?=[^>]*?\boffset="(?P<offset>\d+)")(?=[^>]*?\bsize="(?P<size>\d+)")'
)

# The same as OpenVINO writes it, with all that stands between: what is rewritten has to be known to the last.
_WRITTEN_CONSTANT = re.compile(
    rb'(\bname=")([^"]*)(" type="Const" version="[^"]*">\s*<data (?:[\w:.-]+="[^"]*" )*?offset=")(\d+)(" size=")'
    rb'(\d+)(")'
)


def is_ir(text: bytes) -> bool:
    """Whether a text, or its beginning, is that of an IR."""
    return _ROOT.match(text[:_BEGINNING]) is not None


def has_entry(text: bytes) -> bool:
    """Whether the text of an IR has an embedded placement."""
    return _ENTRY in text


def file_carries(path: str | bytes | os.PathLike[Any], step: int = _FIRST_STEP) -> bool:
    """Whether a file is an IR with an embedded placement. Reads no more than the file's beginning and its rt_info.

    Inside names and values "<" is escaped, so tags are tags. A file that goes on without edges for longer than any
    rt_info carries none.

    Args:
        path: of any file; one that cannot be read carries none.
        step: bytes that are read at first, from the end.
    """
    # Nothing is taken from a pipe: OpenVINO may read it.
    with contextlib.suppress(OSError, ValueError), opened(path) as file:
        end = file.seek(0, os.SEEK_END) if is_ir(file.read(_BEGINNING)) else 0
        position, tail = end, b""
        while position > 0 and _EDGES_END not in tail and end - position < RT_INFO:
            length = min(step, position)
            position -= length
            file.seek(position)
            tail = file.read(length) + tail[:16]  # 16: a tag may lie across two steps
            if has_entry(tail):
                return True
            step = min(2 * step, _LONGEST_STEP)
    return False


def constants_of(xml: bytes) -> Iterator[tuple[int, int]]:
    """Offset and size, in bytes, of the data of each of an IR's constants in its .bin file. xml: the text of the IR."""
    for data in _CONSTANT.finditer(xml):
        yield int(data["offset"]), int(data["size"])


def rewritten_constants(xml: bytes, change: Callable[[bytes, int, int], tuple[bytes, int]]) -> bytes:
    """The text of an IR with other names and offsets of its constants.

    change: (name, offset, size in bytes) → (name, offset), both names as the text has them. RunError: a constant is not
    written as OpenVINO does.
    """

    def rewritten(match: re.Match[bytes]) -> bytes:
        name, offset = change(match[2], int(match[4]), int(match[6]))
        return b"%s%s%s%d%s%s%s" % (match[1], name, match[3], offset, match[5], match[6], match[7])

    text, found = _WRITTEN_CONSTANT.subn(rewritten, xml)
    expected = len(re.findall(rb'\btype="Const" version="', xml))
    if found != expected:
        raise RunError(f"found the offsets of {found} of {expected} constants in a saved model: cannot replace a model")
    return text
