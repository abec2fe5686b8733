"""A placement as a few lines of text: a bar for each device along the order in which operations run."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ov_hsdag.model.placement import Placement

if TYPE_CHECKING:
    import openvino as ov

# Columns that a picture takes at most.
_WIDEST = 100

_SHADES = " ░▒▓█"
_PLAIN = " .:+#"


def split_picture(names: Sequence[str], devices: Sequence[int], *, width: int, encoding: str = "utf-8") -> list[str]:
    """Draw which device (number) each operation runs on, in the order in which they run: a line for each device.

    A column is a share of the operations, the darker the more of them run there; [] without operations, or no room for
    a bar of at most `width` columns. A terminal whose encoding has no block characters gets plain ones.
    """
    label = max(map(len, names), default=0) + 2
    columns = min(width - label, len(devices))
    if columns < 8:
        return []
    try:
        _SHADES.encode(encoding)
        shades = _SHADES
    except (UnicodeEncodeError, LookupError):
        shades = _PLAIN
    lines = []
    for number, name in enumerate(names):
        bar = ""
        for column in range(columns):
            part = devices[column * len(devices) // columns : (column + 1) * len(devices) // columns]
            share = sum(device == number for device in part) / len(part)
            # Nothing is drawn for none, and something for any.
            bar += shades[0] if share == 0 else shades[max(1, round(share * (len(shades) - 1)))]
        lines.append(f"{name:<{label}}{bar.rstrip()}".rstrip())
    return lines


def terminal_picture(operations: Sequence[ov.Node], placement: Placement) -> list[str]:
    """`split_picture` of placed operations, for standard output."""
    homes = [placement.affinity.get(node.get_friendly_name()) for node in operations]
    numbers = [placement.devices.index(home) for home in homes if home is not None]
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    return split_picture(placement.devices, numbers, width=width, encoding=sys.stdout.encoding or "ascii")
