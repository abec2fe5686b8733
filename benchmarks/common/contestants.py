"""Who takes part in the comparisons: every baseline, what the package has, and HSDAG as published and as shipped.

What needs more than a problem and a budget is not here: HETERO's pipeline hint, AUTO and copies of the model on each
device run on real devices alone (measured.py).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from research.baselines.budget import Baseline
from research.baselines.metis import Metis
from research.baselines.package import CONTIGUOUS_PARTITION, MINIMUM_CUT, NETWORK, SEARCH, Alone, HeteroRule, Shipped

SHIPPED = Shipped().name
"""The name of what users get by default: the policy that ships proposes beside search."""

NO_NETWORK = "place, no network"
"""The name of what `--policy none` gives: no network takes part."""

PUBLISHED = "HSDAG as published"
"""The name of the published algorithm, learned on the problem itself."""


@dataclass(frozen=True)
class Contestant:
    """A method of placement."""

    name: str  # in tables
    make: Callable[[], Baseline]  # the method
    seeded: bool = False  # whether its placements depend on the seed
    learns: bool = False  # whether it learns from its evaluations, and takes accordingly long


def learning_rival(module: str, name: str, **settings: Any) -> Callable[[], Baseline]:
    """Makes a rival that learns, when it is needed: torch is imported then.

    Args:
        module: of `research.baselines`.
        name: of the rival's class there.
        settings: of the rival.
    """

    def make() -> Baseline:
        found: Baseline = getattr(importlib.import_module(f"research.baselines.{module}"), name)(**settings)
        return found

    return make


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

    Args:
        colocate: whether the RNN placer's rule of co-location, which Placeto and GO take over, makes one node of each
            chain. Graphs of layers are chains of what it would have made.
    """
    return (
        Contestant("RNN-based", learning_rival("rnn", "RNN", colocate=colocate), seeded=True, learns=True),
        Contestant("Placeto", learning_rival("placeto", "Placeto", colocate=colocate), seeded=True, learns=True),
        Contestant("GO", learning_rival("go", "GO", colocate=colocate), seeded=True, learns=True),
        Contestant(PUBLISHED, learning_rival("hsdag_published", "HSDAGPublished"), seeded=True, learns=True),
    )


LEARNED = learned()
"""What learns on the very problem, from scratch."""

ABLATIONS = (
    *(
        Contestant(
            f"without {what}",
            learning_rival("hsdag_published", "HSDAGPublished", without=(what,)),
            seeded=True,
            learns=True,
        )
        for what in ("output shape", "node id", "structure")
    ),
    Contestant(
        "without hierarchy", learning_rival("hsdag_published", "HSDAGPublished", levels=1), seeded=True, learns=True
    ),
    Contestant(
        "not trained", learning_rival("hsdag_published", "HSDAGPublished", learning_rate=0.0), seeded=True, learns=True
    ),
)
"""HSDAG as published with one thing taken away each."""

OURS = (Contestant(NO_NETWORK, lambda: Shipped(policy="none", name=NO_NETWORK)), Contestant(SHIPPED, Shipped))
"""What users get with `--policy none`, and by default, with the policy that ships."""


def single(number: int, name: str) -> Contestant:
    """One device of a problem."""
    return Contestant(name, lambda: Alone(number, name))
