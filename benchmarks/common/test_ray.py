"""Benchmarks on a Ray cluster of this machine: nodes have ov-hsdag and no benchmarks, and are killed meanwhile."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openvino as ov
import pytest

from benchmarks.common.harness import Templates
from benchmarks.common.machine import processor
from benchmarks.common.workers import Workers
from benchmarks.field import paper_table
from benchmarks.field.paper_table import Task
from ov_hsdag.model.colocation import split_rule
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.training import corpus
from ov_hsdag.utils.errors import UserError
from research.zoo.catalog import ZOO
from tests import ray_cluster
from tests.ray_cluster import ROOT, Nodes, environment

pytest.importorskip("ray")
# Alone: Ray gives each of its services half a minute to start.
pytestmark = [pytest.mark.slow, pytest.mark.alone]

ROWS = ("HETERO:GPU,CPU", "METIS", "minimum cut", "search, no network", "HSDAG as published")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has ov_hsdag and nothing else of the tree."""
    folder = tmp_path_factory.mktemp("package")
    (folder / "ov_hsdag").symlink_to(ROOT / "ov_hsdag")
    return folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with ray_cluster.nodes(tmp_path_factory.mktemp("cluster")) as there:
        yield there


@pytest.fixture(scope="module")
def template() -> PlacementProblem:
    return corpus.extract(ZOO["inception-v3-small"].build(), split_rule(ov.__version__))


def script(name: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Runs a benchmark."""
    command = [sys.executable, "-m", f"benchmarks.{name}", *map(str, words)]
    return subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=900)


def without_times(cell: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in cell.items() if name != "seconds"}


def test_runs_with_a_node_killed_find_what_those_here_find(
    cluster: Nodes, package: Path, template: PlacementProblem
) -> None:
    rows = {contestant.name: number for number, contestant in enumerate(paper_table.contestants())}
    tasks = [
        Task("Inception-V3", machine, rows[name], seed, None, evaluations=80)
        for name in ROWS
        for machine in (None, 0, 1)
        for seed in range(3)
    ]
    function = functools.partial(paper_table.run, Templates({"Inception-V3": template}, {}))
    nodes = [cluster.computing(package=package) for _ in range(2)]
    found = []
    with Workers(cluster.address) as workers:
        for task, result in workers.map(function, tasks):
            found.append((task, result))
            if len(found) == 4:
                cluster.kill(nodes[0])
    assert [task for task, _ in found] == tasks
    assert workers.elsewhere == {processor(): len(tasks)}
    assert workers.about()["machine"] == f"{processor()}, on a Ray cluster"
    for (_, here), (_, there) in zip(Workers(processes=1).map(function, tasks), found, strict=True):
        assert here["us"] is not None
        assert without_times(here) == without_times(there)


def test_a_script_finds_the_same_on_a_cluster(
    cluster: Nodes, package: Path, template: PlacementProblem, tmp_path: Path
) -> None:
    path = tmp_path / "corpus" / ZOO["inception-v2"].family / "inception-v2.npz"
    path.parent.mkdir(parents=True)
    template.save(path)
    cluster.computing(package=package)
    words = ["--search-only", "--models", "inception-v2", "--sets", "xeon+flex", "--rounds", 1]
    words += ["--corpus", tmp_path / "corpus"]
    here, there = tmp_path / "here.json", tmp_path / "there.json"
    for output, more in ((here, []), (there, ["--ray", cluster.address])):
        done = script("quality.placement_quality", *words, "--known", output, *more)
        assert done.returncode == 0, done.stderr
    found, again = (json.loads(output.read_text()) for output in (here, there))
    assert found.keys() == again.keys() and len(found) == 4
    for name, entry in found.items():
        assert without_times(again[name]) == without_times(entry)


def test_a_node_with_other_releases_is_refused(cluster: Nodes, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.computing(package=package)
    monkeypatch.setattr("benchmarks.common.workers.versions", lambda: {"numpy": "1.0"})
    with Workers(cluster.address) as workers, pytest.raises(UserError, match=r"has numpy .*, this machine numpy 1\.0"):
        list(workers.map(len, ["a"]))
