"""The ways to run an application that `ov-hsdag bench` compares."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.applications.application import Application
from ov_hsdag.applications.plan_figures import figures_of
from ov_hsdag.applications.plan_trials import WHOLE, candidate_of
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.placing.rivals import Rival, mark_twins


def contenders_of_plan(app: Application, plan: NDArray[np.int64]) -> tuple[list[Rival], dict[str, str]]:
    """Lists ways to run an application: all models on each device, the best whole-device assignments, and the plan.

    Args:
        app: the application.
        plan: assignment of the plan, int64 [members], see `Application`.

    Returns:
        The rivals, and the reason by name for each way that is left out because it does not fit into memory. The plan
        is never left out. `Rival.placement` is the assignment, uint8 [members].
    """
    whole = enumerate(app.distinct_whole(WHOLE), 1)
    named = app.on_each_device() | {f"whole, {number}" if number > 1 else "whole": one for number, one in whole}
    named["plan"] = plan
    evaluation, rivals = app.evaluate(np.stack(list(named.values()))), []
    for row, (name, assignment) in enumerate(named.items()):
        figures = figures_of(app, evaluation, row)
        figures |= {"throughput_ips": figures["runs_per_second"], "submodels": None}
        candidate = candidate_of(app, assignment, DeviceSet(app.devices))
        rivals.append(Rival(name, candidate, assignment.astype(np.uint8), None if evaluation.over[row] else figures))
    left_out = {one.name: "left out: does not fit" for one in rivals if one.predicted is None and one.name != "plan"}
    return mark_twins([one for one in rivals if one.name not in left_out]), left_out
