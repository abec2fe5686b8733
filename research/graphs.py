"""Makes graphs without a model, and problems on them, for tests, benchmarks and published instances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ov_hsdag.model.colocation import split_rule
from ov_hsdag.model.graph import ComputationGraph, NodeKind
from ov_hsdag.problem.problem import PlacementProblem


def graph_of(kinds: Sequence[int], feeds: Sequence[Sequence[int]], **fields: Any) -> ComputationGraph:
    """Makes a graph in which each node has one output, except Results, which have none.

    Args:
        kinds: `NodeKind` of each node, in topological order.
        feeds: for each node the numbers of the outputs that it reads.
        fields: fields of the graph in place of the defaults: movable f32 tensors of one byte, and nodes without flops.

    Returns:
        The graph.
    """
    nodes = len(kinds)
    output_ptr = np.cumsum([0, *(kind != NodeKind.RESULT for kind in kinds)])
    output_ptr = np.asarray(fields.pop("output_ptr", output_ptr), np.int32)
    outputs = int(output_ptr[-1])
    defaults = {
        "names": tuple(f"node_{number}" for number in range(nodes)),
        "types": tuple({NodeKind.OP: "Relu"}.get(NodeKind(kind), NodeKind(kind).name.title()) for kind in kinds),
        "output_bytes": np.ones(outputs, np.int64),
        "output_shapes": ((1,),) * outputs,
        "output_ranks": np.ones(outputs, np.int16),
        "output_movable": np.ones(outputs, bool),
        "output_types": ("f32",) * outputs,
        "flops": np.zeros(nodes),
        "weight_bytes": np.zeros(nodes, np.int64),
        "variables": ("",) * nodes,
    }
    return ComputationGraph(
        kinds=np.array(kinds, np.uint8),
        input_ptr=np.cumsum([0, *map(len, feeds)]).astype(np.int32),
        input_output=np.array([output for row in feeds for output in row], np.int32),
        output_ptr=output_ptr,
        **{**defaults, **fields},
    )


def problem_on(graph: ComputationGraph, node_us: NDArray[np.float64], **fields: Any) -> PlacementProblem:
    """Makes a problem on devices "A", "B" and so on.

    Args:
        graph: the graph.
        node_us: time of each node on each device, µs, float64 [nodes, devices].
        fields: fields of the problem in place of the defaults: latency, each node a group, transfers and submodels
            without cost, no memory limits.

    Returns:
        The problem.
    """
    count = node_us.shape[1]
    defaults = {
        "devices": tuple("ABCDEFGH"[:count]),
        "objective": "latency",
        "supported": np.ones(node_us.shape, bool),
        "groups": np.arange(graph.nodes, dtype=np.int32),
        "transfer_us": np.zeros((count, count)),
        "transfer_us_per_byte": np.zeros((count, count)),
        "submodel_us": np.zeros(count),
        "memory_bytes": np.full(count, -1, np.int64),
        "rule": split_rule(ov.__version__),
    }
    return PlacementProblem(graph=graph, node_us=node_us, **{**defaults, **fields})
