"""Lists the methods that take part in comparisons: baselines, placers of the package, HSDAG as published and shipped.

A contestant is a method that places a problem within a budget. HETERO's pipeline hint, AUTO and copies of the model are
no contestants, as they exist only on real devices (measured.py).
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
"""The name of what users get by default: the shipped policy and search both propose placements."""

NO_NETWORK = "place, no network"
"""The name of `place` with `--policy none`, in which no network takes part."""

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
    """Returns a function that makes a learning baseline; it imports torch only when it is called.

    Args:
        module: module of `research.baselines`.
        name: class of the baseline in that module.
        settings: settings of the baseline, arguments of the class.
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
"""Methods that do not learn while they place."""


def learned(*, colocate: bool = True) -> tuple[Contestant, ...]:
    """Methods that learn from scratch on the problem that they place.

    Args:
        colocate: whether the RNN placer's rule of co-location joins each chain of operations into one unit, also for
            Placeto and GO. It should be False for graphs of layers, whose nodes are such units already.
    """
    return (
        Contestant("RNN-based", learning_rival("rnn", "RNN", colocate=colocate), seeded=True, learns=True),
        Contestant("Placeto", learning_rival("placeto", "Placeto", colocate=colocate), seeded=True, learns=True),
        Contestant("GO", learning_rival("go", "GO", colocate=colocate), seeded=True, learns=True),
        Contestant(PUBLISHED, learning_rival("hsdag_published", "HSDAGPublished"), seeded=True, learns=True),
    )


LEARNED = learned()
"""Methods that learn from scratch on the problem that they place, with co-location."""

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
"""HSDAG as published, each time without one of its parts."""

OURS = (Contestant(NO_NETWORK, lambda: Shipped(policy="none", name=NO_NETWORK)), Contestant(SHIPPED, Shipped))
"""`place` with `--policy none`, and by default with the shipped policy."""


def single(number: int, name: str) -> Contestant:
    """The contestant that puts everything on one device. number: index of the device; name: name in tables."""
    return Contestant(name, lambda: Alone(number, name))
