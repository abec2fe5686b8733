"""Corrects the simulator's costs by measurements: a posterior of scale factors, by regularised least squares.

A placement's measured ratio to the reference is predicted from the simulator's own terms, each multiplied by a scale
factor. There are factors for times of operations (by device, by kind of operation on each device, and by part of the
model, as errors there move the balance between two equal devices), transfers, submodels, and the slowdown of all
devices when several run at once. The logarithms of the factors have a normal prior around 0, so that a few measurements
correct the factors that they depend on and leave the others as they are. The posterior is approximated by a normal
distribution around its mode (Laplace's approximation). Draws from it make the proposals of fine-tuning a Thompson
sampling (Russo et al. 2018, section 5.2, arXiv:1707.02038).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.model.graph import Floats
from ov_hsdag.problem.problem import PlacementProblem
from ov_hsdag.utils.lazy import optimize

PARTS = 8
"""Number of parts of the topological order, of equal work."""

KINDS = 6
"""Number of kinds of operations: the types with most work, and one for the rest."""

# Prior standard deviations of logarithms of factors.
_DEVICE, _PART, _KIND, _TRANSFER, _SUBMODEL, _TOGETHER = 0.5, 0.25, 0.25, 1.0, 1.0, 0.15

# Relative errors of a prediction: by measuring, by the cost model for each submodel beyond one per device, and at most.
_NOISE, _NOISE_PER_SUBMODEL, _MOST_NOISE = 0.03, 0.01, 0.3

# Share of the work above which a device counts as used.
_USED_SHARE = 0.02

# The busiest device decides the period, but others that are nearly as busy add to it. So a p-norm with this p replaces
# the maximum.
_NORM_EXPONENT = 16


@dataclass(frozen=True, eq=False)
class Terms:
    """The simulator's terms of some placements, from which times are predicted with any scale factors."""

    work: Floats  # time of operations with broken fusions, µs, float64 [placements, devices, kinds, parts]
    transfer: Floats  # time of transfers, µs, float64 [placements, devices]; it counts for both ends of a transfer
    submodel: Floats  # time of submodels, µs, float64 [placements, devices]
    submodels: NDArray[np.int32]  # number of submodels, int32 [placements]

    @classmethod
    def join(cls, terms: Sequence[Terms]) -> Terms:
        """Returns the terms of all placements, in order."""
        columns = zip(*((item.work, item.transfer, item.submodel, item.submodels) for item in terms), strict=True)
        return cls(*map(np.concatenate, columns))

    @cached_property
    def on_several(self) -> NDArray[np.bool_]:
        """Whether several devices have each more than `_USED_SHARE` of a placement's work, bool [placements]."""
        work = self.work.sum(axis=(2, 3))
        return np.asarray((work > _USED_SHARE * work.sum(axis=1, keepdims=True)).sum(axis=1) > 1)


@dataclass(frozen=True, eq=False)
class Fit:
    """The posterior of the scale factors."""

    mean: Floats  # logarithms of the most likely factors, float64 [factors]
    # a square root of the posterior's covariance: `mean + root @ noise` is a draw for standard normal `noise`, float64
    # [factors, factors]
    root: Floats
    error: float  # standard deviation of the difference between measured and predicted log ratios

    def draw(self, generator: np.random.Generator) -> Floats:
        """Returns logarithms of factors drawn from the posterior, float64 [factors]."""
        return self.mean + self.root @ generator.standard_normal(len(self.mean))


class Corrector:
    """Fits scale factors of one problem's costs to measured placements.

    Factors are passed as one array of their logarithms, float64 [factors], in this order: devices [devices], kinds of
    operations on each device [devices, KINDS], parts of the model [PARTS], transfers, submodels, and several devices at
    once. The time of an operation is multiplied by the factors of its device, of its kind there, and of its part.
    """

    def __init__(self, problem: PlacementProblem, reference: NDArray[np.uint8]) -> None:
        """Prepares for a problem.

        Args:
            problem: the problem, whose costs are to be corrected.
            reference: the placement to which times of others are relative, uint8 [groups].
        """
        self.problem, self._reference, self._devices = problem, reference, len(problem.devices)

    @cached_property
    def reference(self) -> Terms:
        """Terms of the reference placement, one row."""
        return self.terms(self._reference)

    @cached_property
    def _kind(self) -> NDArray[np.int64]:
        """Kind of each node: the rank of its operation type by work, or KINDS - 1 for the rest; int64 [nodes]."""
        types, index = np.unique(np.asarray(self.problem.graph.types), return_inverse=True)
        most = np.argsort(-np.bincount(index, self._mean_us), kind="stable")[: KINDS - 1]
        number = np.full(len(types), KINDS - 1, np.int64)
        number[most] = np.arange(len(most))
        return number[index]

    @cached_property
    def _part(self) -> NDArray[np.int64]:
        """Part of the topological order that each node belongs to, 0 to PARTS - 1, int64 [nodes]."""
        done = self._mean_us.cumsum() - self._mean_us / 2
        return np.minimum(done / max(done[-1], 1e-30) * PARTS, PARTS - 1).astype(np.int64)

    @cached_property
    def _mean_us(self) -> Floats:
        """Time of each node, mean over the devices, µs, float64 [nodes]; infinite times count as 0."""
        return np.where(np.isfinite(self.problem.node_us), self.problem.node_us, 0.0).mean(axis=1)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Type of operations of each kind, [kinds]; "" for the rest, and for kinds that the model does not have."""
        types = np.asarray(self.problem.graph.types)
        names = [str(types[self._kind == kind][0]) if (self._kind == kind).any() else "" for kind in range(KINDS - 1)]
        return (*names, "")

    def terms(self, placements: NDArray[np.uint8]) -> Terms:
        """Simulates placements, uint8 [placements, groups] or a single one, [groups], and returns their terms."""
        batch = np.atleast_2d(placements)
        breakdown = self.problem.breakdown(batch)
        shape = (len(batch), self._devices, KINDS, PARTS)
        device = batch[:, self.problem.groups].astype(np.int64)
        cell = np.ravel_multi_index((np.arange(len(batch))[:, None], device, self._kind, self._part), shape)
        work = np.bincount(cell.ravel(), (breakdown.node_us + breakdown.fusion_us).ravel(), math.prod(shape))
        *_, submodels, transfers = breakdown.busy_us.transpose(2, 0, 1)
        return Terms(np.asarray(work, np.float64).reshape(shape), transfers, submodels, breakdown.evaluation.submodels)

    @property
    def spread(self) -> Floats:
        """Prior standard deviation of each factor's logarithm, float64 [factors]."""
        sizes = ((_DEVICE, self._devices), (_KIND, self._devices * KINDS), (_PART, PARTS))
        blocks = [np.full(count, value) for value, count in sizes]
        return np.concatenate([*blocks, [_TRANSFER, _SUBMODEL, _TOGETHER]])

    def unpack(self, factors: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Splits an array of factors.

        Returns:
            device: factors of devices, [devices].
            kind: factors of kinds on each device, [devices, KINDS].
            part: factors of parts, [PARTS].
            rest: factors of transfers, of submodels, and of several devices at once, [3].
        """
        device, kind, part, rest = np.split(factors, np.cumsum([self._devices, self._devices * KINDS, PARTS]))
        return device, kind.reshape(self._devices, KINDS), part, rest

    def log_us(self, factors: Floats, terms: Terms) -> Floats:
        """Predicts the logarithm of each placement's time in µs, float64 [placements].

        Args:
            factors: logarithms of factors, float64 [factors].
            terms: terms of the placements.
        """
        transfer, _, together = self.unpack(factors)[-1]
        busy = self._busy_us(factors, terms)
        if self.problem.objective == "latency":
            # The terms have a transfer at both ends, but its time passes once.
            return np.log(np.maximum((busy - terms.transfer * np.exp(transfer) / 2).sum(axis=1), 1e-9))
        if self.problem.core_share is not None:
            busy = np.column_stack([busy, busy @ self.problem.core_share])
        busiest = busy.max(axis=1)
        # The factor for several devices at once is 0 in placements on one.
        at_once = together * terms.on_several
        return np.asarray(
            np.log(busiest)
            + np.log(((busy / busiest[:, None]) ** _NORM_EXPONENT).sum(axis=1)) / _NORM_EXPONENT
            + at_once
        )

    def _busy_us(self, factors: Floats, terms: Terms) -> Floats:
        """Predicts the time of each device's work (operations, submodels, transfers), µs, [placements, devices]."""
        device, kind, part, (transfer, submodel, _) = self.unpack(factors)
        work = np.einsum("pdkb,dkb->pd", terms.work, np.exp(device[:, None, None] + kind[:, :, None] + part))
        return np.maximum(work + terms.submodel * np.exp(submodel) + terms.transfer * np.exp(transfer), 1e-9)

    def log_ratio(self, factors: Floats, terms: Terms) -> Floats:
        """Predicts log(reference time / placement time), float64 [placements]; for the arguments see `log_us`."""
        return self.log_us(factors, self.reference) - self.log_us(factors, terms)

    def fit(
        self,
        terms: Terms,
        ratios: Floats,
        uncertain: Floats | float = 0.0,
        busy_us: Floats | None = None,
        busy_uncertain: Floats | float = 0.0,
    ) -> Fit:
        """Computes the posterior of the factors from measured ratios; without any, it is the prior.

        Args:
            terms: terms of the measured placements.
            ratios: how many times faster than the reference each placement is, float64 [placements].
            uncertain: standard errors of the ratios' logarithms, in addition to the usual noise, [placements] or a
                scalar.
            busy_us: processor time of each device in an inference, µs, nan if not known, float64 [placements, devices].
            busy_uncertain: standard errors of the logarithms of `busy_us`, [placements] or a scalar.

        Returns:
            The posterior.
        """
        usual_noise = _NOISE + _NOISE_PER_SUBMODEL * np.maximum(terms.submodels - self._devices, 0)
        noise = np.minimum(np.hypot(usual_noise, uncertain), _MOST_NOISE)
        measured, spread = np.log(ratios), self.spread

        def off(factors: Floats) -> Floats:
            """Differences between predicted and measured log ratios, [placements]."""
            return self.log_ratio(factors, terms) - measured

        busy_known = np.isfinite(busy_us) & (busy_us > 0) if busy_us is not None else np.zeros((0, 0), np.bool_)
        log_busy = np.log(busy_us[busy_known]) if busy_us is not None else np.zeros(0)
        busy_noise = np.broadcast_to(np.hypot(_NOISE, busy_uncertain), busy_known.shape[::-1]).T[busy_known]

        def busy_off(factors: Floats) -> Floats:
            """Differences between predicted and measured logarithms of known `busy_us`, in standard errors."""
            if not len(log_busy):
                return log_busy
            return (np.log(self._busy_us(factors, terms)[busy_known]) - log_busy) / busy_noise

        def residuals(scaled: Floats) -> Floats:
            """All differences, and the prior; `scaled` are the factors in prior standard deviations, [factors]."""
            return np.concatenate([off(spread * scaled) / noise, busy_off(spread * scaled), scaled])

        # Effects that the simulator leaves out make outliers; a robust loss limits their influence on the factors.
        solution = optimize.least_squares(residuals, np.zeros(len(spread)), loss="soft_l1", f_scale=2.0, max_nfev=40)
        values, vectors = np.linalg.eigh(solution.jac.T @ solution.jac)
        mean = spread * solution.x
        root = spread[:, None] * (vectors / np.sqrt(np.maximum(values, 1e-9)))
        return Fit(mean, root, float(off(mean).std()) if len(ratios) else 0.0)

    def apply(self, factors: Floats) -> PlacementProblem:
        """Returns the problem with its costs multiplied by the factors, given as logarithms, float64 [factors]."""
        problem = self.problem
        device, kind, part, (transfer, submodel, _) = self.unpack(factors)
        scale = np.exp(device + kind[:, self._kind].T + part[self._part][:, None])
        return problem.with_scaled_costs(
            {
                "nodes": scale,
                "fusions": scale,
                "submodels": float(np.exp(submodel)),
                "transfers": float(np.exp(transfer)),
            }
        )

    def describe(self, factors: Floats) -> dict[str, Any]:
        """Returns the factors, given as logarithms, as JSON-able values for a record."""
        device, kind, part, (transfer, submodel, together) = self.unpack(factors)

        def rounded(values: Floats) -> list[float]:
            return [round(float(value), 4) for value in np.exp(values)]

        names = self.problem.devices
        numbers = {name: number for number, name in enumerate(self.kinds) if name} | {"others": KINDS - 1}
        return {
            "devices": dict(zip(names, rounded(device), strict=True)),
            "operations": {
                name: {type_name: rounded(row)[number] for type_name, number in numbers.items()}
                for name, row in zip(names, kind, strict=True)
            },
            "parts": rounded(part),
            "transfers": float(np.exp(transfer).round(4)),
            "submodels": float(np.exp(submodel).round(4)),
            "together": float(np.exp(together).round(4)),
        }
