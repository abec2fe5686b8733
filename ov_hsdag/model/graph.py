"""The computation graph of an OpenVINO model as flat arrays.

What the rules of legality read (types, variables, shapes, which tensors can be moved) the C++ library extracts as well,
in transformations/src/model_graph.cpp: each language asks OpenVINO by itself, and a test compares the two node by node.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ov_hsdag import _native
from ov_hsdag.model.excerpt import LARGE
from ov_hsdag.model.flops import SUBGRAPHS, node_flops
from ov_hsdag.model.lengths import takes_open_lengths, upper_bound
from ov_hsdag.model.workload import CACHE_POSITIONS, cache_positions, past_length
from ov_hsdag.utils.errors import UserError, one_line

if TYPE_CHECKING:
    import openvino as ov

# What an unbounded dimension counts as when the user gives no example shape: one request of a moderate length. Only
# costs depend on it.
UNBOUNDED_BATCH = 1
UNBOUNDED_DIMENSION = 128


class NodeKind(IntEnum):
    """Kinds of nodes that HETERO's splitting rule treats differently; the values are shared with the native core."""

    OP = 0
    PARAMETER = 1
    CONSTANT = 2
    RESULT = 3
    SINK = 4


_KINDS = {
    "Parameter": NodeKind.PARAMETER,
    "Constant": NodeKind.CONSTANT,
    "Result": NodeKind.RESULT,
    "Assign": NodeKind.SINK,
}


@dataclass(frozen=True, eq=False)
class ComputationGraph:
    """Nodes and edges of a model in topological order (the order of `ov.Model.get_ordered_ops()`).

    An edge is an input port: `input_ptr[n] <= e < input_ptr[n + 1]` are the inputs of node n, and `input_output[e]` is
    the output port that feeds input e. Output ports of node n are `output_ptr[n] <= o < output_ptr[n + 1]`.

    Attributes:
        names: friendly names, [nodes].
        types: OpenVINO operation types such as "Convolution", [nodes].
        kinds: `NodeKind` of each node, uint8 [nodes].
        input_ptr: int32 [nodes + 1].
        input_output: int32 [edges].
        output_ptr: int32 [nodes + 1].
        output_bytes: size of each output tensor, int64 [outputs].
        output_shapes: dimensions that costs count with, [outputs]. Dynamic ones are replaced by the example shape's,
            else by their upper bound, else by 1 (first dimension of an input) or 128.
        output_ranks: rank of each output, -1 where the model leaves it open, int16 [outputs].
        output_movable: whether HETERO can hand the tensor from submodel to submodel, bool [outputs]. Not those of
            strings or of unknown rank; and not those with a dynamic dimension that cannot be 0: HETERO connects
            submodels with tensors that are empty at first (OpenVINO, src/plugins/hetero/src/sync_infer_request.cpp).
        output_types: element types such as "f32", [outputs].
        flops: arithmetic operations of one inference, float64 [nodes].
        weight_bytes: size of each Constant, 0 for other nodes, int64 [nodes].
        variables: variable that a ReadValue or Assign belongs to, "" for other nodes, [nodes].
        open_lengths: Gathers that take dimensions without bounds, and no others, of a ShapeOf, bool [nodes]. Numbers of
            which a submodel knows as much when they are its inputs as when it computes them. None: there are none.
    """

    names: tuple[str, ...]
    types: tuple[str, ...]
    kinds: NDArray[np.uint8]
    input_ptr: NDArray[np.int32]
    input_output: NDArray[np.int32]
    output_ptr: NDArray[np.int32]
    output_bytes: NDArray[np.int64]
    output_shapes: tuple[tuple[int, ...], ...]
    output_ranks: NDArray[np.int16]
    output_movable: NDArray[np.bool_]
    output_types: tuple[str, ...]
    flops: NDArray[np.float64]
    weight_bytes: NDArray[np.int64]
    variables: tuple[str, ...]
    open_lengths: NDArray[np.bool_] | None = None

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.names)

    @property
    def edges(self) -> int:
        """Number of input ports."""
        return len(self.input_output)

    @property
    def outputs(self) -> int:
        """Number of output ports."""
        return len(self.output_bytes)

    @cached_property
    def output_node(self) -> NDArray[np.int32]:
        """Node that each output port belongs to, int32 [outputs]."""
        return np.repeat(np.arange(self.nodes, dtype=np.int32), np.diff(self.output_ptr))

    @cached_property
    def input_source(self) -> NDArray[np.int32]:
        """Node that feeds each input port, int32 [edges]."""
        return self.output_node[self.input_output]

    @cached_property
    def input_node(self) -> NDArray[np.int32]:
        """Node that owns each input port, int32 [edges]."""
        return np.repeat(np.arange(self.nodes, dtype=np.int32), np.diff(self.input_ptr))

    def consumers(self, output: int) -> NDArray[np.int32]:
        """Nodes that read an output, one for each input that it feeds."""
        edges, ends = self._edges_by_output
        return self.input_node[edges[ends[output] : ends[output + 1]]]

    @cached_property
    def _edges_by_output(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        ends = np.zeros(self.outputs + 1, np.int64)
        np.cumsum(np.bincount(self.input_output, minlength=self.outputs), out=ends[1:])
        return np.argsort(self.input_output, kind="stable"), ends

    def __getstate__(self) -> dict[str, Any]:
        """The attributes alone: what is derived from them is derived again, and native objects stay here."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def native(self) -> _native.Graph:
        """The same graph for the native core."""
        return _native.Graph(
            self.kinds, self.input_ptr, self.input_output, self.output_ptr, self.output_bytes, self.weight_bytes
        )

    @cached_property
    def legality(self) -> _native.Legality:
        """The constraints between its nodes, which the native core computes once (cpp_ext/colocation.hpp)."""
        shape_ptr = np.zeros(self.outputs + 1, np.int32)
        np.cumsum([len(shape) for shape in self.output_shapes], out=shape_ptr[1:])
        dimensions = np.fromiter(chain.from_iterable(self.output_shapes), np.int64, int(shape_ptr[-1]))
        return _native.Legality(
            self.native,
            self.types,
            self.variables,
            self.output_movable,
            np.zeros(self.nodes, np.bool_) if self.open_lengths is None else self.open_lengths,
            self.output_ranks,
            shape_ptr,
            dimensions,
        )

    @cached_property
    def _indices(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.names)}

    def index(self, name: str) -> int:
        """Number of the node with this friendly name. Raises KeyError where there is none."""
        return self._indices[name]

    @classmethod
    def from_model(cls, model: ov.Model, *, shapes: Mapping[str, Sequence[int]] | None = None) -> ComputationGraph:
        """Extracts the graph of `model`, which is left as it is.

        Args:
            model: any model.
            shapes: example shapes of dynamic inputs, by any of the input's tensor names or its friendly name.

        Raises:
            UserError: `shapes` names no input of the model or does not fit it.
        """
        nodes = model.get_ordered_ops()
        static = _with_static_shapes(model, shapes) if model.is_dynamic() else None
        sized = {node.get_friendly_name(): node for node in static.get_ordered_ops()} if static else {}
        if shapes and static is None:
            input_shapes(model, shapes)  # names and ranks are checked even where no example is needed

        unsure = _without_lost_values(model, nodes)
        builder = _Builder(len(nodes))
        for number, node in enumerate(nodes):
            builder.add(node, sized.get(node.get_friendly_name(), node), unsure.get(number, node))
        return builder.graph(cls)

    def with_copies(self, model: ov.Model, copied: Mapping[str, int]) -> ComputationGraph:
        """The graph of the model after nodes of it were copied: what is known of a node holds for its copies.

        Takes a part of the time of `from_model`.

        Args:
            model: of this graph, with copies of nodes, which feed some of the nodes instead of the originals.
            copied: number of the node that each copy was made of, by the copy's friendly name.
        """
        order = model.get_ordered_ops()
        names = tuple(node.get_friendly_name() for node in order)
        own = np.array([copied[name] if name in copied else self._indices[name] for name in names], np.int64)
        outputs = np.diff(self.output_ptr)[own]
        output_ptr = np.concatenate([[0], np.cumsum(outputs)]).astype(np.int32)
        # Output by output, where each is in this graph.
        of_output = np.arange(output_ptr[-1]) + np.repeat(self.output_ptr[own] - output_ptr[:-1], outputs)
        first = {node.get_instance_id(): start for node, start in zip(order, output_ptr.tolist(), strict=False)}
        input_ptr, input_output = [0], []
        for node in order:
            for value in node.input_values():
                input_output.append(first[value.get_node().get_instance_id()] + value.get_index())
            input_ptr.append(len(input_output))
        return ComputationGraph(
            names=names,
            types=tuple(self.types[number] for number in own.tolist()),
            kinds=self.kinds[own],
            input_ptr=np.array(input_ptr, np.int32),
            input_output=np.array(input_output, np.int32),
            output_ptr=output_ptr,
            output_bytes=self.output_bytes[of_output],
            output_shapes=tuple(self.output_shapes[number] for number in of_output.tolist()),
            output_ranks=self.output_ranks[of_output],
            output_movable=self.output_movable[of_output],
            output_types=tuple(self.output_types[number] for number in of_output.tolist()),
            flops=self.flops[own],
            weight_bytes=self.weight_bytes[own],
            variables=tuple(self.variables[number] for number in own.tolist()),
            open_lengths=None if self.open_lengths is None else self.open_lengths[own],
        )

    def resized(self, model: ov.Model, shapes: Mapping[str, Sequence[int]]) -> ComputationGraph:
        """The same graph with the sizes of other example shapes, which takes a part of the time of `from_model`.

        Args:
            model: of the graph, left as it is.
            shapes: as in `from_model`.

        Raises:
            UserError: `shapes` names no input of the model or does not fit it.
        """
        static = _with_static_shapes(model, shapes) if model.is_dynamic() else None
        if static is None:
            input_shapes(model, shapes)
            return self
        sized = {node.get_friendly_name(): node for node in static.get_ordered_ops()}
        output_shapes, output_bytes, flops = list(self.output_shapes), self.output_bytes.copy(), self.flops.copy()
        same = self.legality.constant | (self.kinds == NodeKind.RESULT)
        for index, node in enumerate(model.get_ordered_ops()):
            if same[index]:
                continue
            first, last = int(self.output_ptr[index]), int(self.output_ptr[index + 1])
            inputs = self.input_output[self.input_ptr[index] : self.input_ptr[index + 1]].tolist()
            other = sized.get(node.get_friendly_name())
            outputs = other.outputs() if other is not None and len(other.outputs()) == last - first else node.outputs()
            for number, output in enumerate(outputs, first):
                output_shapes[number] = _bounded(output.get_partial_shape())
                is_open = node.get_output_partial_shape(number - first).is_dynamic
                output_bytes[number] = _tensor_bytes(output_shapes[number], output.get_element_type(), is_open)
            if self.kinds[index] == NodeKind.OP:
                flops[index] = node_flops(node, [output_shapes[o] for o in inputs], output_shapes[first:last])
        return replace(self, output_shapes=tuple(output_shapes), output_bytes=output_bytes, flops=flops)


# Of a tensor whose size the model leaves open: what may be only a guess refuses no model.
_MOST_OPEN = 2**40


def _tensor_bytes(shape: Sequence[int], element: ov.Type, is_open: bool) -> int:
    size = -(-math.prod(shape) * element.bitwidth // 8)
    if is_open:
        return min(size, _MOST_OPEN)
    if size > _native.MOST_BYTES:
        raise UserError(f"a tensor of shape {list(shape)} fits into no machine; give other example shapes")
    return size


class _Tensor(NamedTuple):
    """What `ComputationGraph` has of an output."""

    shape: tuple[int, ...]
    rank: int
    element: str
    movable: bool
    bytes: int


class _Builder:
    """Collects node after node; one pass over the model, since every call into OpenVINO costs about a microsecond."""

    def __init__(self, nodes: int) -> None:
        self.names: list[str] = []
        self.types: list[str] = []
        self.kinds = np.zeros(nodes, np.uint8)
        self.input_ptr = [0]
        self.input_output: list[int] = []
        self.output_ptr = [0]
        self.output_bytes: list[int] = []
        self.output_shapes: list[tuple[int, ...]] = []
        self.output_ranks: list[int] = []
        self.output_movable: list[bool] = []
        self.output_types: list[str] = []
        self.flops = np.zeros(nodes, np.float64)
        self.weight_bytes = np.zeros(nodes, np.int64)
        self.variables: list[str] = []
        self.open_lengths = np.zeros(nodes, np.bool_)
        self._index: dict[int, int] = {}
        self._tensors: dict[tuple[str, ...], _Tensor] = {}
        self._flops: dict[tuple[str, tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]], float] = {}

    def add(self, node: ov.Node, sized: ov.Node, unsure: ov.Node) -> None:
        """Appends `node`; `sized` is the same node with static shapes where they are known, `unsure` that with shapes
        that do not depend on values."""
        index = len(self.names)
        self._index[node.get_instance_id()] = index
        type_name = node.get_type_name()
        kind = _KINDS.get(type_name, NodeKind.OP)
        self.names.append(node.get_friendly_name())
        self.types.append(type_name)
        self.kinds[index] = kind
        for value in node.input_values():
            producer = self._index[value.get_node().get_instance_id()]
            self.input_output.append(self.output_ptr[producer] + value.get_index())
        self.input_ptr.append(len(self.input_output))

        # HETERO and costs see a Result as a place, not as a tensor of its own.
        if kind is not NodeKind.RESULT:
            others = sized if sized.get_output_size() == node.get_output_size() else node
            for port in range(node.get_output_size()):
                tensor = self._tensor(node, others, unsure, port)
                self.output_shapes.append(tensor.shape)
                self.output_ranks.append(tensor.rank)
                self.output_types.append(tensor.element)
                self.output_movable.append(tensor.movable)
                self.output_bytes.append(tensor.bytes)
        self.output_ptr.append(len(self.output_bytes))
        if kind is NodeKind.CONSTANT:
            self.weight_bytes[index] = self.output_bytes[-1]
        elif kind is NodeKind.OP:
            self.flops[index] = self._node_flops(
                node,
                type_name,
                tuple(self.output_shapes[o] for o in self.input_output[self.input_ptr[index] :]),
                tuple(self.output_shapes[self.output_ptr[index] :]),
            )
            self.open_lengths[index] = type_name == "Gather" and takes_open_lengths(node)
        variable = node.get_attributes().get("variable_id", "") if type_name in _STATEFUL else ""
        self.variables.append(str(variable))

    def _tensor(self, node: ov.Node, sized: ov.Node, unsure: ov.Node, port: int) -> _Tensor:
        """What is to be known of an output; models have many tensors and few shapes."""
        partial, element = node.get_output_partial_shape(port), sized.get_output_element_type(port).get_type_name()
        bounded = partial if sized is node else sized.get_output_partial_shape(port)
        least = partial if unsure is node else unsure.get_output_partial_shape(port)
        declared = str(partial)
        key = (
            declared,
            declared if bounded is partial else str(bounded),
            declared if least is partial else str(least),
            element,
        )
        found = self._tensors.get(key)
        if found is None:
            shape = _bounded(bounded)
            found = self._tensors[key] = _Tensor(
                shape,
                partial.rank.get_length() if partial.rank.is_static else -1,
                element,
                element != "string" and _fits_empty(partial, least),
                _tensor_bytes(shape, sized.get_output_element_type(port), partial.is_dynamic),
            )
        return found

    def _node_flops(
        self, node: ov.Node, type_name: str, inputs: tuple[tuple[int, ...], ...], outputs: tuple[tuple[int, ...], ...]
    ) -> float:
        if type_name in SUBGRAPHS:
            return node_flops(node, inputs, outputs)
        key = (type_name, inputs, outputs)
        found = self._flops.get(key)
        if found is None:
            found = self._flops[key] = node_flops(node, inputs, outputs)
        return found

    def graph(self, cls: type[ComputationGraph]) -> ComputationGraph:
        if sum(self.output_bytes) > _native.MOST_BYTES:
            raise UserError("the model's tensors have more bytes than any machine holds; give other example shapes")
        return cls(
            names=tuple(self.names),
            types=tuple(self.types),
            kinds=self.kinds,
            input_ptr=np.array(self.input_ptr, np.int32),
            input_output=np.array(self.input_output, np.int32),
            output_ptr=np.array(self.output_ptr, np.int32),
            output_bytes=np.array(self.output_bytes, np.int64),
            output_shapes=tuple(self.output_shapes),
            output_ranks=np.array(self.output_ranks, np.int16),
            output_movable=np.array(self.output_movable, bool),
            output_types=tuple(self.output_types),
            flops=self.flops,
            weight_bytes=self.weight_bytes,
            variables=tuple(self.variables),
            open_lengths=self.open_lengths,
        )


_STATEFUL = frozenset({"ReadValue", "Assign"})

# Tensors of more elements are data.
_DIMENSIONS = 32


def _fits_empty(shape: ov.PartialShape, known: ov.PartialShape) -> bool:
    """Whether a tensor of the least size of `known` has the declared shape: HETERO begins with such tensors.

    Args:
        shape: that the model declares, and the submodel that reads the tensor.
        known: that the submodel that computes the tensor has at least.
    """
    if known.is_static:
        return True
    return known.rank.is_static and all(
        own.is_static or (declared.is_dynamic and declared.get_min_length() <= 0)
        for declared, own in zip(shape, known, strict=True)
    )


def _without_lost_values(model: ov.Model, order: Sequence[ov.Node]) -> dict[int, ov.Node]:
    """Nodes of a copy in which values that plugins lose make no dimension, by their numbers in `order`, the model's.

    OpenVINO follows values of small integer tensors from ShapeOf to where they become dimensions. Plugins follow them
    as far, but through floating-point arithmetic: there they put other operations (2026.4: a square root for a power of
    0.5) whose values OpenVINO does not follow, and all of a tensor that such a value is part of is unknown. Of open
    lengths a submodel knows nothing where they are its inputs.
    """
    from ov_hsdag.utils.compat import op

    lost: set[int] = set()
    for node in order:
        if not _holds_dimensions(node):
            continue
        inputs = node.input_values()
        converted = node.get_type_name() == "Convert" and inputs[0].get_element_type().is_real()
        if converted or any(value.get_node().get_instance_id() in lost for value in inputs):
            lost.add(node.get_instance_id())
    numbers = [
        number
        for number, node in enumerate(order)
        if node.get_instance_id() in lost or (node.get_type_name() == "Gather" and takes_open_lengths(node))
    ]
    if not numbers:
        return {}
    copy = model.clone()
    nodes = copy.get_ordered_ops()
    parameters = []
    for output in (output for number in numbers for output in nodes[number].outputs()):
        parameters.append(op.Parameter(output.get_element_type(), output.get_partial_shape()))
        for reader in output.get_target_inputs():
            if reader.get_node().get_type_name() != "Result":
                reader.replace_source_output(parameters[-1].output(0))
    try:
        copy.add_parameters(parameters)
        copy.validate_nodes_and_infer_types()
    except RuntimeError:
        return {}  # an operation that wants to know the values: it would not do with less in a submodel either
    return dict(enumerate(nodes))


def _holds_dimensions(node: ov.Node) -> bool:
    """Whether it computes what may become dimensions: few integers."""
    if node.get_output_size() == 0 or not node.get_output_element_type(0).is_integral_number():
        return False
    if node.get_type_name() in ("Parameter", "ShapeOf"):
        return False
    shape = node.get_output_partial_shape(0)
    return bool(shape.is_static and math.prod(shape.to_shape()) <= _DIMENSIONS)


def _bounded(shape: ov.PartialShape) -> tuple[int, ...]:
    if shape.is_static:
        return tuple(shape.to_shape())
    if shape.rank.is_dynamic:
        return (UNBOUNDED_DIMENSION,)
    return tuple(_bounded_dimension(dimension, UNBOUNDED_DIMENSION) for dimension in shape)


def _bounded_dimension(dimension: Any, default: int) -> int:
    upper = upper_bound(dimension)
    return max(default, int(dimension.get_min_length())) if upper is None else upper


def is_unbounded(model: ov.Model) -> bool:
    """Whether sizes of the model are guesses: an input has a dimension (or a rank) without a bound."""
    shapes = [port.get_partial_shape() for port in model.inputs]
    return any(shape.rank.is_dynamic or any(upper_bound(dimension) is None for dimension in shape) for shape in shapes)


def counted_input_shapes(model: ov.Model, shapes: Mapping[str, Sequence[int]] | None = None) -> list[tuple[int, ...]]:
    """The shapes that costs count with, one for each input of `model`, in order.

    They are those of `input_shapes`, unless these do not fit together.

    Args:
        model: any model; left as it is.
        shapes: example shapes of dynamic inputs, as in `ComputationGraph.from_model`.

    Raises:
        UserError: `shapes` names no input of the model or does not fit it.
    """
    wanted = input_shapes(model, shapes or {})
    if model.is_dynamic() and _with_static_shapes(model, shapes) is None:
        return [_bounded(port.get_partial_shape()) for port in model.inputs]
    return [tuple(shape) for shape in wanted]


def input_shapes(model: ov.Model, shapes: Mapping[str, Sequence[int]]) -> list[list[int]]:
    """A static shape for every input of `model`: the user's example, else upper bounds, else defaults.

    Args:
        model: any model.
        shapes: example shapes, by any of the input's tensor names or its friendly name.

    Raises:
        UserError: `shapes` names no input of the model, or does not fit it.
    """
    left = dict(shapes)
    result = []
    for port in model.inputs:
        names = {port.get_node().get_friendly_name(), *port.get_names()}
        name = next((name for name in left if name in names), None)
        partial = port.get_partial_shape()
        if name is not None:
            example = _example(name, left.pop(name))
            if not partial.compatible(type(partial)(example)):
                raise UserError(f"example shape {example} does not fit input '{name}' of shape {partial}")
            result.append(example)
        elif partial.rank.is_dynamic:
            result.append([UNBOUNDED_BATCH, UNBOUNDED_DIMENSION])
        elif CACHE_POSITIONS in names and partial.rank == 1 and partial[0].is_dynamic:
            result.append([cache_positions(model, UNBOUNDED_DIMENSION)])
        else:
            result.append(
                [
                    _bounded_dimension(dimension, UNBOUNDED_BATCH if axis == 0 else UNBOUNDED_DIMENSION)
                    for axis, dimension in enumerate(partial)
                ]
            )
    if left:
        known = ", ".join(sorted(name for port in model.inputs for name in port.get_names())) or "none"
        raise UserError(f"example shape for unknown input '{next(iter(left))}'; inputs of the model: {known}")
    return result


def _example(name: str, sizes: Sequence[int]) -> list[int]:
    """The sizes as int. Raises UserError for what are no sizes."""
    try:
        example = [operator.index(size) for size in sizes]
    except TypeError as error:
        raise UserError(f"the example shape of '{name}' must be a list of whole numbers, got {sizes!r}") from error
    if not all(0 <= size < 2**31 for size in example):
        raise UserError(f"example shape {example} of '{name}' has a size that is no tensor's")
    return example


def _with_static_shapes(model: ov.Model, shapes: Mapping[str, Sequence[int]] | None) -> ov.Model | None:
    """A copy of `model` with static inputs, to read sizes from; None where its inputs' defaults do not fit together."""
    sized = _with_static_inputs(model, shapes)
    if sized is None:
        return None
    try:
        _size_states(sized)
    except RuntimeError:
        return _with_static_inputs(model, shapes)
    return sized


def _with_static_inputs(model: ov.Model, shapes: Mapping[str, Sequence[int]] | None) -> ov.Model | None:
    import openvino as ov

    targets = input_shapes(model, shapes or {})
    static = [ov.PartialShape(shape) for shape in targets]
    copy = _inferred(model, static) if len(model.get_ops()) >= LARGE else None
    if copy is None:
        copy = model.clone()
        try:
            copy.reshape(dict(zip(copy.inputs, static, strict=True)))
        except RuntimeError as error:
            if shapes:
                raise UserError(f"example shapes do not fit the model: {one_line(error)}") from error
            return None
    return copy


def _inferred(model: ov.Model, shapes: Sequence[ov.PartialShape]) -> ov.Model | None:
    """A copy of `model` with inputs of these shapes; None where operations do not take them.

    `ov.Model.reshape` first makes operations take other shapes that are written for one, in a time that grows faster
    than the model. OpenVINO's clean-up has done that already where it can be done.
    """
    copy = model.clone()
    for parameter, shape in zip(copy.get_parameters(), shapes, strict=True):
        parameter.set_partial_shape(shape)
    try:
        copy.validate_nodes_and_infer_types()
    except RuntimeError:
        return None
    return copy


def _state_length(dimension: Any, axis: int, past: int | None) -> int:
    if dimension.is_static or past is None or axis == 0:
        return _bounded_dimension(dimension, UNBOUNDED_BATCH if axis == 0 else UNBOUNDED_DIMENSION)
    return past


def _size_states(copy: ov.Model) -> None:
    """Parameters of static shapes take the places of the states that grow, in place.

    A state has the dimensions of its initial value where those are not empty (the batch). Where they are, it has the
    length that mask and tokens tell (the mask's less the tokens'), or that of an input of unknown length. Raises
    RuntimeError where inputs do not fit that (a mask of another length).
    """
    from ov_hsdag.utils.compat import op

    states = [node for node in copy.get_ops() if node.get_type_name() == "ReadValue"]
    past = past_length(copy)
    parameters = []
    for node in states:
        declared = node.get_output_partial_shape(0)
        if declared.is_static or declared.rank.is_dynamic:
            continue
        start = list(node.get_input_partial_shape(0)) if node.get_input_size() else []
        begun = [int(one.get_length()) if one.is_static else 0 for one in start] or [0] * len(declared)
        shape = [
            size or _state_length(dimension, axis, past)
            for axis, (dimension, size) in enumerate(zip(declared, begun, strict=True))
        ]
        state = op.Parameter(node.get_output_element_type(0), type(declared)(shape))
        state.set_friendly_name(node.get_friendly_name())
        node.set_friendly_name(f"{node.get_friendly_name()}/read")  # sizes are looked up by name
        for reader in node.output(0).get_target_inputs():
            reader.replace_source_output(state.output(0))
        parameters.append(state)
    if parameters:
        copy.add_parameters(parameters)
        copy.validate_nodes_and_infer_types()
