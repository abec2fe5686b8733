"""What a written model may replace: an earlier OpenVINO IR of the same name, and nothing else.

Nobody names the .bin file of an output, and many ONNX models keep their weights in a file called model.bin. Replacing
it would leave a model that reads, runs and computes something else.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from ov_hsdag.storage.ir_text import constants_of, is_ir
from ov_hsdag.utils.errors import UserError

# A field "key" with the value "location" and the begin of the field "value", as StringStringEntryProto is serialized
# (onnx.proto, TensorProto.external_data): the files of an ONNX model are found without onnx and without its weights.
_LOCATION = b"\x0a\x08location\x12"

# Bytes of a file's name with its folders; what says that it is longer is none.
_LONGEST_NAME = 4096


def refuse_foreign_model(xml: Path, shown: str | os.PathLike[str]) -> None:
    """Raise UserError where an IR would replace files that are no IR of that name; empty files may be replaced.

    Neither may the .bin file be another's than the .xml file's. shown: the user's name. OSError: they cannot be read.
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
    # A replacement that was interrupted leaves a file that is longer than its model needs.
    if not 0 < used <= size:
        raise refused(
            shown, f"'{bin_.name}', where its weights would go, does not hold those of the model in '{xml.name}'"
        )


def refuse_input(
    source: str | os.PathLike[str], *targets: Path, shown: str | os.PathLike[str], replace_source: bool = False
) -> None:
    """Raise UserError where a file to write is the model that is read, its .bin, or external data of it (ONNX).

    replace_source: the model and its .bin may be written all the same; a link to one may always. shown: the user's
    name. OSError: the source cannot be read.
    """
    path = Path(source)
    existing = [target for target in targets if target.exists()]
    own = [path, *([path.with_suffix(".bin")] if path.suffix == ".xml" else [])]
    for target in existing if not replace_source else ():
        if not target.is_symlink() and any(one.exists() and target.samefile(one) for one in own):
            raise UserError(f"cannot write '{os.fspath(shown)}': it is the input; choose another output")
    for data in external_data(path) if existing else ():
        for target in existing:
            if os.path.exists(data) and target.samefile(data):
                raise refused(shown, f"'{target.name}' holds weights of the input '{os.fspath(source)}'")


def external_data(model: str | os.PathLike[str]) -> Iterator[Path]:
    """Files that an ONNX model refers to, each once, there or not, found without its weights. Raises OSError."""
    path = Path(model)
    if not path.is_file() or not path.stat().st_size:
        return
    seen = set()
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found = content.find(_LOCATION)
        while found >= 0:
            begin = found + len(_LOCATION)
            length, begin = _varint(content, begin)
            name = content[begin : begin + length] if length <= _LONGEST_NAME else b""
            if name and name not in seen:
                seen.add(name)
                # Of a link, OpenVINO looks beside the link, and other tools beside what it points to.
                for folder in dict.fromkeys((path.parent.resolve(), path.resolve().parent)):
                    yield folder / os.fsdecode(name)
            found = content.find(_LOCATION, begin)


def _varint(content: mmap.mmap, position: int) -> tuple[int, int]:
    """A number in protobuf's variable-length encoding, and where it ends."""
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
    """The error of an output that cannot be written; `shown` is what the user calls it."""
    return UserError(f"cannot write '{os.fspath(shown)}': {reason}; choose another output")
