"""What long work does just now, in words for people, and lines of it where there is no terminal."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

EVERY = 10.0
"""Seconds from one line to the next, and to the first; of long work they become rarer."""

# What a line adds to those before: at most one more in thirty.
_SPARSER = 30

_SHORTEST = 0.005  # steps that take less, s, are not worth a line of their own

# The share of the work that has to be done before the time that is left can be estimated.
_TELLING = 0.01


class Tell(Protocol):
    """What long work calls to report what it does."""

    def __call__(self, step: str, done: float | None = None) -> None:
        """Take the step that begins, in some words, and the share of the work that is done, 0 to 1, if known."""


class Work:
    """A block of work and the step that it is at; a `Tell`."""

    def __init__(
        self, text: str, ended: Callable[[str, float], None] | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        """The work begins. ended: takes the words and the seconds of each step that has ended, and of all of it."""
        self.text = text
        self.done: float | None = None
        self._ended, self._now = ended, now
        self._begin = self._step_begin = now()
        self._step = ""
        self._first: tuple[float, float] | None = None
        self._latest = self._begin

    def __call__(self, step: str, done: float | None = None) -> None:
        if step != self._step:
            self._end_step()
            self._step, self._step_begin = step, self._now()
        if done is not None:
            self.done = min(max(done, 0.0), 1.0)
            self._latest = self._now()
            self._first = self._first or (self.done, self._latest)

    @property
    def seconds(self) -> float:
        """Since it began."""
        return self._now() - self._begin

    @property
    def left(self) -> float | None:
        """Seconds that it may still take, by those so far; None at first, and once it takes longer than that."""
        if self.done is None or self._first is None or self.done - self._first[0] < _TELLING:
            return None
        share, since = self.done - self._first[0], self._latest - self._first[1]
        left = since / share * (1 - self.done) - (self._now() - self._latest)
        return left if left >= 0 else None

    def describe(self) -> str:
        """What it does just now, how much of it is done and the time that is left."""
        text = f"{self.text}: {self._step}" if self._step else self.text
        if self.done is None:
            return text
        left = self.left
        return f"{text}, {self.done:.0%}" + ("" if left is None else f", {duration(left)} left")

    def end(self) -> None:
        """The work has ended."""
        self._end_step()
        if self._ended:
            self._ended(self.text, self.seconds)

    def _end_step(self) -> None:
        took = self._now() - self._step_begin
        if self._ended and self._step and took >= _SHORTEST:
            self._ended(f"{self.text}: {self._step}", took)


def duration(seconds: float) -> str:
    """Seconds in the unit in which people would say them: "40 s", "12 min", "3.5 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextlib.contextmanager
def lines(text: str, write: Callable[[str], None], ended: Callable[[str, float], None] | None = None) -> Iterator[Work]:
    """Write every `EVERY` seconds what the block does, also while native code is busy; yields what takes its steps.

    Of minutes and hours, lines come at longer intervals. `write` is called from another thread; an OSError or a
    ValueError (a stream that is closed) ends that, and nothing else. ended: see `Work`.
    """
    work = Work(text, ended)
    over = threading.Event()

    def tell() -> None:
        with contextlib.suppress(OSError, ValueError):
            while not over.wait(max(EVERY, work.seconds / _SPARSER)):
                write(f"{duration(work.seconds)}: {work.describe()}")

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield work
    finally:
        over.set()
        teller.join()
        work.end()
