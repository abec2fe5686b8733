"""Rank correlations of what was predicted with what was measured, and what noise lets them be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

T = TypeVar("T")
Figures = Sequence[float] | NDArray[np.float64]


def halves(rounds: Sequence[T]) -> list[list[T]]:
    """Every second pair of rounds, and the others; all of them twice where there are fewer than three.

    Rounds are taken in pairs because their order turns within a pair (`choice.in_order`).
    """
    found = [[one for number, one in enumerate(rounds) if number // 2 % 2 == half] for half in (0, 1)]
    return found if all(found) else [list(rounds)] * 2


def spearman(some: Figures, others: Figures) -> float | None:
    """Spearman's rank correlation; None for fewer than three."""
    return float(spearmanr(some, others).statistic) if len(some) > 2 else None


def attainable(some: Figures, others: Figures) -> float | None:
    """About what exact predictions would have with the mean of all rounds, from measurements in each half of them.

    The correlation of the halves, by Spearman's and Brown's formula that of all rounds with as many others, and its
    root that with the truth.
    """
    between = spearman(some, others)
    return None if between is None else (2 * max(between, 0.0) / (1 + max(between, 0.0))) ** 0.5
