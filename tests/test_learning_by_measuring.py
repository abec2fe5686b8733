"""What a measured split tells of the devices' speeds, and what the search makes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring.comparison import Comparison
from ov_hsdag.measuring.evaluator import PIPELINE_HINT
from ov_hsdag.measuring.process import Candidate, Worker, WorkerPool
from ov_hsdag.model.inputs import timed_inputs
from ov_hsdag.placers.contiguous import Contiguous
from ov_hsdag.placers.multilevel import Multilevel
from ov_hsdag.placing import corrected_search, selection
from ov_hsdag.placing.processor_times import ProcessorTimeModel
from ov_hsdag.problem.copies import COPIES
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.problem.problem import PlacementProblem, topological_groups
from research.zoo.catalog import ZOO
from tests.simulated_machine import FakeWorker, Machine

DEVICES = DeviceSet(("CPU_A", "CPU_B"))


def cut(problem: PlacementProblem, shares: list[float], first: int) -> NDArray[np.uint8]:
    """Contiguous parts that end at these shares of the groups, on both devices in turn."""
    count = problem.group_count
    wanted = np.empty(count, np.int64)
    wanted[topological_groups(problem)] = np.searchsorted(np.array(shares) * count, np.arange(count), side="right")
    return problem.repair(problem.where_supported((wanted + first) % 2))


@pytest.mark.slow
@pytest.mark.parametrize(("shares", "first"), [([0.7], 1), ([0.98], 0), ([0.1, 0.2, 0.9], 1), ([], 0)])
def test_workers_tell_the_processor_time_of_each_submodel(
    two_cpu_core: ov.Core, shares: list[float], first: int
) -> None:
    """Of the thread that runs it, in the order of HETERO's submodels: as costs say, on a busy machine as well."""
    model = ZOO["squeezenet"].build()
    problem = build_problem(model, DEVICES, objective="throughput", core=two_cpu_core)
    placement = cut(problem, shares, first)
    candidate = Candidate.placed(DEVICES, problem.affinity(placement)) if shares else Candidate("CPU_A")
    with WorkerPool(model, timed_inputs(model), "throughput") as pool:
        worker = pool.start()
        worker.compile(candidate, 60)
        worker.rate(0.3, 60)
        times = worker.busy_us
    on = problem.submodels_in_order(placement)
    assert len(times) == len(on) == worker.submodels
    busy = np.bincount(on, times, 2)
    predicted = problem.breakdown(placement[None]).busy_us[0].sum(axis=1)
    np.testing.assert_allclose(busy / busy.sum(), predicted / predicted.sum(), atol=0.12)


class Unlike(Machine):
    """A machine with other costs than those that were predicted, and noise."""

    def __init__(self, true: PlacementProblem, placements: Mapping[str, NDArray[np.uint8]], noise: float) -> None:
        super().__init__({})
        self.true, self.placements, self.noise = true, dict(placements), noise
        self.random = np.random.default_rng(0)

    def start(self, folder: Path, objective: str, name: str) -> Worker:
        return Knowing(self, name)

    def speed(self, name: str) -> float:
        return self.rate_of(self.placements[name]) * float(np.exp(self.random.normal(0, self.noise)))

    def rate_of(self, placement: NDArray[np.uint8]) -> float:
        return 1e6 / float(self.true.scores(placement)[0])


class Knowing(FakeWorker):
    machine: Unlike

    def compile(self, candidate: Candidate, limit: float) -> list[np.ndarray]:
        found = super().compile(candidate, limit)
        if candidate.affinity is not None:
            self.machine.placements[self.name] = self.machine.true.placement_of(candidate.affinity)
        split = self.machine.true.split(self.machine.placements[self.name])
        self.submodels = int((~split["trivial"]).sum())
        return found

    def rate(self, seconds: float, limit: float, alone: bool = True) -> float:
        placement = self.machine.placements[self.name]
        split, found = self.machine.true.split(placement), self.machine.true.breakdown(placement[None])
        names = split["submodel"]
        times = np.where(names >= 0, (found.node_us + found.fusion_us)[0], 0.0)
        of_submodel = np.bincount(np.maximum(names, 0), times, len(split["trivial"]))
        on, more = split["submodel_device"], found.busy_us[0, :, 2:].sum(axis=1)  # calls and transfers
        of_submodel += (more / np.bincount(on, minlength=len(more)).clip(1))[on]
        self.busy_us = of_submodel[~split["trivial"]].tolist()
        return super().rate(seconds, limit, alone)


@pytest.mark.slow
@pytest.mark.parametrize("told", [True, False])
def test_costs_are_corrected_and_searched_again(
    two_cpu_core: ov.Core, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    """CPU_B is 30% slower than predicted, and convolutions on it twice that: what was predicted best is out of balance.

    Without times of submodels, rates alone tell of it.
    """
    model = ZOO["squeezenet"].build()
    problem = build_problem(model, DEVICES, objective="throughput", core=two_cpu_core)
    factor = np.ones(problem.node_us.shape)
    factor[:, 1] = np.where(np.asarray(problem.graph.types) == "Convolution", 1.6, 1.3)
    true = replace(problem, node_us=problem.node_us * factor)
    best = Multilevel().place(true)
    candidates = {"pipeline": Contiguous().place(problem), "search": Multilevel().place(problem)}
    simple = {name: problem.single(number) for number, name in enumerate(DEVICES)}
    others = dict.fromkeys(("hetero", PIPELINE_HINT, COPIES), simple["CPU_A"])
    machine = Unlike(true, {**simple, **candidates, **others}, 0.01)
    machine.keep_time(monkeypatch)
    if not told:
        monkeypatch.setattr(ProcessorTimeModel, "by_device", lambda *_: np.zeros(len(DEVICES)))
    found = selection.select(model, problem, candidates, two_cpu_core, seconds=60, start_worker=machine.start)
    assert found.chosen is not None and found.chosen.startswith("search (corrected")
    before = max(map(machine.rate_of, candidates.values()))
    reached = machine.rate_of(found.placements[found.chosen])
    assert before < 0.9 * machine.rate_of(best), "there is something to be found"
    assert reached > (0.97 if told else 0.93) * machine.rate_of(best)
    assert found.measured[found.chosen]["failed"] is None


def searching(monkeypatch: pytest.MonkeyPatch, *found: NDArray[np.uint8]) -> None:
    """Searches with corrected costs find these placements one after the other, and then the last one again."""
    following = iter(found)
    search = SimpleNamespace(place=lambda problem: next(following, found[-1]))
    monkeypatch.setattr(corrected_search, "Multilevel", lambda: search)


def test_later_searches_have_to_find_better_than_the_first_one(
    two_cpu_core: ov.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ZOO["squeezenet"].build()
    problem = build_problem(model, DEVICES, objective="throughput", core=two_cpu_core)
    best, worse, worst = Multilevel().place(problem), cut(problem, [0.4], 1), cut(problem, [0.2], 1)
    searching(monkeypatch, best, worse)
    simple = {name: problem.single(number) for number, name in enumerate(DEVICES)}
    others = dict.fromkeys(("hetero", PIPELINE_HINT, COPIES), simple["CPU_A"])
    machine = Unlike(problem, {**simple, **others, "cut": worst}, 0.01)
    machine.keep_time(monkeypatch)
    found = selection.select(model, problem, {"cut": worst}, two_cpu_core, seconds=60, start_worker=machine.start)
    assert machine.rate_of(best) > 1.05 * machine.rate_of(worse) > 1.1 * machine.rate_of(worst)
    assert found.chosen == corrected_search.CORRECTED
    assert [name for name in found.placements if name.startswith("search")] == [corrected_search.CORRECTED]


def test_a_later_search_is_predicted_from_the_first_one(two_cpu_core: ov.Core, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = build_problem(ZOO["squeezenet"].build(), DEVICES, objective="throughput", core=two_cpu_core)
    first, second = cut(problem, [0.4], 1), Multilevel().place(problem)
    searching(monkeypatch, second)
    found = corrected_search.search(problem, {corrected_search.CORRECTED: first}, [corrected_search.CORRECTED])
    assert found is not None
    gain = float(problem.scores(first)[0] / problem.scores(second)[0])
    assert found.predict_rate(corrected_search.CORRECTED, 3.0) == pytest.approx(3.0 * gain)


class Swinging(Unlike):
    """Cores with 0.6 to 1.0 of their speed, each drawn anew for every trial; four times in those at the same time."""

    def __init__(self, true: PlacementProblem, placements: Mapping[str, NDArray[np.uint8]], seed: int) -> None:
        super().__init__(true, placements, 0.01)
        self.random, self.share, self.mean_share = np.random.default_rng(seed), np.ones(2), np.ones(2)

    def start(self, folder: Path, objective: str, name: str) -> Worker:
        return Sharing(self, name)

    def speed(self, name: str) -> float:
        busy = self.true.breakdown(self.placements[name][None]).busy_us[0].sum(axis=1)
        return 1e6 / float((busy / self.share).max())


class Sharing(Knowing):
    machine: Swinging

    def rate(self, seconds: float, limit: float, alone: bool = True) -> float:
        if alone:
            self.machine.share = self.machine.random.uniform(0.6, 1.0, 2)
            self.machine.mean_share = self.machine.random.uniform(0.6, 1.0, (4, 2)).mean(axis=0)
        rate = super().rate(seconds, limit, alone)
        split = self.machine.true.split(self.machine.placements[self.name])
        on = split["submodel_device"][~split["trivial"]]
        self.busy_us = (
            np.array(self.busy_us) / (self.machine.share if alone else self.machine.mean_share)[on]
        ).tolist()
        return rate


@pytest.fixture(name="swinging")
def selects_on_cores_that_swing(two_cpu_core: ov.Core, monkeypatch: pytest.MonkeyPatch) -> Callable[..., float]:
    """What `select` loses on cores that swing, of the best that it tried; cuts: shares of the groups."""
    model = ZOO["squeezenet"].build()

    def lost(seed: int, objective: str = "throughput", cuts: Sequence[float] = (0.35, 0.42, 0.5, 0.58, 0.65)) -> float:
        problem = build_problem(model, DEVICES, objective=objective, core=two_cpu_core)
        factors = np.random.default_rng(5).uniform(0.8, 1.25, problem.node_us.shape)
        candidates = {f"cut at {share}": cut(problem, [share], 1) for share in cuts}
        simple = {name: problem.single(number) for number, name in enumerate(DEVICES)}
        others = dict.fromkeys(("hetero", PIPELINE_HINT, COPIES), simple["CPU_A"])
        true = replace(problem, node_us=problem.node_us * factors)
        machine = Swinging(true, {**simple, **candidates, **others}, seed)
        machine.keep_time(monkeypatch)
        found = selection.select(model, problem, candidates, two_cpu_core, seconds=60, start_worker=machine.start)
        best = max(map(machine.rate_of, found.placements.values()))
        return 1 - machine.rate_of(found.placements[found.chosen or ""]) / best

    return lost


@pytest.mark.slow
def test_trials_at_the_same_time_choose_on_cores_that_swing(
    swinging: Callable[..., float], monkeypatch: pytest.MonkeyPatch
) -> None:
    together = np.mean([swinging(seed) for seed in range(24)])
    monkeypatch.setattr(Comparison, "busy_together", lambda self, names, seconds: {})
    assert together < 0.5 * np.mean([swinging(seed) for seed in range(24)])


@pytest.mark.slow
@pytest.mark.parametrize(("objective", "cuts"), [("latency", (0.4, 0.5)), ("throughput", ()), ("throughput", (0.5,))])
def test_where_nothing_can_run_at_the_same_time_trials_in_turns_choose(
    swinging: Callable[..., float], objective: str, cuts: Sequence[float]
) -> None:
    assert np.mean([swinging(seed, objective, cuts) for seed in range(4)]) < 0.05


def test_trials_at_the_same_time_that_do_not_tell_their_times_are_left_out(
    swinging: Callable[..., float], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(
        Comparison, "busy_together", lambda self, names, seconds: asked.append([*names]) or dict.fromkeys(names, ())
    )
    assert swinging(0) < 0.1 and len(asked) == 1, "no other time after that"
