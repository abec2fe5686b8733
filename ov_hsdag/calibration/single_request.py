"""One request of a compiled model, run again and again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    import openvino as ov


class SingleRequest:
    """Runs one request as pipelines do: each submodel in the threads of its own device, which waking takes time.

    Attributes:
        request: of the compiled model.
    """

    def __init__(self, compiled: ov.CompiledModel, inputs: Sequence[NDArray[Any]]) -> None:
        """`inputs` in the order of the model's parameters."""
        self.request = compiled.create_infer_request()
        self._inputs = list(inputs)
        self._stateful = bool(self.request.query_state())

    def run(self) -> float:
        """One inference from the model's first state; its seconds. Raises RuntimeError where it fails."""
        if self._stateful:
            self.request.reset_state()
        start = time.perf_counter()
        self.request.start_async(self._inputs)
        self.request.wait()
        return time.perf_counter() - start
