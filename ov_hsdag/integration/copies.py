"""`ov_hsdag.Copies`: runs the whole model on each of several devices, which share the requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

from ov_hsdag.integration.requests import OPTIMAL_NUMBER
from ov_hsdag.utils.errors import UserError
from ov_hsdag.utils.lazy import ov

# Requests in flight on each device, at least: while Python handles the outputs of one, the device computes the other.
_LEAST_REQUESTS = 2


class Copies:
    """A queue of requests, used like `openvino.AsyncInferQueue`, over one model compiled for several devices.

    The next request goes to the first device that is free, so that a device twice as fast gets twice as many.
    """

    def __init__(self, compiled: Sequence[ov.CompiledModel], requests: int = 0) -> None:
        """Makes the queue, and the requests on each device.

        Args:
            compiled: the model on each device: ``[core.compile_model(model, name) for name in ("GPU", "CPU")]``.
            requests: requests in flight on each device; 0 for as many as the device asks for, and two at least.

        Raises:
            UserError: there is no compiled model, or the model has states. The next request of a conversation may go to
                another device, whose states do not have what the previous request stored.
        """
        if not compiled:
            raise UserError("Copies needs the model compiled for at least one device, got none")
        counts = [requests or max(int(one.get_property(OPTIMAL_NUMBER)), _LEAST_REQUESTS) for one in compiled]
        self._free: SimpleQueue[ov.InferRequest] = SimpleQueue()
        # Requests of all devices alternate in the queue, so that the first ones occupy every device.
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
        """The number of requests that can be in flight."""
        return self._count

    def set_callback(self, callback: Callable[[ov.InferRequest, Any], object]) -> None:
        """Sets the function that is called, in another thread, with each finished request and its userdata.

        The request's `results` are valid until the function returns.
        """
        self._callback = callback

    def start_async(self, inputs: Any = None, userdata: Any = None, share_inputs: bool = False) -> None:
        """Starts the next request on the first device that is free. Waits where all requests are in flight.

        Args:
            inputs: see `openvino.InferRequest.start_async`.
            userdata: passed to the callback.
            share_inputs: see `openvino.InferRequest.start_async`.

        Raises:
            RuntimeError: an earlier request failed; all others continue. This one is not started.
            Exception: the callback raised it for an earlier request. This one is not started.
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
        """Waits until all requests and their callbacks have ended. Raises what `start_async` raises."""
        self._raise_errors(list(self._started))

    def _finish(self, request: ov.InferRequest, userdata: Any) -> None:
        """Waits for a request, calls the callback, and makes the request free, also after an error."""
        try:
            request.wait()
            if self._callback is not None:
                self._callback(request, userdata)
        finally:
            self._free.put(request)

    def _raise_errors(self, ended: Sequence[Future[None]]) -> None:
        """Waits for requests and removes them from the list of started ones; raises the first error among them."""
        errors = [error for one in ended if (error := one.exception()) is not None]
        gone = set(ended)
        self._started = [one for one in self._started if one not in gone]
        if errors:
            raise errors[0]


def _refuse_states(request: ov.InferRequest) -> None:
    """Checks that an infer request keeps no states. Raises UserError where it does."""
    try:
        states = request.query_state()
    except RuntimeError:  # requests of AUTO have no states to query (src/plugins/auto/src/infer_request.cpp)
        return
    if states:
        raise UserError(
            "Copies gives each request to any device, and this model keeps states from one request to the next: run"
            " each conversation in an InferRequest of its own, on one device"
        )
