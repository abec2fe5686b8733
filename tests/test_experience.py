"""Measured placements of other models: a prior that helps on the same devices, and says nothing on others."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ov_hsdag.calibration import experience
from ov_hsdag.calibration.common_factor import prior_of, relevant
from ov_hsdag.calibration.correction import Corrector
from ov_hsdag.calibration.experience import Experience, of_measurements
from ov_hsdag.problem.problem import PlacementProblem
from tests.graphs import random_problem

KEYS = ("one device", "another device")


def problem_of(seed: int, objective: str = "throughput") -> PlacementProblem:
    problem = random_problem(seed, nodes=50, objective=objective, submodel_us=5.0)
    generator = np.random.default_rng(seed)
    return replace(problem, node_us=generator.uniform(50, 150, problem.node_us.shape))


SLOWER = 1.2


def log_ratios(problem: PlacementProblem, placements: np.ndarray, seed: int = 0, slower: float = SLOWER) -> np.ndarray:
    """Measured: what the simulator says, slower where several devices are at work, and noise."""
    simulated = np.log(problem.scores(problem.single(0))[0] / problem.scores(placements))
    several = placements.min(axis=1) != placements.max(axis=1)
    return simulated - several * np.log(slower) + np.random.default_rng(seed).normal(0.0, 0.01, len(placements))


def measured(
    seed: int, objective: str = "throughput", keys: tuple[str, str] = KEYS, slower: float = SLOWER
) -> Experience:
    problem = problem_of(seed, objective)
    placements = np.concatenate([problem.random(np.random.default_rng(seed), 8), problem.single(1)[None]])
    ratios = np.exp(log_ratios(problem, placements, seed, slower))
    return of_measurements(Corrector(problem, problem.single(0)), keys, placements, ratios, np.full(9, 0.01))


def test_other_models_on_the_same_devices_help() -> None:
    known = [measured(seed) for seed in range(8)]
    errors, believed = [], []
    for seed in (20, 21, 22):
        problem = problem_of(seed)
        placements = problem.random(np.random.default_rng(seed), 30)
        truth = log_ratios(problem, placements, seed)
        corrector = Corrector(problem, problem.single(0))
        learned = prior_of(corrector.factors, known)
        assert learned is not None
        terms = corrector.terms(placements)
        errors.append(np.median(np.abs(corrector.log_ratio(corrector.factors.nothing, terms) - truth)))
        believed.append(np.median(np.abs(corrector.log_ratio(learned.mean, terms) - truth)))
        # A device alone is what it was.
        alone = corrector.terms(problem.single(1))
        assert corrector.log_ratio(learned.mean, alone) == corrector.log_ratio(corrector.factors.nothing, alone)
    assert np.mean(believed) < 0.35 * np.mean(errors)


def test_few_models_say_less_and_one_that_is_off_says_little() -> None:
    factors = Corrector(problem_of(20), problem_of(20).single(0)).factors
    means = []
    for known in ([measured(0)], [measured(seed) for seed in range(6)]):
        prior = prior_of(factors, known)
        assert prior is not None and (prior.mean[:-1] == 0).all()
        np.testing.assert_array_equal(prior.root, factors.vague.root)
        means.append(prior.mean[-1])
    assert 0.2 * np.log(SLOWER) < means[0] < 0.5 * np.log(SLOWER) < means[1] < np.log(SLOWER)
    odd = prior_of(factors, [*(measured(seed) for seed in range(6)), measured(6, slower=10.0)])
    assert odd is not None and abs(odd.mean[-1] - means[1]) < 0.03


def test_a_model_counts_once_however_often_it_was_measured() -> None:
    factors = Corrector(problem_of(20), problem_of(20).single(0)).factors
    once, often = (prior_of(factors, [measured(0)] * count) for count in (1, 5))
    assert once is not None and often is not None
    assert once.mean[-1] == often.mean[-1]


def test_other_devices_objectives_and_the_model_itself_say_nothing() -> None:
    problem = problem_of(20)
    corrector = Corrector(problem, problem.single(0))
    assert relevant(corrector, KEYS, [measured(0)])
    assert not relevant(corrector, ("a third device", KEYS[1]), [measured(0)])
    assert not relevant(corrector, KEYS, [measured(0, "latency")])
    assert not relevant(corrector, KEYS, [measured(20)])
    assert prior_of(corrector.factors, []) is None
    assert prior_of(Corrector(problem_of(20, "latency"), problem.single(0)).factors, [measured(0, "latency")]) is None
    alone = measured(0)
    assert prior_of(corrector.factors, [replace(alone, terms=alone.terms[[8]], ratios=alone.ratios[[8]])]) is None


def test_the_order_of_devices_does_not_matter() -> None:
    problem = problem_of(20)
    corrector = Corrector(problem, problem.single(0))
    (swapped,) = relevant(corrector, KEYS[::-1], [measured(0)])
    (straight,) = relevant(corrector, KEYS, [measured(0)])
    np.testing.assert_array_equal(swapped.terms.work, straight.terms.work[:, ::-1])
    np.testing.assert_array_equal(swapped.reference.work, straight.reference.work[:, ::-1])
    priors = [prior_of(corrector.factors, [one]) for one in (swapped, straight)]
    assert priors[0] is not None and priors[1] is not None
    assert priors[0].mean[-1] == pytest.approx(priors[1].mean[-1])


def test_files_keep_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(experience.VARIABLE, str(tmp_path / "kept"))
    assert experience.kept() == []
    first, second = measured(0), measured(1)
    for one in (first, second, first):
        experience.keep(one)
    assert len(list((tmp_path / "kept").iterdir())) == 2
    found = {one.graph: one for one in experience.kept()}
    assert set(found) == {first.graph, second.graph}
    again = found[first.graph]
    np.testing.assert_allclose(again.ratios, np.tile(first.ratios, 2), rtol=1e-4)
    np.testing.assert_allclose(again.terms.work[:9], first.terms.work, rtol=1e-4)
    assert again.devices == first.devices and again.kinds == first.kinds
    for _ in range(10):
        experience.keep(first)
    assert max(len(one.ratios) for one in experience.kept()) == 64

    problem = problem_of(20)
    corrector = Corrector(problem, problem.single(0))
    kept, direct = (prior_of(corrector.factors, some) for some in ([found[second.graph]], [second]))
    assert kept is not None and direct is not None
    np.testing.assert_allclose(kept.mean, direct.mean, atol=1e-3)


def test_the_oldest_files_go_where_there_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(experience.VARIABLE, str(tmp_path))
    monkeypatch.setattr(experience, "_FILES", 3)
    (tmp_path / "mine.json").write_text("{}")
    os.utime(tmp_path / "mine.json", (1, 1))
    known = [measured(seed) for seed in range(5)]
    for number, one in enumerate(known):
        before = set(tmp_path.iterdir())
        experience.keep(one)
        for path in set(tmp_path.iterdir()) - before:
            os.utime(path, (100 + number, 100 + number))
    assert [one.graph for one in experience.kept()] == [one.graph for one in known[2:]]
    assert len(list(tmp_path.iterdir())) == 4 and (tmp_path / "mine.json").exists()  # what is not ours stays

    monkeypatch.setattr(experience, "_BYTES", 1)
    experience.keep(measured(6))
    assert [one.graph for one in experience.kept()] == [measured(6).graph]


def test_damaged_files_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(experience.VARIABLE, str(tmp_path))
    experience.keep(measured(0))
    good = next(tmp_path.iterdir())
    document = json.loads(good.read_text())
    for number, broken in enumerate(
        [
            "",
            "[]",
            "{}",
            json.dumps({**document, "version": 2}),
            json.dumps({**document, "ratios": [0.0] * 9}),
            json.dumps({**document, "ratios": document["ratios"][:3]}),
            json.dumps({**document, "devices": ["one"]}),
            json.dumps({**document, "kinds": []}),
        ]
    ):
        (tmp_path / f"{number}.json").write_text(broken)
    assert len(experience.kept()) == 1


def test_nothing_is_kept_where_nobody_wants_it_or_it_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(experience.VARIABLE, "0")
    experience.keep(measured(0))
    assert experience.kept() == [] and not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(experience.VARIABLE, str(tmp_path / "file"))
    experience.keep(measured(0))
    assert experience.kept() == []
    monkeypatch.delenv(experience.VARIABLE)
    experience.keep(measured(0))
    assert len(experience.kept()) == 1 and (tmp_path / "ov_hsdag" / "experience").is_dir()
