"""Makes a model safe to place: OpenVINO's common clean-up, unique names, replicated producers."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.model.clean_up import clean_up
from ov_hsdag.model.colocation import _merged, _tied, constant_nodes, followers
from ov_hsdag.model.graph import ComputationGraph

if TYPE_CHECKING:
    import openvino as ov


def normalize(model: ov.Model) -> None:
    """Makes `model` safe to place, in place: same inputs, outputs and results, fewer ways to break.

    OpenVINO's own common transformations, where they work, fold shape arithmetic away where shapes are static; friendly
    names become unique; followers with consumers in several groups are copied.
    """
    clean_up(model)
    unique_names(model)
    graph = ComputationGraph.from_model(model)
    follows = followers(graph)
    _copy_followers(model, graph, follows, _merged(graph, _tied(graph, follows)))


def unique_names(model: ov.Model) -> None:
    """Gives nodes whose friendly name another node has already a name of their own: HETERO finds nodes by name."""
    nodes = model.get_ordered_ops()
    taken = {node.get_friendly_name() for node in nodes}
    seen: set[str] = set()
    for node in nodes:
        name = node.get_friendly_name()
        if name in seen:
            name = _free_name(name, taken)
            node.set_friendly_name(name)
        seen.add(name)


def _free_name(name: str, taken: set[str]) -> str:
    number = 1
    while f"{name}/copy_{number}" in taken:
        number += 1
    taken.add(f"{name}/copy_{number}")
    return f"{name}/copy_{number}"


def _copy_followers(
    model: ov.Model, graph: ComputationGraph, follows: NDArray[np.bool_], homes: NDArray[Any]
) -> dict[str, Any]:
    """Copies followers so that all consumers of each share a home.

    Args:
        model: the model of `graph`; changed.
        follows: bool [nodes].
        homes: where each node is that does not follow: a group or a device; [nodes].

    Returns:
        Home of every node of the changed model, by friendly name.
    """
    nodes = model.get_ordered_ops()
    constant = constant_nodes(graph)
    taken = set(graph.names)
    # Consumers are handled before producers, so that a copy's own inputs are copied in turn.
    consumers: list[dict[Any, list[Any]]] = [defaultdict(list) for _ in range(graph.nodes)]
    result: dict[str, Any] = {}

    def note_inputs(node: Any, index: int, home: Any) -> None:
        for port in range(graph.input_ptr[index + 1] - graph.input_ptr[index]):
            source = int(graph.input_source[graph.input_ptr[index] + port])
            if follows[source]:
                consumers[source][home].append(node.input(port))

    for index in reversed(range(graph.nodes)):
        node = nodes[index]
        if not follows[index] or not consumers[index]:
            result[graph.names[index]] = homes[index]
            note_inputs(node, index, homes[index])
            continue
        # The original stays where most of its consumers are (ties: where the first in the graph is).
        first, *others = sorted(consumers[index], key=lambda home: -len(consumers[index][home]))
        result[graph.names[index]] = first
        note_inputs(node, index, first)
        for home in others:
            copies = _copy_constants(node) if constant[index] else _copy_operation(node)
            if not copies:
                # An operation that cannot be rebuilt: its consumers keep sharing it and are tied together instead.
                continue
            for copy in copies:
                copy.set_friendly_name(_free_name(copy.get_friendly_name(), taken))
                result[copy.get_friendly_name()] = home
            for target in consumers[index][home]:
                port = target.get_source_output().get_index()
                target.replace_source_output(copies[-1].output(port))
            if not constant[index]:
                note_inputs(copies[-1], index, home)
    return result


def _copy_constants(node: ov.Node) -> list[ov.Node]:
    """Copies of a node that rests on constants alone and of all that it rests on, in topological order.

    A model's clone shares its constants' memory and keeps all runtime attributes (those that say that a conversion
    decompresses weights, above all); the Python API has no other copy that does.
    """
    import openvino as ov

    from ov_hsdag.utils.compat import op

    holder = ov.Model([op.Result(node.output(0))], [], "constants").clone()
    return [copy for copy in holder.get_ordered_ops() if copy.get_type_name() != "Result"]


def _copy_operation(node: ov.Node) -> list[ov.Node]:
    """The same operation on the same inputs once more; empty where it cannot be made."""
    from ov_hsdag.utils.compat import NodeFactory

    info = node.get_type_info()
    try:
        copy = NodeFactory(info.version_id).create(info.name, node.input_values(), node.get_attributes())
    except (RuntimeError, TypeError, ValueError):
        return []
    copy.set_friendly_name(node.get_friendly_name())
    return [copy]
