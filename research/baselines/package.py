"""Adapters that turn this package's placers, HETERO's rule and single devices into baselines.

Each uses one evaluation, for the placement that it would give a user. Its own computations with the problem's costs
count as processor time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.placers.base import Placer
from ov_hsdag.placers.contiguous import Contiguous
from ov_hsdag.placers.mincut import MinCut
from ov_hsdag.placers.multilevel import Multilevel
from ov_hsdag.placing.candidates import best_by_prediction, find_candidates, policy_placers
from ov_hsdag.policy.bundle import DEFAULT
from ov_hsdag.policy.placer import HSDAGPlacer
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.utils.errors import RunError, UserError
from research.baselines.budget import Environment


@dataclass(frozen=True)
class Placed:
    """The placement of one placer."""

    name: str  # name in tables
    placer: Callable[[int], Placer]  # makes a placer for a seed

    def place(self, environment: Environment, seed: int = 0) -> None:
        """Implements `Baseline.place`."""
        environment.cost(runnable(environment.problem, self.placer(seed).place(environment.problem)))


@dataclass(frozen=True)
class Proposed:
    """The best of a policy's proposals by the simulator, single devices included, without refinement by search."""

    policy: str | None = None  # name or folder of the policy; None for the shipped one
    name: str = "network alone"  # name in tables

    def place(self, environment: Environment, seed: int = 0) -> None:
        """Implements `Baseline.place`."""
        problem = environment.problem
        found = HSDAGPlacer(self.policy, seed=seed).propose(problem)
        environment.cost(runnable(problem, found[int(problem.scores(found).argmin())]))


@dataclass(frozen=True)
class Alone:
    """Everything on one device; infeasible where it lacks an operation or memory."""

    device: int  # number of the device
    name: str  # name in tables

    def place(self, environment: Environment, seed: int = 0) -> None:
        """Implements `Baseline.place`."""
        environment.cost(environment.problem.single(self.device))


@dataclass(frozen=True)
class AloneOfKind:
    """Everything on the first device of a kind, such as "GPU"; no evaluation where there is none."""

    kind: str  # prefix of the device's name
    name: str  # name in tables

    def place(self, environment: Environment, seed: int = 0) -> None:
        """Implements `Baseline.place`."""
        for number, device in enumerate(environment.problem.devices):
            if device.startswith(self.kind):
                environment.cost(environment.problem.single(number))
                return


@dataclass(frozen=True)
class HeteroRule:
    """HETERO's own rule: the first device of the list takes all that it supports, the next one the rest, and so on."""

    name: str = "HETERO's rule"  # name in tables
    first: str = ""  # kind of the devices that lead the list, such as "CPU"; the others follow in their order

    def place(self, environment: Environment, seed: int = 0) -> None:
        """Implements `Baseline.place`."""
        problem = environment.problem
        order = np.array(
            sorted(range(len(problem.devices)), key=lambda d: not problem.devices[d].startswith(self.first))
        )
        environment.cost(order[problem.group_supported[:, order].argmax(axis=1)].astype(np.uint8))


@dataclass(frozen=True)
class Shipped:
    """The placement of `ov_hsdag.place` without measuring: the best prediction of all its placers."""

    policy: str = DEFAULT  # name or folder of the learned policy among the placers; "none" for no policy
    name: str = "HSDAG as shipped"  # name in tables

    def place(self, environment: Environment, seed: int = 0) -> None:
        """Implements `Baseline.place`. There is no evaluation where no placement keeps within the memory limits."""
        candidates = find_candidates(environment.problem, policy_placers(self.policy))
        with contextlib.suppress(RunError, UserError):
            environment.cost(best_by_prediction(environment.problem, candidates).placement)


def runnable(problem: PlacementProblem, placement: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Moves groups to devices that support them, and repairs what HETERO would refuse, uint8 [groups]."""
    placement = problem.where_supported(placement)
    return problem.repair(placement) if problem.evaluate(placement).broken[0] else placement


MINIMUM_CUT = Placed("minimum cut", lambda seed: MinCut())
CONTIGUOUS_PARTITION = Placed("contiguous partition", lambda seed: Contiguous())
SEARCH = Placed("search, no network", lambda seed: Multilevel(seed=seed))
NETWORK = Proposed()
