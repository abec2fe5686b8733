"""Relaxes the shapes of tensors with a dynamic dimension that cannot be 0, so that they can cross submodels.

Convolutions of open sizes have such outputs. HETERO connects submodels with tensors that are empty at first, and a
device refuses an empty tensor for an input of shape [?,16,1..,1..] (docs/reference/facts.md). So where such a tensor
crosses, it first passes inserted nodes: for each of these dimensions a VariadicSplit into a single part of length -1,
which means all that remains. They keep the values, but OpenVINO infers [?,16,?,?] for the output of the last one. They
cost at most a copy of the tensor.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from ov_hsdag.model.lengths import relaxed
from ov_hsdag.model.nodes import Nodes
from ov_hsdag.utils.errors import RunError
from ov_hsdag.utils.lazy import op, opset13, ov

# A dimension that cannot be 0, in the text of a shape: "1..", "2..8".
_BOUNDED_BELOW = re.compile(r"\b[1-9]\d*\.\.")

# Names of inserted nodes.
_NAME = re.compile(r"/relaxed_shape_\d+(/\w+)?$")

# Inserted nodes sometimes make HETERO split a model in other places, where more nodes are needed. No known model took
# more than two rounds; the limit ends the loop where rounds change the split forever.
_ROUNDS = 10


def is_relaxing(name: str) -> bool:
    """Whether a node has the name of one that `relax_crossing_shapes` inserts."""
    return bool(_NAME.search(name))


def relax_crossing_shapes(model: ov.Model, affinity: Mapping[str, str]) -> dict[str, str]:
    """Inserts the nodes that relax the shapes of tensors which cross submodels, in place.

    Args:
        model: the model; changed in place.
        affinity: device by friendly name, for every node; legal except for such tensors.

    Returns:
        Device of each inserted node, by friendly name.

    Raises:
        RunError: HETERO splits the model in other places whenever nodes are inserted.
    """
    from ov_hsdag.model.colocation import split_rule

    inserted: dict[str, str] = {}
    if len(set(affinity.values())) < 2 or not model.is_dynamic():
        return inserted
    rule = split_rule(ov.__version__)
    for _ in range(_ROUNDS):
        new = _relax_once(model, {**affinity, **inserted}, rule)
        if new is None:
            return inserted
        inserted |= new
        model.validate_nodes_and_infer_types()
    raise RunError("HETERO cannot pass on tensors of this split, whose sizes are open: place the model with fixed ones")


def restore_shapes(model: ov.Model) -> None:
    """Removes the nodes that `relax_crossing_shapes` inserted, in place."""
    relaxing = [
        node
        for node in model.get_ops()
        if node.get_type_name() == "VariadicSplit" and is_relaxing(node.get_friendly_name())
    ]
    for node in relaxing:
        for reader in node.output(0).get_target_inputs():
            reader.replace_source_output(node.input_value(0))
    if relaxing:
        model.validate_nodes_and_infer_types()


def _relax_once(model: ov.Model, affinity: Mapping[str, str], rule: int) -> dict[str, str] | None:
    """Inserts the nodes that the current split into submodels needs.

    Args:
        model: the model; changed in place.
        affinity: device by friendly name, for every node.
        rule: the rule by which HETERO splits, see `split_rule`.

    Returns:
        Device of each new node by friendly name, {} if earlier inserted nodes suffice; None if no such tensor crosses.
    """
    nodes = Nodes(model)
    relaxable = {
        (number, port)
        for number, outputs in enumerate(nodes.outputs)
        for port, (shape, element) in enumerate(outputs)
        if element != "string" and _BOUNDED_BELOW.search(shape)
    }
    if not relaxable:
        return None
    submodel = _submodels(nodes, affinity, rule)
    edges = nodes.edges
    readers: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    rows = zip(edges.source.tolist(), edges.output.tolist(), edges.node.tolist(), edges.port.tolist(), strict=True)
    for source, output, node, port in rows:
        if (source, output) in relaxable and nodes.types[node] != "Result":
            readers[source, output].append((node, port))
    inserted: dict[str, str] | None = None
    for (source, output), ports in readers.items():
        crossing = [(node, port) for node, port in ports if submodel[node] != submodel[source]]
        if not crossing:
            continue
        inserted = inserted or {}
        name, device = f"{nodes.names[source]}/relaxed_shape_{output}", affinity[nodes.names[source]]
        relaxing_readers = [
            node for node, _ in ports if nodes.names[node] == name or nodes.names[node].startswith(f"{name}/")
        ]
        if relaxing_readers or any(affinity[nodes.names[node]] == device for node, _ in crossing):
            # HETERO's cuts within a device depend on the number of a tensor's readers, so all readers stay together.
            crossing = [(node, port) for node, port in ports if node not in relaxing_readers]
        if relaxing_readers:
            end = nodes.order[nodes.names.index(name)]
        else:
            new_nodes = _relaxing_nodes(nodes.order[source].output(output), name)
            inserted |= dict.fromkeys((node.get_friendly_name() for node in new_nodes), device)
            end = new_nodes[-1]
        for node, port in crossing:
            nodes.order[node].input(port).replace_source_output(end.output(0))
    return inserted


def _submodels(nodes: Nodes, affinity: Mapping[str, str], rule: int) -> list[int]:
    """Returns the number of the submodel into which HETERO puts each node, [nodes].

    Args:
        nodes: the model's nodes.
        affinity: device by friendly name, for every node.
        rule: the rule by which HETERO splits, see `split_rule`.
    """
    from ov_hsdag import _native  # not at the top: the hook imports this module where the core is not compiled
    from ov_hsdag.model.graph import KINDS, NodeKind

    kinds = np.array([KINDS.get(name, NodeKind.OP) for name in nodes.types], np.uint8)
    counts = [0 if name == "Result" else len(own) for name, own in zip(nodes.types, nodes.outputs, strict=True)]
    output_ptr = np.cumsum([0, *counts]).astype(np.int32)
    graph = _native.Graph(
        kinds,
        nodes.edges.ptr.astype(np.int32),
        (output_ptr[nodes.edges.source] + nodes.edges.output).astype(np.int32),
        output_ptr,
        np.zeros(output_ptr[-1], np.int64),
        np.zeros(len(nodes), np.int64),
    )
    number = {device: index for index, device in enumerate(dict.fromkeys(affinity.values()))}
    devices = np.array([number[affinity[name]] for name in nodes.names], np.uint8)
    submodel: list[int] = _native.split(graph, devices, rule)["submodel"].tolist()
    return submodel


def _relaxing_nodes(tensor: ov.Output, name: str) -> list[ov.Node]:
    """Makes the nodes that relax the shape of a tensor.

    Args:
        tensor: the output that they read.
        name: name of the last node; the names of the others begin with it.

    Returns:
        The nodes in topological order; the last one has the tensor with the relaxed shape.
    """
    shape = tensor.get_partial_shape()
    axes = [axis for axis, (own, open_) in enumerate(zip(shape, relaxed(shape), strict=True)) if own != open_]
    new_nodes: list[ov.Node] = []
    for axis in axes:
        number = op.Constant(ov.Type.i64, ov.Shape([]), [axis])
        rest = op.Constant(ov.Type.i64, ov.Shape([1]), [-1])
        part = opset13.variadic_split(tensor, number, rest)
        number.set_friendly_name(f"{name}/axis_{axis}")
        rest.set_friendly_name(f"{name}/rest_{axis}")
        part.set_friendly_name(name if axis == axes[-1] else f"{name}/part_{axis}")
        new_nodes += number, rest, part
        tensor = part.output(0)
    return new_nodes
