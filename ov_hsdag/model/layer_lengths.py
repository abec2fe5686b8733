"""Makes a decoder with experts read sizes from tensors of the layer that needs them.

A block of experts begins with a Tile, which copies the tokens for each expert, and ends with a ReduceSum, which adds
the experts' results weighted by a router (see `ov_hsdag.model.experts`).

Where the experts of a layer are on another device than its attention, HETERO splits the first device's part at each
layer. It puts nodes that depend on no layer into the first submodel. There are two kinds of such nodes:

- States whose first value has the batch size of the tokens. They end up in another submodel than their attention.
- Shapes that are read from a tensor of the first layer.

Both get the sizes from tensors of the layer that uses them, which are equal. Repeated heads get sizes from constants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ov_hsdag.model.nodes import Nodes, variable_of
from ov_hsdag.utils.lazy import opset13 as ops
from ov_hsdag.utils.lazy import ov


def read_lengths_in_layers(nodes: Nodes) -> bool:
    """Makes states, and shapes of experts, depend on tensors of their layers.

    Args:
        nodes: nodes of a model, which is changed in place where it has blocks of experts.

    Returns:
        Whether anything was changed.
    """
    blocks = [(tile, total) for tile in nodes.of_type("Tile") if (total := _sum_of_experts(tile)) is not None]
    if not blocks:
        return False
    number = {node.get_instance_id(): index for index, node in enumerate(nodes.order)}
    reads = {variable_of(node): node for node in nodes.of_type("ReadValue")}
    changed = False
    for assign in nodes.of_type("Assign"):
        read, joined = reads.get(variable_of(assign)), assign.input_value(0).get_node()
        if read is not None and joined.get_type_name() == "Concat":
            changed |= _read_batch_size_in_layer(nodes, number, read, joined)
    for kind, by_constants in (("Broadcast", _repeat_by_constants), ("Reshape", _reshape_by_constants)):
        for node in nodes.of_type(kind):
            if node.input_value(1).get_node().get_type_name() != "Constant":
                changed |= by_constants(node)
    for tile, total in blocks:
        changed |= _reshape_sum_of_experts(tile, total)
    return changed


def _read_batch_size_in_layer(nodes: Nodes, number: dict[int, int], read: ov.Node, joined: ov.Node) -> bool:
    """Makes the first value of a state read its batch size from the tensor that is appended to the state.

    The first value must be a Broadcast to sizes of which the first is read from another tensor's shape.

    Args:
        nodes: the model's nodes; the model is changed in place.
        number: number of each node among `nodes`, by instance id.
        read: the ReadValue of the state.
        joined: the Concat of the state and the appended tensor, which the Assign stores.

    Returns:
        Whether anything was changed.
    """
    first_value = read.input_value(0).get_node() if read.get_input_size() else None
    if first_value is None or first_value.get_type_name() != "Broadcast" or joined.get_input_size() != 2:
        return False
    sizes, appended = first_value.input_value(1).get_node(), joined.input_value(1)
    batch = sizes.input_value(0).get_node() if sizes.get_type_name() == "Concat" else None
    if batch is None or batch.get_type_name() != "Gather" or _depends(nodes, number, appended.get_node(), read):
        return False
    shape = batch.input_value(0).get_node()
    # OpenVINO's transformations know which sizes are equal, and read those of another layer again.
    if shape.get_type_name() != "ShapeOf" or _is_same_node(shape.input_value(0).get_node(), appended.get_node()):
        return False
    index = batch.input_value(1).get_node()
    if index.get_type_name() != "Constant" or index.get_data().reshape(-1).tolist() != [0]:
        return False
    batch_size = ops.gather(
        ops.shape_of(appended, sizes.get_output_element_type(0).get_type_name()), index, batch.input_value(2)
    )
    rest = [sizes.input_value(port) for port in range(1, sizes.get_input_size())]
    joined_sizes = ops.concat([batch_size, *rest], 0)
    value = ops.broadcast(first_value.input_value(0), joined_sizes)
    for node, part in (
        (batch_size.input_value(0).get_node(), "shape"),
        (batch_size, "batch"),
        (joined_sizes, "sizes"),
        (value, ""),
    ):
        node.set_friendly_name(f"{read.get_friendly_name()}/first/{part}".rstrip("/"))
    read.input(0).replace_source_output(value.output(0))
    return True


def _repeat_by_constants(repeated: ov.Node) -> bool:
    """Replaces a Broadcast that repeats heads by one with constant repeats, which reads no other tensor's shape.

    Returns:
        Whether it was replaced.
    """
    shapes = repeated.get_input_partial_shape(0), repeated.get_output_partial_shape(0)
    if any(shape.rank.is_dynamic for shape in shapes) or len(shapes[0]) != len(shapes[1]):
        return False
    # In other places an open length may be 1 before the Broadcast and more after it.
    if repeated.input_value(0).get_node().get_type_name() != "Unsqueeze":
        return False
    pairs = list(zip(*map(list, shapes), strict=True))
    if any(before.is_static != after.is_static for before, after in pairs):
        return False
    times = [1 if after.is_dynamic or before == after else int(after.get_length()) for before, after in pairs]
    if max(times) == 1:
        return False
    wide = ops.broadcast(repeated.input_value(0), np.array(times, np.int64), broadcast_spec="BIDIRECTIONAL")
    return _replace(repeated, wide)


def _reshape_by_constants(reshape: ov.Node) -> bool:
    """Replaces a Reshape by one with constant sizes, where these and the input determine its result.

    A size is a number, 0 for the size of the input at that place, or -1 for the size that remains.

    Returns:
        Whether it was replaced.
    """
    shapes = reshape.get_input_partial_shape(0), reshape.get_output_partial_shape(0)
    if any(shape.rank.is_dynamic for shape in shapes):
        return False
    before, after = map(list, shapes)
    pattern = _elements(reshape.input_value(1).get_node())
    if len(pattern) != len(after):
        return False
    sizes = []
    for place, (size, pattern_size) in enumerate(zip(after, pattern, strict=True)):
        same = place < len(before) and before[place].is_dynamic
        known = pattern_size if size.is_dynamic else int(size.get_length())
        sizes.append(known if known is not None else 0 if same else -1)
    # Where open dimensions are split or joined, their sizes do not follow from the tensor.
    if (
        sizes.count(-1) > 1
        or _open_and_known_sizes(before) != _open_and_known_sizes(after)
        or any(size == 0 for size in pattern)
    ):
        return False
    return _replace(reshape, ops.reshape(reshape.input_value(0), np.array(sizes, np.int64), True))


def _open_and_known_sizes(sizes: Sequence[Any]) -> tuple[int, int]:
    """Returns the number of open dimensions of a shape, and the product of the known ones."""
    known = [int(one.get_length()) for one in sizes if one.is_static]
    return len(sizes) - len(known), math.prod(known)


def _elements(pattern: ov.Node) -> list[int | None]:
    """Finds the elements of a vector that is joined from constants and sizes of tensors.

    Args:
        pattern: the node that computes the vector, such as the sizes that a Reshape reads.

    Returns:
        The elements, None where one is the size of a tensor; [] for any other vector.
    """
    if pattern.get_type_name() == "Constant":
        return [int(element) for element in pattern.get_data().reshape(-1)]
    if pattern.get_type_name() == "Concat":
        parts = [_elements(value.get_node()) for value in pattern.input_values()]
        return [element for part in parts for element in part] if all(parts) else []
    shape = pattern.get_output_partial_shape(0)
    taken = pattern.input_value(0).get_node() if pattern.get_type_name() == "Gather" else pattern
    measured = taken.get_type_name() == "ShapeOf" and len(shape) == 1 and shape.is_static
    return [None] * int(shape[0].get_length()) if measured else []


def _replace(node: ov.Node, by: ov.Node) -> bool:
    """Replaces `node` by `by`, which gets its name; also names the constant sizes that `by` reads. Returns True."""
    by.input_value(1).get_node().set_friendly_name(f"{node.get_friendly_name()}/sizes")
    _take_place_of(by, node)
    return True


def _take_place_of(by: ov.Node, node: ov.Node) -> None:
    """Replaces `node` by `by`, which gets its friendly name."""
    by.set_friendly_name(node.get_friendly_name())
    node.output(0).replace(by.output(0))


def _is_same_node(node: ov.Node, other: ov.Node) -> bool:
    """Whether two Python objects stand for one node."""
    return bool(node.get_instance_id() == other.get_instance_id())


def _readers(node: ov.Node) -> list[ov.Node]:
    """Returns the nodes that read any output of a node, one for each input that it feeds."""
    return [target.get_node() for output in node.outputs() for target in output.get_target_inputs()]


def _reshape_sum_of_experts(tile: ov.Node, total: ov.Node) -> bool:
    """Reshapes the sum of the experts to the shape of the tensor that their tokens were reshaped from.

    The shape of an earlier tensor, which the model used instead, would have to cross from another layer.

    Shared experts, which all tokens pass through, do not depend on the chosen ones. So their result is added first to
    the tensor that the layer's result is added to: then one tensor passes by the experts' device, not two.

    Args:
        tile: the Tile at the beginning of a block of experts.
        total: the ReduceSum at its end.

    Returns:
        Whether anything was changed.
    """
    tokens = tile.input_value(0).get_node()
    if tokens.get_type_name() != "Reshape" or len(_readers(total)) != 1:
        return False
    entered, end = tokens.input_value(0), _readers(total)[0]
    changed = False

    def reshaped(value: ov.Output, name: str) -> ov.Node:
        """Makes a Reshape of `value` to the shape of `entered`."""
        size = ops.shape_of(entered)
        size.set_friendly_name(f"{name}/shape")
        result = ops.reshape(value, size, False)
        result.set_friendly_name(name)
        return result

    shared = _other_addend(end, total)
    if shared is not None and [one.get_type_name() for one in _readers(end)] == ["Reshape"]:
        end, total_shape = _readers(end)[0], total.get_output_partial_shape(0)
        if end.get_output_partial_shape(0) != entered.get_partial_shape() or shared.get_partial_shape() != total_shape:
            return False
        name = end.get_friendly_name()
        both = ops.add(reshaped(total.output(0), f"{name}/experts"), reshaped(shared, f"{name}/shared"))
        _take_place_of(both, end)
        end, changed = both.input_value(0).get_node(), True
    elif end.get_type_name() == "Reshape" and end.get_output_partial_shape(0) == entered.get_partial_shape():
        shape = end.input_value(1).get_node()
        if shape.get_type_name() != "ShapeOf" or not _is_same_node(shape.input_value(0).get_node(), entered.get_node()):
            by = reshaped(total.output(0), end.get_friendly_name())
            _take_place_of(by, end)
            end, changed = by, True
    else:
        return False
    following = _readers(end)
    first_sum = following[0] if len(following) == 1 else end
    shared, last_sum = _other_addend(first_sum, end), _readers(first_sum)[0] if len(_readers(first_sum)) == 1 else None
    before = None if shared is None or last_sum is None else _other_addend(last_sum, first_sum)
    if shared is None or last_sum is None or before is None:
        return changed
    early_sum = ops.add(before, shared)
    early_sum.set_friendly_name(first_sum.get_friendly_name())
    _take_place_of(ops.add(early_sum, end), last_sum)
    return True


def _other_addend(node: ov.Node, to: ov.Node) -> ov.Output | None:
    """Returns the tensor that the Add `node` adds to the output of `to`; None where `node` is no such Add."""
    others = [value for value in node.input_values() if not _is_same_node(value.get_node(), to)]
    return others[0] if node.get_type_name() == "Add" and len(others) == 1 else None


def _sum_of_experts(tile: ov.Node) -> ov.Node | None:
    """Finds the ReduceSum at the end of the block of experts that begins with a Tile; None for other Tiles.

    The native core recognises the same blocks in the graph (cpp_ext/experts), and checks all that plugins require of
    them. Both exist because the model is changed here before its graph is made.
    """
    node = tile
    for _ in range(_LONGEST):
        readers = [ancestor for ancestor in _readers(node) if ancestor.get_type_name() != "ShapeOf"]
        if not readers:
            return None
        node, before = readers[0], node
        if node.get_type_name() != "ReduceSum":
            continue
        weights = [value.get_node() for value in before.input_values()] if before.get_type_name() == "Multiply" else []
        for ancestor in weights:
            while ancestor.get_type_name() in ("Unsqueeze", "Reshape", "Transpose", "Convert"):
                ancestor = ancestor.input_value(0).get_node()
            if ancestor.get_type_name() == "ScatterElementsUpdate":
                return node
        return None
    return None


# Operations that are followed from the tile of a block of experts to its sum; known blocks have fewer.
_LONGEST = 24


def _depends(nodes: Nodes, number: dict[int, int], node: ov.Node, on: ov.Node) -> bool:
    """Whether `node` is computed from `on`.

    Args:
        nodes: the model's nodes.
        number: number of each node among `nodes`, by instance id.
        node: the node whose inputs are followed.
        on: the node that is looked for.
    """
    target, waiting = number[on.get_instance_id()], [number[node.get_instance_id()]]
    seen = set(waiting)
    while waiting:
        index = waiting.pop()
        if index == target:
            return True
        for source in nodes.edges.source[nodes.edges.ptr[index] : nodes.edges.ptr[index + 1]].tolist():
            if source >= target and source not in seen:
                seen.add(source)
                waiting.append(source)
    return False
