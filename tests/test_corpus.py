"""Training problems and the searched placements that belong to them."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from ov_hsdag.costs.profile import load_builtin
from ov_hsdag.placers.contiguous import Contiguous
from ov_hsdag.placers.mincut import MinCut
from ov_hsdag.placers.multilevel import Multilevel
from ov_hsdag.training import corpus as corpora
from ov_hsdag.training.corpus import HELD_OUT_FAMILIES, HELD_OUT_PROFILES, HELD_OUT_SETS, Corpus
from ov_hsdag.training.problems import CLOSE, SHARD, Target, Targets
from ov_hsdag.utils.errors import RunError, UserError
from research import corpus as corpus_of_zoo
from research.zoo.catalog import ZOO
from tests.graphs import every_placement, random_problem


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of two small models, one of them of a held-out family."""
    path = tmp_path_factory.mktemp("corpus")
    corpus_of_zoo.make(path, ["squeezenet", "dlrm"], report=lambda _: None)
    return path


def test_enough_is_held_out() -> None:
    families = {model.family for model in ZOO.values()}
    assert families >= HELD_OUT_FAMILIES
    assert len(HELD_OUT_FAMILIES) >= 8
    assert len(HELD_OUT_SETS) >= 6
    assert {len(stems) for stems in HELD_OUT_SETS.values()} == {2, 3, 4}
    assert len(families - HELD_OUT_FAMILIES) >= 55
    for stem in HELD_OUT_PROFILES:
        assert load_builtin(stem).name


def test_held_out_families_and_device_sets_are_not_drawn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = Corpus.load(folder)
    assert corpus.names == ("squeezenet/squeezenet",)
    used: Counter[tuple[str, ...]] = Counter()
    real = load_builtin

    def watched(stem: str) -> object:
        drawn.append(stem)
        return real(stem)

    monkeypatch.setattr(corpora, "load_builtin", watched)
    for index in range(300):
        drawn: list[str] = []
        _, profile, randomised = corpora._draw_devices(np.random.default_rng(index))
        assert not set(drawn) & HELD_OUT_PROFILES
        if not randomised:
            used[tuple(sorted(drawn))] += 1
        assert len(profile.devices) in range(2, 9)
    assert not set(used) & {tuple(sorted(stems)) for stems in HELD_OUT_SETS.values()}
    assert len(used) > 30


def test_a_draw_depends_on_its_number_and_the_seed_alone(folder: Path) -> None:
    first, second, other = Corpus.load(folder), Corpus.load(folder), Corpus.load(folder, seed=1)
    for index in (17, 3, 17):
        a, b, c = first.draw(index), second.draw(index), other.draw(index)
        assert a is not None and b is not None
        assert a.devices == b.devices and a.objective == b.objective
        np.testing.assert_array_equal(a.node_us, b.node_us)
        np.testing.assert_array_equal(a.graph.output_bytes, b.graph.output_bytes)
        assert c is None or c.node_us.shape != a.node_us.shape or not np.array_equal(c.node_us, a.node_us)
    assert first.fingerprint == second.fingerprint != other.fingerprint


def test_draws_cover_what_a_policy_meets(folder: Path) -> None:
    problems = [problem for index in range(200) if (problem := Corpus.load(folder).draw(index)) is not None]
    assert len(problems) > 150
    assert {problem.objective for problem in problems} == {"latency", "throughput"}
    assert {len(problem.devices) for problem in problems} == {2, 3, 4, 5, 6, 8}
    assert any((~problem.supported).any() for problem in problems)
    assert len({problem.graph.nodes for problem in problems}) > 10
    for problem in problems:
        assert np.isfinite(problem.node_us).all() and (problem.node_us >= 0).all()
        assert problem.group_supported.any(axis=1).all()
        assert len(set(problem.devices)) == len(problem.devices)
    tight = 0
    for problem in problems:
        tight += bool((problem.evaluate(problem.singles).infeasible & 4).any())
    assert tight > 10


def test_generated_graphs_are_whole_problems() -> None:
    for seed in range(20):
        generator = np.random.default_rng(seed)
        problem = corpora.draw_problem(corpora.generated_template(generator, 1), generator)
        assert (problem.graph.input_source < problem.graph.input_node).all()
        result = problem.evaluate(problem.random(generator, 4))
        assert (result.latency_us > 0).all()


def test_a_corpus_without_models_is_the_same_each_time(tmp_path: Path) -> None:
    for name in ("one", "other"):
        corpora.write_generated(tmp_path / name, 5)
    one, other = Corpus.load(tmp_path / "one"), Corpus.load(tmp_path / "other")
    assert len(one.templates) == 5 and one.fingerprint == other.fingerprint
    (tmp_path / "one" / "generated" / "003.npz").unlink()
    corpora.write_generated(tmp_path / "one", 5)
    assert Corpus.load(tmp_path / "one").fingerprint == other.fingerprint


def test_a_folder_without_training_problems_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no training problems"):
        Corpus.load(tmp_path)
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "bert.npz").write_bytes(b"nothing")
    with pytest.raises(UserError, match="is not a placement problem"):
        Corpus.load(tmp_path)


def test_the_teacher_is_the_search_with_all_that_it_kept() -> None:
    several = 0
    for seed, objective in product(range(4), ("latency", "throughput")):
        problem = random_problem(seed, nodes=40, devices=3, objective=objective, submodel_us=1.0, missing=0.1)
        target = Target.of(problem, seed)
        scores = problem.scores(target.elites)
        assert target.score == scores[0] == scores.min() <= problem.scores(Multilevel(seed=seed).place(problem))[0]
        assert (scores <= target.score * (1 + CLOSE)).all()
        assert len({elite.tobytes() for elite in target.elites}) == len(target.elites)
        assert target.score <= problem.scores(np.stack([MinCut().place(problem), Contiguous().place(problem)])).min()
        several += len(target.elites) > 1
    assert several > 2


@pytest.mark.slow
def test_the_teacher_respects_memory_limits() -> None:
    ratios = []
    for seed in range(12):
        problem = random_problem(seed, nodes=12, devices=2, objective="latency")
        need = problem.evaluate(problem.singles).memory_bytes.max(axis=1)
        problem = replace(problem, memory_bytes=(need * 0.9).astype(np.int64))
        best = problem.scores(every_placement(problem)).min()
        if np.isfinite(best):
            ratios.append(Target.of(problem, seed).score / best)
    assert len(ratios) >= 10
    assert np.median(ratios) <= 1.05
    assert np.isfinite(ratios).sum() >= len(ratios) - 2


def test_targets_are_kept_and_read_back(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ov_hsdag.training.problems.SHARD", 4)
    corpus = Corpus.load(folder, seed=5)
    computed = Targets(corpus, tmp_path).shard(1)
    monkeypatch.setattr("ov_hsdag.training.problems.searched", None)
    read = Targets(corpus, tmp_path).shard(1)
    for number, (a, b) in enumerate(zip(computed, read, strict=True), start=4):
        np.testing.assert_array_equal(a.elites, b.elites)
        assert (a.score, a.reference) == (b.score, b.reference)
        if len(a.elites):
            problem = corpus.draw(number)
            assert problem is not None
            assert problem.scores(a.elites)[0] == a.score <= a.reference
    assert SHARD > 4


@pytest.mark.slow
def test_targets_that_are_searched_elsewhere_are_the_same(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ov_hsdag.training.problems.SHARD", 4)
    corpus = Corpus.load(folder, seed=5)
    here, there = Targets(corpus, tmp_path / "here"), Targets(corpus, tmp_path / "there")
    there.shard(1)

    def each(function: Callable[[int], list[Target]], numbers: Sequence[int]) -> list[list[Target]]:
        lacking = list(numbers)
        assert lacking == [0, 2]
        travelled = pickle.loads(pickle.dumps(function))
        return [travelled(number) for number in reversed(lacking)][::-1]

    there.fill(3, each)
    for number in range(3):
        here.shard(number)
    written = [{file.name: file.read_bytes() for file in one.folder.iterdir()} for one in (here, there)]
    assert len(written[0]) == 3 and written[0] == written[1]


def test_a_problem_without_a_feasible_placement_has_no_target() -> None:
    problem = random_problem(0, nodes=10)
    problem = replace(problem, memory_bytes=np.zeros(2, np.int64))
    for target in (Target.of(problem, 0), Target.of(None, 0)):
        assert len(target.elites) == 0 and target.score == np.inf


def test_a_model_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise AttributeError("module transformers has no attribute 'SqueezeNet'")

    monkeypatch.setattr("research.zoo.catalog.ZooModel.build", gone)
    with pytest.raises(RunError, match=r"'squeezenet' cannot be made with .*openvino \d.*no attribute 'Squeeze"):
        corpus_of_zoo.make(tmp_path, ["squeezenet"])


def test_a_corpus_that_was_interrupted_is_finished_first(tmp_path: Path) -> None:
    def stop(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        corpus_of_zoo.make(tmp_path, ["lstm", "ncf"], report=stop)
    assert len(list(tmp_path.glob("*/*.npz"))) == 1
    corpus_of_zoo.make(tmp_path, ["lstm", "ncf"], report=lambda _: None)
    assert len(list(tmp_path.glob("*/*.npz"))) == 2


def test_held_out_problems_have_a_device_that_training_never_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []
    load = load_builtin
    monkeypatch.setattr(corpora, "load_builtin", lambda name: (used.append(name), load(name))[1])
    for seed in range(12):
        for held_out in (False, True):
            used.clear()
            generator = np.random.default_rng(seed)
            template = corpora.generated_template(generator, 1)
            used.clear()
            corpora.draw_problem(template, generator, 2 + seed % 3, held_out=held_out)
            assert len(used) == 2 + seed % 3
            assert bool(corpora.HELD_OUT_PROFILES & set(used)) is held_out
