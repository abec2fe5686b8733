"""Limits of control groups, in folders like those that Linux mounts."""

from __future__ import annotations

import math
import os
from pathlib import Path

import openvino as ov
import pytest

from ov_hsdag.devices import cgroups, cpu, discovery


def machine(folder: Path, own: str, files: dict[str, str]) -> tuple[Path, Path]:
    """Control groups with these files, and what says which of them the process is in."""
    groups, said = folder / "groups", folder / "own"
    for name, text in files.items():
        path = groups / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    said.write_text(own)
    return groups, said


V2, V1 = "0::/pod/app\n", "12:cpu,cpuacct:/pod/app\n7:memory:/pod/app\n1:name=systemd:/\n0::/\n"


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        (V2, {}, math.inf),
        (V2, {"pod/app/cpu.max": "max 100000\n"}, math.inf),
        (V2, {"pod/app/cpu.max": "250000 100000\n"}, 2.5),
        (V2, {"pod/app/cpu.max": "max 100000\n", "pod/cpu.max": "400000 100000\n"}, 4.0),
        (V2, {"pod/app/cpu.max": "800000 100000\n", "pod/cpu.max": "400000 100000\n"}, 4.0),
        (V2, {"cpu.max": "150000 100000\n"}, 1.5),  # the host's path is not there, the own group is the root
        (V2, {"pod/app/cpu.max": "max\n"}, math.inf),
        (V2, {"pod/app/cpu.max": "nonsense here\n"}, math.inf),
        (V2, {"pod/app/cpu.max": "100000 0\n"}, math.inf),
        (V1, {"cpu/pod/app/cpu.cfs_quota_us": "-1\n", "cpu/pod/app/cpu.cfs_period_us": "100000\n"}, math.inf),
        (V1, {"cpu/pod/app/cpu.cfs_quota_us": "50000\n", "cpu/pod/app/cpu.cfs_period_us": "100000\n"}, 0.5),
        (V1, {"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3.0),
        (V1, {"cpu/cpu.cfs_quota_us": "300000\n"}, math.inf),
        ("no colon", {"cpu.max": "100000 100000\n"}, 1.0),
        ("", {"cpu.max": "100000 100000\n"}, math.inf),
    ],
)
def test_cpu_limit(tmp_path: Path, own: str, files: dict[str, str], expected: float) -> None:
    assert cgroups.cpu_limit(*machine(tmp_path, own, files)) == expected


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        (V2, {}, math.inf),
        (V2, {"pod/app/memory.max": "max\n", "pod/memory.max": f"{2**31}\n"}, 2**31),
        (V1, {"memory/pod/app/memory.limit_in_bytes": f"{2**30}\n"}, 2**30),
        (V1, {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, 9223372036854771712),
    ],
)
def test_memory_limit(tmp_path: Path, own: str, files: dict[str, str], expected: float) -> None:
    assert cgroups.memory_limit(*machine(tmp_path, own, files)) == expected


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        (V2, {}, math.inf),
        (V2, {"pod/app/memory.max": "max\n", "pod/app/memory.current": "1000\n"}, math.inf),
        (V2, {"pod/memory.max": "5000\n", "pod/memory.current": "1000\n"}, 4000),
        (V2, {"memory.max": "5000\n", "memory.current": "4000\n", "memory.stat": "anon 9\ninactive_file 500\n"}, 1500),
        (V2, {"memory.max": "5000\n", "memory.current": "6000\n", "memory.stat": "odd"}, 0),
        (
            V1,
            {
                "memory/memory.limit_in_bytes": "5000\n",
                "memory/memory.usage_in_bytes": "2000\n",
                "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 300\n",
            },
            3300,
        ),
    ],
)
def test_free_memory(tmp_path: Path, own: str, files: dict[str, str], expected: float) -> None:
    assert cgroups.free_memory(*machine(tmp_path, own, files)) == expected


def test_a_container_has_no_more_free_memory_than_its_limit_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    core = ov.Core()
    monkeypatch.setattr(cgroups, "free_memory", lambda: 12345.0)
    assert discovery.free_bytes(core, "CPU") == discovery.free_bytes(core, "CPU_A") == 12345
    monkeypatch.setattr(cgroups, "free_memory", lambda: math.inf)
    assert 12345 < (discovery.free_bytes(core, "CPU") or 0) <= (discovery.memory_bytes(core, "CPU") or 0)


def test_elsewhere_there_are_no_limits(tmp_path: Path) -> None:
    assert cgroups.cpu_limit(tmp_path, tmp_path / "none") == math.inf
    assert cgroups.memory_limit(tmp_path, tmp_path / "none") == math.inf


def test_the_cpu_has_no_more_cores_and_memory_than_its_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_physical_cores", lambda: 8)
    core = ov.Core()
    for limit, cores in ((math.inf, 8), (3.7, 3), (0.2, 1), (64.0, 8)):
        monkeypatch.setattr(cgroups, "cpu_limit", lambda limit=limit: limit)
        assert cpu.usable_cores() == cores
    monkeypatch.setattr(cgroups, "memory_limit", lambda: 2.0**20)
    assert discovery.memory_bytes(core, "CPU") == (2**20 if hasattr(os, "sysconf") else None)
    monkeypatch.setattr(cgroups, "memory_limit", lambda: math.inf)
    assert discovery.memory_bytes(core, "CPU") != 2**20
