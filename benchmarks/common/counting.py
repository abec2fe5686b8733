"""Runs loops that only count: as background load, and to measure how much time the host gives each core."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager


def count_for(seconds: float) -> float:
    """Counts for a number of seconds. Returns the iterations of the loop per second."""
    end, turns = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        turns += 1
    return turns / seconds


def _spin() -> None:
    """Keeps a core busy until the process is killed."""
    while True:
        pass


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Runs `count` processes that keep a core busy each during the block, and kills them afterwards."""
    processes = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()
