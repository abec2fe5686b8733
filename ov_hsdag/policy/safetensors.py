"""Reads tensors of a safetensors file (github.com/huggingface/safetensors, "Format") without a package for it."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.utils.reading import SETTINGS, parse_json

# Element types that are read.
_TYPES: dict[str, np.dtype[np.floating[Any]]] = {"F16": np.dtype("<f2"), "F32": np.dtype("<f4")}


def read_tensors(content: bytes) -> dict[str, NDArray[np.float32]]:
    """Reads tensors (F16, F32) by name; F16 is converted to float32.

    The content is 8 bytes with the length of a JSON header, the header, and the data.

    Raises:
        ValueError: the content is no such file.
    """
    begin = 8 + int.from_bytes(content[:8], "little")
    if len(content) < 8 or not 8 <= begin <= min(len(content), SETTINGS):
        raise ValueError("it is no safetensors file")
    try:
        header = parse_json(content[8:begin].decode())
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError("its header is no JSON") from error
    if not isinstance(header, dict):
        raise ValueError("its header is no object")
    data = memoryview(content)[begin:]
    return {name: _tensor(name, entry, data) for name, entry in header.items() if name != "__metadata__"}


def _tensor(name: str, entry: Any, data: memoryview) -> NDArray[np.float32]:
    """Reads a tensor.

    Args:
        name: its name, for the message.
        entry: its entry in the header.
        data: the content behind the header.

    Raises:
        ValueError: the entry is malformed.
    """
    try:
        dtype, shape, (begin, end) = _TYPES[entry["dtype"]], tuple(entry["shape"]), entry["data_offsets"]
        if not all(type(number) is int and number >= 0 for number in (*shape, begin, end)):
            raise ValueError
        if not begin <= end <= len(data) or math.prod(shape) * dtype.itemsize != end - begin:
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"the tensor {name!r:.60} is malformed") from None
    return np.frombuffer(data[begin:end], dtype).reshape(shape).astype(np.float32, copy=False)
