"""Formats the gains of placements as all commands print them, and the names that go with them.

A gain is how many times better a placement is than a reference, in the objective (latency or throughput).
"""

from __future__ import annotations

from collections.abc import Sequence

BEST_SINGLE = "the best single device"
"""The reference of every printed gain."""

HSDAG = "hsdag"
"""Name of the candidate that the policy proposes."""

NOISY = 4.0
"""Largest believable ratio of an interval's ends. A wider interval shows nothing, so "noise" is printed instead."""


def times(ratio: float, interval: Sequence[float] | None = None, over: str = "") -> str:
    """Formats a gain as all commands print it: "1.86x", "1.86x (1.80 to 1.93)", "1.86x the best single device".

    Args:
        ratio: the gain; 1 is no gain.
        interval: 95% confidence interval of the gain, [low, high]. An interval without width, as that of the best
            single device itself, is left out; one that is wider than `NOISY` reads "(noise)".
        over: the reference of the gain, such as `BEST_SINGLE`; it is left out by default.

    Returns:
        The text.
    """
    text = f"{ratio:.2f}x {over}".rstrip()
    if interval is None or interval[0] == interval[1]:
        return text
    if interval[1] > NOISY * interval[0]:
        return f"{text} (noise)"
    return f"{text} ({interval[0]:.2f} to {interval[1]:.2f})"


def placer_of(candidate: str) -> str:
    """Returns the name of the placer that proposed a candidate: "hsdag" for the candidate "hsdag (less on GPU)"."""
    return candidate.partition(" (")[0]
