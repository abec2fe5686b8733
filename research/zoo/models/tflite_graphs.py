"""TensorFlow Lite models, written operator by operator in the format's schema (packages tflite, flatbuffers)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def mobile_net(seed: int) -> bytes:
    """image [1, 64, 64, 3] → [1, 10]; depthwise blocks with residuals, as the converter writes MobileNet-V2."""
    import tflite

    graph = _Graph(seed)
    x = graph.input([1, 64, 64, 3], "image")
    x = graph.convolution(x, 8, 3, stride=2)
    for channels, stride in ((12, 1), (16, 2), (16, 1), (24, 2), (24, 1)):
        block = graph.convolution(x, 3 * channels, 1)
        block = graph.depthwise(block, stride)
        block = graph.convolution(block, channels, 1, activation=tflite.ActivationFunctionType.NONE)
        x = graph.add(x, block) if graph.shapes[x] == graph.shapes[block] else block
    x = graph.mean(graph.convolution(x, 64, 1))
    return graph.finish([graph.softmax(graph.dense(x, 10))])


class _Graph:
    """The only subgraph of a model under construction. Tensors are given by their numbers; channels are last."""

    def __init__(self, seed: int) -> None:
        import flatbuffers

        self.random = np.random.default_rng(seed)
        self.builder = flatbuffers.Builder(1 << 16)
        self.shapes: list[list[int]] = []
        self._tensors: list[int] = []
        self._buffers = [self._buffer(b"")]  # the format's first buffer is for tensors without content
        self._codes: list[int] = []
        self._operators: list[int] = []
        self._inputs: list[int] = []

    def input(self, shape: list[int], name: str) -> int:
        tensor = self._tensor(shape, name)
        self._inputs.append(tensor)
        return tensor

    def convolution(self, x: int, channels: int, kernel: int, stride: int = 1, activation: int | None = None) -> int:
        import tflite

        batch, height, width, channels_in = self.shapes[x]

        def options(builder: Any) -> Any:
            tflite.Conv2DOptionsAddPadding(builder, tflite.Padding.SAME)
            tflite.Conv2DOptionsAddStrideW(builder, stride)
            tflite.Conv2DOptionsAddStrideH(builder, stride)
            chosen = tflite.ActivationFunctionType.RELU6 if activation is None else activation
            tflite.Conv2DOptionsAddFusedActivationFunction(builder, chosen)

        weights = self._weight([channels, kernel, kernel, channels_in], kernel * kernel * channels_in)
        shape = [batch, -(-height // stride), -(-width // stride), channels]
        return self._operator("CONV_2D", "Conv2DOptions", options, [x, weights, self._bias(channels)], shape)

    def depthwise(self, x: int, stride: int) -> int:
        import tflite

        batch, height, width, channels = self.shapes[x]

        def options(builder: Any) -> Any:
            tflite.DepthwiseConv2DOptionsAddPadding(builder, tflite.Padding.SAME)
            tflite.DepthwiseConv2DOptionsAddStrideW(builder, stride)
            tflite.DepthwiseConv2DOptionsAddStrideH(builder, stride)
            tflite.DepthwiseConv2DOptionsAddDepthMultiplier(builder, 1)
            tflite.DepthwiseConv2DOptionsAddFusedActivationFunction(builder, tflite.ActivationFunctionType.RELU6)

        inputs = [x, self._weight([1, 3, 3, channels], 9), self._bias(channels)]
        shape = [batch, -(-height // stride), -(-width // stride), channels]
        return self._operator("DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions", options, inputs, shape)

    def add(self, a: int, b: int) -> int:
        return self._operator("ADD", "AddOptions", lambda _: None, [a, b], self.shapes[a])

    def mean(self, x: int) -> int:
        """Adds a mean over height and width."""
        axes = self._constant(np.array([1, 2], np.int32))
        return self._operator(
            "MEAN", "ReducerOptions", lambda _: None, [x, axes], [self.shapes[x][0], self.shapes[x][-1]]
        )

    def dense(self, x: int, channels: int) -> int:
        inputs = [x, self._weight([channels, self.shapes[x][-1]], self.shapes[x][-1]), self._bias(channels)]
        shape = [*self.shapes[x][:-1], channels]
        return self._operator("FULLY_CONNECTED", "FullyConnectedOptions", lambda _: None, inputs, shape)

    def softmax(self, x: int) -> int:
        import tflite

        def options(builder: Any) -> Any:
            tflite.SoftmaxOptionsAddBeta(builder, 1.0)

        return self._operator("SOFTMAX", "SoftmaxOptions", options, [x], self.shapes[x])

    def finish(self, outputs: list[int]) -> bytes:
        """Finishes the model and returns the content of its file. outputs: tensors."""
        import tflite

        builder = self.builder
        parts = {
            "Tensors": self._offsets(self._tensors),
            "Inputs": builder.CreateNumpyVector(np.array(self._inputs, np.int32)),
            "Outputs": builder.CreateNumpyVector(np.array(outputs, np.int32)),
            "Operators": self._offsets(self._operators),
        }
        subgraph = self._table("SubGraph", parts)
        codes = []
        for code in self._codes:
            values = {"DeprecatedBuiltinCode": code, "BuiltinCode": code, "Version": 1}
            codes.append(self._table("OperatorCode", values))
        model = {
            "Version": 3,
            "OperatorCodes": self._offsets(codes),
            "Subgraphs": self._offsets([subgraph]),
            "Buffers": self._offsets(self._buffers),
        }
        builder.Finish(self._table("Model", model), b"TFL3")
        assert tflite.Model.ModelBufferHasIdentifier(bytes(builder.Output()), 0)
        return bytes(builder.Output())

    def _weight(self, shape: list[int], fan_in: int) -> int:
        values = self.random.standard_normal(shape) * np.sqrt(2 / fan_in)
        return self._constant(values.astype(np.float32))

    def _bias(self, channels: int) -> int:
        return self._constant(self.random.normal(0, 0.1, channels).astype(np.float32))

    def _constant(self, values: NDArray[Any]) -> int:
        self._buffers.append(self._buffer(values.tobytes()))
        return self._tensor(list(values.shape), f"constant_{len(self.shapes)}", values.dtype, len(self._buffers) - 1)

    def _operator(
        self, code: str, table: str, options: Callable[[Any], Any], inputs: Sequence[int], shape: list[int]
    ) -> int:
        import tflite

        number = getattr(tflite.BuiltinOperator, code)
        if number not in self._codes:
            self._codes.append(number)
        builder = self.builder
        getattr(tflite, f"{table}Start")(builder)
        options(builder)
        chosen = getattr(tflite, f"{table}End")(builder)
        output = self._tensor(shape, f"{code.lower()}_{len(self.shapes)}")
        values = {
            "OpcodeIndex": self._codes.index(number),
            "Inputs": builder.CreateNumpyVector(np.array(inputs, np.int32)),
            "Outputs": builder.CreateNumpyVector(np.array([output], np.int32)),
            "BuiltinOptionsType": getattr(tflite.BuiltinOptions, table),
            "BuiltinOptions": chosen,
        }
        self._operators.append(self._table("Operator", values))
        return output

    def _tensor(self, shape: list[int], name: str, dtype: Any = np.float32, buffer: int = 0) -> int:
        import tflite

        values = {
            "Shape": self.builder.CreateNumpyVector(np.array(shape, np.int32)),
            "Type": tflite.TensorType.FLOAT32 if np.dtype(dtype) == np.float32 else tflite.TensorType.INT32,
            "Buffer": buffer,
            "Name": self.builder.CreateString(name),
        }
        self._tensors.append(self._table("Tensor", values))
        self.shapes.append(shape)
        return len(self.shapes) - 1

    def _buffer(self, content: bytes) -> int:
        values = {"Data": self.builder.CreateByteVector(content)} if content else {}
        return self._table("Buffer", values)

    def _table(self, name: str, values: dict[str, Any]) -> int:
        """Writes a table of the schema; objects to which its values refer must have been written before."""
        import tflite

        getattr(tflite, f"{name}Start")(self.builder)
        for key, value in values.items():
            getattr(tflite, f"{name}Add{key}")(self.builder, value)
        return int(getattr(tflite, f"{name}End")(self.builder))

    def _offsets(self, offsets: Sequence[int]) -> int:
        """Writes a vector of tables, from its end as flatbuffers demands."""
        self.builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self.builder.PrependUOffsetTRelative(offset)
        return int(self.builder.EndVector())
