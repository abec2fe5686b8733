"""Models, graphs and placement problems that tests share, most of them random or made for one rule."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import openvino as ov
from hypothesis import strategies as st
from numpy.typing import NDArray

from ov_hsdag.model.graph import ComputationGraph, NodeKind
from ov_hsdag.model.placement import Placement
from ov_hsdag.problem.problem import OBJECTIVES, PlacementProblem
from ov_hsdag.utils.lazy import opset13 as ops
from research.graphs import graph_of, problem_on


def random_model(seed: int, *, nodes: int = 25, inputs: int = 3) -> ov.Model:
    """Builds a small model of branches, shared constants, multi-output splits and several inputs and outputs.

    Args:
        seed: decides everything.
        nodes: bound on the number of drawn steps, which make one or two operations each.
        inputs: the most inputs, each f32 [1, 4].
    """
    generator = np.random.default_rng(seed)
    parameters = [
        ops.parameter([1, 4], ov.Type.f32, name=f"input_{i}") for i in range(generator.integers(1, inputs + 1))
    ]
    constants = [ops.constant(generator.normal(size=(1, 4)).astype(np.float32)) for _ in range(2)]
    values = list(parameters)

    def recent() -> ov.Node:
        """Draws an earlier value, mostly one of the last eight."""
        reach = min(len(values), 8) if generator.random() < 0.8 else len(values)
        return values[len(values) - 1 - int(generator.integers(0, reach))]

    for _ in range(int(generator.integers(4, nodes))):
        kind = generator.integers(0, 6)
        if kind == 0:
            values.append(ops.relu(recent()))
        elif kind == 1:
            values.append(ops.add(recent(), constants[generator.integers(0, 2)]))
        elif kind in (2, 3):
            values.append((ops.add if kind == 2 else ops.maximum)(recent(), recent()))
        elif kind == 4:
            halves = ops.split(recent(), ops.constant(1), 2)
            values.append(ops.concat([halves.output(1), halves.output(0)], 1))
        else:
            values.append(ops.reduce_mean(ops.concat([recent(), recent()], 0), ops.constant([0]), True))
    ends = [v for v in values[len(parameters) :] if not any(o.get_target_inputs() for o in v.outputs())]
    if generator.random() < 0.4:
        ends.append(values[generator.integers(len(parameters), len(values))])
    return ov.Model([ops.result(value) for value in ends], parameters, "random")


def convolutions(channels: int = 32) -> ov.Model:
    """Builds two branches of convolutions that are added: enough for a placement to have a choice."""
    random = np.random.default_rng(0)

    def convolution(data: Any, inputs: int, name: str) -> Any:
        """A convolution of 3 x 3 with a ReLU, which has the name. inputs: channels of `data`."""
        weights = (random.standard_normal((channels, inputs, 3, 3)) / np.sqrt(9 * inputs)).astype(np.float32)
        node = ops.relu(ops.convolution(data, weights, [1, 1], [1, 1], [1, 1], [1, 1]))
        node.set_friendly_name(name)
        return node

    image = ops.parameter([1, 3, 32, 32], np.float32, name="image")
    stem = convolution(image, 3, "stem")
    left = convolution(convolution(stem, channels, "left1"), channels, "left2")
    right = convolution(convolution(stem, channels, "right1"), channels, "right2")
    result = ops.result(ops.add(left, right, name="sum"), name="out")
    return ov.Model([result], [image], "convolutions")


def random_numbers() -> ov.Model:
    """Builds a model whose outputs are different on each inference."""
    image = ops.parameter([1, 8], np.float32, name="image")
    noise = ops.random_uniform(
        ops.constant(np.array([1, 8], np.int64)), ops.constant(np.float32(0)), ops.constant(np.float32(1)), "f32"
    )
    return ov.Model([ops.result(ops.relu(ops.add(image, noise)))], [image], "random_numbers")


def only_forty() -> ov.Model:
    """Builds a model that fails unless its input has a multiple of 40 values, which its shapes do not tell."""
    x = ops.parameter(ov.PartialShape([-1]), np.float32, name="x")
    reshaped = ops.reshape(ops.relu(x), ops.constant(np.array([-1, 40])), False)
    return ov.Model([ops.result(reshaped)], [x], "forty")


def random_inputs(model: ov.Model, seed: int = 0) -> list[NDArray[np.float32]]:
    """Draws normal values for every input of a model; open sizes are 2."""
    generator = np.random.default_rng(seed)
    shapes = [[2 if size.is_dynamic else size.get_length() for size in port.partial_shape] for port in model.inputs]
    return [generator.normal(size=shape).astype(np.float32) for shape in shapes]


def set_affinities(model: ov.Model, devices: list[str]) -> None:
    """Sets the affinity of each node of a model, in topological order, to the device at the same place of the list."""
    for node, device in zip(model.get_ordered_ops(), devices, strict=True):
        node.get_rt_info()["affinity"] = device


def halved(model: ov.Model, devices: tuple[str, ...] = ("CPU_A", "CPU_B"), share: float = 0.5) -> Placement:
    """Places a share of a model's nodes, the first in topological order, on one device and the others on another."""
    names = [node.get_friendly_name() for node in model.get_ordered_ops()]
    affinity = {name: devices[index >= int(len(names) * share)] for index, name in enumerate(names)}
    return Placement(devices, affinity)


def submodels(compiled: ov.CompiledModel) -> int:
    """Returns the number of submodels that HETERO made."""
    return int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS"))


def random_graph(generator: np.random.Generator, nodes: int, density: float = 0.3) -> ComputationGraph:
    """Draws a graph without a model: one Parameter, operations with one or two outputs, and a Result.

    Args:
        generator: draws it.
        nodes: number of nodes.
        density: probability of each of up to three further inputs of an operation.
    """
    kinds = [NodeKind.PARAMETER, *[NodeKind.OP] * (nodes - 2), NodeKind.RESULT]
    output_ptr, every = [0, 1], [[]]
    for node in range(1, nodes):
        available = output_ptr[-1]
        feeds = [int(generator.integers(0, available))]
        if kinds[node] is NodeKind.OP:
            feeds += [int(generator.integers(0, available)) for _ in range(generator.binomial(3, density))]
        every.append(feeds)
        width = 0 if kinds[node] is NodeKind.RESULT else int(generator.integers(1, 3))
        output_ptr.append(output_ptr[-1] + width)
    moved = generator.integers(1, 50, output_ptr[-1])
    weights = generator.integers(0, 20, nodes)
    return graph_of(kinds, every, output_ptr=output_ptr, output_bytes=moved, weight_bytes=weights)


def problem_of(sources: list[list[int]], us: list[list[float]], **changes: object) -> PlacementProblem:
    """Makes a problem of a Parameter (node 0), operations, and a Result for each operation that nobody reads.

    Each node is a group, and a Result belongs to its operation's. A transfer takes 2 µs, a submodel 1 µs.

    Args:
        sources: of each operation, from node 1 on, the earlier nodes that it reads.
        us: of each operation, its time on each device, µs.
        changes: fields of the problem in place of these.
    """
    used = {source for feeds in sources for source in feeds}
    ends = [node for node in range(1, len(sources) + 1) if node not in used]
    feeds = [[], *sources, *([end] for end in ends)]
    kinds = [NodeKind.PARAMETER] + [NodeKind.OP] * len(sources) + [NodeKind.RESULT] * len(ends)
    outputs, devices = len(sources) + 1, len(us[0])
    graph = graph_of(kinds, feeds, output_bytes=np.full(outputs, 4, np.int64))
    costs = {
        "groups": np.array([*range(outputs), *ends], np.int32),  # Results go with what they show
        "transfer_us": np.full((devices, devices), 2.0) * (1 - np.eye(devices)),
        "submodel_us": np.ones(devices),
    }
    return problem_on(graph, np.array([[0.0] * devices, *us, *[[0.0] * devices] * len(ends)]), **{**costs, **changes})


def random_problem(
    seed: int,
    *,
    nodes: int = 10,
    devices: int = 2,
    objective: str = "latency",
    submodel_us: float = 0.0,
    missing: float = 0.0,
    grouped: bool = False,
    fusing: bool = False,
) -> PlacementProblem:
    """Draws a problem with whole-number costs, so that sums are exact.

    Args:
        seed: decides everything.
        nodes: number of nodes.
        devices: number of devices.
        objective: "latency" or "throughput".
        submodel_us: time to call a submodel, µs.
        missing: probability that a device lacks a node's operation.
        grouped: whether two nodes may be in one group; otherwise each node is a group.
        fusing: whether some operations are fused, and breaking a fusion costs time.
    """
    generator = np.random.default_rng(seed)
    graph = random_graph(generator, nodes)
    supported = generator.random((nodes, devices)) >= missing
    supported[~supported.any(axis=1), 0] = True
    groups = np.arange(nodes, dtype=np.int32)
    if grouped:
        groups[generator.integers(1, nodes)] = groups[generator.integers(1, nodes)]
        groups = np.unique(groups, return_inverse=True)[1].astype(np.int32)
        supported[:, 0] = True
    fused_with, penalty_us = random_fusions(graph, devices, seed) if fusing else (None, None)
    return problem_on(
        graph,
        generator.integers(0, 30, (nodes, devices)).astype(float),
        devices=tuple(f"D{i}" for i in range(devices)),
        objective=objective,
        supported=supported,
        groups=groups,
        transfer_us=generator.integers(0, 10, (devices, devices)).astype(float),
        transfer_us_per_byte=generator.integers(0, 2, (devices, devices)).astype(float),
        submodel_us=np.full(devices, float(submodel_us)),
        fused_with=fused_with,
        fusion_penalty_us=penalty_us,
    )


@st.composite
def searched_problems(draw: st.DrawFn, fewest: int = 1) -> PlacementProblem:
    """Draws problems of up to 40 nodes and four devices, some with missing operations, fusions or memory limits."""
    devices = draw(st.integers(fewest, 4))
    problem = random_problem(
        draw(st.integers(0, 10_000)),
        nodes=draw(st.integers(3, 40)),
        devices=devices,
        objective=draw(st.sampled_from(OBJECTIVES)),
        submodel_us=6.0,
        missing=0.3 * draw(st.booleans()),
        grouped=True,
        fusing=draw(st.booleans()),
    )
    limit = problem.evaluate(problem.single(0)).memory_bytes.sum() * 2 // 3 if draw(st.booleans()) else -1
    return replace(problem, rule=draw(st.sampled_from([0, 1])), memory_bytes=np.full(devices, limit))


def every_placement(problem: PlacementProblem) -> NDArray[np.uint8]:
    """Lists all placements of a small problem: device number of each group, uint8 [devices ** groups, groups]."""
    return np.array(list(product(range(len(problem.devices)), repeat=problem.group_count)), np.uint8)


def chain(us: tuple[float, float]) -> PlacementProblem:
    """Makes a problem of operations one after another, each with weights. us: time of each on the two devices, µs."""
    problem = random_problem(6, nodes=42)
    operations = problem.graph.kinds == NodeKind.OP
    graph = replace(
        problem.graph,
        input_ptr=np.arange(-1, 42).clip(0).astype(np.int32),
        input_output=problem.graph.output_ptr[:41],
        weight_bytes=1000 * operations.astype(np.int64),
    )
    return replace(problem, graph=graph, node_us=operations[:, None] * np.array(us))


def random_fusions(graph: ComputationGraph, devices: int, seed: int) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Draws fusions of operations with an operation whose tensor they alone read, on some devices.

    Returns:
        fused_with, int32 [nodes, devices]: the node that a node is fused with, -1 for none. fusion_penalty_us, float64
        [nodes, devices]: the time that breaking the fusion costs, µs.
    """
    generator = np.random.default_rng([seed, 1])
    fused_with = np.full((graph.nodes, devices), -1, np.int32)
    readers = np.bincount(graph.input_output, minlength=graph.outputs)
    operations = graph.kinds == NodeKind.OP
    for edge in np.flatnonzero(readers[graph.input_output] == 1):
        source, node = graph.input_source[edge], graph.input_node[edge]
        if operations[source] and operations[node]:
            fused_with[node] = np.where(generator.random(devices) < 0.7, source, fused_with[node])
    penalty_us = generator.integers(0, 12, (graph.nodes, devices)).astype(float)
    return fused_with, np.where(fused_with >= 0, penalty_us, 0.0)


def unfused_costs(us: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
    """Measured costs of one device that fuses nothing, for `DeviceCosts`: times of the nodes, µs, float64 [nodes]."""
    return {"node_us": us, "fused_with": np.full(len(us), -1, np.int32), "fusion_penalty_us": np.zeros(len(us))}


def unflattening_model(more: int = 0) -> ov.Model:
    """Builds a model that reshapes a sequence of tokens to a square image, whose side is the root of their number.

    Plugins lose the sizes there (`Inference.without_lost_values`): in the two operations "back" and "exp", and in
    `more` others after these.
    """
    x = ops.parameter(ov.PartialShape([-1, -1, 3]), ov.Type.f32, name="x")
    first = ops.matmul(x, ops.constant(np.full((3, 8), 0.1, np.float32)), False, False, name="first")
    batch, tokens = (ops.gather(ops.shape_of(first), ops.constant(np.array(axis)), ops.constant(0)) for axis in (0, 1))
    root = ops.convert(ops.power(ops.convert(tokens, "f32"), ops.constant(np.float32(0.5))), "i64", name="root")
    sizes = [ops.unsqueeze(size, ops.constant(0)) for size in (batch, root, root)]
    pattern = ops.concat([*sizes, ops.constant(np.array([8]))], 0, name="pattern")
    back = ops.reshape(ops.sigmoid(ops.tanh(first, name="tanh"), name="sigmoid"), pattern, False, name="back")
    exp = ops.exp(back, name="exp")
    for _ in range(more):
        exp = ops.tanh(exp)
    second = ops.matmul(exp, ops.constant(np.full((8, 4), 0.1, np.float32)), False, False, name="second")
    return ov.Model([ops.result(ops.relu(second, name="relu"), name="out")], [x], "unflattening")


# What the rules of legality look at, and operations that they leave alone.
_TYPES = (
    *("Relu", "Add", "MatMul", "Softmax", "ScaledDotProductAttention", "Transpose", "Reshape", "ShapeOf", "Gather"),
    *("Concat", "Broadcast", "RandomUniform", "Convert", "Slice", "Loop"),
)
# What attention has one after the other, and its caches before it.
_NEXT = {
    "ReadValue": "Concat",
    "Concat": "ScaledDotProductAttention",
    "Softmax": "MatMul",
    "MatMul": "Transpose",
    "ScaledDotProductAttention": "Transpose",
}


def random_typed_graph(generator: np.random.Generator, nodes: int) -> ComputationGraph:
    """Draws a graph without a model to which all rules of legality may apply.

    Constants, states, tensors that cannot be moved, shape arithmetic, attention, several inputs and outputs.
    """
    kinds: list[NodeKind] = []
    types: list[str] = []
    variables: list[str] = []
    feeds: list[list[int]] = []
    output_ptr = [0]
    shapes: list[tuple[int, ...]] = []
    for _ in range(nodes):
        available = output_ptr[-1]
        kind = NodeKind.OP
        if available == 0 or generator.random() < 0.2:
            kind = (NodeKind.PARAMETER, NodeKind.CONSTANT)[generator.integers(2)]
        elif generator.random() < 0.15:
            kind = (NodeKind.RESULT, NodeKind.SINK)[generator.integers(2)]
        state = kind is NodeKind.SINK or (kind is NodeKind.OP and generator.random() < 0.1)
        kinds.append(kind)
        follows = bool(types) and types[-1] in _NEXT and not state and generator.random() < 0.7
        operation = _NEXT[types[-1]] if follows else str(_TYPES[generator.integers(len(_TYPES))])
        types.append(
            {NodeKind.OP: "ReadValue" if state else operation, NodeKind.SINK: "Assign"}.get(kind, kind.name.title())
        )
        variables.append(str(generator.integers(1, 4)) if state else "")
        feeds.append([])
        if kind in (NodeKind.OP, NodeKind.RESULT, NodeKind.SINK):
            count = 1 if kind is not NodeKind.OP else int(generator.integers(0 if types[-1] == "ReadValue" else 1, 4))
            # Mostly what came last, so that chains such as Softmax → MatMul → Transpose appear.
            reach = available if generator.random() < 0.4 else min(available, 3)
            feeds[-1] = [available - 1 - int(generator.integers(reach)) for _ in range(count)]
            if follows and count:
                feeds[-1][0] = output_ptr[-2]
        for _ in range(0 if kind in (NodeKind.RESULT, NodeKind.SINK) else int(generator.integers(1, 3))):
            rank = int(generator.choice([0, 1, 1, 2, 4, 4, 4]))
            shapes.append(tuple(int(size) for size in generator.choice([4, 4, 40], rank)))
        output_ptr.append(len(shapes))
    ranks = [-1 if generator.random() < 0.1 else len(shape) for shape in shapes]
    movable, relaxed = generator.random((2, len(shapes)))
    return graph_of(
        kinds,
        feeds,
        types=tuple(types),
        output_ptr=output_ptr,
        output_shapes=tuple(shapes),
        output_ranks=np.array(ranks, np.int16),
        output_movable=movable < 0.9,
        output_relaxable=(movable >= 0.9) & (relaxed < 0.5),
        variables=tuple(variables),
    )


def attention(tokens: int, heads: int, fused: bool) -> ov.Model:
    """Builds self-attention of a sequence as frameworks export it, with seeded weights.

    The input and the output are f32 [1, tokens, heads * 8]. `Model.reshape` can change the number of tokens.

    Args:
        tokens: length of the sequence.
        heads: attention heads of 8 values.
        fused: whether attention is one operation, instead of products and a softmax.
    """
    random = np.random.default_rng(0)
    data = ops.parameter([1, tokens, heads * 8], np.float32)

    def head() -> ov.Node:
        weights = ops.constant(random.normal(size=(heads * 8, heads * 8)).astype(np.float32) / 4)
        return ops.transpose(
            ops.reshape(ops.matmul(data, weights, False, False), np.array([0, 0, heads, 8]), True),
            np.array([0, 2, 1, 3]),
        )

    query, key, value = head(), head(), head()
    if fused:
        attended = ops.scaled_dot_product_attention(query, key, value, causal=False)
    else:
        scores = ops.multiply(ops.matmul(query, key, False, True), np.float32(8**-0.5))
        attended = ops.matmul(ops.softmax(scores, 3), value, False, False)
    attended.set_friendly_name("attention")
    tokens_first = ops.transpose(attended, np.array([0, 2, 1, 3]))
    tokens_first.set_friendly_name("tokens first")
    joined = ops.reshape(tokens_first, np.array([0, 0, heads * 8]), True)
    weights = ops.constant(random.normal(size=(heads * 8, heads * 8)).astype(np.float32) / 4)
    return ov.Model([ops.matmul(joined, weights, False, False)], [data])
