"""Tests that policies are judged on families on which nothing was trained."""

from __future__ import annotations

from benchmarks.quality import placement_quality
from ov_hsdag.training import corpus
from research.zoo.catalog import ZOO


def test_nothing_that_is_placed_was_trained_on() -> None:
    assert {ZOO[model].family for model in placement_quality.MODELS} <= corpus.HELD_OUT_FAMILIES
