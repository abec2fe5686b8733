"""What this package has, in the form of baselines: thin adapters of its placers, HETERO's rule and single devices.

All ask for one evaluation, of the placement that they would give a user; what they compute from the problem's costs by
themselves counts as processor seconds.
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
    """One placer's placement."""

    name: str  # in tables
    placer: Callable[[int], Placer]  # makes a placer for a seed

    def place(self, environment: Environment, seed: int = 0) -> None:
        """See `Baseline.place`."""
        environment.cost(runnable(environment.problem, self.placer(seed).place(environment.problem)))


@dataclass(frozen=True)
class Proposed:
    """The best by the simulator of what a policy proposes, single devices among it, neither partitioned nor refined."""

    policy: str | None = None  # its name or folder; None: the one that ships
    name: str = "network alone"  # in tables

    def place(self, environment: Environment, seed: int = 0) -> None:
        """See `Baseline.place`."""
        problem = environment.problem
        found = HSDAGPlacer(self.policy, seed=seed).propose(problem)
        environment.cost(runnable(problem, found[int(problem.scores(found).argmin())]))


@dataclass(frozen=True)
class Alone:
    """Everything on one device; infeasible where it lacks an operation or memory."""

    device: int  # its number
    name: str  # in tables

    def place(self, environment: Environment, seed: int = 0) -> None:
        """See `Baseline.place`."""
        environment.cost(environment.problem.single(self.device))


@dataclass(frozen=True)
class AloneOfKind:
    """Everything on the first device of a kind, such as "GPU"; nothing where there is none."""

    kind: str  # what its name begins with
    name: str  # in tables

    def place(self, environment: Environment, seed: int = 0) -> None:
        """See `Baseline.place`."""
        for number, device in enumerate(environment.problem.devices):
            if device.startswith(self.kind):
                environment.cost(environment.problem.single(number))
                return


@dataclass(frozen=True)
class HeteroRule:
    """What HETERO does without a placement: the first device of a list takes all that it supports, and so on."""

    name: str = "HETERO's rule"  # in tables
    first: str = ""  # kind of the devices that lead the list, such as "CPU"; the others follow in their order

    def place(self, environment: Environment, seed: int = 0) -> None:
        """See `Baseline.place`."""
        problem = environment.problem
        order = np.array(
            sorted(range(len(problem.devices)), key=lambda d: not problem.devices[d].startswith(self.first))
        )
        environment.cost(order[problem.group_supported[:, order].argmax(axis=1)].astype(np.uint8))


@dataclass(frozen=True)
class Shipped:
    """What `ov_hsdag.place` gives, not measured: the best by prediction of all its placers."""

    policy: str = DEFAULT  # that is asked besides; "none": no policy
    name: str = "HSDAG as shipped"  # in tables

    def place(self, environment: Environment, seed: int = 0) -> None:
        """See `Baseline.place`. No evaluation where no placement keeps the memory limits."""
        candidates = find_candidates(environment.problem, policy_placers(self.policy))
        with contextlib.suppress(RunError, UserError):
            environment.cost(best_by_prediction(environment.problem, candidates).placement)


def runnable(problem: PlacementProblem, placement: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The placement with groups on devices that run them, repaired where HETERO would not run it, uint8 [groups]."""
    placement = problem.where_supported(placement)
    return problem.repair(placement) if problem.evaluate(placement).broken[0] else placement


MINIMUM_CUT = Placed("minimum cut", lambda seed: MinCut())
CONTIGUOUS_PARTITION = Placed("contiguous partition", lambda seed: Contiguous())
SEARCH = Placed("search, no network", lambda seed: Multilevel(seed=seed))
NETWORK = Proposed()
