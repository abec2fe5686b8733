"""Roofline cost model: the time of every node of a graph on a device, from the device's profile.

An executed operation takes ``max(flops / (peak × efficiency), moved bytes / memory bandwidth) + launch``. Moved bytes
are those that the device really reads and writes: tensors of floating-point numbers count in the precision that it
infers in, and tensors of a quantised model as one byte per element where the device computes in i8.
docs/concepts/cost-model.md describes the rest of the model and its reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.costs.op_types import ANCHORS, DECOMPRESSION, ELEMENTWISE, LOW_BITS, NOT_FOLDED, PARTIAL_READS, VIEWS
from ov_hsdag.costs.profile import DeviceProfile
from ov_hsdag.model.graph import ComputationGraph, NodeKind

# Bits of the floating-point element types of a graph, and of the types that devices compute in.
_FLOAT_BITS = {
    "f64": 64, "f32": 32, "f16": 16, "bf16": 16, "f8e4m3": 8, "f8e5m2": 8, "f8e8m0": 8, "f4e2m1": 4, "nf4": 4,
}  # fmt: skip
_BITS = {"f32": 32.0, "f16": 16.0, "bf16": 16.0, "i8": 8.0}


class Roofline:
    """The cost model of one graph; everything that depends on the graph alone is computed once for all devices.

    Executed nodes are operations and sinks (Assign) that are not folded. A view is an operation that only renames data
    (`VIEWS`). Costs are those with all fusions of `fused_with`, unless a method says otherwise.

    Attributes:
        folded: constants, and nodes that plugins compute from constants alone when they compile, bool [nodes].
        fused_with: the operation before, for operations that run inside that one, else -1, int32 [nodes].
        fused: whether an operation runs inside the one before, bool [nodes].
        quantised: convolutions and matrix products of quantised activations and weights, bool [nodes].
    """

    def __init__(self, graph: ComputationGraph) -> None:
        """Analyses a graph for `fused_with` and the other attributes."""
        self._graph = graph
        self._executed = np.asarray((graph.kinds == NodeKind.OP) | (graph.kinds == NodeKind.SINK))
        self._consumers = np.bincount(graph.input_output, minlength=graph.outputs)
        self._node_output_bytes = self._per_node(graph.output_node, graph.output_bytes)
        self._type_names, self._type_of = np.unique(
            np.asarray(graph.types, dtype=object).astype(str), return_inverse=True
        )
        self._float_bits = np.array([_FLOAT_BITS.get(name, 0) for name in graph.output_types], np.float64)
        self.folded = self._find_folded()
        self._fake_quantized = self._of_types({"FakeQuantize"})
        self.fused_with = self._find_fused()
        self.fused = self.fused_with >= 0
        self.quantised = self._find_quantised()

    def node_us(self, device: DeviceProfile) -> NDArray[np.float64]:
        """Time of each node on `device`, µs, float64 [nodes].

        Constants, and nodes that plugins fold into constants, cost nothing, because their consumers read their bytes. A
        Parameter or Result costs the transfer between host memory and the device.
        """
        graph = self._graph
        times = self._executed_us(device, fusing=True)
        if device.link_gbps is not None:
            parameters = graph.kinds == NodeKind.PARAMETER
            ends = parameters | (graph.kinds == NodeKind.RESULT)
            crossing = np.where(parameters, self._node_output_bytes, self._per_input(graph.output_bytes))
            times[ends] = device.link_us + crossing[ends] / (device.link_gbps * 1e3)
        return times

    def fusion_penalty_us(self, device: DeviceProfile) -> NDArray[np.float64]:
        """Time that fused operations take longer when they run by themselves, µs, float64 [nodes]; 0 for all others."""
        return np.where(self.fused, self.alone_us(device) - self.node_us(device), 0.0)

    def alone_us(self, device: DeviceProfile) -> NDArray[np.float64]:
        """Time of each node without any fusion, µs, float64 [nodes]; meaningful for executed nodes."""
        return self._executed_us(device, fusing=False)

    def _executed_us(self, device: DeviceProfile, *, fusing: bool) -> NDArray[np.float64]:
        """Time of each executed node, 0 for the others, µs, float64 [nodes].

        Args:
            device: profile of the device.
            fusing: whether the device fuses the operations of `fused_with`; otherwise each is launched by itself.
        """
        views = self._of_types(VIEWS)
        compute = self._graph.flops / (self._rates(device) * 1e3)
        gbps = np.array([device.gbps_of(name) for name in self._type_names])[self._type_of]
        movement = np.where(views, 0.0, self.moved_bytes(device, fusing=fusing) / (gbps * 1e3))
        launch = np.where((views & (device.kind == "CPU")) | (self.fused & fusing), 0.0, device.launch_us)
        return np.asarray(np.where(self._executed & ~self.folded, np.maximum(compute, movement) + launch, 0.0))

    def moved_bytes(self, device: DeviceProfile, *, fusing: bool = True) -> NDArray[np.float64]:
        """Bytes that each executed node reads and writes, float64 [nodes].

        Args:
            device: profile of the device.
            fusing: whether the device fuses the operations of `fused_with`.
        """
        graph = self._graph
        resident = self._resident_bytes(device)
        inputs = resident[graph.input_output]
        written = self._per_node(graph.output_node, resident)
        first = graph.input_ptr[:-1][self._of_types(PARTIAL_READS) & (np.diff(graph.input_ptr) > 0)]
        inputs[first] = np.minimum(inputs[first], written[graph.input_node[first]])
        read = self._per_node(graph.input_node, inputs)
        # A fused operation reads one input from registers and leaves its result there.
        return np.where(self.fused & fusing, np.maximum(read - written, 0.0), read + written)

    def _rates(self, device: DeviceProfile) -> NDArray[np.float64]:
        """Rate that each node reaches, 10^9 operations per second, float64 [nodes]."""

        def rates(precision: str) -> NDArray[np.float64]:
            """Rate of each node if it computes in this precision."""
            peak = device.peak_gflops[precision]
            return np.array([peak * device.efficiency_of(name, precision) for name in self._type_names])[self._type_of]

        usual = rates(device.precision)
        return np.where(self.quantised, rates("i8"), usual) if "i8" in device.peak_gflops else usual

    def _resident_bytes(self, device: DeviceProfile) -> NDArray[np.float64]:
        """Size of each output tensor in the device's memory, bytes, float64 [outputs].

        Floating-point tensors are in the device's precision, and results of FakeQuantize in 8 bits where the device
        computes in i8. Tensors of at most 8 bits keep their size, and weights stay as small through decompression.
        """
        graph = self._graph
        bits = np.full(graph.outputs, _BITS[device.precision])
        if "i8" in device.peak_gflops:
            bits[self._fake_quantized[graph.output_node]] = 8.0
        is_float = self._float_bits > 0
        size = graph.output_bytes * np.where(is_float, bits / np.where(is_float, self._float_bits, 1.0), 1.0)
        stored = np.array([name in LOW_BITS for name in graph.output_types])
        size[stored] = graph.output_bytes[stored]
        decompressed = self.folded & self._of_types(DECOMPRESSION)
        most = np.where(decompressed, 0.0, np.inf)
        # One round per operation of the longest chain of decompression, which has three or four.
        return _fixed_point(size, lambda size: np.minimum(size, (self._per_input(size) + most)[graph.output_node]))

    def _find_folded(self) -> NDArray[np.bool_]:
        """Finds constants, and nodes that depend on constants alone and can be folded into them, bool [nodes]."""
        graph = self._graph
        constant = graph.kinds == NodeKind.CONSTANT
        foldable = (graph.kinds == NodeKind.OP) & ~self._of_types(NOT_FOLDED) & (np.diff(graph.input_ptr) > 0)
        return _fixed_point(
            constant,
            lambda folded: constant | (foldable & (self._per_node(graph.input_node, ~folded[graph.input_source]) == 0)),
        )

    def _find_fused(self) -> NDArray[np.int32]:
        """Finds element-wise operations that run inside the operation before them, see `fused_with`, int32 [nodes].

        They follow a convolution or a matrix product, directly or behind other such operations.
        """
        graph = self._graph
        elementwise = self._of_types(ELEMENTWISE) & self._executed & ~self.folded
        # Only a tensor of the same size with one reader can stay in the registers of the operation before.
        fusing = (
            elementwise[graph.input_node]
            & (self._consumers[graph.input_output] == 1)
            & (graph.output_bytes[graph.input_output] == self._node_output_bytes[graph.input_node])
        )
        consumer, producer = graph.input_node[fusing], graph.input_source[fusing]
        within = _fixed_point(
            self._of_types(ANCHORS), lambda within: within | (np.bincount(consumer, within[producer], graph.nodes) > 0)
        )[producer]
        before = np.full(graph.nodes, -1, np.int32)
        # Earlier inputs overwrite later ones, so the first one counts where several are possible.
        before[consumer[within][::-1]] = producer[within][::-1]
        return before

    def _find_quantised(self) -> NDArray[np.bool_]:
        """Finds the operations that compute in i8 where a device can, bool [nodes].

        They are convolutions and matrix products whose first input is quantised, and whose second input is, too, or has
        quantised weights.
        """
        graph = self._graph
        low = np.array([name in LOW_BITS for name in graph.output_types], bool)
        stored_low = self._per_node(graph.output_node, low) > 0
        weights = _fixed_point(  # weights stay quantised through their decompression
            self.folded & (self._fake_quantized | stored_low),
            lambda weights: (
                weights | (self.folded & (self._per_node(graph.input_node, weights[graph.input_source]) > 0))
            ),
        )
        anchors = np.flatnonzero(self._of_types(ANCHORS) & (np.diff(graph.input_ptr) >= 2))
        first = graph.input_source[graph.input_ptr[anchors]]
        second = graph.input_source[graph.input_ptr[anchors] + 1]
        result = np.zeros(graph.nodes, bool)
        result[anchors] = self._fake_quantized[first] & (self._fake_quantized[second] | weights[second])
        return result

    def _of_types(self, names: Iterable[str]) -> NDArray[np.bool_]:
        """Whether each node is of one of these operation types, bool [nodes]."""
        return np.asarray(np.isin(self._type_names, list(names))[self._type_of])

    def _per_node(self, node: NDArray[np.int32], values: NDArray[np.generic]) -> NDArray[np.float64]:
        """Sums values by node, float64 [nodes]; `node` is the node that each value belongs to."""
        return np.bincount(node, weights=values.astype(np.float64), minlength=self._graph.nodes).astype(np.float64)

    def _per_input(self, output_values: NDArray[np.generic]) -> NDArray[np.float64]:
        """Sums values of outputs, [outputs], over the tensors that each node reads, float64 [nodes]."""
        return self._per_node(self._graph.input_node, output_values[self._graph.input_output])


def _fixed_point(values: NDArray[Any], step: Callable[[NDArray[Any]], NDArray[Any]]) -> NDArray[Any]:
    """Applies `step` to `values` again and again until it changes nothing (a fixed point), and returns the result."""
    while not np.array_equal(after := step(values), values):
        values = after
    return values
