"""Measurements of placements, and the interface of judges, which compare placements with a reference."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.measuring.choice import Ratio
from ov_hsdag.measuring.process import Candidate
from ov_hsdag.utils.failures import Failure, read_failure

HETERO_DEFAULT = "hetero"
"""Name of HETERO's own choice, the reference where no device runs the whole model."""

PIPELINE_HINT = "hetero-pipeline"
"""Name of HETERO's own choice under MODEL_DISTRIBUTION_POLICY: PIPELINE_PARALLEL."""


@dataclass(frozen=True)
class Measurement:
    """The result of measuring a placement.

    Attributes:
        ratio: how many times better it is than the reference (in throughput, or inverse latency); 0 where it failed.
        value: throughput, inferences per second, or latency, µs; nan where it failed.
        reference: the same of the reference, in the same trials.
        ratios: ratio in each round.
        submodels: number of submodels that HETERO made; 0 where it is not known.
        seconds: wall time of compiling and measuring, seconds.
        error: reason of a failure, one line, a `Failure` where it was measured in this process; "" without a failure.
        rates: in each round, inferences per second (for latency, the inverse of a trial's median latency).
        bounds: ends of the ratio's 95% interval, low and high, where they were given (a simulated measurement has
            the ratio itself); empty where the interval follows from `ratios`. `interval` returns either.
    """

    ratio: float
    value: float = math.nan
    reference: float = math.nan
    ratios: tuple[float, ...] = ()
    submodels: int = 0
    seconds: float = 0.0
    error: str = ""
    rates: tuple[float, ...] = ()
    bounds: tuple[float, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether the placement did not compile, did not run, or computed other outputs."""
        return bool(self.error)

    @property
    def failure(self) -> Failure | None:
        """The error with its kind, as far as the kind is known; None without an error."""
        return self.error if isinstance(self.error, Failure) else read_failure({"failed": self.error})

    @property
    def uncertain(self) -> float:
        """The standard error of log(ratio) from the differences between rounds; 0 for fewer than two rounds."""
        return float(np.log(self.ratios).std(ddof=1) / math.sqrt(len(self.ratios))) if len(self.ratios) >= 2 else 0.0

    @property
    def sure(self) -> float:
        """The ratio, lowered by its standard error."""
        return self.ratio * math.exp(-self.uncertain)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of the ratio, low and high."""
        if self.bounds:
            return self.bounds[0], self.bounds[1]
        known = Ratio.of_rounds(self.ratios)
        return known.low, known.high

    def to_dict(self) -> dict[str, Any]:
        """The measurement as JSON-able values, with None for nan."""
        values = asdict(self)
        return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in values.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Measurement:
        """Restores a measurement from the values of `to_dict`."""
        restored: dict[str, Any] = {key: math.nan if value is None else value for key, value in values.items()}
        restored |= {name: tuple(restored.get(name, ())) for name in ("ratios", "rates", "bounds")}
        return cls(**restored)


class Judge(Protocol):
    """Compares placements with a reference, by measuring (`ov_hsdag.measuring.measurer`) or by simulation."""

    @property
    def reference(self) -> str:
        """Name of the reference: a device, or `HETERO_DEFAULT`."""

    @property
    def singles(self) -> Mapping[str, Measurement]:
        """Measurements of the single devices that run the whole model and that this judge has compared, by name."""

    def measure(self, affinity: Mapping[str, str], *, worth: float = 0.0, rounds: int | None = None) -> Measurement:
        """Measures a placement.

        Args:
            affinity: device of each node, by friendly name.
            worth: the ratio that the placement has to beat; one that is clearly worse gets fewer rounds.
            rounds: number of rounds; the judge's own by default.

        Returns:
            The measurement, which is a failed one where the placement does not run.
        """


def in_unit(rate: float, objective: str) -> float:
    """Converts a rate, inferences per second, to the unit of the objective: the same, or latency in µs."""
    return rate if objective == "throughput" else 1e6 / rate


def simple_candidate(name: str, devices: DeviceSet) -> Candidate:
    """The candidate of a baseline: a single device, or HETERO's own choice, `HETERO_DEFAULT` or `PIPELINE_HINT`."""
    if name not in (HETERO_DEFAULT, PIPELINE_HINT):
        return Candidate(name)
    hint = {"MODEL_DISTRIBUTION_POLICY": "PIPELINE_PARALLEL"} if name == PIPELINE_HINT else {}
    return Candidate(devices.hetero, properties=hint)
