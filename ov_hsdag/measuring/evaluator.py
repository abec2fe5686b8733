"""Measurements of placements, and the interface of judges, which compare placements with a reference.

The reference is the way to run the model that placements have to beat: a single device, or HETERO's own choice. A round
has one trial of the reference and one of the placement.
"""

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
        reference: throughput or latency of the reference in the same trials, in the unit of `value`; nan where it is
            not known.
        ratios: ratio in each round; empty where it is not known.
        submodels: number of submodels that HETERO made; 0 where it is not known.
        seconds: wall time of compiling and measuring, seconds.
        error: reason of a failure, one line, a `Failure` where it was measured in this process; "" without a failure.
        rates: in each round, inferences per second (for latency, the inverse of a trial's median latency).
        bounds: low and high end of the ratio's 95% interval (a simulated measurement has the ratio itself as both).
            Empty where the interval follows from `ratios`; `interval` covers both cases.
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
        """The error as a `Failure`, whose kind is guessed from the text where it was not stored; None without one."""
        return self.error if isinstance(self.error, Failure) else read_failure({"failed": self.error})

    @property
    def uncertain(self) -> float:
        """The standard error of log(ratio) from the differences between rounds; 0 for fewer than two rounds."""
        return float(np.log(self.ratios).std(ddof=1) / math.sqrt(len(self.ratios))) if len(self.ratios) >= 2 else 0.0

    @property
    def sure(self) -> float:
        """The ratio divided by the exponential of its standard error (`uncertain`): a cautious estimate."""
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
        """Restores a measurement from the values of `to_dict`; None becomes nan, and missing values get defaults."""
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
            rounds: number of rounds; None for the judge's default number.

        Returns:
            The measurement, which is a failed one where the placement does not run.
        """


def in_unit(rate: float, objective: str) -> float:
    """Converts a rate to the unit of the objective.

    Args:
        rate: inferences per second.
        objective: "latency" or "throughput".

    Returns:
        The rate itself for throughput; for latency, the time of an inference, µs.
    """
    return rate if objective == "throughput" else 1e6 / rate


def simple_candidate(name: str, devices: DeviceSet) -> Candidate:
    """Returns the candidate of a baseline: a single device, or the whole model on HETERO without a placement.

    Args:
        name: name of a device, `HETERO_DEFAULT` or `PIPELINE_HINT`.
        devices: the devices, in HETERO's order.
    """
    if name not in (HETERO_DEFAULT, PIPELINE_HINT):
        return Candidate(name)
    hint = {"MODEL_DISTRIBUTION_POLICY": "PIPELINE_PARALLEL"} if name == PIPELINE_HINT else {}
    return Candidate(devices.hetero, properties=hint)
