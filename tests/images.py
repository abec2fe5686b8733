"""Makes PNG files with all filters, palettes and damaged headers, as tests of reading images need them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

COLORS = {1: 0, 2: 4, 3: 2, 4: 6}
"""PNG's type of color by channels."""


def chunk(kind: bytes, content: bytes) -> bytes:
    """Makes a chunk of a PNG file: length, kind, content and checksum."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png_of(
    pixels: NDArray[np.uint8],
    filters: Sequence[int] = (0, 1, 2, 3, 4),
    *,
    palette: NDArray[np.uint8] | None = None,
    header: tuple[int, ...] | None = None,
) -> bytes:
    """Makes a PNG file.

    Args:
        pixels: [height, width, channels]; with a palette one channel, numbers of colors.
        filters: PNG's filters, 0 to 4, which rows have in turns.
        palette: colors, uint8 [colors, 3]; None for none.
        header: width, height, bits, color type, compression, filter and interlacing in place of the right ones.

    Returns:
        The bytes of the file.
    """
    height, width, channels = pixels.shape
    wide = np.zeros((height + 1, width + 1, channels), np.int64)
    wide[1:, 1:] = pixels
    left, above, corner, here = wide[1:, :-1], wide[:-1, 1:], wide[:-1, :-1], wide[1:, 1:]
    near = np.stack([np.abs(above - corner), np.abs(left - corner), np.abs(left + above - 2 * corner)])
    paeth = np.choose(near.argmin(axis=0), [left, above, corner])  # the first of equal ones
    predictions = np.stack([np.zeros_like(left), left, above, (left + above) // 2, paeth])
    rows = b""
    for row in range(height):
        kind = filters[row % len(filters)]
        rows += bytes([kind]) + ((here[row] - predictions[kind, row]) & 255).astype(np.uint8).tobytes()
    color = 3 if palette is not None else COLORS[channels]
    fields = header or (width, height, 8, color, 0, 0, 0)
    colors = chunk(b"PLTE", palette.tobytes()) if palette is not None else b""
    data = zlib.compress(rows)
    parts = [chunk(b"IDAT", data[: len(data) // 2]), chunk(b"IDAT", data[len(data) // 2 :])]
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", *fields))
        + colors
        + b"".join(parts)
        + chunk(b"IEND", b"")
    )
