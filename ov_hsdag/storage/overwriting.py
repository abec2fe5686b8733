"""Decides which files a written model may replace: an earlier OpenVINO IR of the same name, and nothing else.

Users do not name the .bin file of an output, and many ONNX models keep their weights in a file called model.bin. If
that were replaced, the ONNX model would still be read and run, and compute something else.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from ov_hsdag.storage.ir_text import constants_of, is_ir
from ov_hsdag.utils.errors import UserError

# A field "key" with the value "location", and the beginning of the field "value", as StringStringEntryProto is
# serialized (onnx.proto, TensorProto.external_data). So an ONNX model's files are found without onnx and its weights.
_LOCATION = b"\x0a\x08location\x12"

# Largest length in bytes of a path, as on Linux. Data with a larger length is not a file's name.
_LONGEST_NAME = 4096


def refuse_foreign_model(xml: Path, shown: str | os.PathLike[str]) -> None:
    """Checks that an IR would replace only an IR of that name, or empty files.

    Args:
        xml: path of the .xml file; the .bin beside it must belong to it.
        shown: the user's name of the output, for messages.

    Raises:
        UserError: something else would be replaced.
        OSError: the files cannot be read.
    """
    bin_ = xml.with_suffix(".bin")
    for path in (xml, bin_):
        if path.exists() and not path.is_file():  # reading from a pipe would never end
            raise refused(shown, f"'{path.name}' is there already and is no file")
    text = xml.read_bytes() if xml.exists() else b""
    if text and not is_ir(text):
        raise refused(shown, f"'{xml.name}' is there already and is no OpenVINO IR")
    size = bin_.stat().st_size if bin_.exists() else 0
    if not size:
        return
    if not text:
        raise refused(shown, f"'{bin_.name}', where its weights would go, is there already without '{xml.name}'")
    used = max((offset + size for offset, size in constants_of(text)), default=0)
    # After an interrupted replacement, the file may be longer than its model needs.
    if not 0 < used <= size:
        raise refused(
            shown, f"'{bin_.name}', where its weights would go, does not hold those of the model in '{xml.name}'"
        )


def refuse_input(
    source: str | os.PathLike[str], *targets: Path, shown: str | os.PathLike[str], replace_source: bool = False
) -> None:
    """Checks that output files are not the model that is read, its .bin, or external data of it (ONNX).

    Args:
        source: file of the model that is read.
        targets: files to write. A link to the source may always be replaced.
        shown: the user's name of the output, for messages.
        replace_source: whether the model and its .bin may be replaced.

    Raises:
        UserError: a target is one of these files.
        OSError: the source cannot be read.
    """
    path = Path(source)
    existing = [target for target in targets if target.exists()]
    source_files = [path, *([path.with_suffix(".bin")] if path.suffix == ".xml" else [])]
    for target in existing if not replace_source else ():
        if not target.is_symlink() and any(one.exists() and target.samefile(one) for one in source_files):
            raise UserError(f"cannot write '{os.fspath(shown)}': it is the input; choose another output")
    for data in external_data(path) if existing else ():
        for target in existing:
            if os.path.exists(data) and target.samefile(data):
                raise refused(shown, f"'{target.name}' holds weights of the input '{os.fspath(source)}'")


def external_data(model: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields the files that an ONNX model refers to, each once, whether they exist or not. Weights are not read.

    Raises:
        OSError: the model cannot be read.
    """
    path = Path(model)
    if not path.is_file() or not path.stat().st_size:
        return
    seen = set()
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        position = content.find(_LOCATION)
        while position >= 0:
            begin = position + len(_LOCATION)
            length, begin = _varint(content, begin)
            name = content[begin : begin + length] if length <= _LONGEST_NAME else b""
            if name and name not in seen:
                seen.add(name)
                # If the model is a link, OpenVINO looks beside the link, and other tools beside the linked file.
                for folder in dict.fromkeys((path.parent.resolve(), path.resolve().parent)):
                    yield folder / os.fsdecode(name)
            position = content.find(_LOCATION, begin)


def _varint(content: mmap.mmap, position: int) -> tuple[int, int]:
    """Reads an integer in protobuf's variable-length encoding; returns (integer, position behind it)."""
    value = 0
    for shift in range(0, 35, 7):
        if position >= len(content):
            break
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    return value, position


def refused(shown: str | os.PathLike[str], reason: str) -> UserError:
    """Makes the error for an output that cannot be written; `shown` is the user's name of it."""
    return UserError(f"cannot write '{os.fspath(shown)}': {reason}; choose another output")
