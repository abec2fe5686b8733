"""Memory limits as users write them: "CPU=8GiB,GPU=2GiB", or plain bytes: "GPU=123456789"."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from decimal import Decimal

import numpy as np

from ov_hsdag.utils.errors import UserError

MOST = 10**15
"""Largest limit in bytes. It is more than any device has, so a larger one would not limit anything."""

# Smallest number of bytes without a unit: the unit was probably forgotten in a smaller one.
_SMALLEST_WITHOUT_UNIT = 2**20

# Bytes of each unit.
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def parse_memory(text: str, devices: Collection[str]) -> dict[str, int]:
    """Reads memory limits.

    Args:
        text: such as "CPU=8GiB,GPU=2GiB".
        devices: names of the devices.

    Returns:
        Bytes by device.

    Raises:
        UserError: the text is no such list, or a device is not among `devices`.
    """
    limits: dict[str, int | str] = {}
    for part in text.split(","):
        name, equals, amount = (piece.strip() for piece in part.partition("="))
        if not name or not equals:
            raise _unreadable_limit(part.strip())
        name = next((known for known in devices if known.upper() == name.upper()), name)
        if name in limits:
            raise UserError(f"memory is limited twice for device '{name}'")
        limits[name] = amount
    return memory_limits(limits, devices)


def memory_limits(memory: Mapping[str, int | str], devices: Collection[str]) -> dict[str, int]:
    """Reads memory limits that are numbers of bytes or texts such as "8GiB".

    Args:
        memory: limits by device.
        devices: names of the devices.

    Returns:
        Bytes by device.

    Raises:
        UserError: an amount cannot be read or is not positive, or a device is not among `devices`.
    """
    limits: dict[str, int] = {}
    for name, limit in memory.items():
        if name not in devices:
            raise UserError(f"memory is limited for device '{name}', which is not among {', '.join(devices)}")
        if isinstance(limit, str):
            limits[name] = parse_amount(limit.strip(), f"{name}={limit}")
            continue
        if isinstance(limit, bool) or not isinstance(limit, int | np.integer) or limit <= 0:
            raise UserError(f"the memory of {name} must be a positive number of bytes or like '8GiB', got {limit!r}")
        limits[name] = min(int(limit), MOST)
    return limits


def parse_amount(amount: str, shown: str) -> int:
    """Reads an amount such as "8GiB" as bytes, at most `MOST`.

    Args:
        amount: a number and a unit. The unit may be left out from 1 MiB on.
        shown: the user's text, for messages.

    Raises:
        UserError: it is no such amount, or zero.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", amount)
    number, unit = (match[1], match[2] or "B") if match else ("", "")
    # GPU=2 does not mean two bytes.
    forgotten = match is not None and not match[2] and Decimal(number) < _SMALLEST_WITHOUT_UNIT
    if unit not in _UNITS or forgotten:
        raise _unreadable_limit(shown)
    amount_bytes = int(min(Decimal(number) * _UNITS[unit], Decimal(MOST)))
    if not amount_bytes:
        raise UserError(f"memory limit '{shown}' leaves no memory: give a positive amount")
    return amount_bytes


def _unreadable_limit(shown: str) -> UserError:
    """Makes the error for a memory limit that cannot be read; `shown` is the user's text."""
    return UserError(
        f"memory limit '{shown}' is not DEVICE=AMOUNT: give one like GPU=2GiB ({', '.join(_UNITS)}), or a number of"
        f" bytes of {_SMALLEST_WITHOUT_UNIT} and more"
    )
