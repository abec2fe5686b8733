"""Memory limits as users write them: "CPU=8GiB,GPU=2GiB", or plain bytes: "GPU=123456789"."""

from __future__ import annotations

import re
from collections.abc import Collection
from decimal import Decimal

from ov_hsdag.utils.errors import UserError

MOST = 10**15
"""Bytes; more than any device has, so that a larger limit is none."""

_LEAST_PLAIN = 2**20

_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def parse_memory(text: str, devices: Collection[str]) -> dict[str, int]:
    """Bytes by device. Raises UserError for what is no such list, and for a device that is not one of `devices`."""
    limits: dict[str, int] = {}
    for part in text.split(","):
        name, equals, amount = (piece.strip() for piece in part.partition("="))
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", amount)
        number, unit = (match[1], match[2] or "B") if match else ("", "")
        # Who writes GPU=2 means no two bytes.
        forgotten = match is not None and not match[2] and Decimal(number) < _LEAST_PLAIN
        if not name or not equals or unit not in _UNITS or forgotten:
            raise UserError(
                f"memory limit '{part.strip()}' is not DEVICE=AMOUNT: give one like GPU=2GiB ({', '.join(_UNITS)}),"
                f" or a number of bytes of {_LEAST_PLAIN} and more"
            )
        if name not in devices:
            raise UserError(f"memory is limited for device '{name}', which is not among {', '.join(devices)}")
        if name in limits:
            raise UserError(f"memory is limited twice for device '{name}'")
        limits[name] = int(min(Decimal(number) * _UNITS[unit], Decimal(MOST)))
        if not limits[name]:
            raise UserError(f"memory limit '{part.strip()}' leaves no memory: give a positive amount")
    return limits
