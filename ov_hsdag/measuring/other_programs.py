"""What other programs took of the trials of a round, given back to all of them by one rule."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ov_hsdag.measuring.runner import TrialLoad


def corrections(loads: Mapping[str, TrialLoad]) -> dict[str, float]:
    """The corrections of a round's trials.

    All of a round are corrected by the same number of cores: the most that other programs had beside one of its
    candidates. Where cores are scarce, they have fewer beside the others, whose threads use them in their place; there,
    what a process can use at most bounds the correction (`ov_hsdag.measuring.runner.undisturbed`).

    Args:
        loads: of each candidate that ran in the round, the load of its trial.

    Returns:
        Logarithm of how many times as fast each trial would have been without other programs, at least 0.
    """
    others = max((load.others for load in loads.values()), default=0.0)
    return {name: math.log(load.correction(others)) for name, load in loads.items()}
