"""Measuring on real HETERO: ratios to the best single device that drift does not bend; failures that are told."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import openvino as ov
import pytest

from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring import runner
from ov_hsdag.measuring.agreement import largest_difference
from ov_hsdag.measuring.evaluator import Measurement
from ov_hsdag.measuring.measurer import Measurer
from ov_hsdag.measuring.process import Candidate, Worker
from ov_hsdag.measuring.runner import Runner
from ov_hsdag.model.affinities import set_affinities
from ov_hsdag.model.inputs import random_inputs, timed_inputs
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.problem.problem import PlacementProblem, topological_groups
from ov_hsdag.utils.errors import RunError
from research.zoo.catalog import ZOO
from tests.simulated_machine import Machine

PAIR = DeviceSet(("CPU_A", "CPU_B"))


def problem_of(name: str, core: ov.Core, objective: str) -> tuple[ov.Model, PlacementProblem]:
    model = ZOO[name].build()
    return model, build_problem(model, PAIR, objective=objective, core=core)


class Paced(Worker):
    """A real worker whose rates are those of a machine that gets slower with every trial."""

    trials, drift = 0, 0.1

    def compile(self, candidate: Candidate, limit: float) -> list[np.ndarray]:
        devices = set((candidate.affinity or {}).values()) or {candidate.device}
        self.speed = {"CPU_A": 10.0, "CPU_B": 30.0}[devices.pop()] if len(devices) == 1 else 45.0
        return super().compile(candidate, limit)

    def rate(self, seconds: float, limit: float, alone: bool = True) -> float:
        super().rate(seconds, limit)
        self.load = None  # what other programs took of the real trial is not in the rate that is made up
        Paced.trials += 1
        return self.speed * math.exp(-Paced.drift * Paced.trials)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["throughput", "latency"])
def test_placements_are_compared_with_the_best_single_device(core: ov.Core, objective: str) -> None:
    model, problem = problem_of("squeezenet", core, objective)
    before = [node.get_friendly_name() for node in model.get_ops()]
    measurer = Measurer(model, PAIR, objective, core, rounds=2, seconds=0.01, start_worker=Paced)
    assert measurer.reference == "CPU_B"
    assert {name: single.ratio for name, single in measurer.singles.items()} == {
        "CPU_A": pytest.approx(1 / 3, rel=0.01),
        "CPU_B": 1.0,
    }
    split = np.where(np.arange(problem.group_count) < problem.group_count // 2, 0, 1).astype(np.uint8)
    split = problem.repair(split)
    found = measurer.measure(problem.affinity(split))
    assert not found.failed
    assert found.submodels == problem.evaluate(split).submodels[0] > 1
    # The drift of 10% a trial cancels over the two rounds.
    assert len(found.ratios) == 2 and found.ratio == pytest.approx(1.5, rel=0.01)
    rate = found.value if objective == "throughput" else 1e6 / found.value
    assert rate == pytest.approx(45 * math.exp(-0.1 * Paced.trials), rel=0.5)
    in_their_unit = found.value / found.reference if objective == "throughput" else found.reference / found.value
    assert in_their_unit == pytest.approx(found.ratio)
    assert found.seconds > 0
    for device, ratio in ((0, 1 / 3), (1, 1.0)):
        alone = measurer.measure(problem.affinity(problem.single(device)), rounds=2)
        assert alone.submodels == 1 and alone.ratio == pytest.approx(ratio, rel=0.01)

    assert [node.get_friendly_name() for node in model.get_ops()] == before
    assert not any("affinity" in node.get_rt_info() for node in model.get_ops())


@pytest.mark.parametrize(("devices", "room"), [(2, 1), (3, 2), (3, 1)])
def test_devices_that_are_not_in_memory_together_are_compared(core: ov.Core, devices: int, room: int) -> None:
    speeds = {"CPU_A": 20.0, "CPU_B": 10.0, "CPU_C": 40.0}
    names = tuple(speeds)[:devices]
    machine = Machine(speeds, room)
    model = ZOO["squeezenet"].build()
    measurer = Measurer(model, DeviceSet(names), "throughput", core, start_worker=machine.start)
    assert measurer.reference == max(names, key=speeds.__getitem__) and measurer.singles.keys() == set(names)
    for name, single in measurer.singles.items():
        assert single.ratio == pytest.approx(speeds[name] / speeds[measurer.reference], rel=0.1), name


def test_what_is_clearly_worse_gets_fewer_rounds(core: ov.Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Paced, "drift", 0.0)
    model, problem = problem_of("squeezenet", core, "latency")
    measurer = Measurer(model, PAIR, "latency", core, reference="CPU_B", rounds=5, seconds=0.01, start_worker=Paced)
    # A third is hopeless against 0.35 once 0.35 * (1 - 0.15 / n) is above it.
    for worth, rounds in ((0.0, 5), (0.3, 5), (0.5, 1), (0.35, 4)):
        found = measurer.measure(problem.affinity(problem.single(0)), worth=worth)
        assert len(found.rates) == len(found.ratios) == rounds
        assert found.ratio == pytest.approx(1 / 3)


@pytest.mark.parametrize("objective", ["throughput", "latency"])
def test_rates_are_those_at_which_inferences_end(core: ov.Core, objective: str) -> None:
    """The rate of a trial is between those of its shortest and its longest interval."""
    model, _ = problem_of("squeezenet", core, objective)
    runner = Runner(core.compile_model(model, "CPU_A"), timed_inputs(model), objective, 1)
    rate = runner.rate(0.3)
    between = np.diff(runner.finished)
    assert len(between) >= 3
    assert 0.5 / between.max() < rate < (1.5 * len(runner.queue)) / between.min()


def test_rounds_in_which_requests_spread_over_the_devices_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four requests, in simulated time: inferences of the first two rounds take twice as long as later ones."""
    finished, queue = list[float](), SimpleNamespace(wait_all=int)
    phase: Any = SimpleNamespace(_rewind=int, _finished=finished, _replays=range(4), _queue=queue)
    phase._start = lambda: finished.append(finished[-1] + 2.0 - (len(finished) > 8) if finished else 2.0)
    monkeypatch.setattr(time, "perf_counter", lambda: finished[-1])
    rates = [runner._Phase.throughput(phase, 1.0) for phase._filling in (0, runner._FILLING)]
    assert rates == [0.5, 1.0] and len(finished) == 13


@pytest.mark.parametrize("filling", [0, 1, 2])
def test_a_split_fills_before_it_is_timed(two_cpu_core: ov.Core, filling: int) -> None:
    model, problem = problem_of("squeezenet", two_cpu_core, "throughput")
    placement = problem.single(0)
    placement[topological_groups(problem)[problem.group_count // 2 :]] = filling > 0
    placement[topological_groups(problem)[-2:]] = filling == 1
    set_affinities(model, problem.affinity(placement))
    timed = Runner(two_cpu_core.compile_model(model, PAIR.hetero), timed_inputs(model), "throughput", 3)
    assert timed.submodels == filling + 1 and timed.rate(0.01) > 0
    assert len(timed.finished) > (1 + filling) * len(timed.queue)


def test_failures_are_told_and_harm_nothing(core: ov.Core) -> None:
    model, problem = problem_of("squeezenet", core, "throughput")
    measurer = Measurer(model, PAIR, "throughput", core, reference="CPU_B", rounds=1, seconds=0.05)
    assert measurer.reference == "CPU_B" and set(measurer.singles) == {"CPU_B"}
    affinity = problem.affinity(problem.single(0))
    broken = measurer.measure({**affinity, next(iter(affinity)): "CPU_C"})
    assert broken.failed and broken.ratio == 0 and math.isnan(broken.value)
    assert "CPU_C" in broken.error and "\n" not in broken.error
    missing = measurer.measure(dict(list(affinity.items())[1:]))
    assert missing.failed and "completed" in missing.error
    assert not measurer.measure(affinity).failed


@pytest.mark.slow
def test_a_placement_that_fails_in_inference_only_is_a_failure(core: ov.Core) -> None:
    """Shape arithmetic that is cut from its consumer compiles, and does not run."""
    model = ZOO["bert-dynamic"].build()
    names = [node.get_friendly_name() for node in model.get_ordered_ops()]
    measurer = Measurer(model, PAIR, "latency", core, reference="CPU_A", rounds=1, seconds=0.05)
    random = np.random.default_rng(0)
    found = [
        measurer.measure({name: PAIR.names[device] for name, device in zip(names, draw, strict=True)})
        for draw in random.integers(0, 2, (3, len(names)))
    ]
    assert any(measurement.failed for measurement in found)
    assert not measurer.measure(dict.fromkeys(names, "CPU_A")).failed


def test_auto_is_timed_though_its_requests_do_not_tell_their_states(core: ov.Core) -> None:
    model = ZOO["mobilenet-v2-small"].build()
    runner = Runner(core.compile_model(model, "AUTO:CPU"), timed_inputs(model), "latency", 1)
    assert runner.rate(0.05) > 0


def test_a_state_begins_anew_with_each_request(core: ov.Core) -> None:
    """A cache that grew with every inference would make later trials slower and slower."""
    model, problem = problem_of("llama-stateful", core, "throughput")
    runner = Runner(core.compile_model(model, "CPU_A"), timed_inputs(model), "throughput", 2)
    assert runner.rate(0.2) > 0
    sizes = [state.state.shape for state in runner.queue[0].query_state()]
    assert sizes and all(max(size) <= 64 for size in sizes)
    measurer = Measurer(model, PAIR, "throughput", core, reference="CPU_A", rounds=2, seconds=0.1)
    assert not measurer.measure(problem.affinity(problem.single(1))).failed


def test_a_model_that_nothing_runs_is_an_error(core: ov.Core) -> None:
    model = ZOO["squeezenet"].build()
    with pytest.raises(RunError, match="no device of HETERO:CPU_C,CPU_D runs the model: CPU_C: "):
        Measurer(model, DeviceSet(("CPU_C", "CPU_D")), "latency", core)


def test_measurements_survive_json() -> None:
    for measurement in (Measurement(1.5, 30.0, 20.0, (1.5, 1.4), 2, 1.0), Measurement(0.0, error="broken")):
        again = Measurement.from_dict(measurement.to_dict())
        assert again.to_dict() == measurement.to_dict()
        assert again.failed == measurement.failed and again.ratios == measurement.ratios
    assert Measurement(1.0, ratios=(1.0, 1.1)).uncertain == pytest.approx(np.log(1.1) / 2)
    assert Measurement(1.0, ratios=(1.0,)).uncertain == 0
    assert Measurement(1.05, ratios=(1.0, 1.1)).sure == pytest.approx(1.05 / np.sqrt(1.1))


def test_inputs_are_drawn_from_the_seed() -> None:
    model = ZOO["bert-dynamic"].build()
    first, again, other = random_inputs(model), random_inputs(model), random_inputs(model, 1)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_what_is_no_number_agrees_with_itself_only() -> None:
    masked = np.array([1.0, -np.inf, np.nan], np.float32)
    assert largest_difference([[masked]], [[masked + np.float32(1e-4)]]) == pytest.approx(1e-4, rel=0.01)
    assert largest_difference([[masked]], [[np.array([1.0, np.inf, np.nan], np.float32)]]) == math.inf
    assert largest_difference([[masked]], [[np.array([1.0, -np.inf, 0.0], np.float32)]]) == math.inf
    assert largest_difference([[np.array([1, 2])]], [[np.array([1, 3])]]) == math.inf
