"""Generalisation to held-out models and devices as a benchmark, and what the tables about learning say."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest

from benchmarks import generalisation, results_learning
from benchmarks.contestants import DEFAULT, SHIPPED
from benchmarks.generalisation import CELLS, KINDS, Cell, Task
from benchmarks.harness import Templates
from benchmarks.machine import about
from benchmarks.policies import Policies
from ov_hsdag.model.repair import split_rule
from ov_hsdag.training import corpus
from research.zoo.catalog import ZOO
from tests.test_paper_table import check_tables


@pytest.fixture(scope="module")
def templates() -> Templates:
    """A small model under the name of every one that the benchmark has."""
    template = corpus.extract(ZOO["resnet-small"].build(), split_rule(ov.__version__))
    return Templates(dict.fromkeys((*generalisation.MODELS, *generalisation.TRAINED_ON), template), {})


def run(templates: Templates, row: str, cells: tuple[Cell, ...], seed: int = 0) -> list[dict[str, Any]]:
    return generalisation.run(templates, Policies(()), Task(row, cells, seed, 20.0, training=30))


def test_nothing_that_is_placed_was_trained_on() -> None:
    family = {name: ZOO[name].family for name in (*generalisation.MODELS, *generalisation.TRAINED_ON)}
    assert all(family[model] in corpus.HELD_OUT_FAMILIES for model in generalisation.MODELS)
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
    assert not np.isfinite(limited.scores(np.stack([limited.single(0), limited.single(1)]))).any()


def test_a_policy_is_trained_once_and_places_without_learning(templates: Templates) -> None:
    cells = tuple(cell for cell in CELLS if cell.kind == "two devices")[:2]
    found = run(templates, "GO, zero-shot", cells)
    assert [one["evaluations"] for one in found] == [1, 1]
    assert found[0]["trained_seconds"] == found[1]["trained_seconds"] > 0
    (first,) = run(templates, "HSDAG, first choice", cells[:1])
    assert first["evaluations"] == 1 and first["us"] is not None and first["trained_seconds"] == 0


def made_up() -> dict[str, Any]:
    """Ours 10; the network alone finds nothing where memory is short; all others 20."""
    rows = [one.name for one in generalisation.contestants(Policies(()))]
    rows[4:4] = generalisation.TRANSFER[2:]

    def cells(row: str, cell: Cell) -> list[dict[str, Any]]:
        us: float | None = 10.0 if row in (SHIPPED, DEFAULT, "search, no network") else 20.0
        if row == "HSDAG, network alone" and cell.kind == "two devices, little memory":
            us = None
        why = "infeasible" if us is None else ""
        return [{"us": us, "why": why, "evaluations": 5, "seconds": 0.5, "trained_seconds": 0.0}] * 2

    return {
        "about": {**about(), "wall_seconds": 60, "processor_seconds": 90},
        "settings": {
            "evaluations": 5, "seconds": 1.0, "seeds": 2, "training_problems": 3, "training_evaluations": 9,
            "room": 0.6, "long_moves": 9000,
        },
        "problems": {cell.name: {"model": cell.model, "kind": cell.kind, "known_us": 11.0} for cell in CELLS},
        "runs": {row: {cell.name: cells(row, cell) for cell in CELLS} for row in rows},
    }  # fmt: skip


def test_the_table_of_generalisation_says_what_search_and_network_earn() -> None:
    result = made_up()
    text = results_learning.generalisation(result)
    check_tables(text)
    flat = " ".join(text.split())
    count = len(CELLS)
    assert f"{SHIPPED} is best or within 0.5% of the best on {count} of {count} problems, {DEFAULT} on {count}" in flat
    assert f"HSDAG, network alone 100.0% ({len(generalisation.MODELS)} without a placement)" in flat
    assert "search finds as much without any network" in flat
    assert "| *infeasible* |" in text
    assert results_learning.generalisation_plot(result).count("<circle") > count
    for cells in result["runs"][SHIPPED].values():
        cells[:] = [{**cell, "us": 9.5} for cell in cells]
    unsolved = CELLS[0].name
    result["problems"][unsolved]["known_us"] = np.inf
    for row in result["runs"].values():
        row[unsolved] = [{**cell, "us": None, "why": "infeasible"} for cell in row[unsolved]]
    flat = " ".join(results_learning.generalisation(result).split())
    assert f"on {count - 1} of {count - 1} problems (1 more has no placement that any method found)" in flat
    assert "proposals make what users get 5.3% better" in " ".join(results_learning.generalisation(result).split())


def test_the_table_of_samples_tells_arms_apart() -> None:
    slow, fast = [1.5] * 2 + [1.8] * 14, [1.8] * 16
    arms = {
        "both": {"0": fast, "1": fast, "2": slow},
        "search": {"0": slow, "1": fast},
        "simulator": {"0": [1.2] * 16, "1": [1.2] * 16},
    }
    cell = {"arms": arms, "measured": {"0": {}, "1": {}}}
    unfinished = {"arms": {"both": {"0": fast}}, "measured": {}}
    result = {
        "about": about(),
        "settings": {"measurements": 16, "seeds": 3},
        "pairs": {"f32 + f32": {"a": cell, "b": cell, "c": unfinished}},
    }
    text = results_learning.samples(result)
    check_tables(text)
    flat = " ".join(text.split())
    assert "(a, f32 + f32 and b, f32 + f32)" in flat and "in all. Means of 2 seeds" in flat
    assert "| search alone, no network | 1.095 (1.10 to 1.10) | 1.095 (1.10 to 1.10) | 1.000" in text
    assert "| policy and search, the default | 1.000" in text  # the third seed is of no other arm
    assert "cannot be told from search alone, no network with 2 models: no gain of the network" in flat
    assert results_learning.samples_plot(result).count("<circle") == 3 * 4 * 2 + 4


def test_the_table_of_baselines_compares_with_search() -> None:
    arms = (
        "RNN placer", "Placeto", "GO", "GO, operations not grouped", "Placeto, zero-shot", "GO, zero-shot",
        "Placeto, fine-tuned", "GO, fine-tuned", "GO, single task, scheduled", "GO, multi-task, scheduled",
    )  # fmt: skip
    best = dict.fromkeys(arms, 110.0) | {"GO": 150.0, "GO, multi-task, scheduled": 99.0}
    runs = [
        {"model": model, "arm": arm, "seed": seed, "start": 400.0, "best": best[arm], "single": 200.0, "known": 100.0}
        for model in ("m", "n")
        for arm in arms
        for seed in range(2)
    ]
    settings = {"evaluations": 50, "seeds": 2, "requests": 4}
    text = results_learning.learned({"about": about(), "settings": settings, "runs": runs})
    check_tables(text)
    flat = " ".join(text.split())
    assert "| GO | 2 | 400 → 150 | 400 → 150 |" in text
    assert "GO 50 to 50% and GO, operations not grouped 10 to 10%" in flat and "-10.0% (m)" in flat
