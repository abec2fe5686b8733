"""Every placer that needs no learning, in one list: `place` asks them in this order, and tables name them by it.

A new placer is a file of this folder and an entry here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ov_hsdag.model.experts import experts
from ov_hsdag.placers.base import Placer
from ov_hsdag.placers.contiguous import Contiguous
from ov_hsdag.placers.experts import ExpertsApart
from ov_hsdag.placers.filling import Filling, crowded
from ov_hsdag.placers.mincut import MinCut
from ov_hsdag.placers.multilevel import Multilevel
from ov_hsdag.placers.partitions import Partitions
from ov_hsdag.placers.single import simple_placers
from ov_hsdag.problem.problem import PlacementProblem

_MOST_NODES_OF_PARTITIONS = 8000
"""Nodes of a model above which partitions of several orders are left out: there they take longer than all other
placers, and on deep models they were never what was chosen."""


@dataclass(frozen=True)
class RegisteredPlacer:
    """A placer that `place` asks.

    Attributes:
        make: makes the placer with its defaults.
        phrase: what it does, in a few words, for the legend of tables.
        applies: whether the placer is asked for a problem; it may look at sizes, devices and limits.
        tunes: whether fine-tuning asks it again on costs that measuring has corrected, as it is fast and often right.
    """

    make: Callable[[], Placer]
    phrase: str
    applies: Callable[[PlacementProblem], bool] = lambda problem: True
    tunes: bool = False


def _several_devices(problem: PlacementProblem) -> bool:
    """Whether the problem has more than one device."""
    return len(problem.devices) > 1


REGISTERED: tuple[RegisteredPlacer, ...] = (
    RegisteredPlacer(MinCut, "minimum cut", tunes=True),
    RegisteredPlacer(Contiguous, "contiguous partition", tunes=True),
    RegisteredPlacer(Filling, "fills the devices' memory alike", crowded),
    RegisteredPlacer(
        Partitions,
        "contiguous partitions of several orders",
        lambda problem: _several_devices(problem) and problem.graph.nodes <= _MOST_NODES_OF_PARTITIONS,
    ),
    RegisteredPlacer(
        ExpertsApart,
        "experts of some layers on another device, all else on the first",
        lambda problem: bool(experts(problem.graph)),
    ),
    RegisteredPlacer(Multilevel, "multilevel search", _several_devices),
)
"""The simplest first: of two placements that are predicted alike, the one of the earlier placer is taken."""

PHRASES = {entry.make().name: entry.phrase for entry in REGISTERED}
"""Phrases by the placers' names."""


def unlearned_placers(problem: PlacementProblem, search: Multilevel | None = None) -> list[Placer]:
    """Lists the placers that are asked for a problem: single devices, HETERO's own choice, and the registered ones.

    Args:
        problem: the problem.
        search: a multilevel search that replaces the default one; None for the default.

    Returns:
        The placers, the simplest first.
    """
    placers = [entry.make() for entry in REGISTERED if entry.applies(problem)]
    if search is not None:
        placers = [search if isinstance(placer, Multilevel) else placer for placer in placers]
    return [*simple_placers(problem), *placers]


def tuning_placers() -> list[Placer]:
    """The placers that fine-tuning asks again on corrected costs, the simplest first."""
    return [entry.make() for entry in REGISTERED if entry.tunes]
