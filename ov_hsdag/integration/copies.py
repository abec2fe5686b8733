"""The whole model on each of several devices, which share the requests: `ov_hsdag.Copies`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

from ov_hsdag.integration.requests import OPTIMAL_NUMBER
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import ov

# Requests of each device: while Python hands the outputs of one over, the device works at the other.
_REQUESTS = 2


class Copies:
    """Compiled models of one model that are used like one `openvino.AsyncInferQueue`.

    Each next request goes to whichever device is free. A device that is twice as fast gets twice as many.
    """

    def __init__(self, compiled: Sequence[ov.CompiledModel], requests: int = 0) -> None:
        """Args:
            compiled: the model on each device: ``[core.compile_model(model, name) for name in ("GPU", "CPU")]``.
            requests: in flight on each device; 0: as many as the device asks for, and two at least.

        Raises UserError: no compiled models, or a model with states: what one request leaves in them is for the next
        one of its conversation, which may go to another device.
        """
        if not compiled:
            raise UserError("Copies needs the model compiled for at least one device, got none")
        counts = [requests or max(int(one.get_property(OPTIMAL_NUMBER)), _REQUESTS) for one in compiled]
        self._free: SimpleQueue[ov.InferRequest] = SimpleQueue()
        # In turns, so that the first requests go to all devices.
        for number in range(max(counts)):
            for one, count in zip(compiled, counts, strict=True):
                if number < count:
                    request = one.create_infer_request()
                    if number == 0:
                        _refuse_states(request)
                    self._free.put(request)
        self._count = sum(counts)
        self._waiters = ThreadPoolExecutor(self._count, "ov_hsdag.Copies")
        self._started: list[Future[None]] = []
        self._callback: Callable[[ov.InferRequest, Any], object] | None = None

    def __len__(self) -> int:
        """Requests in flight at most."""
        return self._count

    def set_callback(self, callback: Callable[[ov.InferRequest, Any], object]) -> None:
        """Sets what is called with each request that has ended and its userdata, in a thread of its own.

        The request's `results` hold until it returns.
        """
        self._callback = callback

    def start_async(self, inputs: Any = None, userdata: Any = None, share_inputs: bool = False) -> None:
        """Starts the next request, on the device that is free first. Waits where all requests are in flight.

        Args:
            inputs: as of `openvino.InferRequest.start_async`.
            userdata: handed on to the callback.
            share_inputs: as of `openvino.InferRequest.start_async`.

        Raises:
            RuntimeError: an earlier request failed; the rest of them goes on.
            Exception: the callback's, of an earlier request.
        """
        self._raise_errors([one for one in self._started if one.done()])
        request = self._free.get()
        try:
            request.start_async(inputs, share_inputs=share_inputs)
        except BaseException:
            self._free.put(request)
            raise
        self._started.append(self._waiters.submit(self._finish, request, userdata))

    def wait_all(self) -> None:
        """Waits until all requests have ended, callbacks included. Raises as `start_async`."""
        self._raise_errors(list(self._started))

    def _finish(self, request: ov.InferRequest, userdata: Any) -> None:
        try:
            request.wait()
            if self._callback is not None:
                self._callback(request, userdata)
        finally:
            self._free.put(request)

    def _raise_errors(self, ended: Sequence[Future[None]]) -> None:
        """Waits for requests and forgets them; raises the first one's error where some failed."""
        errors = [error for one in ended if (error := one.exception()) is not None]
        gone = set(ended)
        self._started = [one for one in self._started if one not in gone]
        if errors:
            raise errors[0]


def _refuse_states(request: ov.InferRequest) -> None:
    """Raises UserError where requests of a compiled model keep states."""
    try:
        states = request.query_state()
    except RuntimeError:  # AUTO's requests do not tell (src/plugins/auto/src/infer_request.cpp)
        return
    if states:
        raise UserError(
            "Copies gives each request to any device, and this model keeps states from one request to the next: run"
            " each conversation in an InferRequest of its own, on one device"
        )
