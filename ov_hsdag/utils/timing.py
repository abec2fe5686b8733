"""Measures the seconds of phases of work, and keeps to budgets of seconds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Clock:
    """Measures the seconds of phases; those of several blocks of the same phase add up.

    Attributes:
        seconds: seconds of each phase, in the order in which phases first ended.
    """

    def __init__(self, begins: Callable[[str], None] | None = None) -> None:
        """Starts without phases; `begins` is called with the name of a phase whenever it begins."""
        self.seconds: dict[str, float] = {}
        self._begins = begins

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Adds the time of a block to a phase, whether the block succeeds or not."""
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
    """The end of a budget of time.

    Attributes:
        now: the clock, in seconds.
    """

    def __init__(self, seconds: float = math.inf, now: Callable[[], float] = time.monotonic) -> None:
        """Begins a budget of `seconds`, which is unlimited by default; `now` is the clock."""
        self.now = now
        self._end = now() + seconds

    @property
    def left(self) -> float:
        """Remaining seconds, at least 0; inf for an unlimited budget."""
        return max(self._end - self.now(), 0.0)

    def share(self, part: float) -> Deadline:
        """Makes a deadline for a part, 0 to 1, of the remaining time."""
        return Deadline(self.left * part, self.now)

    def describe(self, text: str) -> str:
        """Appends the remaining seconds to the text of a progress report; an unlimited budget appends nothing."""
        return text if math.isinf(self._end) else f"{text} ({self.left:.0f} s left)"


UNLIMITED = Deadline()
"""A deadline without a budget."""
