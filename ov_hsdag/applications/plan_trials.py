"""Trials of plans: selects those that run, runs each with all of its models at once, and chooses among them.

In a trial the models run in worker processes on the real devices; `ov_hsdag.applications.runner` says in which order.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.applications.application import Application
from ov_hsdag.applications.plan_figures import figures_of
from ov_hsdag.applications.prepared import PlanContext, Prepared
from ov_hsdag.applications.runner import FACTORY
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring.co_running import CoRunningModels
from ov_hsdag.measuring.comparison import Comparison
from ov_hsdag.measuring.process import Candidate
from ov_hsdag.measuring.trials import Trials
from ov_hsdag.model.inputs import timed_inputs
from ov_hsdag.utils.errors import RunError
from ov_hsdag.utils.warn import warn_caller

TRIAL = 0.5
"""Seconds of a trial of an application; longer than for one model, as each of its models has to run some times."""

WHOLE = 2
"""Number of plans without splits that are measured, the best by prediction."""

# Standard deviation of the logarithm of a plan's predicted gain over another plan, where each model was timed.
_ERROR = 0.1


def measure_plans(
    application: Application,
    plans: dict[str, NDArray[np.int64]],
    prepared: Sequence[Prepared],
    context: PlanContext,
    end: float,
) -> tuple[str, dict[str, Any]] | None:
    """Measures plans and chooses among them.

    Args:
        application: the application.
        plans: assignments by name of the plan, int64 [members].
        prepared: the models.
        context: what all steps share.
        end: time of `time.monotonic` at which the time budget ends, seconds.

    Returns:
        Name of the chosen plan, and the figures of all plans by name; None where nothing ran, with a warning.
    """
    to_measure = _PlansToMeasure.of(application, plans)
    devices = context.session.devices
    remaining = max(end - time.monotonic(), 1.0)
    try:
        with Comparison(
            prepared[0].analysis.model,
            devices,
            {name: candidate_of(application, plans[name], devices) for name in to_measure.names},
            application.objective,
            context.session.core,
            simple=to_measure.simple,
            needs=to_measure.needs,
            first=to_measure.first,
            limit=remaining,
            report=context.tell,
            start_worker=context.start_worker,
            **comparison_arguments(application, prepared),
        ) as comparison:
            predicted = {name: 1 / to_measure.scores[name] for name in to_measure.names}
            trials = Trials(comparison, to_measure.simple, predicted, _ERROR, end, TRIAL, to_measure.singles)
            decision = trials.run()
            if decision is None:
                comparison.raise_failures()
            key = "latency_us" if application.objective == "latency" else "runs_per_second"
            return decision.chosen, trials.figures(decision, application.objective, key)
    except RunError as error:
        warn_caller(f"nothing could be measured, so the plan is chosen by prediction: {error}")
        return None


@dataclass(frozen=True, eq=False)
class _PlansToMeasure:
    """The plans that are measured.

    Attributes:
        names: all of them, those without splits first. Equal plans have one name; of plans without splits that only
            exchange equal devices, one is measured.
        simple: those without splits.
        singles: those with everything on one device.
        first: all, in the order of compiling: the best without splits and the best with everything on one device come
            first, in case time is short.
        scores: predicted latency or period by plan, µs.
        needs: bytes that a plan needs on each device, by plan and device.
    """

    names: list[str]
    simple: list[str]
    singles: list[str]
    first: list[str]
    scores: dict[str, float]
    needs: dict[str, dict[str, int]]

    @classmethod
    def of(cls, application: Application, plans: Mapping[str, NDArray[np.int64]]) -> _PlansToMeasure:
        """Selects and orders the plans to measure.

        Args:
            application: the application.
            plans: assignments by name of the plan, int64 [members].
        """
        name_of: dict[bytes, str] = {}
        distinct = [name for name, plan in plans.items() if name_of.setdefault(plan.tobytes(), name) == name]
        evaluation = application.evaluate(np.stack([plans[name] for name in distinct]))
        scores = dict(zip(distinct, evaluation.score(application.objective), strict=True))
        needs = {name: figures_of(application, evaluation, row)["memory_bytes"] for row, name in enumerate(distinct)}
        where = {name: {*application.describe(plans[name].tolist()).values()} for name in distinct}
        whole = [name for name in distinct if where[name] <= {*application.devices}]
        with_splits = [name for name in distinct if name not in whole]
        rows = application.distinct(np.stack([plans[name] for name in whole])) if whole else ()
        simple = [whole[row] for row in rows]
        singles = [name for name in simple if len(where[name]) == 1]
        names = [*simple, *with_splits]
        best_simple = min(simple, key=scores.__getitem__, default="")
        best_single = min(singles, key=scores.__getitem__, default="")
        first = sorted(names, key=lambda name: (name != best_simple, name != best_single, scores[name]))
        return cls(names, simple, singles, first, scores, needs)


def candidate_of(application: Application, assignment: NDArray[np.int64], devices: DeviceSet) -> Candidate:
    """Makes the candidate that runs a plan.

    Args:
        application: the application.
        assignment: the plan, int64 [members].
        devices: the devices, in HETERO's order.

    Returns:
        The first model's candidate, with those of the other models in `Candidate.co_running`.
    """
    ways = []
    for member, number in zip(application.members, assignment.tolist(), strict=True):
        way = member.ways[number]
        single = way.name in application.devices
        affinity = {} if single else member.problem.affinity(way.placement)
        ways.append(Candidate(way.name) if single else Candidate.placed(devices, affinity))
    return replace(ways[0], co_running=ways[1:])


def comparison_arguments(application: Application, prepared: Sequence[Prepared]) -> dict[str, Any]:
    """Makes arguments of `Comparison` by which all models of an application run in the trials of the first one.

    Args:
        application: the application.
        prepared: its models, in the order of the members.

    Returns:
        "shapes" and "phases" of the first model, and "co_running", the other models.
    """
    first, *rest = [(one.analysis, one.phases) for one in prepared]
    co_running = CoRunningModels(
        models=[one.model for one, _ in rest],
        inputs=[timed_inputs(one.model, one.shapes, phases) for one, phases in rest],
        factory=FACTORY,
        arguments={
            "counts": [one.member.count for one in prepared],
            "after": application.sources,
            "order": application.order,
        },
    )
    return {"shapes": first[0].shapes, "phases": first[1], "co_running": co_running}
