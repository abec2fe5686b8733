"""Where benchmarks run: in processes, and as jobs of a fleet; test_ray.py has both with a cluster."""

from __future__ import annotations

from functools import cache, partial

import pytest

from benchmarks.common import workers
from benchmarks.common.machine import about, processor, versions
from benchmarks.common.workers import Workers
from ov_hsdag.utils.errors import UserError


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


@pytest.mark.parametrize("processes", [0, 1])
def test_runs_come_in_their_order_and_share_what_is_bound(processes: int) -> None:
    with Workers(processes=processes) as there:
        found = list(there.map(partial(count, Bound()), range(5)))
        assert found == [(task, (task, task + 1)) for task in range(5)]
        assert there.about() == about()


def test_what_travels_is_unpickled_once_and_told_by_the_processor() -> None:
    sent = workers._Sent(partial(count, Bound()))
    assert [sent(task)[1] for task in range(3)] == [(0, 1), (1, 2), (2, 3)]
    assert workers._Sent(partial(count, Bound()))(7) == (processor(), (7, 1))


def test_other_releases_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = workers._Sent(partial(count, Bound()))
    monkeypatch.setattr(workers, "versions", lambda: {**versions(), "openvino": None})
    with pytest.raises(UserError, match=r"has no openvino, this machine openvino .*: install the same on both"):
        sent(0)
