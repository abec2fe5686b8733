"""Commands on a Ray cluster of this machine, with nodes that are killed while they work."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openvino as ov
import pytest
from safetensors.torch import load_file

from ov_hsdag.costs.profile import Profile
from ov_hsdag.fleet.cluster import Cluster
from ov_hsdag.model.placement import Placement
from ov_hsdag.utils.errors import UserError
from research.corpus import make
from research.zoo.catalog import ZOO
from tests import processes, ray_cluster
from tests.conftest import ONE_CORE
from tests.ray_cluster import MAIN, Nodes, command, environment

pytest.importorskip("ray")
# Alone: Ray gives each of its services half a minute to start.
pytestmark = [pytest.mark.slow, pytest.mark.alone]

HETERO = "HETERO:CPU_A,CPU_B"
OTHER = f"CPU_A:{ONE_CORE};CPU_B:{ONE_CORE},MEMORY=4GiB"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with ray_cluster.nodes(tmp_path_factory.mktemp("cluster")) as there:
        yield there


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "branching.xml"
    ov.save_model(ZOO["branching"].build(), path)
    return path


Workers = list[subprocess.Popen[bytes]]


@pytest.fixture(scope="module")
def workers(cluster: Nodes) -> Workers:
    """Two of a kind, and one of another kind."""
    return [cluster.worker(), cluster.worker(), cluster.worker(OTHER)]


def begun(*words: object) -> subprocess.Popen[str]:
    return processes.begun(sys.executable, "-c", MAIN, *words, env=environment())


def wait_for(what: Callable[[], Any], process: subprocess.Popen[str], seconds: float = 120) -> Any:
    end = time.monotonic() + seconds
    while not (found := what()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.05)
    return found


def lost_and_ended(cluster: Nodes, workers: Workers, process: subprocess.Popen[str]) -> tuple[str, str]:
    """What a command printed that lost one of the two machines of a kind; there are two again."""
    killed = wait_for(lambda: [one for one in cluster.busy() if one in workers[:2]], process)[0]
    cluster.kill(killed)
    out, err = process.communicate(timeout=600)
    workers[workers.index(killed)] = cluster.worker()
    return out, err


def test_a_placement_for_each_kind_of_machine(cluster: Nodes, workers: Workers, model: Path, tmp_path: Path) -> None:
    words = ("place", model, "--device", HETERO, "--ray", cluster.address, "--measure-seconds", 2)
    done = command(*words, "--output", tmp_path / "placed.xml", "--json")
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
    assert "all machines:" in text.stdout
    lines = text.stdout.splitlines()
    assert sum(line.startswith("costs: ") for line in lines) == 2
    assert sum(line.startswith("run with: openvino.Core().compile_model('") for line in lines) == 2
    assert lines[-1].startswith(("next: ov-hsdag explain ", "next: ov-hsdag place ")) and "in0/" not in text.stdout
    overview = text.stdout[text.stdout.index("all machines:") :]
    assert "(less" not in overview and "(much" not in overview
    assert all(one["messages"][0].startswith("costs: ") for one in found)


def test_machines_and_clusters_that_are_not_there(
    cluster: Nodes, workers: Workers, model: Path, tmp_path: Path
) -> None:
    words = ("place", model, "--output", tmp_path / "placed.xml", "--ray", cluster.address)
    done = command(*words, "--device", HETERO, "--on", "CPU_A=unheard of", status=2)
    assert "error: no machine of the cluster is 'CPU_A=unheard of': there are CPU_A=" in done.stderr
    done = command(*words, "--device", "HETERO:GPU,CPU_B", status=2)
    assert "error: no machine of the cluster has GPU, CPU_B: there are" in done.stderr
    assert not list(tmp_path.iterdir())


def test_an_error_of_a_machine_is_one_line_here(cluster: Nodes, workers: Workers, model: Path, tmp_path: Path) -> None:
    words = ("place", model, "--device", HETERO, "--ray", cluster.address, "--shape", "x=[1,2]")
    done = command(*words, "--output", tmp_path / "placed.xml", status=2)
    assert done.stderr.strip().splitlines()[-1].startswith("error: CPU_A ")
    assert not list(tmp_path.iterdir())


def test_models_of_bench_on_each_kind_of_machine(cluster: Nodes, workers: Workers, model: Path, tmp_path: Path) -> None:
    words = ("bench", model, model, "--device", HETERO, "--ray", cluster.address, "--rounds", 1)
    done = command(*words, "--output", tmp_path / "b.csv")
    rows = (tmp_path / "b.csv").read_text().splitlines()
    assert rows[0].startswith("model,machine,placer")
    assert done.stdout.splitlines()[-1].startswith(
        f"next: ov-hsdag place {model} --device {HETERO} --objective latency"
    )
    assert len({row.split(",")[1] for row in rows[1:]}) == 2


def test_a_profile_of_each_kind_of_machine(cluster: Nodes, workers: Workers, model: Path, tmp_path: Path) -> None:
    words = ("calibrate", "--device", HETERO, "--ray", cluster.address, "--seconds", 4)
    done = command(*words, "--output", tmp_path / "profile.json")
    found = sorted(tmp_path.iterdir())
    assert len(found) == 2
    assert done.stdout.splitlines()[-1].startswith(
        f"next: ov-hsdag place model.onnx --device {HETERO} --profile {tmp_path}"
    )
    for path in found:
        assert path.name.startswith("profile.")
        assert set(Profile.load(path).devices) == {"CPU_A", "CPU_B"}
    refused = command(*words, "--model", model, "--output", tmp_path / "again.json", status=2)
    assert "the costs of a model are those of one kind of machine: name it with --on" in refused.stderr


def test_bench_with_a_node_killed_has_the_results_of_one_without(
    cluster: Nodes, workers: Workers, model: Path, tmp_path: Path
) -> None:
    words = ("bench", model, "--device", HETERO, "--rounds", 1, "--json")
    process = begun(*words, "--ray", cluster.address)
    out, err = lost_and_ended(cluster, workers, process)
    assert process.returncode == 0, err
    assert "begins again on another machine" in err

    here = json.loads(command(*words, devices=ray_cluster.DEVICES).stdout)["models"][0]["results"]
    found = json.loads(out)["models"]
    assert len(found) == 2
    for one in found:
        assert [row["placer"] for row in one["results"]] == [row["placer"] for row in here]
        assert not any(row["failed"] for row in one["results"])


def test_finetune_with_its_machine_killed_measures_all_that_it_was_asked_for(
    cluster: Nodes, workers: Workers, model: Path, tmp_path: Path
) -> None:
    words = ("finetune", model, "--device", HETERO, "--ray", cluster.address, "--measurements", 4)
    process = begun(*words, "--output", tmp_path, "--json")
    wait_for(lambda: len(list(tmp_path.glob("*/checkpoint.safetensors"))) == 2, process, 240)
    out, err = lost_and_ended(cluster, workers, process)
    assert process.returncode == 0, err
    assert "begins again on another machine" in err
    for record in json.loads(out)["machines"]:
        assert record["measurements"] == 4
        assert [entry["number"] for entry in record["entries"] if entry["number"]] == [1, 2, 3, 4]
    for folder in tmp_path.iterdir():
        assert Placement.of(ov.Core().read_model(folder / "model.xml")) is not None


def test_pretrain_with_nodes_killed_learns_the_same(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    make(corpus, ["squeezenet", "ncf", "lstm"], report=lambda _: None)
    shutil.copytree(corpus, tmp_path / "other")
    words = ("--problems", 48, "--validation", 16, "--imitation-steps", 6, "--reinforce-steps", 14)
    command("pretrain", "--output", tmp_path / "here", "--corpus", corpus, *words)
    output, other = tmp_path / "there", tmp_path / "other"
    with ray_cluster.nodes(tmp_path_factory.mktemp("computing")) as there:
        nodes = [there.computing() for _ in range(2)]
        process = begun(
            "pretrain", "--output", output, "--corpus", other, *words, "--checkpoint-minutes", 0, "--ray", there.address
        )
        wait_for(lambda: list(other.glob("targets-*")), process, 300)
        there.kill(nodes[0])
        _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    found, known = ({file.name: file.read_bytes() for file in one.glob("targets-*")} for one in (other, corpus))
    assert len(known) == 4
    assert found == known
    weights = [load_file(tmp_path / run / "policy" / "policy.safetensors") for run in ("here", "there")]
    assert all(bool((weights[0][name] == weights[1][name]).all()) for name in weights[0])


def test_a_worker_that_is_told_to_end_leaves_nothing(cluster: Nodes) -> None:
    worker = cluster.worker()
    there = ray_cluster.descendants(worker.pid)
    assert len(there) > 3
    worker.terminate()
    assert worker.wait(60) == 130
    end = time.monotonic() + 120
    while any(Path(f"/proc/{pid}").exists() for pid in there):
        assert time.monotonic() < end, "processes go on"
        time.sleep(0.1)


def square(number: int) -> int:
    return number * number


def test_tasks_come_back_in_order_and_errors_as_they_are(cluster: Nodes) -> None:
    cluster.computing()
    with Cluster(cluster.address) as there:
        assert list(there.map(square, range(300))) == [number * number for number in range(300)]
        with pytest.raises(UserError, match="'no such name' is not a profile"):
            list(there.map(refuse, ["no such name"]))


def refuse(name: str) -> None:
    raise UserError(f"'{name}' is not a profile")
