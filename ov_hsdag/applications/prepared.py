"""Models of an application on their way to a plan: as the caller gives them, and prepared, which is ready to be placed.

Models are prepared when a plan is searched, and again when a stored plan is loaded. Figures and trials of plans are
made of prepared models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ov_hsdag.applications.application import Member
from ov_hsdag.measuring.process import StartWorker
from ov_hsdag.model.workload import Phase, Workload
from ov_hsdag.problem.pricing import ModelAnalysis, Session
from ov_hsdag.utils.lazy import ov


@dataclass(frozen=True, eq=False)
class ModelOf:
    """A model of an application, with its count, order, shapes and workload.

    Attributes:
        model: the model, which is normalized and annotated in place.
        count: runs of the model (of its workload, if it has one) in one run of the application.
        after: names of the models whose outputs it waits for.
        shapes: example shapes of dynamic inputs, by input name.
        workload: workload of a decoder with states, such as "prompt=1024,generate=256".
    """

    model: ov.Model
    count: float = 1.0
    after: tuple[str, ...] = ()
    shapes: Mapping[str, Sequence[int]] | None = None
    workload: Workload | str | None = None


@dataclass(frozen=True, eq=False)
class PlanContext:
    """What all steps of planning an application share.

    Attributes:
        session: the devices with their Core and profile.
        objective: "latency" or "throughput".
        tell: called with a few words at each step.
        start_worker: starts a worker process for measuring; None for a local one.
    """

    session: Session
    objective: str
    tell: Callable[[str], None]
    start_worker: StartWorker | None


@dataclass(frozen=True, eq=False)
class Prepared:
    """A model that is ready to be placed and measured.

    Attributes:
        given: the model as the caller gave it.
        analysis: the normalized model with its graph, example shapes and the devices that run its nodes.
        phases: phases of its workload; empty without one.
        member: the model as a member of the application, with the placements that have been found.
        timed: measured times divided by those of the profile, see `PlannedModel.timed`; empty where it was not timed.
        seconds: wall time of timing the model, seconds.
    """

    given: ModelOf
    analysis: ModelAnalysis
    phases: tuple[Phase, ...]
    member: Member
    timed: Mapping[str, float]
    seconds: float = 0.0
