"""Converts values to JSON's own types."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def plain(value: Any, digits: int | None = None) -> Any:
    """Converts a value to JSON's types: mappings, lists and NumPy's values, recursively. Inf and NaN become None.

    Args:
        value: the value. Other types stay as they are.
        digits: significant digits to which floats are rounded; no rounding by default.

    Returns:
        The converted value; keys of mappings are texts.
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
