"""Hashes: of 64-bit numbers, for colours of graphs, and of files."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's output for each of the values, uint64 of any shape; sums of outputs do not collide in practice."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal digits. Raises OSError."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
