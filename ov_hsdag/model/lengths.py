"""Finds and splits the lengths that a model reads from the shapes of its tensors.

A length is one size of a tensor, which a Gather takes from a ShapeOf. It is known if the dimension is static, and open
if the dimension has no bounds: neither a lower bound above 0 nor an upper bound.
"""

from __future__ import annotations

from typing import Any

from ov_hsdag.model.nodes import Nodes
from ov_hsdag.utils.lazy import op, opset13, ov


def upper_bound(dimension: Any) -> int | None:
    """Returns the largest length that an `ov.Dimension` allows; None where it has no upper bound."""
    if dimension.is_static:
        return int(dimension.get_length())
    # OpenVINO reports an open end as a negative or a huge number, depending on the release.
    upper = int(dimension.get_max_length())
    return upper if 0 < upper < 2**31 - 1 else None


def relaxed(shape: ov.PartialShape) -> ov.PartialShape:
    """Opens the dynamic dimensions of a shape that cannot be 0: [?,16,1..,1..8] becomes [?,16,?,?]."""
    if shape.rank.is_dynamic:
        return shape
    return ov.PartialShape([ov.Dimension() if one.is_dynamic and one.get_min_length() > 0 else one for one in shape])


def takes_open_lengths(node: ov.Node) -> bool:
    """Whether a node is a Gather that takes only dimensions without bounds from a tensor's shape.

    A submodel knows as much about such numbers when they are its inputs as when it computes them, so they can cross to
    another submodel in place of the tensor. transformations/src/model_graph.cpp has the same rule.
    """
    lengths = _gathered_lengths(node)
    return bool(lengths) and all(_is_open(dimension) for _, dimension in lengths)


def part_lengths(nodes: Nodes) -> bool:
    """Splits each Gather of both known and open lengths into a Concat of constants and Gathers.

    Known lengths then need no tensor, and open ones can cross to another submodel as numbers.

    Args:
        nodes: nodes of a model, which is changed in place.

    Returns:
        Whether the model was changed.
    """
    changed = False
    for node in nodes.of_type("Gather"):
        lengths = _gathered_lengths(node)
        if not lengths or len(node.get_output_partial_shape(0)) != 1:
            continue
        if not any(_is_open(one) for _, one in lengths) or not any(one.is_static for _, one in lengths):
            continue
        element, shape, one_element = node.get_output_element_type(0), node.input_value(0), ov.Shape([1])
        name = node.get_friendly_name()
        axis = op.Constant(ov.Type.i64, ov.Shape([]), [0])
        axis.set_friendly_name(f"{name}/axis")
        parts = []
        for number, (index, dimension) in enumerate(lengths):
            if dimension.is_static:
                part = op.Constant(element, one_element, [dimension.get_length()])
            else:
                position = op.Constant(ov.Type.i64, one_element, [index])
                position.set_friendly_name(f"{name}/{number}/index")
                part = opset13.gather(shape, position, axis)
            part.set_friendly_name(f"{name}/{number}")
            parts.append(part)
        joined = opset13.concat(parts, 0)
        joined.set_friendly_name(name)
        for target in node.output(0).get_target_inputs():
            target.replace_source_output(joined.output(0))
        changed = True
    return changed


def _gathered_lengths(node: ov.Node) -> list[tuple[int, Any]]:
    """Lists the lengths that a Gather takes from a ShapeOf.

    Returns:
        (axis of the tensor, its dimension) for each length; [] for other nodes, or where axes or rank are not known.
    """
    if node.get_type_name() != "Gather" or node.input_value(0).get_node().get_type_name() != "ShapeOf":
        return []
    indices = node.input_value(1).get_node()
    shape = node.input_value(0).get_node().get_input_partial_shape(0)
    if indices.get_type_name() != "Constant" or shape.rank.is_dynamic:
        return []
    return [(int(index), shape[int(index)]) for index in indices.get_data().reshape(-1)]


def _is_open(dimension: Any) -> bool:
    """Whether an `ov.Dimension` may be 0 and has no upper bound."""
    return bool(dimension.is_dynamic and dimension.get_min_length() == 0 and upper_bound(dimension) is None)
