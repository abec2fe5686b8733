"""Rank correlations of predictions with measurements, and the largest ones that noise allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

T = TypeVar("T")
Figures = Sequence[float] | NDArray[np.float64]


def halves(rounds: Sequence[T]) -> list[list[T]]:
    """Divides rounds into two halves: every second pair of rounds, and the other pairs.

    Rounds are taken in pairs because their order turns within a pair (`choice.in_order`). Fewer than three rounds
    cannot be divided so: both halves then have all of them.
    """
    found = [[one for number, one in enumerate(rounds) if number // 2 % 2 == half] for half in (0, 1)]
    return found if all(found) else [list(rounds)] * 2


def spearman(some: Figures, others: Figures) -> float | None:
    """Spearman's rank correlation of two sequences of the same length; None for fewer than three values."""
    return float(spearmanr(some, others).statistic) if len(some) > 2 else None


def attainable(some: Figures, others: Figures) -> float | None:
    """Estimates the rank correlation that exact predictions would have with the mean of all rounds.

    The correlation between the halves of the rounds gives, by the formula of Spearman and Brown, that of all rounds
    with as many others; its root is the correlation with the truth.

    Args:
        some: measurements in one half of the rounds.
        others: measurements of the same candidates in the other half.

    Returns:
        The correlation, 0 to 1; None for fewer than three candidates.
    """
    between = spearman(some, others)
    return None if between is None else (2 * max(between, 0.0) / (1 + max(between, 0.0))) ** 0.5
