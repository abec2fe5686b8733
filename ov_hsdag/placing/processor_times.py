"""Estimates the processor times of candidates from their trials, and the rates that follow from these times.

The processor time of a candidate is the time that the threads of a device's submodels compute in one inference. An
ordinary trial runs one candidate. In a simultaneous trial several candidates run at the same time, on the same cores.

Nothing here runs a trial: all estimates are functions of trials that are over.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.costs.stored import UNEQUAL
from ov_hsdag.devices.device_set import kind_of
from ov_hsdag.measuring import choice
from ov_hsdag.model.graph import Floats
from ov_hsdag.problem.problem import PlacementProblem

# Standard deviation of the logarithm of a rate that follows from exact processor times, which do not say for what share
# of the time the busiest device works.
_TIMES_ERROR = 0.02

# Standard deviation of the logarithm of a processor time in one trial.
_TIMES_NOISE = 0.1

# Standard deviation of the logarithm of the ratio between the speeds of two cores during a placing.
_CORES_APART = 0.03

# Number of ordinary trials that a simultaneous trial is worth as evidence of the speed of a device.
_TOGETHER_WORTH = 8


@dataclass(frozen=True, eq=False)
class ProcessorTime:
    """The estimated processor time of a candidate.

    Attributes:
        us: processor time of each device in an inference, µs, float64 [devices].
        error: standard deviation of the logarithm of the longest of these times.
        trials: number of ordinary trials that it was measured in.
    """

    us: Floats
    error: float
    trials: int


@dataclass(frozen=True, eq=False)
class ProcessorTimeModel:
    """Estimates processor times of candidates from their trials.

    Attributes:
        problem: the problem of the model.
        devices_equal: whether all devices are of the same kind.
        prediction_error: standard deviation of log(rate / predicted rate).
    """

    problem: PlacementProblem
    devices_equal: bool
    prediction_error: float
    # Device numbers of the submodels of each placement, by the placement's bytes, in the order in which they are
    # compiled. The order takes a simulation, and it is needed at each decision.
    _submodel_devices: dict[bytes, NDArray[np.uint8]] = field(default_factory=dict, init=False)

    def estimate(
        self,
        placements: Mapping[str, NDArray[np.uint8]],
        ordinary: Mapping[str, Sequence[Sequence[float]]],
        simultaneous: Sequence[Mapping[str, Floats]],
    ) -> dict[str, ProcessorTime]:
        """Estimates the processor times of the candidates for which they were measured.

        They are medians of ordinary trials. Candidates of simultaneous trials get estimates from these, whose level the
        ordinary trials correct.

        Args:
            placements: placements of the candidates, by name, uint8 [groups].
            ordinary: processor time of each submodel in an inference, µs, in each ordinary trial, by candidate.
            simultaneous: for each simultaneous trial, the processor time of each device by candidate, µs, float64
                [devices]. The candidates have ordinary trials as well.

        Returns:
            The estimates by candidate, in the order of `placements`.
        """
        alone = self._from_ordinary_trials(placements, ordinary)
        return alone | self._from_simultaneous_trials(placements, alone, simultaneous) if simultaneous else alone

    def by_device(self, placement: NDArray[np.uint8], submodel_us: Sequence[float]) -> Floats:
        """Sums the processor times of a placement's submodels by device.

        Args:
            placement: device number of each co-location group, uint8 [groups].
            submodel_us: processor time of each submodel in an inference, µs, in the order in which they are compiled.

        Returns:
            Processor time of each device, µs, float64 [devices]; zeros where it is not known which device a time is of,
            or where a device is not a CPU.
        """
        devices = self.problem.devices
        key = placement.tobytes()
        if key not in self._submodel_devices:
            self._submodel_devices[key] = self.problem.submodels_in_order(placement)
        submodel_devices = self._submodel_devices[key]
        if len(submodel_devices) != len(submodel_us) or any(kind_of(device) != "CPU" for device in devices):
            return np.zeros(len(devices))
        return np.bincount(submodel_devices, submodel_us, len(devices)).astype(np.float64)

    def rates(self, times: Mapping[str, ProcessorTime]) -> dict[str, float]:
        """Predicts the rates that follow from processor times alone, inferences per µs, by candidate."""
        return {name: 1 / float(self.problem.periods(time.us[None])[0]) for name, time in times.items()}

    def _from_ordinary_trials(
        self, placements: Mapping[str, NDArray[np.uint8]], ordinary: Mapping[str, Sequence[Sequence[float]]]
    ) -> dict[str, ProcessorTime]:
        """Takes the medians of ordinary trials; candidates without a known time are left out."""
        trials = {name: ordinary.get(name, ()) for name in placements}
        medians = {name: [statistics.median(one) for one in zip(*trials[name], strict=True)] for name in placements}
        times = {name: self.by_device(placement, medians[name]) for name, placement in placements.items()}
        return {
            name: ProcessorTime(
                us, math.hypot(_TIMES_ERROR, _TIMES_NOISE / math.sqrt(len(trials[name]))), len(trials[name])
            )
            for name, us in times.items()
            if us.max() > 0
        }

    def _from_simultaneous_trials(
        self,
        placements: Mapping[str, NDArray[np.uint8]],
        ordinary: Mapping[str, ProcessorTime],
        simultaneous: Sequence[Mapping[str, Floats]],
    ) -> dict[str, ProcessorTime]:
        """Estimates the times of the candidates of simultaneous trials, and corrects their level.

        Args:
            placements: placements of the candidates, by name, uint8 [groups].
            ordinary: estimates from ordinary trials, by candidate.
            simultaneous: see `estimate`; at least one trial.
        """
        posteriors = [
            choice.infer([[(name, us[device]) for name, us in trial.items()] for trial in simultaneous])
            for device in range(len(self.problem.devices))
        ]
        names = posteriors[0].names
        counts = np.array([ordinary[name].trials for name in names])
        evidence = float(counts.sum()) + _TOGETHER_WORTH * len(simultaneous)
        measured = np.stack([posterior.mean for posterior in posteriors], axis=1)
        usual = _at_usual_speed(measured, np.stack([np.log(ordinary[name].us) for name in names]), counts, evidence)
        corrected = self._with_equal_cores(usual, np.stack([placements[name] for name in names]), evidence)
        errors = [posteriors[int(row.argmax())].error(name) for name, row in zip(names, corrected, strict=True)]
        return {
            name: ProcessorTime(
                np.exp(row),
                math.hypot(_TIMES_ERROR, error, _TIMES_NOISE / math.sqrt(evidence)),
                ordinary[name].trials,
            )
            for name, row, error in zip(names, corrected, errors, strict=True)
        }

    def _with_equal_cores(self, log_us: Floats, placements: NDArray[np.uint8], evidence: float) -> Floats:
        """Takes out the part of the difference between equal devices that other speeds of their cores explain.

        Equal devices seem to differ for two reasons: errors of the costs of layers, or other speeds of the cores
        meanwhile. Devices that differ by `UNEQUAL` are not equal after all.

        Args:
            log_us: logarithms of the processor times, µs, float64 [candidates, devices].
            placements: placements of the candidates, uint8 [candidates, groups].
            evidence: number of ordinary trials that all trials are worth.

        Returns:
            The corrected logarithms, float64 [candidates, devices].
        """
        if not self.devices_equal:
            return log_us
        predicted_us = self.problem.breakdown(placements).busy_us.sum(axis=2)
        off = (np.log(predicted_us) - log_us).mean(axis=0)
        noise = math.hypot(_CORES_APART, _TIMES_NOISE * math.sqrt(2 / evidence))
        share = noise**2 / (noise**2 + self.prediction_error**2)
        return log_us + share * (off - off.mean()) if np.ptp(off) < math.log(UNEQUAL) else log_us


def _at_usual_speed(simultaneous: Floats, ordinary: Floats, trials: NDArray[np.int64], evidence: float) -> Floats:
    """Corrects the speed of the devices in simultaneous trials by the ordinary trials.

    Simultaneous trials measure another speed of each device: cores changed meanwhile, and the trials displace each
    other from caches. The ordinary trials correct the mean speed and, by their weight, each device's.

    Args:
        simultaneous: logarithms of processor times in simultaneous trials, µs, float64 [candidates, devices].
        ordinary: logarithms of processor times in ordinary trials, µs, float64 [candidates, devices].
        trials: number of ordinary trials of each candidate, int64 [candidates].
        evidence: number of ordinary trials that all trials are worth.

    Returns:
        The corrected logarithms, float64 [candidates, devices].
    """
    off = np.average(ordinary - simultaneous, axis=0, weights=trials)
    corrected: Floats = simultaneous + (off.mean() + (off - off.mean()) * trials.sum() / evidence)
    return corrected


def combine_with_predictions(
    predicted: Mapping[str, float],
    error: float,
    times: Mapping[str, ProcessorTime],
    by_times: Mapping[str, float],
    corrected: Collection[str],
) -> tuple[dict[str, float], dict[str, float]]:
    """Combines the rates that follow from costs with those that follow from processor times.

    Costs that trials have corrected do not count where processor times are known.

    Args:
        predicted: rates that follow from costs, in a common unit, of all candidates.
        error: standard deviation of log(rate / predicted rate).
        times: processor times of some candidates.
        by_times: rates that follow from `times`, inferences per µs.
        corrected: names of the candidates that a search with corrected costs found.

    Returns:
        rates: rates of all candidates, in a common unit.
        errors: standard deviation of log(rate) of each candidate.
    """
    unit = np.exp(np.median([math.log(rate / predicted[name]) for name, rate in by_times.items()]))
    rates, errors = dict[str, float](), dict[str, float]()
    for name, rate in predicted.items():
        costs_error = math.inf if name in times and name in corrected else error
        times_error = times[name].error if name in times else math.inf
        weights = np.array([costs_error, times_error]) ** -2.0
        rates[name] = math.exp(float(np.average(np.log([rate * unit, by_times.get(name, 1.0)]), weights=weights)))
        errors[name] = float(weights.sum()) ** -0.5
    return rates, errors
