"""Comparing candidates that do not all have room in memory: none of them fails for that."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from ov_hsdag.devices import discovery
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring.choice import Round, infer, rates_of
from ov_hsdag.measuring.co_running import CoRunningModels
from ov_hsdag.measuring.comparison import Comparison, MemoryBudget, measurements
from ov_hsdag.measuring.process import Candidate, Worker, WorkerError, WorkerTimeout
from ov_hsdag.placers.contiguous import Contiguous
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.utils.failures import FailureKind
from ov_hsdag.utils.lazy import opset13 as op
from research.zoo.catalog import ZOO
from tests.simulated_machine import FakeWorker, Machine

PAIR = DeviceSet(("CPU_A", "CPU_B"))
GIB = 2**30


SPEEDS = {"CPU_A": 10.0, "CPU_B": 30.0, "hetero": 11.0, "mincut": 20.0, "pipeline": 45.0, "hsdag": 60.0, "hedge": 50.0}
SIMPLE = ("CPU_A", "CPU_B", "hetero")


def tiny_model() -> ov.Model:
    x = op.parameter([1, 4], np.float32, name="x")
    return ov.Model([op.result(op.relu(x, name="relu"))], [x], "tiny")


def co_running(models: int) -> CoRunningModels:
    """So many models that run with the first one; no worker reads them."""
    return CoRunningModels([tiny_model()] * models, [[]] * models, "no_such_module:factory", {})


def ran(rounds: Sequence[Round]) -> set[str]:
    return {name for one in rounds for name in rates_of(one)}


def compared(core: ov.Core, machine: Machine, **options: object) -> Comparison:
    candidates = {name: Candidate(name) if name in PAIR.names else Candidate(PAIR.hetero) for name in machine.speeds}
    return Comparison(
        tiny_model(), PAIR, candidates, "throughput", core, simple=SIMPLE, start_worker=machine.start, **options
    )  # type: ignore[arg-type]


@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_more_candidates_than_processes(core: ov.Core, most: int) -> None:
    machine = Machine(SPEEDS)
    started: list[Worker] = []

    def start(folder: Path, objective: str, name: str) -> Worker:
        if sum(one.alive for one in started) == most:
            raise OSError("Resource temporarily unavailable")
        started.append(FakeWorker(machine, name))
        return started[-1]

    machine.start = start  # type: ignore[method-assign]
    with compared(core, machine) as found:
        assert ran(found.trials(seconds=0.0)) == set(SPEEDS) and not found.failed


@pytest.mark.parametrize("room", [1, 2, 3, 4, 5, 100])
def test_no_room_for_all_is_nobodys_fault(core: ov.Core, room: int) -> None:
    machine = Machine(SPEEDS, room)
    with compared(core, machine) as found:
        rates = found.trials(seconds=0.0)
        assert not found.failed
        assert ran(rates) == set(SPEEDS) and machine.most <= room
        result = measurements(SPEEDS, found, rates, "throughput", "CPU_B")
        # The drift of 2% a trial bends a ratio a little where rounds are many.
        for name, speed in SPEEDS.items():
            assert result[name].ratio == pytest.approx(speed / 30, rel=0.1), (name, result[name])
        head_to_head = found.trials(("CPU_B", "hsdag"), 4, 0.0)
        assert ran(head_to_head) == {"CPU_B", "hsdag"} and not found.failed
    assert machine.resident == []


def test_where_there_is_room_each_is_compiled_once(core: ov.Core) -> None:
    machine = Machine(SPEEDS)
    with compared(core, machine) as found:
        assert machine.resident == list(SPEEDS)
        found.trials(seconds=0.0)
        assert machine.compiled == len(SPEEDS)
        assert found.compiled(SPEEDS) and machine.resident == list(SPEEDS)


def test_who_is_beaten_leaves_and_makes_room(core: ov.Core) -> None:
    machine = Machine(SPEEDS)
    with compared(core, machine) as found:
        rounds = found.trials(seconds=0.0, halving=True)
        count = Counter(name for one in rounds for name in rates_of(one))
        assert max(count[name] for name in SPEEDS if name != "hsdag") < 8
        assert machine.resident == ["hsdag"] and set(count) == set(SPEEDS)


def test_what_fails_alone_as_well_has_failed(core: ov.Core) -> None:
    machine = Machine(SPEEDS, broken=("pipeline", "CPU_A"))
    with compared(core, machine) as found:
        rates = found.trials(seconds=0.0)
        assert found.failed == {"CPU_A": "no kernel for this", "pipeline": "no kernel for this"}
        assert ran(rates) == set(SPEEDS) - set(found.failed)
        assert found.ready == [name for name in SPEEDS if name not in found.failed]
        # The first had no company; the other was tried again beside the best simple one, and alone.
        assert machine.compiled == len(SPEEDS) + 2


def test_one_batch_counts_where_the_first_candidate_failed(core: ov.Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for one when it began, the first does not compile, and then the others fit in together."""
    machine = Machine({"CPU_A": 10.0, "CPU_B": 30.0, "hsdag": 60.0}, broken=("CPU_A",))
    monkeypatch.setattr(MemoryBudget, "together", lambda self, names: names[:1])
    with compared(core, machine) as found:
        rates = found.trials(seconds=0.0)
        assert found.failed == {"CPU_A": "no kernel for this"}
        result = measurements(machine.speeds, found, rates, "throughput", "CPU_B")
        assert result["hsdag"].ratio == pytest.approx(2.0, rel=0.1), result


def test_memory_admits_before_anything_fails(core: ov.Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three candidates of 2 GiB, times what plugins need besides, go into 10 GiB; nobody is compiled in vain."""
    machine = Machine(SPEEDS, room=3)
    monkeypatch.setattr(discovery, "free_bytes", lambda core, name: int(10 * GIB - len(machine.resident) * 3.25 * GIB))
    needs = {name: {"CPU_A": GIB, "CPU_B": GIB} for name in SPEEDS}
    first = ["CPU_B", "hsdag"]
    with compared(core, machine, needs=needs, first=first) as found:
        assert machine.resident[:2] == first and machine.most == 2
        rates = found.trials(seconds=0.0)
        assert ran(rates) == set(SPEEDS) and not found.failed
        assert machine.most <= 3
    compiled = list[str]()

    class Logged(FakeWorker):
        def compile(self, candidate: Candidate, limit: float) -> list[np.ndarray]:
            compiled.append(self.name)
            return super().compile(candidate, limit)

    machine.start = lambda folder, objective, name: Logged(machine, name)  # type: ignore[method-assign]
    first = ["CPU_B", "hsdag", "hetero", "CPU_A"]  # what waits keeps this order
    with compared(core, machine, needs=needs, first=first) as found:
        found.trials(seconds=0.0)
        assert [*dict.fromkeys(compiled)][:4] == first


def test_room_counts_each_memory(core: ov.Core, monkeypatch: pytest.MonkeyPatch) -> None:
    free = {"CPU": 100 * GIB, "GPU": 8 * GIB}
    monkeypatch.setattr(discovery, "free_bytes", lambda core, name: free[name])
    needs = {"GPU": {"GPU": 4 * GIB}, "CPU": {"CPU": 4 * GIB}, "split": {"GPU": 2 * GIB, "CPU": 2 * GIB}}
    room = MemoryBudget(core, needs)
    assert room.together(["GPU", "CPU", "split"]) == ["GPU", "CPU"]
    assert room.fits("split", ["CPU"]) and not room.fits("split", ["GPU"])
    assert room.fits("GPU", []) and room.fits("unknown", ["GPU", "CPU"])
    free["CPU"] = GIB
    assert room.together(["CPU", "GPU"]) == ["CPU"] and not room.fits("CPU", [])
    room.most = 2
    assert not room.fits("unknown", ["GPU", "CPU"])
    free["CPU"] = 15 * GIB
    assert MemoryBudget(core, needs).together(["GPU", "CPU"]) == ["GPU", "CPU"]
    monkeypatch.setattr(discovery, "uses_host_memory", lambda core, name: True)  # an integrated GPU
    assert MemoryBudget(core, needs).together(["GPU", "CPU"]) == ["GPU", "CPU"]
    free["CPU"] = 13 * GIB
    assert MemoryBudget(core, needs).together(["GPU", "CPU"]) == ["GPU"]


def test_a_worker_that_linux_kills_for_memory_is_tried_again_alone(core: ov.Core) -> None:
    machine = Machine(SPEEDS)
    real = FakeWorker.rate
    killed: list[str] = []

    class Victim(FakeWorker):
        def rate(self, seconds: float, limit: float, alone: bool = True) -> float:
            if self.name == "hsdag" and not killed:
                killed.append(self.name)
                self.end()
                raise WorkerError("it is gone", FailureKind.KILLED)
            return real(self, seconds, limit)

    machine.start = lambda folder, objective, name: Victim(machine, name)  # type: ignore[method-assign]
    with compared(core, machine) as found:
        rates = found.trials(seconds=0.0)
        assert killed and not found.failed and ran(rates) == set(SPEEDS)


def test_a_trial_that_fails_beside_others_is_tried_again_alone(core: ov.Core) -> None:
    machine = Machine(SPEEDS)

    class Crowded(FakeWorker):
        def rate(self, seconds: float, limit: float, alone: bool = True) -> float:
            self.busy_us = [1.0]
            if self.name == "hsdag" and not alone and machine.broken:
                raise WorkerError("no answer within 10 s of running")
            return super().rate(seconds, limit)

    machine.start = lambda folder, objective, name: Crowded(machine, name)  # type: ignore[method-assign]
    with compared(core, machine) as found:
        assert found.busy_together(SPEEDS, 0.1) == {name: [1.0] for name in SPEEDS}
        machine.broken = ("hsdag",)
        assert found.busy_together(SPEEDS, 0.1) == {} and not found.compiled(SPEEDS)
        machine.broken = ()
        assert ran(found.trials(seconds=0.0)) == set(SPEEDS) and not found.failed
        machine.shortest_trial = 10.0
        found.evict("hsdag")
        assert ran(found.trials(["hsdag"], seconds=0.0)) == {"hsdag"}
        assert found.busy_together(SPEEDS, 0.1) == {}, "it would take too long"


def test_an_anchor_that_fails_later_leaves_what_it_was_compared_with(core: ov.Core) -> None:
    """CPU_B, the best simple candidate, dies for good in its 25th trial, in the third batch of two."""
    machine = Machine(SPEEDS, room=2)
    trials: list[str] = []

    class Dying(FakeWorker):
        def rate(self, seconds: float, limit: float, alone: bool = True) -> float:
            trials.append(self.name)
            if self.name == "CPU_B" and trials.count("CPU_B") >= 25:
                raise WorkerError("inference failed")
            return super().rate(seconds, limit)

    machine.start = lambda folder, objective, name: Dying(machine, name)  # type: ignore[method-assign]
    with compared(core, machine) as found:
        rates = found.trials(seconds=0.0)
        assert found.failed == {"CPU_B": "inference failed"}
        assert ran(rates) == set(SPEEDS)
        # The drift is not cancelled between batches any more.
        posterior = infer(rates)
        assert posterior.rate("hsdag") > posterior.rate("mincut") > posterior.rate("hetero")


def test_what_ran_has_not_failed_where_compiling_it_again_takes_too_long(core: ov.Core) -> None:
    machine = Machine(SPEEDS)

    class Slower(FakeWorker):
        def compile(self, candidate: Candidate, limit: float) -> list[np.ndarray]:
            if machine.compiled >= len(SPEEDS):
                raise WorkerTimeout(f"no answer within {limit:.0f} s of compiling")
            return super().compile(candidate, limit)

    machine.start = lambda folder, objective, name: Slower(machine, name)  # type: ignore[method-assign]
    with compared(core, machine, limit=60.0) as found:
        assert ran(found.trials(rounds=1)) == set(SPEEDS)
        found.evict("hsdag")
        assert ran(found.trials(["CPU_A", "hsdag"], rounds=1)) == {"CPU_A"}
        assert not found.failed and set(found.ready) == set(SPEEDS)


@pytest.mark.parametrize(
    ("limit", "models", "given", "told"),
    [
        (60.0, 1, 20.0, "there was no time left to compile it"),
        (60.0, 3, 30.0, "there was no time left to compile it"),
        (math.inf, 1, 120.0, "no answer within 120 s of compiling"),
        (math.inf, 3, 360.0, "no answer within 360 s of compiling"),
    ],
)
def test_who_compiles_longer_than_a_budget_allows_has_not_failed(
    core: ov.Core, limit: float, models: int, given: float, told: str
) -> None:
    """A single device of which that is so still has to be beaten. Models of an application compile one by one."""
    machine, limits = Machine(SPEEDS), list[float]()

    class Slow(FakeWorker):
        def compile(self, candidate: Candidate, limit: float) -> list[np.ndarray]:
            limits.append(limit)
            raise WorkerTimeout(f"no answer within {limit:.0f} s of compiling")

    machine.start = lambda folder, objective, name: Slow(machine, name)  # type: ignore[method-assign]
    others = co_running(models - 1) if models > 1 else None
    with compared(core, machine, limit=limit, co_running=others) as found:
        assert set(found.failed.values()) == {told} and max(limits) == pytest.approx(given, abs=1)


@pytest.mark.parametrize("seconds", [4.0, 20.0])
def test_where_trials_are_long_the_most_promising_are_measured(core: ov.Core, seconds: float) -> None:
    machine = Machine(SPEEDS)
    machine.shortest_trial = seconds
    with compared(core, machine, first=["CPU_B", "hsdag"], limit=15 * seconds) as found:
        found.trials(rounds=1)
        assert found.ready == ["CPU_B", "hsdag"]
        assert set(found.failed.values()) == {"there was no time left to measure it"}
        assert machine.compiled == 2


def test_no_trial_of_an_application_ends_too_late(core: ov.Core) -> None:
    machine = Machine(SPEEDS)
    machine.shortest_trial = 20.0
    with compared(core, machine, limit=15, co_running=co_running(0)) as found:
        assert not found.trials(rounds=1) and set(found.failed) == set(SPEEDS) and not machine.trials


@pytest.mark.slow
def test_candidates_of_a_model_that_memory_holds_twice_are_all_measured(core: ov.Core) -> None:
    """Real workers on a machine with room for two of them."""
    running: list[Worker] = []

    class Crowded(Worker):
        def compile(self, candidate: Candidate, limit: float) -> list[np.ndarray]:
            if sum(worker.alive and worker.compiled for worker in running if worker is not self) >= 2:
                raise WorkerError("Cannot allocate memory")
            running.append(self)
            return super().compile(candidate, limit)

    model = ZOO["squeezenet"].build()
    problem = build_problem(model, PAIR, objective="throughput", core=core)
    split = Contiguous().place(problem)
    placed = {"split": split, "mirrored": (1 - split).astype(np.uint8)}
    candidates = {name: Candidate(name) for name in PAIR} | {
        name: Candidate.placed(PAIR, problem.affinity(placement)) for name, placement in placed.items()
    }
    options = {"simple": PAIR.names, "start_worker": Crowded}
    with Comparison(model, PAIR, candidates, "throughput", core, **options) as found:  # type: ignore[arg-type]
        rates = found.trials(rounds=2, seconds=0.05)
        assert not found.failed and ran(rates) == set(candidates)
        assert found.submodels == {"CPU_A": 1, "CPU_B": 1, "split": 2, "mirrored": 2}
