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

# Names in checkpoints of earlier versions.
_RENAMED = {"reinforce": "pg_coef", "entropy": "ent_coef", "edges": "edge_coef", "gradient": "max_grad_norm"}


@dataclass(frozen=True)
class Settings:
    """What decides a run, besides the model, the devices, the initial policy and the measurements.

    Attributes:
        seed: of everything random.
        proposer: "policy"; "search": minimum cut, contiguous partition and multilevel search on the corrected
            simulator, and nothing is learned but the corrections; "both" of these, the best by the simulator first.
            What is proposed is refined by local search.
        updates: of the policy before each measurement.
        learning_rate: of Adam.
        samples: placements per update that the corrected simulator judges, for REINFORCE.
        pg_coef: weight of REINFORCE relative to imitation of measured placements (1). REINFORCE sums over all
            clusters and imitation averages: with a larger weight, the few samples of one problem drown what was
            measured.
        ent_coef: weight of the entropy bonus.
        edge_coef: weight of imitation by edge scores.
        max_grad_norm: largest norm of the gradient.
        temperature: of log ratios: a measured placement whose log ratio is lower than the best by this much is imitated
            e times less.
        agreement: smallest share of agreement with the best placement that a placement needs to be imitated. The mean
            of two mirror images is no placement.
        draws: sampled placements for each clustering and temperature, see `ov_hsdag.policy.placer.sample`.
        refined: candidates that are refined before a measurement.
        certain: every `certain`-th measurement uses the most likely correction instead of one drawn from the posterior.
        finalists: number of the best measured placements that are measured again in the end.
        final_rounds: rounds of those measurements.
        margin: relative margin by which the best finalist has to beat the best single device and HETERO's own choice.
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
        if self.proposer not in PROPOSERS:
            raise UserError(f"placements are proposed by {', '.join(PROPOSERS)}, not by '{self.proposer}'")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Settings:
        """Settings from a checkpoint's JSON.

        Raises:
            UserError: there are settings that this version does not know.
        """
        return cls(**check_settings(values, cls(), _RENAMED))


@dataclass(frozen=True)
class Budget:
    """When a run stops. It counts all parts of a run together, those before `--resume` included.

    Attributes:
        measurements: placements to measure.
        seconds: wall time. Whichever is reached first ends the run.
    """

    measurements: float = math.inf
    seconds: float = math.inf

    def share(self, measurements: int, seconds: float) -> float:
        """Returns the share of the budget that is spent: 1 and more means all of it."""
        return max(measurements / self.measurements, seconds / self.seconds)

    def to_dict(self) -> dict[str, float | None]:
        """Returns the limits as JSON-able values, None where there is no limit."""
        return {name: value if math.isfinite(value) else None for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, limits: Mapping[str, float | None]) -> Budget:
        """Inverse of `to_dict`."""
        return cls(**{name: math.inf if value is None else float(value) for name, value in limits.items()})
