"""A machine with candidates of known speeds, limited memory and its own clock: measuring without devices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ov_hsdag.measuring import comparison, interleaving, selection
from ov_hsdag.measuring.process import Candidate, Worker, WorkerError


class Machine:
    """Devices with room for so many compiled candidates, which drift, and candidates of known speeds.

    Attributes:
        now: seconds; trials and compiling take as long as they say.
    """

    def __init__(self, speeds: Mapping[str, float], room: float = math.inf, broken: tuple[str, ...] = ()) -> None:
        self.speeds, self.room, self.broken = speeds, room, broken
        self.resident: list[str] = []
        self.most, self.compiled, self.trials = 0, 0, 0
        self.shortest_trial = 0.0
        self.now, self.compiling = 0.0, 0.0

    def start(self, folder: Path, objective: str, name: str) -> Worker:
        return FakeWorker(self, name)

    def keep_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Time limits of a comparison are counted by this machine's clock."""
        for module in (comparison, interleaving, selection):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))

    def speed(self, name: str) -> float:
        """Of a candidate in the next trial."""
        return self.speeds[name] * math.exp(-0.02 * self.trials)


class FakeWorker(Worker):
    """A worker without a process."""

    def __init__(self, machine: Machine, name: str) -> None:
        self.machine, self.name = machine, name
        self.alive, self.compiled, self.submodels = True, False, 0
        self.shortest_trial = machine.shortest_trial
        self.rates = {}

    def compile(self, candidate: Candidate, limit: float) -> list[np.ndarray]:
        assert self.alive and self.name not in self.machine.resident
        self.machine.compiled += 1
        self.machine.now += self.machine.compiling
        if self.name in self.machine.broken:
            raise WorkerError("no kernel for this")
        if len(self.machine.resident) >= self.machine.room:
            raise WorkerError("[GPU] out of memory")
        self.machine.resident.append(self.name)
        self.machine.most = max(self.machine.most, len(self.machine.resident))
        self.compiled, self.submodels = True, 1
        return [np.zeros(3, np.float32)]

    def rate(self, seconds: float, limit: float) -> float:
        assert self.alive and self.name in self.machine.resident
        self.machine.trials += 1
        self.machine.now += max(seconds, self.shortest_trial)
        return self.machine.speed(self.name)

    def end(self) -> None:
        self.alive = False
        if self.name in self.machine.resident:
            self.machine.resident.remove(self.name)
