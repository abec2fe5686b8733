"""Where benchmarks run: in processes, and as jobs of a fleet; test_ray.py has both with a cluster."""

from __future__ import annotations

import hashlib
import json
from functools import cache, partial
from pathlib import Path

import pytest

from benchmarks import remote
from benchmarks.common import workers
from benchmarks.common.machine import about, processor, versions
from benchmarks.common.workers import Workers
from ov_hsdag.fleet import job_runner as job_runners
from ov_hsdag.fleet.job_runner import JobRunner
from ov_hsdag.utils.errors import UserError
from tests.ray_cluster import ROOT


class Bound:
    """What runs share, equal to itself alone."""


@cache
def made_once(bound: Bound) -> list[int]:
    return []


def count(bound: Bound, task: int) -> tuple[int, int]:
    """The task, and how many this process had before with the same object."""
    seen = made_once(bound)
    seen.append(task)
    return task, len(seen)


def test_what_runs_elsewhere_is_there() -> None:
    for name in remote.MEASURING:
        assert (ROOT / "benchmarks" / f"{name.replace('.', '/')}.py").exists()


@pytest.mark.parametrize("processes", [0, 1])
def test_runs_come_in_their_order_and_share_what_is_bound(processes: int) -> None:
    with Workers(processes=processes) as there:
        found = list(there.map(partial(count, Bound()), range(5)))
        assert found == [(task, (task, task + 1)) for task in range(5)]
        assert there.about() == about()


def test_what_travels_is_unpickled_once_and_told_by_the_processor() -> None:
    sent = workers._Sent(partial(count, Bound()))
    assert [sent(task)[1] for task in range(3)] == [(0, 1), (1, 2), (2, 3)]
    assert workers._Sent(partial(count, Bound()))(7) == (processor(), (7, 1))


def test_other_releases_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = workers._Sent(partial(count, Bound()))
    monkeypatch.setattr(workers, "versions", lambda: {**versions(), "openvino": None})
    with pytest.raises(UserError, match=r"has no openvino, this machine openvino .*: install the same on both"):
        sent(0)


def test_a_script_finds_its_results_and_leaves_new_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a job, without Ray."""
    folder = tmp_path / "a770"
    folder.mkdir()
    rows = [{"seed": 0, "model": "m", "mutations": [], "after": False, "submodels": [2]}]
    import openvino as ov

    release = ov.__version__.split("-")[0]
    state = {"openvino": release, "seed": 0, "next_seed": 4, "examples": rows}
    (folder / "mutations.json").write_text(json.dumps(state))
    job = remote.job_of("truth.mutations", ("--count", "1"), folder)
    assert job.words == job.resumed == ("truth.mutations", "--count", "1") and job.saved == "out"
    monkeypatch.setenv(job_runners.FOLDER, str(tmp_path / "worker"))
    site = JobRunner(job.program)
    digests = {}
    for name, path in job.files.items():
        data = path.read_bytes()
        digests[name] = hashlib.sha256(data).hexdigest()
        site.take(digests[name], 0, data, True)
    site.begin(job.words, digests)
    lines: list[str] = []
    while (events := site.events(1.0, job.saved))["status"] is None:
        lines += events["lines"]
    assert events["status"] == 0, [*lines, *events["lines"]]
    assert "1 examples, 1 right" in events["out"]
    assert set(events["saved"]) == set(site.listing("out")) == {"out/mutations.json"}
    assert json.loads(site.records(["out/mutations.json", "out/gone"]).popitem()[1]) == state
    site.end()


def test_what_a_job_writes_is_not_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(job_runners.FOLDER, str(tmp_path))
    site = JobRunner(f"{__name__}:append")
    digest = hashlib.sha256(b"first").hexdigest()
    site.take(digest, 0, b"first", True)
    site.begin([], {"out/lines": digest, "in0/lines": digest})
    while site.events(1.0)["status"] is None:
        pass
    assert site.read("out/lines") == b"first, second" and site.read("in0/lines") == b"first"
    assert (tmp_path / "files" / digest).read_bytes() == b"first"
    site.end()


def append() -> None:
    """A program that goes on with a file."""
    with open("out/lines", "a", encoding="utf-8") as file:
        file.write(", second")
