"""Times of a model's operations on a device, from runs of the whole model with PERF_COUNT."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.calibration.executions import Counters, Executions
from ov_hsdag.calibration.single_request import SingleRequest
from ov_hsdag.costs.roofline import Roofline
from ov_hsdag.devices import virtual
from ov_hsdag.model.graph import NodeKind

if TYPE_CHECKING:
    import openvino as ov

    from ov_hsdag.model.graph import ComputationGraph

Floats = NDArray[np.float64]
Advance = Callable[[str], None]

# Medians are over so many copies of the compiled model: counters only tell means, and a copy's memory lies elsewhere.
_FEWEST_COPIES, _MOST_COPIES = 3, 6

# They are stable when the sum of the times moves by less than this share with another copy.
_STABLE = 0.02

# Each copy runs at least so often, and for about so many seconds.
_FEWEST_RUNS, _MOST_RUNS, _SECONDS = 4, 40, 0.5


# Layouts of images that submodels exchange, as the CPU and the GPU plugin call them.
_PLAIN = frozenset({"abcd", "abcde", "bfyx", "bfzyx"})


@dataclass(frozen=True, eq=False)
class NodeTimes:
    """What one device takes for one model.

    Attributes:
        device: what was measured, "NPU", or "HETERO:NPU,CPU" where the NPU does not run the whole model.
        us: time of each node, [nodes] float64, µs; alone, they add up to `latency_us` less the cost of the call.
        parts: executed node that each operation is part of, -1 for what the device does not execute, int32 [nodes].
        own_layout: whether the device keeps a node's first output in a layout of its own, bool [nodes].
        latency_us: of the whole model, without PERF_COUNT, µs.
        copies: compiled copies that were measured.
    """

    device: str
    us: Floats
    parts: NDArray[np.int32]
    own_layout: NDArray[np.bool_]
    latency_us: float
    copies: int


def node_times(
    model: ov.Model,
    device: str,
    core: ov.Core,
    *,
    graph: ComputationGraph,
    weights: Floats,
    inputs: Sequence[NDArray[Any]],
    submodel_us: float = 0.0,
    advance: Advance = lambda _: None,
    inside: NDArray[np.bool_] | None = None,
) -> NodeTimes:
    """Measures the operations of `model` on `device`.

    Args:
        model: normalized; not changed. With affinities where `device` is HETERO.
        device: that runs the whole model, or HETERO on the device that is measured and another.
        core: has the device.
        graph: of the model.
        weights: how the time of an executed node is divided among the operations that it computes, float64 [nodes].
        inputs: of the model.
        submodel_us: what calling the model costs beside its operations.
        advance: is told what happens.
        inside: operations that are measured where those are not all, bool [nodes]. Counters say what they take, without
            what borders add; times of the others are guessed from `weights` and from how wrong these are inside.

    Raises:
        RuntimeError: the device does not compile or run the model.
    """
    config = virtual.compile_properties(device)
    plain = core.compile_model(model, device, config)
    once = SingleRequest(plain, inputs).run
    once()
    runs = int(np.clip(_SECONDS / max(once(), 1e-6) / 2, _FEWEST_RUNS, _MOST_RUNS))
    latencies: list[float] = []
    copies: list[Floats] = []
    totals: list[float] = []
    executions: Executions | None = None
    while len(copies) < _MOST_COPIES:
        compiled = core.compile_model(model, device, {**config, "PERF_COUNT": True})
        counters = Counters(compiled, inputs)
        for _ in range(runs):
            latencies.append(once())
            counters.run()
        executions = Executions.of(compiled, graph, counters.us())
        if inside is not None:
            own = tuple(item for item in executions.items if item.nodes and inside[list(item.nodes)].all())
            executions = Executions(own, 0.0)
        copies.append(_divide(executions, weights))
        totals.append(float(np.median(copies, axis=0).sum()))
        advance(f"{device}: {len(copies)} runs")
        if len(copies) >= _FEWEST_COPIES and abs(totals[-1] - totals[-2]) < _STABLE * totals[-1]:
            break
    assert executions is not None
    us = np.median(copies, axis=0)
    latency = statistics.median(latencies) * 1e6
    if inside is None:
        if not us.any():  # a plugin that names nothing: the cost model divides the latency
            us = weights
        us = us * max(latency - submodel_us, 0.5 * latency) / max(us.sum(), 1e-9)
    elif us.any():
        us = np.where(inside, us, weights * (us.sum() / max(weights[inside].sum(), 1e-9)))
    else:
        us = weights
    parts = np.full(graph.nodes, -1, np.int32)
    own_layout = np.zeros(graph.nodes, bool)
    for number, item in enumerate(executions.items):
        if item.nodes:
            parts[list(item.nodes)] = number
            own_layout[list(item.nodes)] = len(item.layout) >= 4 and item.layout not in _PLAIN
    return NodeTimes(device, us, parts, own_layout, latency, len(copies))


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
