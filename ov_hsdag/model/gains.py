"""Gains of placements, as everything that is printed says them."""

from __future__ import annotations

from collections.abc import Sequence

BEST_SINGLE = "the best single device"
"""What every figure of a gain is relative to, in everything that is printed."""

HSDAG = "hsdag"
"""Name of the candidate that the policy proposes."""

NOISY = 4.0
"""An interval whose ends are further apart than this factor says nothing: "noise" is printed in its place."""


def times(ratio: float, interval: Sequence[float] | None = None, over: str = "") -> str:
    """A gain as all commands print it: "1.86x", "1.86x (1.80 to 1.93)", "1.86x the best single device".

    interval: of 95% confidence, [low, high]; one without width (the device itself) is left out, and one that is wider
    than `NOISY` reads "(noise)".
    """
    text = f"{ratio:.2f}x {over}".rstrip()
    if interval is None or interval[0] == interval[1]:
        return text
    if interval[1] > NOISY * interval[0]:
        return f"{text} (noise)"
    return f"{text} ({interval[0]:.2f} to {interval[1]:.2f})"


def on_device(device: str) -> str:
    """Name of the plan of an application that has all models on one device."""
    return f"on {device}"


def placer_of(candidate: str) -> str:
    """The placer of a candidate: "hsdag" of "hsdag (less on GPU)", one of several placements that it proposed."""
    return candidate.partition(" (")[0]
