"""Measuring on real devices, each candidate in a worker process, in turns with its rivals: drift falls on all of them.

A shared machine's speed changes by 20% and more from minute to minute. So nothing is ever timed for itself: candidates
run in turns of less than a second, and what counts is the ratio of neighbouring turns.

`compare` measures candidates against each other and ends early with those that are clearly worse; `Rivals` is the same
in steps. `Measurer` judges one placement after the other against the best single device.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring import choice
from ov_hsdag.measuring.agreement import TOLERANCE, largest_difference, tolerance
from ov_hsdag.measuring.choice import Ratio
from ov_hsdag.measuring.process import Candidate, Worker, WorkerError, Workshop
from ov_hsdag.model.inputs import random_inputs
from ov_hsdag.utils.errors import RunError

if TYPE_CHECKING:
    import openvino as ov

HETERO_DEFAULT = "hetero"
"""Name of HETERO's own choice, the reference where no device runs the whole model."""

PIPELINE_HINT = "hetero-pipeline"
"""Name of HETERO's own choice under MODEL_DISTRIBUTION_POLICY: PIPELINE_PARALLEL."""

ROUNDS, SECONDS = 12, 0.25
"""Of a comparison: rounds at most, and seconds of a turn."""

PATIENCE = 120.0
"""Seconds that compiling, or a turn, may take before a worker counts as hanging."""

# A turn may take so many times what its first inferences let expect, and so many seconds more.
_TURN_TIMES, _TURN_MORE = 8, 10.0

# After n rounds a placement is given up when its best ratio is below this share of what it has to beat: 0.85, 0.925, …
_HOPELESS = 0.15


@dataclass(frozen=True)
class Measurement:
    """What measuring a placement gave.

    Attributes:
        ratio: how many times better than the reference (throughput, or the inverse of latency); 0 where it failed.
        value: the placement's throughput in inferences per second, or its latency in µs; nan where it failed.
        reference: the same of the reference, in the same turns.
        ratios: of each round.
        submodels: that HETERO made of it, 0 where that is not known.
        seconds: wall time that compiling and measuring took.
        error: why it failed, one line; "" where it did not.
        rates: of each round, inferences per second (for latency, the inverse of a turn's median latency).
    """

    ratio: float
    value: float = math.nan
    reference: float = math.nan
    ratios: tuple[float, ...] = ()
    submodels: int = 0
    seconds: float = 0.0
    error: str = ""
    rates: tuple[float, ...] = ()

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
        """95% confidence interval of the ratio."""
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
        known |= {name: tuple(known.get(name, ())) for name in ("ratios", "rates")}
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
        """Judges a placement.

        Args:
            affinity: device of each node by friendly name.
            worth: the ratio that it has to beat: a placement that is clearly worse gets fewer rounds.
            rounds: at most; None: the judge's own number.

        Returns:
            A failed measurement where the placement does not run; nothing is raised for that.
        """


class Runner(Protocol):
    """What can be timed."""

    def rate(self, seconds: float) -> float:
        """Inferences per second in a turn of about so many seconds. Raises WorkerError where that fails."""


@dataclass(frozen=True)
class Race:
    """What turns gave.

    Attributes:
        rates: of each candidate in each round that it ran in, inferences per second; all began in the first round.
        failed: why candidates failed in a turn.
    """

    rates: Mapping[str, Sequence[float]]
    failed: Mapping[str, str]


def race(
    runners: Mapping[str, Runner],
    rounds: int = ROUNDS,
    seconds: float = SECONDS,
    until: float = math.inf,
    halving: bool = True,
) -> Race:
    """Lets candidates take turns. The order changes from round to round, so that steady drifts cancel.

    Args:
        runners: the simplest candidate first.
        rounds: at most.
        seconds: of a turn.
        until: no round begins that would end after this time of `time.monotonic`, but the first.
        halving: those that are clearly worse than the best take part no more (successive halving), and it ends when
            `ov_hsdag.measuring.choice.settled`. Without it all run all rounds, for looking often makes luck, unless the
            best is `ov_hsdag.measuring.choice.obvious`.
    """
    rates: dict[str, list[float]] = {name: [] for name in runners}
    failed: dict[str, str] = {}
    alive = list(runners)
    for number in range(rounds):
        begin = time.monotonic()
        shift = number // 2 % max(len(alive), 1)
        order = alive[shift:] + alive[:shift]
        for name in reversed(order) if number % 2 else order:
            try:
                rates[name].append(runners[name].rate(seconds))
            except WorkerError as error:
                failed[name] = str(error)
                alive.remove(name)
        if halving and alive:
            lost = choice.beaten({name: rates[name] for name in alive})
            alive = [name for name in alive if name not in lost]
            if choice.settled({name: rates[name] for name in alive}):
                break
        elif alive and choice.obvious({name: rates[name] for name in alive}):
            break
        now = time.monotonic()
        if not alive or now + (now - begin) > until:
            break
    return Race(rates, failed)


class Rivals:
    """Candidates of one model that are compiled, each in a worker of its own, and ready to race.

    Ends with `close`, or at the end of a `with` block.

    Attributes:
        ready: names of those that compiled and compute the same as a single device, the simplest first.
        failed: why the others failed.
        submodels: that HETERO made of each.
        seconds: that compiling each took.
    """

    def __init__(
        self,
        model: ov.Model,
        devices: DeviceSet,
        candidates: Mapping[str, Candidate],
        objective: str,
        core: ov.Core,
        *,
        shapes: Mapping[str, Sequence[int]] | None = None,
        patience: float = PATIENCE,
        until: float = math.inf,
        report: Callable[[str], None] | None = None,
        faults: Mapping[str, str] | None = None,
    ) -> None:
        """Compiles all that can be.

        Args:
            model: normalized (`legality.normalize`); not changed.
            devices: of HETERO.
            candidates: the simplest first. Outputs are compared with those of the first that is a single device, or of
                the first where none is.
            objective: "latency" of one request, or "throughput" with several in flight.
            core: has the devices; only asked for their precision.
            shapes: example shapes of dynamic inputs.
            patience: seconds that compiling one, or a turn, may take.
            until: time of `time.monotonic` after which nothing more is compiled.
            report: is told what is being done.
            faults: for tests, of candidates' workers, see `Worker`.

        Raises:
            RunError: the model cannot be written, or there is no way to make up its inputs.
        """
        self.failed: dict[str, str] = {}
        self.submodels: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self._devices = devices
        self._patience = patience
        self._report = report or (lambda text: None)
        self._workshop = Workshop(model, random_inputs(model, shapes=shapes), objective)
        try:
            # All import OpenVINO at once; they compile one after the other, as each may use the whole machine.
            self._workers = {name: self._workshop.start((faults or {}).get(name, "")) for name in candidates}
            outputs = {}
            for name, candidate in candidates.items():
                found = self._compile(name, candidate, until)
                if found is not None:
                    outputs[name] = found
            self._compare_outputs(candidates, outputs, tolerance(core, devices.names, model))
        except BaseException:
            self.close()
            raise

    @property
    def ready(self) -> list[str]:
        """See the class."""
        return [name for name in self._workers if name not in self.failed]

    def race(
        self,
        names: Collection[str] | None = None,
        rounds: int = ROUNDS,
        seconds: float = SECONDS,
        until: float = math.inf,
        halving: bool = True,
    ) -> dict[str, Sequence[float]]:
        """Rates of those of the names (all by default) that do not fail; see `race`."""
        runners = {name: self._runner(name) for name in self.ready if names is None or name in names}
        self._report(f"measuring {', '.join(runners)}")
        result = race(runners, rounds, seconds, until, halving)
        self.failed |= result.failed
        for name in result.failed:
            self._workers[name].end()
        return {name: rates for name, rates in result.rates.items() if name not in result.failed}

    def close(self) -> None:
        """Ends the workers and removes what they shared."""
        self._workshop.close()

    def __enter__(self) -> Rivals:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _runner(self, name: str) -> Runner:
        return _Timed(self._workers[name], self.seconds[name], self._patience)

    def _compile(self, name: str, candidate: Candidate, until: float) -> list[NDArray[Any]] | None:
        begin = time.monotonic()
        self._report(f"compiling {name}")
        try:
            if begin >= until:
                raise WorkerError("there was no time left to compile it")
            return self._workers[name].compile(candidate, min(self._patience, until - begin))
        except WorkerError as error:
            self._fail(name, str(error))
            return None
        finally:
            self.submodels[name] = self._workers[name].submodels
            self.seconds[name] = time.monotonic() - begin

    def _compare_outputs(
        self, candidates: Mapping[str, Candidate], outputs: Mapping[str, list[NDArray[Any]]], accepted: float
    ) -> None:
        """What computes something else has failed, however fast it is."""
        # What is no number in a single device's outputs may be so in the model; where another has numbers it is not.
        singles = [name for name in outputs if candidates[name].device in self._devices.names] or list(outputs)[:1]
        if not singles:
            return
        reference = min(singles, key=lambda name: not _finite(outputs[name]))
        for name, arrays in outputs.items():
            told = _disagreement(outputs[reference], arrays, accepted, reference)
            if told:
                self._fail(name, told)

    def _fail(self, name: str, why: str) -> None:
        self.failed[name] = why
        self._workers[name].end()


@dataclass(frozen=True)
class _Timed:
    """A worker as a `Runner`: with a time limit that follows from how long compiling and the first inferences took."""

    worker: Worker
    prepared: float
    patience: float

    def rate(self, seconds: float) -> float:
        return self.worker.rate(seconds, min(_TURN_TIMES * (seconds + self.prepared) + _TURN_MORE, self.patience))


def compare(
    model: ov.Model,
    devices: DeviceSet,
    candidates: Mapping[str, Candidate],
    objective: str,
    core: ov.Core,
    *,
    rounds: int = ROUNDS,
    seconds: float = SECONDS,
    limit: float = math.inf,
    shapes: Mapping[str, Sequence[int]] | None = None,
    patience: float = PATIENCE,
    report: Callable[[str], None] | None = None,
    faults: Mapping[str, str] | None = None,
) -> dict[str, Measurement]:
    """Measures candidates against each other on real devices; those that are clearly worse get fewer rounds.

    Args:
        candidates: the simplest first. The first that runs is the reference of all ratios.
        rounds: at most.
        seconds: of a turn.
        limit: seconds for all of it, about; most of them for compiling where that takes so long.
        others: see `Rivals`.

    Returns:
        A measurement of each candidate, in their order; `value` and `reference` are medians over the rounds that it ran
        in, `rates` allow to compare any two (`ov_hsdag.measuring.choice.Ratio.of`).

    Raises:
        RunError: see `Rivals`. What happens to a candidate is told in its measurement.
    """
    begin = time.monotonic()
    with Rivals(
        model,
        devices,
        candidates,
        objective,
        core,
        shapes=shapes,
        patience=patience,
        until=begin + COMPILING * limit,
        report=report,
        faults=faults,
    ) as rivals:
        rates = rivals.race(rounds=rounds, seconds=seconds, until=begin + limit)
        return measurements(candidates, rivals, rates, objective)


COMPILING = 0.6
"""Share of a limit after which nothing more is compiled."""


def measurements(
    names: Collection[str],
    rivals: Rivals,
    rates: Mapping[str, Sequence[float]],
    objective: str,
    reference: str | None = None,
) -> dict[str, Measurement]:
    """What a race gave, as a measurement of each name; ratios are to `reference`, by default to the first that ran."""
    if reference is None:
        reference = next(iter(rates), "")
    unit = rates.get(reference, ())
    found: dict[str, Measurement] = {}
    for name in names:
        submodels, took = rivals.submodels.get(name, 0), rivals.seconds.get(name, 0.0)
        if name not in rates:
            why = rivals.failed.get(name, "it was not measured")
            found[name] = Measurement(0.0, submodels=submodels, seconds=took, error=why)
            continue
        own = tuple(rates[name])
        ratios = tuple(a / b for a, b in zip(own, unit, strict=False))
        others = statistics.median(unit[: len(own)])
        values = in_unit(statistics.median(own), objective), in_unit(others, objective)
        found[name] = Measurement(statistics.median(ratios), *values, ratios, submodels, took, rates=own)
    return found


def in_unit(rate: float, objective: str) -> float:
    """Inferences per second as such, or as latency in µs."""
    return rate if objective == "throughput" else 1e6 / rate


class Measurer:
    """Measures placements of one model on HETERO, one after the other, each against the same reference.

    The reference has a worker of its own all the time. Placements share one as long as it is healthy: starting a
    process and importing OpenVINO takes longer than compiling a small model.

    Attributes:
        reference: what placements are compared with.
        singles: see `Judge`; where the reference was given, that one only.
    """

    def __init__(
        self,
        model: ov.Model,
        devices: DeviceSet,
        objective: str,
        core: ov.Core,
        *,
        reference: str | None = None,
        rounds: int = 3,
        seconds: float = 0.7,
        patience: float = PATIENCE,
    ) -> None:
        """Compiles the reference.

        Args:
            model: normalized; not changed.
            devices: of HETERO.
            objective: "latency" of one request, or "throughput" with several in flight.
            core: has the devices; only asked for their precision.
            reference: a device or `HETERO_DEFAULT`; None: the best single device, which is found by measuring.
            rounds: turns of the reference and of the placement.
            seconds: of a turn.
            patience: seconds that compiling, or a turn, may take.

        Raises:
            RunError: neither a device alone nor HETERO runs the model.
        """
        self._devices = devices
        self._objective = objective
        self._rounds, self._seconds, self._patience = rounds, seconds, patience
        self._accepted = tolerance(core, devices.names, model)
        self._workshop = Workshop(model, random_inputs(model), objective)
        self._spare: Worker | None = None
        self.reference, self.singles = "", {}
        try:
            if reference is not None:
                self._compiled = self._run(_simple(reference, devices))
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
        told = _disagreement(self._compiled.outputs, running.outputs, self._accepted, self.reference)
        if told:
            return Measurement(0.0, error=told)
        rounds = rounds or self._rounds
        found = self._compare(self._compiled, running, worth, rounds)
        if not self._compiled.worker.alive:  # no fault of the placement's
            try:
                self._compiled = self._run(_simple(self.reference, self._devices), anew=True)
            except WorkerError as error:
                raise RunError(f"{self.reference} runs no more: {error}") from error
            found = self._compare(self._compiled, running, worth, rounds)
        return replace(found, submodels=running.submodels)

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
                runner = self._run(_simple(name, self._devices))
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
            outputs = worker.compile(candidate, self._patience)
        except WorkerError:
            self._spare = worker if worker.alive else None
            raise
        return _Running(worker, time.monotonic() - begin, self._patience, outputs, worker.submodels)

    def _compare(self, reference: _Running, candidate: _Running, worth: float, rounds: int) -> Measurement:
        try:
            turns = take_turns(reference, candidate, rounds, self._seconds, worth)
        except WorkerError as error:
            return Measurement(0.0, error=str(error))
        ratios = tuple(own / other for own, other in turns)
        ratio = statistics.median(ratios)
        rate = statistics.median(other for _, other in turns)
        # From the ratio: medians of the two need not come from the same turns.
        values = in_unit(rate * ratio, self._objective), in_unit(rate, self._objective)
        return Measurement(ratio, *values, ratios, rates=tuple(own for own, _ in turns))


@dataclass(frozen=True, eq=False)
class _Running(_Timed):
    """What a worker has compiled."""

    outputs: list[NDArray[Any]] = field(repr=False)
    submodels: int


def _simple(name: str, devices: DeviceSet) -> Candidate:
    return Candidate.hetero(devices) if name == HETERO_DEFAULT else Candidate(name)


def _disagreement(
    expected: Sequence[NDArray[Any]], got: Sequence[NDArray[Any]], accepted: float, reference: str
) -> str:
    """In one line, in what outputs differ from those of the reference; "" where they do not."""
    if len(got) != len(expected):
        return f"it has {len(got)} outputs, {reference} has {len(expected)}"
    if not _finite(got) and _finite(expected):
        return "its outputs are not finite"
    if accepted > TOLERANCE:
        # Rounding decides which of two equals is the largest: indices may differ where precisions do.
        exact = [np.issubdtype(array.dtype, np.floating) for array in expected]
        expected, got = ([a for a, float_ in zip(arrays, exact, strict=True) if float_] for arrays in (expected, got))
    difference = largest_difference([expected], [got])
    if difference <= accepted:
        return ""
    return f"its outputs differ from those of {reference} by {difference:.2g} of their largest value"


def _finite(arrays: Sequence[NDArray[Any]]) -> bool:
    return all(np.isfinite(array).all() for array in arrays)


def take_turns(
    reference: Runner, candidate: Runner, rounds: int, seconds: float, worth: float = 0.0
) -> list[tuple[float, float]]:
    """Rates of candidate and reference in each round, the order changing from round to round: steady drifts cancel.

    Ends early where the candidate is clearly below `worth` times the reference.
    """
    turns: list[tuple[float, float]] = []
    best = 0.0
    for number in range(rounds):
        if number % 2:
            own, other = candidate.rate(seconds), reference.rate(seconds)
        else:
            other, own = reference.rate(seconds), candidate.rate(seconds)
        turns.append((own, other))
        best = max(best, own / other)
        if best < worth * (1 - _HOPELESS / len(turns)):
            break
    return turns
