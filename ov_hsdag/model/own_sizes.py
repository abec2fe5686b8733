"""Finds sizes of dynamic inputs from the model itself: from weights, added tables and windows of poolings."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from ov_hsdag.utils.lazy import ov

CONVOLUTIONS = {
    "Convolution": 1,
    "GroupConvolution": None,
    "ConvolutionBackpropData": 0,
    "GroupConvolutionBackpropData": None,
}
"""Axis of the weights that has the input's channels, by type; None where groups multiply the channels."""

_POOLINGS = frozenset({"AvgPool", "MaxPool"})
"""Types whose windows may be as large as their input."""

# Operations that keep a tensor's sizes if their other input is a constant that is no larger.
_SAME_SIZES = frozenset({"Convert", "Add", "Subtract", "Multiply", "Divide", "FakeQuantize", "Relu", "Clamp"})

_DEEPEST = 12
"""Operations between an input and the weights that are looked for; more say less about the input."""

_MOST_SUGGESTED = 8
"""Sizes that are tried one after the other; each costs an inference of all shapes."""

_FIRST_OPERATIONS = 2000
"""Operations that are looked at. Those that read inputs are among the first, and language models have many more."""

_LEAST_SUGGESTED = 4
"""Smallest size. Smaller constants are broadcast, or are sizes of kernels."""

_LARGEST_SUGGESTED = 2**20
"""Largest size, in elements of one dimension: a minute of audio at 16 kHz has fewer."""


def fixed_by_weights(port: ov.Output) -> dict[int, int]:
    """Finds the sizes of an input's dimensions that are fixed by the first weights which read the input.

    A convolution fixes the channels, a product with a constant matrix the last dimension.

    Args:
        port: the output of a Parameter.

    Returns:
        Size by axis; axes whose size is not fixed are left out.
    """
    sizes: dict[int, int] = {}
    waiting = [(port, 0)]
    while waiting:
        output, depth = waiting.pop()
        rank = output.get_partial_shape().rank
        if depth > _DEEPEST or rank.is_dynamic:
            continue
        for reader in output.get_target_inputs():
            node, input_port = reader.get_node(), reader.get_index()
            type_name = node.get_type_name()
            if input_port == 0 and CONVOLUTIONS.get(type_name) is not None:
                sizes |= _channels(node, CONVOLUTIONS[type_name] or 0)
            elif input_port == 0 and type_name == "MatMul":
                sizes |= _features(node, rank.get_length())
            elif type_name in _SAME_SIZES and node.get_output_partial_shape(0).rank == rank:
                waiting.append((node.output(0), depth + 1))
    return sizes


def _channels(node: ov.Node, axis: int) -> dict[int, int]:
    """Finds the channels of a convolution's input, which `axis` of the weights has: {1: size}, or {} if not known."""
    weights = node.get_input_partial_shape(1)
    return {1: int(weights[axis].get_length())} if weights.rank.is_static and weights[axis].is_static else {}


def _features(node: ov.Node, rank: int) -> dict[int, int]:
    """Finds the last size of a MatMul's first input, which a constant matrix as the second input determines.

    Args:
        node: the MatMul.
        rank: rank of the first input.

    Returns:
        {rank - 1: size}; {} if the second input is not a constant matrix, or the first one is transposed.
    """
    weights, attributes = node.get_input_partial_shape(1), node.get_attributes()
    if not _is_constant(node.input_value(1)) or weights.rank != 2 or attributes["transpose_a"] or rank < 2:
        return {}
    return {rank - 1: int(weights[1 if attributes["transpose_b"] else 0].get_length())}


def _is_constant(output: ov.Output) -> bool:
    """Whether a tensor is a constant, possibly a decompressed one."""
    node = output.get_node()
    while node.get_type_name() in ("Convert", "Multiply", "Subtract", "Reshape", "Transpose"):
        node = node.input_value(0).get_node()
    return bool(node.get_type_name() == "Constant")


def suggested_sizes(model: ov.Model) -> list[int]:
    """Finds sizes that open dimensions may need to have.

    The size of an added table and the window of a pooling suggest the length or height of an input, multiplied by the
    strides before them: 1500 positions after a stride of 2 suggest 3000.

    Returns:
        Sizes in elements, those from operations near the inputs first; [] where nothing suggests one.
    """
    strides: dict[str, int] = {}  # product of the strides up to and including a node, by its friendly name
    suggested: dict[int, None] = {}
    for node in islice(model.get_ordered_ops(), _FIRST_OPERATIONS):
        stride_before = max(
            (strides.get(value.get_node().get_friendly_name(), 1) for value in node.input_values()), default=1
        )
        for size in _suggested_by(node):
            if _LEAST_SUGGESTED <= size * stride_before <= _LARGEST_SUGGESTED:
                suggested[size * stride_before] = None
        strides[node.get_friendly_name()] = stride_before * _stride(node)
        if len(suggested) >= _MOST_SUGGESTED:
            break
    return list(suggested)[:_MOST_SUGGESTED]


def _stride(node: ov.Node) -> int:
    """Largest stride of a convolution or a pooling over all axes; 1 for other nodes."""
    if node.get_type_name() in CONVOLUTIONS or node.get_type_name() in _POOLINGS:
        return max([1, *(int(one) for one in node.get_attributes().get("strides", ()))])
    return 1


def _suggested_by(node: ov.Node) -> Iterator[int]:
    """Yields sizes that a node suggests for its input: sides of a pooling's window, or the positions of an added table.

    The positions are the last axis but one of a constant that is added to a tensor of open sizes.
    """
    if node.get_type_name() in _POOLINGS:
        yield from {int(one) for one in node.get_attributes()["kernel"]}
    elif node.get_type_name() == "Add" and node.get_output_partial_shape(0).is_dynamic:
        for value in node.input_values():
            shape = value.get_partial_shape()
            if _is_constant(value) and shape.is_static and len(shape) >= 2:
                yield from (int(size) for size in list(shape.to_shape())[-2:-1])
