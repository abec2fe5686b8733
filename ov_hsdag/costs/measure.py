"""Measuring placements on real HETERO, each against the best single device in turns, so that drift falls on both.

A shared machine's speed changes by 20% and more from minute to minute. So a placement is never timed for itself: it and
the reference run in turns of about a second, and what counts is the median of the ratios of neighbouring turns.
"""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ov_hsdag import devices as hardware
from ov_hsdag.devices import DeviceSet
from ov_hsdag.errors import RunError
from ov_hsdag.graph import ComputationGraph
from ov_hsdag.placement import Placement, remove_affinities, set_affinities

if TYPE_CHECKING:
    import openvino as ov

HETERO_DEFAULT = "hetero"
"""Name of HETERO's own choice, the reference where no device runs the whole model."""

# A turn lasts until so many inferences have ended, however slow they are.
_FEWEST = 4

_WARM_UP = 2

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
    """

    ratio: float
    value: float = math.nan
    reference: float = math.nan
    ratios: tuple[float, ...] = ()
    submodels: int = 0
    seconds: float = 0.0
    error: str = ""

    @property
    def failed(self) -> bool:
        """Whether the placement did not compile, or did not run."""
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

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        values = asdict(self)
        return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in values.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Measurement:
        """Inverse of `to_dict`."""
        known: dict[str, Any] = {key: math.nan if value is None else value for key, value in values.items()}
        known["ratios"] = tuple(known["ratios"])
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


class Measurer:
    """Measures placements of one model on HETERO. At most two compiled models are alive at a time.

    Everything that belongs to devices happens in `__init__` and `measure`, whose arguments and results are plain data.

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
    ) -> None:
        """Compiles the reference.

        Args:
            model: normalised; not changed.
            devices: of HETERO.
            objective: "latency" of one request, or "throughput" with several in flight.
            core: has the devices.
            reference: a device or `HETERO_DEFAULT`; None: the best single device, which is found by measuring.
            rounds: turns of the reference and of the placement.
            seconds: of a turn.

        Raises:
            RunError: neither a device alone nor HETERO runs the model.
        """
        self._core = core
        self._devices = devices
        self._objective = objective
        self._rounds, self._seconds = rounds, seconds
        self._model = model.clone()
        Placement.strip(self._model)
        self._inputs = random_inputs(self._model)
        self.reference, self.singles = "", {}
        if reference is not None:
            self._compiled = self._run(reference)
            self.reference, self.singles = reference, {reference: Measurement(1.0)}
        else:
            self._compiled = self._best_single()

    def measure(self, affinity: Mapping[str, str], *, worth: float = 0.0, rounds: int | None = None) -> Measurement:
        """See `Judge.measure`. `affinity` has every node of the model."""
        begin = time.perf_counter()
        try:
            set_affinities(self._model, affinity)
            candidate = self._run(self._devices.hetero)
        except (RuntimeError, RunError) as error:
            return Measurement(0.0, seconds=time.perf_counter() - begin, error=_reason(error))
        finally:
            remove_affinities(self._model)
        found = self._compare(self._compiled, candidate, worth, rounds or self._rounds)
        return replace(found, submodels=candidate.submodels, seconds=time.perf_counter() - begin)

    def _best_single(self) -> _Runner:
        """Compares the devices that run the whole model; the best of them."""
        found: dict[str, Measurement] = {}
        errors: list[str] = []
        best: _Runner | None = None
        for name in (*self._devices, HETERO_DEFAULT):
            if name == HETERO_DEFAULT and best is not None:
                break
            begin = time.perf_counter()
            try:
                runner = self._run(name)
            except RuntimeError as error:
                errors.append(f"{name}: {_reason(error)}")
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
                if result.ratio > found[self.reference].ratio:
                    best, self.reference = runner, name
            found[name] = replace(result, seconds=time.perf_counter() - begin)
        if best is None:
            raise RunError(f"no device of {self._devices.hetero} runs the model: {'; '.join(errors)}")
        unit = found[self.reference].ratio
        self.singles = {name: replace(result, ratio=result.ratio / unit) for name, result in found.items()}
        return best

    def _run(self, name: str) -> _Runner:
        """Compiles for a device, or for HETERO with the affinities that the model has, and warms up."""
        device = self._devices.hetero if name == HETERO_DEFAULT else name
        # HETERO drops the limits of virtual devices in a split model.
        config = hardware.compile_properties(device)
        compiled = self._core.compile_model(self._model, device, config)
        split = device == self._devices.hetero
        return _Runner(compiled, self._inputs, self._objective, 2 * len(self._devices) if split else 2)

    def _compare(self, reference: _Runner, candidate: _Runner, worth: float, rounds: int) -> Measurement:
        try:
            turns = take_turns(reference, candidate, rounds, self._seconds, worth)
        except RuntimeError as error:
            return Measurement(0.0, error=_reason(error))
        ratios = tuple(own / other for own, other in turns)
        ratio = statistics.median(ratios)
        rate = statistics.median(other for _, other in turns)
        # From the ratio: medians of the two need not come from the same turns.
        return Measurement(ratio, self._unit(rate * ratio), self._unit(rate), ratios)

    def _unit(self, rate: float) -> float:
        return rate if self._objective == "throughput" else 1e6 / rate


class Runner(Protocol):
    """What can be timed."""

    def rate(self, seconds: float) -> float:
        """Inferences per second in a turn of about so many seconds."""


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


class _Runner:
    """A compiled model that is ready to run."""

    def __init__(self, compiled: ov.CompiledModel, inputs: list[NDArray[Any]], objective: str, requests: int) -> None:
        """Raises RuntimeError where inference fails."""
        import openvino as ov

        self._inputs = inputs
        self._objective = objective
        self.submodels = _submodels(compiled)
        requests = max(requests, int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")))
        self._queue = ov.AsyncInferQueue(compiled, requests if objective == "throughput" else 1)
        # A request with state begins anew each time: a cache that grows would make later turns slower.
        self._stateful = bool(self._queue[0].query_state())
        # The callback must not refer to this object: the queue holds it, and cycles through C++ are never freed.
        finished: list[float] = []
        self._queue.set_callback(lambda request, _: finished.append(time.perf_counter()))
        self._finished = finished
        for _ in range(_WARM_UP * len(self._queue)):
            self._start()
        self._queue.wait_all()

    def rate(self, seconds: float) -> float:
        """Inferences per second in a turn. Raises RuntimeError where inference fails."""
        return self._throughput(seconds) if self._objective == "throughput" else 1 / self._latency(seconds)

    def _throughput(self, seconds: float) -> float:
        """Inferences that end while requests are always under way, over the time between the first and the last.

        The first to end tells that the pipeline is full; what ends after the last was started runs while it empties.
        """
        finished = self._finished
        finished.clear()
        while len(finished) <= _FEWEST or time.perf_counter() - finished[0] < seconds:
            self._start()
        ended = len(finished)
        self._queue.wait_all()
        return (ended - 1) / (finished[ended - 1] - finished[0])

    def _latency(self, seconds: float) -> float:
        """Median seconds of one request."""
        times: list[float] = []
        begin = time.perf_counter()
        while len(times) < _FEWEST or time.perf_counter() - begin < seconds:
            start = time.perf_counter()
            self._start()
            self._queue.wait_all()
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    def _start(self) -> None:
        if self._stateful:
            self._queue[self._queue.get_idle_request_id()].reset_state()
        self._queue.start_async(self._inputs)


def random_inputs(model: ov.Model, seed: int = 0) -> list[NDArray[Any]]:
    """One array for each input of the model, drawn from the seed.

    Floats are normal; integers 0 or 1, which are valid as token ids, masks and indices alike; bytes cover their range
    (they are images). Dynamic dimensions get the size that costs count with. Raises RunError for inputs of other types.
    """
    graph = ComputationGraph.from_model(model)
    random = np.random.default_rng(seed)
    arrays: list[NDArray[Any]] = []
    for parameter in model.get_parameters():
        shape = graph.output_shapes[graph.output_ptr[graph.index(parameter.get_friendly_name())]]
        try:
            dtype = np.dtype(parameter.get_element_type().to_dtype())
        except (RuntimeError, TypeError, KeyError) as error:
            raise RunError(f"cannot make up values of type {parameter.get_element_type()} for an input") from error
        if np.issubdtype(dtype, np.floating):
            arrays.append(random.standard_normal(shape).astype(dtype))
        elif dtype == np.uint8:
            arrays.append(random.integers(0, 256, shape, dtype=dtype))
        else:
            arrays.append(random.integers(0, 2, shape).astype(dtype))
    return arrays


def _submodels(compiled: ov.CompiledModel) -> int:
    try:
        return int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS"))
    except RuntimeError:  # not HETERO
        return 1


def _reason(error: Exception) -> str:
    """OpenVINO's message in one line, without the source positions before it."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line and not re.match(r"Exception from |Check '.*' failed at ", line)]
    return " ".join(" ".join(told).split())[:300] or type(error).__name__
