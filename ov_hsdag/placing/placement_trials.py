"""Trials of one model's placements, which find further placements meanwhile.

Beside ordinary rounds of two candidates there are searches with corrected costs (`ov_hsdag.placing.corrected_search`),
simultaneous trials (`ov_hsdag.placing.processor_times`), and rounds that compare copies with the leader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring import choice
from ov_hsdag.measuring.comparison import Comparison
from ov_hsdag.measuring.process import Candidate
from ov_hsdag.measuring.trials import Trials, ratio_figures
from ov_hsdag.model.graph import Floats
from ov_hsdag.placing import corrected_search
from ov_hsdag.placing.corrected_search import SearchSchedule
from ov_hsdag.placing.processor_times import ProcessorTime, ProcessorTimeModel, combine_with_predictions
from ov_hsdag.problem.copies import COPIES, copies_summary
from ov_hsdag.problem.problem import PlacementProblem

# Rounds that compare copies with the leading placement, at most. Copies are never chosen, so they get little of the
# time.
_COPIES_ROUNDS = 8

# Every third round is one of these while it is open which is better and the difference is not known to `_COPIES_SURE`.
_COPIES_EVERY = 3

# Relative difference between copies and the leading placement that is known well enough.
_COPIES_SURE = 0.03

# Seconds of a simultaneous trial.
_TOGETHER_SECONDS = 1.0

# Rounds of two candidates after which a simultaneous trial is made.
_TOGETHER_EVERY = 4


class PlacementTrials(Trials):
    """Trials of one model's placements, with searches for further placements and simultaneous trials.

    A search with corrected costs finds a placement after the costs of operations were scaled so that they agree with
    the trials so far. Its placement becomes a candidate if it is new and predicted better than the others.
    """

    def __init__(
        self,
        comparison: Comparison,
        problem: PlacementProblem,
        placements: Mapping[str, NDArray[np.uint8]],
        simple: Mapping[str, NDArray[np.uint8]],
        error: float,
        end: float,
        equal: bool,
    ) -> None:
        """Prepares the trials; none has run yet.

        Args:
            comparison: the compiled candidates.
            problem: the problem of the model.
            placements: placements of the candidates, by name, uint8 [groups].
            simple: placements of the baselines, by name, uint8 [groups].
            error: standard deviation of log(rate / predicted rate).
            end: time of `time.monotonic` at which the time budget ends, seconds.
            equal: whether all devices are of the same kind.
        """
        self._searches = SearchSchedule.until(end)
        super().__init__(comparison, simple, predicted_rates(problem, placements), error, end, singles=problem.devices)
        self._problem, self._placements = problem, dict(placements)
        self._time_model = ProcessorTimeModel(problem, equal, error)
        self._simultaneous = _SimultaneousTrials()
        self._corrected: set[str] = set()  # names of placements that a search with corrected costs found
        self._copies_rounds = 0  # rounds that compared copies with the leader

    @property
    def placements(self) -> dict[str, NDArray[np.uint8]]:
        """Placements of all candidates, by name, those that searches found last, uint8 [groups]."""
        return dict(self._placements)

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

    # What the decision counts.

    def _choices(self) -> list[str]:
        """Names of the candidates that may be chosen: all that run, except the copies."""
        return [name for name in self._alive() if name != COPIES]

    def _splits(self) -> list[str]:
        """Names of the splits that run."""
        return [name for name in self._choices() if name not in self._simple]

    def _beliefs(self) -> tuple[dict[str, float], float | dict[str, float], dict[str, float]]:
        """Combines predictions from costs and from measured processor times into the prior of the decision.

        Processor time of a CPU device's threads is not disturbed by other programs that wait for the same cores.

        Returns:
            Rates of all candidates, in a common unit; standard deviation of log(rate), for all candidates or by
            candidate; and the rates of some candidates that follow from processor times alone, inferences per µs.
        """
        times = self._processor_times()
        by_times = self._time_model.rates(times)
        if len(by_times) < 2:
            return self._predicted, self._error, by_times
        return *combine_with_predictions(self._predicted, self._error, times, by_times, self._corrected), by_times

    def _processor_times(self) -> dict[str, ProcessorTime]:
        """Estimates the processor times of the candidates for which they were measured, by candidate."""
        return self._time_model.estimate(self._placements, self._comparison.busy_us, self._simultaneous.recorded)

    # What runs next.

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
        if self._searches.due(settled):
            found = self._search_again(decision)
            if found is not None:
                return decision.leader, found
            self._searches.without_gain += 1
            return self._known_pair(self.decision() or decision, turn)  # the search may have made a simultaneous trial
        if self._simultaneous.waiting or (not settled and turn % _TOGETHER_EVERY == 0):
            return self._known_pair(self._after_simultaneous_trial(decision), turn)
        return self._known_pair(decision, turn)

    def _known_pair(self, decision: choice.Decision, turn: int) -> tuple[str, str] | None:
        """Chooses the two among the candidates that there are; for arguments and result see `_next`."""
        return self._pair_with_copies(decision, turn) or super()._next(decision, turn)

    def _pair_with_copies(self, decision: choice.Decision, turn: int) -> tuple[str, str] | None:
        """Chooses the leader and the copies for the next round where their comparison is due; else None.

        Args:
            decision: the decision by the trials so far.
            turn: number of the round.
        """
        if COPIES not in self._alive() or self._copies_rounds >= _COPIES_ROUNDS:
            return None
        ratio = decision.posterior.ratio(COPIES, decision.leader)
        unknown = ratio.low < 1 < ratio.high and ratio.high > ratio.low * (1 + 2 * _COPIES_SURE)
        if not unknown or not (self._settled(decision) or turn % _COPIES_EVERY == 0):
            return None
        self._copies_rounds += 1
        return decision.leader, COPIES

    def _search_again(self, decision: choice.Decision) -> str | None:
        """Searches a placement with costs that are corrected by the trials, and adds it to the candidates.

        There is no search where enough were successful, no split or no baseline has run, or most of the time is over.

        Args:
            decision: the decision by the trials so far. A simultaneous trial may come first, which changes it.

        Returns:
            The name of the new candidate; None where the search found nothing new that is predicted better.
        """
        splits = self._splits()
        if not self._searches.may_begin() or not splits or not decision.rival:
            return None
        latest = self._after_simultaneous_trial(decision)
        times = self._processor_times()
        corrected = corrected_search.correct_costs(self._problem, self._placements, splits, latest, times)
        found = corrected_search.search(corrected, self._placements, [*splits, *self._simple])
        if found is None:
            return None
        name = self._searches.record_found()
        self._add_candidate(name, found.placement, found.predict_rate(latest.leader, self._predicted[latest.leader]))
        return name

    def _add_candidate(self, name: str, placement: NDArray[np.uint8], rate: float) -> None:
        """Adds a placement that a search with corrected costs found to the candidates.

        Args:
            name: its name.
            placement: device number of each co-location group, uint8 [groups].
            rate: its predicted rate, in the unit of the other predictions.
        """
        self._placements[name] = placement
        self._predicted[name] = rate
        self._corrected.add(name)
        self._simultaneous.waiting.add(name)
        way = Candidate.placed(DeviceSet(self._problem.devices), self._problem.affinity(placement))
        self._comparison.add(name, way, memory_needs(self._problem, {name: placement})[name])

    # Simultaneous trials.

    def _after_simultaneous_trial(self, decision: choice.Decision) -> choice.Decision:
        """Makes a simultaneous trial of all splits that may be the best and use all devices, where there are two.

        Cores change their speed independently of each other, on a shared host by a third within half a second. In
        trials that share the cores at the same time, processor times of two candidates differ only by what they have to
        compute.

        Args:
            decision: the decision by the trials so far; candidates that are surely worse are left out.

        Returns:
            The decision by all trials; the given one where processor times of at least two splits were not measured.
        """
        splits = self._simultaneous.without_beaten(self._timed_splits(), decision)
        if len(splits) < 2:
            return decision
        submodel_us = self._comparison.busy_together(splits, _TOGETHER_SECONDS)
        self._simultaneous.record(
            {name: self._time_model.by_device(self._placements[name], us) for name, us in submodel_us.items()}
        )
        return decision if self._simultaneous.times_unknown else self.decision() or decision

    def _timed_splits(self) -> list[str]:
        """Names of the compiled splits that use all devices, as far as their processor times are known."""
        times = {} if self._simultaneous.times_unknown else self._processor_times()
        return [
            name
            for name in self._splits()
            if name in times and times[name].us.all() and self._comparison.compiled([name])
        ]


@dataclass
class _SimultaneousTrials:
    """Records simultaneous trials, and who waits for the next one.

    Attributes:
        recorded: for each trial, the processor time of each device by candidate, µs, float64 [devices].
        waiting: names of new placements that have not been in one.
        times_unknown: whether a trial failed to tell processor times; there is no further one then.
    """

    recorded: list[dict[str, Floats]] = field(default_factory=list)
    waiting: set[str] = field(default_factory=set)
    times_unknown: bool = False

    def without_beaten(self, names: Sequence[str], decision: choice.Decision) -> list[str]:
        """Leaves out the candidates that are surely worse than the best.

        Two odd trials suffice to make new placements, or those of the last trial, look beaten. So where new ones wait,
        these stay.

        Args:
            names: names of candidates.
            decision: the decision by the trials so far.
        """
        beaten = {*choice.beaten(decision.posterior, decision.names)}
        stay = {*self.waiting, *self.recorded[-1]} if self.waiting and self.recorded else set[str]()
        return [name for name in names if name not in beaten - stay]

    def record(self, device_us: dict[str, Floats]) -> None:
        """Records a trial, which was that of all who waited.

        Args:
            device_us: processor time of each device by candidate, µs, float64 [devices]; empty where the trial failed.
        """
        self.waiting.clear()
        self.times_unknown = not device_us or not all(us.all() for us in device_us.values())
        if not self.times_unknown:
            self.recorded.append(device_us)


def predicted_rates(problem: PlacementProblem, placements: Mapping[str, NDArray[np.uint8]]) -> dict[str, float]:
    """Predicts the inferences per µs of each candidate, and of the copies where the model can run as copies."""
    rates = {name: 1 / float(problem.scores(placement)[0]) for name, placement in placements.items()}
    copies = copies_summary(problem)
    return rates if copies is None else rates | {COPIES: copies["throughput_ips"] / 1e6}


def memory_needs(problem: PlacementProblem, placements: Mapping[str, NDArray[np.uint8]]) -> dict[str, dict[str, int]]:
    """Computes the bytes that each placement needs, by the candidate's name and by device."""
    counted = {name: problem.evaluate(one).memory_bytes[0] for name, one in placements.items()}
    return {name: dict(zip(problem.devices, problem.stored_bytes(row), strict=True)) for name, row in counted.items()}
