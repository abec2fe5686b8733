"""A model's operations, each compiled and run alone: what the model computes without a device's optimisations."""

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

_F32 = {"INFERENCE_PRECISION_HINT": "f32"}

_Values = dict[tuple[int, int], NDArray[Any]]
"""Outputs by the number of the node's instance and that of the output."""


class OneByOne:
    """Runs a model operation by operation on one device, in f32; compiling takes some milliseconds for each."""

    def __init__(self, core: ov.Core, device: str, model: ov.Model, advance: Callable[[str], None]) -> None:
        """`advance` takes a few words as it goes on."""
        self._core, self._device, self._model, self._advance = core, device, model, advance
        self._states: dict[str, NDArray[Any]] = {}

    def infer(self, inputs: Sequence[NDArray[Any]], end: float = math.inf) -> list[NDArray[Any]]:
        """Outputs of one inference, in the model's order, which leaves its states to the next one.

        Raises RuntimeError where an operation does not run alone, TimeoutError at `end` (of `time.monotonic`).
        """
        model = self._model.clone()
        order, results = model.get_ordered_ops(), model.get_results()
        values: _Values = {
            (node.get_instance_id(), 0): array for node, array in zip(model.get_parameters(), inputs, strict=True)
        }
        constant: set[int] = set()  # nodes that rest on constants alone
        states = dict(self._states)
        for number, node in enumerate(order):
            if time.monotonic() > end:
                raise TimeoutError("there are too many of them")
            if number % 100 == 0:
                self._advance(f"running operation {number} of {len(order)} alone on {self._device}")
            own, kind = node.get_instance_id(), node.get_type_name()
            if kind == "Assign":
                states[variable_of(node)] = _value(node, values)
            elif kind == "ReadValue":
                known = self._states.get(variable_of(node))
                values[own, 0] = _value(node, values) if known is None else known
            elif kind == "Result":
                values[own, 0] = _value(node, values)
            elif kind == "Constant":
                constant.add(own)
            elif kind != "Parameter":
                if node.get_input_size() and all(_source(port)[0] in constant for port in node.inputs()):
                    constant.add(own)
                for port, array in enumerate(self._alone(node, values, constant)):
                    values[own, port] = array
        self._states = states
        return [values[node.get_instance_id(), 0] for node in results]

    def _alone(self, node: ov.Node, values: _Values, constant: set[int]) -> list[NDArray[Any]]:
        """Outputs of one operation, which is cut off from what feeds it."""
        parameters, arrays = [], []
        for port in node.inputs():
            source, element = port.get_source_output(), port.get_element_type()
            if source.get_node().get_type_name() == "Constant":
                continue
            array = values[_source(port)]
            if _source(port)[0] in constant:  # what an operation may want to know when it is compiled
                port.replace_source_output(opset13.constant(array, element).output(0))
                continue
            # Static shapes without elements end the CPU plugin (a Gather by a division by zero, 2026.4).
            shape = list(array.shape) if array.size else [-1] * array.ndim
            parameters.append(op.Parameter(element, ov.PartialShape(shape)))
            arrays.append(array)
            port.replace_source_output(parameters[-1].output(0))
        model = ov.Model([op.Result(output) for output in node.outputs()], parameters, "alone")
        request = self._core.compile_model(model, self._device, _F32).create_infer_request()
        infer(request, arrays)
        return [np.array(request.get_output_tensor(port).data) for port in range(node.get_output_size())]


def _source(port: Any) -> tuple[int, int]:
    output = port.get_source_output()
    return output.get_node().get_instance_id(), output.get_index()


def _value(node: ov.Node, values: _Values) -> NDArray[Any]:
    """What feeds the first input."""
    if not node.get_input_size():
        raise RuntimeError(f"the first value of state '{variable_of(node)}' is unknown")
    source = node.input_value(0).get_node()
    return source.get_data() if source.get_type_name() == "Constant" else values[_source(node.input(0))]
