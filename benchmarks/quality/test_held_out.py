"""Policies are judged on families that nothing was trained on."""

from __future__ import annotations

from benchmarks.quality import anytime, placement_quality
from ov_hsdag.training import corpus
from research.zoo.catalog import ZOO


def test_nothing_that_is_placed_was_trained_on() -> None:
    for models in (placement_quality.MODELS, anytime.HELD_OUT):
        assert {ZOO[model].family for model in models} <= corpus.HELD_OUT_FAMILIES
