"""Reports the progress of long work to users: words for its steps, and lines where there is no terminal.

Work is a block of code with a name. It consists of steps, one after the other.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

EVERY = 10.0
"""Seconds before the first line and between lines; the intervals grow during long work."""

# The interval to the next line is at least the elapsed time divided by this.
_INTERVAL_DIVISOR = 30

_SHORTEST = 0.005  # seconds below which a step is not reported separately

# Share of the work that has to be done before the remaining time can be estimated.
_SMALLEST_TELLING_SHARE = 0.01


class Tell(Protocol):
    """A function by which long work reports its progress."""

    def __call__(self, step: str, done: float | None = None) -> None:
        """Takes the step that begins, in a few words, and the share of the work that is done, 0 to 1, if known."""


class Work:
    """The progress of work: its current step, the share that is done, and an estimate of the remaining time.

    The work reports its progress by calling this object, which is a `Tell`.

    Attributes:
        text: name of the work.
        done: share of the work that is done, 0 to 1; None if not known.
    """

    def __init__(
        self, text: str, ended: Callable[[str, float], None] | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Begins the work.

        Args:
            text: name of the work.
            ended: called with name and seconds of each step that has ended, and at last of the whole work.
            now: clock, in seconds.
        """
        self.text = text
        self.done: float | None = None
        self._ended, self._now = ended, now
        self._begin = self._step_begin = now()
        self._step = ""
        self._first: tuple[float, float] | None = None  # the first reported share, and its time
        self._latest = self._begin  # time of the latest reported share

    def __call__(self, step: str, done: float | None = None) -> None:
        """Begins a step, unless it is the current one, and notes the share of the work that is done; see `Tell`."""
        if step != self._step:
            self._end_step()
            self._step, self._step_begin = step, self._now()
        if done is not None:
            self.done = min(max(done, 0.0), 1.0)
            self._latest = self._now()
            self._first = self._first or (self.done, self._latest)

    @property
    def seconds(self) -> float:
        """Seconds since the work began."""
        return self._now() - self._begin

    @property
    def left(self) -> float | None:
        """Estimate of the remaining seconds; None at first, and once the work takes longer than estimated."""
        if self.done is None or self._first is None or self.done - self._first[0] < _SMALLEST_TELLING_SHARE:
            return None
        share, since = self.done - self._first[0], self._latest - self._first[1]
        left = since / share * (1 - self.done) - (self._now() - self._latest)
        return left if left >= 0 else None

    def describe(self) -> str:
        """Formats name, current step, share that is done, and remaining time: "work: step, 40%, 12 s left"."""
        text = f"{self.text}: {self._step}" if self._step else self.text
        if self.done is None:
            return text
        left = self.left
        return f"{text}, {self.done:.0%}" + ("" if left is None else f", {duration(left)} left")

    def end(self) -> None:
        """Ends the work, and reports the last step and the whole work to `ended`."""
        self._end_step()
        if self._ended:
            self._ended(self.text, self.seconds)

    def _end_step(self) -> None:
        """Reports the current step to `ended`, unless there is none or it was very short."""
        took = self._now() - self._step_begin
        if self._ended and self._step and took >= _SHORTEST:
            self._ended(f"{self.text}: {self._step}", took)


def duration(seconds: float) -> str:
    """Formats seconds in a suitable unit: "40 s", "12 min", "3.5 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextlib.contextmanager
def lines(text: str, write: Callable[[str], None], ended: Callable[[str, float], None] | None = None) -> Iterator[Work]:
    """Writes lines of progress during a block, also while native code is busy; yields the `Work` of the block.

    The first line is written after `EVERY` seconds; the intervals grow with the time.

    Args:
        text: name of the work.
        write: called with each line, from another thread. After an OSError or a ValueError (a closed stream) no more
            lines are written, and the block goes on.
        ended: see `Work`.

    Yields:
        The work, which takes the steps.
    """
    work = Work(text, ended)
    over = threading.Event()

    def tell() -> None:
        """Writes lines until the block ends; runs in another thread."""
        with contextlib.suppress(OSError, ValueError):
            while not over.wait(max(EVERY, work.seconds / _INTERVAL_DIVISOR)):
                write(f"{duration(work.seconds)}: {work.describe()}")

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield work
    finally:
        over.set()
        teller.join()
        work.end()
