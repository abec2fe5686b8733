"""Seconds by phase, and budgets of seconds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Clock:
    """Adds up the seconds that phases take."""

    def __init__(self, begins: Callable[[str], None] | None = None) -> None:
        """begins: called with each phase's name when it begins."""
        self.seconds: dict[str, float] = {}  # of each phase, in the order in which they ended first
        self._begins = begins

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Counts what is inside, whether it succeeds or not."""
        if self._begins:
            self._begins(phase)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start


class OutOfTime(Exception):
    """A budget ended before there was a result."""


class Deadline:
    """The end of a budget of time."""

    def __init__(self, seconds: float = math.inf, now: Callable[[], float] = time.monotonic) -> None:
        """Begins now; inf seconds: no budget."""
        self.now = now
        self._end = now() + seconds

    @property
    def left(self) -> float:
        """Seconds that are left, 0 at least; inf without a budget."""
        return max(self._end - self.now(), 0.0)

    def share(self, part: float) -> Deadline:
        """A budget within this one, that begins now: so much of what is left, 0 to 1."""
        return Deadline(self.left * part, self.now)

    def describe(self, text: str) -> str:
        """The text of a progress report, with the seconds that are left."""
        return text if math.isinf(self._end) else f"{text} ({self.left:.0f} s left)"


UNLIMITED = Deadline()
"""No budget."""
