"""Reads the text of an OpenVINO IR without OpenVINO.

OpenVINO writes names as they are, with control characters that XML does not allow, and its own parser accepts them. So
the text is searched with regular expressions, and no parser of Python's is used.
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

# The root of an IR, after an optional byte order mark, processing instructions and comments.
_ROOT = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<(?:\?.*?\?|!--.*?--)>\s*)*<net[\s>]", re.DOTALL)

_ENTRY = b"<ov_hsdag>"  # entry of a placement in the model's rt_info
_EDGES_END = b"</edges>"  # the model's rt_info is behind the last of these tags

# Bytes that are read at once from the end of a file: the first time, and at most.
_FIRST_STEP, _LONGEST_STEP = 1 << 16, 1 << 22

# Offset and size of a constant's <data> in an IR. Other layers (PriorBox) have an attribute "offset", too.
_CONSTANT = re.compile(
    rb'\btype="Const"[^>]{0,200}>\s*<data\b(?=[^>]*?\boffset="(?P<offset>\d+)")(?=[^>]*?\bsize="(?P<size>\d+)")'
)

# The same exactly as OpenVINO writes it, because text that is rewritten must be known completely.
_WRITTEN_CONSTANT = re.compile(
    rb'(\bname=")([^"]*)(" type="Const" version="[^"]*">\s*<data (?:[\w:.-]+="[^"]*" )*?offset=")(\d+)(" size=")'
    rb'(\d+)(")'
)


def is_ir(text: bytes) -> bool:
    """Whether a text, or its beginning, is that of an IR."""
    return _ROOT.match(text[:_BEGINNING]) is not None


def has_entry(text: bytes) -> bool:
    """Whether the text of an IR, or a part of it, has an embedded placement."""
    return _ENTRY in text


def file_carries(path: str | bytes | os.PathLike[Any], step: int = _FIRST_STEP) -> bool:
    """Whether a file is an IR with an embedded placement. Only the file's beginning and its rt_info are read.

    In names and values "<" is escaped, so a tag in the text is a tag. A file without edges in its last `RT_INFO` bytes
    has no placement, as no rt_info is longer.

    Args:
        path: any file; one that cannot be read has no placement.
        step: bytes that are read first, from the end.
    """
    # `opened` refuses named pipes, whose content OpenVINO may need.
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
    """Yields offset and size, in bytes, of the data of each constant in the .bin file of an IR with this text."""
    for data in _CONSTANT.finditer(xml):
        yield int(data["offset"]), int(data["size"])


def rewritten_constants(xml: bytes, change: Callable[[bytes, int, int], tuple[bytes, int]]) -> bytes:
    """Rewrites names and offsets of the constants in the text of an IR.

    Args:
        xml: the text.
        change: maps (name, offset, size) to the new (name, offset); names are as in the text, and sizes are in bytes.

    Returns:
        The new text.

    Raises:
        RunError: a constant is not written as OpenVINO does.
    """

    def rewritten(match: re.Match[bytes]) -> bytes:
        """Returns the text of one constant with its new name and offset."""
        name, offset = change(match[2], int(match[4]), int(match[6]))
        return b"%s%s%s%d%s%s%s" % (match[1], name, match[3], offset, match[5], match[6], match[7])

    text, rewritten_count = _WRITTEN_CONSTANT.subn(rewritten, xml)
    expected = len(re.findall(rb'\btype="Const" version="', xml))
    if rewritten_count != expected:
        raise RunError(
            f"found the offsets of {rewritten_count} of {expected} constants in a saved model: cannot replace a model"
        )
    return text
