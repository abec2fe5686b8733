"""Formats sizes in bytes for users."""

from __future__ import annotations

import math
from collections.abc import Iterable

_UNITS = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def format_bytes(size: float) -> str:
    """Formats a size in bytes with four digits: "54.81 MiB", "1 KiB", "1,000 bytes".

    The unit is the largest one that is not larger than the size.
    """
    for name, unit in _UNITS:
        if abs(size) >= unit:
            # More digits would be noise; with fewer, a need just above a limit would look equal to it.
            return f"{float(f'{size / unit:.4g}'):,g} {name}"
    return "1 byte" if size == 1 else f"{size:,.0f} bytes"


def exceeding(devices: Iterable[str], needs: Iterable[int], limits: Iterable[int | None]) -> str:
    """Lists the devices that need more than their limit: "96 MiB of the 64 MiB on CPU", separated by commas.

    Args:
        devices: names of the devices.
        needs: bytes that each device needs.
        limits: limit of each device in bytes, None for no limit.

    Returns:
        The text; "" if all needs are within their limits.
    """
    figures = zip(devices, needs, limits, strict=True)
    over = [(name, need, limit) for name, need, limit in figures if limit is not None and need > limit]
    return ", ".join(f"{format_bytes(need)} of the {format_bytes(limit)} on {name}" for name, need, limit in over)


def round_up(size: float) -> int:
    """Rounds a size in bytes up to three digits of its unit, so that `format_bytes` shows the result exactly."""
    unit = next((unit for _, unit in _UNITS if size >= unit), 1)
    digits = math.floor(math.log10(max(size / unit, 1))) - 2
    step = unit * 10.0 ** (digits if unit > 1 else max(digits, 0))
    rounded = int(round(math.ceil(size / step) * step, 3))
    return rounded if rounded < 2**10 * unit or rounded >= 2**50 else round_up(rounded)  # shown in the next unit
