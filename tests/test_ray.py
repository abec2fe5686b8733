"""Commands on a Ray cluster of this machine, with nodes that are killed while they work."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openvino as ov
import pytest

from ov_hsdag.model.placement import Placement
from ov_hsdag.zoo.catalog import ZOO
from tests import ray_cluster
from tests.conftest import ONE_CORE
from tests.ray_cluster import MAIN, Nodes, command, environment

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

HETERO = "HETERO:CPU_A,CPU_B"
OTHER = f"CPU_A:{ONE_CORE};CPU_B:INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT=bf16"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with ray_cluster.nodes(tmp_path_factory.mktemp("cluster")) as there:
        yield there


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "branching.xml"
    ov.save_model(ZOO["branching"].build(), path)
    return path


@pytest.fixture(scope="module")
def workers(cluster: Nodes) -> list[subprocess.Popen[bytes]]:
    """Two of a kind, and one of another kind."""
    return [cluster.worker(), cluster.worker(), cluster.worker(OTHER)]


def begun(*words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, *map(str, words)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(what: Callable[[], Any], process: subprocess.Popen[str], seconds: float = 120) -> Any:
    end = time.monotonic() + seconds
    while not (found := what()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.05)
    return found


def test_a_placement_for_each_kind_of_machine(
    cluster: Nodes, workers: list[subprocess.Popen[bytes]], model: Path, tmp_path: Path
) -> None:
    words = ("place", model, "--device", HETERO, "--ray", cluster.address, "--measure-seconds", 2)
    done = command(*words, "--output", tmp_path / "placed.xml", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["machines"]
    assert [one["machine"]["machines"] for one in found] in ([1, 2], [2, 1])
    for one in found:
        placed = ov.Core().read_model(one["output"])
        assert Placement.of(placed).devices == ("CPU_A", "CPU_B")  # type: ignore[union-attr]
        assert set(one["measured"]) >= {"CPU_A", "CPU_B"}
    assert len({one["output"] for one in found}) == 2
    kind = found[0]["machine"]["kind"]
    assert f".{kind[:6]}." in found[0]["output"].replace("-", ".")
    text = command(*words, "--output", tmp_path / "again.xml")
    assert text.returncode == 0, text.stderr
    assert "all machines:" in text.stdout


def test_machines_and_clusters_that_are_not_there(
    cluster: Nodes, workers: list[subprocess.Popen[bytes]], model: Path, tmp_path: Path
) -> None:
    words = ("place", model, "--output", tmp_path / "placed.xml", "--ray", cluster.address)
    done = command(*words, "--device", HETERO, "--on", "CPU_A=unheard of")
    assert done.returncode == 2
    assert "error: no machine of the cluster is 'CPU_A=unheard of': there are CPU_A=" in done.stderr
    done = command(*words, "--device", "HETERO:GPU,CPU_B")
    assert done.returncode == 2
    assert "error: no machine of the cluster has GPU, CPU_B: there are" in done.stderr
    assert not list(tmp_path.iterdir())


def test_an_error_of_a_machine_is_one_line_here(
    cluster: Nodes, workers: list[subprocess.Popen[bytes]], model: Path, tmp_path: Path
) -> None:
    words = ("place", model, "--device", HETERO, "--ray", cluster.address, "--shape", "x=[1,2]")
    done = command(*words, "--output", tmp_path / "placed.xml")
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("error: CPU_A ")
    assert not list(tmp_path.iterdir())


def test_models_of_bench_on_each_kind_of_machine(
    cluster: Nodes, workers: list[subprocess.Popen[bytes]], model: Path, tmp_path: Path
) -> None:
    done = command(
        "bench",
        model,
        model,
        "--device",
        HETERO,
        "--ray",
        cluster.address,
        "--rounds",
        1,
        "--output",
        tmp_path / "b.csv",
    )
    assert done.returncode == 0, done.stderr
    rows = (tmp_path / "b.csv").read_text().splitlines()
    assert rows[0].startswith("model,machine,placer")
    assert len({row.split(",")[1] for row in rows[1:]}) == 2


def test_bench_with_a_node_killed_has_the_results_of_one_without(
    cluster: Nodes, workers: list[subprocess.Popen[bytes]], model: Path, tmp_path: Path
) -> None:
    words = ("bench", model, "--device", HETERO, "--rounds", 1, "--json")
    process = begun(*words, "--ray", cluster.address)
    busy = wait_for(cluster.busy, process)
    cluster.kill(busy[0])
    out, err = process.communicate(timeout=300)
    cluster.worker(OTHER if busy[0] is workers[2] else ray_cluster.DEVICES)
    assert process.returncode == 0, err
    assert "begins again on another machine" in err

    here = json.loads(command(*words, devices=ray_cluster.DEVICES).stdout)["models"][0]["results"]
    found = json.loads(out)["models"]
    assert len(found) == 2
    for one in found:
        assert [row["placer"] for row in one["results"]] == [row["placer"] for row in here]
        assert not any(row["failed"] for row in one["results"])
