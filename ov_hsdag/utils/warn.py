"""Warnings that name the caller's line, however deep in the package they are given."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

_PACKAGE = str(Path(__file__).parents[1]) + os.sep


def warn_caller(message: str | Warning, category: type[Warning] = UserWarning) -> None:
    """Warns with the first line outside the package as the place of the warning.

    Args:
        message: what a user reads, one or two sentences; or the warning itself, which has its own category.
        category: the category of a message that is text.
    """
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level + 1)
