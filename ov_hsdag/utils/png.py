"""Decodes PNG images with 8 bits per channel, without a library.

The format is the Portable Network Graphics (PNG) Specification, third edition, https://www.w3.org/TR/png-3/.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

_SIGNATURE = b"\x89PNG\r\n\x1a\n"  # first bytes of every PNG file

_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Number of channels by colour type: gray, RGB, palette, gray and alpha, RGB and alpha."""

_PALETTE = 3  # colour type of images with a palette

_LONGEST_SIDE = 2**14
"""Largest width or height in pixels. Decoding takes one step for each pixel of width and height together."""

_MOST_PIXELS = 2**24
"""Largest number of pixels, which bounds the memory that a hostile file can take."""

_NOT_READ = "8-bit PNG images without interlacing are read; Pillow's Image.open(…).convert('RGB').save(…) makes one"


def decode(data: bytes) -> NDArray[np.uint8]:
    """Decodes a PNG image.

    Args:
        data: content of the file.

    Returns:
        The pixels, uint8 [height, width, channels]: 1 channel is gray, 2 are gray and alpha, 3 RGB, and 4 RGB and
        alpha.

    Raises:
        ValueError: the data is no PNG image, is damaged, has more than 2^24 pixels, or is of an unsupported kind.
    """
    if not data.startswith(_SIGNATURE):
        raise ValueError("it is no PNG image")
    header, palette, packed = b"", b"", []
    for kind, content in _chunks(data):
        if kind == b"IHDR":
            header = content
        elif kind == b"PLTE":
            palette = content
        elif kind == b"IDAT":
            packed.append(content)
    if len(header) != 13:
        raise ValueError("it is a damaged PNG image: it has no header")
    width, height, depth, color, _, _, interlaced = struct.unpack(">IIBBBBB", header)
    if not (0 < width <= _LONGEST_SIDE and 0 < height <= _LONGEST_SIDE and width * height <= _MOST_PIXELS):
        raise ValueError(f"it has {width:,} by {height:,} pixels, at most {_MOST_PIXELS:,} are read")
    if depth != 8 or interlaced or color not in _CHANNELS:
        raise ValueError(f"it has {depth} bits a channel{', interlaced' if interlaced else ''}: {_NOT_READ}")
    pixels = _unfiltered(_unpacked(packed, height * (1 + width * _CHANNELS[color])), height, width, _CHANNELS[color])
    if color != _PALETTE:
        return pixels
    colors = np.frombuffer(palette[: len(palette) // 3 * 3], np.uint8).reshape(-1, 3)
    if int(pixels.max()) >= len(colors):
        raise ValueError("it is a damaged PNG image: its palette is too short")
    return colors[pixels[:, :, 0]]


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields kind and content of each chunk. Raises ValueError where one is cut or damaged."""
    position, kind = len(_SIGNATURE), b""
    while kind != b"IEND":
        if position + 12 > len(data):
            raise ValueError("it is a damaged PNG image: it ends too soon")
        (length,) = struct.unpack_from(">I", data, position)
        kind, content = data[position + 4 : position + 8], data[position + 8 : position + 8 + length]
        end = position + 8 + length
        if end + 4 > len(data) or struct.unpack_from(">I", data, end)[0] != zlib.crc32(kind + content):
            raise ValueError("it is a damaged PNG image: a checksum is wrong")
        yield kind, content
        position = end + 4


def _unpacked(packed: list[bytes], size: int) -> NDArray[np.uint8]:
    """Decompresses the pixels of an image.

    Args:
        packed: contents of the IDAT chunks, in order.
        size: number of bytes to decompress; further ones are ignored.

    Returns:
        The bytes, uint8 [size].

    Raises:
        ValueError: there are fewer bytes, or they are damaged.
    """
    decompress = zlib.decompressobj()
    try:
        unpacked = decompress.decompress(b"".join(packed), size)
    except zlib.error as error:
        raise ValueError("it is a damaged PNG image: its pixels cannot be unpacked") from error
    if len(unpacked) < size:
        raise ValueError("it is a damaged PNG image: it has fewer pixels than it says")
    return np.frombuffer(unpacked, np.uint8)


def _unfiltered(data: NDArray[np.uint8], height: int, width: int, channels: int) -> NDArray[np.uint8]:
    """Computes pixels from their differences to predictions by neighbours (section 9, filtering).

    A pixel depends on the pixels to the left, above, and above to the left, so all pixels of a diagonal are computed at
    once.

    Args:
        data: the rows of the image, uint8. Each begins with the number of the filter that predicts its pixels: 0 zero,
            1 left, 2 above, 3 the mean of both, 4 Paeth.
        height: number of rows.
        width: pixels of a row.
        channels: channels of a pixel, a byte each.

    Returns:
        The pixels, uint8 [height, width, channels].

    Raises:
        ValueError: a row has an unknown filter.
    """
    rows = data.reshape(height, 1 + width * channels)
    filters = rows[:, 0].astype(np.int64)
    if int(filters.max()) > 4:
        raise ValueError("it is a damaged PNG image: a row has an unknown filter")
    # A row above and a column before the first ones are 0. Along a diagonal, rows increase and columns decrease, so its
    # pixels have equal distances in memory and form a slice with a step.
    padded = width + 1
    pixels = np.zeros((channels, (height + 1) * padded), np.int16)
    wide = np.zeros((channels, height, padded), np.int16)
    wide[:, :, :width] = rows[:, 1:].reshape(height, width, channels).transpose(2, 0, 1)
    differences = wide.reshape(channels, -1)
    for diagonal in range(height + width - 1):
        first = max(0, diagonal - width + 1)
        count = min(height, diagonal + 1) - first
        at, span = first * padded + diagonal - first, (count - 1) * width + 1

        def along(start: int, values: NDArray[np.int16], span: int = span) -> NDArray[np.int16]:
            """Returns the diagonal that begins at a flat index, as a view [channels, pixels]."""
            return values[:, start : start + span : width]

        left, above, corner = along(at + padded, pixels), along(at + 1, pixels), along(at, pixels)
        filtered = filters[first : first + count]
        predicted = np.where(filtered == 4, _paeth(left, above, corner), (left + above) >> 1)
        predicted = np.where(filtered == 1, left, np.where(filtered == 2, above, predicted))
        predicted *= filtered != 0
        along(at + padded + 1, pixels)[:] = (along(at, differences) + predicted) & 255
    return np.ascontiguousarray(pixels.reshape(channels, height + 1, padded)[:, 1:, 1:].transpose(1, 2, 0), np.uint8)


def _paeth(left: NDArray[np.int16], above: NDArray[np.int16], corner: NDArray[np.int16]) -> NDArray[np.int16]:
    """Returns the neighbour whose value is nearest to left + above - corner (section 9.4), int16 [channels, pixels].

    The corner is the pixel above to the left.
    """
    to_left, to_above = np.abs(above - corner), np.abs(left - corner)
    to_corner = np.abs(left + above - 2 * corner)
    nearer = np.where(to_above <= to_corner, above, corner)
    return np.where((to_left <= to_above) & (to_left <= to_corner), left, nearer)
