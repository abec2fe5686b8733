"""Settings of a fine-tuning run, and the budget that ends it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ov_hsdag.training.run import check_settings
from ov_hsdag.utils.errors import UserError

SCRATCH = "none"
"""Name that stands for an untrained network in place of a policy."""

PROPOSERS = ("both", "policy", "search")
"""Values of `Settings.proposer`."""


@dataclass(frozen=True)
class Settings:
    """Settings that determine a run together with the model, the devices, the initial policy and the measurements.

    Attributes:
        seed: seed of all random numbers.
        proposer: source of the placements that are measured. "policy"; "search": minimum cut, contiguous partition and
            multilevel search with corrected costs, where only the corrections are learned; "both": the best of the two
            by the simulator.
        updates: number of updates of the policy before each measurement.
        learning_rate: learning rate of Adam.
        samples: number of placements in an update that are scored with corrected costs, for REINFORCE.
        pg_coef: weight of REINFORCE relative to the imitation of measured placements (1). REINFORCE sums over all
            clusters and imitation averages, so with a larger weight the few samples of one problem outweigh the
            measurements.
        ent_coef: weight of the entropy bonus.
        edge_coef: weight of imitation by edge scores.
        max_grad_norm: largest norm of the gradient.
        temperature: a placement whose log ratio is lower than the best by this much is imitated e times less.
        agreement: least agreement with the best placement of placements that are imitated, 0 to 1; the mean of two
            mirror images would be no placement.
        draws: number of samples for each clustering and temperature, see `ov_hsdag.policy.placer.sample`.
        refined: number of candidates that are refined before a measurement.
        certain: period, in measurements, in which the most likely correction is used once instead of a drawn one.
        finalists: number of the best placements that are measured again in the end.
        final_rounds: number of rounds of those measurements.
        margin: relative gain over the best single device and HETERO's choice that the best finalist must have.
    """

    seed: int = 0
    proposer: str = "both"
    updates: int = 8
    learning_rate: float = 5e-4
    samples: int = 16
    pg_coef: float = 0.03
    ent_coef: float = 0.003
    edge_coef: float = 0.2
    max_grad_norm: float = 1.0
    temperature: float = 0.03
    agreement: float = 0.5
    draws: int = 8
    refined: int = 6
    certain: int = 2
    finalists: int = 3
    final_rounds: int = 6
    margin: float = 0.02

    def __post_init__(self) -> None:
        """Raises UserError where the proposer is unknown."""
        if self.proposer not in PROPOSERS:
            raise UserError(f"placements are proposed by {', '.join(PROPOSERS)}, not by '{self.proposer}'")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Settings:
        """Reads settings from a checkpoint's JSON. Raises UserError where this version does not know one of them."""
        return cls(**check_settings(values, cls()))


@dataclass(frozen=True)
class Budget:
    """The limits at which a run stops; the one that is reached first counts.

    They hold for all parts of a run together, those before `--resume` included.

    Attributes:
        measurements: number of placements to measure.
        seconds: wall time, seconds.
    """

    measurements: float = math.inf
    seconds: float = math.inf

    def share(self, measurements: int, seconds: float) -> float:
        """Computes the spent share of the budget, 1 or more where all of it is spent.

        Args:
            measurements: number of measurements so far.
            seconds: wall time so far, seconds.
        """
        return max(measurements / self.measurements, seconds / self.seconds)

    def to_dict(self) -> dict[str, float | None]:
        """The limits as JSON-able values, with None for no limit."""
        return {name: value if math.isfinite(value) else None for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, limits: Mapping[str, float | None]) -> Budget:
        """Restores a budget from the values of `to_dict`."""
        return cls(**{name: math.inf if value is None else float(value) for name, value in limits.items()})
