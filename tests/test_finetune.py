"""Fine-tuning: measured placements correct the simulator and teach the policy; runs go on where they were killed."""

from __future__ import annotations

import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
import torch
import typer

from ov_hsdag.calibration.correction import Corrector, Fit, Terms
from ov_hsdag.cli._common import parse_duration
from ov_hsdag.cli.app import app
from ov_hsdag.devices import device_set, virtual
from ov_hsdag.measuring.evaluator import Judge, Measurement
from ov_hsdag.measuring.measurer import Measurer
from ov_hsdag.model.placement import Placement
from ov_hsdag.policy.bundle import WEIGHTS_FILE
from ov_hsdag.policy.config import HSDAGConfig, Widths
from ov_hsdag.policy.features import policy_input
from ov_hsdag.policy.placer import HSDAGPlacer
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.storage.files import PREFIX
from ov_hsdag.training import FOUND_BY
from ov_hsdag.training.finetune import Budget, Entry, Settings, finetune
from ov_hsdag.training.finetune.loop import Outcome, choose, imitation_target, learn, run
from ov_hsdag.training.finetune.model import Simulated
from ov_hsdag.training.finetune.model import _placement as placement_of
from ov_hsdag.training.finetune.state import Task, fingerprint_of, load_checkpoint, new_state, save_checkpoint
from ov_hsdag.training.network import HSDAGNetwork
from ov_hsdag.training.problems import Target
from ov_hsdag.training.run import CHECKPOINT
from ov_hsdag.utils.errors import RunError, UserError
from research.zoo.catalog import ZOO
from tests.conftest import ONE_CORE
from tests.graphs import random_fusions, random_problem
from tests.processes import ended
from tests.training_runs import command, environment, same, weights

TINY = Settings(updates=2, samples=4, draws=2, refined=4, finalists=2, margin=0.0)
PAIR = "HETERO:CPU_A,CPU_B"


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def problem_of(seed: int = 0, objective: str = "throughput", nodes: int = 60) -> PlacementProblem:
    """A problem on which splitting pays: work is large beside transfers."""
    problem = random_problem(seed, nodes=nodes, objective=objective, submodel_us=5.0)
    generator = np.random.default_rng(seed)
    return replace(problem, node_us=generator.uniform(50, 150, problem.node_us.shape))


def reality(problem: PlacementProblem) -> PlacementProblem:
    """The same with other costs: a profile is wrong about a device, half of the model, and links."""
    late = np.arange(problem.graph.nodes) > problem.graph.nodes // 2
    wrong = np.where(late, 1.6, 0.8)[:, None] * np.array([1.0, 1.5])
    return replace(
        problem,
        node_us=problem.node_us * wrong,
        transfer_us=problem.transfer_us * 3,
        submodel_us=problem.submodel_us * 3,
    )


def network_for(problem: PlacementProblem, seed: int = 0) -> HSDAGNetwork:
    torch.manual_seed(seed)
    config = HSDAGConfig.base(Widths.of(policy_input(problem)))
    return HSDAGNetwork(replace(config, hidden=16, layers=1, context=1, min_clusters=4))


def without_times(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "record.json").read_text())
    del record["seconds"]
    return record


def assert_same_end(a: Path, b: Path) -> None:
    assert same(a, b) and without_times(a) == without_times(b)
    policies = [(folder / "policy" / WEIGHTS_FILE).read_bytes() for folder in (a, b)]
    assert policies[0] == policies[1]


# --- posterior ---


def before_measuring(corrector: Corrector) -> Fit:
    return corrector.fit(corrector.terms(np.zeros((0, corrector.problem.group_count), np.uint8)), np.zeros(0))


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_without_measurements_the_simulator_is_believed(objective: str) -> None:
    problem = problem_of(1, objective)
    corrector = Corrector(problem, problem.single(0))
    placements = problem.random(np.random.default_rng(0), 8)
    predicted = corrector.log_ratio(before_measuring(corrector).mean, corrector.terms(placements))
    simulated = np.log(problem.scores(problem.single(0))[0] / problem.scores(placements))
    # For throughput devices that are nearly as busy as the busiest one are felt: by at most this.
    tolerance = 1e-9 if objective == "latency" else math.log(2) / 16 + 1e-9
    assert np.abs(predicted - simulated).max() <= tolerance
    same_costs = corrector.apply(before_measuring(corrector).mean)
    np.testing.assert_array_equal(same_costs.node_us, problem.node_us)
    np.testing.assert_array_equal(same_costs.scores(placements), problem.scores(placements))


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_measurements_correct_the_simulator(objective: str) -> None:
    problem = problem_of(2, objective)
    truth = reality(problem)
    generator = np.random.default_rng(0)
    measured, unseen = problem.random(generator, 25), problem.random(generator, 40)
    corrector = Corrector(problem, problem.single(0))

    def true_ratios(placements: np.ndarray) -> np.ndarray:
        return np.log(truth.scores(truth.single(0))[0] / truth.scores(placements))

    fit = corrector.fit(corrector.terms(measured), np.exp(true_ratios(measured)))
    terms = corrector.terms(unseen)
    before = corrector.log_ratio(before_measuring(corrector).mean, terms) - true_ratios(unseen)
    after = corrector.log_ratio(fit.mean, terms) - true_ratios(unseen)
    assert np.abs(after).mean() < 0.4 * np.abs(before).mean()
    described = corrector.describe(fit.mean)["devices"]
    assert described["D1"] / described["D0"] > 1.15

    # Draws are as good where much was measured, and spread where nothing was.
    drawn = np.stack([corrector.log_ratio(fit.draw(generator), terms) for _ in range(20)])
    blind = np.stack([corrector.log_ratio(before_measuring(corrector).draw(generator), terms) for _ in range(20)])
    assert drawn.std(axis=0).mean() < 0.4 * blind.std(axis=0).mean()


def test_noisy_measurements_count_less() -> None:
    problem = problem_of(3)
    truth = replace(problem, node_us=problem.node_us * [1.0, 2.0])
    corrector = Corrector(problem, problem.single(0))
    placement = problem.single(1)
    ratio = truth.scores(truth.single(0)) / truth.scores(placement)
    terms = corrector.terms(placement)
    sure = corrector.log_ratio(corrector.fit(terms, ratio).mean, terms)
    unsure = corrector.log_ratio(corrector.fit(terms, ratio, 0.25).mean, terms)
    prior = corrector.log_ratio(before_measuring(corrector).mean, terms)
    assert abs(sure - np.log(ratio)) < 0.05 < abs(unsure - np.log(ratio)) < abs(prior - np.log(ratio))


def test_terms_add_up_to_what_the_simulator_says() -> None:
    problem = problem_of(4)
    fused_with, torn_us = random_fusions(problem.graph, 2, 4)
    problem = replace(problem, fused_with=fused_with, fusion_penalty_us=torn_us)
    placements = problem.random(np.random.default_rng(1), 5)
    corrector = Corrector(problem, problem.single(0))
    terms = corrector.terms(placements)
    result = problem.evaluate(placements)
    np.testing.assert_allclose(terms.work.sum(axis=(2, 3)) + terms.transfer + terms.submodel, result.busy_us)
    # Transfers are all that is busy on both ends.
    np.testing.assert_allclose(terms.transfer[:, 0], terms.transfer[:, 1])
    joined = Terms.join([corrector.terms(placement) for placement in placements])
    np.testing.assert_array_equal(joined.work, terms.work)


# --- runs ---


def simulated(problem: PlacementProblem, reference: str | None) -> Judge:
    return Simulated(reality(problem), reference)


def start(
    folder: Path,
    problem: PlacementProblem,
    budget: Budget,
    judge_of: Callable[[str | None], Judge] | None = None,
    settings: Settings = TINY,
) -> Outcome:
    return run(folder, problem, judge_of or partial(simulated, problem), network_for(problem), budget, settings)


@pytest.mark.slow
def test_a_run_finds_what_the_wrong_profile_hides(tmp_path: Path) -> None:
    problem = problem_of(5)
    truth = reality(problem)
    outcome = start(tmp_path / "run", problem, Budget(measurements=20))
    best = Target.of(truth, 0)
    reference = truth.scores(truth.single(problem.devices.index(outcome.record["reference"])))[0]
    untuned = truth.scores(Target.of(problem, 0).elites[0])[0]
    chosen = truth.scores(outcome.choice.placement)[0]
    assert outcome.choice.name == FOUND_BY[outcome.state.entries[outcome.choice.entry].source]
    assert chosen < 0.93 * untuned
    assert chosen < 1.04 * best.score
    assert outcome.choice.measurement.ratio == pytest.approx(reference / chosen)

    entries = outcome.state.entries
    assert len({entry.placement.tobytes() for entry in entries}) == len(entries)
    assert outcome.record["measurements"] == len(outcome.record["best_so_far"]) == 20
    assert outcome.record["best_so_far"] == sorted(outcome.record["best_so_far"])
    sources = {entry.source for entry in entries}
    # A placement that search proposes, too, counts as found by search: whether the policy has one of its own depends on
    # the last bits of drawn costs. The next test asks it alone.
    assert "single" in sources and sources & {"measured", "search"}


@pytest.mark.slow
def test_the_policy_may_propose_alone(tmp_path: Path) -> None:
    outcome = start(tmp_path / "run", problem_of(5), Budget(measurements=8), settings=replace(TINY, proposer="policy"))
    sources = {entry.source for entry in outcome.state.entries}
    assert "policy" in sources and "search" not in sources


@pytest.mark.slow
def test_search_may_propose_in_the_place_of_the_policy(tmp_path: Path) -> None:
    problem = problem_of(5)
    truth = reality(problem)
    outcome = start(tmp_path / "run", problem, Budget(measurements=8), settings=replace(TINY, proposer="search"))
    assert outcome.choice.name == "search" and outcome.record["chosen"] == "search"
    assert truth.scores(outcome.choice.placement)[0] < 1.04 * Target.of(truth, 0).score
    sources = {entry.source for entry in outcome.state.entries}
    assert "search" in sources and "policy" not in sources
    # Nothing is learned but the corrections.
    before = network_for(problem).state_dict()
    assert all(torch.equal(value, before[name]) for name, value in outcome.state.network.state_dict().items())
    with pytest.raises(UserError, match="both, policy, search"):
        replace(TINY, proposer="nobody")


def test_where_search_finds_nothing_new_variations_of_the_best_are_measured(tmp_path: Path) -> None:
    problem = problem_of(3, objective="latency", nodes=30)
    dear = np.full_like(problem.transfer_us, 1e4)  # so every search ends at a single device
    problem = replace(problem, node_us=problem.node_us * np.array([1.0, 2.0]), transfer_us=dear)
    settings = replace(TINY, proposer="search")
    outcome = start(tmp_path / "run", problem, Budget(measurements=8), partial(Simulated, problem), settings=settings)
    measured = problem.scores(np.stack([entry.placement for entry in outcome.state.measured]))
    random = problem.scores(problem.random(np.random.default_rng(0), 64))
    assert len(measured) == 8 and measured.max() < np.median(random) / 2


@pytest.mark.slow
def test_the_policy_learns_the_measured_placements(tmp_path: Path) -> None:
    problem = problem_of(6)
    network = network_for(problem)
    task = Task.of(problem, network.config, "D0")
    state = new_state(network, replace(TINY, learning_rate=3e-3))
    judge = simulated(problem, "D0")
    placements = [
        problem.single(0),
        *problem.random(np.random.default_rng(0), 6),
        Target.of(reality(problem), 0).elites[0],
    ]
    for placement in placements:
        measured = judge.measure(problem.affinity(placement))
        state.entries.append(Entry(placement, measured, "policy", 1.0))
    best = state.best()
    np.testing.assert_array_equal(best.placement, placements[-1])
    fit = task.fit(state)
    first = learn(state, task, TINY, fit)
    for _ in range(30):
        last = learn(state, task, TINY, fit)
    assert last["losses/imitation"] < 0.7 * first["losses/imitation"]
    target = imitation_target(state, task, TINY)
    assert target.sum() == pytest.approx(1, abs=1e-5)
    own = np.zeros_like(target)
    np.add.at(own, (task.x.coarse, best.placement), task.weight)
    assert np.abs(target - own).sum() < 0.2


def test_mirror_images_are_not_averaged() -> None:
    problem = problem_of(7)
    task = Task.of(problem, network_for(problem).config, "D0")
    state = new_state(network_for(problem), TINY)
    half = (np.arange(problem.group_count) < problem.group_count // 2).astype(np.uint8)
    for placement, ratio in ((half, 1.8), (1 - half, 1.79)):
        state.entries.append(Entry(placement, Measurement(ratio), "policy", 1.0))
    target = imitation_target(state, task, TINY)
    shares = target / target.sum(axis=1, keepdims=True)
    coarse = np.zeros_like(target)
    np.add.at(coarse, (task.x.coarse, half), task.weight)
    np.testing.assert_allclose(shares, coarse / coarse.sum(axis=1, keepdims=True), atol=1e-5)


class Failing(Simulated):
    """Fails on all placements that use the second device."""

    def __init__(self, problem: PlacementProblem, reference: str | None) -> None:
        super().__init__(problem, reference)
        self.singles = {self.reference: Measurement(1.0)}

    def measure(self, affinity: Mapping[str, str], **options: Any) -> Measurement:
        if "D1" in affinity.values():
            return Measurement(0.0, error="the device is on fire")
        return super().measure(affinity, **options)


def test_placements_that_fail_are_recorded_and_not_chosen(tmp_path: Path) -> None:
    problem = problem_of(8)
    problem = replace(problem, node_us=problem.node_us * [1.0, 1.5])
    outcome = start(tmp_path / "run", problem, Budget(measurements=4), partial(Failing, problem))
    assert outcome.record["failed"] == 4
    assert outcome.choice.name == "D0" and (outcome.choice.placement == 0).all()
    assert outcome.record["best_so_far"] == [1.0] * 4


@pytest.mark.slow
def test_what_is_within_the_margin_is_not_chosen(tmp_path: Path) -> None:
    outcome = start(tmp_path / "run", problem_of(9), Budget(measurements=4), settings=replace(TINY, margin=5.0))
    assert outcome.choice.name == outcome.record["reference"] and outcome.choice.measurement.ratio == 1
    assert (outcome.choice.placement == outcome.choice.placement[0]).all()
    assert max(outcome.record["best_so_far"]) > 1.3


def test_what_is_chosen_is_better_by_the_interval_that_is_shown(tmp_path: Path) -> None:
    problem = problem_of(5)
    outcome = start(tmp_path / "run", problem, Budget(measurements=4))
    state, index = outcome.state, outcome.choice.entry
    noisy = (1.007, 1.181, 0.952, 1.043, 1.066, 1.064, 0.991, 0.947, 1.032)  # of a real run: 0.97 to 1.09
    state.final = {index: Measurement(1.032, 180.0, 174.0, noisy)}
    assert choose(state, problem, TINY).name == outcome.record["reference"]
    # Compilations of one placement differ, which widens what nine steady trials tell.
    steady = Measurement(1.09, 190.0, 174.0, (1.08, 1.09, 1.10) * 3)
    state.final = {index: steady}
    choice = choose(state, problem, TINY)
    assert choice.name == FOUND_BY[state.entries[index].source] and choice.measurement is steady

    measured = {**outcome.record, "about": {"simulated": False, "policy": "base"}}
    placement = placement_of(replace(outcome, choice=choice, record=measured), problem)
    assert placement.measured and placement.measured[choice.name]["ci"] == list(steady.interval)
    assert placement.predicted_gain(placement.chosen) == pytest.approx(state.entries[index].predicted)


def test_a_run_ends_where_nothing_is_left_to_measure(tmp_path: Path) -> None:
    problem = random_problem(1, nodes=4, objective="throughput")
    outcome = start(tmp_path / "run", problem, Budget(), partial(Simulated, problem))
    entries = outcome.state.entries
    assert len({entry.placement.tobytes() for entry in entries}) == len(entries) <= 2**problem.group_count
    best = min(problem.scores(np.array([[n >> g & 1 for g in range(problem.group_count)] for n in range(16)])))
    assert problem.scores(outcome.choice.placement)[0] == pytest.approx(best)


def test_no_time_means_no_measurement(tmp_path: Path) -> None:
    outcome = start(tmp_path / "run", problem_of(10), Budget(seconds=1e-6))
    assert outcome.record["measurements"] == 0 and outcome.choice.name == outcome.record["reference"]
    assert (tmp_path / "run" / "policy" / "policy.json").exists()


class Stopping(Simulated):
    """Is interrupted when so many placements have been measured."""

    def __init__(self, problem: PlacementProblem, measurements: int, reference: str | None) -> None:
        super().__init__(reality(problem), reference)
        self._left = measurements

    def measure(self, affinity: Mapping[str, str], **options: Any) -> Measurement:
        if self._left == 0:
            raise KeyboardInterrupt
        self._left -= 1
        return super().measure(affinity, **options)


@pytest.mark.slow
def test_a_stopped_run_goes_on_exactly(tmp_path: Path) -> None:
    problem = problem_of(11)
    start(tmp_path / "whole", problem, Budget(measurements=7))
    begin: HSDAGNetwork | None = network_for(problem)
    # The last one is stopped between the finalists.
    for measurements in (2, 0, 3, 3):
        with pytest.raises(KeyboardInterrupt):
            judge_of = partial(Stopping, problem, measurements)
            run(tmp_path / "parts", problem, judge_of, begin, Budget(measurements=7) if begin else None, TINY)
        begin = None
        torch.manual_seed(99)
    run(tmp_path / "parts", problem, partial(simulated, problem), None)
    assert_same_end(tmp_path / "whole", tmp_path / "parts")
    assert list((tmp_path / "parts").glob("events.*"))


def to_the_end(folder: Path) -> None:
    """Begins a run, or continues it."""
    problem = problem_of(12)
    begin = None if (folder / CHECKPOINT).exists() else network_for(problem)
    run(folder, problem, partial(simulated, problem), begin, Budget(measurements=12) if begin else None, TINY)


def in_a_process(folder: Path, seconds: float | None = None) -> bool:
    """A part of a run in a process of its own, killed after some seconds; whether it was."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            to_the_end(folder)
            status = 0
        finally:
            os._exit(status)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status != 0


def kill_it(folder: Path, kills: int) -> None:
    """A whole run, and one that is killed at random moments before it may end. Its process has imported everything."""
    torch.set_num_threads(1)
    begin = time.monotonic()
    assert not in_a_process(folder / "whole")
    length = time.monotonic() - begin
    generator = random.Random(0)
    before = 0
    for number in range(kills):
        # On a machine that has become faster, the run may end before it was killed so often.
        if not in_a_process(folder / "killed", generator.uniform(0.05, 0.35) * length):
            assert number > 0
            break
        # Whatever was measured stays measured.
        there = (folder / "killed" / CHECKPOINT).exists()
        measured = len(weights(folder / "killed")["placements"]) if there else 0
        assert measured >= before
        before = measured
    assert not in_a_process(folder / "killed")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
def test_killed_at_random_moments_it_ends_as_if_it_was_not(tmp_path: Path) -> None:
    script = "import sys, pathlib, tests.test_finetune as test; test.kill_it(pathlib.Path(sys.argv[1]), 4)"
    ended(sys.executable, "-c", script, tmp_path, env=environment())
    assert_same_end(tmp_path / "whole", tmp_path / "killed")
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(PREFIX)]


def test_what_cannot_be_resumed_is_refused(tmp_path: Path) -> None:
    problem = problem_of(13)
    judge_of = partial(simulated, problem)
    with pytest.raises(UserError, match="no run to resume"):
        run(tmp_path / "none", problem, judge_of, None)
    start(tmp_path / "run", problem, Budget(measurements=1))
    with pytest.raises(UserError, match="already"):
        start(tmp_path / "run", problem, Budget(measurements=1))
    for other in (problem_of(14), replace(problem, objective="latency"), reality(problem)):
        with pytest.raises(UserError, match="another model, device list or profile"):
            run(tmp_path / "run", other, judge_of, None)
    path = tmp_path / "run" / CHECKPOINT
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UserError, match="not a checkpoint"):
        run(tmp_path / "run", problem, judge_of, None)


ARRAYS = [item.name for item in fields(PlacementProblem) if "axes" in item.metadata]


@pytest.mark.parametrize("name", ARRAYS)
def test_a_run_is_not_continued_with_other_costs(tmp_path: Path, name: str) -> None:
    problem = problem_of(13)
    fused_with, penalty = random_fusions(problem.graph, 2, 4)
    problem = replace(problem, fused_with=fused_with, fusion_penalty_us=penalty)
    sizes = problem.graph.output_bytes
    held = np.repeat(problem.graph.weight_bytes[:, None], 2, axis=1)
    problem = replace(problem, storage_ratio=np.ones(2), moved_bytes=sizes, held_bytes=held, live_bytes=sizes)
    problem = replace(problem, transfer_share=np.ones(2), core_share=np.full(2, 0.5))
    before = getattr(problem, name)
    other = replace(problem, **{name: ~before if before.dtype == bool else before + before.dtype.type(1)})
    path = tmp_path / CHECKPOINT
    state = new_state(network_for(problem), TINY)
    state.entries.append(Entry(problem.single(0), Measurement(1.0), "single", None))
    save_checkpoint(path, state, TINY, {}, fingerprint_of(problem))
    assert len(load_checkpoint(path, problem, TINY).entries) == 1
    with pytest.raises(UserError, match="another model, device list or profile"):
        load_checkpoint(path, other, TINY)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("budget", "why"),
    [
        (Budget(measurements=2), "2 of 2 measurements were made before; a budget counts all parts"),
        (Budget(seconds=1e-3), r"\d+ of 0.001 s were spent before; a budget counts all parts"),
    ],
)
def test_a_resumed_run_that_measures_nothing_says_why(tmp_path: Path, budget: Budget, why: str) -> None:
    problem = problem_of(13)
    start(tmp_path / "run", problem, Budget(measurements=2))
    with pytest.warns(UserWarning, match=f"no placement was measured: {why}"):
        run(tmp_path / "run", problem, partial(simulated, problem), None, budget)


@pytest.mark.slow
def test_the_record_counts_as_the_budget_does(tmp_path: Path) -> None:
    record = start(tmp_path / "run", problem_of(5), Budget(measurements=4)).record
    numbers = [entry["number"] for entry in record["entries"] if entry["source"] not in ("single", "hetero")]
    assert numbers == [1, 2, 3, 4]
    chosen = [entry for entry in record["entries"] if entry["chosen"]]
    assert len(chosen) == 1 and record["chosen"] == FOUND_BY[chosen[0]["source"]]
    number = chosen[0]["number"]
    assert record["best"]["measurement"] == number
    assert record["best"]["ratio"] == record["final"][str(number)]["ratio"]
    assert chosen[0]["measurement"]["ratio"] == record["best"]["ratios"][0]


def test_a_simulation_needs_memory_for_a_reference() -> None:
    problem = replace(problem_of(15), memory_bytes=np.array([1, 1], np.int64))
    with pytest.raises(RunError, match="memory"):
        Simulated(problem)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("1.5h", 5400), ("30", 30)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0s", "m", "10d", "-1m", "1e3"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(UserError, match="give one like 90s, 10m or 1h"):
        parse_duration(text)


# --- models ---


@pytest.mark.slow
def test_on_real_hetero(two_cpu_core: ov.Core, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ov_hsdag.training.finetune.model.Measurer", partial(Measurer, rounds=2))
    told: list[tuple[int, float]] = []

    def report(number: int, share: float, entry: Entry, best: float) -> None:
        assert not entry.measurement.failed, entry.measurement.error
        assert entry.measurement.submodels >= 1
        told.append((number, share))

    model = ZOO["squeezenet"].build()
    data = ZOO["squeezenet"].inputs(0)[0]
    expected = two_cpu_core.compile_model(model.clone(), "CPU_A")(data)[0]
    record, placement = finetune(
        model,
        PAIR,
        tmp_path,
        objective="throughput",
        budget=Budget(measurements=3),
        policy="none",
        settings=replace(TINY, final_rounds=1),
        core=two_cpu_core,
        report=report,
        trial_seconds=0.1,
    )
    assert told == [(1, pytest.approx(1 / 3)), (2, pytest.approx(2 / 3)), (3, 1.0)]
    assert set(record["singles"]) == {"CPU_A", "CPU_B"} and record["measurements"] == 3
    assert record["best"]["value"] > 0
    assert placement.measured and set(placement.measured) >= {"CPU_A", "CPU_B"}
    chosen = placement.measured[placement.chosen]
    assert chosen["throughput_ips"] > 0

    saved = two_cpu_core.read_model(tmp_path / "model.xml")
    embedded = Placement.of(saved)
    assert embedded is not None and embedded.affinity == placement.affinity
    assert json.loads((tmp_path / "placement.json").read_text()) == placement.affinity
    embedded.apply(saved)
    compiled = two_cpu_core.compile_model(saved, PAIR, virtual.compile_properties(PAIR))
    assert compiled.get_property("HETERO_NUMBER_OF_SUBMODELS") == chosen["submodels"]
    actual = compiled(data)[0]
    assert np.abs(actual - expected).max() <= 1e-3 * np.abs(expected).max()
    # The tuned policy is one that placing takes.
    problem = build_problem(ZOO["squeezenet"].build(), device_set.DeviceSet.parse(PAIR), objective="throughput")
    assert np.isfinite(problem.scores(HSDAGPlacer(tmp_path / "policy").place(problem))[0])


def tuned(*arguments: object, status: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    """`ov-hsdag finetune ARGUMENTS` on two devices."""
    declared = {virtual.VIRTUAL_DEVICES_VARIABLE: f"CPU_A:{ONE_CORE};CPU_B:{ONE_CORE}"}
    return command("finetune", *arguments, status=status, **declared, **variables)


def test_tensorflow_is_not_imported_where_it_is_installed(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("print('imported')")
    code = "from ov_hsdag.training.run import SummaryWriter; SummaryWriter('events').close()"
    variables = environment() | {"PYTHONPATH": os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])}
    done = ended(sys.executable, "-c", code, cwd=tmp_path, env=variables)
    assert done.stdout == "" and list((tmp_path / "events").iterdir())


@pytest.mark.slow
def test_the_command_tunes_and_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    model, output = tmp_path / "model.xml", tmp_path / "run"
    ov.save_model(ZOO["lstm"].build(), model, compress_to_fp16=True)
    options = (model, "--device", PAIR, "--output", output)
    new = ("--objective", "throughput", "--policy", "none", "--simulated")
    done = tuned(*options, *new, "--measurements", 2, "--seed", 3, "--json", "--verbose")
    record = json.loads(done.stdout)
    assert record["measurements"] == 2 and record["settings"]["seed"] == 3
    assert set(re.findall(r"measurement (\d)", done.stderr)) == {"1", "2"}
    assert record["placement"] == json.loads((output / "placement.json").read_text())
    placement = Placement.of(ov.Core().read_model(output / "model.xml"))
    assert placement is not None and placement.affinity == record["placement"]
    assert (output / "model.bin").stat().st_size < 1.2 * model.with_suffix(".bin").stat().st_size

    more = tuned(*options, "--resume", "--measurements", 3, "--verbose", COLUMNS="80")
    assert "measurement 3: " in more.stderr and "measurement 2: " not in more.stderr
    assert "policy: kept" not in more.stdout  # of a simulation
    assert more.stdout.startswith(f"{output / 'model.xml'}:")
    hints = more.stdout.splitlines()[-2:]
    verify = f"ov-hsdag verify {output / 'model.xml'} --device {PAIR}"
    assert hints == [f"see: tensorboard --logdir {output}", f"next: {verify}"]
    table = more.stdout.replace(str(output), "").splitlines()
    (marked,) = [line.split() for line in table if line.startswith("*") and "chosen" not in line]
    headline = " ".join(more.stdout.split()).partition(" measurement of ")[0]
    written = json.loads((output / "record.json").read_text())
    assert marked[1] == str(written["best"]["measurement"] or "-")
    assert marked[-1] == f"{written['best']['ratio']:.2f}"
    assert f"{PAIR} (throughput): " in headline and f" simulated {marked[-1]}x the best single device" in headline
    assert [entry["name"] for entry in written["entries"][:2]] == ["CPU_A", "CPU_B"]
    assert max(map(len, table)) <= 80

    refused = tuned(*options, "--resume", "--seed", 1, status=2)
    assert "leave out --seed" in refused.stderr and refused.stderr.count("\n") == 1, refused.stderr


@pytest.mark.slow
def test_it_says_where_the_policy_is_kept(tmp_path: Path) -> None:
    model = tmp_path / "model.xml"
    ov.save_model(ZOO["lstm"].build(), model)
    done = tuned(
        model, "--device", PAIR, "--output", tmp_path / "run", "--measurements", 1, "--policy", "none",
        OV_HSDAG_POLICIES=str(tmp_path / "kept"), COLUMNS="1000",
    )  # fmt: skip
    (folder,) = (tmp_path / "kept").iterdir()
    told = f"policy: kept in {folder / 'fine-tuned'}, where place finds it for {PAIR}; --policy base leaves it aside"
    assert told in done.stdout.splitlines()
    # A run that measured no placement has learned nothing.
    done = tuned(
        model, "--device", PAIR, "--output", tmp_path / "short", "--budget", "0.01s", "--policy", "none",
        OV_HSDAG_POLICIES=str(tmp_path / "none"), COLUMNS="1000",
    )  # fmt: skip
    assert "policy: kept" not in done.stdout and not (tmp_path / "none").exists()


def test_bad_input_is_refused_before_any_work(tmp_path: Path) -> None:
    model, output = tmp_path / "model.xml", tmp_path / "run"
    tuner = typer.main.get_command(app).commands["finetune"]  # type: ignore[attr-defined]
    ov.save_model(ZOO["squeezenet"].build(), model)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / CHECKPOINT).touch()
    for options, message in (
        ({"model": tmp_path / "absent.xml"}, "no such model"),
        ({"device": "CPU"}, "is not a HETERO device list"),
        ({"objective": "speed"}, "unknown objective"),
        ({"policy": str(tmp_path / "nowhere")}, "there is no policy"),
        ({"budget": "soon"}, "is no duration"),
        ({"budget": "1m", "measurements": 2}, "give one of them"),
        ({"output": tmp_path / "old"}, "there is a run in"),
        ({"resume": True}, "there is no run to resume"),
        ({"resume": True, "simulated": True, "objective": "latency"}, "leave out --objective, --simulated"),
        ({"profile": tmp_path / "absent.json"}, "cannot read profile"),
        ({"device": "HETERO:NPU,CPU", "policy": "none"}, "NPU is not on this machine"),
    ):
        words: list[str] = []
        for name, value in {"model": model, "device": "HETERO:GPU,CPU", "output": output, **options}.items():
            words += [*([f"--{name}"] if name != "model" else []), *([str(value)] if value is not True else [])]
        with pytest.raises(UserError, match=message), tuner.make_context("finetune", words) as context:
            tuner.invoke(context)
    assert not output.exists()
