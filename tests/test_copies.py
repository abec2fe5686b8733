"""A copy of the whole model on each device: predicted, measured beside the choice, told, and never chosen."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import openvino as ov
import pytest

from ov_hsdag.cli.placed import copies
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring import selection
from ov_hsdag.measuring.rivals import contenders
from ov_hsdag.measuring.runner import ConcurrentTrials, Copies, Runner
from ov_hsdag.model.inputs import timed_inputs
from ov_hsdag.model.placement import Placement
from ov_hsdag.placers.contiguous import Contiguous
from ov_hsdag.problem.copies import COPIES, copies_summary, copy_devices
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.problem.problem import PlacementProblem
from research.zoo.catalog import ZOO
from tests.worker_faults import starting, within

DEVICES = DeviceSet(("CPU_A", "CPU_B"))


@pytest.fixture
def model() -> ov.Model:
    return ZOO["squeezenet"].build()


@pytest.fixture
def problem(model: ov.Model, two_cpu_core: ov.Core) -> PlacementProblem:
    return build_problem(model, DEVICES, objective="throughput", core=two_cpu_core)


def test_they_are_predicted_to_do_what_each_does_alone(problem: PlacementProblem) -> None:
    alone = [problem.summary(problem.single(index)) for index in range(2)]
    found = copies_summary(problem)
    assert found is not None and copy_devices(problem) == DEVICES.names
    assert found["throughput_ips"] == pytest.approx(sum(one["throughput_ips"] for one in alone))
    assert found["memory_bytes"] == {
        name: one["memory_bytes"][name] for name, one in zip(DEVICES.names, alone, strict=True)
    }
    assert COPIES in [rival.name for rival in contenders(problem, DEVICES, [])[0]]


def test_they_need_throughput_and_two_devices_that_hold_the_model(problem: PlacementProblem) -> None:
    needed = problem.summary(problem.single(1))["memory_bytes"]["CPU_B"]
    limited = replace(problem, memory_bytes=np.array([2 * needed, needed // 2]))
    for other in (limited, replace(problem, objective="latency")):
        assert copies_summary(other) is None and copy_devices(other) == ()
        assert COPIES not in [rival.name for rival in contenders(other, DEVICES, [])[0]]


def test_they_run_at_the_same_time(model: ov.Model, two_cpu_core: ov.Core) -> None:
    inputs = timed_inputs(model)
    runners = [Runner(two_cpu_core.compile_model(model, name), inputs, "throughput", 2) for name in DEVICES.names]
    both = Copies(runners, inputs)
    assert both.rate(0.3) > 0 and both.rates.keys() == {inputs[0].name}
    assert max(runner.finished[0] for runner in runners) < min(runner.finished[-1] for runner in runners)
    for own, other in zip(both.outputs(), runners[1].outputs(), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-5)


class Trial:
    """Of a copy, which logs what it does. It has what it needs when `ready` says so, and goes on until all do."""

    def __init__(self, name: str, log: list[str], ready: Callable[[list[str], ConcurrentTrials], bool]) -> None:
        self.name, self.log, self.ready = name, log, ready

    def throughput(self, seconds: float, trials: ConcurrentTrials) -> float:
        trials.start()
        self.log.append(f"{self.name} started")
        while not self.ready(self.log, trials):
            time.sleep(0.001)
        self.log.append(f"{self.name} finished")
        trials.finish()
        while trials.unfinished:
            time.sleep(0.001)
        self.log.append(f"{self.name} ended")
        return 1.0


class FailsFirst(Trial):
    def throughput(self, seconds: float, trials: ConcurrentTrials) -> float:
        raise RuntimeError("out of memory")


class FailsLater(Trial):
    """When another has finished."""

    def throughput(self, seconds: float, trials: ConcurrentTrials) -> float:
        trials.start()
        while "one finished" not in self.log:
            time.sleep(0.001)
        raise RuntimeError("out of memory")


def copies_of(*trials: Trial) -> Copies:
    class Fake:
        def __init__(self, trial: Trial) -> None:
            self.trial = trial

        def phase(self, number: int) -> Any:
            return self.trial

    model = ZOO["squeezenet"].build()
    fakes: list[Any] = [Fake(trial) for trial in trials]
    return Copies(fakes, timed_inputs(model))


def all_started(log: list[str], _: ConcurrentTrials) -> bool:
    return {"one started", "two started"} <= set(log)


def test_all_start_together_and_none_ends_before_all_have_finished() -> None:
    log: list[str] = []
    one, two = Trial("one", log, all_started), Trial("two", log, lambda log, _: "one finished" in log)
    assert within(60, lambda: copies_of(one, two).rate(1.0)) == pytest.approx(2.0)
    assert set(log[:2]) == {"one started", "two started"} and log[2:4] == ["one finished", "two finished"]


@pytest.mark.parametrize("broken", [FailsFirst, FailsLater])
def test_a_copy_that_fails_ends_the_others(broken: type[Trial]) -> None:
    """One of them has finished by then, the other finishes after that."""
    log: list[str] = []
    one, two = Trial("one", log, all_started), Trial("two", log, lambda _, trials: not trials.unfinished)
    with pytest.raises(RuntimeError, match="out of memory"):
        within(60, lambda: copies_of(one, broken("broken", log, all_started), two).rate(1.0))


@pytest.mark.parametrize("fault", [None, COPIES, "CPU_B"])
def test_they_are_measured_against_the_chosen_one(
    model: ov.Model, problem: PlacementProblem, two_cpu_core: ov.Core, fault: str | None
) -> None:
    faults = {} if fault is None else {fault: "killed_running"}
    found = selection.select(
        model, problem, {"pipeline": Contiguous().place(problem)}, two_cpu_core, seconds=15,
        start_worker=starting(faults),
    )  # fmt: skip
    assert found.chosen in {"CPU_A", "CPU_B", "pipeline"} - {fault} and COPIES not in found.placements
    figures = found.measured[COPIES]
    if fault is not None:
        assert figures["failed"] and figures["throughput_ips"] is figures["times_chosen"] is None
        return
    assert figures["failed"] is None and figures["submodels"] is None
    low, high = figures["times_chosen_ci"]
    assert 0 < low <= figures["times_chosen"] <= high
    low, high = figures["times_best_single_ci"]
    assert low <= figures["times_best_single"] <= high


@pytest.mark.parametrize(
    ("measured", "told"),
    [
        (None, "is predicted 1.20x as good"),
        ({"failed": None, "times_chosen": 1.1, "times_chosen_ci": [1.05, 1.15]}, "was measured 1.10x (1.05 to 1.15)"),
        ({"failed": None, "times_chosen": 1.1, "times_chosen_ci": [0.95, 1.3]}, ""),
        ({"failed": "no memory", "times_chosen": None, "times_chosen_ci": None}, ""),
    ],
)
def test_a_line_says_where_they_are_better(measured: dict[str, Any] | None, told: str) -> None:
    figures = {"throughput_ips": 120.0, "memory_bytes": {"GPU": 1 << 20, "NPU": 0, "CPU": 2 << 20}}
    placement = Placement(
        devices=("GPU", "NPU", "CPU"),
        affinity={"a": "GPU"},
        objective="throughput",
        predicted={"throughput_ips": 100.0},
        measured=None if measured is None else {COPIES: measured},
        baselines={COPIES: figures},
    )
    line = copies(placement)
    assert bool(line) == bool(told) and told in line and "\n" not in line
    if told:
        assert "1 MiB on GPU, 2 MiB on CPU" in line and "AUTO:GPU,CPU" in line
    assert copies(replace(placement, predicted={"throughput_ips": 119.0}, measured=None)) == ""
