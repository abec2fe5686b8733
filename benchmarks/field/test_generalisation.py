"""Generalisation to held-out models and devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest

from benchmarks.common.harness import Templates
from benchmarks.common.policies import Policies
from benchmarks.field import generalisation
from benchmarks.field.generalisation import CELLS, KINDS, Cell, Task
from benchmarks.quality import anytime, placement_quality
from ov_hsdag.model.colocation import split_rule
from ov_hsdag.training import corpus
from research.zoo.catalog import ZOO


@pytest.fixture(scope="module")
def templates() -> Templates:
    """A small model under the name of every one that the benchmark has."""
    template = corpus.extract(ZOO["resnet-small"].build(), split_rule(ov.__version__))
    return Templates(dict.fromkeys((*generalisation.MODELS, *generalisation.TRAINED_ON), template), {})


def run(templates: Templates, row: str, cells: tuple[Cell, ...], seed: int = 0) -> list[dict[str, Any]]:
    return generalisation.run(templates, Policies(()), Task(row, cells, seed, 20.0, training=30))


def test_nothing_that_is_placed_was_trained_on() -> None:
    family = {name: ZOO[name].family for name in (*generalisation.MODELS, *generalisation.TRAINED_ON)}
    for models in (generalisation.MODELS, placement_quality.MODELS, anytime.HELD_OUT):
        assert {ZOO[model].family for model in models} <= corpus.HELD_OUT_FAMILIES
    assert not any(family[model] in corpus.HELD_OUT_FAMILIES for model in generalisation.TRAINED_ON)
    assert {stems for stems, _ in KINDS.values()} <= set(corpus.HELD_OUT_SETS)


def test_training_draws_the_same_problems_again(templates: Templates) -> None:
    once, again, other = (generalisation.training_problems(templates, 2, seed) for seed in (1, 1, 2))
    assert len(once) == len(generalisation.TRAINED_ON)
    for problem, same in zip(once, again, strict=True):
        assert problem.objective == "throughput" and len(problem.devices) == 2
        np.testing.assert_array_equal(problem.node_us, same.node_us)
    assert any((a.node_us != b.node_us).any() for a, b in zip(once, other, strict=True))


def test_little_memory_is_a_share_of_the_model(templates: Templates) -> None:
    free, limited = (generalisation.problem_of(templates, Cell("swin-tiny", kind)) for kind in list(KINDS)[:2])
    assert (free.memory_bytes == -1).all()
    assert not np.isfinite(limited.scores(limited.singles)).any()


def test_a_policy_is_trained_once_and_places_without_learning(templates: Templates) -> None:
    cells = tuple(cell for cell in CELLS if cell.kind == "two devices")[:2]
    found = run(templates, "GO, zero-shot", cells)
    assert [one["evaluations"] for one in found] == [1, 1]
    assert found[0]["trained_seconds"] == found[1]["trained_seconds"] > 0
    (first,) = run(templates, "HSDAG, first choice", cells[:1])
    assert first["evaluations"] == 1 and first["us"] is not None and first["trained_seconds"] == 0
