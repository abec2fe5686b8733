"""Measures times of a model's operations on a device, by runs of the whole model with PERF_COUNT.

Counters give times of executed nodes, several of which compute many operations each. Their times are divided among the
operations in proportion to weights, which are times that the cost model predicts. As counting makes inferences slower,
the sum of all times is then scaled to the latency without counters, where one device runs the whole model. A copy is
one compilation of the model with counters.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.calibration.executions import WARM_UP, CompiledModels, Executions, TimedModel
from ov_hsdag.costs.roofline import Roofline
from ov_hsdag.model.graph import ComputationGraph, Floats, NodeKind
from ov_hsdag.model.inputs import TimedInputs
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.timing import UNLIMITED, Deadline, OutOfTime

Advance = Callable[[str], None]

# Number of compiled copies over which medians are taken. Counters only give means, and each copy has other memory.
_FEWEST_COPIES, _MOST_COPIES = 3, 6

# Share of the sum of all times below which a change by another copy counts as none.
_STABLE_CHANGE = 0.02

# Runs of each copy, at least (if there is time) and at most, and seconds that they should take.
_FEWEST_RUNS, _MOST_RUNS, _SECONDS = 4, 40, 0.5

# Shares of the remaining time that the first copy and later ones may take. The machine may become slower, and measured
# splits say more than another copy.
_FIRST_COPY_SHARE, _LATER_COPY_SHARE = 0.8, 0.3

# Names that the CPU and the GPU plugin give the layouts of images that submodels exchange.
_PLAIN_LAYOUTS = frozenset({"abcd", "abcde", "bfyx", "bfzyx"})


@dataclass(frozen=True, eq=False)
class NodeTimes:
    """Times of one model on one device."""

    device: str  # device string: "NPU", or "HETERO:NPU,CPU" if the NPU does not run the whole model
    us: Floats  # time of each node, µs, float64 [nodes]; for one device their sum is `latency_us` minus the call's cost
    # number of the executed node that each operation is part of, -1 if the device does not execute it, int32 [nodes]
    parts: NDArray[np.int32]
    own_layout: NDArray[np.bool_]  # whether the device keeps a node's first output in its own layout, bool [nodes]
    latency_us: float  # latency of the whole model without counters, µs
    # number of compiled copies whose operations were measured; 0 if there was only time or memory for the latency of
    # the whole model, which the weights then divide
    copies: int


def node_times(  # noqa: PLR0913 settings, all by keyword
    model: ov.Model,
    device: str,
    compiled: CompiledModels,
    *,
    graph: ComputationGraph,
    weights: Floats,
    inputs: TimedInputs,
    split: bytes = b"",
    submodel_us: float = 0.0,
    advance: Advance = lambda _: None,
    inside: NDArray[np.bool_] | None = None,
    counted: bool = True,
    deadline: Deadline = UNLIMITED,
) -> NodeTimes:
    """Measures the operations of a model on a device.

    Args:
        model: the normalized model, which is not changed. It has affinities if `device` is HETERO.
        device: a device that runs the whole model, or HETERO on the measured device and another one.
        compiled: store of compiled copies.
        graph: the graph of the model.
        weights: proportions in which the time of an executed node is divided among its operations, float64 [nodes].
        inputs: inputs of the timed inferences.
        split: identifies the placement of HETERO.
        submodel_us: cost of calling the model, beyond its operations, µs.
        advance: called with lines of progress.
        inside: operations that are measured if not all are, bool [nodes]. Their times come from counters, without the
            costs of boundaries. Times of the others are their weights, scaled by the error of the weights inside.
        counted: whether single operations are measured, which needs the model in memory twice.
        deadline: budget of everything except a compilation that has begun.

    Returns:
        The times.

    Raises:
        RuntimeError: the device does not compile or run the model.
        OutOfTime: no inference ended before the deadline or, with `inside`, no operations were measured.
    """
    plain = TimedModel(compiled, model, device, inputs, deadline, split)
    seconds, copies = _InferenceSeconds(), list[_CountedCopy]()
    if not counted:
        _run_plain(plain, seconds)
    while counted and len(copies) < _MOST_COPIES and not _stable(copies):
        executed = _run_with_counters(plain, graph, seconds, first=not copies)
        if executed is None:
            break
        copies.append(_CountedCopy.of(executed, graph, weights, inside))
        advance(deadline.describe(f"measuring operations on {device}, run {len(copies) + 1}"))
    if not copies and inside is not None:
        raise OutOfTime(f"there was no time or memory to measure operations on {device}")
    latency_us = seconds.latency_us(plain.typical)
    us = _operation_us(copies, weights, inside, latency_us, submodel_us)
    parts, own_layout = _executed_parts(copies, graph)
    return NodeTimes(device, us, parts, own_layout, latency_us, len(copies))


@dataclass(frozen=True)
class _InferenceSeconds:
    """Times of whole inferences so far, seconds."""

    plain: list[float] = field(default_factory=list)  # without counters
    counted: list[float] = field(default_factory=list)  # with counters

    def latency_us(self, typical: float) -> float:
        """Estimates the latency of the whole model, µs.

        Counters can only make a copy slower. If copies with counters are faster, the plain copy has unfavourable
        memory, and their latency counts.

        Args:
            typical: seconds of a typical plain inference, for the case that there were none.
        """
        return min(statistics.median(some) for some in (self.plain or [typical], self.counted) if some) * 1e6


@dataclass(frozen=True, eq=False)
class _CountedCopy:
    """The times of one copy."""

    executions: Executions  # the executed nodes; without those outside of `inside`
    us: Floats  # time of each operation in one inference, µs, float64 [nodes]

    @classmethod
    def of(
        cls, executed: Executions, graph: ComputationGraph, weights: Floats, inside: NDArray[np.bool_] | None
    ) -> _CountedCopy:
        """Divides the times of the executed nodes among the operations.

        Args:
            executed: the executed nodes.
            graph: the graph of the model.
            weights: see `node_times`.
            inside: see `node_times`.
        """
        measured = executed if inside is None else _only_inside(executed, inside)
        # `alike`: executed nodes that do the same work get their median time.
        return cls(measured, _divide_among_operations(measured.alike(graph), weights))


def _only_inside(executed: Executions, inside: NDArray[np.bool_]) -> Executions:
    """Returns the executed nodes that compute operations of `inside` alone, bool [nodes]."""
    items = tuple(item for item in executed.items if item.nodes and inside[list(item.nodes)].all())
    return Executions(items, unexplained_us=0.0)


def _operation_us(
    copies: Sequence[_CountedCopy],
    weights: Floats,
    inside: NDArray[np.bool_] | None,
    latency_us: float,
    submodel_us: float,
) -> Floats:
    """Determines `NodeTimes.us`: medians over the copies, or weights where there are none.

    Args:
        copies: the times of each copy.
        weights: see `node_times`.
        inside: see `node_times`.
        latency_us: latency of the whole model, µs.
        submodel_us: cost of calling the model, µs.

    Returns:
        The time of each node, µs, float64 [nodes].
    """
    us = np.median([copy.us for copy in copies], axis=0) if copies else np.zeros(len(weights))
    known = us.any()  # not if no copy was counted, or the plugin names no operations
    if inside is None:
        return adding_up(us if known else weights, latency_us, submodel_us)
    if not known:
        return weights
    error_of_weights = us.sum() / max(weights[inside].sum(), 1e-9)
    return np.where(inside, us, weights * error_of_weights)


def _executed_parts(
    copies: Sequence[_CountedCopy], graph: ComputationGraph
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Determines `NodeTimes.parts` and `NodeTimes.own_layout` by the last of the copies."""
    parts = np.full(graph.nodes, -1, np.int32)
    own_layout = np.zeros(graph.nodes, bool)
    for number, item in enumerate(copies[-1].executions.items if copies else ()):
        if item.nodes:
            parts[list(item.nodes)] = number
            own_layout[list(item.nodes)] = len(item.layout) >= 4 and item.layout not in _PLAIN_LAYOUTS
    return parts, own_layout


def adding_up(us: Floats, latency_us: float, submodel_us: float) -> Floats:
    """Scales times of operations so that their sum is a latency minus the cost of the call.

    Args:
        us: times of operations, µs, float64 [nodes].
        latency_us: latency of the whole model, µs.
        submodel_us: cost of calling the model, µs; at most half of the latency counts.

    Returns:
        The scaled times, µs, float64 [nodes].
    """
    return us * (max(latency_us - submodel_us, 0.5 * latency_us) / max(us.sum(), 1e-9))


def _stable(copies: Sequence[_CountedCopy]) -> bool:
    """Whether there are enough copies, and the last one changed the sum of the median times little."""
    if len(copies) < _FEWEST_COPIES:
        return False
    times = [copy.us for copy in copies]
    before, after = (float(np.median(some, axis=0).sum()) for some in (times[:-1], times))
    return abs(after - before) < _STABLE_CHANGE * after


def _run_plain(plain: TimedModel, seconds: _InferenceSeconds) -> None:
    """Runs the model without counters, as often as time allows, and adds the times to `seconds`."""
    runs = int(np.clip(_SECONDS / 2 / max(plain.typical, 1e-6), _FEWEST_RUNS, _MOST_RUNS))
    with suppress(OutOfTime):
        for _ in range(runs):
            seconds.plain.append(plain.run())


@dataclass(frozen=True)
class _CopyPlan:
    """How a copy with counters is measured."""

    warm_up: int  # inferences before its counters are first read
    runs: int  # inferences that count
    with_plain_runs: bool  # whether a plain inference runs beside each counted one


def _plan_copy(plain: TimedModel, *, first: bool) -> _CopyPlan | None:
    """Plans the inferences of a copy with counters within its share of the time that is left.

    Args:
        plain: the model without counters.
        first: whether this is the first copy, for which fewer runs than usual are better than none.

    Returns:
        The plan; None if there is not enough time.
    """
    typical = max(plain.typical, 1e-6)
    left = (_FIRST_COPY_SHARE if first else _LATER_COPY_SHARE) * plain.deadline.left
    runs = int(np.clip(_SECONDS / typical / 2, _FEWEST_RUNS, _MOST_RUNS))
    affordable = (left - plain.compiling_counted(again=not first)) / typical
    if affordable >= WARM_UP + 2 * runs:
        return _CopyPlan(WARM_UP, runs, with_plain_runs=True)
    if affordable < 2 or not first:
        return None
    return _CopyPlan(1, max(int((affordable - 1) / 2), 1), with_plain_runs=affordable >= 3)


def _run_with_counters(
    plain: TimedModel, graph: ComputationGraph, seconds: _InferenceSeconds, *, first: bool
) -> Executions | None:
    """Runs a copy of the model that is compiled with counters, and reads the times of its executed nodes.

    Plain inferences alternate with those of the copy, so that both see the same conditions.

    Args:
        plain: the model without counters.
        graph: the graph of the model.
        seconds: the times of inferences, to which those of this copy are added.
        first: whether this is the first copy.

    Returns:
        The executed nodes; None if there is not enough time.

    Raises:
        RuntimeError: the copy does not compile or run.
    """
    plan = _plan_copy(plain, first=first)
    if plan is None:
        return None
    try:
        compiled, counters = plain.counted(plan.warm_up, again=not first)
        for _ in range(plan.runs):
            if plan.with_plain_runs:
                seconds.plain.append(plain.run())
            seconds.counted.append(counters.run())
    except OutOfTime:  # the machine became slower than the plan assumed
        return None
    return Executions.of(compiled, graph, counters.us())


def _divide_among_operations(executions: Executions, weights: Floats) -> Floats:
    """Divides the time of each executed node among the operations that it computes.

    The time of a node that the plugin inserted (a reorder) counts at the operation that it converts for
    (`Execution.serves`). Time of executed nodes that belong to no operation (`Executions.unexplained_us`) is spread
    over all operations in proportion to their times.

    Args:
        executions: the executed nodes with their times.
        weights: proportions of the operations' times, float64 [nodes]. Operations whose weights are all 0 get equal
            parts.

    Returns:
        Time of each operation in one inference, µs, float64 [nodes].
    """
    operation_us = np.zeros(len(weights))
    for item in executions.items:
        nodes = list(item.nodes) or [item.serves]
        share = weights[nodes]
        operation_us[nodes] += item.us * (share / share.sum() if share.sum() > 0 else 1.0 / len(nodes))
    if executions.unexplained_us and operation_us.sum() > 0:
        operation_us *= 1 + executions.unexplained_us / operation_us.sum()
    return operation_us


def shares(graph: ComputationGraph, model: Roofline, us: Floats) -> Floats:
    """Returns the weights by which the time of an executed node is divided among operations: their predicted times.

    Args:
        graph: the graph of the model.
        model: its roofline model.
        us: predicted time of each node, µs, float64 [nodes].

    Returns:
        The weights, µs, float64 [nodes]; 0 for nodes that are not executed.
    """
    executed = (graph.kinds == NodeKind.OP) | (graph.kinds == NodeKind.SINK)
    return np.where(executed & ~model.folded, us, 0.0)
