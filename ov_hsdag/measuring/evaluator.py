"""Judging one placement after the other by measuring each against the same reference.

Where several candidates are known at once, `ov_hsdag.measuring.comparison` compares them with each other.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.devices import extensions
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring.agreement import disagreement, tolerance
from ov_hsdag.measuring.choice import Ratio
from ov_hsdag.measuring.process import PATIENCE, Candidate, StartWorker, TimedWorker, Worker, WorkerError, Workshop
from ov_hsdag.model.inputs import timed_inputs
from ov_hsdag.utils.errors import RunError
from ov_hsdag.utils.lazy import ov

HETERO_DEFAULT = "hetero"
"""Name of HETERO's own choice, the reference where no device runs the whole model."""

PIPELINE_HINT = "hetero-pipeline"
"""Name of HETERO's own choice under MODEL_DISTRIBUTION_POLICY: PIPELINE_PARALLEL."""


TRIAL_SECONDS = 0.7
"""Of a trial of a placement, and of its reference."""


@dataclass(frozen=True)
class Measurement:
    """What measuring a placement gave."""

    ratio: float  # how many times better than the reference (throughput, or the inverse of latency); 0 where it failed
    # the placement's throughput in inferences per second, or its latency in µs; nan where it failed
    value: float = math.nan
    reference: float = math.nan  # the same of the reference, in the same trials
    ratios: tuple[float, ...] = ()  # of each round
    submodels: int = 0  # that HETERO made of it, 0 where that is not known
    seconds: float = 0.0  # wall time that compiling and measuring took
    error: str = ""  # why it failed, one line; "" where it did not
    # of each round, inferences per second (for latency, the inverse of a trial's median latency)
    rates: tuple[float, ...] = ()
    bounds: tuple[float, ...] = ()  # of the ratio's 95% interval, where it does not follow from `ratios`

    @property
    def failed(self) -> bool:
        """Whether it did not compile, did not run, or computed something else."""
        return bool(self.error)

    @property
    def uncertain(self) -> float:
        """Standard error of log(ratio) by how rounds differ; 0 where there are fewer than two."""
        if len(self.ratios) < 2:
            return 0.0
        return float(np.log(self.ratios).std(ddof=1) / math.sqrt(len(self.ratios)))

    @property
    def sure(self) -> float:
        """The ratio less its standard error."""
        return self.ratio * math.exp(-self.uncertain)

    @property
    def interval(self) -> tuple[float, float]:
        """95% interval of the ratio."""
        if self.bounds:
            return self.bounds[0], self.bounds[1]
        known = Ratio.of_rounds(self.ratios)
        return known.low, known.high

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        values = asdict(self)
        return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in values.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Measurement:
        """Inverse of `to_dict`."""
        known: dict[str, Any] = {key: math.nan if value is None else value for key, value in values.items()}
        known |= {name: tuple(known.get(name, ())) for name in ("ratios", "rates", "bounds")}
        return cls(**known)


class Judge(Protocol):
    """Tells how good placements are: by measuring them (`Measurer`), or otherwise."""

    @property
    def reference(self) -> str:
        """What placements are compared with: a device, or `HETERO_DEFAULT`."""

    @property
    def singles(self) -> Mapping[str, Measurement]:
        """Each device that runs the whole model, as far as this judge has compared them."""

    def measure(self, affinity: Mapping[str, str], *, worth: float = 0.0, rounds: int | None = None) -> Measurement:
        """Judges a placement, the device of each node by friendly name; failed where it does not run.

        worth: the ratio that it has to beat: one that is clearly worse gets fewer rounds. rounds: None: as usual.
        """


def in_unit(rate: float, objective: str) -> float:
    """Inferences per second as such, or as latency in µs."""
    return rate if objective == "throughput" else 1e6 / rate


class Measurer:
    """Measures placements of one model on HETERO, one after the other, each against the same reference.

    The reference has a worker of its own all the time. Placements share one as long as it is healthy: starting a
    process and importing OpenVINO takes longer than compiling a small model. `singles`: see `Judge`; where the
    reference was given, that one only.
    """

    def __init__(
        self,
        model: ov.Model,
        devices: DeviceSet,
        objective: str,
        core: ov.Core,
        *,
        reference: str | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        rounds: int = 3,
        seconds: float = TRIAL_SECONDS,
        start_worker: StartWorker | None = None,
    ) -> None:
        """Compiles the reference: a device or `HETERO_DEFAULT`; None: the best single device, found by measuring.

        model: normalized; not changed. rounds: trials of the reference and of the placement, `seconds` each. Raises
        RunError where neither a device alone nor HETERO runs the model.
        """
        self._devices = devices
        self._objective = objective
        self._rounds, self._seconds = rounds, seconds
        self._accepted = tolerance(core, devices.names, model)
        self._workshop = Workshop(model, timed_inputs(model, shapes), objective, start_worker, extensions.of(core))
        self._spare: Worker | None = None
        self.reference, self.singles = "", {}
        try:
            if reference is not None:
                self._compiled = self._run(simple_candidate(reference, devices))
                self.reference, self.singles = reference, {reference: Measurement(1.0)}
            else:
                self._compiled = self._best_single()
        except BaseException as error:
            self.close()
            if isinstance(error, WorkerError):
                raise RunError(f"{reference} does not run the model: {error}") from error
            raise

    def close(self) -> None:
        """Ends the workers, which otherwise happens when this object is forgotten."""
        self._workshop.close()

    def measure(self, affinity: Mapping[str, str], *, worth: float = 0.0, rounds: int | None = None) -> Measurement:
        """See `Judge.measure`. `affinity` has every node of the model."""
        begin = time.perf_counter()
        candidate = Candidate.placed(self._devices, affinity)
        return replace(self._judge(candidate, worth, rounds), seconds=time.perf_counter() - begin)

    def _judge(self, candidate: Candidate, worth: float, rounds: int | None) -> Measurement:
        try:
            running = self._run(candidate)
        except WorkerError as error:
            return Measurement(0.0, error=str(error))
        self._spare = running.worker
        told = disagreement(self._compiled.outputs, running.outputs, self._accepted, self.reference)
        if told:
            return Measurement(0.0, error=told)
        rounds = rounds or self._rounds
        found = self._compare(self._compiled, running, worth, rounds)
        if not self._compiled.worker.alive:  # no fault of the placement's
            try:
                self._compiled = self._run(simple_candidate(self.reference, self._devices), anew=True)
            except WorkerError as error:
                raise RunError(f"{self.reference} runs no more: {error}") from error
            found = self._compare(self._compiled, running, worth, rounds)
        return replace(found, submodels=running.worker.submodels)

    def _best_single(self) -> _Running:
        """Compares the devices that run the whole model; the best of them."""
        found: dict[str, Measurement] = {}
        errors: list[str] = []
        best: _Running | None = None
        for name in (*self._devices, HETERO_DEFAULT):
            if name == HETERO_DEFAULT and best is not None:
                break
            begin = time.perf_counter()
            try:
                runner = self._run(simple_candidate(name, self._devices))
            except WorkerError as error:
                errors.append(f"{name}: {error}")
                continue
            if best is None:
                best, self.reference, result = runner, name, Measurement(1.0)
            else:
                result = self._compare(best, runner, 0.0, self._rounds)
                if result.failed:
                    errors.append(f"{name}: {result.error}")
                    continue
                # Ratios of what was compared before are to the former best.
                result = replace(result, ratio=result.ratio * found[self.reference].ratio)
                other = runner
                if result.ratio > found[self.reference].ratio:
                    best, other, self.reference = runner, best, name
                self._spare = other.worker
            found[name] = replace(result, seconds=time.perf_counter() - begin)
        if best is None:
            raise RunError(f"no device of {self._devices.hetero} runs the model: {'; '.join(errors)}")
        unit = found[self.reference].ratio
        self.singles = {name: replace(result, ratio=result.ratio / unit) for name, result in found.items()}
        return best

    def _run(self, candidate: Candidate, anew: bool = False) -> _Running:
        """Compiles in the spare worker, or in a new one where there is none or `anew`."""
        if anew or self._spare is None or not self._spare.alive:
            worker = self._workshop.start()
        else:
            worker, self._spare = self._spare, None
        begin = time.monotonic()
        try:
            outputs = worker.compile(candidate, PATIENCE)
        except WorkerError:
            self._spare = worker if worker.alive else None
            raise
        return _Running(worker, time.monotonic() - begin, PATIENCE, outputs)

    def _compare(self, reference: _Running, candidate: _Running, worth: float, rounds: int) -> Measurement:
        try:
            trials = alternate(reference.rate, candidate.rate, rounds, self._seconds, worth)
        except WorkerError as error:
            return Measurement(0.0, error=str(error))
        ratios = tuple(own / other for own, other in trials)
        ratio = statistics.median(ratios)
        rate = statistics.median(other for _, other in trials)
        # From the ratio: medians of the two need not come from the same trials.
        values = in_unit(rate * ratio, self._objective), in_unit(rate, self._objective)
        return Measurement(ratio, *values, ratios, rates=tuple(own for own, _ in trials))


@dataclass(frozen=True, eq=False)
class _Running(TimedWorker):
    """What a worker has compiled."""

    outputs: list[NDArray[Any]] = field(repr=False)


def simple_candidate(name: str, devices: DeviceSet) -> Candidate:
    """What needs no placement: a single device, or HETERO's own choice, `HETERO_DEFAULT` or `PIPELINE_HINT`."""
    if name not in (HETERO_DEFAULT, PIPELINE_HINT):
        return Candidate(name)
    hint = {"MODEL_DISTRIBUTION_POLICY": "PIPELINE_PARALLEL"} if name == PIPELINE_HINT else {}
    return Candidate(devices.hetero, properties=hint)


# After n rounds a placement is given up when its best ratio is below this share of what it has to beat: 0.85, 0.925, …
_HOPELESS = 0.15


def alternate(
    reference: Callable[[float], float],
    candidate: Callable[[float], float],
    rounds: int,
    seconds: float,
    worth: float = 0.0,
) -> list[tuple[float, float]]:
    """Interleaves trials of two; the rates of candidate and reference in each round, inferences per second.

    Both take the seconds of a trial and return its rate. Their order changes from round to round, so that steady drifts
    cancel. Ends early where the ratio `worth`, which the candidate has to beat, is out of reach. Raises WorkerError
    where either fails.
    """
    trials: list[tuple[float, float]] = []
    best = 0.0
    for number in range(rounds):
        if number % 2:
            own, other = candidate(seconds), reference(seconds)
        else:
            other, own = reference(seconds), candidate(seconds)
        trials.append((own, other))
        best = max(best, own / other)
        if best < worth * (1 - _HOPELESS / len(trials)):
            break
    return trials
