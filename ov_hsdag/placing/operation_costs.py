"""Measured costs of a model's operations on the devices of a request: stored ones, or ones that are measured now.

Without either, a model is placed by the costs of its profile. Costs hold for a device if they were measured for the
same graph, and on a device with the same identity (`ModelCosts.of`). A phase is one kind of inference of a workload,
such as reading the prompt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ov_hsdag.calibration.calibrate import calibrate_where_it_runs
from ov_hsdag.costs.stored import ModelCosts
from ov_hsdag.model.workload import Phase
from ov_hsdag.placing import selection
from ov_hsdag.placing.request import PlacingRequest
from ov_hsdag.problem.pricing import ModelAnalysis, graph_of
from ov_hsdag.utils.errors import RunError, one_line
from ov_hsdag.utils.timing import Clock
from ov_hsdag.utils.warn import warn_caller

_LEAST_SECONDS = 1.0
"""Seconds that each phase of a workload is calibrated for, even where those before it took all of the time."""


@dataclass(frozen=True, eq=False)
class OperationCosts:
    """Measured costs of a model's operations.

    Attributes:
        analysis: analysis of the model. Where no device runs the assumed sizes of the inputs, measuring has replaced
            them by smaller ones.
        model: costs of a model without a workload; None where there are none, so that only the profile's costs count.
        phases: costs of a workload's phases, by name; empty without a workload, or where nothing was measured.
    """

    analysis: ModelAnalysis
    model: ModelCosts | None = None
    phases: Mapping[str, ModelCosts] = field(default_factory=dict)

    @property
    def any(self) -> bool:
        """Whether there are measured costs."""
        return self.model is not None or bool(self.phases)

    def hold_everywhere(self, request: PlacingRequest, phases: Sequence[Phase]) -> bool:
        """Whether there are measured costs for all devices of the request.

        Args:
            request: the request.
            phases: phases of the model's workload; empty without one. With a workload, each phase that occurs
                (`Phase.count` above 0) must have costs of all devices; without one, the costs must hold for all.
        """
        if not phases:
            return self.model is not None and _hold(self.model, self.analysis, request)
        measured = [self.phases.get(phase.name) for phase in phases if phase.count]
        return all(costs is not None and all(map(costs.device, request.session.devices)) for costs in measured)

    def devices(self, request: PlacingRequest) -> list[str]:
        """Lists the names of the request's devices that costs were measured on and hold for."""
        names = self.analysis.devices
        core = request.session.core
        measured = list(self.model.of(self.analysis.graph, names, core)) if self.model else []
        for costs in self.phases.values():
            measured += [name for name in names if costs.device(name) and name not in measured]
        return measured


def stored_or_measured(
    analysis: ModelAnalysis,
    request: PlacingRequest,
    phases: Sequence[Phase],
    clock: Clock,
    report: Callable[[str], None] | None,
) -> OperationCosts:
    """Returns the costs that the caller stored earlier, or measures costs where the placement is chosen by measuring.

    If the placement is chosen by prediction, stored costs are returned as they are, whether they hold or not. If it is
    chosen by measuring (`PlacingRequest.measured_choice`), they are returned if they hold for all devices; else the
    operations are measured now.

    Args:
        analysis: analysis of the model.
        request: the request, with the stored costs and the time budget.
        phases: phases of the model's workload; empty without one. Stored costs are not used for a workload.
        clock: records the time of measuring, as "calibrate".
        report: called with a line for people at each step; None for no lines.

    Returns:
        The costs. Where measuring fails, there is a warning, and the stored costs are returned, if there are any.
    """
    stored = request.stored_costs
    if phases and stored is not None:
        warn_caller("the measured costs beside the model are not those of a workload")
        stored = None
    if not request.measured_choice or (stored is not None and _hold(stored, analysis, request)):
        return OperationCosts(analysis, stored)
    seconds = selection.CALIBRATION_SHARE * request.measure_seconds
    with clock("calibrate"), request.calibration_process:
        if phases:
            return OperationCosts(analysis, None, _measure_phases(analysis, request, phases, seconds, report))
        if stored is not None:
            warn_caller(
                f"the measured costs beside the model do not hold for all of {', '.join(analysis.devices)} and are"
                " measured anew; ov-hsdag calibrate --model writes them"
            )
        measured_analysis, costs = _measure(analysis, request, seconds, report)
        return OperationCosts(measured_analysis, stored if costs is None else costs)


def _hold(costs: ModelCosts, analysis: ModelAnalysis, request: PlacingRequest) -> bool:
    """Whether costs hold for all devices of a request."""
    return len(costs.of(analysis.graph, analysis.devices, request.session.core)) == len(analysis.devices)


def _measure(
    analysis: ModelAnalysis, request: PlacingRequest, seconds: float, report: Callable[[str], None] | None
) -> tuple[ModelAnalysis, ModelCosts | None]:
    """Measures a model's operations.

    Args:
        analysis: analysis of the model.
        request: the request.
        seconds: time budget.
        report: called with lines of progress.

    Returns:
        The analysis, with smaller inputs where no device runs the assumed ones; and the costs, None where measuring
        failed, which a warning says.
    """
    advance = report or (lambda _: None)
    advance(f"measuring operations on {', '.join(analysis.devices)}")
    process, profile = request.calibration_process, request.session.profile
    try:
        return calibrate_where_it_runs(analysis, process, profile, advance, seconds)
    except (RunError, RuntimeError) as error:
        # Predictions are then a profile's, and the measured choice among placements is as good as ever.
        warn_caller(f"ov-hsdag places by its profiles: calibrating failed: {one_line(error)}")
        return analysis, None


def _measure_phases(
    analysis: ModelAnalysis,
    request: PlacingRequest,
    phases: Sequence[Phase],
    seconds: float,
    report: Callable[[str], None] | None,
) -> dict[str, ModelCosts]:
    """Measures a model's operations in each phase of its workload that occurs.

    Args:
        analysis: analysis of the model.
        request: the request.
        phases: phases of the workload; those with `Phase.count` 0 do not occur.
        seconds: time budget of all phases together; each gets an equal share of what remains.
        report: called with lines of progress.

    Returns:
        Costs by the phase's name. A phase whose measurement fails is left out, with a warning.
    """
    occurring = [phase for phase in phases if phase.count]
    end = time.monotonic() + seconds
    measured = {}
    for remaining, phase in zip(range(len(occurring), 0, -1), occurring, strict=True):
        of_phase = replace(analysis, graph=graph_of(analysis, phase), shapes=phase.shapes)
        share = max((end - time.monotonic()) / remaining, _LEAST_SECONDS)
        _, costs = _measure(of_phase, request, share, report)
        if costs is not None:
            measured[phase.name] = costs
    return measured
