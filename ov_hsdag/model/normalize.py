"""Makes a model safe to place: OpenVINO's common transformations, unique names, copies of replicable producers.

A replicable producer, such as a constant, must be on the device of each of its consumers. So it gets a copy for each
home of its consumers but one. A home is a co-location group before the model is placed, and a device afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.model.clean_up import clean_up
from ov_hsdag.model.excerpt import Excerpt
from ov_hsdag.model.graph import ComputationGraph
from ov_hsdag.model.layer_lengths import read_lengths_in_layers
from ov_hsdag.model.lengths import part_lengths
from ov_hsdag.model.nodes import Nodes
from ov_hsdag.model.relaxed_shapes import restore_shapes
from ov_hsdag.utils.lazy import node_factory, op, ov
from ov_hsdag.utils.timing import Clock

# The endings that `_Names` appends.
_COPY = re.compile(r"(/copy_\d+)+$")


def normalize(model: ov.Model, shapes: Mapping[str, Sequence[int]] | None = None) -> ComputationGraph:
    """Makes `model` safe to place, in place, and returns its graph; see `normalize_by_excerpt`."""
    return normalize_by_excerpt(model, shapes)[0]


def normalize_by_excerpt(
    model: ov.Model, shapes: Mapping[str, Sequence[int]] | None = None, clock: Clock | None = None, placed: bool = False
) -> tuple[ComputationGraph, Excerpt | None]:
    """Makes `model` safe to place, in place. Its inputs, outputs and results stay the same.

    OpenVINO's common transformations, where they work, fold shape arithmetic where shapes are static. Friendly names
    become unique. Replicable producers with consumers in several co-location groups are copied.

    Args:
        model: any model; changed in place.
        shapes: example shapes of dynamic inputs, by input name.
        clock: measures the phases "normalise", "graph" and "legality".
        placed: whether the model carries a placement, see `clean_up`.

    Returns:
        (graph, excerpt): the graph of the changed model; and the excerpt of a large model if nothing but copies was
        added to the model since it was cut out, else None.

    Raises:
        UserError: as `ComputationGraph.from_model`.
    """
    clock = clock or Clock()
    with clock("normalise"):
        restore_shapes(model)
        part, nodes = clean_up(model, placed)
        nodes = nodes or Nodes(model)
        for change in (read_lengths_in_layers, part_lengths, lambda nodes: unique_names(model, nodes)):
            if change(nodes):
                nodes = Nodes(model)
    with clock("graph"):
        graph = ComputationGraph.from_model(model, shapes=shapes, nodes=nodes)
        if part is not None and not part.whole.issuperset(map(name_of_original, graph.names)):
            part = None
    with clock("legality"):
        replication = replicate(graph, graph.legality.hosts, nodes)
    if not replication.copied:
        return graph, part
    with clock("graph"):
        return graph.with_copies(model, replication.copied, replication.inputs), part


def unique_names(model: ov.Model, nodes: Nodes | None = None) -> bool:
    """Gives nodes with equal friendly names different ones, because HETERO finds nodes by name.

    The clean-up merges copies of a node again, and the remaining one has the name of any copy. It gets the original's
    name, so that new copies get the names that the earlier ones had.

    Args:
        model: the model; changed in place.
        nodes: the model's nodes, where the caller has them already.

    Returns:
        Whether any name was changed.
    """
    nodes = nodes or Nodes(model)
    names = list(nodes.names)
    used_names = set(names)
    for number, name in enumerate(names):
        original_name = name_of_original(name)
        if original_name and original_name not in used_names:
            used_names.discard(name)
            used_names.add(original_name)
            names[number] = original_name
    seen: set[str] = set()
    copy_names = _Names(used_names)
    for number, name in enumerate(names):
        if name in seen:
            names[number] = copy_names.free(name)
        seen.add(names[number])
    for node, before, name in zip(nodes.order, nodes.names, names, strict=True):
        if name != before:
            node.set_friendly_name(name)
    return names != nodes.names


def name_of_original(name: str) -> str:
    """Returns the name of the node that a copy was made of, by the copy's name; any other name as it is."""
    return _COPY.sub("", name) if "/copy_" in name else name


class _Names:
    """Finds free names for copies, in a time that does not grow with the number of copies."""

    def __init__(self, taken: set[str]) -> None:
        """Starts with the names in use, a set to which `free` adds names."""
        self._taken = taken
        self._next: dict[str, int] = {}  # number to try next, by the original's name

    def free(self, name: str) -> str:
        """Returns a name for a copy of the node `name`, and marks it as in use."""
        number = self._next.get(name, 1)
        while (copy := f"{name}/copy_{number}") in self._taken:
            number += 1
        self._next[name] = number + 1
        self._taken.add(copy)
        return copy


class Replication(NamedTuple):
    """The result of `replicate`."""

    homes: dict[str, int]  # number of the group or device of every node of the changed model, by friendly name
    copied: dict[str, int]  # number of the node that each copy was made of, by the copy's friendly name
    # input ports that a copy feeds: name of the reading node, number of its port, name of the copy
    inputs: list[tuple[str, int, str]]


def replicate(graph: ComputationGraph, homes: NDArray[np.int32], nodes: Nodes) -> Replication:
    """Copies replicable producers so that all consumers of each copy have the same home.

    Args:
        graph: the graph of the model.
        homes: home of each node, the number of a co-location group or of a device, int32 [nodes]. Entries of replicable
            producers do not count.
        nodes: the nodes of the model, which is changed in place.

    Returns:
        The homes of all nodes afterwards, and the copies. A producer that cannot be copied stays shared.
    """
    constant = graph.legality.constant
    copyable = np.ones(graph.nodes, bool)
    # A replica is (number of the copied node, home of the copy, input ports that the copy feeds). A port is (number of
    # its node, number of the port); a node's number of `graph.nodes` or more is that of a replica earlier in the list.
    while True:
        own_homes, replicas = graph.legality.replication(homes, copyable)
        copies = [
            _copy_constants(nodes.order[n]) if constant[n] else _copy_operation(nodes.order[n]) for n, _, _ in replicas
        ]
        stuck = [node for (node, _, _), copy in zip(replicas, copies, strict=True) if not copy]
        if not stuck:
            break
        # These operations cannot be rebuilt. Their consumers go on sharing them and have to share a device.
        copyable[stuck] = False
    result = dict(zip(graph.names, own_homes.tolist(), strict=True))
    names, copied = _Names(set(graph.names)), {}
    for (_, home, _), copy in zip(replicas, copies, strict=True):
        for copied_node in copy:
            original = copied_node.get_friendly_name()
            name = names.free(original)
            copied_node.set_friendly_name(name)
            result[name], copied[name] = home, graph.index(original)
    instances = [*nodes.order, *(copy[-1] for copy in copies)]
    fed: list[tuple[str, int, str]] = []
    for (number, _, inputs), copy in zip(replicas, copies, strict=True):
        if constant[number]:  # the constants that it is computed from were copied, too
            for copied_node in copy:
                sources = enumerate(copied_node.input_values())
                fed += [
                    (copied_node.get_friendly_name(), port, one.get_node().get_friendly_name()) for port, one in sources
                ]
        for instance, port in inputs:
            target = instances[instance].input(port)
            target.replace_source_output(copy[-1].output(target.get_source_output().get_index()))
            fed.append((instances[instance].get_friendly_name(), port, copy[-1].get_friendly_name()))
    return Replication(result, copied, fed)


def _copy_constants(node: ov.Node) -> list[ov.Node]:
    """Copies a node that is computed from constants alone, with everything that it is computed from.

    The clone of a model shares its constants' memory and keeps all runtime attributes, above all the marks of
    conversions that decompress weights. The Python API has no other copy that does.

    Returns:
        The copies in topological order; the last one is that of the node.
    """
    holder = ov.Model([op.Result(node.output(0))], [], "constants").clone()
    return [copy for copy in holder.get_ordered_ops() if copy.get_type_name() != "Result"]


def _copy_operation(node: ov.Node) -> list[ov.Node]:
    """Makes a node with the operation and the inputs of `node`; returns [copy], or [] where it cannot be made."""
    info = node.get_type_info()
    try:
        copy = node_factory.NodeFactory(info.version_id).create(info.name, node.input_values(), node.get_attributes())
    except (RuntimeError, TypeError, ValueError):
        return []
    copy.set_friendly_name(node.get_friendly_name())
    return [copy]
