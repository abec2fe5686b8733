"""Lines of progress where there is no terminal: one every ten seconds, and none about what takes less."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

EVERY = 10.0
"""Seconds from one line to the next, and to the first."""


@contextlib.contextmanager
def lines(text: str, write: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """Tell every `EVERY` seconds what the block does, also while it is busy in native code.

    Args:
        text: what it does.
        write: takes a line; called from another thread. An OSError or a ValueError (a stream that is closed) ends the
            telling, and nothing else.

    Yields:
        A function that takes what the block does just now, in some words.
    """
    latest = text
    ended = threading.Event()
    begin = time.monotonic()

    def tell() -> None:
        with contextlib.suppress(OSError, ValueError):
            while not ended.wait(EVERY):
                write(f"{time.monotonic() - begin:.0f} s: {latest}")

    def update(more: str) -> None:
        nonlocal latest
        latest = f"{text}: {more}"

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield update
    finally:
        ended.set()
        teller.join()
