"""Makes a plan of an application and its assignments, with the figures that the simulator predicts.

An assignment chooses one placement of each model, see `ov_hsdag.applications.application`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.applications.application import Application, ApplicationEvaluation
from ov_hsdag.applications.plan import Plan, PlannedModel
from ov_hsdag.applications.prepared import Prepared
from ov_hsdag.model.workload import Workload


def plan_of(
    application: Application,
    assignments: Mapping[str, NDArray[np.int64]],
    chosen: str,
    measured: dict[str, Any] | None,
    prepared: Sequence[Prepared],
    rates: bool,
) -> Plan:
    """Makes a plan of an application and its assignments, without memory limits and placements.

    Args:
        application: the application.
        assignments: assignment of each plan, by its name, int64 [members].
        chosen: name of the chosen one; the others become baselines.
        measured: measured figures, see `Plan.measured`.
        prepared: the models.
        rates: whether counts are requested rates.

    Returns:
        The plan.
    """
    evaluation = application.evaluate(np.stack(list(assignments.values())))
    figures = {
        name: {**figures_of(application, evaluation, row), "where": application.describe(one.tolist())}
        for row, (name, one) in enumerate(assignments.items())
    }
    models = {}
    spans = evaluation.span_us[list(assignments).index(chosen)].round(3).tolist()
    for ready, number, (begin_us, end_us) in zip(prepared, assignments[chosen].tolist(), spans, strict=True):
        member = ready.member
        way, problem = member.ways[number], member.problem
        result, workload = problem.evaluate(way.placement), Workload.asked(ready.given.workload, None)
        models[member.name] = PlannedModel(
            count=ready.given.count,
            after=ready.given.after,
            where=way.name,
            devices=tuple(problem.devices[device] for device in np.unique(way.placement)),
            busy_us=dict(zip(application.devices, (member.count * result.busy_us[0]).round(3).tolist(), strict=True)),
            memory_bytes=dict(zip(application.devices, problem.stored_bytes(result.memory_bytes[0]), strict=True)),
            begin_us=begin_us,
            end_us=end_us,
            workload=None if workload is None else workload.describe(),
            timed=dict(ready.timed),
        )
    return Plan(
        devices=application.devices,
        objective=application.objective,
        models=models,
        predicted=figures[chosen],
        baselines={name: one for name, one in figures.items() if name != chosen},
        measured=measured,
        chosen=chosen,
        asked=1.0 if rates else None,
    )


def figures_of(application: Application, evaluation: ApplicationEvaluation, row: int) -> dict[str, Any]:
    """Returns the predicted figures of a plan, see `Plan.predicted`.

    Args:
        application: the application.
        evaluation: simulated assignments.
        row: number of the plan's assignment among them.

    Returns:
        The figures, JSON-able.
    """
    busy = evaluation.busy_us[row]
    return {
        "runs_per_second": round(1e6 / max(float(evaluation.period_us[row]), 1e-9), 6),
        "latency_us": round(float(evaluation.latency_us[row]), 3),
        "busy_us": dict(zip(application.devices, busy.round(3).tolist(), strict=True)),
        "memory_bytes": dict(zip(application.devices, evaluation.memory_bytes[row].tolist(), strict=True)),
    }
