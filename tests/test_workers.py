"""Worker processes: whatever happens to one costs its candidate and nothing else, and nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

import ov_hsdag
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring.comparison import Comparison, measurements
from ov_hsdag.measuring.measurer import Measurer
from ov_hsdag.measuring.process import Candidate, WorkerError, WorkerPool, WorkerTimeout
from ov_hsdag.model.inputs import timed_inputs
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.utils import child
from ov_hsdag.utils.errors import RunError
from research.zoo.catalog import ZOO
from tests.conftest import Children
from tests.worker_faults import starting, within

PAIR = DeviceSet(("CPU_A", "CPU_B"))

_LARGER = ("bert-dynamic", "mixture-of-experts-small")

# What is injected, and a pattern of the error.
FAULTS = {
    "killed_at_start": "ended by SIGKILL while starting",
    "killed_compiling": "ended by SIGKILL while compiling",
    "killed_running": "ended by SIGKILL while running",
    "hangs_compiling": "no answer within 1 s of compiling",
    "hangs_running": "no answer within 1 s of running",
    "stopped_running": "no answer within 1 s of running",
    "refuses_to_compile": "no kernel for this",
    "refuses_to_run": "no kernel for this",
    "out_of_memory": "failed to map segment|alloc|[Mm]emory",
    "ends_early": "ended with status 0 while running",
    "nan": "outputs are not finite",
    "wrong": "outputs differ from those of CPU_A by 0.5",
    "talks_garbage": "garbage while running",
    "answers_oddly": "None where a rate was asked for",
}


def prepared(name: str, core: ov.Core) -> ov.Model:
    model = ZOO[name].build()
    build_problem(model, PAIR, core=core)
    return model


def test_no_temporary_folder_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose file system is read-only."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/nowhere"])
    x = ops.parameter([1], np.float32)
    with pytest.raises(RunError, match=r"^measuring needs a temporary folder \(TMPDIR\): .*No usable temporary"):
        WorkerPool(ov.Model([ops.relu(x)], [x]), [], "latency")


@pytest.mark.slow
def test_faults_cost_their_candidates_and_nothing_else(core: ov.Core, temporary: Path) -> None:
    candidates = {"CPU_A": Candidate("CPU_A"), **{name: Candidate(PAIR.hetero) for name in FAULTS}}
    candidates["CPU_B"] = Candidate("CPU_B")
    with Comparison(
        prepared("squeezenet", core),
        PAIR,
        candidates,
        "latency",
        core,
        simple=PAIR.names,
        start_worker=starting({name: name for name in FAULTS}),
    ) as comparison:
        rates = comparison.trials(rounds=3, seconds=0.05)
        found = measurements(candidates, comparison, rates, "latency")
    assert list(found) == list(candidates)
    for name, told in FAULTS.items():
        assert found[name].failed and re.search(told, found[name].error), (name, found[name].error)
        assert "\n" not in found[name].error and found[name].ratio == 0
    for name in PAIR:
        assert not found[name].failed, found[name].error
        assert 1 <= len(found[name].rates) <= 3 and found[name].value > 0
    assert found["CPU_A"].ratio == 1


@pytest.mark.slow
def test_a_measurer_goes_on_after_its_workers_are_killed(core: ov.Core, temporary: Path, children: Children) -> None:
    """Of the two one belongs to the reference, which is no placement: it is compiled again, and costs none."""
    model = ZOO["squeezenet"].build()
    problem = build_problem(model, PAIR, core=core)
    measurer = Measurer(model, PAIR, "latency", core, reference="CPU_A", rounds=1, seconds=0.05)
    alone = problem.affinity(problem.single(1))
    assert not measurer.measure(alone).failed
    before = list(children())
    assert len(before) == 2 and not measurer.measure(problem.affinity(problem.single(0))).failed
    assert list(children()) == before
    for name, told in (("CPU_A", False), ("placement", True)):
        worker = measurer._comparison._workers[name]._process.pid
        os.kill(worker, signal.SIGKILL)
        assert ("SIGKILL" in measurer.measure(alone).error) == told
        assert not measurer.measure(alone).failed
        assert len(children()) == 2 and worker not in children()
    assert len(list(temporary.iterdir())) == 1
    del measurer
    assert not list(temporary.iterdir())


@pytest.mark.parametrize(
    "name", ["llama-stateful", "looped-cell", *(pytest.param(name, marks=pytest.mark.slow) for name in _LARGER)]
)
def test_a_model_goes_over_as_it_is(core: ov.Core, temporary: Path, name: str) -> None:
    """Names survive: a random placement is followed, and computes what the model does."""
    model = ZOO[name].build()
    problem = build_problem(model, PAIR, core=core)
    placement = problem.random(np.random.default_rng(0), 1)[0]
    inputs = timed_inputs(model)
    request = core.compile_model(model, "CPU_A").create_infer_request()
    request.infer(inputs[0].steps[0])
    with WorkerPool(model, inputs, "latency") as pool:
        worker = pool.start()
        outputs = worker.compile(Candidate.placed(PAIR, problem.affinity(placement)), 60)
        assert worker.submodels == problem.evaluate(placement).submodels[0]
        for port, output in enumerate(outputs):
            expected = request.get_output_tensor(port).data
            assert np.abs(output - expected).max() <= 1e-3 * max(np.abs(expected).max(), 1)
        assert worker.rate(0.05, 60) > 0


def test_a_worker_is_idle_between_its_trials(core: ov.Core, children: Children) -> None:
    model = prepared("squeezenet", core)
    with WorkerPool(model, timed_inputs(model), "throughput") as pool:
        worker = pool.start()
        worker.compile(Candidate("CPU_A"), 60)
        worker.rate(0.2, 60)
        (process_of_worker,) = children()

        def ticks() -> int:
            fields = Path(f"/proc/{process_of_worker}/stat").read_text().rpartition(")")[2].split()
            return int(fields[11]) + int(fields[12])

        # OpenVINO's threads look for work for a moment. What never rests uses a processor in each quarter of a second.
        before, end = -1, time.monotonic() + 60
        while (now := ticks()) != before:
            assert time.monotonic() < end, "it is never idle"
            before = now
            time.sleep(0.25)


def test_a_process_that_no_signal_ends_is_not_waited_for(core: ov.Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one in the uninterruptible sleep of a driver."""
    monkeypatch.setattr(child, "_GRACE", 0.1)
    model = prepared("lstm", core)
    with WorkerPool(model, timed_inputs(model), "latency", starting({"x": "hangs_compiling"})) as pool:
        worker = pool.start("x")
        with monkeypatch.context() as patch, pytest.raises(WorkerTimeout):
            patch.setattr(subprocess.Popen, "kill", lambda self: None)
            within(60, lambda: worker.compile(Candidate("CPU_A"), 0.1))


SCRIPT = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background inherit that it is ignored
import openvino as ov
from ov_hsdag.devices import virtual
from research.zoo.catalog import ZOO
from ov_hsdag.model.inputs import timed_inputs
from ov_hsdag.measuring.process import Candidate, WorkerPool
from tests.worker_faults import starting
model = ZOO["squeezenet"].build()
pool = WorkerPool(model, timed_inputs(model), "latency", starting({"slow": "hangs_compiling"}))
workers = [pool.start(), pool.start("slow")]
workers[0].compile(Candidate("CPU"), 60)
print(pool.folder, *(worker._process.pid for worker in workers), flush=True)
workers[1].compile(Candidate("CPU"), 600)
"""


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_of_a_parent_that_was_ended(number: signal.Signals) -> None:
    """One worker idle, one in the middle of compiling; the script, as users' are, has no `if __name__` guard."""
    root = str(Path(ov_hsdag.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
    script = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    assert script.stdout is not None
    folder, *pids = script.stdout.readline().split()
    assert Path(folder, "model.bin").exists() and all(runs(int(pid)) for pid in pids)
    script.send_signal(number)
    assert script.wait(120) != 0
    script.stdout.close()
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and (Path(folder).exists() or any(runs(int(pid)) for pid in pids)):
        time.sleep(0.05)
    assert not Path(folder).exists()
    assert not any(runs(int(pid)) for pid in pids)


def test_folders_of_processes_that_are_gone_are_removed(core: ov.Core, temporary: Path) -> None:
    model = prepared("lstm", core)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with WorkerPool(model, timed_inputs(model), "latency") as pool:
        old = pool.folder.with_name(pool.folder.name.replace(f"-{os.getpid()}-", f"-{gone.pid}-"))
        old.mkdir()
        for age, kept in ((60, {old}), (7200, set())):
            os.utime(old, (time.time() - age,) * 2)
            os.utime(pool.folder, (time.time() - age,) * 2)
            with WorkerPool(model, timed_inputs(model), "latency") as other:
                assert set(temporary.iterdir()) == {pool.folder, other.folder} | kept


def test_a_folder_that_cannot_be_written_is_an_error_in_one_line(core: ov.Core, temporary: Path) -> None:
    model = prepared("lstm", core)

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "savez", fail)
        with pytest.raises(RunError, match="No space left on device"):
            WorkerPool(model, timed_inputs(model), "latency")


def test_a_process_that_does_not_begin_is_no_worker(core: ov.Core) -> None:
    model = prepared("lstm", core)
    with (
        WorkerPool(model, timed_inputs(model), "latency", starting({"x": "no_such_fault"})) as pool,
        pytest.raises(WorkerError, match="no_such_fault"),
    ):
        pool.start("x").compile(Candidate("CPU_A"), 60)
