"""Memory of this machine, which several devices compute in."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.costs.profile import Profile
from ov_hsdag.devices import discovery
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.utils.byte_sizes import format_bytes
from ov_hsdag.utils.lazy import ov


@dataclass(frozen=True)
class HostMemory:
    """Memory of this machine, where several devices compute in it: its CPU, virtual ones, integrated GPUs and NPUs."""

    devices: tuple[str, ...]  # that share it
    room: int  # of it that a model may have, bytes

    @classmethod
    def of(
        cls,
        core: ov.Core,
        names: Sequence[str],
        given: Mapping[str, int],
        free: bool = False,
        profile: Profile | None = None,
    ) -> HostMemory | None:
        """What the devices share; None where fewer than two do, and where all that do have limits of the user's.

        given: limits of the user's. profile: the user's. A machine that is said to have more than this one has is
        another machine. free: whether a model may have most of what is free, and not all memory.
        """
        sharing = tuple(name for name in names if discovery.uses_host_memory(core, name))
        if len(sharing) < 2 or set(sharing) <= set(given):
            return None
        known = discovery.free_bytes(core, "CPU") if free else discovery.memory_bytes(core, "CPU")
        if known is None:
            return None
        room = int(discovery.USABLE * known) if free else known
        declared = () if profile is None else profile.memory_bytes(sharing).tolist()
        return cls(sharing, max(room, *declared, *(given.get(name, 0) for name in sharing)))

    def warn_beyond(self, needed: int) -> None:
        """Warns where the devices need more bytes together than they share, though each holds its part."""
        if needed > self.room:
            warnings.warn(
                f"{' and '.join(self.devices)} need {format_bytes(needed)} together, and share the"
                f" {format_bytes(self.room)} of this machine",
                stacklevel=3,
            )

    def needed(self, problem: PlacementProblem, counted: NDArray[np.int64]) -> int:
        """Bytes of it that a placement needs. counted: `Evaluation.memory_bytes` of it, [devices]."""
        stored = zip(problem.devices, problem.stored_bytes(counted), strict=True)
        return sum(bytes_ for name, bytes_ in stored if name in self.devices)

    def holds(self, problem: PlacementProblem, counted: NDArray[np.int64]) -> bool:
        """Whether it has room for that; counted: see `needed`."""
        return self.needed(problem, counted) <= self.room


def feasible(
    problem: PlacementProblem, placements: Sequence[NDArray[np.uint8]] | NDArray[np.uint8], host: HostMemory | None
) -> NDArray[np.bool_]:
    """Which placements HETERO runs within the devices' memory, and within that of the machine, bool [placements]."""
    found = problem.evaluate(np.stack(list(placements)))
    result: NDArray[np.bool_] = found.infeasible == 0
    if host is not None:
        result &= np.array([host.holds(problem, counted) for counted in found.memory_bytes])
    return result
