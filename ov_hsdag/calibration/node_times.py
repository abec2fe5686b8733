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
from dataclasses import dataclass

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
    seconds, counted_seconds = list[float](), list[float]()
    copies: list[Floats] = []
    executions: Executions | None = None
    runs = 0 if counted else int(np.clip(_SECONDS / 2 / max(plain.typical, 1e-6), _FEWEST_RUNS, _MOST_RUNS))
    with suppress(OutOfTime):
        seconds.extend(plain.run() for _ in range(runs))
    while counted and len(copies) < _MOST_COPIES and not _stable(copies):
        executed = _run_with_counters(plain, graph, seconds, counted_seconds, few=not copies)
        if executed is None:
            break
        executions = executed
        if inside is not None:
            inside_items = tuple(item for item in executions.items if item.nodes and inside[list(item.nodes)].all())
            executions = Executions(inside_items, unexplained_us=0.0)
        # `alike`: executed nodes that do the same work get their median time.
        copies.append(_divide_among_operations(executions.alike(graph), weights))
        advance(deadline.describe(f"measuring operations on {device}, run {len(copies) + 1}"))
    if executions is None and inside is not None:
        raise OutOfTime(f"there was no time or memory to measure operations on {device}")
    # Counters can only make a copy slower. If copies with counters are faster, the plain copy has unfavourable memory.
    latency = min(statistics.median(some) for some in (seconds or [plain.typical], counted_seconds) if some) * 1e6
    us = np.median(copies, axis=0) if copies else np.zeros(graph.nodes)
    if inside is None:
        if not us.any():  # no copy was counted, or the plugin names no operations: the cost model divides the latency
            us = weights
        us = adding_up(us, latency, submodel_us)
    elif us.any():
        us = np.where(inside, us, weights * (us.sum() / max(weights[inside].sum(), 1e-9)))
    else:
        us = weights
    parts = np.full(graph.nodes, -1, np.int32)
    own_layout = np.zeros(graph.nodes, bool)
    for number, item in enumerate(executions.items if executions else ()):
        if item.nodes:
            parts[list(item.nodes)] = number
            own_layout[list(item.nodes)] = len(item.layout) >= 4 and item.layout not in _PLAIN_LAYOUTS
    return NodeTimes(device, us, parts, own_layout, latency, len(copies))


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


def _stable(copies: Sequence[Floats]) -> bool:
    """Whether there are enough copies, and the last one changed the sum of the median times little.

    Args:
        copies: times of operations in each copy, µs, float64 [nodes] each.
    """
    if len(copies) < _FEWEST_COPIES:
        return False
    before, after = (float(np.median(some, axis=0).sum()) for some in (copies[:-1], copies))
    return abs(after - before) < _STABLE_CHANGE * after


def _run_with_counters(
    plain: TimedModel, graph: ComputationGraph, seconds: list[float], counted_seconds: list[float], *, few: bool
) -> Executions | None:
    """Runs a copy of the model that is compiled with counters, and reads the times of its executed nodes.

    Plain inferences alternate with those of the copy, so that both see the same conditions.

    Args:
        plain: the model without counters.
        graph: the graph of the model.
        seconds: list to which the times of plain inferences are added, seconds.
        counted_seconds: list to which the times of the copy's inferences are added, seconds.
        few: whether this is the first copy, for which fewer runs than usual are better than none.

    Returns:
        The executed nodes; None if there is not enough time.

    Raises:
        RuntimeError: the copy does not compile or run.
    """
    typical, again = max(plain.typical, 1e-6), not few
    left = (_FIRST_COPY_SHARE if few else _LATER_COPY_SHARE) * plain.deadline.left
    runs = int(np.clip(_SECONDS / typical / 2, _FEWEST_RUNS, _MOST_RUNS))
    warm_up = WARM_UP
    affordable = (left - plain.compiling_counted(again=again)) / typical
    with_plain_runs = True  # whether a plain inference runs beside each counted one
    if affordable < warm_up + 2 * runs:
        if affordable < 2 or not few:
            return None
        with_plain_runs = affordable >= 3
        warm_up, runs = 1, max(int((affordable - 1) / 2), 1)
    try:
        compiled, counters = plain.counted(warm_up, again=again)
        for _ in range(runs):
            if with_plain_runs:
                seconds.append(plain.run())
            counted_seconds.append(counters.run())
    except OutOfTime:  # the machine became slower than `affordable` assumed
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
