"""What a machine takes away while ov-hsdag works (disks, folders, permissions, processes, time) ends in one line."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

import ov_hsdag
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring.comparison import Comparison, measurements
from ov_hsdag.measuring.process import Candidate, WorkerError, WorkerPool
from ov_hsdag.model.inputs import timed_inputs
from ov_hsdag.model.normalize import normalize
from ov_hsdag.storage import files
from ov_hsdag.utils.errors import RunError, UserError
from ov_hsdag.utils.lazy import opset13 as ops
from tests.commands import run
from tests.conftest import Children
from tests.graphs import convolutions

PAIR = DeviceSet(("CPU_A", "CPU_B"))


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """No file of this process takes more bytes, as on a full disk: it is told in the same places."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def prepared() -> ov.Model:
    model = convolutions()
    normalize(model)
    return model


# Disks


@pytest.mark.parametrize("size", [0, 4096, 40_000, 100_000])
def test_a_model_that_the_disk_does_not_take(tmp_path: Path, size: int) -> None:
    model = convolutions()
    files.save_model_atomically(model, tmp_path / "other.xml", compress_to_fp16=False)
    assert (tmp_path / "other.bin").stat().st_size > 100_000
    (tmp_path / "other.xml").rename(tmp_path / "model.xml")
    (tmp_path / "other.bin").rename(tmp_path / "model.bin")
    before = [(path.name, path.read_bytes()) for path in sorted(tmp_path.iterdir())]
    changed = convolutions(channels=40)
    with (
        files_of_at_most(size),
        pytest.raises(UserError, match=r"^cannot write '.*model\.xml': File too large; choose"),
    ):
        files.save_model_atomically(changed, tmp_path / "model.xml", compress_to_fp16=False)
    assert [(path.name, path.read_bytes()) for path in sorted(tmp_path.iterdir())] == before


def test_a_disk_with_room_for_a_part_of_the_weights_is_full(tmp_path: Path) -> None:
    """OpenVINO removes the part that it could write, and says basic_ios::clear."""
    x = ops.parameter([1, 1024], np.float32)
    weights = np.arange(1 << 21, dtype=np.float32).reshape(2, 1024, 1024)
    large = ov.Model([ops.matmul(ops.matmul(x, weights[0], False, False), weights[1], False, False)], [x])
    with files_of_at_most(5 << 20), pytest.raises(UserError, match=r"cannot write '.*m\.xml': File too large"):
        files.save_model_atomically(large, tmp_path / "m.xml", compress_to_fp16=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_commands_on_a_full_disk_leave_what_was_there(tmp_path: Path) -> None:
    model = tmp_path / "model.xml"
    ov.save_model(convolutions(), model, compress_to_fp16=False)
    placed = tmp_path / "placed.xml"
    assert run("place", model, "--device", PAIR.hetero, "--no-measure", "--output", placed).returncode == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000));"
    code = f"{full} from ov_hsdag.cli import main; main()"
    for arguments in (
        ("place", model, "--device", PAIR.hetero, "--no-measure", "--output", placed),
        ("strip", placed, "--output", tmp_path / "stripped.xml"),
        ("report", placed, "--output", tmp_path / "report.html"),
    ):
        done = run(*arguments, code=code)
        assert done.returncode == 2, (arguments, done.stderr)
        (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert line == f"error: cannot write '{arguments[-1]}': File too large; choose another output"
        assert "Traceback" not in done.stderr
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.filterwarnings("ignore:there was no time")
def test_a_full_temporary_folder_costs_the_measuring(core: ov.Core, temporary: Path) -> None:
    model = prepared()
    for size in (0, 40_000):
        with (
            files_of_at_most(size),
            pytest.raises(RunError, match=r"^cannot write the model for measuring: .*File too large$"),
        ):
            WorkerPool(model, timed_inputs(model), "latency")
        assert not list(temporary.iterdir())
    with files_of_at_most(0), pytest.warns(UserWarning, match="nothing could be measured, .* chosen by prediction"):
        placement = ov_hsdag.place(convolutions(), PAIR.hetero, core=core, measure=True, measure_seconds=2)
    assert placement.used() and not placement.measured


def test_outputs_that_the_disk_does_not_take_cost_their_candidate(core: ov.Core, temporary: Path) -> None:
    model = prepared()
    with WorkerPool(model, timed_inputs(model), "latency") as pool:
        with files_of_at_most(500):  # of the worker as well
            worker = pool.start()
            with pytest.raises(WorkerError, match=r"requested and 0 written|File too large"):
                worker.compile(Candidate("CPU_A"), 60)
        later = pool.start()
        assert len(later.compile(Candidate("CPU_A"), 60)) == 1 and later.rate(0.05, 60) > 0


# Folders and permissions


def test_a_folder_that_is_removed_while_it_is_used(core: ov.Core, temporary: Path) -> None:
    """As cleaners of temporary folders do: what is compiled runs on, what is yet to begin fails in one line."""
    model = prepared()
    affinity = dict.fromkeys((node.get_friendly_name() for node in model.get_ops()), "CPU_A")
    with WorkerPool(model, timed_inputs(model), "latency") as pool:
        first, second = pool.start(), pool.start()
        first.compile(Candidate("CPU_A"), 60)
        second.compile(Candidate("CPU_A"), 60)
        shutil.rmtree(pool.folder)
        assert first.rate(0.05, 60) > 0
        with pytest.raises(WorkerError, match="No such file or directory"):
            first.compile(Candidate.placed(PAIR, affinity), 60)
        with pytest.raises(RunError, match=r"cannot start a process for measuring: .*No such file"):
            pool.start()


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that everybody may write to; root gives up its rights meanwhile."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o777)
        privileged = os.geteuid() == 0
        if privileged:
            os.seteuid(65534)
        try:
            yield Path(folder)
        finally:
            if privileged:
                os.seteuid(0)
            os.chmod(folder, 0o755)


def test_permissions_that_are_lost_on_the_way(shared: Path) -> None:
    """The output's folder may be written to when a command begins, and not when it writes."""
    folder = shared / "own"
    folder.mkdir()
    files.check_model_output(folder / "model.xml")
    files.check_writable(folder / "report.html")
    folder.chmod(0o555)
    with pytest.raises(UserError, match=r"^cannot write '.*model\.xml': Permission denied; choose another output$"):
        files.save_model_atomically(convolutions(), folder / "model.xml")
    with pytest.raises(UserError, match="Permission denied"):
        files.write_text(folder / "report.html", "")
    assert not list(folder.iterdir())


# Processes


def test_a_thread_that_the_system_does_not_give(
    core: ov.Core, temporary: Path, children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = prepared()
    before = len(os.listdir("/proc/self/fd"))

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with WorkerPool(model, timed_inputs(model), "latency") as pool:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RunError, match=r"cannot start a process for measuring: .*can't start new thread"):
                pool.start()
        assert not children()
        assert len(os.listdir("/proc/self/fd")) == before


def test_descriptors_that_the_system_does_not_give(core: ov.Core, temporary: Path, children: Children) -> None:
    model = prepared()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with WorkerPool(model, timed_inputs(model), "latency") as pool:
        before, taken = len(os.listdir("/proc/self/fd")), []
        resource.setrlimit(resource.RLIMIT_NOFILE, (before + 20, hard))
        try:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.dup(0))
            for _ in range(5):
                with pytest.raises(RunError, match=r"cannot start a process for measuring: .*Too many open files"):
                    pool.start()
                os.close(taken.pop())  # one more the next time
        finally:
            for one in taken:
                os.close(one)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert len(os.listdir("/proc/self/fd")) == before and not children()
        assert pool.start().alive


@pytest.mark.slow
def test_workers_that_are_killed_at_random_cost_their_candidates(
    core: ov.Core, temporary: Path, children: Children
) -> None:
    model = prepared()
    names = [node.get_friendly_name() for node in model.get_ops()]
    placed = Candidate.placed(PAIR, dict.fromkeys(names, "CPU_B"))
    candidates = {"CPU_A": Candidate("CPU_A"), "CPU_B": Candidate("CPU_B")} | {f"p{n}": placed for n in range(4)}
    draw, ended, killed = random.Random(3), threading.Event(), 0

    def killing() -> None:
        nonlocal killed
        while killed < 3 and not ended.wait(draw.uniform(0.2, 0.8)):
            own = sorted(children())
            if own:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(draw.choice(own), 9)
                    killed += 1

    killer = threading.Thread(target=killing)
    killer.start()
    try:
        with Comparison(model, PAIR, candidates, "latency", core, simple=PAIR.names) as comparison:
            found = measurements(candidates, comparison, comparison.trials(rounds=8, seconds=0.05), "latency")
    finally:
        ended.set()
        killer.join()
    failed = {name: one.error for name, one in found.items() if one.failed}
    assert killed and len(failed) <= killed
    assert all("SIGKILL" in error and "\n" not in error for error in failed.values()), failed


# Time


def test_a_clock_that_is_changed_changes_nothing(
    core: ov.Core, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time limits are of a clock that only runs forward; folders of processes that run stay, however old they look."""
    model, now, draw = prepared(), time.time, random.Random(1)
    monkeypatch.setattr(time, "time", lambda: now() + draw.choice((-1, 1)) * draw.uniform(0, 3e8))
    candidates = {name: Candidate(name) for name in PAIR}
    with (
        WorkerPool(model, timed_inputs(model), "latency") as older,
        Comparison(model, PAIR, candidates, "latency", core, simple=PAIR.names) as comparison,
    ):
        found = measurements(candidates, comparison, comparison.trials(rounds=3, seconds=0.05), "latency")
        assert older.folder.exists()
    assert not any(one.failed for one in found.values())
