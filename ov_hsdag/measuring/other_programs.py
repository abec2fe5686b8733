"""Corrects the rates of a round's trials for the processor time that other programs took, by one rule for all."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ov_hsdag.measuring.runner import TrialLoad


def corrections(loads: Mapping[str, TrialLoad]) -> dict[str, float]:
    """Computes the corrections of a round's trials.

    All trials of a round are corrected by the same number of cores: the most that other programs used during one of
    them. Where cores are scarce, other programs get fewer of them during trials whose own threads use more. The
    correction of such a trial is bounded by the number of cores that the process can use at most
    (`ov_hsdag.measuring.runner.undisturbed`).

    Args:
        loads: load of each candidate's trial in the round, by name.

    Returns:
        Logarithm of how many times as fast each trial would have been without other programs, at least 0.
    """
    others = max((load.others for load in loads.values()), default=0.0)
    return {name: math.log(load.correction(others)) for name, load in loads.items()}
