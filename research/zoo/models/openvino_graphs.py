"""Models written in OpenVINO's operations, with operations that no framework's converter produces."""

from __future__ import annotations

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ov_hsdag.utils.lazy import opset15 as ops


def string_classifier(seed: int) -> ov.Model:
    """texts [batch], strings → [batch, 7]: embeddings of their bytes, summed up within each text, and two layers."""
    random = np.random.default_rng(seed)

    texts = ops.parameter([-1], ov.Type.string, name="texts")
    begins, ends, symbols = ops.string_tensor_unpack(texts).outputs()
    embedded = ops.gather(_weight(random, 256, 16), ops.convert(symbols, "i32"), np.int32(0))
    # The sum of each text is the difference of the running sum at its ends.
    running = ops.pad(ops.cum_sum(embedded, np.int32(0)), [1, 0], [0, 0], "constant", np.float32(0))
    sums = ops.subtract(ops.gather(running, ends, np.int32(0)), ops.gather(running, begins, np.int32(0)))
    length = ops.unsqueeze(ops.convert(ops.subtract(ends, begins), "f32"), np.int32(1))
    mean = ops.divide(sums, ops.maximum(length, np.float32(1)))
    hidden = ops.relu(ops.matmul(mean, _weight(random, 16, 32), False, False))
    result = ops.matmul(hidden, _weight(random, 32, 7), False, False)
    return ov.Model([result], [texts], "string_classifier")


def tensor_iterator(seed: int) -> ov.Model:
    """sequence [1, 12, 16] → a gated recurrent network [1, 12, 20], as a TensorIterator whose body is written out."""
    random = np.random.default_rng(seed)
    size = 20
    step, state = ops.parameter([1, 1, 16], np.float32, name="step"), ops.parameter([1, size], np.float32, name="state")
    x = ops.concat([ops.squeeze(step, np.int32(1)), state], 1)
    gate = ops.sigmoid(ops.matmul(x, _weight(random, 16 + size, size), False, False))
    new = ops.tanh(ops.matmul(x, _weight(random, 16 + size, size), False, False))
    kept = ops.add(ops.multiply(gate, state), ops.multiply(ops.subtract(np.float32(1), gate), new))
    next_state = ops.result(kept)
    output = ops.result(ops.unsqueeze(kept, np.int32(1)))
    body = ov.Model([next_state, output], [step, state], "body")

    sequence = ops.parameter([1, 12, 16], np.float32, name="sequence")
    entered = ops.relu(ops.matmul(sequence, _weight(random, 16, 16), False, False))
    loop = ops.tensor_iterator()
    loop.set_body(body)
    loop.set_sliced_input(step, entered.output(0), 0, 1, 1, -1, 1)
    loop.set_merged_input(state, ops.constant(np.zeros((1, size), np.float32)).output(0), next_state.output(0))
    steps = loop.get_concatenated_slices(output.output(0), 0, 1, 1, -1, 1)
    last = loop.get_iter_value(next_state.output(0), -1)
    head = ops.matmul(steps, _weight(random, size, 8), False, False)
    summary = ops.tanh(ops.matmul(last, _weight(random, size, 4), False, False))
    return ov.Model([head, summary], [sequence], "tensor_iterator")


def _weight(random: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return (random.standard_normal(shape) * np.sqrt(1 / shape[0])).astype(np.float32)
