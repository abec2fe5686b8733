"""A copy of the whole model on each device: predicted, measured beside the choice, told, and never chosen."""

from __future__ import annotations

import gc
import itertools
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

import ov_hsdag
from ov_hsdag.cli.placed import copies, notes
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring.runner import ConcurrentTrials, Copies, LoadMeter, Runner
from ov_hsdag.model.inputs import timed_inputs
from ov_hsdag.model.placement import Placement
from ov_hsdag.placers.contiguous import Contiguous
from ov_hsdag.placing import selection
from ov_hsdag.placing.rivals import contenders
from ov_hsdag.problem.copies import COPIES, copies_summary, copy_devices
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.utils.errors import UserError
from research.zoo.catalog import ZOO
from tests.conftest import GENEROUS
from tests.decoders import stateful_decoder
from tests.graphs import only_forty
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
    fakes: list[Any] = [SimpleNamespace(phases=[trial], meter=LoadMeter([])) for trial in trials]
    return Copies(fakes, timed_inputs(ZOO["squeezenet"].build()))


def all_started(log: list[str], _: ConcurrentTrials) -> bool:
    return {"one started", "two started"} <= set(log)


def test_all_start_together_and_none_ends_before_all_have_finished() -> None:
    log: list[str] = []
    one, two = Trial("one", log, all_started), Trial("two", log, lambda log, _: "one finished" in log)
    assert within(60, lambda: copies_of(one, two).rate(1.0)) == pytest.approx(2.0)
    assert set(log[:2]) == {"one started", "two started"} and log[2:4] == ["one finished", "two finished"]


def test_what_other_programs_take_is_known_of_each_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the threads of one device wait is no other's."""
    both = copies_of(*(Trial(name, [], lambda *_: True) for name in ("one", "two")))
    waited = itertools.count(0, 10**9)
    monkeypatch.setattr("ov_hsdag.measuring.runner.waiting_ns", lambda thread: next(waited))
    both._runners[1].meter = LoadMeter([0])
    assert within(60, lambda: both.rate(1.0)) == pytest.approx(2.0)
    assert both.load is not None and both.load.rates == (1.0, 1.0)
    assert both.load.waiting[0] == 0 < both.load.waiting[1]
    within(60, lambda: both.rate(1.0, alone=False))
    assert both.load is None, "beside other trials it would be theirs"


@pytest.mark.parametrize("broken", [FailsFirst, FailsLater])
def test_a_copy_that_fails_ends_the_others(broken: type[Trial]) -> None:
    """One of them has finished by then, the other finishes after that."""
    log: list[str] = []
    one, two = Trial("one", log, all_started), Trial("two", log, lambda _, trials: not trials.unfinished)
    with pytest.raises(RuntimeError, match="out of memory"):
        within(60, lambda: copies_of(one, broken("broken", log, all_started), two).rate(1.0))


@pytest.mark.slow
@pytest.mark.usefixtures("quiet_machine")
@pytest.mark.parametrize("fault", [None, COPIES, "CPU_B"])
def test_they_are_measured_against_the_chosen_one(
    model: ov.Model, problem: PlacementProblem, two_cpu_core: ov.Core, fault: str | None
) -> None:
    faults = {} if fault is None else {fault: "killed_running"}
    found = selection.select(
        model, problem, {"pipeline": Contiguous().place(problem)}, two_cpu_core, seconds=GENEROUS,
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
    assert bool(line) == bool(told) and told in line
    if told:
        assert "1 MiB on GPU, 2 MiB on CPU" in line
        assert 'device "AUTO:GPU,CPU" with PERFORMANCE_HINT CUMULATIVE_THROUGHPUT, or in Python:' in line
        assert notes(placement, ["costs: built-in"])[0] == line
    assert copies(replace(placement, predicted={"throughput_ips": 119.0}, measured=None)) == ""


def device_of(request: ov.InferRequest) -> str:
    (name,) = request.get_compiled_model().get_property("EXECUTION_DEVICES")
    return str(name)


def test_models_with_states_are_shown_no_program_and_refused(two_cpu_core: ov.Core) -> None:
    figures = {"throughput_ips": 130.0, "memory_bytes": {"CPU_A": 1 << 20, "CPU_B": 1 << 20}}
    placement = Placement(
        DEVICES.names, {"x": "CPU_A"}, "throughput", {"throughput_ips": 100.0}, baselines={COPIES: figures}
    )
    assert "ov_hsdag.Copies" in "\n".join(notes(placement))
    (line,) = (line for line in notes(placement, stateful=True) if line.startswith("copies:"))
    assert line.endswith("run each conversation in an InferRequest of its own, on one device")
    assert not {"ov_hsdag.Copies", "AUTO"} & set(line.split())
    compiled = [two_cpu_core.compile_model(stateful_decoder(1), name) for name in DEVICES.names]
    with pytest.raises(UserError, match="this model keeps states from one request to the next"):
        ov_hsdag.Copies(compiled)


def test_the_lines_of_python_run_on_all_devices(model: ov.Model, two_cpu_core: ov.Core, tmp_path: Path) -> None:
    path = tmp_path / "model.xml"
    ov.save_model(model, path, compress_to_fp16=False)
    x = np.random.default_rng(0).standard_normal((40, *model.input().shape), np.float32)
    placement = Placement(
        devices=DEVICES.names,
        affinity={"a": "CPU_A"},
        objective="throughput",
        predicted={"throughput_ips": 100.0},
        baselines={COPIES: {"throughput_ips": 200.0, "memory_bytes": dict.fromkeys(DEVICES.names, 1 << 20)}},
    )
    told, *lines = copies(placement).splitlines()
    assert len(lines) == 5 and "AUTO" not in told
    ran: dict[int, tuple[str, NDArray[Any]]] = {}
    code = "\n".join(line.removeprefix("    ") for line in lines)
    code = code.replace("print(number, request.results)", "keep(number, request)")

    def keep(number: int, request: ov.InferRequest) -> None:
        ran[number] = device_of(request), np.array(request.results[0])

    exec(code, {"openvino": ov, "ov_hsdag": ov_hsdag, "model": path, "requests": x, "keep": keep})
    expected = two_cpu_core.compile_model(model, "CPU_A")
    assert sorted(ran) == list(range(40)) and {device for device, _ in ran.values()} == set(DEVICES.names)
    for number, (_, output) in ran.items():
        np.testing.assert_allclose(output, expected(x[number])[0], rtol=1e-4, atol=1e-5)


def test_the_device_that_is_free_gets_the_next_request(model: ov.Model, two_cpu_core: ov.Core) -> None:
    queue = ov_hsdag.Copies([two_cpu_core.compile_model(model, name) for name in DEVICES.names], requests=1)
    others_done, ran = threading.Event(), Counter[str]()

    def held(request: ov.InferRequest, number: int) -> None:
        ran[device_of(request)] += 1
        if device_of(request) == "CPU_A":
            assert others_done.wait(60)
        elif number == 9:
            others_done.set()

    queue.set_callback(held)
    x = np.zeros(model.input().shape, np.float32)
    within(60, lambda: [queue.start_async(x, number) for number in range(10)] and queue.wait_all())
    assert len(queue) == 2 and ran == {"CPU_A": 1, "CPU_B": 9}


def test_an_inference_that_fails_is_an_exception_and_the_others_go_on(two_cpu_core: ov.Core) -> None:
    queue = ov_hsdag.Copies([two_cpu_core.compile_model(only_forty(), name) for name in DEVICES.names])
    ran: list[int] = []
    queue.set_callback(lambda request, number: ran.append(number))
    raised = False
    for number, size in enumerate((40, 39, 80)):  # of 39 nothing can be made
        try:
            queue.start_async(np.zeros(size, np.float32), number)
        except RuntimeError:  # it has failed by now: what was to start has not
            raised = True
            queue.start_async(np.zeros(size, np.float32), number)
    if not raised:
        with pytest.raises(RuntimeError):
            within(60, queue.wait_all)
    within(60, queue.wait_all)
    with pytest.raises((RuntimeError, ValueError, TypeError)):
        queue.start_async({"no such input": np.zeros(40, np.float32)})
    for number in range(3, 20):  # no request is lost
        within(60, lambda number=number: queue.start_async(np.zeros(40, np.float32), number))
    queue.wait_all()
    assert sorted(ran) == [0, *range(2, 20)]
    queue.set_callback(lambda request, number: 1 / 0)
    queue.start_async(np.zeros(40, np.float32))
    with pytest.raises(ZeroDivisionError):
        queue.wait_all()
    with pytest.raises(UserError):
        ov_hsdag.Copies([])


def test_what_ran_is_freed_at_once(two_cpu_core: ov.Core) -> None:
    """A worker frees one model before it compiles the next."""
    model = ZOO["squeezenet"].build()
    compiled, inputs = two_cpu_core.compile_model(model, "CPU_A"), timed_inputs(model)
    runner = Runner(compiled, inputs, "throughput", 2)
    known = weakref.ref(runner)
    gc.disable()
    try:
        assert runner.rate(0.05) > 0
        del runner
        assert known() is None
    finally:
        gc.enable()
