"""What measuring a placement gives, and what judges placements one after the other."""

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
    """What measuring a placement gave."""

    ratio: float  # how many times better than the reference (throughput, or the inverse of latency); 0 where it failed
    # the placement's throughput in inferences per second, or its latency in µs; nan where it failed
    value: float = math.nan
    reference: float = math.nan  # the same of the reference, in the same trials
    ratios: tuple[float, ...] = ()  # of each round
    submodels: int = 0  # that HETERO made of it, 0 where that is not known
    seconds: float = 0.0  # wall time that compiling and measuring took
    error: str = ""  # why it failed, one line, a `Failure` where it was measured here; "" where it did not
    # of each round, inferences per second (for latency, the inverse of a trial's median latency)
    rates: tuple[float, ...] = ()
    bounds: tuple[float, ...] = ()  # of the ratio's 95% interval, where it does not follow from `ratios`

    @property
    def failed(self) -> bool:
        """Whether it did not compile, did not run, or computed something else."""
        return bool(self.error)

    @property
    def failure(self) -> Failure | None:
        """The error with its kind, as far as that is known."""
        return self.error if isinstance(self.error, Failure) else read_failure({"failed": self.error})

    @property
    def uncertain(self) -> float:
        """Standard error of log(ratio) by how rounds differ; 0 where there are fewer than two."""
        return float(np.log(self.ratios).std(ddof=1) / math.sqrt(len(self.ratios))) if len(self.ratios) >= 2 else 0.0

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
    """Tells how good placements are: by measuring them (`ov_hsdag.measuring.measurer`), or otherwise."""

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


def simple_candidate(name: str, devices: DeviceSet) -> Candidate:
    """What needs no placement: a single device, or HETERO's own choice, `HETERO_DEFAULT` or `PIPELINE_HINT`."""
    if name not in (HETERO_DEFAULT, PIPELINE_HINT):
        return Candidate(name)
    hint = {"MODEL_DISTRIBUTION_POLICY": "PIPELINE_PARALLEL"} if name == PIPELINE_HINT else {}
    return Candidate(devices.hetero, properties=hint)
