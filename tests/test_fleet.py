"""Machines of a fleet, and jobs on them, without Ray; test_ray.py has both with a cluster."""

from __future__ import annotations

import copy
import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openvino as ov
import pytest

from ov_hsdag.cli import remote
from ov_hsdag.fleet import cluster, node
from ov_hsdag.fleet import job_runner as job_runners
from ov_hsdag.fleet.cluster import Cluster, _Lost, _RemoteJob
from ov_hsdag.fleet.job_files import came_as, digest_of, safe
from ov_hsdag.fleet.job_runner import JobRunner
from ov_hsdag.fleet.machines import KIND, Machine, announcement, kinds, label, others, parse_on
from ov_hsdag.jobs.job import Inputs, Job, model_files_of
from ov_hsdag.utils.errors import RunError, UserError
from research.zoo.catalog import ZOO

# What Ray takes for the value and for the name of a label (Kubernetes' rules).
LABEL = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9_.-]{0,61}[a-zA-Z0-9])?")


def machine(host: str, openvino: str = "2026.4.1", memory: str = "a", **devices: str) -> Machine:
    named = {name.replace("_", "."): label(text) for name, text in devices.items()}
    kind = hashlib.sha256(f"{sorted(named.items())}{memory}".encode()).hexdigest()[:16]
    from ov_hsdag import __version__

    return Machine(host, host, kind, named, openvino, __version__)


FLEET = [
    machine("one", GPU="Intel(R) Arc(TM) A770 Graphics (dGPU)", CPU="Intel(R) Xeon(R) w5-2445"),
    machine("two", GPU="Intel(R) Arc(TM) A770 Graphics (dGPU)", CPU="Intel(R) Xeon(R) w5-2445"),
    machine("three", GPU="Intel(R) Arc(TM) B580 Graphics (dGPU)", CPU="Intel(R) Xeon(R) w5-2445"),
    machine("four", CPU="AMD EPYC 9B14"),
    machine("five", GPU_0="Intel(R) Arc(TM) B580 Graphics (dGPU)", CPU="AMD EPYC 9B14"),
]


def names(*on: str, devices: tuple[str, ...] = ("GPU", "CPU"), fleet: list[Machine] = FLEET) -> list[str]:
    return [" ".join(kind.devices.values()) for kind in kinds(fleet, devices, "2026.4.1", on)]


def test_machines_that_have_the_devices_by_kind() -> None:
    found = kinds(FLEET, ("GPU", "CPU"), "2026.4.1", ())
    assert [kind.machines for kind in found] == [2, 1, 1]
    assert names() == [
        "Intel-Arc-A770-Graphics-dGPU Intel-Xeon-w5-2445",
        "Intel-Arc-B580-Graphics-dGPU AMD-EPYC-9B14",
        "Intel-Arc-B580-Graphics-dGPU Intel-Xeon-w5-2445",
    ]
    assert len({kind.name for kind in found}) == 3


def test_words_of_a_name_choose_one_kind() -> None:
    assert names("GPU=Arc A770") == ["Intel-Arc-A770-Graphics-dGPU Intel-Xeon-w5-2445"]
    assert names("GPU=B580,CPU=amd", "GPU=arc a770") == [
        "Intel-Arc-B580-Graphics-dGPU AMD-EPYC-9B14",
        "Intel-Arc-A770-Graphics-dGPU Intel-Xeon-w5-2445",
    ]


@pytest.mark.parametrize(
    ("on", "told"),
    [
        ("GPU=A380", "no machine of the cluster is 'GPU=A380': there are GPU=Intel-Arc-A770"),
        ("GPU=B580", "several kinds of machines: say more"),
        ("NPU=AI", "no machine of the cluster is 'NPU=AI': there are others"),
    ],
)
def test_a_name_that_is_not_one_kind_is_refused(on: str, told: str) -> None:
    with pytest.raises(UserError, match=re.escape(told)):
        names(on)


def test_devices_that_no_machine_has() -> None:
    with pytest.raises(UserError, match="no machine of the cluster has NPU, CPU: there are CPU AMD-EPYC-9B14; "):
        names(devices=("NPU", "CPU"))
    with pytest.raises(UserError, match="none has started ov-hsdag worker"):
        names(fleet=[])


@pytest.mark.parametrize("text", ["", "GPU", "GPU=", "=A770", "GPU=A770,GPU=B580", "GPU=!?"])
def test_on_that_says_nothing(text: str) -> None:
    with pytest.raises(UserError, match="expected DEVICE=MODEL"):
        parse_on(text)


def test_other_versions_are_left_out_and_alone_refused() -> None:
    old = machine("old", openvino="2025.4.0", GPU="Intel(R) Arc(TM) A770 Graphics (dGPU)", CPU="AMD EPYC 9B14")
    assert names(fleet=[*FLEET, old]) == names()
    assert [one.host for one in others([*FLEET, old], ("GPU", "CPU"), "2026.4.1")] == ["old"]
    with pytest.raises(UserError, match=r"old has OpenVINO 2025\.4\.0 .* this machine 2026\.4\.1 .*: install the same"):
        names(fleet=[old])


class OneMachine:
    """A cluster with one machine, of another version than the one that was lost."""

    def __init__(self, openvino: str) -> None:
        self.openvino = openvino

    def machines(self) -> list[Machine]:
        return [machine("other", openvino=self.openvino, GPU="A770", CPU="Xeon")]


def remote_job(cluster: Any, job: Job, tmp_path: Path) -> _RemoteJob:
    (kind,) = kinds(OneMachine("2026.4.1").machines(), ("GPU", "CPU"), "2026.4.1", ())
    digests = {path: digest_of(path) for path in job.files.values()}
    return _RemoteJob(cluster, kind, job, tmp_path, digests, threading.Event(), print, print)


def test_a_like_machine_of_another_version_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_PATIENCE", 0.0)
    job = Job(("place",), {}, {})
    remote_job(OneMachine("2026.4.1"), job, tmp_path)._await_machine()
    with pytest.raises(RunError, match="the last machine of its kind is gone"):
        remote_job(OneMachine("2025.4.0"), job, tmp_path)._await_machine()


def test_what_was_saved_since_is_not_what_was_sent_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is resumed begins with a checkpoint, which each measurement replaces."""
    began: list[tuple[Any, ...]] = []
    (tmp_path / "checkpoint").write_bytes(b"old")
    job = Job(("finetune",), {"out/checkpoint": tmp_path / "checkpoint"}, {}, (), "out/checkpoint", ("--resume",))
    remote = remote_job(OneMachine("2026.4.1"), job, tmp_path)

    def ask(reference: Any, waiting: str = "") -> Any:
        if reference[0] == "begin":
            began.append(copy.deepcopy(reference[1:]))
            raise _Lost
        return [] if reference[0] == "lacking" else "host"

    class Runner:
        def __getattr__(self, name: str) -> Any:
            return SimpleNamespace(remote=lambda *args: (name, *args))

    monkeypatch.setattr(remote, "_ask", ask)
    for saved in ({}, {"out/checkpoint": b"new"}):
        remote.saved.update(saved)
        with pytest.raises(_Lost):
            remote._carry_out(Runner())
    assert began == [
        (["finetune"], {"out/checkpoint": hashlib.sha256(b"old").hexdigest()}, {}),
        (["--resume"], {}, {"out/checkpoint": b"new"}),
    ]


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "127.0.0.1:9{}"])
def test_a_cluster_that_does_not_answer_is_told_at_once(address: str) -> None:
    """Ray itself would try for a quarter of an hour."""
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    begin = time.monotonic()
    with pytest.raises(UserError, match="Ray cluster"):
        Cluster(address.format(free))
    assert time.monotonic() - begin < 600


def test_this_machine_is_announced_as_ray_takes_it(two_cpu_core: ov.Core) -> None:
    labels = announcement(two_cpu_core)
    for name, value in labels.items():
        assert LABEL.fullmatch(name.removeprefix("ov-hsdag/")) and LABEL.fullmatch(value), (name, value)
    assert labels == announcement(two_cpu_core)
    found = Machine.of("1", "here", labels)
    assert found is not None and {"CPU", "CPU_A", "CPU_B"} <= set(found.devices)
    assert Machine.of("1", "here", {"ray.io/node-id": "1"}) is None


def test_limits_of_virtual_devices_make_another_kind(two_cpu_core: ov.Core, monkeypatch: pytest.MonkeyPatch) -> None:
    before = announcement(two_cpu_core)[KIND]
    monkeypatch.setenv("OV_HSDAG_VIRTUAL_DEVICES", "CPU_A:INFERENCE_NUM_THREADS=1;CPU_B:INFERENCE_NUM_THREADS=1")
    from ov_hsdag.devices.virtual import new_core

    assert announcement(new_core())[KIND] != before


# --- jobs ---


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """branching.xml with its weights, and other files beside it."""
    path = tmp_path / "models" / "branching.xml"
    path.parent.mkdir()
    ov.save_model(ZOO["branching"].build(), path)
    (path.parent / "other.bin").write_bytes(b"not of this model")
    return path


def test_a_model_travels_with_what_belongs_to_it(model: Path) -> None:
    assert model_files_of(model) == [model, model.with_suffix(".bin")]
    inputs = Inputs()
    assert inputs.model(model) == "in0/branching.xml"
    assert inputs.file(None) is None
    assert set(inputs.files) == {"in0/branching.xml", "in0/branching.bin"}
    job = Job(("show",), inputs.files, inputs.shown)
    assert job.translated("cannot read in0/branching.xml: why") == f"cannot read {model}: why"


def test_a_folder_keeps_its_shape(model: Path) -> None:
    (model.parent / "variables").mkdir()
    (model.parent / "variables" / "data").write_bytes(b"1")
    inputs = Inputs()
    assert inputs.file(model.parent) == "in0/models"
    assert "in0/models/variables/data" in inputs.files


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "", "a\\b", "a\0b"])
def test_names_from_other_machines_stay_in_their_folder(name: str) -> None:
    with pytest.raises(ValueError, match="leads out of its folder"):
        safe(name)
    assert came_as("out/a/b").as_posix() == "a/b"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobRunner:
    monkeypatch.setenv(job_runners.FOLDER, str(tmp_path / "worker"))
    return JobRunner()


def send(site: JobRunner, path: Path, piece: int = 1000) -> str:
    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if site.lacking([digest]):
        for offset in range(0, len(data), piece):
            site.take(digest, offset, data[offset : offset + piece], offset + piece >= len(data))
    return digest


def ended(site: JobRunner) -> dict[str, object]:
    lines: list[str] = []
    while True:
        events = site.events(1.0)
        lines += events["lines"]
        if events["status"] is not None:
            return {**events, "lines": lines}


def test_a_job_runs_where_its_files_are(site: JobRunner, model: Path, tmp_path: Path) -> None:
    inputs = Inputs()
    name = inputs.model(model)
    files = {path: send(site, file) for path, file in inputs.files.items()}
    site.begin(["strip", name, "--output", "out/plain.xml"], files)
    events = ended(site)
    assert events["status"] == 0, events
    assert "out/plain.xml" in str(events["out"])
    sizes = site.listing("out")
    assert set(sizes) == {"out/plain.xml", "out/plain.bin"}
    assert len(site.read("out/plain.xml")) == sizes["out/plain.xml"]
    assert site.read("out/plain.xml", 5, 4) == site.read("out/plain.xml")[5:9]
    site.end()
    # What came stays for the next job, and the job's folder goes.
    assert site.lacking(list(files.values())) == []
    assert [one.name for one in (tmp_path / "worker").iterdir()] == ["files"]
    assert JobRunner().lacking(list(files.values())) == []


def test_an_error_is_a_line_and_a_status(site: JobRunner) -> None:
    site.begin(["show", "in0/none.xml"], {})
    events = ended(site)
    assert events["status"] == 2
    assert events["lines"] == ["error: no such model: in0/none.xml"]


def test_damaged_content_is_not_kept(site: JobRunner) -> None:
    digest = hashlib.sha256(b"sent").hexdigest()
    with pytest.raises(ValueError, match="did not arrive"):
        site.take(digest, 0, b"came", True)
    assert site.lacking([digest]) == [digest]


def test_a_job_cannot_write_outside_of_its_folder(site: JobRunner) -> None:
    with pytest.raises(ValueError, match="leads out"):
        site.begin(["show"], {"../x": hashlib.sha256(b"").hexdigest()})
    with pytest.raises(ValueError, match="no digest"):
        site.lacking(["../../x"])


def test_what_a_job_saves_comes_while_it_runs_and_is_not_what_is_kept(
    site: JobRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lines").write_bytes(b"first")
    digest = send(site, tmp_path / "lines")
    run_instead(monkeypatch, "append")
    site.begin([], {"out/lines": digest, "in0/lines": digest})
    saved: dict[str, bytes] = {}
    while (events := site.events(1.0, "out"))["status"] is None:
        saved |= events["saved"]
    saved |= events["saved"]
    assert saved == {"out/lines": b"first, second"} and set(site.listing("out")) == set(saved)
    assert site.events(1.0, "out")["saved"] == {}
    assert site.read("in0/lines") == (tmp_path / "worker" / "files" / digest).read_bytes() == b"first"
    site.end()
    site.begin([], {}, saved)
    while site.events(1.0)["status"] is None:
        pass
    assert site.read("out/lines") == b"first, second, second"
    site.end()


def run_instead(monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    """Jobs call a function of this file in the place of a command."""
    program = job_runners._PROGRAM.replace("ov_hsdag.cli import main", f"tests.test_fleet import {function} as main")
    assert function in program
    monkeypatch.setattr(job_runners, "_PROGRAM", program)


def append() -> None:
    """A program that goes on with a file."""
    with open("out/lines", "a", encoding="utf-8") as file:
        file.write(", second")


def test_a_process_ends_with_its_site(site: JobRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    run_instead(monkeypatch, "sleep_long")
    site.begin([], {})
    (line,) = next(events["lines"] for _ in range(100) if (events := site.events(1.0))["lines"])
    pid = int(line)
    os.kill(pid, 0)
    assert site.events(0.1)["status"] is None
    site.end()
    expect_gone(lambda: os.kill(pid, 0))


def sleep_long() -> None:
    """A command that never ends."""
    import sys

    print(os.getpid(), file=sys.stderr)
    time.sleep(600)


# --- the node that `ov-hsdag worker` starts, with a program in the place of `ray start`

START = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
print("started", os.getpid(), file=sys.stderr, flush=True)
time.sleep(300)
"""

SERVE = "from ov_hsdag.fleet.node import serve; serve('10.0.0.1:6379', {'a': 'b'}, 0)"

# The signal comes when the process is there, and before whoever starts it knows.
SERVE_STRUCK = f"""
import os, signal, subprocess, sys
class Struck(subprocess.Popen):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        print("started", self.pid, file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
subprocess.Popen = Struck
{SERVE}
"""


@pytest.fixture
def serving(tmp_path: Path) -> Callable[[str], tuple[subprocess.Popen[str], int]]:
    """Starts a worker; returns it and the group of what it has started."""
    scripts = tmp_path / "packages/ray/scripts"
    scripts.mkdir(parents=True)
    (scripts.parent / "__init__.py").touch()
    (scripts / "__init__.py").touch()
    (scripts / "scripts.py").write_text(START, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path / "packages"), str(Path(job_runners.__file__).parents[2])])

    def start(program: str) -> tuple[subprocess.Popen[str], int]:
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)},
            stderr=subprocess.PIPE,
            text=True,
        )
        line = process.stderr.readline()
        assert line.startswith("started"), line + process.stderr.read()
        return process, int(line.split()[1])

    return start


def expect_gone(signal_nothing: Callable[[], None]) -> None:
    end = time.monotonic() + 120
    while True:
        try:
            signal_nothing()
        except ProcessLookupError:
            return
        assert time.monotonic() < end, "processes go on"
        time.sleep(0.05)


@pytest.mark.parametrize("program", [SERVE, SERVE_STRUCK], ids=["any time", "while it starts"])
def test_a_worker_that_is_told_to_end_leaves_nothing(
    program: str, serving: Callable[[str], tuple[subprocess.Popen[str], int]], tmp_path: Path
) -> None:
    process, group = serving(program)
    if program == SERVE:
        process.send_signal(signal.SIGTERM)
        time.sleep(1)
        assert process.poll() is None  # it waits for Ray
    process.send_signal(signal.SIGTERM)  # the second one ends waiting
    _, text = process.communicate(timeout=120)
    assert "KeyboardInterrupt" in text
    expect_gone(lambda: os.killpg(group, 0))
    assert [path.name for path in tmp_path.iterdir()] == ["packages"]


def test_what_a_killed_worker_left_is_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, kept = tmp_path / "ov-hsdag-worker-left", tmp_path / "kept"
    for folder in (left / "files", kept):
        folder.mkdir(parents=True)
        (folder / "model.bin").write_bytes(b"weights")
    (tmp_path / "ov-hsdag-worker-link").symlink_to(kept)
    with node.worker_folder() as own:
        node.remove_abandoned_folders()
        assert Path(own).is_dir(), "the folder of a worker that lives"
        assert not left.exists()
        assert (kept / "model.bin").exists(), "a link leads elsewhere"
    assert not Path(own).exists()


def test_a_node_of_ray_without_a_token_is_warned_of(tmp_path: Path) -> None:
    for environment in ({}, {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "secret"}):
        assert "open on all interfaces" in node.token_advice(environment, tmp_path)
    for environment in ({"RAY_AUTH_MODE": "token"}, {"RAY_AUTH_TOKEN": "secret"}, {"RAY_AUTH_TOKEN_PATH": "token"}):
        assert not node.token_advice(environment, tmp_path)
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray/auth_token").write_text("secret")
    assert not node.token_advice({}, tmp_path)


def test_a_worker_that_is_killed_leaves_no_process(serving: Callable[[str], tuple[subprocess.Popen[str], int]]) -> None:
    process, group = serving(SERVE)
    process.kill()
    process.communicate(timeout=120)
    expect_gone(lambda: os.killpg(group, 0))


def test_only_files_that_a_command_reads_travel_to_a_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What it writes has a metavar that begins with FILE, too."""
    for name in ("speeds.json", "x.npy", "report.html"):
        (tmp_path / name).touch()
    given = {
        "--profile": ("FILE.json", tmp_path / "speeds.json", False),
        "--input": ("NAME=FILE", [f"x={tmp_path / 'x.npy'}"], True),
        "--report": ("FILE.html|svg|png", tmp_path / "report.html", False),
    }
    options = [
        (SimpleNamespace(opts=[name], metavar=metavar, multiple=several, secondary_opts=[]), value)
        for name, (metavar, value, several) in given.items()
    ]
    monkeypatch.setattr(remote, "given_options", lambda: iter(options))
    inputs = Inputs()
    words = remote.words(inputs, ["model.xml"], {})
    assert {path.name for path in inputs.files.values()} == {"speeds.json", "x.npy"}
    assert str(tmp_path / "report.html") in words
