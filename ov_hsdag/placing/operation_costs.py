"""What the operations of a model cost on the devices of a request: stored, measured now, or a profile's alone."""

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
        analysis: of the model; with smaller inputs than before where those that were assumed do not run.
        model: of a model without a workload; None where nothing is measured.
        phases: of a workload, by the names of its phases.
    """

    analysis: ModelAnalysis
    model: ModelCosts | None = None
    phases: Mapping[str, ModelCosts] = field(default_factory=dict)

    @property
    def any(self) -> bool:
        """Whether something is measured."""
        return self.model is not None or bool(self.phases)

    def hold_everywhere(self, request: PlacingRequest, phases: Sequence[Phase]) -> bool:
        """Whether they hold for all devices of the request, and for all phases that occur."""
        if not phases:
            return self.model is not None and _hold(self.model, self.analysis, request)
        measured = [self.phases.get(phase.name) for phase in phases if phase.count]
        return all(costs is not None and all(map(costs.device, request.session.devices)) for costs in measured)

    def devices(self, request: PlacingRequest) -> list[str]:
        """Names of the request's devices that costs were measured on and hold for."""
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
    """The costs that the caller gave where they hold; else they are measured now, where measuring decides.

    Args:
        analysis: of the model.
        request: says what is given, and how long measuring may take.
        phases: of the model's workload, if it has one.
        clock: gets the time of measuring, as "calibrate".
        report: takes a line for people at each step.

    Returns:
        The costs. Where calibrating fails there is a warning, and the profile's count.
    """
    stored = request.stored_costs
    if phases and stored is not None:
        warn_caller("the measured costs beside the model are not those of a workload")
        stored = None
    if not request.measured_choice or (stored is not None and _hold(stored, analysis, request)):
        return OperationCosts(analysis, stored)
    seconds = selection.CALIBRATING * request.measure_seconds
    with clock("calibrate"), request.calibrating:
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
    """Whether measured costs hold for all devices of a request."""
    return len(costs.of(analysis.graph, analysis.devices, request.session.core)) == len(analysis.devices)


def _measure(
    analysis: ModelAnalysis, request: PlacingRequest, seconds: float, report: Callable[[str], None] | None
) -> tuple[ModelAnalysis, ModelCosts | None]:
    """The analysis, with smaller inputs where those that were assumed do not run, and costs; None: it failed."""
    advance = report or (lambda _: None)
    advance(f"measuring operations on {', '.join(analysis.devices)}")
    try:
        return calibrate_where_it_runs(analysis, request.calibrating, request.session.profile, advance, seconds)
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
    """Costs in each phase that occurs, by its name; `seconds` are for all of them, in equal shares of what is left."""
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
