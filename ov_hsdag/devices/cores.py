"""Finds out whether CPU devices share cores: virtual devices, or the CPU itself with more threads than cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.devices import cpu, discovery
from ov_hsdag.devices.device_set import kind_of
from ov_hsdag.utils.lazy import ov


@dataclass(frozen=True)
class SharedCores:
    """CPU devices that have more threads together than this process has cores."""

    threads: Mapping[str, int]  # number of threads that each device computes with, by name
    usable: int  # number of cores in the affinity mask, at most the control group's quota

    @classmethod
    def of(cls, core: ov.Core, names: Sequence[str]) -> SharedCores | None:
        """Finds the CPU devices among `names` that share this machine's cores; None if each thread has its own core."""
        here = [name for name in names if kind_of(name) == "CPU" and discovery.full_name(core, name) is not None]
        threads = {name: discovery.inference_threads(core, name) or 0 for name in here}
        if len(here) < 2 and not any(threads.values()):
            return None
        threads = {name: count or discovery.request_cores() for name, count in threads.items()}
        usable = cpu.usable_cores()
        return cls(threads, usable) if sum(threads.values()) > usable else None

    def shares(self, names: Sequence[str]) -> NDArray[np.float64]:
        """Computes the share of the usable cores that each device takes while it works.

        Args:
            names: names of devices.

        Returns:
            Shares from 0 to 1, float64 [devices]; 0 for devices that are not in `threads`.
        """
        return np.array([min(self.threads.get(name, 0), self.usable) / self.usable for name in names])

    def describe(self) -> str:
        """Describes the shared cores in a line for users."""
        names, count = " and ".join(self.threads), sum(self.threads.values())
        have = "has" if len(self.threads) == 1 else "have"
        threads = f"{count} thread{'s' if count > 1 else ''}"
        cores = f"{self.usable} core{' is' if self.usable == 1 else 's are'} usable here"
        return f"{names} {have} {threads}, and {cores}: they share, and are predicted to take turns"
