"""Sizes in bytes, as people read them."""

from __future__ import annotations

_UNITS = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def format_bytes(size: float) -> str:
    """A size in the largest unit of which it has one, with four digits: "54.81 MiB", "1 KiB", "1,000 bytes"."""
    for name, unit in _UNITS:
        if abs(size) >= unit:
            # More digits would be noise; with fewer, a need just above a limit would look equal to it.
            return f"{float(f'{size / unit:.4g}'):,g} {name}"
    return "1 byte" if size == 1 else f"{size:,.0f} bytes"
