"""Seconds by phase."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Clock:
    """Adds up the seconds that phases take.

    Attributes:
        seconds: of each phase, in the order in which they ended first.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        """`now` tells the time in seconds: that of the wall, or `time.thread_time`."""
        self.seconds: dict[str, float] = {}
        self._now = now

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Counts what is inside, whether it succeeds or not."""
        start = self._now()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + self._now() - start
