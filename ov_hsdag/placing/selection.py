"""Selection by measuring: the best predicted placements run on the real devices against baselines.

A baseline is a candidate that needs no placement: a single device, or HETERO's own choice. A split is a placement on
several devices. Copies are the whole model on each device at once; they are measured for comparison and never chosen.
Which candidates run when is decided in `ov_hsdag.placing.placement_trials`.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.costs.stored import identity
from ov_hsdag.devices import discovery
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring import choice
from ov_hsdag.measuring.comparison import Comparison
from ov_hsdag.measuring.evaluator import HETERO_DEFAULT, PIPELINE_HINT, in_unit, simple_candidate
from ov_hsdag.measuring.process import Candidate, StartWorker
from ov_hsdag.measuring.trials import ratio_figures
from ov_hsdag.model.gains import BEST_SINGLE, placer_of, times
from ov_hsdag.model.placement import Placement
from ov_hsdag.model.samples import Samples
from ov_hsdag.model.workload import Phase
from ov_hsdag.placing.candidates import PREDICTION_ERROR_CALIBRATED, PREDICTION_ERROR_PROFILE
from ov_hsdag.placing.placement_trials import PlacementTrials, memory_needs, predicted_rates
from ov_hsdag.problem.copies import COPIES, copies_summary, copy_devices
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.storage.scratch import require_temporary_folder
from ov_hsdag.utils.errors import RunError, UserError
from ov_hsdag.utils.failures import Failure, out_of_time
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.warn import warn_caller

SECONDS = 60.0
"""Default time budget of calibrating and measuring together, seconds."""

CALIBRATION_SHARE = 0.4
"""Share of the time budget that calibrating the model may use; the rest is for measuring placements."""

# Number of placements that are measured: the best ones by prediction.
_MEASURED = 6

BY_PROFILE = "(by profile)"
"""Suffix of the name of a candidate that was found with costs of the profile although measured costs exist.

Such candidates are measured whatever the measured costs predict for them."""

MAY_GAIN = 1.1
"""Gain from which a placement that was not proven better is reported as possibly better."""

Placed = NDArray[np.uint8]
"""A placement: device number of each co-location group, uint8 [groups]."""


@dataclass(frozen=True)
class Result:
    """The result of a selection.

    Attributes:
        measured: figures of each candidate, by name; see below.
        chosen: name of the chosen candidate; None where none ran.
        placements: placements of all candidates, by name, uint8 [groups].
        why: the reason for the choice where it is not the gain of the chosen placement; else "".
        unsure: placers of placements that may be better than the chosen baseline by the factor `MAY_GAIN`. Trials could
            not tell, or there was no time for any.

    All figures come from the posterior (`ov_hsdag.measuring.choice`) by which the choice is made:

    - "latency_us" or "throughput_ips"; null where the candidate failed.
    - "ratio": how many times better it is than the best baseline, and "ci", the 95% interval.
    - "times_best_single", "times_best_single_ci": the same over the best single device; null where none ran.
    - "submodels": their number, or null.
    - "failed": the reason of a failure, or null; "failed_kind": a value of `FailureKind`, or null.
    - "workload": for a workload, "count" and "latency_us" or "throughput_ips" of each phase.

    Beside the candidates there is "copies", the model on each device at once, which is never chosen. It has
    "times_chosen" and "times_chosen_ci": how many times better it is than the chosen candidate.
    """

    measured: dict[str, dict[str, Any]]
    chosen: str | None
    placements: dict[str, Placed]
    why: str = ""
    unsure: tuple[str, ...] = ()


def check_possible(core: ov.Core, devices: DeviceSet) -> None:
    """Checks that measuring is possible, so that an error comes before the work that precedes measuring.

    Raises:
        UserError: a device is not on this machine.
        RunError: there is no folder for temporary files.
    """
    missing = discovery.absent(core, devices)
    if missing:
        raise UserError(f"device {missing[0]} is not on this machine, so nothing can be measured there")
    require_temporary_folder()


def select(  # noqa: PLR0913 settings, all by keyword
    model: ov.Model,
    problem: PlacementProblem,
    candidates: Mapping[str, Placed],
    core: ov.Core,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    phases: Sequence[Phase] = (),
    samples: Samples | None = None,
    seconds: float = SECONDS,
    measured_costs: bool = False,
    disturbed: bool = False,
    pinned: bool = False,
    by_profile: Collection[str] = (),
    report: Callable[[str], None] | None = None,
    start_worker: StartWorker | None = None,
) -> Result:
    """Measures the best candidates by prediction against each single device and HETERO's own choices.

    First, all run in two rounds. Then costs are corrected by their trials, the search finds a placement for the
    corrected costs, and that placement is measured; this is repeated some times. The remaining rounds go to the two
    candidates whose comparison can change the choice most, until a better choice can hardly be expected or the time is
    over. See `ov_hsdag.measuring.choice.decide`. Where nothing could be measured there is a warning.

    Args:
        model: the normalized model of the problem; it is not changed.
        problem: predicts which candidates are feasible, their rates and their memory.
        candidates: placements by name, uint8 [groups]; those of single devices have the device's name.
        core: Core of the devices.
        shapes: example shapes of dynamic inputs, by input name.
        phases: phases of a workload, which replace example shapes.
        samples: inputs that the user gave; by default inputs are made up.
        seconds: time budget, seconds; the best single device and the best placement by prediction come first.
        measured_costs: whether the problem's costs were measured on these devices, which makes predictions better.
        disturbed: whether other programs use the devices, so that trials are less certain than they seem.
        pinned: whether operations are pinned. Then HETERO's own choice runs with affinities, as it would be written:
            HETERO by itself ignores pins.
        by_profile: names of candidates that were found with costs of the profile; they run whatever the measured costs
            predict for them.
        report: called with a line at each step, which includes the seconds that are left.
        start_worker: starts a worker process; by default a local one.

    Returns:
        The chosen candidate and the figures of all.
    """
    measurable = _CandidateSet.of(model, problem, candidates, core, by_profile, pinned)
    end = time.monotonic() + seconds
    try:
        comparison = Comparison(
            model,
            DeviceSet(problem.devices),
            measurable.ways,
            problem.objective,
            core,
            simple=measurable.simple,
            needs=measurable.needs,
            first=_most_promising_first(problem, measurable.simple, measurable.splits),
            shapes=shapes,
            phases=phases,
            samples=samples,
            limit=seconds,
            report=report,
            start_worker=start_worker,
        )
    except RunError as error:
        _warn(str(error))
        return Result({}, None, measurable.placements)
    with comparison:
        prediction_error = _prediction_error(measured_costs, by_profile, measurable.splits)
        alike = _devices_alike(core, problem.devices)
        trials = PlacementTrials(
            comparison, problem, measurable.placements, measurable.simple, prediction_error, end, alike
        )
        decision = trials.run()
        if decision is None:
            _warn(_why_nothing_ran(comparison.failed))
        _fail_copies_with_their_devices(comparison, measurable.copied_on)
        measured = _measured(trials, decision, comparison, measurable, phases, problem.objective)
    placements = {**trials.placements, **measurable.baselines}
    if decision is None:
        return Result(measured, None, placements)
    why = _why(decision, list(measurable.splits), DeviceSet(problem.devices), measurable.simple, comparison.failed)
    unsure = _unsure_placers(decision, measurable.simple, predicted_rates(problem, placements), comparison, disturbed)
    return Result(measured, decision.chosen, placements, why, unsure)


@dataclass(frozen=True, eq=False)
class _CandidateSet:
    """The candidates that are measured, with what measuring needs to know of each.

    Attributes:
        baselines: placements of the feasible baselines, by name, the simplest first, uint8 [groups].
        simple: the baselines that run: of several with the same placement the simplest one.
        runs_as: name of the baseline that runs in place of each baseline; HETERO with everything on one device is that
            device with overhead.
        splits: placements of the splits to measure, by name, uint8 [groups].
        ways: how each candidate runs, by name, the simplest first, with the copies.
        needs: bytes that each candidate needs, by name and by device.
        copied_on: names of the devices that run the copies; empty where the model cannot run as copies.
    """

    baselines: Mapping[str, Placed]
    simple: Mapping[str, Placed]
    runs_as: Mapping[str, str]
    splits: Mapping[str, Placed]
    ways: Mapping[str, Candidate]
    needs: Mapping[str, Mapping[str, int]]
    copied_on: tuple[str, ...]

    @classmethod
    def of(
        cls,
        model: ov.Model,
        problem: PlacementProblem,
        candidates: Mapping[str, Placed],
        core: ov.Core,
        by_profile: Collection[str],
        pinned: bool,
    ) -> _CandidateSet:
        """Selects the candidates; for the arguments see `select`."""
        baselines = _baselines(model, problem, candidates, core)
        runs_as = _first_of_equals(baselines)
        simple = {name: baselines[name] for name in dict.fromkeys(runs_as.values())}
        splits = _best_placements(problem, candidates, baselines, by_profile)
        ways = _ways(problem, simple, splits, pinned)
        needs = memory_needs(problem, {**simple, **splits})
        copies, copied_on = copies_summary(problem), copy_devices(problem)
        if copies is None:
            return cls(baselines, simple, runs_as, splits, ways, needs, copied_on)
        with_copies = ways | {COPIES: Candidate.copies(copied_on)}
        needs_with_copies = needs | {COPIES: copies["memory_bytes"]}
        return cls(baselines, simple, runs_as, splits, with_copies, needs_with_copies, copied_on)

    @property
    def placements(self) -> dict[str, Placed]:
        """Placements of the candidates that run, by name, without the copies, which have none."""
        return {**self.simple, **self.splits}


def _first_of_equals(placements: Mapping[str, Placed]) -> dict[str, str]:
    """Finds the first name of each placement, by each of its names."""
    first: dict[bytes, str] = {}
    return {name: first.setdefault(placement.tobytes(), name) for name, placement in placements.items()}


def _ways(
    problem: PlacementProblem, simple: Mapping[str, Placed], splits: Mapping[str, Placed], pinned: bool
) -> dict[str, Candidate]:
    """Determines how candidates run: baselines by themselves as far as possible, the others with affinities.

    Args:
        problem: the problem.
        simple: placements of the baselines, by name.
        splits: placements of the splits, by name.
        pinned: whether operations are pinned, see `select`.

    Returns:
        The candidates by name, the simplest first.
    """
    devices = DeviceSet(problem.devices)
    as_written = (PIPELINE_HINT, *([HETERO_DEFAULT] if pinned else []))
    by_itself = {name: simple_candidate(name, devices) for name in simple if name not in as_written}
    placed = {name: placement for name, placement in simple.items() if name in as_written} | {**splits}
    affinities = {name: problem.affinity(placement) for name, placement in placed.items()}
    return by_itself | {name: Candidate.placed(devices, affinity) for name, affinity in affinities.items()}


def _prediction_error(measured_costs: bool, by_profile: Collection[str], splits: Collection[str]) -> float:
    """Returns the standard deviation of log(measured / predicted rate).

    Where the profile leads to other placements than the measured costs, the latter count as less reliable.

    Args:
        measured_costs: whether the problem's costs were measured on these devices.
        by_profile: names of candidates that were found with costs of the profile.
        splits: names of the splits that are measured.
    """
    reliable = measured_costs and not any(name in splits for name in by_profile)
    return PREDICTION_ERROR_CALIBRATED if reliable else PREDICTION_ERROR_PROFILE


def _devices_alike(core: ov.Core, devices: Sequence[str]) -> bool:
    """Whether all devices are of the same kind: measured costs of one would hold for the others."""
    first, *others = (identity(core, name) for name in devices)
    return all(other == first for other in others)


def _why_nothing_ran(failed: Mapping[str, Failure]) -> str:
    """Explains why no candidate ran; `failed` has the failures by the candidate's name, before copies get others'."""
    if all(map(out_of_time, failed.values())):
        return "the time is too short (--measure-seconds)"
    return "; ".join(sorted({f"{placer_of(name)}: {why}" for name, why in failed.items() if name != COPIES}))


def _fail_copies_with_their_devices(comparison: Comparison, copied_on: Sequence[str]) -> None:
    """Records a device's failure as one of the copies, too: they are compared by the outputs of the first one alone."""
    for name in copied_on:
        if name in comparison.failed and not out_of_time(comparison.failed[name]):
            comparison.failed[COPIES] = comparison.failed[name].of(name)


def _measured(
    trials: PlacementTrials,
    decision: choice.Decision | None,
    comparison: Comparison,
    measurable: _CandidateSet,
    phases: Sequence[Phase],
    objective: str,
) -> dict[str, dict[str, Any]]:
    """Collects the figures of all candidates.

    Args:
        trials: the trials.
        decision: the last decision; None where nothing ran.
        comparison: the measured candidates.
        measurable: the candidates. Baselines that did not run get the figures of those that ran in their place.
        phases: phases of the workload; empty without one.
        objective: "latency" or "throughput".

    Returns:
        Figures by the candidate's name, see `Result.measured`; the baselines come first.
    """
    ran = trials.measured(decision)
    runs_as = {name: measurable.runs_as.get(name, name) for name in dict.fromkeys([*measurable.baselines, *ran])}
    measured = {name: dict(ran[other]) for name, other in runs_as.items()}
    if COPIES in measured and decision is not None:
        over_chosen = None if measured[COPIES]["failed"] else decision.ratio(COPIES, decision.chosen)
        measured[COPIES] |= ratio_figures("times_chosen", "times_chosen_ci", over_chosen)
    for name in measured if phases else ():
        if not measured[name]["failed"]:
            measured[name]["workload"] = _phase_figures(comparison, runs_as[name], phases, objective)
    return measured


def _unsure_placers(
    decision: choice.Decision,
    simple: Collection[str],
    predicted: Mapping[str, float],
    comparison: Comparison,
    disturbed: bool,
) -> tuple[str, ...]:
    """Names the placers of placements that may be better than the chosen baseline, see `Result.unsure`.

    Args:
        decision: the decision.
        simple: names of the baselines.
        predicted: predicted rates in a common unit, by name.
        comparison: the candidates with their failures.
        disturbed: whether other programs use the devices: trials may have missed what is predicted then.
    """
    unproven = _unsure(decision, simple, predicted if disturbed else {})
    return unproven or _best_without_time(decision, simple, predicted, comparison)


def _unsure(decision: choice.Decision, simple: Collection[str], predicted: Mapping[str, float]) -> tuple[str, ...]:
    """Names the placers of placements that may be better than the chosen baseline but are not proven to be.

    These are placements whose interval reaches the factor `MAY_GAIN`. Where there are none, it is the best placement by
    prediction, if its predicted gain reaches that.

    Args:
        decision: the decision.
        simple: names of the baselines.
        predicted: rates in a common unit, by name; empty where predictions shall not count.

    Returns:
        Names of placers, each once; empty where a placement was chosen.
    """
    certain = {*simple, *decision.proven} if decision.chosen in simple else {*decision.names}
    names = [name for name in decision.names if name not in certain]
    likely = [name for name in names if decision.ratio(name, decision.chosen).high > MAY_GAIN]
    if not likely and names and predicted:
        best = max(names, key=predicted.__getitem__)
        likely = [best] if predicted[best] > MAY_GAIN * predicted[decision.chosen] else []
    return tuple(dict.fromkeys(map(placer_of, likely)))


def _best_without_time(
    decision: choice.Decision, simple: Collection[str], predicted: Mapping[str, float], comparison: Comparison
) -> tuple[str, ...]:
    """Names the placer of the best placement that there was no time to run.

    Args:
        decision: the decision.
        simple: names of the baselines.
        predicted: rates in a common unit, by name.
        comparison: the candidates with their failures.

    Returns:
        The placer's name, alone. Empty where a placement ran or was chosen, and where the placement is not predicted to
        be better than the chosen baseline by the factor `MAY_GAIN`.
    """
    splits = [name for name in comparison.names if name not in simple and name != COPIES]
    if decision.chosen not in simple or not splits or any(name in decision.names for name in splits):
        return ()
    late = [name for name in splits if out_of_time(comparison.failed.get(name))]
    best = max(late, key=predicted.__getitem__, default="")
    return (placer_of(best),) if best and predicted[best] > MAY_GAIN * predicted[decision.chosen] else ()


def _phase_figures(
    comparison: Comparison, name: str, phases: Sequence[Phase], objective: str
) -> dict[str, dict[str, float | None]]:
    """Collects the figures of a candidate's phases from the medians of its trials.

    Args:
        comparison: the measured candidates.
        name: name of the candidate.
        phases: phases of the workload.
        objective: "latency" or "throughput".

    Returns:
        By phase: "count", and "latency_us" or "throughput_ips" of one inference. Phases that were not measured are left
        out.
    """
    rates = {phase: statistics.median(some) for phase, some in comparison.phase_rates.get(name, {}).items()}
    key = "throughput_ips" if objective == "throughput" else "latency_us"
    return {
        phase.name: {"count": phase.count, key: round(in_unit(rates[phase.name], objective), 3)}
        for phase in phases
        if phase.name in rates
    }


def _why(
    decision: choice.Decision,
    others: Sequence[str],
    devices: DeviceSet,
    simple: Collection[str],
    failed: Mapping[str, Failure],
) -> str:
    """Explains why a candidate was chosen.

    Args:
        decision: the decision.
        others: names of the placements that took part, as opposed to baselines.
        devices: the devices.
        simple: names of the baselines.
        failed: failures by the candidate's name.

    Returns:
        A clause for users; "" where the reason is the gain over the best single device.
    """
    rival, leader = decision.rival, decision.leader
    if decision.chosen not in simple:
        if not rival or rival in devices:
            return ""
        return f"the best that needs no placement is {rival}{_describe_gain(decision, rival, devices)}"
    if not others:
        return "no placer finds a better split"
    if not any(name in decision.names for name in others):
        if any(out_of_time(failed.get(name)) for name in others):
            return "the time for measuring was too short to run a placement (--measure-seconds)"
        return "no placement ran"
    if leader in simple:
        return f"no placement was better than {decision.chosen}"
    gain = decision.ratio(leader, rival)
    if gain.median < 1 + choice.GAIN:
        return f"{placer_of(leader)} is within {choice.GAIN:.0%} of {rival}, kept simple"
    rival = decision.doubt or rival
    late = next((name for name in devices if out_of_time(failed.get(name))), "")
    if late and decision.trials.ratio(leader, rival).low > 1:
        return f"{placer_of(leader)} may be worse than {late}, which there was no time to measure (--measure-seconds)"
    of_leader = _describe_gain(decision, leader, devices)
    return f"{placer_of(leader)} is not better than {rival} beyond the noise{of_leader}"


def _describe_gain(decision: choice.Decision, name: str, devices: DeviceSet) -> str:
    """Describes a candidate's gain over the best single device that ran, after a comma; "" where no device ran."""
    singles = [device for device in devices if device in decision.names]
    if not singles:
        return ""
    gain = decision.ratio(name, decision.posterior.best(singles))
    return f", {times(gain.median, (gain.low, gain.high), BEST_SINGLE)}"


def _most_promising_first(
    problem: PlacementProblem, simple: Mapping[str, Placed], others: Mapping[str, Placed]
) -> list[str]:
    """Sorts the candidates into the order of compiling.

    The best device and the best placement by prediction come first, then the other devices, the copies, the other
    baselines and the other placements, so that a short time suffices for a comparison.

    Args:
        problem: the problem.
        simple: placements of the baselines, by name.
        others: the other placements, by name.

    Returns:
        Names of candidates, with that of the copies in any case.
    """
    rates = predicted_rates(problem, {**simple, **others})
    baselines, placed = (sorted(names, key=rates.__getitem__, reverse=True) for names in (simple, others))
    singles = [name for name in baselines if name in problem.devices]
    return [*dict.fromkeys([*(singles or baselines)[:1], *placed[:1], *singles, COPIES, *baselines, *placed])]


def _warn(why: str) -> None:
    """Warns that nothing could be measured; `why` is the reason."""
    warn_caller(f"ov_hsdag: nothing could be measured, so the placement is chosen by prediction: {why}")


def _baselines(
    model: ov.Model, problem: PlacementProblem, candidates: Mapping[str, Placed], core: ov.Core
) -> dict[str, Placed]:
    """Finds the placements of the feasible baselines, by name, the simplest first.

    Args:
        model: the model; it is not changed.
        problem: the problem.
        candidates: placements by name, of which HETERO's own choice is taken.
        core: Core of the devices.
    """
    placements = dict(zip(problem.devices, problem.singles, strict=True))
    if HETERO_DEFAULT in candidates:
        placements[HETERO_DEFAULT] = candidates[HETERO_DEFAULT]
    if problem.objective == "throughput" and (hint := _pipeline_hint(model, problem, core)) is not None:
        placements[PIPELINE_HINT] = hint
    return {name: placement for name, placement in placements.items() if np.isfinite(problem.scores(placement)[0])}


def _pipeline_hint(model: ov.Model, problem: PlacementProblem, core: ov.Core) -> Placed | None:
    """Finds the placement that HETERO chooses under the hint to make a pipeline; None where it does not answer.

    A model's file stores affinities but no hints, so the choice must be known as a placement. HETERO splits by the
    answer that `query_model` gives under the same hint. Each colocation group goes to the device that most of its
    operations have there, which gives the same split or a legal one close to it.
    """
    hint = simple_candidate(PIPELINE_HINT, DeviceSet(problem.devices))
    plain = model.clone()
    Placement.strip(plain)
    try:
        answer = core.query_model(plain, hint.device, dict(hint.properties))
    except RuntimeError:
        return None
    votes = np.zeros((problem.group_count, len(problem.devices)), np.int64)
    for group, name in zip(problem.groups.tolist(), problem.graph.names, strict=True):
        if answer.get(name) in problem.devices:
            votes[group, problem.devices.index(answer[name])] += 1
    return problem.repair(np.where(problem.group_supported, votes, -1).argmax(axis=1))


def _best_placements(
    problem: PlacementProblem, candidates: Mapping[str, Placed], simple: Mapping[str, Placed], always: Collection[str]
) -> dict[str, Placed]:
    """Selects the placements to measure.

    Args:
        problem: the problem.
        candidates: placements by name.
        simple: placements of the baselines, by name.
        always: names of candidates that are measured even if they are not among the best.

    Returns:
        The `_MEASURED` best feasible placements by prediction, and those of `always`, in the given order. Placements
        that equal a baseline or an earlier candidate are left out.
    """
    seen = {placement.tobytes() for placement in simple.values()}
    distinct: dict[str, Placed] = {}
    for name, placement in candidates.items():
        if name not in problem.devices and placement.tobytes() not in seen:
            seen.add(placement.tobytes())
            distinct[name] = placement
    scores = {name: float(problem.scores(placement)[0]) for name, placement in distinct.items()}
    best = sorted((name for name in distinct if math.isfinite(scores[name])), key=scores.__getitem__)
    best = [name for rank, name in enumerate(best) if rank < _MEASURED or name in always]
    return {name: distinct[name] for name in distinct if name in best}
