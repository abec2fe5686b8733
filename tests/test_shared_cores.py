"""Devices whose threads outnumber the usable cores: priced as taking turns, and said so."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

import ov_hsdag
from ov_hsdag.cli.commands import doctor
from ov_hsdag.devices import cpu, virtual
from ov_hsdag.devices.cores import SharedCores
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.placers.contiguous import Contiguous
from ov_hsdag.problem.copies import copies_summary
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.problem.problem import PlacementProblem
from tests.commands import ran
from tests.graphs import convolutions, random_problem

PAIR = "HETERO:CPU_A,CPU_B"
THREE = ";".join(f"CPU_{name}:INFERENCE_NUM_THREADS=1" for name in "ABC")


@pytest.fixture
def cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """So many cores may be used."""
    monkeypatch.setattr(cpu, "usable_cores", lambda: request.param)
    return int(request.param)


@pytest.mark.parametrize("cores", [1, 2], indirect=True)
def test_a_split_over_devices_on_one_core_gains_nothing(cores: int, two_cpu_core: ov.Core) -> None:
    problem = build_problem(convolutions(), DeviceSet.parse(PAIR), objective="throughput", core=two_cpu_core)
    single, split = (float(problem.scores(one)[0]) for one in (problem.single(0), Contiguous().place(problem)))
    copies = copies_summary(problem)
    assert copies is not None
    gains = single / split, copies["throughput_ips"] * single / 1e6
    assert max(gains) <= 1.001 if cores == 1 else min(gains) > 1.3


@pytest.mark.parametrize("cores", [1, 2], indirect=True)
def test_placing_says_that_devices_share_the_usable_cores(cores: int, two_cpu_core: ov.Core) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        placed = ov_hsdag.place(convolutions(), PAIR, objective="throughput", core=two_cpu_core, policy="none")
    said = [str(one.message) for one in caught if "usable" in str(one.message)]
    wanted = "CPU_A and CPU_B have 2 threads, and 1 core is usable here: they share, and are predicted to take turns"
    assert said == ([wanted] if cores == 1 else [])
    assert len(placed.used()) == cores


@pytest.mark.parametrize("cores", [1], indirect=True)
def test_a_plan_of_models_on_one_core_is_no_faster_than_one_device(cores: int, two_cpu_core: ov.Core) -> None:
    models = {"a": convolutions(), "b": convolutions(16)}
    with pytest.warns(UserWarning, match="1 core is usable"):
        plan = ov_hsdag.place_together(models, PAIR, core=two_cpu_core, policy="none")
    of_all = sum(plan.predicted["busy_us"].values())
    assert plan.predicted["runs_per_second"] == pytest.approx(1e6 / of_all, rel=1e-3)


@pytest.mark.parametrize("cores", [1, 2], indirect=True)
def test_the_doctor_notes_it(cores: int, two_cpu_core: ov.Core) -> None:
    (found,) = [one for one in doctor._devices(two_cpu_core) if one.what == "virtual devices"]
    assert found.state == (doctor.NOTE if cores == 1 else doctor.OK)
    assert ("usable" in found.found) == (cores == 1)


@pytest.mark.parametrize("cores", [1], indirect=True)
def test_commands_print_it(cores: int, model: Path, tmp_path: Path) -> None:
    options = ("--device", PAIR, "--objective", "throughput", "--no-measure", "--output")
    done = ran("place", model, *options, tmp_path / "placed.xml")
    assert "1 core is usable here" in " ".join(done.stderr.split())
    application = tmp_path / "app.toml"
    application.write_text(f'[models.a]\npath = "{model}"\n[models.b]\npath = "{model}"\n', encoding="utf-8")
    done = ran("plan", application, "--device", PAIR, "--no-measure", "--output", tmp_path / "planned")
    assert "1 core is usable here" in " ".join(done.stderr.split())


def test_threads_of_all_devices_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(virtual.VIRTUAL_DEVICES_VARIABLE, f"{THREE};CPU_D:INFERENCE_NUM_THREADS=8")
    monkeypatch.setattr(cpu, "usable_cores", lambda: 2)
    core = virtual.new_core()
    assert SharedCores.of(core, ["CPU_A", "CPU_B"]) is None
    shared = SharedCores.of(core, ["CPU_A", "CPU_B", "CPU_C", "GPU"])
    assert shared is not None
    np.testing.assert_array_equal(shared.shares(["GPU", "CPU_A", "CPU_B", "CPU_C"]), [0, 0.5, 0.5, 0.5])
    eight = SharedCores.of(core, ["CPU_D", "CPU_A"])
    assert eight is not None
    np.testing.assert_array_equal(eight.shares(["CPU_D", "CPU_A"]), [1, 0.5])


def test_a_period_is_no_shorter_than_the_work_on_shared_cores(tmp_path: Path) -> None:
    problem = random_problem(5, nodes=30, devices=3, objective="throughput")
    problem = dataclasses.replace(problem, core_share=np.array([0.0, 0.5, 1.0]))
    found = problem.evaluate(problem.random(np.random.default_rng(0), 20))
    work = found.busy_us @ [0.0, 0.5, 1.0]
    np.testing.assert_array_equal(found.period_us, np.maximum(found.busy_us.max(axis=1), work))
    assert (work > found.busy_us.max(axis=1)).any()
    problem.save(tmp_path / "problem.npz")
    np.testing.assert_array_equal(PlacementProblem.load(tmp_path / "problem.npz").core_share, problem.core_share)
