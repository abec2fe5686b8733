"""Who takes part in the comparisons: every baseline, what the package has, and HSDAG as published and as shipped.

What needs more than a problem and a budget is not here: HETERO's pipeline hint, AUTO and copies of the model on each
device run on real devices alone (measured.py).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from research.baselines.budget import Baseline, Environment
from research.baselines.metis import Metis
from research.baselines.package import (
    CONTIGUOUS_PARTITION,
    MINIMUM_CUT,
    NETWORK,
    SEARCH,
    Alone,
    HeteroRule,
    Shipped,
)

if TYPE_CHECKING:
    from ov_hsdag.policy.config import HSDAGConfig

SHIPPED = Shipped().name
"""The name of what users get by default: the policy that ships proposes beside search."""

NO_NETWORK = "place, no network"
"""The name of what `--policy none` gives: no network takes part."""

# Clusters at which parsing stops where it is not to be limited to four.
MANY_CLUSTERS = 48


@dataclass(frozen=True)
class Contestant:
    """A method of placement."""

    name: str  # in tables
    make: Callable[[], Baseline]  # the method
    seeded: bool = False  # whether its placements depend on the seed
    learns: bool = False  # whether it learns from its evaluations, and takes accordingly long


def _learned(module: str, name: str, **settings: Any) -> Callable[[], Baseline]:
    def make() -> Baseline:
        found: Baseline = getattr(importlib.import_module(f"research.baselines.{module}"), name)(**settings)
        return found

    return make


@dataclass(frozen=True)
class Published:
    """HSDAG as published, learned on the problem itself: `published.paper` with every placement measured."""

    without: tuple[str, ...] = ()  # groups of features that are left out (`research.baselines.published.ABLATIONS`)
    clusters: int | None = None  # at which parsing stops
    learning_rate: float = 1e-3  # of the authors' published code; 0: nothing is learned

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
        plain = published.Task.of(environment.problem, published.paper(Widths(0, 0, 0, 0), devices, self.without))
        task = Measured(plain.problem, plain.x, plain.inputs, plain.reference)
        config: HSDAGConfig = published.paper(Widths.of(task.x), devices, self.without)
        if self.clusters is not None:
            config = replace(config, min_clusters=self.clusters)
        left = environment.remaining
        episodes = published.EPISODES if left is None else max(-(-left // config.steps), 1)
        published.train(task, config, episodes=episodes, learning_rate=self.learning_rate, seed=seed)


SIMPLE = (
    Contestant("HETERO's rule", HeteroRule),
    Contestant("METIS", Metis, seeded=True),
    Contestant("minimum cut", lambda: MINIMUM_CUT),
    Contestant("contiguous partition", lambda: CONTIGUOUS_PARTITION),
    Contestant("search, no network", lambda: SEARCH, seeded=True),
    Contestant("network alone", lambda: NETWORK, seeded=True),
)
"""What learns nothing while it places."""


def learned(*, colocate: bool = True) -> tuple[Contestant, ...]:
    """What learns on the very problem.

    colocate: whether the RNN placer's rule of co-location, which Placeto takes over, makes one node of each chain.
    Graphs of layers are chains of what it would have made.
    """
    return (
        *(
            Contestant(label, _learned(module, name, colocate=colocate), seeded=True, learns=True)
            for label, module, name in (("Placeto", "placeto", "Placeto"), ("RNN-based", "rnn", "RNN"))
        ),
        Contestant("HSDAG as published", Published, seeded=True, learns=True),
    )


LEARNED = learned()
"""What learns on the very problem, as published."""

ABLATIONS = (
    Contestant("HSDAG as published", lambda: Published(clusters=MANY_CLUSTERS), seeded=True, learns=True),
    *(
        Contestant(
            f"without {label}",
            lambda group=group: Published((group,), clusters=MANY_CLUSTERS),  # type: ignore[misc]
            seeded=True,
            learns=True,
        )
        for group, label in (
            ("output_shape", "output shape"),
            ("node_id", "node id"),
            ("structure", "structural features"),
        )
    ),
    Contestant("not trained", lambda: Published(clusters=MANY_CLUSTERS, learning_rate=0.0), seeded=True, learns=True),
    Contestant("four clusters", Published, seeded=True, learns=True),
)
"""HSDAG as published with parsing that stops at `MANY_CLUSTERS`, and with one thing changed each."""

OURS = (Contestant(NO_NETWORK, lambda: Shipped(policy="none", name=NO_NETWORK)), Contestant(SHIPPED, Shipped))
"""What users get with `--policy none`, and by default, with the policy that ships."""


def single(number: int, name: str) -> Contestant:
    """One device of a problem."""
    return Contestant(name, lambda: Alone(number, name))
