"""Selection by measuring: the best predicted placements run on the real devices against baselines.

A baseline is a candidate that needs no placement: a single device, or HETERO's own choice. A split is a placement on
several devices. Copies are the whole model on each device at once; they are measured for comparison and never chosen.
The processor time of a candidate is the time that the threads of a device's submodels compute in one inference. In a
simultaneous trial several candidates run at the same time, on the same cores.
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

from ov_hsdag.costs.stored import UNEQUAL, identity
from ov_hsdag.devices import discovery
from ov_hsdag.devices.device_set import DeviceSet, kind_of
from ov_hsdag.measuring import choice
from ov_hsdag.measuring.comparison import Comparison
from ov_hsdag.measuring.evaluator import HETERO_DEFAULT, PIPELINE_HINT, in_unit, simple_candidate
from ov_hsdag.measuring.process import Candidate, StartWorker
from ov_hsdag.measuring.trials import Trials, ratio_figures
from ov_hsdag.model.gains import BEST_SINGLE, placer_of, times
from ov_hsdag.model.placement import Placement
from ov_hsdag.model.samples import Samples
from ov_hsdag.model.workload import Phase
from ov_hsdag.placers.multilevel import Multilevel
from ov_hsdag.placing.candidates import PREDICTION_ERROR_CALIBRATED, PREDICTION_ERROR_PROFILE
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

# Comparison of copies with the leading placement. At most 8 rounds of the two; they are every third round while it is
# open which is better and the difference is not known to 3%. Copies are never chosen, so they get little of the time.
_COPIES_ROUNDS, _COPIES_EVERY, _COPIES_SURE = 8, 3, 0.03

# Standard deviations of logarithms. The first is that of a rate that follows from exact processor times, which do not
# say for what share of the time the busiest device works. The second is that of a processor time in one trial.
_TIMES_ERROR, _TIMES_NOISE = 0.02, 0.1

# Standard deviation of the logarithm of the ratio between the speeds of two cores during a placing.
_CORES_APART = 0.03

# Simultaneous trials of several placements: seconds of one; after how many rounds of two candidates one is made; and
# how many ordinary trials one is worth as evidence of the speed of a device.
_TOGETHER_SECONDS, _TOGETHER_EVERY, _TOGETHER_WORTH = 1.0, 4, 8

# Searches with corrected costs: their largest number, the share of the time in which one may begin, and the least
# predicted gain over the known placements for which the result is measured.
_SEARCHES, _SEARCHING, _PROMISING = 5, 0.6, 0.002

BY_PROFILE = "(by profile)"
"""Suffix of the name of a candidate that was found with costs of the profile although measured costs exist.

Such candidates are measured whatever the measured costs predict for them."""

CORRECTED = "search (corrected)"
"""Name of the placement that the search finds with costs corrected by trials; later ones have a number in the name."""

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
    devices = DeviceSet(problem.devices)
    baselines = _baselines(model, problem, candidates, core)
    first: dict[bytes, str] = {}  # HETERO with everything on one device is that device with overhead
    device_of = {name: first.setdefault(one.tobytes(), name) for name, one in baselines.items()}
    simple = {name: baselines[name] for name in dict.fromkeys(device_of.values())}
    best_placements = _best_placements(problem, candidates, baselines, by_profile)
    as_written = (PIPELINE_HINT, *([HETERO_DEFAULT] if pinned else []))
    placed = {name: one for name, one in simple.items() if name in as_written} | best_placements
    ways = {name: simple_candidate(name, devices) for name in simple if name not in placed}
    ways |= {name: Candidate.placed(devices, problem.affinity(placement)) for name, placement in placed.items()}
    placements = {**simple, **best_placements}
    needs, copied_on, copies = _needs(problem, placements), copy_devices(problem), copies_summary(problem)
    if copies is not None:
        ways[COPIES] = Candidate.copies(copied_on)
        needs[COPIES] = copies["memory_bytes"]
    end = time.monotonic() + seconds
    try:
        comparison = Comparison(
            model,
            devices,
            ways,
            problem.objective,
            core,
            simple=simple,
            needs=needs,
            first=_most_promising_first(problem, simple, best_placements),
            shapes=shapes,
            phases=phases,
            samples=samples,
            limit=seconds,
            report=report,
            start_worker=start_worker,
        )
    except RunError as error:
        _warn(str(error))
        return Result({}, None, placements)
    with comparison:
        # Where the profile leads to other placements than the measured costs, the latter count as less reliable.
        sure = measured_costs and not any(name in best_placements for name in by_profile)
        first_identity, *other_identities = (identity(core, name) for name in devices)
        prediction_error = PREDICTION_ERROR_CALIBRATED if sure else PREDICTION_ERROR_PROFILE
        alike = all(one == first_identity for one in other_identities)
        trials = _Trials(comparison, problem, placements, simple, prediction_error, end, alike)
        decision = trials.run()
        if decision is None:
            reasons = {f"{placer_of(name)}: {why}" for name, why in comparison.failed.items() if name != COPIES}
            short = all(map(out_of_time, comparison.failed.values()))
            _warn("the time is too short (--measure-seconds)" if short else "; ".join(sorted(reasons)))
        # Copies are compared by the outputs of the first one alone, so a device's failure counts for them, too.
        for name in copied_on:
            if name in comparison.failed and not out_of_time(comparison.failed[name]):
                comparison.failed[COPIES] = comparison.failed[name].of(name)
        found = trials.measured(decision)
        measured = {name: found[device_of.get(name, name)] for name in dict.fromkeys([*baselines, *found])}
        if copied_on and decision is not None:
            over = None if measured[COPIES]["failed"] else decision.ratio(COPIES, decision.chosen)
            measured[COPIES] |= ratio_figures("times_chosen", "times_chosen_ci", over)
        for name, figures in measured.items() if phases else ():
            if not figures["failed"]:
                figures["workload"] = _phase_figures(comparison, device_of.get(name, name), phases, problem.objective)
    placements |= baselines
    if decision is None:
        return Result(measured, None, placements)
    why = _why(decision, list(best_placements), devices, simple, comparison.failed)
    rates = _predicted_rates(problem, placements)
    unsure = _unsure(decision, simple, rates if disturbed else {})
    unsure = unsure or _best_without_time(decision, simple, rates, comparison)
    return Result(measured, decision.chosen, placements, why, unsure)


class _Trials(Trials):
    """Trials of one model's placements, with searches for further placements and simultaneous trials.

    A search with corrected costs finds a placement after the costs of operations were scaled so that they agree with
    the trials so far. Its placement becomes a candidate if it is new and predicted better than the others.
    """

    def __init__(
        self,
        comparison: Comparison,
        problem: PlacementProblem,
        placements: dict[str, Placed],
        simple: Mapping[str, Placed],
        error: float,
        end: float,
        equal: bool,
    ) -> None:
        """Prepares the trials; none has run yet.

        Args:
            comparison: the compiled candidates.
            problem: the problem of the model.
            placements: placements of the candidates, by name; those that searches find are added to this mapping.
            simple: placements of the baselines, by name.
            error: standard deviation of log(rate / predicted rate).
            end: time of `time.monotonic` at which the time budget ends, seconds.
            equal: whether all devices are of the same kind.
        """
        self._problem, self._placements, self._begin = problem, placements, time.monotonic()
        super().__init__(comparison, simple, _predicted_rates(problem, placements), error, end, singles=problem.devices)
        self._copies_rounds, self._devices_equal = 0, equal  # rounds that compared copies with the leader
        self._times_unknown_together = False  # whether a simultaneous trial failed to tell processor times
        # Device numbers of each candidate's submodels, in the order in which they are compiled.
        self._submodel_devices: dict[str, NDArray[np.uint8]] = {}
        self._corrected: set[str] = set()  # names of placements that a search with corrected costs found
        self._not_yet_together: set[str] = set()  # those of them that have not been in a simultaneous trial
        # Searches with corrected costs that found something promising, and others. After one that found nothing, the
        # next one waits until the trials settle; after two, there is none.
        self._searches, self._searches_without_gain = 0, 0
        # For each simultaneous trial, the processor time of each device by candidate, µs, float64 [devices].
        self._together: list[dict[str, NDArray[np.float64]]] = []

    def _search_again(self, decision: choice.Decision) -> str | None:
        """Searches a placement with costs that are corrected by the trials, and adds it to the candidates.

        Times of operations are scaled so that the problem predicts the measured ratios of splits to the best baseline,
        and the measured processor time of each device in an inference (`ov_hsdag.calibration.correction`). There is no
        search where `_SEARCHES` were successful, no split or no baseline has run, or most of the time is over.

        Args:
            decision: the decision by the trials so far. A simultaneous trial may come first, which changes it.

        Returns:
            The name of the new candidate; None where the search found nothing new that is predicted better.
        """
        from ov_hsdag.calibration.correction import Corrector  # SciPy's optimizers take half a second to import

        problem = self._problem
        splits = [name for name in self._alive() if name not in self._simple and name != COPIES]
        late = time.monotonic() > self._begin + _SEARCHING * (self._end - self._begin)
        if self._searches == _SEARCHES or not splits or not decision.rival or late:
            return None
        if self._run_together(decision):
            decision = self.decision() or decision
        reference = self._placements[decision.rival]
        corrector = Corrector(problem, reference)
        terms = corrector.terms(np.stack([self._placements[name] for name in splits]))
        differences = [decision.trials.difference(name, decision.rival) for name in splits]
        ratios = np.exp([mean for mean, _ in differences])
        uncertain = np.sqrt([variance for _, variance in differences])
        times, unknown = self._processor_times, (np.full(len(problem.devices), np.nan), 0.0)
        busy, of_busy = map(np.stack, zip(*(times.get(name, unknown) for name in splits), strict=True))
        corrected = corrector.apply(corrector.fit(terms, ratios, uncertain, busy, of_busy).mean)
        placement = Multilevel().place(corrected)
        placements = {name: self._placements[name] for name in [*splits, *self._simple]} | {CORRECTED: placement}
        scores = {name: float(corrected.scores(one)[0]) for name, one in placements.items()}
        best = min(score for name, score in scores.items() if name != CORRECTED)
        seen = any(np.array_equal(placement, one) for one in self._placements.values())
        if seen or not scores[CORRECTED] < best * (1 - _PROMISING):
            return None
        self._searches += 1
        name = CORRECTED if self._searches == 1 else f"{CORRECTED[:-1]}, {self._searches})"
        self._placements[name] = placement
        self._corrected.add(name)
        self._not_yet_together.add(name)
        # Corrected scores have another unit than the predictions: the leader's ratio of the two converts them.
        self._predicted[name] = self._predicted[decision.leader] * scores[decision.leader] / scores[CORRECTED]
        way = Candidate.placed(DeviceSet(problem.devices), problem.affinity(placement))
        self._comparison.add(name, way, _needs(problem, {name: placement})[name])
        return name

    def _run_together(self, decision: choice.Decision) -> bool:
        """Makes a simultaneous trial of all splits that may be the best and use all devices, and records it.

        Cores change their speed independently of each other, on a shared host by a third within half a second. In
        trials that share the cores at the same time, processor times of two candidates differ only by what they have to
        compute.

        Args:
            decision: the decision by the trials so far; candidates that are surely worse are left out.

        Returns:
            Whether processor times of at least two splits were measured.
        """
        times = {} if self._times_unknown_together else self._processor_times
        splits = [name for name in self._choices() if name not in self._simple and name in times]
        splits = [name for name in splits if times[name][0].all() and self._comparison.compiled([name])]
        lost = {*choice.beaten(decision.posterior, decision.names)}
        # Two odd trials suffice to make these, or those of the last trial, look beaten.
        if self._not_yet_together and self._together:
            lost -= {*self._not_yet_together, *self._together[-1]}
        splits = [name for name in splits if name not in lost]
        if len(splits) < 2:
            return False
        self._not_yet_together.clear()
        busy = self._comparison.busy_together(splits, _TOGETHER_SECONDS)
        device_times = {name: self._by_device(name, of_submodel) for name, of_submodel in busy.items()}
        self._times_unknown_together = not device_times or not all(us.all() for us in device_times.values())
        self._together += [] if self._times_unknown_together else [device_times]
        return not self._times_unknown_together

    def _by_device(self, name: str, of_submodel: Sequence[float]) -> NDArray[np.float64]:
        """Sums the processor times of a candidate's submodels by device.

        Args:
            name: name of the candidate.
            of_submodel: processor time of each submodel in an inference, µs, in the order in which they are compiled.

        Returns:
            Processor time of each device, µs, float64 [devices]; zeros where it is not known which device a time is of,
            or where a device is not a CPU.
        """
        devices = self._problem.devices
        if name not in self._submodel_devices:
            self._submodel_devices[name] = self._problem.submodels_in_order(self._placements[name])
        on = self._submodel_devices[name]
        if len(on) != len(of_submodel) or any(kind_of(device) != "CPU" for device in devices):
            return np.zeros(len(devices))
        return np.bincount(on, of_submodel, len(devices)).astype(np.float64)

    @property
    def _processor_times(self) -> dict[str, tuple[NDArray[np.float64], float]]:
        """Estimates the processor times of the candidates for which they were measured.

        They are medians of ordinary trials. Candidates of simultaneous trials get estimates from these, whose level the
        ordinary trials correct.

        Returns:
            By candidate: the processor time of each device in an inference, µs, float64 [devices]; and the standard
            deviation of the logarithm of the longest of these times.
        """
        times: dict[str, tuple[NDArray[np.float64], float]] = {}
        trials: dict[str, int] = {}
        for name in self._placements:
            trials_us = self._comparison.busy_us.get(name, [])
            us = self._by_device(name, [statistics.median(one) for one in zip(*trials_us, strict=True)])
            if us.max() > 0:
                trials[name] = len(trials_us)
                times[name] = us, math.hypot(_TIMES_ERROR, _TIMES_NOISE / math.sqrt(len(trials_us)))
        if self._together:
            devices = range(len(self._problem.devices))
            inferred = [
                choice.infer([[(name, us[device]) for name, us in one.items()] for one in self._together])
                for device in devices
            ]
            names = inferred[0].names
            logs = np.stack([one.mean for one in inferred], axis=1)
            # Simultaneous trials measure another speed of each device: cores changed meanwhile, and the trials displace
            # each other from caches. The ordinary trials correct the mean speed and, by their weight, each device's.
            counts = np.array([trials[name] for name in names])
            evidence = counts.sum() + _TOGETHER_WORTH * len(self._together)
            off = np.average([np.log(times[name][0]) for name in names] - logs, axis=0, weights=counts)
            logs += off.mean() + (off - off.mean()) * counts.sum() / evidence
            # Equal devices seem to differ for two reasons: errors of the costs of layers, or other speeds of the cores
            # meanwhile. The part that the cores explain is taken out.
            if self._devices_equal:
                costs = self._problem.breakdown(np.stack([self._placements[name] for name in names])).busy_us
                off = (np.log(costs.sum(axis=2)) - logs).mean(axis=0)
                noise = math.hypot(_CORES_APART, _TIMES_NOISE * math.sqrt(2 / evidence))
                share = noise**2 / (noise**2 + self._error**2)
                logs += share * (off - off.mean()) if np.ptp(off) < math.log(UNEQUAL) else 0.0
            for name, row in zip(names, logs, strict=True):
                error = inferred[int(row.argmax())].error(name)
                times[name] = np.exp(row), math.hypot(_TIMES_ERROR, error, _TIMES_NOISE / math.sqrt(evidence))
        return times

    def _beliefs(self) -> tuple[dict[str, float], float | dict[str, float], dict[str, float]]:
        """Combines predictions from costs and from measured processor times into the prior of the decision.

        Processor time of a CPU device's threads is not disturbed by other programs that wait for the same cores. Costs
        that trials have corrected do not count where processor times are known.

        Returns:
            Rates of all candidates, in a common unit; standard deviation of log(rate), for all candidates or by
            candidate; and the rates of some candidates that follow from processor times alone, inferences per µs.
        """
        times = self._processor_times
        by_times = {name: 1 / float(self._problem.periods(us[None])[0]) for name, (us, _) in times.items()}
        if len(by_times) < 2:
            return self._predicted, self._error, by_times
        unit = np.exp(np.median([math.log(rate / self._predicted[name]) for name, rate in by_times.items()]))
        rates, errors = {}, {}
        for name, rate in self._predicted.items():
            of_costs = math.inf if name in times and name in self._corrected else self._error
            weights = np.array([of_costs, times[name][1] if name in times else math.inf]) ** -2.0
            rates[name] = math.exp(float(np.average(np.log([rate * unit, by_times.get(name, 1.0)]), weights=weights)))
            errors[name] = float(weights.sum()) ** -0.5
        return rates, errors, by_times

    def _choices(self) -> list[str]:
        """Names of the candidates that may be chosen: all that run, except the copies."""
        return [name for name in self._alive() if name != COPIES]

    def _next(self, decision: choice.Decision, turn: int) -> tuple[str, str] | None:
        """Chooses the two candidates of the next round, after a search or a simultaneous trial if one is due.

        Args:
            decision: the decision by the trials so far.
            turn: number of the round.

        Returns:
            Names of the two: the leader and a new placement or the copies, or else those of `choice.next_pair`; None
            where the decision is settled.
        """
        settled = self._settled(decision)
        if self._searches_without_gain < 1 + settled:
            if (name := self._search_again(decision)) is not None:
                return decision.leader, name
            self._searches_without_gain += 1
            decision = self.decision() or decision  # the search may have made a simultaneous trial
        elif (self._not_yet_together or (not settled and turn % _TOGETHER_EVERY == 0)) and self._run_together(decision):
            decision = self.decision() or decision
        if COPIES in self._alive() and self._copies_rounds < _COPIES_ROUNDS:
            ratio = decision.posterior.ratio(COPIES, decision.leader)
            unknown = ratio.low < 1 < ratio.high and ratio.high > ratio.low * (1 + 2 * _COPIES_SURE)
            if unknown and (self._settled(decision) or turn % _COPIES_EVERY == 0):
                self._copies_rounds += 1
                return decision.leader, COPIES
        return super()._next(decision, turn)

    def measured(self, decision: choice.Decision | None) -> dict[str, dict[str, Any]]:
        """Collects the figures of all candidates for `Result.measured`, but for "times_chosen" and "workload".

        Args:
            decision: the last decision; None where nothing ran.
        """
        objective = self._problem.objective
        key = "throughput_ips" if objective == "throughput" else "latency_us"
        figures_by_name = self.figures(decision, objective, key)
        singles = [name for name in self._problem.devices if name in self._alive()]
        for name, figures in figures_by_name.items():
            over_single = None
            if decision is not None and singles and not figures["failed"]:
                over_single = decision.ratio(name, decision.posterior.best(singles))
            figures |= ratio_figures("times_best_single", "times_best_single_ci", over_single)
            figures["submodels"] = self._comparison.submodels.get(name) or None
        return figures_by_name


def _predicted_rates(problem: PlacementProblem, placements: Mapping[str, Placed]) -> dict[str, float]:
    """Predicts the inferences per µs of each candidate, and of the copies where the model can run as copies."""
    rates = {name: 1 / float(problem.scores(placement)[0]) for name, placement in placements.items()}
    if (copies := copies_summary(problem)) is not None:
        rates[COPIES] = copies["throughput_ips"] / 1e6
    return rates


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


def _needs(problem: PlacementProblem, placements: Mapping[str, Placed]) -> dict[str, dict[str, int]]:
    """Computes the bytes that each placement needs, by the candidate's name and by device."""
    counted = {name: problem.evaluate(one).memory_bytes[0] for name, one in placements.items()}
    return {name: dict(zip(problem.devices, problem.stored_bytes(row), strict=True)) for name, row in counted.items()}


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
    rates = _predicted_rates(problem, {**simple, **others})
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
