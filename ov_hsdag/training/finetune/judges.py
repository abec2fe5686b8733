"""Placements judged by simulation; `ov_hsdag.measuring.evaluator.Measurer` is the judge on real devices."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.measuring.evaluator import HETERO_DEFAULT, Measurement
from ov_hsdag.placers.single import simple_placers
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.utils.errors import RunError


class Simulated:
    """A `Judge` that simulates instead of measuring: with the problem's own costs, or others that stand for reality.

    reference: a device or `HETERO_DEFAULT`; singles: a measurement for each device that has the memory for the model,
    and for the reference.
    """

    def __init__(self, problem: PlacementProblem, reference: str | None = None) -> None:
        """reference: None: the best single device. RunError: neither one nor HETERO's choice keeps within memory."""
        self._problem = problem
        names = [*problem.devices, HETERO_DEFAULT]
        scores = problem.scores(np.stack([simple_placement(problem, name) for name in names]))
        single = scores[:-1]
        if reference is None:
            reference = names[int(single.argmin())] if np.isfinite(single).any() else HETERO_DEFAULT
        self.reference = reference
        self._reference_us = float(scores[names.index(reference)])
        if not math.isfinite(self._reference_us):
            raise RunError(f"no device of {', '.join(problem.devices)} has the memory for the model")
        self.singles = {
            name: Measurement(self._reference_us / us, *self._values(us))
            for name, us in zip(names, scores.tolist(), strict=True)
            if math.isfinite(us) and (name != HETERO_DEFAULT or name == reference)
        }

    def measure(self, affinity: Mapping[str, str], *, worth: float = 0.0, rounds: int | None = None) -> Measurement:
        """See `Judge.measure`; `worth` and `rounds` make no difference."""
        placement = self._problem.placement_of(affinity)
        result = self._problem.evaluate(placement)
        us = float(result.score(self._problem.objective)[0])
        if not math.isfinite(us):
            return Measurement(0.0, error="the simulator calls the placement infeasible")
        ratio = self._reference_us / us
        submodels = int(result.submodels[0])
        return Measurement(ratio, *self._values(us), (ratio,), submodels, bounds=(ratio, ratio))

    def _values(self, us: float) -> tuple[float, float]:
        """The placement's and the reference's value in the unit of a `Measurement`."""
        if self._problem.objective == "latency":
            return us, self._reference_us
        return 1e6 / us, 1e6 / self._reference_us


def simple_placement(problem: PlacementProblem, name: str) -> NDArray[np.uint8]:
    """Everything on the device `name`, or HETERO's own choice for `HETERO_DEFAULT`; uint8 [groups]."""
    return next(placer for placer in simple_placers(problem) if placer.name == name).place(problem)
