"""What decides a fine-tuning run, and when it stops."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ov_hsdag.training.run import check_settings
from ov_hsdag.utils.errors import UserError

SCRATCH = "none"
"""Name of the policy that is no policy: an untrained network."""

PROPOSERS = ("both", "policy", "search")
"""What may propose the placements that are measured."""


@dataclass(frozen=True)
class Settings:
    """What decides a run, besides the model, the devices, the initial policy and the measurements."""

    seed: int = 0  # of everything random
    # "policy"; "search": minimum cut, contiguous partition and multilevel search on the corrected simulator, where
    # nothing is learned but the corrections; "both", the best by the simulator first
    proposer: str = "both"
    updates: int = 8  # of the policy before each measurement
    learning_rate: float = 5e-4  # of Adam
    samples: int = 16  # placements per update that the corrected simulator judges, for REINFORCE
    # weight of REINFORCE relative to imitation of measured placements (1). REINFORCE sums over all clusters and
    # imitation averages: with a larger weight, the few samples of one problem drown what was measured
    pg_coef: float = 0.03
    ent_coef: float = 0.003  # weight of the entropy bonus
    edge_coef: float = 0.2  # weight of imitation by edge scores
    max_grad_norm: float = 1.0  # largest norm of the gradient
    # a placement whose log ratio is lower than the best by this much is imitated e times less
    temperature: float = 0.03
    # with the best placement, least that is imitated: the mean of two mirror images is no placement
    agreement: float = 0.5
    draws: int = 8  # samples for each clustering and temperature, see `ov_hsdag.policy.placer.sample`
    refined: int = 6  # candidates that are refined before a measurement
    certain: int = 2  # every so many measurements the most likely correction counts instead of a drawn one
    finalists: int = 3  # of the best placements, which are measured again in the end
    final_rounds: int = 6  # of those measurements
    margin: float = 0.02  # by which the best finalist has to beat the best single device and HETERO's choice, relative

    def __post_init__(self) -> None:
        if self.proposer not in PROPOSERS:
            raise UserError(f"placements are proposed by {', '.join(PROPOSERS)}, not by '{self.proposer}'")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Settings:
        """Settings from a checkpoint's JSON. Raises UserError where this version does not know one."""
        return cls(**check_settings(values, cls()))


@dataclass(frozen=True)
class Budget:
    """When a run stops: at the limit that is reached first, by all parts of a run, those before `--resume` included."""

    measurements: float = math.inf  # placements to measure
    seconds: float = math.inf  # wall time

    def share(self, measurements: int, seconds: float) -> float:
        """The share of the budget that is spent: 1 and more means all of it."""
        return max(measurements / self.measurements, seconds / self.seconds)

    def to_dict(self) -> dict[str, float | None]:
        """The limits, JSON-able, None where there is no limit."""
        return {name: value if math.isfinite(value) else None for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, limits: Mapping[str, float | None]) -> Budget:
        """Inverse of `to_dict`."""
        return cls(**{name: math.inf if value is None else float(value) for name, value in limits.items()})
