"""Which candidates have room in the devices' memory at the same time."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from ov_hsdag.devices import discovery
from ov_hsdag.devices.device_set import kind_of

if TYPE_CHECKING:
    import openvino as ov

HOST = "CPU"
"""Name of the memory that all CPU devices share, and in which every worker runs."""

# Of what is free, so much is used: estimates are rough, and the machine is somebody's.
_SHARE = 0.9

# The simulator counts weights and live tensors once. Plugins keep copies in layouts of their own, and tensors for each
# request in flight; compiling needs more than running.
_TIMES = 1.5

# A process with OpenVINO and a model in it.
_PROCESS = 256 * 2**20


class Room:
    """Memory of the devices, as far as it is known."""

    def __init__(self, core: ov.Core, needs: Mapping[str, Mapping[str, int]]) -> None:
        """Looks at nothing yet.

        core: has the devices. needs: bytes of each candidate on each device, as the simulator counts them.
        """
        self._core, self._needs = core, dict(needs)
        self.most: float = math.inf  # candidates in memory at the same time, learned from failures

    def add(self, name: str, needs: Mapping[str, int]) -> None:
        """One candidate more; needs: its bytes on each device."""
        self._needs[name] = needs

    def together(self, names: Sequence[str]) -> list[str]:
        """Those that fit into the memory that is free now, in this order; the first one always does."""
        chosen: list[str] = []
        total = dict.fromkeys(self._memories(names), 0.0)
        for name in names:
            grown = {memory: used + self._need(name, memory) for memory, used in total.items()}
            if chosen and not all(used <= _SHARE * self._free(memory) for memory, used in grown.items()):
                continue
            chosen.append(name)
            total = grown
        return chosen

    def fits(self, name: str, resident: Collection[str]) -> bool:
        """Whether one more fits beside those that are compiled."""
        if len(resident) + 1 > self.most:
            return False
        for memory in self._memories([name]):
            need = self._need(name, memory)
            # What is free of the host's memory is without the residents; other devices do not say what is used.
            used = 0.0 if memory == HOST else sum(self._need(other, memory) for other in resident)
            if used + need > _SHARE * self._free(memory):
                return False
        return True

    def _memories(self, names: Collection[str]) -> list[str]:
        found = {HOST: None}
        for name in names:
            for device, count in self._needs.get(name, {}).items():
                if count and kind_of(device) != "CPU":
                    found[device] = None
        return list(found)

    def _need(self, name: str, memory: str) -> float:
        own = self._needs.get(name, {})
        if memory != HOST:
            return _TIMES * own.get(memory, 0)
        return _PROCESS + _TIMES * sum(count for device, count in own.items() if kind_of(device) == "CPU")

    def _free(self, memory: str) -> float:
        free = discovery.free_bytes(self._core, memory)
        return math.inf if free is None else free
