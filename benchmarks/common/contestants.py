"""Who takes part in the comparisons: every baseline, what the package has, and HSDAG as published and as shipped.

What needs more than a problem and a budget is not here: HETERO's pipeline hint, AUTO and copies of the model on each
device run on real devices alone (measured.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from research.baselines.budget import Baseline, Environment
from research.baselines.metis import Metis
from research.baselines.package import CONTIGUOUS_PARTITION, MINIMUM_CUT, NETWORK, SEARCH, Alone, HeteroRule, Shipped

SHIPPED = Shipped().name
"""The name of what users get by default: the policy that ships proposes beside search."""

NO_NETWORK = "place, no network"
"""The name of what `--policy none` gives: no network takes part."""

LEARNING_RATE = 1e-3
"""Of the authors' published code."""


@dataclass(frozen=True)
class Contestant:
    """A method of placement."""

    name: str  # in tables
    make: Callable[[], Baseline]  # the method
    seeded: bool = False  # whether its placements depend on the seed
    learns: bool = False  # whether it learns from its evaluations, and takes accordingly long


@dataclass(frozen=True)
class Published:
    """HSDAG as published, learned on the problem itself: `published.paper` with every placement measured."""

    def place(self, environment: Environment, seed: int = 0) -> None:
        """See `Baseline.place`."""
        from ov_hsdag.policy.config import Widths
        from research.baselines import published

        @dataclass(frozen=True, eq=False)
        class Measured(published.Task):
            """Scores are measured, not looked up."""

            def scores(self, placements: NDArray[np.uint8]) -> NDArray[np.float64]:
                return environment.costs(placements) * 1e6

        devices = len(environment.problem.devices)
        plain = published.Task.of(environment.problem)
        task = Measured(plain.problem, plain.x, plain.inputs, plain.reference)
        config = published.paper(Widths.of(task.x), devices)
        left = environment.remaining
        episodes = published.EPISODES if left is None else max(-(-left // config.steps), 1)
        published.train(task, config, episodes=episodes, learning_rate=LEARNING_RATE, seed=seed)


SIMPLE = (
    Contestant("HETERO's rule", HeteroRule),
    Contestant("METIS", Metis, seeded=True),
    Contestant("minimum cut", lambda: MINIMUM_CUT),
    Contestant("contiguous partition", lambda: CONTIGUOUS_PARTITION),
    Contestant("search, no network", lambda: SEARCH, seeded=True),
    Contestant("network alone", lambda: NETWORK, seeded=True),
)
"""What learns nothing while it places."""


LEARNED = (Contestant("HSDAG as published", Published, seeded=True, learns=True),)
"""What learns on the very problem, as published."""

OURS = (Contestant(NO_NETWORK, lambda: Shipped(policy="none", name=NO_NETWORK)), Contestant(SHIPPED, Shipped))
"""What users get with `--policy none`, and by default, with the policy that ships."""


def single(number: int, name: str) -> Contestant:
    """One device of a problem."""
    return Contestant(name, lambda: Alone(number, name))
