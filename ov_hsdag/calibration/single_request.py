"""One request of a compiled model, run again and again."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from ov_hsdag.model.inputs import TimedInputs
from ov_hsdag.model.replay import Replay, as_timed
from ov_hsdag.utils.timing import OutOfTime

if TYPE_CHECKING:
    import openvino as ov

# What `wait_for` takes fits into 32 bits: 23 days, in ms.
_LONGEST_MS = 2e9


class SingleRequest:
    """Runs one request as pipelines do: each submodel in the threads of its own device, which waking takes time.

    Attributes:
        request: of the compiled model.
        clock: tells the seconds that inferences are timed by: of all requests. On a machine that others use
            `time.process_time` shows what this process took on cores.
    """

    clock: Callable[[], float] = staticmethod(time.perf_counter)

    def __init__(self, compiled: ov.CompiledModel, inputs: Sequence[NDArray[Any]] | TimedInputs) -> None:
        """`inputs` in the order of the model's parameters, or what is timed of a model with states."""
        self.request = compiled.create_infer_request()
        self._replay = Replay(self.request, as_timed(inputs))
        self._runs = 0

    @property
    def inferences(self) -> int:
        """How many were run, those that only fill states too."""
        return self._runs + self._replay.inferences

    def run(self, limit: float = math.inf) -> float:
        """Seconds of one inference from the states that it begins with.

        Raises RuntimeError where it fails, OutOfTime where it was cancelled after `limit` seconds.
        """
        inputs = self._replay.next()
        self._runs += 1
        start = self.clock()
        self.request.start_async(inputs)
        if not self.request.wait_for(int(min(limit * 1e3, _LONGEST_MS))):
            with contextlib.suppress(RuntimeError):  # that it was cancelled
                self.request.cancel()
                self.request.wait()
            raise OutOfTime(f"an inference takes more than {limit:.1f} s")
        self.request.wait()
        return self.clock() - start
