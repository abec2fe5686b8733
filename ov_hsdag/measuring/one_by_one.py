"""Compiles and runs each operation of a model alone, which shows what it computes without a device's optimizations."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.model.nodes import variable_of
from ov_hsdag.model.replay import infer
from ov_hsdag.utils.lazy import op, opset13, ov

# Property with which operations compute in f32, the reference for all other precisions.
_F32 = {"INFERENCE_PRECISION_HINT": "f32"}

_Values = dict[tuple[int, int], NDArray[Any]]
"""Outputs by the instance number of their node and their index among its outputs."""


class OneByOne:
    """Runs a model operation by operation on one device, in f32; each takes some milliseconds to compile.

    A stateful model keeps its states from one `infer` to the next; before the first one they have their initial values.
    """

    def __init__(self, core: ov.Core, device: str, model: ov.Model, advance: Callable[[str], None]) -> None:
        """Stores the arguments; nothing runs yet.

        Args:
            core: Core of the device.
            device: name of the device.
            model: the model; it is not changed.
            advance: called with a few words after every hundred operations.
        """
        self._core, self._device, self._model, self._advance = core, device, model, advance
        self._states: dict[str, NDArray[Any]] = {}

    def infer(self, inputs: Sequence[NDArray[Any]], end: float = math.inf) -> list[NDArray[Any]]:
        """Runs one inference, which starts from the states that the last one left, and stores the new ones.

        Args:
            inputs: values of the model's parameters, in their order.
            end: time of `time.monotonic` at which it gives up, seconds.

        Returns:
            The outputs, in the model's order.

        Raises:
            RuntimeError: an operation does not run alone, or the first value of a state is unknown.
            TimeoutError: `end` came first.
        """
        model = self._model.clone()
        order, results = model.get_ordered_ops(), model.get_results()
        values: _Values = {
            (node.get_instance_id(), 0): array for node, array in zip(model.get_parameters(), inputs, strict=True)
        }
        constant: set[int] = set()  # instance numbers of nodes that depend on constants alone
        states = dict(self._states)
        for number, node in enumerate(order):
            if time.monotonic() > end:
                raise TimeoutError("there are too many of them")
            if number % 100 == 0:
                self._advance(f"running operation {number} of {len(order)} alone on {self._device}")
            instance, kind = node.get_instance_id(), node.get_type_name()
            if kind == "Assign":
                states[variable_of(node)] = _first_input(node, values)
            elif kind == "ReadValue":
                state = self._states.get(variable_of(node))
                values[instance, 0] = _first_input(node, values) if state is None else state
            elif kind == "Result":
                values[instance, 0] = _first_input(node, values)
            elif kind == "Constant":
                constant.add(instance)
            elif kind != "Parameter":
                if node.get_input_size() and all(_source_key(port)[0] in constant for port in node.inputs()):
                    constant.add(instance)
                for port, array in enumerate(self._run_alone(node, values, constant)):
                    values[instance, port] = array
        self._states = states
        return [values[node.get_instance_id(), 0] for node in results]

    def _run_alone(self, node: ov.Node, values: _Values, constant: set[int]) -> list[NDArray[Any]]:
        """Compiles and runs one operation, whose inputs become constants or parameters; this changes its graph.

        Args:
            node: the operation, in a clone of the model.
            values: outputs of the nodes that ran before.
            constant: instance numbers of the nodes that depend on constants alone; their values become constants.

        Returns:
            The operation's outputs.
        """
        parameters, arrays = [], []
        for port in node.inputs():
            source, element = port.get_source_output(), port.get_element_type()
            if source.get_node().get_type_name() == "Constant":
                continue
            array = values[_source_key(port)]
            if _source_key(port)[0] in constant:  # some operations need the values of such inputs to compile
                port.replace_source_output(opset13.constant(array, element).output(0))
                continue
            # Static shapes without elements crash the CPU plugin (a Gather divides by zero, 2026.4).
            shape = list(array.shape) if array.size else [-1] * array.ndim
            parameters.append(op.Parameter(element, ov.PartialShape(shape)))
            arrays.append(array)
            port.replace_source_output(parameters[-1].output(0))
        model = ov.Model([op.Result(output) for output in node.outputs()], parameters, "alone")
        request = self._core.compile_model(model, self._device, _F32).create_infer_request()
        infer(request, arrays)
        return [np.array(request.get_output_tensor(port).data) for port in range(node.get_output_size())]


def _source_key(port: Any) -> tuple[int, int]:
    """The key in `_Values` of the output that feeds an input."""
    output = port.get_source_output()
    return output.get_node().get_instance_id(), output.get_index()


def _first_input(node: ov.Node, values: _Values) -> NDArray[Any]:
    """Returns the value of a node's first input. Raises RuntimeError for a ReadValue without inputs."""
    if not node.get_input_size():
        raise RuntimeError(f"the first value of state '{variable_of(node)}' is unknown")
    source = node.input_value(0).get_node()
    return source.get_data() if source.get_type_name() == "Constant" else values[_source_key(node.input(0))]
