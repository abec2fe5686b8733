"""Runs in processes: their order, and what they share."""

from __future__ import annotations

from functools import cache, partial

from benchmarks.common.workers import in_processes


class Bound:
    """What runs share, equal to itself alone."""


@cache
def made_once(bound: Bound) -> list[int]:
    return []


def count(bound: Bound, task: int) -> tuple[int, int]:
    """The task, and how many this process had before with the same object."""
    seen = made_once(bound)
    seen.append(task)
    return task, len(seen)


def test_runs_come_in_their_order_and_share_what_is_bound() -> None:
    assert list(in_processes(partial(count, Bound()), range(5), processes=1)) == [(task, task + 1) for task in range(5)]
    assert list(in_processes(partial(count, Bound()), [])) == []
