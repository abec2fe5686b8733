"""Tests of the commands that compare searches: their runs, tables and exit statuses."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.quality import search_ablation, search_effort
from benchmarks.quality.anytime import DEFAULT, SEARCH, Draw, best_known, failures, table
from benchmarks.quality.drawn_models import DEVICES, DrawnProblem
from benchmarks.quality.partitioners import installed, partitioned
from ov_hsdag.placers.settings import search_settings
from tests.graphs import random_problem

SMALL = random_problem(3, nodes=30, devices=3, objective="throughput")
KIND = next(iter(DEVICES))


@pytest.mark.parametrize("name", installed())
def test_a_partitioner_uses_its_time_and_finds_what_can_run(name: str) -> None:
    curve = partitioned(SMALL, name, 0.1)
    singles = SMALL.scores(SMALL.singles)
    assert len(curve) > len(SMALL.devices)
    assert min(score for _, score in curve) <= singles.min()
    moments = [moment for moment, _ in curve]
    assert moments == sorted(moments) and moments[-1] > 0.05


def test_every_kind_of_problem_is_drawn_with_every_number_of_devices() -> None:
    drawn = [Draw("model", 300, 0, number) for number in range(32)]
    assert len({(one.devices, one.kind) for one in drawn}) == 32


def record(**changes: Any) -> dict[str, Any]:
    """A record of a problem whose best known score is 100 µs. changes: curves of methods."""
    curves = {SEARCH: [(0.01, 104.0), (0.05, 100.0)], DEFAULT: [(0.2, 100.0)], "METIS": [(0.01, 110.0), (0.08, 102.0)]}
    usual = {"size": 300, "devices": 2, "limited": False, "lacking": False, "best": 101.0, "curves": curves}
    return {**usual, "curves": curves | changes}


def test_what_is_behind_by_too_much_is_named_with_its_class() -> None:
    methods, times = (SEARCH, DEFAULT, "METIS"), (0.01, 0.03, 0.1)
    fine = record()
    assert best_known(fine) == 100.0 and failures([fine], methods, times) == []
    assert "1.0400 | 1.0400 | 1.0000" in table([fine], methods, times)
    slow = record(**{DEFAULT: [(0.2, 104.0)], "METIS": [(0.02, 101.0)]})
    found = failures([fine, slow], methods, times)
    assert "300 operations: the default effort is 2.00% behind, 4.00% worst" in found
    assert any(
        "the search is" in line and "behind METIS after 30 ms" in line for line in failures([slow], methods, times)
    )


def test_the_search_without_a_part_has_the_settings_that_say_so() -> None:
    for changes in search_ablation.PARTS.values():
        every = search_settings(changes)
        assert all(every[group][name] == value for group, own in changes.items() for name, value in own.items())
    scores = search_ablation.scores_without(2_000, DrawnProblem("model", KIND, SMALL))["scores_us"]
    assert list(scores) == list(search_ablation.PARTS)
    best = float(SMALL.scores(SMALL.singles).min())
    assert all(score is not None and score <= best for score in scores.values())
    worse: dict[str, float | None] = dict.fromkeys(search_ablation.PARTS, 100.0)
    worse |= {"annealing": 103.0, "second population": None}
    text = search_ablation.table([{"devices": KIND, "scores_us": worse}])
    assert f"| {KIND} (1) | +3.00% (+3.0%) | +0.00% (+0.0%) |" in text and "| 1 without a placement |" in text


def test_the_default_and_a_long_search_are_compared_by_their_best_candidates() -> None:
    cell = search_effort.compared(0.05, DrawnProblem("model", KIND, SMALL))
    assert cell["default_us"] <= SMALL.scores(SMALL.singles).min() and cell["long_seconds"] >= 0.05
    text = search_effort.table([cell | {"default_us": 103.0, "long_us": 100.0}, cell | {"long_us": cell["default_us"]}])
    assert f"{KIND} | 1.50% | 3.00% | 0.00% | 1 of 2" in text
