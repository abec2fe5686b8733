"""A machine with candidates of known speeds, limited memory and its own clock: measuring without devices."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ov_hsdag.measuring import choice, comparison, trials
from ov_hsdag.measuring.other_programs import corrections
from ov_hsdag.measuring.process import Candidate, Worker, WorkerError, WorkerTimeout
from ov_hsdag.measuring.runner import TrialLoad
from ov_hsdag.placing import corrected_search, selection


class Machine:
    """Devices with room for so many compiled candidates, and candidates of known speeds; `now` is in seconds."""

    def __init__(self, speeds: Mapping[str, float], room: float = math.inf, broken: tuple[str, ...] = ()) -> None:
        self.speeds, self.room, self.broken = speeds, room, broken
        self.resident: list[str] = []
        self.most, self.compiled, self.trials = 0, 0, 0
        self.shortest_trial = 0.0
        self.now, self.compiling, self.lock = 0.0, 0.0, threading.Lock()

    def start(self, folder: Path, objective: str, name: str) -> Worker:
        return FakeWorker(self, name)

    def keep_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Time limits of a comparison are counted by this machine's clock."""
        for module in (comparison, corrected_search, selection, trials):
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
        self.rates, self.busy_us, self.load = {}, [], None

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

    def rate(self, seconds: float, limit: float, alone: bool = True) -> float:
        assert self.alive and self.name in self.machine.resident
        if self.shortest_trial > limit:
            raise WorkerTimeout(f"no answer within {limit:.0f} s of running")
        with self.machine.lock:  # trials may run at the same time
            self.machine.trials += 1
            self.machine.now += max(seconds, self.shortest_trial) / (1 if alone else len(self.machine.resident))
        return self.machine.speed(self.name)

    def end(self) -> None:
        self.alive = False
        if self.name in self.machine.resident:
            self.machine.resident.remove(self.name)


class SharedHost:
    """Two cores that are shared with others: each has 0.6 to 1.0 of its speed, drawn anew each half second.

    Attributes:
        busy: seconds that an inference of each candidate takes on each core at full speed.
        predicted: rates, with an error.
        true: rates that candidates have on this host in the long run.
        now: seconds.
    """

    def __init__(self, seed: int, busy: Mapping[str, tuple[float, float]], predicted: Mapping[str, float]) -> None:
        self._random = np.random.default_rng(seed)
        self.busy, self.predicted, self.now = busy, predicted, 0.0
        shares = np.random.default_rng(0).uniform(0.6, 1.0, (4000, 2))
        self.true = {
            name: float(np.min([shares[:, core] / us for core, us in enumerate(one) if us], axis=0).mean())
            for name, one in busy.items()
        }
        self._share, self._until = self._random.uniform(0.6, 1.0, 2), 0.5

    @classmethod
    def drawn(cls, seed: int, error: float) -> SharedHost:
        """With two devices and six splits, 2 to 12% slower than half of one, more or less in balance."""
        random = np.random.default_rng(1000 + seed)
        busy = {"A": (1.0, 0.0), "B": (0.0, 1.0)}
        for number in range(6):
            share, more = random.normal(0.5, 0.03), random.uniform(1.02, 1.12)
            busy[f"split {number}"] = share * more, (1 - share) * more
        predicted = {name: math.exp(random.normal(0, error)) / max(one) for name, one in busy.items()}
        return cls(seed, busy, predicted)

    @staticmethod
    def _rate(busy: tuple[float, float], share: np.ndarray) -> float:
        return min(float(own) / one for own, one in zip(share, busy, strict=True) if one)

    def rate(self, name: str, seconds: float = 0.25) -> float:
        """In a trial."""
        done, end = 0.0, self.now + seconds
        while self.now < end - 1e-9:
            until = min(end, self._until)
            done += (until - self.now) * self._rate(self.busy[name], self._share)
            self.now = until
            if until == self._until:
                self._share, self._until = self._random.uniform(0.6, 1.0, 2), self._until + 0.5
        return done / seconds * math.exp(self._random.normal(0, 0.01))


class CrowdedHost:
    """Cores on which threads of candidates and busy processes run, each with as much of a core as the others.

    A candidate's inference takes some work of a thread for each device that it uses, which all go on at the same time,
    and some work of the thread that starts inferences. The machine's speed wanders, and no two trials are alike.
    """

    def __init__(self, seed: int, cores: int, beside: int, work: Mapping[str, tuple[float, ...]]) -> None:
        """A machine at a moment.

        Args:
            seed: of what is random.
            cores: that all threads share.
            beside: processes that are always busy.
            work: of each candidate, seconds of each device's thread in an inference.
        """
        self._random = np.random.default_rng(seed)
        self.cores, self.beside, self.work = cores, beside, work
        # Two compilations of one candidate differ.
        self._compiled = {name: math.exp(self._random.normal(0, 0.014)) for name in work}
        self._speed = 0.0

    def true_ratio(self, name: str, over: str) -> float:
        """Of the rates on this host without busy processes, of the mean compilation."""
        one, other = (self._trial(self.work[either], 0)[0] for either in (name, over))
        return one / other

    def _trial(self, work: Sequence[float], beside: int) -> tuple[float, float, float, float, float]:
        """Rate, shares of time in which the bounding thread waits and works, cores of the process and of busy ones.

        The bounding thread is the one with the most work; the rate follows from its share of a core.
        """
        threads = np.array([*work, 0.06 * max(work)])
        of_bound = self._largest_share(threads / threads.max(), beside)
        rate = of_bound / float(threads.max())
        own = rate * float(threads.sum())
        return rate, 1 - of_bound, of_bound, own, min(beside, self.cores - own)

    def _largest_share(self, demands: np.ndarray, beside: int) -> float:
        """The share of a core that the thread with a demand of 1 gets.

        Other threads get the same share of their demands. A busy process gets no less than the thread.
        """
        low, high = 0.0, 1.0
        for _ in range(50):
            share = (low + high) / 2
            fits = share * float(demands.sum()) + share * beside <= self.cores
            low, high = (share, high) if fits else (low, share)
        return low

    def round(self, names: Sequence[str], seconds: float = 0.15) -> list[choice.Trial]:
        """A trial of each candidate in this order, corrected."""
        rates, loads = {}, {}
        for name in names:
            self._speed += self._random.normal(0, 0.02)
            rate, waiting, working, own, others = self._trial(self.work[name], self.beside)
            noise = self._random.standard_t(4) * 0.05
            rate *= self._compiled[name] * math.exp(self._speed + noise)
            waiting *= math.exp(self._random.normal(0, 0.01))
            # `/proc/stat` has hundredths of a second, before and after.
            others = max(others + float(np.diff(self._random.uniform(0, 0.01, 2))[0]) / seconds, 0.0)
            rates[name] = rate
            loads[name] = TrialLoad((rate,), (min(waiting, 1.0),), (working,), own, others, self.cores, seconds)
        corrected = corrections(loads)
        return [choice.Trial(name, rate * math.exp(corrected[name]), corrected[name]) for name, rate in rates.items()]


def choose_on(
    rate: Callable[[str], float],
    names: Sequence[str],
    simple: Collection[str],
    predicted: Mapping[str, float],
    error: float,
    over: Callable[[], bool],
) -> choice.Decision:
    """What is chosen among candidates with these rates in trials, as `ov_hsdag.placing.selection` does it."""
    rounds: list[choice.Round] = []
    pair = list(names)
    for turn in itertools.count():
        rounds.append([(name, rate(name)) for name in choice.in_order(pair, turn)])
        decision = choice.decide(rounds, names, simple, predicted, error)
        if turn and (decision.regret < choice.REGRET or over()):
            return decision
        if turn:
            pair = list(choice.next_pair(decision, names, turn + 1))
    raise AssertionError
