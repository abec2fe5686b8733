"""The computation graph of an OpenVINO model as flat arrays.

The rules of legality read types, variables, shapes, and which tensors can be moved. The C++ library extracts the same
in transformations/src/model_graph.cpp. Each language asks OpenVINO by itself, and a test compares both node by node.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ov_hsdag import _native
from ov_hsdag.model.flops import SUBGRAPHS, body_weight_bytes, node_flops
from ov_hsdag.model.lengths import relaxed, takes_open_lengths
from ov_hsdag.model.nodes import Nodes
from ov_hsdag.model.shapes import Inference, bounded, input_shapes, is_unbounded, refuse_unknown_sizes
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import ov

Floats = NDArray[np.float64]


class NodeKind(IntEnum):
    """Kinds of nodes that HETERO's splitting rule treats differently; the values are shared with the native core."""

    OP = 0
    PARAMETER = 1
    CONSTANT = 2
    RESULT = 3
    SINK = 4


Metadata = dict[str, Any]

# Kinds of the operation types that are not `NodeKind.OP`.
KINDS = {
    "Parameter": NodeKind.PARAMETER,
    "Constant": NodeKind.CONSTANT,
    "Result": NodeKind.RESULT,
    "Assign": NodeKind.SINK,
}


def array(
    *axes: str,
    dtype: type[np.generic] | None = None,
    key: str | None = None,
    later: bool = False,
    zeros_are_default: bool = False,
) -> Metadata:
    """Describes an array of a dataclass, as metadata of `dataclasses.field`.

    Args:
        axes: meaning of each axis, such as "nodes"; `check_arrays` gets the sizes by these names.
        dtype: data type of a NumPy array; None for a tuple.
        key: name in files, where it differs from the field's name.
        later: whether files of the first releases lack the array. It is left out of files where it has its default,
            so that these releases can read them.
        zeros_are_default: whether an array of zeros means the same as the default, None, so that it is left out, too.

    Returns:
        The metadata.
    """
    return {"axes": axes, "dtype": dtype, "key": key, "later": later, "zeros_are_default": zeros_are_default}


def check_arrays(owner: Any, sizes: Mapping[str, int], prefix: str = "") -> None:
    """Checks that the arrays of a dataclass are as `array` describes them.

    Args:
        owner: the instance to check. A field whose value and default are None is not checked.
        sizes: size of each axis, by the names given to `array`.
        prefix: text in front of a field's name in messages.

    Raises:
        ValueError: a length, shape or dtype differs, or a value is not an array.
    """
    for attribute in fields(owner):
        value, name = getattr(owner, attribute.name), prefix + attribute.name
        if "axes" not in attribute.metadata or (value is None and attribute.default is None):
            continue
        shape, dtype = [sizes[axis] for axis in attribute.metadata["axes"]], attribute.metadata["dtype"]
        if dtype is None:
            if len(value) != shape[0]:
                raise ValueError(f"expected {shape[0]} values in '{name}'")
            continue
        if not isinstance(value, np.ndarray):
            raise ValueError(f"expected '{name}' to be an array, got {type(value).__name__}")
        if list(value.shape) != shape:
            raise ValueError(f"expected '{name}' of shape {shape}, got {list(value.shape)}")
        if value.dtype != dtype:
            raise ValueError(f"expected '{name}' of type {np.dtype(dtype).name}, got {value.dtype.name}")


@dataclass(frozen=True, eq=False)
class ComputationGraph:
    """Nodes and edges of a model in topological order (the order of `ov.Model.get_ordered_ops()`).

    An edge is an input port: `input_ptr[n] <= e < input_ptr[n + 1]` are the inputs of node n, and `input_output[e]` is
    the output port that feeds input e. Output ports of node n are `output_ptr[n] <= o < output_ptr[n + 1]`.
    """

    names: tuple[str, ...] = field(metadata=array("nodes"))  # friendly names of the nodes
    types: tuple[str, ...] = field(metadata=array("nodes"))  # OpenVINO operation types such as "Convolution"
    kinds: NDArray[np.uint8] = field(metadata=array("nodes", dtype=np.uint8))  # `NodeKind` of each node
    input_ptr: NDArray[np.int32] = field(metadata=array("nodes + 1", dtype=np.int32))
    input_output: NDArray[np.int32] = field(metadata=array("edges", dtype=np.int32))
    output_ptr: NDArray[np.int32] = field(metadata=array("nodes + 1", dtype=np.int32))
    output_bytes: NDArray[np.int64] = field(metadata=array("outputs", dtype=np.int64))  # size of each tensor
    # dimensions that costs count with, [outputs]. A dynamic dimension has the size of the example shape, else its upper
    # bound, else 1 (first dimension of an input) or 128
    output_shapes: tuple[tuple[int, ...], ...] = field(metadata=array("outputs"))
    # rank of each output, -1 where the model leaves it open, int16 [outputs]
    output_ranks: NDArray[np.int16] = field(metadata=array("outputs", dtype=np.int16))
    # whether HETERO can hand the tensor from submodel to submodel, bool [outputs]. It cannot hand over tensors of
    # strings, of unknown rank, or with a dynamic dimension that cannot be 0: HETERO connects submodels with tensors
    # that are empty at first (OpenVINO, src/plugins/hetero/src/sync_infer_request.cpp)
    output_movable: NDArray[np.bool_] = field(metadata=array("outputs", dtype=np.bool_))
    output_types: tuple[str, ...] = field(metadata=array("outputs"))  # element types such as "f32"
    flops: NDArray[np.float64] = field(metadata=array("nodes", dtype=np.float64))  # operations of one inference
    # bytes of each Constant, and of the constants in the bodies of each If and loop; 0 for other nodes, int64 [nodes]
    weight_bytes: NDArray[np.int64] = field(metadata=array("nodes", dtype=np.int64))
    # variable that a ReadValue or Assign belongs to, "" for other nodes, [nodes]
    variables: tuple[str, ...] = field(metadata=array("nodes"))
    # whether a node is a Gather that takes only dimensions without bounds from a ShapeOf, bool [nodes]. A submodel
    # knows as much about such numbers when they are its inputs as when it computes them. None if no node is
    open_lengths: NDArray[np.bool_] | None = field(
        default=None, metadata=array("nodes", dtype=np.bool_, later=True, zeros_are_default=True)
    )
    # whether HETERO can hand the tensor over once its shape is relaxed where it crosses submodels
    # (`ov_hsdag.model.relaxed_shapes`), bool [outputs]. None if no tensor needs that
    output_relaxable: NDArray[np.bool_] | None = field(
        default=None, metadata=array("outputs", dtype=np.bool_, later=True, zeros_are_default=True)
    )

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
        """The node that each output port belongs to, int32 [outputs]."""
        return np.repeat(np.arange(self.nodes, dtype=np.int32), np.diff(self.output_ptr))

    @cached_property
    def input_source(self) -> NDArray[np.int32]:
        """The node that feeds each input port, int32 [edges]."""
        return self.output_node[self.input_output]

    @cached_property
    def input_node(self) -> NDArray[np.int32]:
        """The node that owns each input port, int32 [edges]."""
        return np.repeat(np.arange(self.nodes, dtype=np.int32), np.diff(self.input_ptr))

    @property
    def has_unused_inputs(self) -> bool:
        """Whether a Parameter has no consumer.

        Without affinities, HETERO makes outputs of such Parameters (docs/reference/facts.md).
        """
        parameters = self.kinds[self.output_node] == NodeKind.PARAMETER
        return bool((np.bincount(self.input_output, minlength=self.outputs)[parameters] == 0).any())

    def consumers(self, output: int) -> NDArray[np.int32]:
        """Returns the nodes that read an output, one for each input that it feeds."""
        edges, ends = self._edges_by_output
        return self.input_node[edges[ends[output] : ends[output + 1]]]

    def touching(self, outputs: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Finds the nodes that produce or read any of the selected outputs.

        Args:
            outputs: selected outputs, bool [outputs].

        Returns:
            Whether a node touches any of them, bool [nodes].
        """
        nodes = np.zeros(self.nodes, bool)
        nodes[self.output_node[outputs]] = True
        nodes[self.input_node[outputs[self.input_output]]] = True
        return nodes

    @cached_property
    def _edges_by_output(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Edges sorted by output, int64 [edges], and where each output's edges begin there, int64 [outputs + 1]."""
        ends = np.cumsum(np.bincount(self.input_output + 1, minlength=self.outputs + 1))
        return np.argsort(self.input_output, kind="stable"), ends

    def __getstate__(self) -> dict[str, Any]:
        """Returns the fields alone: derived values are derived again, and native objects cannot be pickled."""
        return {attribute.name: getattr(self, attribute.name) for attribute in fields(self)}

    @cached_property
    def native(self) -> _native.Graph:
        """The same graph as an object of the native core."""
        return _native.Graph(
            self.kinds, self.input_ptr, self.input_output, self.output_ptr, self.output_bytes, self.weight_bytes
        )

    @cached_property
    def legality(self) -> _native.Legality:
        """The constraints between the nodes, such as their co-location groups.

        The native core computes them once (cpp_ext/colocation.hpp); `_native.pyi` describes the attributes.
        """
        shape_ptr = np.cumsum([0, *map(len, self.output_shapes)], dtype=np.int32)
        dimensions = np.fromiter(chain.from_iterable(self.output_shapes), np.int64, int(shape_ptr[-1]))
        movable = self.output_movable.astype(np.uint8)
        if self.output_relaxable is not None:
            movable[self.output_relaxable] = 2
        return _native.Legality(
            self.native,
            self.types,
            self.variables,
            movable,
            np.zeros(self.nodes, np.bool_) if self.open_lengths is None else self.open_lengths,
            self.output_ranks,
            shape_ptr,
            dimensions,
        )

    @cached_property
    def _indices(self) -> dict[str, int]:
        """Number of each node by friendly name."""
        return {name: index for index, name in enumerate(self.names)}

    def index(self, name: str) -> int:
        """Returns the number of the node with this friendly name.

        Raises:
            KeyError: no node has the name.
        """
        return self._indices[name]

    @classmethod
    def from_model(
        cls,
        model: ov.Model,
        *,
        shapes: Mapping[str, Sequence[int]] | None = None,
        nodes: Nodes | None = None,
        counted: bool = True,
    ) -> ComputationGraph:
        """Extracts the graph of `model`, which is left as it is.

        Args:
            model: any model.
            shapes: example shapes of dynamic inputs, by any of the input's tensor names or its friendly name.
            nodes: the model's nodes, where the caller has them already.
            counted: whether the sizes matter, for costs. If not, sizes that the model does not accept are allowed.

        Returns:
            The graph, its nodes in topological order.

        Raises:
            UserError: `shapes` name no input of the model or do not fit it; or no sizes are known that the model
                accepts.
        """
        nodes = nodes or Nodes(model)
        inference = Inference(model, nodes)
        inferred = inference.without_lost_values()
        static = inference.with_static_inputs(shapes) if model.is_dynamic() else None
        if counted and static is None and is_unbounded(model):
            refuse_unknown_sizes(model)
        if shapes and static is None:
            input_shapes(model, shapes)  # checks names and ranks even where no example is needed
        return _extracted(nodes, static or nodes.order, inferred)

    def with_copies(
        self, model: ov.Model, copied: Mapping[str, int], inputs: Sequence[tuple[str, int, str]]
    ) -> ComputationGraph:
        """Returns the graph after nodes were copied; faster than `from_model`, as a copy has its original's properties.

        Args:
            model: the changed model: this graph's model, with copies that feed some of the nodes instead of the
                originals.
            copied: number of the original of each copy, by the copy's friendly name.
            inputs: the input ports that a copy feeds: name of the reading node, number of its port, name of the copy.

        Returns:
            The graph of the changed model. Originals whose readers all read copies may be gone.
        """
        names = tuple(node.get_friendly_name() for node in model.get_ordered_ops())
        original_of = np.array([copied[name] if name in copied else self._indices[name] for name in names], np.int64)
        outputs, ports = np.diff(self.output_ptr)[original_of], np.diff(self.input_ptr)[original_of]
        output_ptr = np.concatenate([[0], np.cumsum(outputs)]).astype(np.int32)
        input_ptr = np.concatenate([[0], np.cumsum(ports)]).astype(np.int32)
        # Number in this graph of each output and each input of the new graph.
        old_output = np.arange(output_ptr[-1]) + np.repeat(self.output_ptr[original_of] - output_ptr[:-1], outputs)
        old_input = np.arange(input_ptr[-1]) + np.repeat(self.input_ptr[original_of] - input_ptr[:-1], ports)
        # The new number of each original that is still there, else -1: some fed only ports that copies feed now.
        position = np.full(self.nodes, -1, np.int64)
        original = np.array([name not in copied for name in names], bool)
        position[original_of[original]] = np.flatnonzero(original)
        fed = self.input_output[old_input]
        source, port = position[self.output_node[fed]], fed - self.output_ptr[self.output_node[fed]]
        by_name = {name: index for index, name in enumerate(names)}
        for name, place, feeding in inputs:
            source[input_ptr[by_name[name]] + place] = by_name[feeding]
        arrays: dict[str, Any] = {"names": names, "input_ptr": input_ptr, "output_ptr": output_ptr}
        arrays["input_output"] = (output_ptr[source] + port).astype(np.int32)
        places = {"nodes": original_of, "outputs": old_output}
        for attribute in fields(self):
            value = getattr(self, attribute.name)
            if attribute.name not in arrays and value is not None:
                at = places[attribute.metadata["axes"][0]]
                arrays[attribute.name] = _rows(value, at)
        return ComputationGraph(**arrays)

    def renumbered(self, order: NDArray[np.integer[Any]]) -> ComputationGraph:
        """Returns the same graph with its nodes in another topological order.

        Args:
            order: numbers of the nodes in this graph, in the new order, [nodes].
        """
        outputs = pieces(self.output_ptr, order)
        rows = {"nodes": order, "outputs": outputs}
        changed: dict[str, Any] = {
            attribute.name: _rows(getattr(self, attribute.name), rows[attribute.metadata["axes"][0]])
            for attribute in fields(self)
            if attribute.metadata["axes"][0] in rows and getattr(self, attribute.name) is not None
        }
        for name in ("input_ptr", "output_ptr"):
            sizes = np.diff(getattr(self, name))[order]
            changed[name] = np.concatenate([[0], sizes.cumsum()]).astype(np.int32)
        changed["input_output"] = inverse(outputs)[self.input_output[pieces(self.input_ptr, order)]].astype(np.int32)
        return replace(self, **changed)

    def resized(self, model: ov.Model, shapes: Mapping[str, Sequence[int]]) -> ComputationGraph:
        """Returns the same graph with the sizes of other example shapes; faster than `from_model`.

        Args:
            model: the model of this graph.
            shapes: example shapes of dynamic inputs, by any of the input's tensor names or its friendly name.

        Raises:
            UserError: as `from_model`.
        """
        nodes = Nodes(model)
        static = Inference(model, nodes).with_static_inputs(shapes) if model.is_dynamic() else None
        if static is None:
            input_shapes(model, shapes)
            return self
        sized = _extracted(nodes, static, None)
        return replace(self, **{name: getattr(sized, name) for name in ("output_shapes", "output_bytes", "flops")})


def pieces(ptr: NDArray[np.int32], order: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Lists the ports of nodes in a given order.

    Args:
        ptr: where each node's ports begin, int32 [nodes + 1].
        order: numbers of the nodes, in any order.

    Returns:
        Numbers of the ports of the first node, then of the second one and so on, int64 [ports].
    """
    sizes = np.diff(ptr)[order]
    first = ptr[:-1][order] - (sizes.cumsum() - sizes)
    return np.arange(sizes.sum()) + np.repeat(first, sizes)


def inverse(order: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Inverts a permutation: returns the position of each number in `order`, int64 [count]."""
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return place


def _rows(values: Any, index: NDArray[np.integer[Any]]) -> Any:
    """Selects rows of a tuple or an array; the result has the same type."""
    return tuple([values[row] for row in index.tolist()]) if isinstance(values, tuple) else values[index]


# Bytes that a tensor of open size counts with at most. Its size may be a guess, which must not make a model refused.
_MOST_OPEN_BYTES = 2**40


def _tensor_bytes(shape: Sequence[int], element: ov.Type, is_open: bool) -> int:
    """Computes the size of a tensor in bytes.

    Args:
        shape: the sizes that costs count with.
        element: the element type.
        is_open: whether the model leaves a size open; the result is at most `_MOST_OPEN_BYTES` then.

    Raises:
        UserError: a tensor of fixed size is larger than any machine's memory.
    """
    size = -(-math.prod(shape) * element.bitwidth // 8)
    if is_open:
        return min(size, _MOST_OPEN_BYTES)
    if size > _native.MOST_BYTES:
        raise UserError(f"a tensor of shape {list(shape)} fits into no machine; give other example shapes")
    return size


class _Tensor(NamedTuple):
    """The values that `ComputationGraph` has for one output, under the names of its arrays."""

    output_shapes: tuple[int, ...]
    output_ranks: int
    output_types: str
    output_movable: bool
    output_relaxable: bool
    output_bytes: int


# Shapes that a submodel infers where it does not know the values that become dimensions, by numbers of node and output,
# see `Inference.without_lost_values`. Outputs that are not here are static.
_InferredShapes = Mapping[tuple[int, int], "ov.PartialShape"]


def _extracted(nodes: Nodes, sized: Sequence[ov.Node], inferred: _InferredShapes | None) -> ComputationGraph:
    """Makes the graph of `nodes` from their properties.

    The model is read in one pass, because every call into OpenVINO costs about a microsecond.

    Args:
        nodes: the model's nodes.
        sized: nodes in the same order, of the model or of a copy, whose shapes costs count with.
        inferred: shapes that a submodel infers, see `_InferredShapes`; None where these are the declared ones.

    Raises:
        UserError: tensors or operations are larger than any machine can handle.
    """
    kinds = [KINDS.get(type_name, NodeKind.OP) for type_name in nodes.types]
    outputs = _OutputTable(sized, inferred)
    costs = _CostTable.empty(len(nodes))
    ptr, source, port = (array.tolist() for array in (nodes.edges.ptr, nodes.edges.source, nodes.edges.output))
    for index, (node, kind, declared) in enumerate(zip(nodes.order, kinds, nodes.outputs, strict=True)):
        # For HETERO and for costs, a Result has no tensor of its own.
        outputs.add(node, declared if kind is not NodeKind.RESULT else ())
        if kind is NodeKind.CONSTANT:
            costs.weight_bytes[index] = outputs.tensors[-1].output_bytes
        elif kind is NodeKind.OP:
            edges = slice(ptr[index], ptr[index + 1])
            inputs = outputs.shapes_of(source[edges], port[edges])
            costs.add(index, node, nodes.types[index], inputs, outputs.last_shapes())
    return _graph_of(nodes, kinds, outputs, costs)


@dataclass(frozen=True, eq=False)
class _OutputTable:
    """The outputs of the nodes, which are added node by node.

    They are kept by shape, because models have many tensors and few shapes.

    Attributes:
        sized: nodes of the model or of a copy, whose shapes costs count with, see `_extracted`.
        inferred: shapes that a submodel infers, see `_InferredShapes`; None where these are the declared ones.
        tensors: the outputs of the nodes that were added, one node after the other.
        ptr: where the outputs of each node begin, and the number of outputs so far.
        by_shape: the outputs by what determines them: declared, counted and inferred shape, and element type.
    """

    sized: Sequence[ov.Node]
    inferred: _InferredShapes | None
    tensors: list[_Tensor] = field(default_factory=list)
    ptr: list[int] = field(default_factory=lambda: [0])
    by_shape: dict[tuple[str, ...], _Tensor] = field(default_factory=dict)

    def add(self, node: ov.Node, outputs: Sequence[tuple[str, str]]) -> None:
        """Adds the outputs of the next node.

        Args:
            node: the node.
            outputs: declared shape and element type of each output, as text.
        """
        index = len(self.ptr) - 1
        for number, (declared, element) in enumerate(outputs):
            sized = self.sized[index]
            counted = declared if sized is node else str(sized.get_output_partial_shape(number))
            inferred_shape = None if self.inferred is None else self.inferred.get((index, number))
            key = (declared, counted, "" if inferred_shape is None else str(inferred_shape), element)
            if key not in self.by_shape:
                partial = node.get_output_partial_shape(number)
                self.by_shape[key] = _tensor(node, number, sized, partial if self.inferred is None else inferred_shape)
            self.tensors.append(self.by_shape[key])
        self.ptr.append(len(self.tensors))

    def shapes_of(self, nodes: Sequence[int], ports: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """Returns the shapes of outputs.

        Args:
            nodes: number of the node of each output.
            ports: number of each output among those of its node.
        """
        pairs = zip(nodes, ports, strict=True)
        return tuple([self.tensors[self.ptr[node] + port].output_shapes for node, port in pairs])

    def last_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Returns the shapes of the outputs of the node that was added last."""
        return tuple([tensor.output_shapes for tensor in self.tensors[self.ptr[-2] :]])


@dataclass(frozen=True, eq=False)
class _CostTable:
    """What the costs of the nodes depend on; zeros for nodes that were not added.

    Attributes:
        flops: floating-point operations, float64 [nodes].
        weight_bytes: bytes of weights, int64 [nodes].
        open_lengths: whether a node takes open lengths, see `takes_open_lengths`, bool [nodes].
        flops_of: floating-point operations by what determines them, as many operations are alike.
    """

    flops: NDArray[np.float64]
    weight_bytes: NDArray[np.int64]
    open_lengths: NDArray[np.bool_]
    flops_of: dict[object, float]

    @classmethod
    def empty(cls, count: int) -> _CostTable:
        """Makes the table of a number of nodes, without any node."""
        return cls(np.zeros(count), np.zeros(count, np.int64), np.zeros(count, np.bool_), {})

    def add(
        self,
        index: int,
        node: ov.Node,
        type_name: str,
        inputs: tuple[tuple[int, ...], ...],
        outputs: tuple[tuple[int, ...], ...],
    ) -> None:
        """Adds an operation.

        Args:
            index: number of the node.
            node: the node.
            type_name: its type.
            inputs: shapes of its inputs, which costs count with.
            outputs: shapes of its outputs.
        """
        alike: object = (type_name, inputs, outputs)
        if type_name in SUBGRAPHS:
            alike, self.weight_bytes[index] = index, body_weight_bytes(node)
        if alike not in self.flops_of:
            self.flops_of[alike] = node_flops(node, inputs, outputs)
        self.flops[index] = self.flops_of[alike]
        self.open_lengths[index] = type_name == "Gather" and takes_open_lengths(node)


def _graph_of(nodes: Nodes, kinds: Sequence[NodeKind], outputs: _OutputTable, costs: _CostTable) -> ComputationGraph:
    """Makes the graph of tables of all its nodes.

    Args:
        nodes: the model's nodes.
        kinds: kind of each node.
        outputs: the outputs of all nodes.
        costs: the costs of all nodes.

    Raises:
        UserError: the tensors together are larger than any machine can handle.
    """
    rows: Iterable[tuple[Any, ...]] = (
        zip(*outputs.tensors, strict=True) if outputs.tensors else [()] * len(_Tensor._fields)
    )
    columns = dict(zip(_Tensor._fields, rows, strict=True))
    if sum(columns["output_bytes"]) > _native.MOST_BYTES:
        raise UserError("the model's tensors have more bytes than any machine holds; give other example shapes")
    starts = np.array(outputs.ptr, np.int32)
    return ComputationGraph(
        names=tuple(nodes.names),
        types=tuple(nodes.types),
        kinds=np.array(kinds, np.uint8),
        input_ptr=nodes.edges.ptr.astype(np.int32),
        input_output=starts[nodes.edges.source] + nodes.edges.output.astype(np.int32),
        output_ptr=starts,
        output_bytes=np.array(columns["output_bytes"], np.int64),
        output_shapes=columns["output_shapes"],
        output_ranks=np.array(columns["output_ranks"], np.int16),
        output_movable=np.array(columns["output_movable"], bool),
        output_types=columns["output_types"],
        flops=costs.flops,
        weight_bytes=costs.weight_bytes,
        variables=tuple([_variable_of(node, kind) for node, kind in zip(nodes.order, nodes.types, strict=True)]),
        open_lengths=costs.open_lengths,
        output_relaxable=np.array(columns["output_relaxable"], bool) if any(columns["output_relaxable"]) else None,
    )


def _variable_of(node: ov.Node, type_name: str) -> str:
    """Returns the name of the variable that a node belongs to; "" for none."""
    return str(node.get_attributes().get("variable_id", "")) if type_name in _STATEFUL else ""


def _tensor(node: ov.Node, port: int, sized: ov.Node, inferred_shape: ov.PartialShape | None) -> _Tensor:
    """Reads the properties of an output.

    Args:
        node: the node, with declared shapes.
        port: number of the output.
        sized: the same node, of the model or of a copy, whose shapes costs count with.
        inferred_shape: the shape that a submodel infers without values; None if it is static there.
    """
    partial, element = node.get_output_partial_shape(port), node.get_output_element_type(port)
    shape, movable = bounded(sized.get_output_partial_shape(port)), _may_be_empty(partial, inferred_shape)
    is_text = element.get_type_name() == "string"
    return _Tensor(
        output_shapes=shape,
        output_ranks=partial.rank.get_length() if partial.rank.is_static else -1,
        output_types=element.get_type_name(),
        output_movable=not is_text and movable,
        output_relaxable=not is_text and not movable and _may_be_empty(relaxed(partial), inferred_shape),
        output_bytes=_tensor_bytes(shape, element, partial.is_dynamic),
    )


# Types of nodes that belong to a variable.
_STATEFUL = frozenset({"ReadValue", "Assign"})


def _may_be_empty(declared_shape: ov.PartialShape, inferred_shape: ov.PartialShape | None) -> bool:
    """Whether the declared shape allows 0 for every dimension that a submodel cannot infer.

    HETERO connects submodels with tensors that have 0 in these dimensions at first.

    Args:
        declared_shape: the declared shape.
        inferred_shape: the shape that a submodel infers without the values that become dimensions; None if static.
    """
    if inferred_shape is None or inferred_shape.is_static:
        return True
    return inferred_shape.rank.is_static and all(
        inferred.is_static or (declared.is_dynamic and declared.get_min_length() <= 0)
        for declared, inferred in zip(declared_shape, inferred_shape, strict=True)
    )
