"""Tests of the comparison with earlier results: regressions are distinguished from noise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.speed import continuous
from benchmarks.speed.continuous import Change, Figure


def figure(kind: str, median: float, spread: float = 0.0) -> Figure:
    return Figure(kind, median, spread)


def entry(machine: str = "one", size: str = "small", openvino: str = "2026.4.1-1", **medians: float) -> dict[str, Any]:
    figures = {name: {"kind": "time", "median": value, "spread": 0.01} for name, value in medians.items()}
    return {"about": {"machine": machine, "versions": {"openvino": openvino}}, "size": size, "figures": figures}


def test_a_figure_is_the_median_and_half_of_what_lies_between_the_quartiles() -> None:
    assert Figure.of("time", [1.0, 2.0, 3.0, 4.0, 5.0]) == Figure("time", 3.0, 1 / 3)
    assert Figure.of("score", [7.0]) == Figure("score", 7.0, 0.0)


@pytest.mark.parametrize(
    ("kind", "before", "now", "worse"),
    [
        ("time", 1.0, 1.09, False), ("time", 1.0, 1.11, True), ("time", 1.0, 0.5, False),
        ("score", 100.0, 100.05, False), ("score", 100.0, 100.2, True), ("memory", 100.0, 106.0, True),
        ("throughput", 1.0, 0.96, True), ("throughput", 1.0, 0.98, False), ("throughput", 1.0, 1.5, False),
    ],
)  # fmt: skip
def test_regressions_are_beyond_the_tolerance_of_their_kind(kind: str, before: float, now: float, worse: bool) -> None:
    assert Change.of(figure(kind, now), [figure(kind, before)]).regression is worse


def test_what_rounds_differ_by_is_no_regression() -> None:
    assert not Change.of(figure("time", 1.25, 0.1), [figure("time", 1.0, 0.05)]).regression
    assert Change.of(figure("time", 1.35, 0.1), [figure("time", 1.0, 0.05)]).regression


def test_the_last_five_are_compared_with_by_their_median() -> None:
    earlier = [figure("time", value) for value in (100.0, 1.0, 1.0, 1.0, 1.3, 0.7)]
    change = Change.of(figure("time", 1.2), earlier)
    assert (change.before, change.ratio, change.regression) == (1.0, 1.2, True)


def test_the_first_result_has_nothing_to_be_compared_with() -> None:
    change = Change.of(figure("time", 3.0), [])
    assert change.before is None and not change.regression


def test_results_of_other_machines_sizes_and_releases_do_not_count() -> None:
    now = entry(a=1.0)
    same = entry(openvino="2026.4.0-7", a=2.0)
    others = [entry(machine="two", a=1.0), entry(size="full", a=1.0), entry(openvino="2025.4.1-1", a=1.0)]
    assert continuous.series_of([*others, same], now) == [same]


def test_figures_that_are_new_or_gone_are_no_regressions() -> None:
    found = continuous.changes(entry(a=1.0, b=1.0), [entry(b=1.0, c=1.0)])
    assert {name: change.before for name, change in found.items()} == {"a": None, "b": 1.0}


def test_times_are_in_yardsticks_and_the_first_round_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continuous, "yardstick", lambda: 2.0)
    seconds = iter([50.0, 4.0, 6.0, 8.0])
    scores = iter([7.0, 7.0, 7.0])
    work: continuous.Figures = {
        "a": ("time", lambda: lambda: next(seconds)),
        "b": ("score", lambda: lambda: next(scores)),
    }
    found = continuous.made(work, 3, lambda _: None)
    assert (found["a"].median, found["b"].median) == (3.0, 7.0)


def test_the_command_adds_to_its_history_and_fails_where_a_figure_is_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    history = tmp_path / "history.jsonl"
    arguments = ["continuous", "--rounds", "1", "--only", "import", "--output", str(history)]
    monkeypatch.setenv("OV_HSDAG_VIRTUAL_DEVICES", "")
    monkeypatch.setattr("sys.argv", arguments)
    assert continuous.main() == 0
    (made,) = continuous.read(history)
    assert (
        list(made["figures"]) == ["start: import ov_hsdag"] and made["figures"]["start: import ov_hsdag"]["median"] > 0
    )
    # As if it had been a hundred times as fast.
    made["figures"]["start: import ov_hsdag"]["median"] /= 100
    history.write_text(json.dumps(made) + "\n", encoding="utf-8")
    assert continuous.main() == 1
    assert "1 regression" in capsys.readouterr().out
    assert len(continuous.read(history)) == 2
