"""The problem of a fine-tuning run: what stays the same from measurement to measurement."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.calibration.correction import Corrector, Fit, Terms
from ov_hsdag.placers.single import simple_placers
from ov_hsdag.policy.config import HSDAGConfig
from ov_hsdag.policy.features import PolicyInput, policy_input
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.training.finetune.state import State
from ov_hsdag.training.rollout import Example, impact


@dataclass(frozen=True, eq=False)
class Task:
    """What stays the same in a run."""

    problem: PlacementProblem  # with the profile's costs
    x: PolicyInput  # its features, the same that the policy sees when the model is placed later
    weight: NDArray[np.float64]  # how much the device of each group matters, sum 1, float64 [groups]
    corrector: Corrector  # of the costs
    reference: NDArray[np.uint8]  # the reference's placement, uint8 [groups]
    # of the simulator for measured placements, by the placements' bytes; a cache
    terms: dict[bytes, Terms] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: PlacementProblem, config: HSDAGConfig, reference: str) -> Task:
        """The task of a problem with the profile's costs; reference: a device, or `HETERO_DEFAULT`."""
        placement = simple_placement(problem, reference)
        x = policy_input(problem)
        return cls(problem, x, impact(problem), Corrector(problem, placement), placement)

    def fit(self, state: State) -> Fit:
        """The posterior of the corrections given everything measured so far."""
        measured = [entry.measurement for entry in state.good]
        for entry in state.good:
            if (key := entry.placement.tobytes()) not in self.terms:
                self.terms[key] = self.corrector.terms(entry.placement)
        terms = Terms.join([self.terms[entry.placement.tobytes()] for entry in state.good])
        uncertain = np.array([measurement.uncertain for measurement in measured])
        return self.corrector.fit(terms, np.array([measurement.ratio for measurement in measured]), uncertain)

    def distance(self, placement: NDArray[np.uint8], others: NDArray[np.uint8]) -> NDArray[np.float64]:
        """How much of a placement, by `weight`, is elsewhere in each of the others; 0 to 1, float64 [others]."""
        return np.asarray((others != placement) @ self.weight)

    def example(self, problem: PlacementProblem, target: NDArray[np.float32], reference: float) -> Example:
        """The problem (costs corrected) as an example. target: to imitate, float32 [coarse, devices]; reference: µs."""
        return Example.of(problem, self.x, target[None], reference, reference)


def simple_placement(problem: PlacementProblem, name: str) -> NDArray[np.uint8]:
    """Everything on the device `name`, or HETERO's own choice for `HETERO_DEFAULT`; uint8 [groups]."""
    return next(placer for placer in simple_placers(problem) if placer.name == name).place(problem)
