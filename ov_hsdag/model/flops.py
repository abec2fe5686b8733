"""Counts the arithmetic operations (flops) of a node from its shapes, and reads the bodies of If and loops.

A multiply-add counts as two operations. Some counts are estimates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import ov

Shape = tuple[int, ...]  # sizes of a tensor's dimensions
Shapes = Sequence[Shape]  # shapes of a node's inputs or outputs, in order

# Operations that only rename, view or copy data.
_FREE = frozenset({
    "Reshape", "Squeeze", "Unsqueeze", "ShapeOf", "Transpose", "Concat", "Split", "VariadicSplit", "Slice",
    "StridedSlice", "Gather", "GatherElements", "GatherND", "Broadcast", "Tile", "Pad", "ReadValue", "Assign",
    "ScatterUpdate", "ScatterNDUpdate", "ScatterElementsUpdate", "DepthToSpace", "SpaceToDepth", "ShuffleChannels",
    "ReverseSequence", "Reverse", "Roll", "Identity", "BatchToSpace", "SpaceToBatch",
})  # fmt: skip

# Arithmetic operations per element of the output, where there are more than one: polynomial approximations,
# exponentials and divisions. These are estimates.
_PER_OUTPUT = {
    "Exp": 8, "Log": 8, "Erf": 12, "Gelu": 14, "Tanh": 10, "Sigmoid": 10, "Swish": 11, "HSwish": 4, "Mish": 16,
    "SoftPlus": 12, "Elu": 9, "Selu": 9, "Power": 10, "Sqrt": 4, "Divide": 4, "Softmax": 12, "LogSoftmax": 14,
    "Sin": 10, "Cos": 10, "FakeQuantize": 6, "MVN": 8, "NormalizeL2": 5, "GroupNormalization": 8, "RMS": 5, "LRN": 12,
    "Interpolate": 8, "GridSample": 12,
}  # fmt: skip


def node_flops(node: ov.Node, inputs: Shapes, outputs: Shapes) -> float:
    """Counts the arithmetic operations of a node in one inference.

    Args:
        node: the node; its type and, for If and loops, its bodies are read.
        inputs: shape of each input; dynamic dimensions have their example sizes.
        outputs: shape of each output.

    Returns:
        The number of operations; a multiply-add counts as two.

    Raises:
        UserError: the node has more operations than any machine can compute (`_MOST_FLOPS`).
    """
    try:
        flops = float(_flops(node, inputs, outputs))
    except (IndexError, ValueError):  # a rank that the model leaves open
        flops = float(sum(map(math.prod, outputs)))
    except OverflowError:
        flops = math.inf
    if not flops <= _MOST_FLOPS:
        raise UserError(f"'{node.get_friendly_name()}' has no end on any machine; give other example shapes")
    return flops


_MOST_FLOPS = 1e30  # operations; times that are computed from so many are still finite


def _flops(node: ov.Node, inputs: Shapes, outputs: Shapes) -> float:
    """Counts operations by the rule for the node's type, as `node_flops` does, but without its checks."""
    type_name = node.get_type_name()
    if type_name in _FREE:
        return 0.0
    rule = _RULES.get(type_name)
    if rule is not None:
        return rule(inputs, outputs)
    if type_name in SUBGRAPHS:
        return _subgraph(node)
    if type_name.startswith("Reduce") or type_name in _OVER_INPUT:
        return float(math.prod(inputs[0])) if inputs else 0.0
    return float(_PER_OUTPUT.get(type_name, 1) * sum(math.prod(shape) for shape in outputs))


def _convolution(leading: int, *, backward: bool = False) -> Callable[[Shapes, Shapes], float]:
    """Makes the rule (see `_RULES`) of a convolution: two operations for each output element and weight of its sum.

    Weights are [out, in, *kernel], grouped ones [groups, out / groups, in / groups, *kernel].

    Args:
        leading: number of leading axes of the weights that the sum of one element does not run over.
        backward: whether the convolution is transposed. Weights are then [in, out, *kernel], and every input element
            meets all weights of its channel.
    """

    def rule(inputs: Shapes, outputs: Shapes) -> float:
        return 2.0 * math.prod(inputs[0] if backward else outputs[0]) * math.prod(inputs[1][leading:])

    return rule


def _matmul(inputs: Shapes, outputs: Shapes) -> float:
    """Counts the operations of a product of matrices: two for each output element and each k of its inner size."""
    # A vector has the inner size alone, and the output has one axis less.
    for shape in inputs[:2]:
        if len(shape) == 1:
            return 2.0 * math.prod(outputs[0]) * shape[0]

    # The inner size k follows from the numbers of elements, whichever sides are transposed: mk · kn / mn = k².
    def matrix(shape: Shape) -> int:
        return math.prod(shape[-2:]) if shape else 1

    result = matrix(outputs[0])
    inner = math.sqrt(matrix(inputs[0]) * matrix(inputs[1]) / result) if result else 0.0
    return 2.0 * math.prod(outputs[0]) * inner


def _attention(inputs: Shapes, outputs: Shapes) -> float:
    """Counts the operations of attention: Q·Kᵀ, softmax, and the product with V; Q is [..., l, e], K [..., s, e]."""
    query, key = inputs[0], inputs[1]
    scores = math.prod(query[:-1]) * key[-2]
    return 2.0 * scores * (query[-1] + outputs[0][-1]) + 12.0 * scores


def _pool(inputs: Shapes, outputs: Shapes) -> float:
    """Estimates the operations of a pooling without its kernel, which is an attribute and not a shape."""
    # Most windows tile the input or overlap twice.
    return 2.0 * math.prod(inputs[0]) + math.prod(outputs[0])


def _recurrent(gates: int) -> Callable[[Shapes, Shapes], float]:
    """Makes the rule (see `_RULES`) of a recurrent layer or cell with this number of gates."""

    # Sequences: X [batch, time, input], Y [batch, directions, time, hidden]. Cells have neither time nor directions.
    def rule(inputs: Shapes, outputs: Shapes) -> float:
        *rows, size = inputs[0]
        hidden, directions = outputs[0][-1], outputs[0][1] if len(rows) == 2 else 1
        return 2.0 * directions * math.prod(rows) * gates * hidden * (size + hidden + 2)

    return rule


# Rules by type: functions that count the operations of a node from the shapes of its inputs and outputs.
_RULES: dict[str, Callable[[Shapes, Shapes], float]] = {
    "Convolution": _convolution(1),
    "BinaryConvolution": _convolution(1),
    "DeformableConvolution": lambda inputs, outputs: _convolution(1)([inputs[0], inputs[2]], outputs),
    "GroupConvolution": _convolution(2),
    "ConvolutionBackpropData": _convolution(1, backward=True),
    "GroupConvolutionBackpropData": _convolution(2, backward=True),
    "MatMul": _matmul,
    "ScaledDotProductAttention": _attention,
    "MaxPool": _pool,
    "AvgPool": _pool,
    "LSTMSequence": _recurrent(4),
    "GRUSequence": _recurrent(3),
    "RNNSequence": _recurrent(1),
    "LSTMCell": _recurrent(4),
    "GRUCell": _recurrent(3),
    "RNNCell": _recurrent(1),
}

# Operations whose work grows with their input and not with their output.
_OVER_INPUT = frozenset(
    {"TopK", "NonMaxSuppression", "CumSum", "AdaptiveAvgPool", "AdaptiveMaxPool", "NonZero", "Unique"}
)

# Types of operations with bodies.
SUBGRAPHS = frozenset({"If", "Loop", "TensorIterator"})

# Iterations that are assumed for a loop whose trip count is not known before it runs.
_UNKNOWN_TRIPS = 16


def _subgraph(node: ov.Node) -> float:
    """Counts the operations of an If (its dearer branch) or of a loop (all iterations).

    A node without known bodies counts with one operation for each output element.
    """
    costs = [_body_flops(body) for body in bodies_of(node)]
    if not costs:
        return float(sum(math.prod(_example_shape(output)) for output in node.outputs()))
    if node.get_type_name() == "If":
        return max(costs)
    trips = int(node.get_num_iterations()) if hasattr(node, "get_num_iterations") else -1
    return costs[0] * (trips if trips > 0 else _UNKNOWN_TRIPS)


def bodies_of(node: ov.Node) -> list[ov.Model]:
    """Returns the bodies of an If (then, else) or of a loop (one); an empty list for other nodes.

    Bodies that OpenVINO's Python API does not hand out are missing.
    """
    bodies: list[ov.Model] = []
    if node.get_type_name() not in SUBGRAPHS:
        return bodies
    for index in range(2 if node.get_type_name() == "If" else 1):
        try:
            bodies.append(node.get_function(index) if node.get_type_name() == "If" else node.get_function())
        except (AttributeError, RuntimeError, TypeError):
            break
    return bodies


def body_weight_bytes(node: ov.Node) -> int:
    """Counts the bytes of constants in the bodies of an If or a loop, including nested bodies; 0 for other nodes."""
    total = 0
    for inner in (one for body in bodies_of(node) for one in body.get_ops()):
        if inner.get_type_name() == "Constant":
            total += int(inner.get_byte_size())
        elif inner.get_type_name() in SUBGRAPHS:
            total += body_weight_bytes(inner)
    return total


def _body_flops(body: ov.Model) -> float:
    """Counts the operations of one run of a body."""
    return sum(
        node_flops(
            node,
            [_example_shape(value) for value in node.input_values()],
            [_example_shape(port) for port in node.outputs()],
        )
        for node in body.get_ordered_ops()
        if node.get_type_name() not in {"Parameter", "Constant", "Result"}
    )


def _example_shape(port: ov.Output) -> Shape:
    """Shape to count with inside of a body: dynamic dimensions have their lower bound, at least 1; (1,) for no rank."""
    shape = port.get_partial_shape()
    if shape.rank.is_dynamic:
        return (1,)
    return tuple(int(d.get_length()) if d.is_static else max(1, int(d.get_min_length())) for d in shape)
