"""The main memory of this machine, which several devices may share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.costs.profile import Profile
from ov_hsdag.devices import discovery
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.utils.byte_sizes import format_bytes
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.warn import warn_caller


@dataclass(frozen=True)
class HostMemory:
    """Main memory that several devices share: the CPU, virtual devices, integrated GPUs and NPUs.

    Attributes:
        devices: names of the devices that share it.
        room: bytes that a model may have in it.
    """

    devices: tuple[str, ...]
    room: int

    @classmethod
    def of(
        cls,
        core: ov.Core,
        names: Sequence[str],
        given: Mapping[str, int],
        free: bool = False,
        profile: Profile | None = None,
    ) -> HostMemory | None:
        """Determines the memory that some of the devices share.

        Args:
            core: Core of the devices.
            names: names of the devices.
            given: memory limits that the user set, bytes by device. Where a limit, or the profile, names more memory
                than this machine has, another machine is meant, and its memory counts.
            free: whether a model may have most of the memory that is free now; otherwise it may have all memory.
            profile: device profile that the user gave; None where none was.

        Returns:
            The shared memory; None where fewer than two devices share it, where the user set limits for all of them, or
            where this machine does not report its memory.
        """
        sharing = tuple(name for name in names if discovery.uses_host_memory(core, name))
        if len(sharing) < 2 or set(sharing) <= set(given):
            return None
        available = discovery.free_bytes(core, "CPU") if free else discovery.memory_bytes(core, "CPU")
        if available is None:
            return None
        room = int(discovery.USABLE * available) if free else available
        declared = () if profile is None else profile.memory_bytes(sharing).tolist()
        return cls(sharing, max(room, *declared, *(given.get(name, 0) for name in sharing)))

    def warn_beyond(self, needed: int) -> None:
        """Warns where the devices need more bytes together than they share; each limit alone may be kept."""
        if needed > self.room:
            warn_caller(
                f"{' and '.join(self.devices)} need {format_bytes(needed)} together, and share the"
                f" {format_bytes(self.room)} of this machine"
            )

    def needed(self, problem: PlacementProblem, counted: NDArray[np.int64]) -> int:
        """Computes the bytes of the shared memory that a placement needs.

        Args:
            problem: the problem.
            counted: `Evaluation.memory_bytes` of the placement, int64 [devices].
        """
        stored = zip(problem.devices, problem.stored_bytes(counted), strict=True)
        return sum(bytes_ for name, bytes_ in stored if name in self.devices)

    def holds(self, problem: PlacementProblem, counted: NDArray[np.int64]) -> bool:
        """Whether the shared memory holds a placement; for `counted` see `needed`."""
        return self.needed(problem, counted) <= self.room


def feasible(
    problem: PlacementProblem, placements: Sequence[NDArray[np.uint8]] | NDArray[np.uint8], host: HostMemory | None
) -> NDArray[np.bool_]:
    """Tells which placements HETERO runs and all memory limits allow.

    Args:
        problem: the problem.
        placements: device numbers of groups, uint8 [placements, groups].
        host: main memory that several devices share; None where it is not checked.

    Returns:
        Whether each placement is feasible, bool [placements].
    """
    evaluation = problem.evaluate(np.stack(list(placements)))
    result: NDArray[np.bool_] = evaluation.infeasible == 0
    if host is not None:
        result &= np.array([host.holds(problem, counted) for counted in evaluation.memory_bytes])
    return result
