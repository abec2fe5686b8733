"""Gives a request the inputs that are timed, one inference after the other, and the states that they begin with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.model.inputs import TimedInputs
from ov_hsdag.utils.lazy import ov


def infer(request: ov.InferRequest, inputs: Any) -> None:
    """One inference. Raises RuntimeError where it fails. Not for requests of an AsyncInferQueue, which would count it.

    `InferRequest.infer` returns empty outputs, or those of before, where an operation of a dynamic model fails on a CPU
    device of one thread, and the next inference may end the process (2026.4).
    """
    request.start_async(inputs)
    request.wait()


class FirstStates:
    """The states that timed inferences begin with; `inferences`: that were run to find out."""

    def __init__(self, request: ov.InferRequest, timed: TimedInputs) -> None:
        """Runs what is before the first step, on a request of the compiled model. Raises RuntimeError."""
        try:
            self.stateful = bool(request.query_state())
        except RuntimeError:  # AUTO's requests do not tell (src/plugins/auto/src/infer_request.cpp)
            self.stateful = False
        self.inferences = 0
        self._past = timed.past
        self._states: dict[str, NDArray[Any]] = {}
        self._axes: dict[str, int] = {}
        if not self.stateful or not timed.before:
            return
        request.reset_state()
        shapes: dict[str, Sequence[int]] = {}
        for inputs in timed.before:
            request.infer(inputs)
            self.inferences += 1
            shapes = {name: array.shape for name, array in self._states.items()}
            self._states = {state.name: np.array(state.state.data) for state in request.query_state()}
        # What grew with the last token is as long as the tokens so far.
        for name, before in shapes.items():
            now = self._states[name].shape
            grown = [axis for axis, (a, b) in enumerate(zip(before, now, strict=False)) if a != b]
            if len(before) == len(now) and len(grown) == 1:
                self._axes[name] = grown[0]

    def set(self, request: ov.InferRequest) -> None:
        """Gives them to a request."""
        if not self.stateful:
            return
        request.reset_state()
        for state in request.query_state() if self._states else ():
            array, axis = self._states[state.name], self._axes.get(state.name)
            if axis is not None:
                array = np.ascontiguousarray(np.take(array, np.arange(self._past) % array.shape[axis], axis))
            state.state = ov.Tensor(array)


class Replay:
    """The inferences of one request; `inferences`: that were run beside those that are timed."""

    def __init__(self, request: ov.InferRequest, timed: TimedInputs, first: FirstStates | None = None) -> None:
        """Runs nothing but what is before, unless `first`, of another request of the model, has its states."""
        self._request, self._timed = request, timed
        self.first = FirstStates(request, timed) if first is None else first
        self.inferences = self.first.inferences if first is None else 0
        self._done = len(timed.steps)

    def rewind(self) -> None:
        """Sets the states back. Plugins keep given states without room for more: an untimed inference makes it."""
        self.first.set(self._request)
        self._done = 0
        if len(self._timed.steps) > 1 and self.first.stateful:
            self._request.infer(self._timed.steps[0])
            self.inferences += 1
            self._done = 1

    def next(self) -> Sequence[NDArray[Any]]:
        """Inputs of the next inference; sets the states back where all steps are done."""
        if self._done >= len(self._timed.steps):
            self.rewind()
        self._done += 1
        return self._timed.steps[self._done - 1]


def mean_rate(rates: Mapping[str, float], phases: Sequence[TimedInputs]) -> float:
    """Inferences per second of a whole workload, from those of its phases."""
    return sum(one.count for one in phases) / sum(one.count / rates[one.name] for one in phases)
