"""Finds and describes the dominant co-location group of a model, which prevents a useful split.

A co-location group is dominant if it has more than half of the model's operations, and at least two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.model.graph import ComputationGraph, NodeKind
from ov_hsdag.model.normalize import normalize
from ov_hsdag.model.shapes import counted_input_shapes, input_name
from ov_hsdag.utils.lazy import ov


def dominant_group(graph: ComputationGraph, groups: NDArray[np.int32]) -> tuple[NDArray[np.int64], int]:
    """Finds the dominant co-location group.

    Args:
        graph: the graph of the model.
        groups: co-location group of each node, int32 [nodes].

    Returns:
        Numbers of the dominant group's operations, int64, empty where no group is dominant; and the number of all
        operations of the model.
    """
    operations = np.flatnonzero((graph.kinds == NodeKind.OP) & ~graph.legality.constant)
    if not len(operations):
        return operations, 0
    counts = np.bincount(groups[operations])
    most = int(counts.argmax())
    few = counts[most] < 2 or 2 * counts[most] <= len(operations)
    return operations[groups[operations] == (-1 if few else most)], len(operations)


def describe_dominant_group(
    graph: ComputationGraph,
    groups: NDArray[np.int32],
    model: ov.Model | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> str:
    """Writes a line about the dominant co-location group: its size, why its operations belong together, and a remedy.

    Args:
        graph: the graph of the model.
        groups: colocation group of each node, int32 [nodes].
        model: the model; if given, fixing the sizes of its inputs is tried as a remedy.
        shapes: example shapes for that, by input name; the others are assumed.

    Returns:
        The line; "" where no group dominates.
    """
    nodes, total = dominant_group(graph, groups)
    if not len(nodes):
        return ""
    text = f"{len(nodes):,} of {total:,} operations must share a device"
    kept = ~graph.output_movable if graph.output_relaxable is None else ~(graph.output_movable | graph.output_relaxable)
    edges = kept[graph.input_output] & np.isin(graph.input_source, nodes) & np.isin(graph.input_node, nodes)
    outputs = graph.input_output[edges].tolist()
    if any(graph.output_types[output] == "string" for output in outputs):
        return f"{text}, as tensors of text cannot go from one to another"
    if outputs:
        text += f", as HETERO does not know the sizes of {graph.names[graph.output_node[outputs[0]]]}"
        remedy = "" if model is None else _remedy(model, shapes, len(nodes) / total)
        return f"{text}; {remedy}" if remedy else text
    return f"{text}, as a state depends on them" if any(graph.variables[node] for node in nodes.tolist()) else text


def _remedy(model: ov.Model, shapes: Mapping[str, Sequence[int]] | None, share: float) -> str:
    """Tries whether fixed input sizes make the dominant group smaller, on a copy of the model.

    Args:
        model: the model.
        shapes: example shapes of its inputs, by input name; the others are assumed.
        share: the dominant group's share of the operations with the present sizes.

    Returns:
        The advice to convert the model with fixed sizes, as an option of ovc; "" where that does not help.
    """
    fixed = model.clone()
    sizes = counted_input_shapes(model, shapes)
    input_specs = [
        f"{input_name(port)}[{','.join(map(str, size))}]"
        for port, size in zip(model.inputs, sizes, strict=True)
        if port.get_partial_shape().is_dynamic
    ]
    try:
        fixed.reshape(dict(enumerate(map(list, sizes))))
        graph = normalize(fixed)
    except RuntimeError:
        return ""
    nodes, total = dominant_group(graph, graph.legality.groups)
    return f"with fixed sizes they need not: ovc --input {','.join(input_specs)}" if len(nodes) < share * total else ""
