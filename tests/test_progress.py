"""What long work tells: steps and their times, the share that is done, lines where there is no terminal."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
from rich.console import Console

from ov_hsdag.cli import console
from ov_hsdag.utils import progress
from ov_hsdag.utils.progress import Work, duration


class Clock:
    """A time that only tests change."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def until(happens: Callable[[], object]) -> None:
    """Waits for what other threads do."""
    end = time.monotonic() + 120
    while not happens():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.01)


def test_what_is_long_is_told_and_what_is_short_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.05)
    written: list[str] = []
    with progress.lines("placing", written.append) as tell:
        until(lambda: written)
        assert re.fullmatch(r"\d+ s: placing", written[-1])
        tell("measuring GPU")
        until(lambda: re.fullmatch(r"\d+ s: placing: measuring GPU", written[-1]))
    after = len(written)
    time.sleep(0.1)
    assert len(written) == after
    monkeypatch.setattr(progress, "EVERY", 60.0)
    begin = time.monotonic()
    with progress.lines("placing", written.append):
        pass
    assert len(written) == after and time.monotonic() - begin < 50


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


def test_the_time_that_is_left_is_that_of_the_share_that_was_done_here() -> None:
    clock = Clock()
    work = Work("pretraining", now=clock)
    assert work.describe() == "pretraining" and work.left is None
    work("step 500", 0.5)  # a run that was continued
    assert work.describe() == "pretraining: step 500, 50%"
    clock.now = 60.0
    work("step 600", 0.6)
    assert work.left == pytest.approx(240)
    assert work.describe() == "pretraining: step 600, 60%, 4 min left"
    work("step 1000", 1.2)
    assert work.describe().endswith(", 100%, 0 s left")


def test_the_time_that_is_left_goes_down_while_a_step_lasts() -> None:
    """Of a budget of 45 s with a step each 10 s, told 5 s after each."""
    clock = Clock()
    work = Work("fine-tuning", now=clock)
    told = []
    for step in range(5):
        work(f"measurement {step}", clock.now / 45)
        clock.now += 5
        told.append(work.left)
        clock.now += 5
    assert told[0] is None and told[1:] == pytest.approx([30, 20, 10, 0])
    clock.now += 20
    assert work.left is None


def test_steps_that_ended_have_their_times_and_short_ones_no_line() -> None:
    clock, ended = Clock(), []
    work = Work("placing", lambda text, seconds: ended.append((text, seconds)), clock)
    work("searching")
    clock.now = 2.0
    work("choosing")
    clock.now = 2.001
    work("measuring")
    work("measuring")
    clock.now = 5.0
    work.end()
    assert [(text, round(seconds, 2)) for text, seconds in ended] == [
        ("placing: searching", 2.0),
        ("placing: measuring", 3.0),
        ("placing", 5.0),
    ]


def test_durations_are_in_the_unit_that_people_use() -> None:
    assert [duration(seconds) for seconds in (9.6, 99, 125, 5400, 86400)] == [
        "10 s",
        "99 s",
        "2 min",
        "1.5 h",
        "24.0 h",
    ]


def told(capsys: pytest.CaptureFixture[str]) -> str:
    with console.progress("placing model.xml") as tell:
        tell("searching")
        time.sleep(0.3)
    return capsys.readouterr().err


def test_without_a_terminal_short_work_says_nothing_and_verbose_every_step(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(capsys) == ""
    monkeypatch.setattr(progress, "EVERY", 0.1)
    assert "0 s: placing model.xml: searching\n" in told(capsys)
    monkeypatch.setattr(console, "quiet", True)
    assert told(capsys) == ""
    monkeypatch.setattr(console, "quiet", False)
    monkeypatch.setattr(console, "verbose", True)
    monkeypatch.setattr(progress, "EVERY", 10.0)
    step, whole = told(capsys).splitlines()
    assert step.startswith("took 0.3") and step.endswith(" s: placing model.xml: searching")
    assert whole.startswith("took 0.3") and whole.endswith(" s: placing model.xml")


def test_a_terminal_shows_step_share_and_time_in_one_line() -> None:
    clock = Clock()
    work = Work("measuring", now=clock)
    work("first", 0.0)
    clock.now = 10.0
    work(f"round 3 of [12] {'x' * 200}", 0.25)
    written = io.StringIO()
    Console(file=written, width=60, force_terminal=True, color_system=None).print(console._picture(work))
    (line,) = written.getvalue().splitlines()
    assert len(line) <= 60 and "━" in line and "measuring: round 3 of [12] xxx" in line and "…" in line


IN_A_TERMINAL = """
import sys, time
from ov_hsdag.cli import console
with console.progress("placing") as tell:
    tell("searching")
    time.sleep(0.5)
    print("warning: something", file=sys.stderr)
    time.sleep(0.3)
"""


def seen_on_a_terminal(**variables: str) -> bytes:
    import pty

    parent, child = pty.openpty()
    others = {name: value for name, value in os.environ.items() if name != "JPY_PARENT_PID"}
    environment = {**others, "TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    process = subprocess.Popen([sys.executable, "-c", IN_A_TERMINAL], stderr=child, env=environment)
    os.close(child)
    seen = b""
    with contextlib.suppress(OSError):  # the other side has gone
        while data := os.read(parent, 4096):
            seen += data
    assert process.wait(60) == 0
    return seen


@pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")
def test_the_picture_of_a_terminal_vanishes() -> None:
    """What is left on the screen is what was printed beside it."""
    seen = seen_on_a_terminal()
    assert b"placing: searching" in seen and b"warning: something\r\n" in seen
    erase_line = b"\x1b[2K"
    assert erase_line in seen[seen.rindex(b"placing: searching") :]


@pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")
def test_a_notebook_and_a_log_get_lines() -> None:
    """Of what vanishes on a screen they would keep everything."""
    assert seen_on_a_terminal(JPY_PARENT_PID="1") == b"warning: something\r\n"
    environment = {**os.environ, "FORCE_COLOR": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    log = subprocess.run([sys.executable, "-c", IN_A_TERMINAL], stderr=subprocess.PIPE, env=environment, check=True)
    assert log.stderr == b"warning: something\n"
