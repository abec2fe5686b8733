"""ONNX models written node by node, with operations that the converter for torch does not produce."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import onnx

_OPSET = 18  # of ONNX; it has all operations of these models
# A version of the format that all releases of onnx in the last years read and write.
_IR_VERSION = 9


class _Graph:
    """An ONNX graph under construction; weights are drawn from a seed, and names begin with `prefix`."""

    def __init__(self, seed: int, prefix: str = "") -> None:
        self.prefix = prefix
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def add(self, type_name: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Adds a node; returns the name of its output, or a tuple of names if it has several."""
        from onnx import helper

        names = [f"{self.prefix}{type_name.lower()}_{len(self.nodes)}_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(type_name, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else tuple(names)

    def constant(self, values: NDArray[Any]) -> str:
        from onnx import numpy_helper

        name = f"{self.prefix}constant_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def weight(self, *shape: int) -> str:
        """Adds random weights at a scale that keeps outputs near 1; the first dimension is output channels."""
        deviation = np.sqrt(2 / np.prod(shape[1:]))
        return self.constant((self.random.standard_normal(shape) * deviation).astype(np.float32))

    def convolution(self, x: str, channels_in: int, channels: int, stride: int = 1) -> str:
        added = self.add(
            "Conv",
            x,
            self.weight(channels, channels_in, 3, 3),
            self.constant(self.random.normal(0, 0.1, channels).astype(np.float32)),
            pads=[1, 1, 1, 1],
            strides=[stride, stride],
        )
        return str(self.add("Relu", added))

    def model(
        self, inputs: dict[str, list[int]], outputs: dict[str, tuple[str, int]], booleans: tuple[str, ...] = ()
    ) -> onnx.ModelProto:
        """Finishes the model; all tensors are float32, except the inputs named in `booleans`.

        inputs: shape by name; outputs: name of the tensor in the graph, and rank, by name of the output.
        """
        from onnx import TensorProto, helper

        nodes = [
            *self.nodes,
            *(helper.make_node("Identity", [inside], [name]) for name, (inside, _) in outputs.items()),
        ]
        graph = helper.make_graph(
            nodes,
            "graph",
            [
                helper.make_tensor_value_info(name, TensorProto.BOOL if name in booleans else TensorProto.FLOAT, shape)
                for name, shape in inputs.items()
            ],
            [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * rank)
                for name, (_, rank) in outputs.items()
            ],
            self.weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)


def nms_detector(seed: int) -> onnx.ModelProto:
    """image [1, 3, 64, 64] → boxes [n, 4] and scores [n] of at most 10 of each class, by NonMaxSuppression."""
    graph = _Graph(seed)
    x = graph.convolution("image", 3, 16, stride=2)
    x = graph.convolution(x, 16, 24, stride=2)
    x = graph.convolution(x, 24, 32, stride=2)
    cells, classes = 64, 3
    flat = graph.constant(np.array([1, -1, cells], np.int64))

    # Each of the 8 × 8 cells has a box, given by its centre and size.
    offsets = graph.add("Conv", x, graph.weight(4, 32, 1, 1))
    offsets = graph.add("Transpose", graph.add("Reshape", offsets, flat), perm=[0, 2, 1])
    moved, grown = graph.add("Split", offsets, graph.constant(np.array([2, 2])), outputs=2, axis=2)
    grid = np.stack(np.meshgrid(np.arange(8), np.arange(8)), -1).reshape(1, cells, 2).astype(np.float32)
    centres = graph.add("Add", graph.constant(8 * grid + 4), moved)
    halves = graph.add("Mul", graph.add("Sigmoid", grown), graph.constant(np.array(12, np.float32)))
    corners = graph.add("Sub", centres, halves), graph.add("Add", centres, halves)
    boxes = graph.add("Concat", *corners, axis=2)

    logits = graph.add("Reshape", graph.add("Conv", x, graph.weight(classes, 32, 1, 1)), flat)
    scores = graph.add("Sigmoid", logits)
    limits = [np.array([10]), np.array([0.6], np.float32), np.array([0.05], np.float32)]
    chosen = graph.add("NonMaxSuppression", boxes, scores, *map(graph.constant, limits))
    in_boxes = graph.add("Gather", chosen, graph.constant(np.array([0, 2])), axis=1)
    found = graph.add("GatherND", boxes, in_boxes)
    worth = graph.add("GatherND", scores, chosen)
    return graph.model({"image": [1, 3, 64, 64]}, {"boxes": (found, 2), "scores": (worth, 1)})


def scan(seed: int) -> onnx.ModelProto:
    """sequence [10, 1, 16] → a recurrent network's last state and all its outputs, as a Scan with a body."""
    from onnx import TensorProto, helper

    size = 24
    body = _Graph(seed, "body_")
    sums = (
        body.add("MatMul", "x", body.weight(16, size)),
        body.add("MatMul", "state", body.constant(np.eye(size, dtype=np.float32) * 0.5)),
    )
    following = body.add("Tanh", body.add("Add", *sums))
    put_out = body.add("Sigmoid", body.add("MatMul", following, body.weight(size, 8)))
    inner = helper.make_graph(
        body.nodes,
        "body",
        [
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [1, size]),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16]),
        ],
        [
            helper.make_tensor_value_info(following, TensorProto.FLOAT, [1, size]),
            helper.make_tensor_value_info(put_out, TensorProto.FLOAT, [1, 8]),
        ],
        body.weights,
    )
    graph = _Graph(seed + 1)
    entered = graph.add("MatMul", "sequence", graph.weight(16, 16))
    start = graph.constant(np.zeros((1, size), np.float32))
    last, steps = graph.add("Scan", start, entered, outputs=2, body=inner, num_scan_inputs=1)
    head = graph.add("MatMul", steps, graph.weight(8, 12))
    return graph.model({"sequence": [10, 1, 16]}, {"last": (last, 2), "steps": (graph.add("Relu", head), 3)})


def splitting(seed: int) -> onnx.ModelProto:
    """image [1, 16, 16, 16] → parts of a Split and of a TopK that go different ways, one of them out as it is."""
    graph = _Graph(seed)
    x = graph.convolution("image", 16, 32)
    sizes = graph.constant(np.array([4, 8, 12, 8]))
    first, second, third, last = graph.add("Split", x, sizes, outputs=4, axis=1)
    second = graph.convolution(second, 8, 12)
    joined = graph.add("Concat", graph.add("Add", second, third), graph.convolution(last, 8, 4), axis=1)
    pooled = graph.add("Flatten", graph.add("GlobalAveragePool", joined))
    values, places = graph.add("TopK", pooled, graph.constant(np.array([5])), outputs=2, axis=1)
    chosen = graph.add("GatherElements", graph.add("Mul", pooled, pooled), places, axis=1)
    summed = graph.add("Add", values, chosen)
    left, right = graph.add("Split", joined, outputs=2, axis=1, num_outputs=2)
    return graph.model(
        {"image": [1, 16, 16, 16]},
        {"first": (first, 4), "top": (summed, 2), "product": (graph.add("Mul", left, right), 4)},
    )


def masked_pooling(seed: int) -> onnx.ModelProto:
    """sequence [2, 16, 24] and which of it counts, booleans [2, 16] → [2, 10]."""
    graph = _Graph(seed)
    x = graph.add("Relu", graph.add("MatMul", "sequence", graph.weight(24, 48)))
    score = graph.add("MatMul", x, graph.weight(48, 1))
    counts = graph.add("Unsqueeze", "counts", graph.constant(np.array([2])))
    masked = graph.add("Where", counts, score, graph.constant(np.array(-100, np.float32)))
    pooled = graph.add("ReduceSum", graph.add("Mul", graph.add("Softmax", masked, axis=1), x), _axis(graph), keepdims=0)
    counted = graph.add("Where", counts, x, graph.constant(np.array(0, np.float32)))
    largest = graph.add("ReduceMax", counted, _axis(graph), keepdims=0)
    some = graph.add("ReduceMax", graph.add("Cast", "counts", to=1), _axis(graph), keepdims=1)
    none = graph.add("Not", graph.add("Cast", some, to=9))
    result = graph.add("Where", none, graph.add("Neg", pooled), graph.add("Add", pooled, largest))
    head = graph.add("MatMul", result, graph.weight(48, 10))
    return graph.model({"sequence": [2, 16, 24], "counts": [2, 16]}, {"classes": (head, 2)}, booleans=("counts",))


def _axis(graph: _Graph) -> str:
    return graph.constant(np.array([1]))
