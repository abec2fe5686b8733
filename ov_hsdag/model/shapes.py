"""Finds static shapes for the inputs and tensors of a model with dynamic shapes.

A size is open if the model declares no upper bound for it. An example shape is a static shape that a user or a file
gives for one input. The assumed shapes of a model are the combinations of static input shapes that are tried where
example shapes leave sizes open. The counted shapes are the first of them that fit: costs count with these. An NPU takes
no open sizes, so its models get the example shapes permanently.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from ov_hsdag.devices.device_set import kind_of
from ov_hsdag.model.lengths import takes_open_lengths, upper_bound
from ov_hsdag.model.nodes import Nodes, is_integral
from ov_hsdag.model.own_sizes import fixed_by_weights, suggested_sizes
from ov_hsdag.model.workload import CACHE_POSITIONS, cache_positions, past_length
from ov_hsdag.utils.errors import UserError, one_line
from ov_hsdag.utils.lazy import op, ov
from ov_hsdag.utils.warn import warn_caller

Examples = Mapping[str, Sequence[int]]  # example shapes of inputs, by their names

# Sizes of unbounded dimensions without an example shape: one request of a moderate length, or of a smaller length
# where the model takes no other.
UNBOUNDED_BATCH = 1
UNBOUNDED_DIMENSION = 128
SMALLER_DIMENSIONS = (64, 32, 16, 8)

# Sizes of images. A model that pools over a fixed window and then classifies takes only one size, mostly one of these.
IMAGE_DIMENSIONS = (224, 256, 299, 512)

# Elements up to which a tensor of integers may hold dimensions; larger ones are data.
_MOST_DIMENSION_ELEMENTS = 32

# Number of nodes from which on copying a model takes over a second, so that it is copied once.
_LARGE = 4000


def bounded(shape: ov.PartialShape) -> tuple[int, ...]:
    """Returns the sizes with which costs count a shape: upper bounds, or `UNBOUNDED_DIMENSION` where there are none."""
    if shape.is_static:
        return tuple(shape.to_shape())
    if shape.rank.is_dynamic:
        return (UNBOUNDED_DIMENSION,)
    return tuple(bounded_dimension(dimension, UNBOUNDED_DIMENSION) for dimension in shape)


def bounded_dimension(dimension: Any, default: int, *, at_bounds: bool = True) -> int:
    """Returns the size that a dimension counts with.

    Args:
        dimension: an `ov.Dimension`.
        default: size of a dimension without an upper bound.
        at_bounds: whether a dimension with an upper bound has that size; if not, it has the smaller of bound and
            `default`.

    Returns:
        The size in elements, which is at least the lower bound.
    """
    upper = upper_bound(dimension)
    wanted = default if upper is None else upper if at_bounds else min(upper, default)
    return max(wanted, int(dimension.get_min_length()))


def is_unbounded(model: ov.Model) -> bool:
    """Whether sizes of the model are guesses, because an input has a dimension (or a rank) without a bound."""
    return any(map(_is_unbounded_port, model.inputs))


def has_guessed_sizes(model: ov.Model, shapes: Mapping[str, Sequence[int]] | None) -> bool:
    """Whether an input has a dimension without a bound and no example shape.

    Args:
        model: any model.
        shapes: example shapes by any name of an input.
    """
    names = (
        {port.get_node().get_friendly_name(), *port.get_names()} for port in filter(_is_unbounded_port, model.inputs)
    )
    return any(not own & set(shapes or {}) for own in names)


def _is_unbounded_port(port: ov.Output) -> bool:
    """Whether a tensor has an open size or an open rank."""
    shape = port.get_partial_shape()
    return shape.rank.is_dynamic or any(upper_bound(dimension) is None for dimension in shape)


def input_name(port: ov.Output) -> str:
    """Returns the name of an input for users: its first tensor name in the alphabet, else its friendly name."""
    return min(port.get_names(), default=port.get_node().get_friendly_name())


def sized(name: str, sizes: Sequence[int]) -> str:
    """Formats an input's name and shape as the option --shape takes them: "ids=[1,128]"."""
    return f"{name}=[{','.join(map(str, sizes))}]"


def has_npu(devices: Iterable[str]) -> bool:
    """Whether an NPU is among the devices. If so, example shapes are fixed in the model, see `fix_npu_sizes`."""
    return any(kind_of(name) == "NPU" for name in devices)


def check_npu_sizes(model: ov.Model, devices: Iterable[str], shapes: Examples | None = None) -> None:
    """Checks that `fix_npu_sizes` can fix all open inputs, if an NPU is among the devices.

    Args:
        model: the model as it would be compiled.
        devices: names of the devices that it may run on.
        shapes: example shapes that the user gave, by input name.

    Raises:
        UserError: an input is open and has no example shape, or the model has states.
    """
    if has_npu(devices) and is_unbounded(model) and (model.get_sinks() or has_guessed_sizes(model, shapes)):
        raise UserError(describe_open_sizes(model, shapes))


def fix_npu_sizes(model: ov.Model, devices: Iterable[str], shapes: Examples | None = None) -> None:
    """Gives open inputs the sizes of the example shapes permanently, with a warning, if an NPU is among the devices.

    An NPU's compiler refuses open sizes (openvino#34617). The inputs of a model with states cannot be fixed: the tokens
    that it generates have another length than the prompt.

    Args:
        model: the model as it would be compiled; changed in place.
        devices: names of the devices that it may run on.
        shapes: example shapes that the user gave, by input name.

    Raises:
        UserError: an input is open and has no example shape, the model has states, or the shapes do not fit.
    """
    check_npu_sizes(model, devices, shapes)
    if has_npu(devices) and is_unbounded(model):
        fix_input_shapes(model, shapes or {})
        sizes = ",".join(sized(input_name(port), tuple(port.get_shape())) for port in model.inputs)
        warn_caller(
            f"an NPU takes no open sizes, so {sizes} is fixed: the placed model takes no other sizes"
            " (leave the NPU out to keep them open)"
        )


def describe_open_sizes(model: ov.Model, shapes: Examples | None = None) -> str:
    """Explains which open size an NPU's compiler refuses (openvino#34617), and the remedy.

    Args:
        model: a model with an open size.
        shapes: example shapes by input name.
    """
    sizes = zip(model.inputs, counted_input_shapes(model, shapes), strict=True)
    fixed = [sized(input_name(port), size) for port, size in sizes if _is_unbounded_port(port)]
    static = "--static " if model.get_sinks() else ""
    first_open = _describe_open_dimension(next(filter(_is_unbounded_port, model.inputs)))
    return (
        f"an NPU takes no open sizes, and {first_open}: fix it with"
        f" {static}--shape '{','.join(fixed)}' (ovc: --input), or leave the NPU out"
    )


def names_open_sizes(model: ov.Model, shapes: Examples) -> bool:
    """Whether any input with a dynamic dimension has an example shape.

    Args:
        model: any model.
        shapes: example shapes by any name of an input.
    """
    return any(
        not {port.get_node().get_friendly_name(), *port.get_names()}.isdisjoint(shapes)
        for port in model.inputs
        if port.get_partial_shape().is_dynamic
    )


def refuse_unknown_sizes(model: ov.Model) -> None:
    """Raises the error for a model that takes none of `assumed_shapes`, so that its costs cannot be computed.

    Raises:
        UserError: always, with the tried sizes and OpenVINO's reason.
    """
    sizes = input_shapes(model, {})
    tried = [
        sized(input_name(port), size)
        for port, size in zip(model.inputs, sizes, strict=True)
        if port.get_partial_shape().is_dynamic
    ]
    reason = ""
    try:
        model.clone().reshape({index: ov.PartialShape(size) for index, size in enumerate(sizes)})
    except RuntimeError as error:
        reason = f" (OpenVINO: {one_line(error)})"
    raise UserError(
        f"it is not known which sizes the model takes, and {','.join(tried)} does not fit: give some that it takes with"
        f" --shape (Python: shapes; ovc: --input){reason}"
    )


def with_open_sizes(model: ov.Model) -> list[str]:
    """Lists nodes that read or produce a tensor with an open size, which an NPU's compiler refuses (openvino#34617).

    Some are open whatever the inputs' sizes are: a state that grows, or a result with as many rows as objects were
    found.

    Returns:
        Friendly names of the nodes.
    """
    nodes = model.get_ops() if model.is_dynamic() else []
    open_nodes = (node for node in nodes if any(map(_is_unbounded_port, (*node.outputs(), *node.input_values()))))
    return [node.get_friendly_name() for node in open_nodes]


def fix_input_shapes(model: ov.Model, shapes: Examples) -> None:
    """Reshapes a model to static inputs, in place.

    Args:
        model: the model.
        shapes: shapes by input name, for each input with a dynamic dimension.

    Raises:
        UserError: an input is open and has no size in `shapes`, or the sizes do not fit.
    """
    sizes = input_shapes(model, shapes)
    for port, size in zip(model.inputs, sizes, strict=True):
        named = {port.get_node().get_friendly_name(), *port.get_names()} & shapes.keys()
        if port.get_partial_shape().is_dynamic and not named:
            how = f"give its size, such as --shape '{sized(input_name(port), size)}'"
            raise UserError(f"{_describe_open_dimension(port)}, and is to be fixed: {how}")
    try:
        model.reshape({port: ov.PartialShape(size) for port, size in zip(model.inputs, sizes, strict=True)})
    except RuntimeError as error:
        raise UserError(f"the model does not take these shapes: {one_line(error)}") from error


def _describe_open_dimension(port: ov.Output) -> str:
    """Names the first dynamic dimension of an input, for messages; the rank if that is open."""
    shape = port.get_partial_shape()
    if shape.rank.is_dynamic:
        return f"the number of dimensions of input '{input_name(port)}' is open"
    axis = next(axis for axis, one in enumerate(shape) if one.is_dynamic)
    return f"dimension {axis} of input '{input_name(port)}' {shape} is open"


def assumed_sizes(
    model: ov.Model, shapes: Examples | None = None, used: Examples | None = None
) -> dict[str, tuple[int, ...]]:
    """Returns the assumed shapes of inputs that have open sizes and no example shape.

    Args:
        model: any model.
        shapes: example shapes that the user gave, by input name.
        used: example shapes that costs count with; by default the same.

    Returns:
        Shapes that costs count with, by input name; empty if no input has a dimension without a bound.
    """
    if not is_unbounded(model):
        return {}
    counted = counted_input_shapes(model, shapes if used is None else used)
    return {
        input_name(port): size
        for port, size in zip(model.inputs, counted, strict=True)
        if port.get_partial_shape().is_dynamic
        and {port.get_node().get_friendly_name(), *port.get_names()}.isdisjoint(shapes or {})
    }


def counted_input_shapes(model: ov.Model, shapes: Examples | None = None) -> list[tuple[int, ...]]:
    """Returns the shapes that costs count with: the first of `assumed_shapes` with which all shapes can be inferred.

    Args:
        model: any model.
        shapes: example shapes of dynamic inputs, as in `ComputationGraph.from_model`.

    Returns:
        One shape for each input, in order. If none of `assumed_shapes` fits, it is the first of them.

    Raises:
        UserError: as `input_shapes`, or the example shapes do not fit the model.
    """
    return fitting_input_shapes(model, shapes) or [tuple(shape) for shape in assumed_shapes(model, shapes)[0]]


def fitting_input_shapes(model: ov.Model, shapes: Examples | None = None) -> list[tuple[int, ...]] | None:
    """Returns the first of `assumed_shapes` with which all shapes can be inferred; None if there is none.

    Args:
        model: any model.
        shapes: example shapes of dynamic inputs, by input name.

    Raises:
        UserError: as `input_shapes`, or the example shapes do not fit the model.
    """
    fitting = assumed_shapes(model, shapes)[0]
    if model.is_dynamic():
        inference = Inference(model, Nodes(model))
        if inference.with_static_inputs(shapes) is None:
            return None
        fitting = inference.sizes
    return [tuple(shape) for shape in fitting]


def assumed_shapes(model: ov.Model, shapes: Examples | None = None) -> list[list[list[int]]]:
    """Lists the combinations of input shapes to try for a model, in order of preference.

    There are several where a size is open and `shapes` do not give it. The batch is the one that all of `shapes` have,
    then 1. Other open sizes are `UNBOUNDED_DIMENSION`, those that `shapes` give to other inputs, smaller ones, and
    those that images usually have or that the model's own constants and windows suggest. Dimensions with an upper bound
    have that size first, and then the tried one where it is smaller.

    Args:
        model: any model.
        shapes: example shapes of dynamic inputs, by input name.

    Returns:
        A list of alternatives; each has a shape for each input, in order.

    Raises:
        UserError: as `input_shapes`.
    """
    alternatives: list[list[list[int]]] = []
    given_batch, given_sizes = _example_open_sizes(model, shapes or {})
    others = (size for size in SMALLER_DIMENSIONS if size < UNBOUNDED_DIMENSION)
    usual = (UNBOUNDED_DIMENSION, *given_sizes, *others, *(IMAGE_DIMENSIONS if _takes_images(model) else ()))
    sizes = tuple(dict.fromkeys((*usual, *suggested_sizes(model)))) if is_unbounded(model) else usual
    for batch, at_bounds, size in product(dict.fromkeys((given_batch, UNBOUNDED_BATCH)), (True, False), sizes):
        alternative = input_shapes(model, shapes or {}, size, at_bounds=at_bounds, batch=batch)
        if alternative not in alternatives:
            alternatives.append(alternative)
    return alternatives


def _example_open_sizes(model: ov.Model, shapes: Examples) -> tuple[int, list[int]]:
    """Finds the sizes that example shapes give open dimensions.

    Returns:
        (batch, sizes): the size of all open first dimensions, or `UNBOUNDED_BATCH` where they differ or there are none;
        and the different sizes of other open dimensions.
    """
    batches, sizes = set[int](), dict[int, None]()
    for port in model.inputs:
        example, shape = _example_of(port, shapes), port.get_partial_shape()
        if example is None or shape.rank.is_dynamic or len(shape) != len(example):
            continue
        for axis, (dimension, size) in enumerate(zip(shape, example, strict=True)):
            if upper_bound(dimension) is None and axis:
                sizes[size] = None
            elif upper_bound(dimension) is None:
                batches.add(size)
    return (batches.pop() if len(batches) == 1 else UNBOUNDED_BATCH), [*sizes]


def _example_of(port: ov.Output, shapes: Examples) -> list[int] | None:
    """Returns the example shape of an input; None if it has none. Raises UserError where it is not a list of sizes."""
    names = {port.get_node().get_friendly_name(), *port.get_names()}
    name = next((name for name in shapes if name in names), None)
    return None if name is None else _example(name, shapes[name])


def _sizes_by_symbol(model: ov.Model, shapes: Examples) -> list[tuple[Any, int]]:
    """Lists the symbols of inputs' dimensions, with the size that the input's example shape gives to each.

    Dimensions with equal symbols are equal in every inference (`ov.Dimension.get_symbol`).
    """
    sizes_by_symbol = []
    for port in model.inputs:
        example, shape = _example_of(port, shapes), port.get_partial_shape()
        if example is not None and shape.rank.is_static and len(shape) == len(example):
            sizes = zip(shape, example, strict=True)
            sizes_by_symbol += [(dimension.get_symbol(), size) for dimension, size in sizes if dimension.has_symbol()]
    return sizes_by_symbol


def smaller_shapes(model: ov.Model, shapes: Examples | None = None) -> list[dict[str, tuple[int, ...]]]:
    """Lists smaller shapes to try where an inference with the shapes of `counted_input_shapes` fails.

    Args:
        model: any model.
        shapes: example shapes of dynamic inputs, by input name.

    Returns:
        Shapes of all inputs by friendly name, in the order of `assumed_shapes`; [] if there are none.

    Raises:
        UserError: as `fitting_input_shapes`.
    """
    names = [parameter.get_friendly_name() for parameter in model.get_parameters()]
    if len(set(names)) < len(names):
        return []
    alternatives = [[tuple(shape) for shape in alternative] for alternative in assumed_shapes(model, shapes)]
    counted = fitting_input_shapes(model, shapes) if len(alternatives) > 1 else None
    if counted is None:
        return []
    smaller = (alternative for alternative in alternatives[alternatives.index(counted) + 1 :] if alternative < counted)
    return [dict(zip(names, alternative, strict=True)) for alternative in smaller]


def _takes_images(model: ov.Model) -> bool:
    """Whether an input has rank 4 and leaves height and width open."""
    return any(
        shape.rank.is_static and len(shape) == 4 and sum(upper_bound(one) is None for one in list(shape)[1:]) > 1
        for shape in (port.get_partial_shape() for port in model.inputs)
    )


def input_shapes(
    model: ov.Model,
    shapes: Examples,
    size: int = UNBOUNDED_DIMENSION,
    *,
    at_bounds: bool = True,
    batch: int = UNBOUNDED_BATCH,
) -> list[list[int]]:
    """Returns a static shape for every input: the user's example, else upper bounds, else `batch` and `size`.

    Dimensions with the same symbol as one of an example have its size. Dimensions that weights multiply (channels,
    features) have the weights' size instead of `size`.

    Args:
        model: any model.
        shapes: example shapes, by any of the input's tensor names or its friendly name.
        size: elements of other open dimensions.
        at_bounds: whether dimensions with an upper bound have that size; if not, they have the smaller of it and
            `size`.
        batch: elements of open first dimensions.

    Returns:
        One shape for each input, in order.

    Raises:
        UserError: `shapes` name no input of the model, or do not fit.
    """
    remaining = dict(shapes)
    by_symbol = _sizes_by_symbol(model, shapes)
    result = []
    for port in model.inputs:
        names = {port.get_node().get_friendly_name(), *port.get_names()}
        name = next((name for name in remaining if name in names), None)
        partial = port.get_partial_shape()
        if name is not None:
            example = _example(name, remaining.pop(name))
            if not partial.compatible(type(partial)(example)):
                raise UserError(f"example shape {example} does not fit input '{name}' of shape {partial}")
            result.append(example)
        elif partial.rank.is_dynamic:
            result.append([batch, size])
        elif CACHE_POSITIONS in names and partial.rank == 1 and partial[0].is_dynamic:
            result.append([cache_positions(model, size)])
        else:
            fixed = fixed_by_weights(port) | _fixed_by_symbols(partial, by_symbol)
            sizes = [
                bounded_dimension(dimension, fixed.get(axis, size if axis else batch), at_bounds=at_bounds)
                for axis, dimension in enumerate(partial)
            ]
            result.append(sizes)
    if remaining:
        known = ", ".join(sorted(name for port in model.inputs for name in port.get_names())) or "none"
        raise UserError(f"example shape for unknown input '{next(iter(remaining))}'; inputs of the model: {known}")
    return result


def _fixed_by_symbols(shape: ov.PartialShape, sizes: Sequence[tuple[Any, int]]) -> dict[int, int]:
    """Returns the sizes of a shape's dimensions that follow from their symbols, by axis.

    Args:
        shape: the shape.
        sizes: symbols and their sizes, as `_sizes_by_symbol` lists them.
    """
    return {
        axis: size
        for axis, dimension in enumerate(shape if sizes else ())
        for symbol, size in sizes
        if dimension.has_symbol() and dimension.get_symbol() == symbol
    }


def _example(name: str, sizes: Sequence[int]) -> list[int]:
    """Converts the example shape of the input `name` to a list of int. Raises UserError where it has no valid sizes."""
    try:
        example = [operator.index(size) for size in sizes]
    except TypeError as error:
        raise UserError(f"the example shape of '{name}' must be a list of whole numbers, got {sizes!r}") from error
    if not all(0 <= size < 2**31 for size in example):
        raise UserError(f"example shape {example} of '{name}' has an invalid dimension")
    return example


class Inference:
    """Infers the shapes of a model's tensors under other conditions than it declares, on a copy of it.

    Copying a large model takes over a second, so both methods use the same copy of a large model. So
    `with_static_inputs`, which reshapes the copy, must be the last call.

    Attributes:
        sizes: the inputs' shapes with which `with_static_inputs` succeeded; [] before.
    """

    def __init__(self, model: ov.Model, nodes: Nodes) -> None:
        """Remembers a model, which is left as it is; `nodes` are its nodes."""
        self._model, self._nodes = model, nodes
        self._large = len(nodes) >= _LARGE
        self._copy: ov.Model | None = None  # made by `_current_copy`
        self._copied: list[ov.Node] = []  # nodes of the copy, in the order of `nodes`
        self.sizes: list[list[int]] = []

    def without_lost_values(self) -> dict[tuple[int, int], ov.PartialShape] | None:
        """Infers the shapes that a submodel would know, where plugins lose values that become dimensions.

        OpenVINO follows the values of small integer tensors from ShapeOf to the place where they become dimensions.
        Plugins follow them as far, except through floating-point arithmetic. They replace operations there (2026.4: a
        power of 0.5 by a square root), OpenVINO does not follow the values of the new ones, and a tensor with one
        unknown value is unknown as a whole. A submodel also knows nothing about open lengths that are its inputs.

        Returns:
            The shapes that are dynamic then, by (number of node, number of output). None where the model has no such
            values, or where its shapes cannot be inferred without them.
        """
        numbers = _nodes_with_lost_values(self._nodes)
        if not numbers:
            return None
        copy = self._current_copy()
        variables = [(variable, variable.info) for variable in copy.get_variables()]
        replaced: list[tuple[Any, Any]] = []  # input ports and the outputs that fed them
        parameters = []
        for output in (output for number in numbers for output in self._copied[number].outputs()):
            parameters.append(op.Parameter(output.get_element_type(), output.get_partial_shape()))
            for reader in output.get_target_inputs():
                if reader.get_node().get_type_name() != "Result":
                    reader.replace_source_output(parameters[-1].output(0))
                    replaced.append((reader, output))
        try:
            copy.add_parameters(parameters)
            copy.validate_nodes_and_infer_types()
        except RuntimeError:
            self._copy = None
            return None  # some operation needs the values, so it would not work without them in a submodel either
        open_shapes = _open_shapes(self._copied)
        for reader, output in replaced:
            reader.replace_source_output(output)
        for parameter in parameters:
            copy.remove_parameter(parameter)
        for variable, info in variables:  # validating let Assigns change the shapes of their variables
            variable.update(info)
        if not self._large:
            self._copy = None  # reshape depends on the shapes of the copy, which are not the declared ones any more
        return open_shapes

    def with_static_inputs(self, shapes: Examples | None) -> list[ov.Node] | None:
        """Infers the shapes of all tensors, which are static as far as static inputs and states determine them.

        States that grow get the length that mask and tokens determine (mask minus tokens), or that of an input of
        unknown length, where that fits. No other method may be called afterwards.

        Args:
            shapes: example shapes, as in `input_shapes`.

        Returns:
            Nodes of a copy with the first of `assumed_shapes` that fits, in the order of the model's nodes; Parameters
            may stand in the place of ReadValues. None where no shapes fit.

        Raises:
            UserError: as `input_shapes`, or the example shapes do not fit the model.
        """
        # ov.Model.reshape first generalises operations that were written for one shape, in a time that grows faster
        # than the model. Where that is possible, OpenVINO's common transformations have done it before. So a large
        # model is first tried without.
        reason = ""
        ways = (True, False) if "ReadValue" in self._nodes.types else (False,)
        infers = (False, True) if self._large else (True,)
        for sizes, reshapes, sizes_states in product(assumed_shapes(self._model, shapes), infers, ways):
            try:
                nodes = self._infer_static([ov.PartialShape(shape) for shape in sizes], reshapes, sizes_states)
            except RuntimeError as error:
                self._copy, reason = None, one_line(error)
            else:
                self.sizes = sizes
                return nodes
        if shapes:
            assumed = [
                sized(min(names), size)
                for port, size in zip(self._model.inputs, sizes, strict=True)
                if port.get_partial_shape().is_dynamic
                and not (names := {port.get_node().get_friendly_name(), *port.get_names()}) & set(shapes)
            ]
            assumption = f" where {', '.join(assumed)} is assumed (give sizes of that, too)" if assumed else ""
            raise UserError(f"example shapes do not fit the model{assumption}: {reason}")
        return None

    def _current_copy(self) -> ov.Model:
        """Returns the copy of the model; makes it, and fills `self._copied`, if there is none."""
        if self._copy is None:
            self._copy = self._model.clone()
            self._copied = self._copy.get_ordered_ops()
            names = [node.get_friendly_name() for node in self._copied]
            if names != self._nodes.names:  # the copy may have another topological order
                by_name = dict(zip(names, self._copied, strict=True))
                self._copied = [by_name[name] for name in self._nodes.names]
        return self._copy

    def _infer_static(self, shapes: Sequence[ov.PartialShape], reshapes: bool, sizes_states: bool) -> list[ov.Node]:
        """Infers the shapes of the copy for one choice of shapes.

        Args:
            shapes: static shape of each input.
            reshapes: whether to use `ov.Model.reshape`; if not, the Parameters get the shapes.
            sizes_states: whether states that grow are replaced by Parameters of static shapes.

        Returns:
            Nodes in the order of the model's nodes, see `with_static_inputs`.

        Raises:
            RuntimeError: an operation refuses the shapes.
        """
        copy = self._current_copy()
        if reshapes:
            copy.reshape(dict(zip(copy.inputs, shapes, strict=True)))
        else:
            for parameter, shape in zip(copy.get_parameters(), shapes, strict=True):
                parameter.set_partial_shape(shape)
            if sizes_states:
                _infer_states(copy, [self._copied[number] for number in self._growing_states()])
        nodes = self._with_sized_states(copy) if sizes_states else self._copied
        if sizes_states or not reshapes:
            copy.validate_nodes_and_infer_types()
        return nodes

    def _growing_states(self) -> list[int]:
        """Lists the numbers of the ReadValues that have a dynamic dimension in the copy."""
        states = [number for number, type_name in enumerate(self._nodes.types) if type_name == "ReadValue"]
        shapes = [self._copied[number].get_output_partial_shape(0) for number in states]
        return [n for n, shape in zip(states, shapes, strict=True) if shape.is_dynamic and shape.rank.is_static]

    def _with_sized_states(self, copy: ov.Model) -> list[ov.Node]:
        """Replaces the states of the copy that grow by Parameters of static shapes.

        A state has the dimensions of its initial value where those are not empty (the batch). Its other dimensions are
        the length that mask and tokens determine, or that of an input of unknown length.

        Args:
            copy: the copy, which is changed in place.

        Returns:
            Nodes in the order of the model's nodes, with these Parameters in the place of their ReadValues.
        """
        past = past_length(copy)
        nodes, parameters = list(self._copied), []
        for number in self._growing_states():
            node = self._copied[number]
            declared = node.get_output_partial_shape(0)
            start = list(node.get_input_partial_shape(0)) if node.get_input_size() else []
            begun = [int(one.get_length()) if one.is_static else 0 for one in start] or [0] * len(declared)
            shape = [
                size or _state_length(dimension, axis, past)
                for axis, (dimension, size) in enumerate(zip(declared, begun, strict=True))
            ]
            nodes[number] = op.Parameter(node.get_output_element_type(0), type(declared)(shape))
            for reader in node.output(0).get_target_inputs():
                reader.replace_source_output(nodes[number].output(0))
            parameters.append(nodes[number])
        copy.add_parameters(parameters)
        return nodes


def _infer_states(copy: ov.Model, states: Sequence[ov.Node]) -> None:
    """Infers the shapes of ReadValues and of the nodes that compute their first values; else those of all nodes.

    Args:
        copy: the model, whose Parameters have new shapes.
        states: its ReadValues.

    Raises:
        RuntimeError: an operation refuses the shapes.
    """
    if not states:
        return
    try:
        results = [op.Result(state.output(0)) for state in states]
        ov.Model(results, copy.get_parameters(), "states").validate_nodes_and_infer_types()
    except RuntimeError:
        copy.validate_nodes_and_infer_types()


def _state_length(dimension: Any, axis: int, past: int | None) -> int:
    """Returns the size to count with for one dimension of a state.

    Args:
        dimension: the `ov.Dimension`.
        axis: its axis; 0 is the batch.
        past: number of tokens in the state; None if it is not known.
    """
    if dimension.is_static or past is None or axis == 0:
        return bounded_dimension(dimension, UNBOUNDED_BATCH if axis == 0 else UNBOUNDED_DIMENSION)
    return past


def _open_shapes(nodes: Sequence[ov.Node]) -> dict[tuple[int, int], ov.PartialShape]:
    """Returns the shapes that are dynamic, by (number of the node in the list, number of its output)."""
    found = {}
    for number, node in enumerate(nodes):
        for port in range(node.get_output_size()):
            shape = node.get_output_partial_shape(port)
            if shape.is_dynamic:
                found[number, port] = shape
    return found


def _nodes_with_lost_values(nodes: Nodes) -> list[int]:
    """Lists the nodes whose values a submodel does not know, see `Inference.without_lost_values`.

    These are nodes with few integers that are computed through a conversion from floating-point numbers, and Gathers
    that take open lengths.

    Returns:
        Numbers of the nodes, ascending.
    """
    sources, outputs = nodes.edges.source.tolist(), nodes.edges.output.tolist()
    ptr = nodes.edges.ptr.tolist()
    lost: set[int] = set()
    for number, (node, type_name) in enumerate(zip(nodes.order, nodes.types, strict=True)):
        if type_name in ("Parameter", "ShapeOf") or not _holds_dimensions(node, nodes.outputs[number]):
            continue
        first, last = ptr[number], ptr[number + 1]
        converted = type_name == "Convert" and not is_integral(nodes.outputs[sources[first]][outputs[first]][1])
        if converted or any(source in lost for source in sources[first:last]):
            lost.add(number)
    return [
        number
        for number, (node, type_name) in enumerate(zip(nodes.order, nodes.types, strict=True))
        if number in lost or (type_name == "Gather" and takes_open_lengths(node))
    ]


def _holds_dimensions(node: ov.Node, outputs: Sequence[tuple[str, str]]) -> bool:
    """Whether the first output of a node is a small tensor of integers, which may become dimensions.

    Args:
        node: the node.
        outputs: (shape, element type) of each output, as `Nodes.outputs` has them.
    """
    if not outputs or not is_integral(outputs[0][1]) or outputs[0][1] == "boolean":
        return False
    shape = node.get_output_partial_shape(0)
    return bool(shape.is_static and math.prod(shape.to_shape()) <= _MOST_DIMENSION_ELEMENTS)
