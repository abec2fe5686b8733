"""Times each model of an application by itself, which corrects the costs that the profile predicts.

A model runs as a whole on each device, and once split. Measured times divided by predicted ones are the model's factors
(`PlannedModel.timed`): one for each device, and one for its boundaries, which are calls of submodels and transfers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.applications.application import scale_costs
from ov_hsdag.applications.prepared import PlanContext
from ov_hsdag.costs.stored import identity
from ov_hsdag.measuring import choice
from ov_hsdag.measuring.comparison import Comparison
from ov_hsdag.measuring.process import Candidate
from ov_hsdag.model.workload import Phase
from ov_hsdag.placers.contiguous import Contiguous
from ov_hsdag.problem.pricing import ModelAnalysis, Session
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.utils.errors import RunError
from ov_hsdag.utils.warn import warn_caller

BOUNDARIES = "boundaries"
"""Key in `PlannedModel.timed` of the factor for calls of submodels and transfers."""

# Rounds of trials; in each round the model runs on each device, and once split.
_TIMED_ROUNDS = 4

# Name of the split among the candidates; the others are named by their device.
_SPLIT = "split"

# Standard deviation of the logarithm of the split's measured time.
_NOISE = 0.05

# Standard deviation, before the split ran, of the logarithm of the factor for boundaries.
_SPREAD = 1.0


def time_model(
    name: str,
    problem: PlacementProblem,
    analysis: ModelAnalysis,
    phases: Sequence[Phase],
    context: PlanContext,
    seconds: float,
) -> dict[str, float]:
    """Times a model on each device and one split of it; of equal devices one is timed.

    Timing a whole model takes much less time than timing its operations, and in an application the devices of the
    models matter more than the way in which they are split.

    Args:
        name: name of the model, for messages.
        problem: its problem with the profile's costs.
        analysis: its analysis.
        phases: phases of its workload.
        context: what all steps share.
        seconds: time for it, seconds.

    Returns:
        Factors of times, see `PlannedModel.timed`; empty where nothing could be timed, with a warning.
    """
    end = time.monotonic() + seconds
    runs = _RunsToTime.of(problem, context.session)
    try:
        with Comparison(
            analysis.model,
            context.session.devices,
            runs.candidates,
            problem.objective,
            context.session.core,
            shapes=analysis.shapes,
            phases=phases,
            limit=1.5 * (end - time.monotonic()),  # a comparison saves time for rounds of two, which are not made here
            report=lambda text: context.tell(f"{name}: {text}"),
            start_worker=context.start_worker,
        ) as comparison:
            posterior = choice.infer(comparison.trials(rounds=_TIMED_ROUNDS, until=end))
            took_us = {run: 1e6 / posterior.rate(run) for run in posterior.names}
            if took_us.keys().isdisjoint(runs.predicted_us):
                comparison.raise_failures()
    except RunError as error:
        warn_caller(f"'{name}' could not be timed, and is placed by the profile: {error}")
        return {}
    return runs.factors(problem, took_us)


@dataclass(frozen=True, eq=False)
class _RunsToTime:
    """What of one model is timed, and what the profile predicts for it.

    Attributes:
        candidates: the model on each device, by device, and the split, by `_SPLIT`, unless there is none to run.
        predicted_us: predicted time of the model by device that runs all of it, µs.
        timed_as: by device, the equal device that is timed in its place, perhaps itself.
        split: the split, uint8 [groups].
    """

    candidates: dict[str, Candidate]
    predicted_us: dict[str, float]
    timed_as: dict[str, str]
    split: NDArray[np.uint8]

    @classmethod
    def of(cls, problem: PlacementProblem, session: Session) -> _RunsToTime:
        """Determines what is timed.

        Args:
            problem: the problem with the profile's costs.
            session: the devices.
        """
        devices = session.devices
        on_each_us = dict(zip(devices.names, problem.scores(problem.singles).tolist(), strict=True))
        predicted_us = {device: us for device, us in on_each_us.items() if np.isfinite(us)}
        kinds = {device: identity(session.core, device) for device in devices.names}
        timed_as = {
            device: next((able for able in predicted_us if kinds[able] == kind), device)
            for device, kind in kinds.items()
        }
        candidates = {device: Candidate(device) for device in predicted_us if timed_as[device] == device}
        split = Contiguous().place(problem)
        if candidates and split.min() != split.max() and np.isfinite(problem.scores(split)[0]):
            candidates[_SPLIT] = Candidate.placed(devices, problem.affinity(split))
        return cls(candidates, predicted_us, timed_as, split)

    def factors(self, problem: PlacementProblem, took_us: Mapping[str, float]) -> dict[str, float]:
        """Divides measured times by predicted ones.

        Args:
            problem: the problem with the profile's costs.
            took_us: measured times by name of the candidate that ran, µs; a device is among them.

        Returns:
            Factors of times, see `PlannedModel.timed`. A device that was not timed gets the mean of the others.
        """
        measured = {device: took_us[device] / us for device, us in self.predicted_us.items() if device in took_us}
        mean = geometric_mean(measured.values())
        timed = {device: measured.get(representative, mean) for device, representative in self.timed_as.items()}
        if _SPLIT not in took_us:
            return timed
        return {**timed, BOUNDARIES: boundary_factor(scale_by_timing(problem, timed), self.split, took_us[_SPLIT])}


def boundary_factor(problem: PlacementProblem, split: NDArray[np.uint8], us: float) -> float:
    """Estimates the factor of the times of submodel calls and transfers from the measured time of a split.

    Args:
        problem: the problem, with the factors of the devices applied.
        split: the placement that was timed, uint8 [groups].
        us: its measured time, µs.

    Returns:
        The most likely factor, between exp(-2) and exp(3).
    """

    def unlikely(log: float) -> float:
        """Computes twice the negative log-posterior of the logarithm of a factor, up to a constant."""
        scaled = scale_costs(problem, np.ones(len(problem.devices)), math.exp(log))
        return (math.log(float(scaled.scores(split)[0]) / us) / _NOISE) ** 2 + (log / _SPREAD) ** 2

    return math.exp(min(np.linspace(-2, 3, 51).tolist(), key=unlikely))


def scale_by_timing(problem: PlacementProblem, timed: Mapping[str, float]) -> PlacementProblem:
    """Returns a problem with its times scaled by the factors of `PlannedModel.timed`; a missing factor counts as 1."""
    factors = np.array([timed.get(device, 1.0) for device in problem.devices])
    return scale_costs(problem, factors, timed.get(BOUNDARIES, 1.0))
