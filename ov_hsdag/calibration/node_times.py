"""Times of a model's operations on a device, from runs of the whole model with PERF_COUNT."""

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

# Medians are over so many copies of the compiled model: counters only tell means, and a copy's memory lies elsewhere.
_FEWEST_COPIES, _MOST_COPIES = 3, 6

# They are stable when the sum of the times moves by less than this share with another copy.
_STABLE = 0.02

# Each copy runs at least so often (where time allows), and for about so many seconds.
_FEWEST_RUNS, _MOST_RUNS, _SECONDS = 4, 40, 0.5

# Shares of what is left of the time that a first copy and a later one may take: a machine becomes slower meanwhile, and
# splits tell more than another copy.
_FIRST, _LATER = 0.8, 0.3

# Layouts of images that submodels exchange, as the CPU and the GPU plugin call them.
_PLAIN = frozenset({"abcd", "abcde", "bfyx", "bfzyx"})


@dataclass(frozen=True, eq=False)
class NodeTimes:
    """What one device takes for one model."""

    device: str  # what was measured, "NPU", or "HETERO:NPU,CPU" where the NPU does not run the whole model
    us: Floats  # time of each node, [nodes] float64, µs; alone, they add up to `latency_us` less the cost of the call
    # executed node that each operation is part of, -1 for what the device does not execute, int32 [nodes]
    parts: NDArray[np.int32]
    own_layout: NDArray[np.bool_]  # whether the device keeps a node's first output in a layout of its own, bool [nodes]
    latency_us: float  # of the whole model, what counting adds left out, µs
    # compiled copies whose operations were measured; 0 where there was time or memory for the latency of the whole
    # model only, which `us` then divides as the weights say
    copies: int


def node_times(
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
    """Measures the operations of `model`, normalised and not changed, on `device`.

    device: that runs the whole model, or HETERO on the device that is measured and another (`model` has affinities
    then). weights: how the time of an executed node is divided among the operations that it computes, float64 [nodes].
    inputs: what is timed. split: tells HETERO's placement from others. submodel_us: what calling the model costs beside
    its operations.

    inside: operations that are measured where those are not all, bool [nodes]: by counters, without what partition
    boundaries add. Times of the others follow from `weights` and from how wrong these are inside. counted: whether
    single operations are measured, which needs the model in memory twice. deadline: of everything but a compilation
    that has begun.

    Raises RuntimeError where the device does not compile or run the model; OutOfTime where not one inference ended
    before the deadline or, with `inside`, no operations were measured.
    """
    plain = TimedModel(compiled, model, device, inputs, deadline, split)
    seconds, counted_seconds = list[float](), list[float]()
    copies: list[Floats] = []
    executions: Executions | None = None
    runs = 0 if counted else int(np.clip(_SECONDS / 2 / max(plain.typical, 1e-6), _FEWEST_RUNS, _MOST_RUNS))
    with suppress(OutOfTime):
        seconds.extend(plain.run() for _ in range(runs))
    while counted and len(copies) < _MOST_COPIES and not _stable(copies):
        executed = _count(plain, graph, seconds, counted_seconds, few=not copies)
        if executed is None:
            break
        executions = executed
        if inside is not None:
            own = tuple(item for item in executions.items if item.nodes and inside[list(item.nodes)].all())
            executions = Executions(own, 0.0)
        copies.append(_divide(executions.alike(graph), weights))
        advance(deadline.describe(f"measuring operations on {device}, run {len(copies) + 1}"))
    if executions is None and inside is not None:
        raise OutOfTime(f"there was no time or memory to measure operations on {device}")
    # Counting only adds: where copies that count are faster, it is the plain one whose memory lies badly.
    latency = min(statistics.median(some) for some in (seconds or [plain.typical], counted_seconds) if some) * 1e6
    us = np.median(copies, axis=0) if copies else np.zeros(graph.nodes)
    if inside is None:
        if not us.any():  # nothing was counted, or a plugin names nothing: the cost model divides the latency
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
            own_layout[list(item.nodes)] = len(item.layout) >= 4 and item.layout not in _PLAIN
    return NodeTimes(device, us, parts, own_layout, latency, len(copies))


def adding_up(us: Floats, latency_us: float, submodel_us: float) -> Floats:
    """Times of operations in the same proportion that add up to a latency less what calling the model costs."""
    return us * (max(latency_us - submodel_us, 0.5 * latency_us) / max(us.sum(), 1e-9))


def _stable(copies: Sequence[Floats]) -> bool:
    """Whether the sum of the times moved little with the last copy."""
    if len(copies) < _FEWEST_COPIES:
        return False
    before, after = (float(np.median(some, axis=0).sum()) for some in (copies[:-1], copies))
    return abs(after - before) < _STABLE * after


def _count(
    plain: TimedModel, graph: ComputationGraph, seconds: list[float], counted_seconds: list[float], *, few: bool
) -> Executions | None:
    """What a copy of the model executes that is compiled with counters, or None where there is no time for that.

    Plain inferences alternate with the copy's, so that both see the same machine; times go to `seconds` and to
    `counted_seconds`. few: whether fewer than usual are better than none. Raises RuntimeError where it does not run.
    """
    typical, again = max(plain.typical, 1e-6), not few
    left = (_FIRST if few else _LATER) * plain.deadline.left
    runs = int(np.clip(_SECONDS / typical / 2, _FEWEST_RUNS, _MOST_RUNS))
    warm_up = WARM_UP
    affordable = (left - plain.compiling_counted(again=again)) / typical
    beside = True  # whether a plain inference runs beside each counted one
    if affordable < warm_up + 2 * runs:
        if affordable < 2 or not few:
            return None
        beside = affordable >= 3
        warm_up, runs = 1, max(int((affordable - 1) / 2), 1)
    try:
        compiled, counters = plain.counted(warm_up, again=again)
        for _ in range(runs):
            if beside:
                seconds.append(plain.run())
            counted_seconds.append(counters.run())
    except OutOfTime:  # the machine has become slower
        return None
    return Executions.of(compiled, graph, counters.us())


def _divide(executions: Executions, weights: Floats) -> Floats:
    """Time of each operation, float64 [nodes]; all executed time is in it."""
    result = np.zeros(len(weights))
    for item in executions.items:
        nodes = list(item.nodes) or [item.serves]
        share = weights[nodes]
        result[nodes] += item.us * (share / share.sum() if share.sum() > 0 else 1.0 / len(nodes))
    if executions.unexplained_us and result.sum() > 0:
        result *= 1 + executions.unexplained_us / result.sum()
    return result


def shares(graph: ComputationGraph, model: Roofline, us: Floats) -> Floats:
    """How executed time is divided among operations: by the cost model, nothing for what costs nothing. [nodes]."""
    executed = (graph.kinds == NodeKind.OP) | (graph.kinds == NodeKind.SINK)
    return np.where(executed & ~model.folded, us, 0.0)
