"""Generates small random models with all structures that make placing hard.

Every model works on sequences of eight features. It may have branches, multi-output splits, weights in several
precisions, shared constants, shape arithmetic (ShapeOf … Gather … Concat → Reshape, Broadcast, Slice, Range),
attention, sub-graphs (If, Loop, TensorIterator, LSTM), variables, and outputs of every kind. Batch and length may be
dynamic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ov_hsdag.utils.lazy import opset13 as ops

FEATURES = 8  # width of all tensors of features: small, so that inference takes no time
TOKENS = 11  # number of different tokens
_BATCH, _LENGTH = 2, 5  # static batch and length, different so that a swap of the two is noticed
_HEADS = 2  # heads of attention


@dataclass(frozen=True)
class Case:
    """A model with inputs for inference."""

    model: ov.Model
    # Input sets, which one request infers in this order; each has an array for every input of the model, in its order.
    inputs: list[list[NDArray[Any]]]


def generate(seed: int, steps: int = 12) -> Case:
    """Generates a model of `steps` random building blocks; equal arguments give equal models."""
    return _Generator(np.random.default_rng(seed)).case(steps)


class _Generator:
    """A model under construction, with the tensors that later blocks can choose from.

    These are features, f32 [batch, length, 8], pooled, f32 [batch, 8], and tokens, i64 [batch, length].
    """

    def __init__(self, random: np.random.Generator) -> None:
        self.random = random
        # Whether batch and length are dynamic. The batch of a stateful model does not change, as its states have it.
        self.dynamic = (bool(random.random() < 0.3), bool(random.random() < 0.5))
        self.parameters: list[Any] = []
        self.sinks: list[Any] = []
        self.extra: list[Any] = []  # outputs in addition to tensors that no node reads
        self.features = [self._parameter(f"features_{i}", ov.Type.f32) for i in range(1 + (random.random() < 0.4))]
        self.tokens = self._parameter("tokens", ov.Type.i64)
        self.pooled: list[Any] = []
        # Constants that several blocks use.
        self.vector = self._constant((1, 1, FEATURES))
        self.matrix = self._weights((FEATURES, FEATURES))
        self.pattern: Any = None

    def case(self, steps: int) -> Case:
        """Adds `steps` random blocks and finishes the model."""
        blocks: Sequence[Callable[[], Any]] = (
            self.unary, self.unary, self.shifted, self.combined, self.combined, self.dense, self.dense, self.halves,
            self.parts, self.attention, self.pool, self.spread, self.embedded, self.positions, self.window,
            self.largest, self.convolved, self.normalized, self.selected, self.iterated, self.looped,
            self.branched, self.lstm, self.remembered, self.appended, self.counted, self.picked,
        )  # fmt: skip
        for _ in range(steps):
            made = blocks[int(self.random.integers(0, len(blocks)))]()
            if made is not None:
                self.features.append(made)
        model = ov.Model(self._results(), self.sinks, self.parameters, "generated")
        return Case(model, self._inputs())

    def _results(self) -> list[Any]:
        """Results of all tensors that no node reads, and sometimes of others."""
        ends = [value for value in [*self.features, *self.pooled] if not self._used(value)]
        if not ends:
            ends = [self.features[-1]]
        results = [ops.result(value) for value in [*ends, *self.extra]]
        if self.random.random() < 0.15:  # two results of one tensor
            results.append(ops.result(ends[0]))
        if self.random.random() < 0.1:  # an input that is an output
            results.append(ops.result(self.parameters[self.random.integers(0, len(self.parameters))]))
        if self.random.random() < 0.05:
            results.append(ops.result(self.vector))
        return results

    @staticmethod
    def _used(value: Any) -> bool:
        """Whether a node is a Parameter or another node reads it."""
        return any(output.get_target_inputs() for output in value.outputs()) or value.get_type_name() == "Parameter"

    def _inputs(self) -> list[list[NDArray[Any]]]:
        """Random input sets: three of different sizes for a dynamic model, two for states, else one."""
        batches = (2, 1, 3) if self.dynamic[0] and not self.sinks else (_BATCH,) * 3
        lengths = (5, 3, 8) if self.dynamic[1] else (_LENGTH,) * 3
        varied = batches != (_BATCH,) * 3 or lengths != (_LENGTH,) * 3
        # A state has an effect from the second inference on.
        sets = 3 if varied else 2 if self.sinks else 1
        return [
            [self._array(node, batch, length) for node in self.parameters]
            for batch, length in list(zip(batches, lengths, strict=True))[:sets]
        ]

    def _array(self, node: Any, batch: int, length: int) -> NDArray[Any]:
        """A random array for an input."""
        if node.get_element_type() == ov.Type.f32:
            return self.random.standard_normal((batch, length, FEATURES)).astype(np.float32)
        return self.random.integers(0, TOKENS, (batch, length))

    def _parameter(self, name: str, kind: ov.Type) -> Any:
        """Adds an input of the model: features for f32, otherwise tokens."""
        sizes = [-1 if self.dynamic[0] else _BATCH, -1 if self.dynamic[1] else _LENGTH]
        shape = [*sizes, FEATURES] if kind == ov.Type.f32 else sizes
        node = ops.parameter(ov.PartialShape(shape), kind, name=name)
        node.output(0).get_tensor().set_names({name})
        self.parameters.append(node)
        return node

    def _constant(self, shape: tuple[int, ...]) -> Any:
        """A random f32 constant."""
        return ops.constant(self.random.standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(FEATURES)))

    def _weights(self, shape: tuple[int, ...]) -> Any:
        """Random weights in f32, in f16 with a Convert, or in int8 with a Convert and a scale."""
        kind = self.random.integers(0, 3)
        values = self.random.standard_normal(shape) / np.sqrt(FEATURES)
        if kind == 0:
            return ops.constant(values.astype(np.float32))
        if kind == 1:
            return ops.convert(ops.constant(values.astype(np.float16)), ov.Type.f32)
        steps = np.clip(np.round(values * 64), -127, 127).astype(np.int8)
        return ops.multiply(ops.convert(ops.constant(steps), ov.Type.f32), ops.constant(np.float32(1 / 64)))

    def _any(self) -> Any:
        """A random tensor of features, more often one that was made recently."""
        reach = min(len(self.features), 5) if self.random.random() < 0.8 else len(self.features)
        return self.features[len(self.features) - 1 - int(self.random.integers(0, reach))]

    def _axis(self, value: int) -> Any:
        return ops.constant(np.int64(value))

    def _size(self, tensor: Any, axis: int) -> Any:
        """A dimension of a tensor, computed by nodes, i64 [1]."""
        return ops.gather(ops.shape_of(tensor), ops.constant(np.array([axis])), self._axis(0))

    # The building blocks. Each adds nodes and returns a tensor of features, or None if it makes none.

    def unary(self) -> Any:
        """A random activation."""
        function = (ops.relu, ops.tanh, ops.sigmoid, lambda x: ops.gelu(x, "ERF"), ops.abs)[self.random.integers(0, 5)]
        return function(self._any())

    def shifted(self) -> Any:
        """Adds the shared vector."""
        return ops.add(self._any(), self.vector)

    def combined(self) -> Any:
        """Combines two tensors element by element."""
        kind, one, other = self.random.integers(0, 3), self._any(), self._any()
        return ops.multiply(ops.tanh(one), other) if kind == 0 else (ops.add, ops.maximum)[kind - 1](one, other)

    def dense(self) -> Any:
        """Multiplies by the shared matrix or by other weights."""
        shared = self.random.random() < 0.4
        weights = self.matrix if shared else self._weights((FEATURES, FEATURES))
        # Shared weights are never transposed: the CPU plugin of OpenVINO 2026.4 computes a wrong MatMul, on a single
        # device too, if two of them share compressed weights and only one transposes them.
        return ops.matmul(self._any(), weights, False, not shared and bool(self.random.random() < 0.5))

    def halves(self) -> Any:
        """Splits the features into halves and exchanges them."""
        halves = ops.split(self._any(), self._axis(2), 2)
        return ops.concat([ops.relu(halves.output(1)), halves.output(0)], 2)

    def parts(self) -> Any:
        """Splits the features into three parts; the mean of the last is also an output of the model."""
        parts = ops.variadic_split(self._any(), self._axis(2), ops.constant(np.array([3, -1, 2])))
        self.extra.append(ops.reduce_mean(parts.output(2), ops.constant(np.array([1])), True))
        return ops.concat([parts.output(0), ops.tanh(parts.output(1)), parts.output(0).get_node().output(2)], 2)

    def attention(self) -> Any:
        """Attention whose heads are split by a computed pattern, which several attentions may share."""
        tensor = self._any()
        if self.pattern is None or self.random.random() < 0.5:
            rest = ops.constant(np.array([_HEADS, FEATURES // _HEADS]))
            self.pattern = ops.concat([self._size(tensor, 0), self._size(tensor, 1), rest], 0)
        order = ops.constant(np.array([0, 2, 1, 3]))
        query, key = (
            ops.transpose(ops.reshape(ops.matmul(tensor, w, False, False), self.pattern, False), order)
            for w in (self.matrix, self._weights((FEATURES, FEATURES)))
        )
        scores = ops.softmax(ops.matmul(query, key, False, True), -1)
        mixed = ops.transpose(ops.matmul(scores, key, False, False), order)
        merged = ops.concat([ops.shape_of(tensor).output(0)], 0)
        return ops.reshape(mixed, merged, False)

    def pool(self) -> Any:
        """Adds the mean over the steps to the pooled tensors."""
        self.pooled.append(ops.reduce_mean(self._any(), ops.constant(np.array([1])), False))

    def spread(self) -> Any:
        """Broadcasts pooled features to the shape of a tensor."""
        if not self.pooled:
            self.pool()
        pooled, tensor = self.pooled[self.random.integers(0, len(self.pooled))], self._any()
        return ops.broadcast(ops.unsqueeze(pooled, ops.constant(np.array([1]))), ops.shape_of(tensor))

    def embedded(self) -> Any:
        """Embeds the tokens."""
        return ops.gather(self._weights((TOKENS, FEATURES)), self.tokens, self._axis(0))

    def positions(self) -> Any:
        """Adds rows of a table for the positions 0, 1, …, by a Range of computed length."""
        tensor = self._any()
        length = ops.squeeze(self._size(tensor, 1), ops.constant(np.array([0])))
        numbers = ops.range(self._axis(0), length, self._axis(1), ov.Type.i64)
        return ops.add(tensor, ops.gather(self._constant((32, FEATURES)), numbers, self._axis(0)))

    def window(self) -> Any:
        """Shifts a tensor by one step, with zeros at the end, by Slice and Pad of computed sizes."""
        tensor = self._any()
        one, axes = ops.constant(np.array([1])), ops.constant(np.array([1]))
        rest = ops.slice(tensor, one, self._size(tensor, 1), one, axes)
        end = ops.constant(np.array([0, 1, 0]))
        return ops.pad(rest, ops.constant(np.array([0, 0, 0])), end, "constant", ops.constant(np.float32(0)))

    def largest(self) -> Any:
        """The four largest features, repeated; the second output of TopK is not used."""
        top = ops.topk(self._any(), ops.constant(np.int64(FEATURES // 2)), 2, "max", "value")
        return ops.concat([top.output(0), top.output(0)], 2)

    def convolved(self) -> Any:
        """A convolution along the steps."""
        order = ops.constant(np.array([0, 2, 1]))
        moved = ops.transpose(self._any(), order)
        result = ops.convolution(moved, self._weights((FEATURES, FEATURES, 3)), [1], [1], [1], [1])
        return ops.transpose(ops.relu(result), order)

    def normalized(self) -> Any:
        """Normalizes the features, and scales and shifts them by the shared vector."""
        centred = ops.mvn(self._any(), ops.constant(np.array([2])), True, 1e-2, "INSIDE_SQRT")
        return ops.add(ops.multiply(centred, self.vector), self.vector)

    def selected(self) -> Any:
        """Selects between two tensors by whether tokens are even."""
        two = ops.constant(np.int64(2))
        even = ops.equal(ops.mod(self.tokens, two), ops.constant(np.int64(0)))
        return ops.select(ops.unsqueeze(even, ops.constant(np.array([2]))), self._any(), self._any())

    def iterated(self) -> Any:
        """A TensorIterator over the steps with a state."""
        tensor = self._any()
        step = ops.parameter(ov.PartialShape([-1, 1, FEATURES]), ov.Type.f32)
        state = ops.parameter(ov.PartialShape([-1, 1, FEATURES]), ov.Type.f32)
        total = ops.tanh(ops.add(ops.matmul(state, self._weights((FEATURES, FEATURES)), False, False), step))
        body = ov.Model([ops.result(total), ops.result(ops.relu(total))], [step, state], "body")
        iterator = ops.tensor_iterator()
        iterator.set_body(body)
        iterator.set_sliced_input(step, tensor.output(0), 0, 1, 1, -1, 1)
        start = ops.reduce_mean(tensor, ops.constant(np.array([1])), True)
        iterator.set_merged_input(state, start.output(0), body.get_results()[0].output(0))
        return self._node_of(iterator.get_concatenated_slices(body.get_results()[1].output(0), 0, 1, 1, -1, 1))

    def looped(self) -> Any:
        """A Loop with as many iterations as the tensor has steps."""
        tensor = self._any()
        value = ops.parameter(ov.PartialShape([-1, -1, FEATURES]), ov.Type.f32)
        after = ops.tanh(ops.add(value, self._constant((1, 1, FEATURES))))
        body = ov.Model([ops.result(after), ops.result(ops.constant(np.array([True])))], [value], "body")
        trips = ops.squeeze(self._size(tensor, 1), ops.constant(np.array([0])))
        loop = ops.loop(trips.output(0), ops.constant(np.array(True)).output(0))
        loop.set_function(body)
        loop.set_special_body_ports([-1, 1])
        loop.set_merged_input(value, tensor.output(0), body.get_results()[0].output(0))
        return self._node_of(loop.get_iter_value(body.get_results()[0].output(0), -1))

    def branched(self) -> Any:
        """An If whose condition depends on the tokens."""
        tensor = self._any()
        total = ops.reduce_sum(self.tokens, ops.constant(np.array([0, 1])), False)
        odd = ops.equal(ops.mod(total, ops.constant(np.int64(2))), ops.constant(np.int64(1)))
        bodies = []
        for function in (ops.tanh, ops.relu):
            value = ops.parameter(ov.PartialShape([-1, -1, FEATURES]), ov.Type.f32)
            end = ops.result(ops.add(function(value), self._constant((1, 1, FEATURES))))
            bodies.append((ov.Model([end], [value], "body"), value, end))
        choice = ops.if_op(odd.output(0))
        choice.set_then_body(bodies[0][0])
        choice.set_else_body(bodies[1][0])
        choice.set_input(tensor.output(0), bodies[0][1], bodies[1][1])
        return self._node_of(choice.set_output(bodies[0][2], bodies[1][2]))

    def lstm(self) -> Any:
        """An LSTM over the steps, whose initial states have a computed shape."""
        tensor, batch = self._any(), None
        hidden = FEATURES
        batch = self._size(tensor, 0)
        zeros = ops.broadcast(ops.constant(np.float32(0)), ops.concat([batch, ops.constant(np.array([1, hidden]))], 0))
        lengths = ops.broadcast(self._size(tensor, 1), batch)
        x, r = (self._constant((1, 4 * hidden, FEATURES)) for _ in range(2))
        sequence = ops.lstm_sequence(
            tensor, zeros, zeros, lengths, x, r, self._constant((1, 4 * hidden)), hidden, "forward"
        )
        return self._node_of(ops.squeeze(sequence.output(0), ops.constant(np.array([1]))).output(0))

    def remembered(self) -> Any:
        """Adds a state of fixed size, which accumulates the means of all inferences."""
        tensor = self._any()
        variable, shape = f"variable_{len(self.sinks)}", [1, 1, FEATURES]
        old = ops.read_value(ops.constant(np.zeros(shape, np.float32)), variable, ov.Type.f32, shape)
        mean = ops.reduce_mean(tensor, ops.constant(np.array([0, 1])), True)
        new = ops.tanh(ops.add(old, mean))
        self.sinks.append(ops.assign(new, variable))
        return ops.add(tensor, new if self.random.random() < 0.5 else old)

    def appended(self) -> Any:
        """Attention to a growing state, to which each inference appends its mean."""
        tensor = self._any()
        variable = f"variable_{len(self.sinks)}"
        empty = ops.constant(np.zeros((1, 0, FEATURES), np.float32))
        mean = ops.reduce_mean(tensor, ops.constant(np.array([0, 1])), True)
        new = ops.concat([ops.read_value(empty, variable, ov.Type.f32, ov.PartialShape([1, -1, FEATURES])), mean], 1)
        self.sinks.append(ops.assign(new, variable))
        weights = ops.softmax(ops.matmul(tensor, new, False, True), -1)
        return ops.matmul(weights, new, False, False)

    def counted(self) -> Any:
        """The tokens above a threshold, and their number, as outputs: a shape that depends on data (NonZero)."""
        where = ops.non_zero(ops.greater(self.tokens, ops.constant(np.int64(TOKENS // 2))), "i64")
        self.extra.append(where)
        self.extra.append(ops.reduce_sum(ops.convert(ops.shape_of(where), ov.Type.f32), self._axis(0), True))

    def picked(self) -> Any:
        """Adds the mean of the last and first step, from a Gather whose indices are a computed, short vector."""
        tensor = self._any()
        length = self._size(tensor, 1)
        last = ops.subtract(length, ops.constant(np.array([1])))
        picked = ops.gather(tensor, ops.concat([last, ops.constant(np.array([0]))], 0), self._axis(1))
        return ops.add(tensor, ops.reduce_mean(picked, ops.constant(np.array([1])), True))

    @staticmethod
    def _node_of(output: Any) -> Any:
        """The node of an output; a node with several outputs gets a Relu behind this one."""
        node = output.get_node()
        return node if node.get_output_size() == 1 else ops.relu(output)
