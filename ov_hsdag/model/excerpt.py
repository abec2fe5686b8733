"""Makes excerpts: small models that have some nodes of each kind of a large model.

OpenVINO's treatment of an operation depends on the operation and on its surroundings. Deep models repeat layers, so
many nodes have equal surroundings. Nodes are of one kind if they have equal Weisfeiler-Lehman colours: hashes of a node
and of all nodes and edges up to `RADIUS` edges around it. An excerpt has at least one node of each kind, its
representative, with its surroundings up to `RADIUS` edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.model.flops import SUBGRAPHS
from ov_hsdag.model.nodes import Edges, Nodes, is_integral
from ov_hsdag.utils.lazy import op, ov

LARGE = 1000
"""Number of nodes from which on an excerpt saves time; of a smaller model, making it takes as long as it saves."""

RADIUS = 8
"""Number of edges up to which surroundings are compared, and kept around a representative."""

# Edges around a node that `structures` compares. Any radius finds a difference; a larger one shows it at more nodes.
_COMPARED_RADIUS = 4

# Bytes up to which constants of integers are compared by value: room for axes and shapes.
_COMPARED_BYTES = 64

# An output with more consumers than this, such as a mask or positions, is shared by the whole model. The surroundings
# of one consumer end there.
_SHARED = 16

# Share of the nodes above which an excerpt saves too little time.
_LARGEST_SHARE = 0.5

# Attributes that are ignored, because they only identify a node.
_IDENTIFYING_ATTRIBUTES = ("variable_id",)

# Runtime information of constants that were read from a file; it is different for each constant.
_CACHE_ATTRIBUTE = "WeightlessCacheAttribute_0"


@dataclass(frozen=True, eq=False)
class Excerpt:
    """An excerpt of a model."""

    # copies of some of the nodes, with their friendly names; Parameters and Results stand where the excerpt ends
    model: ov.Model
    names: tuple[str, ...]  # friendly names of the copied nodes, at least one of each kind
    kinds: int  # number of kinds of nodes
    whole: frozenset[str]  # friendly names of all nodes of the whole model


def excerpt(model: ov.Model, nodes: Nodes | None = None) -> Excerpt | None:
    """Makes an excerpt of a model.

    Args:
        model: the model, which is the same afterwards; meanwhile edges of it are changed.
        nodes: the model's nodes, where the caller has them already.

    Returns:
        The excerpt; None where it would have more than `_LARGEST_SHARE` of the nodes, or where OpenVINO cannot make a
        model of it.
    """
    nodes = nodes or Nodes(model)
    _, representatives = np.unique(_colours(_signatures(nodes, {}), nodes.edges, RADIUS), return_index=True)
    kept = np.zeros(len(nodes), bool)
    kept[representatives] = True
    kept = _with_evaluated_inputs(nodes, _whole_states(nodes, _surrounded(kept, nodes.edges)))
    if kept.sum() > _LARGEST_SHARE * len(nodes):
        return None
    return _cut_out(nodes, kept, len(representatives))


def structures(*models: ov.Model) -> list[NDArray[np.uint64]]:
    """Describes what models compute, for comparing them regardless of the names of their nodes.

    A constant counts with its size, and with its value where it is small. The shapes of constants do not count, because
    OpenVINO's transformations pad them to the ranks of other inputs. Runtime information does not count either.

    Returns:
        The sorted Weisfeiler-Lehman colours of each model's nodes, uint64 [nodes]; arrays are equal for equal models.
        They compare only with those of the same call.
    """
    numbers: dict[object, int] = {}
    return [
        np.sort(_colours(_signatures(nodes, numbers, whole=False), nodes.edges, _COMPARED_RADIUS))
        for nodes in map(Nodes, models)
    ]


def _signatures(nodes: Nodes, numbers: dict[object, int], *, whole: bool = True) -> NDArray[np.uint64]:
    """Numbers the nodes by their own properties, without their surroundings.

    The properties are type, attributes, and shapes and types of the outputs; for a small constant also its value.

    Args:
        nodes: the nodes.
        numbers: number of each combination of properties that was seen before; new ones are added to it.
        whole: whether shapes of constants and marks in rt_info count as properties.

    Returns:
        Number of each node's properties, uint64 [nodes].
    """
    signatures = np.empty(len(nodes), np.uint64)
    for index, (node, type_name, outputs) in enumerate(zip(nodes.order, nodes.types, nodes.outputs, strict=True)):
        key: object
        if type_name == "Constant":
            shape = outputs if whole else (outputs[0][1], node.get_byte_size())
            key = (shape, constant_bytes(node))
        elif type_name in SUBGRAPHS:
            key = (type_name, node.get_friendly_name())  # each is a kind of its own, as bodies are not compared
        else:
            attributes = node.get_attributes()
            for name in _IDENTIFYING_ATTRIBUTES:
                attributes.pop(name, None)
            info = node.get_rt_info()
            # Most nodes have no marks, and an iterator over them takes longer than all other properties together.
            marks = sorted({*info} - {_CACHE_ATTRIBUTE}) if whole and len(info) else ()
            key = (str(node.get_type_info()), repr(attributes), outputs, tuple(marks))
        signatures[index] = numbers.setdefault(key, len(numbers))
    return signatures


def constant_bytes(node: ov.Node) -> bytes:
    """Returns the value of a small Constant as bytes; b"" for weights.

    Small are constants with a few integers (an axis, a shape) or one real number (an exponent).
    """
    element = node.get_output_element_type(0)
    if element.get_type_name() == "string" or element.bitwidth < 8:
        return b""
    if node.get_byte_size() > (8 if element.is_real() else _COMPARED_BYTES):
        return b""
    return bytes(node.data.tobytes())


def _splitmix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Applies SplitMix64 to each value, uint64 of any shape; sums of its outputs do not collide in practice."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _colours(signatures: NDArray[np.uint64], edges: Edges, radius: int) -> NDArray[np.uint64]:
    """Computes the Weisfeiler-Lehman colours of nodes.

    Args:
        signatures: number of each node's own properties, uint64 [nodes].
        edges: the edges between the nodes.
        radius: number of edges up to which surroundings count.

    Returns:
        The colours, uint64 [nodes]: equal for nodes with equal signatures and equal surroundings.
    """
    colour = _splitmix(signatures)
    to_input = _splitmix((edges.port * 4096 + edges.output).astype(np.uint64))
    to_consumer = _splitmix(to_input)
    for _ in range(radius):
        mixed = _splitmix(colour)
        np.add.at(mixed, edges.node, _splitmix(colour[edges.source] ^ to_input))
        np.add.at(mixed, edges.source, _splitmix(colour[edges.node] ^ to_consumer))
        colour = _splitmix(mixed)
    return colour


def _surrounded(kept: NDArray[np.bool_], edges: Edges) -> NDArray[np.bool_]:
    """Returns the nodes of `kept` and those up to `RADIUS` edges around them, bool [nodes]."""
    shared = np.bincount(edges.source, minlength=len(kept)) > _SHARED
    downwards = ~shared[edges.source]
    for _ in range(RADIUS):
        wider = kept.copy()
        wider[edges.source[kept[edges.node]]] = True
        wider[edges.node[kept[edges.source] & downwards]] = True
        if (wider == kept).all():
            break
        kept = wider
    return kept


def _whole_states(nodes: Nodes, kept: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Returns the nodes of `kept`, and ReadValue and Assign of each state that has a node in it, bool [nodes]."""
    members: dict[str, list[int]] = {}
    for index, (node, type_name) in enumerate(zip(nodes.order, nodes.types, strict=True)):
        if type_name in ("ReadValue", "Assign"):
            members.setdefault(str(node.get_attributes().get("variable_id")), []).append(index)
    kept = kept.copy()
    for numbers in members.values():
        kept[numbers] = kept[numbers].any()
    return kept


def _with_evaluated_inputs(nodes: Nodes, kept: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Returns the nodes of `kept`, and the nodes before them that OpenVINO evaluates when it analyses a model.

    These are all nodes that compute integers, up to the place where the integers become dimensions: a Parameter in
    their place would leave shapes open. Nodes that decompress weights are kept, too.

    Args:
        nodes: the model's nodes.
        kept: the nodes to begin with, bool [nodes].

    Returns:
        The kept nodes, bool [nodes].
    """
    edges = nodes.edges
    integral = np.array([bool(outputs) and is_integral(outputs[0][1]) for outputs in nodes.outputs], bool)
    # `stored`: whether a node is a constant or is computed from constants alone.
    sources, ptr, stored = edges.source.tolist(), edges.ptr.tolist(), list[bool]()
    for node, type_name in enumerate(nodes.types):
        read = sources[ptr[node] : ptr[node + 1]]
        stored.append(all(stored[source] for source in read) if read else type_name == "Constant")
    needed = (integral | np.array(stored, bool))[edges.source]
    kept = kept.copy()
    # Sources come before their consumers, so one pass from the last node to the first reaches all.
    for source, node in zip(edges.source[needed][::-1].tolist(), edges.node[needed][::-1].tolist(), strict=True):
        if kept[node]:
            kept[source] = True
    return kept


def _cut_out(nodes: Nodes, kept: NDArray[np.bool_], kinds: int) -> Excerpt | None:
    """Copies the kept nodes and the constants that they read into a model.

    The nodes are cut out, copied and put back, because a copy of all of a large model takes over a second.

    Args:
        nodes: the model's nodes.
        kept: nodes to copy, bool [nodes].
        kinds: number of kinds of nodes, for the result.

    Returns:
        The excerpt; None where OpenVINO cannot make a model of the nodes.
    """
    numbers = np.flatnonzero(kept).tolist()
    inside = {nodes.order[number].get_instance_id() for number in numbers}
    parameter_for: dict[tuple[int, int], ov.Node] = {}
    cut: list[tuple[Any, Any]] = []  # input ports and the outputs that fed them
    ends: dict[str, list[ov.Node]] = {"Parameter": [], "Result": [], "Assign": []}
    try:
        for number in numbers:
            node, type_name = nodes.order[number], nodes.types[number]
            if type_name in ends:
                ends[type_name].append(node)
            for port in node.inputs():
                source = port.get_source_output()
                producer = source.get_node()
                if producer.get_instance_id() in inside or producer.get_type_name() == "Constant":
                    continue
                key = (producer.get_instance_id(), source.get_index())
                if key not in parameter_for:
                    parameter_for[key] = op.Parameter(source.get_element_type(), source.get_partial_shape())
                    ends["Parameter"].append(parameter_for[key])
                cut.append((port, source))
                port.replace_source_output(parameter_for[key].output(0))
            if type_name in ("Result", "Assign"):
                continue
            for output in node.outputs():
                readers = output.get_target_inputs()
                if any(reader.get_node().get_instance_id() not in inside for reader in readers):
                    ends["Result"].append(op.Result(output))
        # The copy shares the constants' memory.
        part = ov.Model(ends["Result"], ends["Assign"], ends["Parameter"], "excerpt").clone()
    except RuntimeError:
        return None  # some operation needs more of its inputs than their types and shapes
    finally:
        for port, source in cut:
            port.replace_source_output(source)
    return Excerpt(part, tuple(nodes.names[number] for number in numbers), kinds, frozenset(nodes.names))
