"""A copy of the whole model on each device: predicted, measured beside the choice, told, and never chosen."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import openvino as ov
import pytest

from ov_hsdag.cli.placed import copies
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring import selection
from ov_hsdag.measuring.rivals import contenders
from ov_hsdag.measuring.runner import Copies, Runner
from ov_hsdag.model.inputs import timed_inputs
from ov_hsdag.model.placement import Placement
from ov_hsdag.placers.contiguous import Contiguous
from ov_hsdag.problem.copies import COPIES, copies_summary, copy_devices
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.problem.problem import PlacementProblem
from research.zoo.catalog import ZOO
from tests.worker_faults import starting

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
    for own, other in zip(both.outputs(), runners[1].outputs(), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-5)


class Trial:
    """Of a copy that takes so long for what it needs, and counts how often it goes on for the others."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.more = seconds, 0

    def throughput(self, seconds: float, crowd: Any) -> float:
        crowd.meet()
        time.sleep(self.seconds)
        crowd.leave()
        while crowd.present:
            self.more += 1
            time.sleep(0.01)
        return 1.0 / self.seconds


class Broken(Trial):
    def throughput(self, seconds: float, crowd: Any) -> float:
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


def test_the_fast_one_goes_on_while_the_slow_one_needs_its_company() -> None:
    fast, slow = Trial(0.02), Trial(0.2)
    assert copies_of(fast, slow).rate(1.0) == pytest.approx(1 / 0.02 + 1 / 0.2)
    assert fast.more > 5 > slow.more


def test_a_copy_that_fails_ends_the_others() -> None:
    with pytest.raises(RuntimeError, match="out of memory"):
        copies_of(Trial(0.02), Broken(0.0), Trial(0.02)).rate(1.0)


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
