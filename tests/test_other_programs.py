"""Trials beside other programs: what these took is given back, by one rule for all, and intervals know of its error."""

from __future__ import annotations

import dataclasses
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from ov_hsdag.devices import cgroups
from ov_hsdag.devices.cpu import processor_seconds
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring import choice
from ov_hsdag.measuring.comparison import Comparison
from ov_hsdag.measuring.other_programs import corrections
from ov_hsdag.measuring.process import Candidate, Worker, WorkerError, WorkerPool
from ov_hsdag.measuring.runner import TrialLoad, undisturbed, waiting_ns
from ov_hsdag.model.inputs import timed_inputs
from tests.simulated_machine import CrowdedHost, FakeWorker, Machine
from tests.test_comparison import compared, tiny_model

DEVICES = DeviceSet(("CPU_A", "CPU_B"))
CELLS = [(cores, beside) for cores in (1, 2) for beside in (0, 1, 2)]


def load(others: float = 0.0, waiting: float = 0.5, own: float = 0.65, cores: int = 2) -> TrialLoad:
    return TrialLoad((300.0,), (waiting,), (0.3,), own, others, cores, 0.1)


def test_a_trial_gets_back_what_its_threads_waited_for_others() -> None:
    assert undisturbed(100, lost=0.5, others=0.0, own=1.9) == 100  # they waited for each other
    assert undisturbed(100, lost=0.5, others=1.0, own=1.0) == 200
    assert undisturbed(100, lost=0.99, others=1.0, own=0.1) == 400
    # Of two cores that four submodels and another program share, each of the five has 0.4.
    assert undisturbed(100, lost=0.6, others=0.4, own=1.6) == 125


def test_two_threads_on_one_core_wait_for_each_other() -> None:
    """However much others seem to use: they cannot have more than the core, which is all that is usable."""
    for others in (0.0, 0.02, 0.3, 1.0):
        assert undisturbed(100, lost=0.5, others=others, own=1.0, cores=1) == 100
        assert undisturbed(100, lost=0.7, others=others, own=0.8, cores=1) <= 125.1


def test_a_thread_that_hardly_rests_can_do_little_more() -> None:
    assert undisturbed(100, lost=0.4, others=1.0, own=1.0, working=0.8) == 125


def test_the_correction_is_continuous_in_what_others_use() -> None:
    """A hundredth of a core changes a rate by about as much."""
    for waiting in (0.0, 0.1, 0.33, 0.6, 0.9):
        rates = [undisturbed(300, waiting, others / 100, 0.65) for others in range(201)]
        assert np.diff(np.log(rates)).max() < 0.02 and np.diff(rates).min() >= 0
    assert undisturbed(300, 0.33, 0.31, 0.65) < 1.1 * undisturbed(300, 0.33, 0.29, 0.65)


def test_a_candidate_and_its_rival_get_the_same_correction() -> None:
    """What other programs use is known to a tenth of a core of one trial, and is one number for a round."""
    found = corrections({"split": load(0.29), "rival": load(0.31), "third": load(0.0)})
    assert len(set(found.values())) == 1 and found["split"] == pytest.approx(math.log(0.96 / 0.65))
    assert corrections({}) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("pair", "work"), [("equal", (1.0,)), ("slower", (1.2,)), ("split", (0.52, 0.5))])
def test_intervals_hold_the_truth_beside_busy_processes(pair: str, work: tuple[float, ...]) -> None:
    """Of equal candidates, of a device that is 20% slower, and of a split over both devices."""
    shares = []
    for cores, beside in CELLS:
        held, widths = [], []
        for seed in range(50):
            host = CrowdedHost(seed, cores, beside, {"A": (1.0,), "other": work})
            rounds = [host.round(choice.in_order(("A", "other"), number)) for number in range(25)]
            ratio = choice.infer(rounds).ratio("other", "A")
            held.append(ratio.low <= host.true_ratio("other", "A") <= ratio.high)
            widths.append(math.sqrt(ratio.high / ratio.low) - 1)
        assert np.mean(held) >= 0.92, (cores, beside)
        # A split that takes both cores is corrected by a factor, where a device alone hardly is.
        assert np.median(widths) < (0.15 if pair == "split" and beside else 0.09)
        shares.append(np.mean(held))
    assert np.mean(shares) >= 0.95


def test_on_one_core_no_split_and_no_equal_device_seems_faster() -> None:
    """Twenty placings with four processes beside, which come and go from round to round."""
    for seed in range(20):
        random = np.random.default_rng(seed)
        host = CrowdedHost(seed, 1, 0, {"CPU_A": (1.0,), "CPU_B": (1.0,), "split": (0.5, 0.5)})
        rounds = []
        for number in range(25):
            host.beside = int(random.integers(0, 5))
            rounds.append(host.round(choice.in_order([*host.work], number)))
        known = choice.infer(rounds)
        assert known.ratio("CPU_B", "CPU_A").low < 1.05 and known.ratio("CPU_B", "CPU_A").high > 0.95
        assert known.ratio("split", "CPU_A").low < 1.05


def test_the_error_of_corrections_does_not_end_with_more_trials() -> None:
    """Of candidates that are corrected differently; and trials go on only for what they can tell."""
    rounds = [[choice.Trial("A", 1.0), choice.Trial("split", 1.8, 0.6)]] * 300
    corrected, plain = choice.infer(rounds), choice.infer([[(name, rate) for name, rate, _ in one] for one in rounds])
    wide, narrow = (one.ratio("split", "A") for one in (corrected, plain))
    assert wide.high / wide.low > 1.2 > 1.1 > narrow.high / narrow.low
    names = ("A", "split")
    assert corrected.regret("split", names) == pytest.approx(plain.regret("split", names), abs=1e-3)
    near = [[choice.Trial("A", 1.0), choice.Trial("split", 1.001, 0.6)]] * 300
    assert choice.infer(near).regret("A", names) < choice.REGRET


def test_corrections_that_vary_tell_how_far_they_hold() -> None:
    """Rates that were given back a tenth too much whenever others ran."""
    random = np.random.default_rng(0)
    rounds = []
    for _ in range(60):
        correction = random.uniform(0.0, 0.7)
        noise = random.normal(0, 0.02, 2)
        rounds.append(
            [
                choice.Trial("A", math.exp(noise[0])),
                choice.Trial("B", math.exp(0.15 * correction + noise[1]), correction),
            ]
        )
    ratio = choice.infer(rounds).ratio("B", "A")
    assert abs(math.log(ratio.median)) < 0.03 and ratio.low < 1 < ratio.high


class Beside(Machine):
    """Candidates with half of a core each, and another program with the other half."""

    def start(self, folder: Path, objective: str, name: str) -> Worker:
        return Loaded(self, name)


class Loaded(FakeWorker):
    def rate(self, seconds: float, limit: float, alone: bool = True) -> float:
        rate = super().rate(seconds, limit, alone)
        self.rates = {"": rate}
        self.load = dataclasses.replace(load(0.5, own=0.5, cores=1), rates=(rate,))
        return rate


def test_rounds_have_corrected_rates_and_their_corrections(core: ov.Core) -> None:
    machine = Beside({"CPU_A": 1.0, "CPU_B": 2.0})
    with compared(core, machine) as found:
        rounds = found.trials(rounds=2, seconds=0.0)
        assert all(choice.Trial(*trial).correction == pytest.approx(math.log(2)) for one in rounds for trial in one)
        first = choice.rates_of(rounds[0])
        assert first["CPU_A"] == pytest.approx(2.0, rel=0.1) and first["CPU_B"] == pytest.approx(4.0, rel=0.1)
        assert found.phase_rates["CPU_A"][""] == [choice.rates_of(one)["CPU_A"] for one in rounds]


@pytest.mark.parametrize("answer", [{"seconds": 0.0}, {"rates": [0.0]}, {"own": "none"}, {"others": math.nan}])
def test_an_answer_that_tells_no_load_is_the_workers_failure(
    monkeypatch: pytest.MonkeyPatch, answer: Mapping[str, Any]
) -> None:
    damaged = dataclasses.asdict(load()) | answer
    monkeypatch.setattr(Worker, "_ask", lambda *_: {"rate": 1.0, "rates": {}, "load": damaged})
    model = tiny_model()
    with WorkerPool(model, timed_inputs(model), "throughput") as pool:
        worker = pool.start()
        with pytest.raises(WorkerError, match="damaged"):
            worker.rate(0.1, 60)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not count what threads wait")
def test_other_programs_are_told_from_our_own_threads() -> None:
    """Two that count on one core, each with half of it."""
    cores, thread = os.sched_getaffinity(0), threading.get_native_id()
    program = "import os\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nprint(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None and other.stdout.readline()
            os.sched_setaffinity(thread, {min(cores)})
            begin, used, waited = time.process_time(), processor_seconds(cores), waiting_ns(thread)
            while time.process_time() < begin + 0.3:
                pass
            assert waiting_ns(thread) - waited > 0.05e9
            others = processor_seconds(cores) - used - (time.process_time() - begin)
            assert others > 0.05 or cgroups.cpu_limit() < len(cores)
        finally:
            os.sched_setaffinity(thread, cores)
            other.kill()


def test_under_a_quota_what_others_use_is_none_of_our_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "cpu_limit", lambda: 0.5)
    assert processor_seconds({0}) == 0


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not count what threads wait")
def test_trials_of_a_real_model_tell_what_the_cores_did(two_cpu_core: ov.Core) -> None:
    model = tiny_model()
    with WorkerPool(model, timed_inputs(model), "throughput") as pool:
        worker = pool.start()
        worker.compile(Candidate("CPU_A"), 60)
        worker.rate(0.1, 60)
        of_trial = worker.load
        assert of_trial is not None and of_trial.seconds > 0 and of_trial.own > 0
        assert 0 <= of_trial.working[0] <= 1.01 and of_trial.cores == len(os.sched_getaffinity(0))
        worker.rate(0.1, 60, False)
        assert worker.load is not of_trial, "what other trials took would seem other programs'"
    with Comparison(model, DEVICES, {"CPU_A": Candidate("CPU_A")}, "latency", two_cpu_core) as comparison:
        assert not any(choice.Trial(*trial).correction for one in comparison.trials(rounds=1) for trial in one)
