"""Lines of progress where there is no terminal."""

from __future__ import annotations

import threading
import time

import pytest

from ov_hsdag.utils import progress


def test_what_is_long_is_told_and_what_is_short_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.05)
    written: list[str] = []
    with progress.lines("placing", written.append) as tell:
        time.sleep(0.2)
        before = len(written)
        assert before and set(written) == {"0 s: placing"}
        tell("measuring GPU")
        time.sleep(0.2)
    assert len(written) > before and written[-1] == "0 s: placing: measuring GPU"
    after = len(written)
    time.sleep(0.1)
    assert len(written) == after
    monkeypatch.setattr(progress, "EVERY", 60.0)
    begin = time.monotonic()
    with progress.lines("placing", written.append):
        pass
    assert len(written) == after and time.monotonic() - begin < 10


def test_a_closed_stream_and_an_error_end_the_telling_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.01)

    def closed(line: str) -> None:
        raise BrokenPipeError(line)

    with progress.lines("placing", closed) as tell:
        time.sleep(0.05)
        tell("more")
    threads = threading.active_count()
    with pytest.raises(KeyboardInterrupt), progress.lines("placing", lambda line: None):
        raise KeyboardInterrupt
    assert threading.active_count() == threads
