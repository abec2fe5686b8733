"""Tests that nothing grows, by short runs of benchmarks/lasting/soak.py, and tests of how it judges growth."""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

import ov_hsdag
from benchmarks.lasting import soak
from benchmarks.lasting.soak_cycle import held
from ov_hsdag.devices import virtual
from ov_hsdag.integration import core as hook

DEVICE = "HETERO:CPU_A,CPU_B"


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in soak.VARIABLES.items():
        monkeypatch.setenv(name, value)


def test_growth_is_from_the_second_quarter_to_the_last() -> None:
    warming = [{"cycle": n, "threads": float(min(n, 5)), "resident": 100.0 + min(n, 5)} for n in range(20)]
    assert soak.growth(warming, "threads") == 0.0 and soak.grown(warming) == {}
    leaking = [{"cycle": n, "threads": 5.0 + n // 4, "resident": 100.0 + n} for n in range(40)]
    assert soak.grown(leaking) == {"threads": 5.0, "resident": 20.0}
    assert soak.grown(leaking, leaking) == {}  # OpenVINO's own
    assert soak.growth([{"threads": 3.0}], "threads") == 0.0


def test_a_process_is_told_by_what_it_holds() -> None:
    before = held()
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(7)]
    kept, ended = bytearray(64 * 2**20), threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    after, other = held(), held(os.getpid())
    ended.set()
    thread.join()
    for file in files:
        os.close(file)
    assert after["descriptors"] == before["descriptors"] + 7
    assert after["threads"] == before["threads"] + 1 == other["threads"]
    assert 63 < after.get("allocated", 64.0) - before.get("allocated", 0.0) < 66 and len(kept) == 64 * 2**20


@pytest.mark.slow
def test_placing_and_compiling_keep_nothing(tmp_path: Path) -> None:
    hook.patch(ov)
    core, path = ov.Core(), tmp_path / "model.xml"
    virtual.register(core)
    image = np.ones((1, 3, 16, 16), np.float32)

    def cycle() -> None:
        model = soak.small_network()
        placement = ov_hsdag.place(model, DEVICE, objective="throughput", core=core)
        assert len(placement.used()) == 2
        ov.save_model(model, path)
        compiled = core.compile_model(path, DEVICE)
        assert compiled.get_property("EXECUTION_DEVICES") == ["CPU_A", "CPU_B"]
        compiled([image])

    def kept() -> tuple[int, int, dict[str, int]]:
        gc.collect()
        types = Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.get_objects())
        ours = {name: count for name, count in types.items() if name.startswith(("ov_hsdag", "openvino", "numpy"))}
        return threading.active_count(), len(os.listdir("/proc/self/fd")), ours

    for _ in range(2):  # modules, caches of profiles, plugins
        cycle()
    before = kept()
    for _ in range(3):
        cycle()
    assert kept() == before


@pytest.mark.slow
def test_thirty_cycles(tmp_path: Path) -> None:
    found = soak.cycles(tmp_path, 30, lambda _: None, names=("lstm",))
    own, alone = found["samples"]["ov-hsdag"], found["samples"]["openvino"]
    assert len(own) == len(alone) == 30 and own[-1]["cycle"] == 30
    assert found["grown"] == {}, (own, alone)


@pytest.mark.slow
def test_a_service_while_its_model_is_replaced(tmp_path: Path) -> None:
    found = soak.service(tmp_path, 400, lambda _: None)
    assert found["answers"] == 800 and found["wrong"] == 0 and found["placings"] >= 1
    assert {name for name in found["grown"] if name != "resident"} <= {"threads"}
