"""Converts values to JSON's own types."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def plain(value: Any, digits: int | None = None) -> Any:
    """Converts NumPy's values and sequences to Python's; infinite floats become None.

    Args:
        value: the value; mappings and sequences are converted recursively.
        digits: significant digits of floats; all by default.
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, digits) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist(), digits)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, float) and digits is not None:
        return float(f"{value:.{digits}g}") if value % 1 else int(value)
    return value
