"""Prepares timed inferences of a request: their inputs, one after the other, and the states that they begin with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.model.inputs import TimedInputs
from ov_hsdag.utils.lazy import ov


def infer(request: ov.InferRequest, inputs: Any) -> None:
    """Runs one inference and raises RuntimeError where it fails.

    `InferRequest.infer` does not raise where an operation of a dynamic model fails on a CPU device of one thread: it
    returns empty outputs, or earlier ones, and the next inference may end the process (2026.4). Requests of an
    AsyncInferQueue must not be given: the queue would count the inference.

    Args:
        request: the request, which has the results afterwards.
        inputs: values of the inputs, as `InferRequest.start_async` takes them.

    Raises:
        RuntimeError: the inference fails.
    """
    request.start_async(inputs)
    request.wait()


class FirstStates:
    """The states of a stateful model that timed inferences begin with.

    They are computed once by inferences. Where fewer tokens were read than the states shall hold, `set` repeats the
    states along the axis of the tokens. Without inferences, the states are those after a reset.

    Attributes:
        stateful: whether the request has states.
        inferences: number of inferences that were run to compute the states.
    """

    def __init__(self, request: ov.InferRequest, timed: TimedInputs) -> None:
        """Computes the states by running the inferences before the first step.

        Args:
            request: a request of the compiled model.
            timed: the timed inputs.

        Raises:
            RuntimeError: an inference fails.
        """
        try:
            self.stateful = bool(request.query_state())
        except RuntimeError:  # AUTO's requests do not implement it (src/plugins/auto/src/infer_request.cpp)
            self.stateful = False
        self.inferences = 0
        self._past = timed.past
        self._states: dict[str, NDArray[Any]] = {}  # by the state's name; {} for those after a reset
        self._axes: dict[str, int] = {}  # axis of the tokens in each state that grows with them
        if not self.stateful or not timed.before:
            return
        request.reset_state()
        shapes: dict[str, Sequence[int]] = {}
        for inputs in timed.before:
            request.infer(inputs)
            self.inferences += 1
            shapes = {name: array.shape for name, array in self._states.items()}
            self._states = {state.name: np.array(state.state.data) for state in request.query_state()}
        # The axis that grew with the last token has the length of the tokens so far.
        for name, before in shapes.items():
            now = self._states[name].shape
            grown = [axis for axis, (a, b) in enumerate(zip(before, now, strict=False)) if a != b]
            if len(before) == len(now) and len(grown) == 1:
                self._axes[name] = grown[0]

    def set(self, request: ov.InferRequest) -> None:
        """Sets the states of a request of the same model to these states."""
        if not self.stateful:
            return
        request.reset_state()
        for state in request.query_state() if self._states else ():
            array, axis = self._states[state.name], self._axes.get(state.name)
            if axis is not None:
                array = np.ascontiguousarray(np.take(array, np.arange(self._past) % array.shape[axis], axis))
            state.state = ov.Tensor(array)


class Replay:
    """Hands out the inputs of timed inferences of one request, step by step, any number of times.

    After the last step the states are set to those before the first one. The caller runs the timed inferences.

    Attributes:
        first: the states that the inferences begin with.
        inferences: number of untimed inferences that this object has run.
    """

    def __init__(self, request: ov.InferRequest, timed: TimedInputs, first: FirstStates | None = None) -> None:
        """Computes the first states, unless they are given.

        Args:
            request: a request of the compiled model.
            timed: the timed inputs.
            first: the states that another request of the same model computed; by default this request computes them.
        """
        self._request, self._timed = request, timed
        self.first = FirstStates(request, timed) if first is None else first
        self.inferences = self.first.inferences if first is None else 0
        self._done = len(timed.steps)  # steps since the states were set; all of them, so that the first `next` rewinds

    def rewind(self) -> None:
        """Sets the states to those before the first step.

        If there are several steps, the first one is then run untimed: plugins store set states without spare room, and
        that inference makes the room.
        """
        self.first.set(self._request)
        self._done = 0
        if len(self._timed.steps) > 1 and self.first.stateful:
            self._request.infer(self._timed.steps[0])
            self.inferences += 1
            self._done = 1

    def next(self) -> Sequence[NDArray[Any]]:
        """Returns the inputs of the next inference. If all steps are done, it rewinds first, see `rewind`."""
        if self._done >= len(self._timed.steps):
            self.rewind()
        self._done += 1
        return self._timed.steps[self._done - 1]


def mean_rate(rates: Mapping[str, float], phases: Sequence[TimedInputs]) -> float:
    """Computes the mean rate of a workload: all its inferences, divided by the time that they take together.

    Args:
        rates: inferences per second of each phase, by the phase's name.
        phases: the phases, with the number of inferences of each.

    Returns:
        Inferences per second.
    """
    return sum(one.count for one in phases) / sum(one.count / rates[one.name] for one in phases)
