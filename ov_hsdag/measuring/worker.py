"""What runs inside a worker process: one model compiled in one way, and turns of it on command.

A plugin that crashes, hangs or runs out of memory takes its process with it and nothing else.
`ov_hsdag.measuring.process` starts workers and talks to them: one JSON object for each command and each answer,
framed, over the two pipes that were the process's standard input and output. Those descriptors are then given away,
as OpenVINO's plugins print to them.

Commands, by "do": "compile" (device, properties, affinity: file or null, outputs: file or null), "turn" (seconds),
"quit". An answer with "error" says that OpenVINO refused; the worker is as good as before. The first answer comes
unasked, when OpenVINO is imported and the model is read.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import statistics
import struct
import threading
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ov_hsdag.utils.errors import one_line

if TYPE_CHECKING:
    import numpy as np
    import openvino as ov
    from numpy.typing import NDArray

MODEL, INPUTS = "model.xml", "inputs.npz"
"""Files of the folder that all workers of a model share."""

# A turn for latency lasts until so many inferences have ended; but where they are slow, not longer than so many times
# what was asked for.
_FEWEST = 4
_LONGEST = 4

_WARM_UP = 2

_MAGIC = b"hsdg"
_HEADER = struct.Struct("<4sI")
_LARGEST_FRAME = 1 << 24

Fault = Callable[[str, Any], Any]
"""Is called at each point of a worker ("start", "compile", "outputs", "turn", "answer") with what is at hand there;
what it returns is used instead. Tests put their faults there; otherwise it changes nothing."""


def write_frame(stream: IO[bytes], message: Mapping[str, Any]) -> None:
    """Sends a message. Raises OSError where nobody reads any more."""
    data = json.dumps(message).encode()
    stream.write(_HEADER.pack(_MAGIC, len(data)) + data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> dict[str, Any] | None:
    """The next message, None at the end of the stream. Raises ValueError for what is no message."""
    header = stream.read(_HEADER.size)
    if not header:
        return None
    magic, length = _HEADER.unpack(header.ljust(_HEADER.size, b"\0"))
    if magic != _MAGIC or length > _LARGEST_FRAME:
        raise ValueError("no frame of ours")
    message = json.loads(stream.read(length))
    if not isinstance(message, dict):
        raise ValueError("no message")
    return message


class Runner:
    """A compiled model that is ready to run."""

    def __init__(self, compiled: ov.CompiledModel, inputs: list[NDArray[Any]], objective: str, requests: int) -> None:
        """Warms up.

        Args:
            compiled: the model.
            inputs: of each inference.
            objective: "latency" of one request, or "throughput" with several in flight.
            requests: in flight, at least.

        Raises:
            RuntimeError: inference fails.
        """
        import openvino as ov

        self._compiled = compiled
        self._inputs = inputs
        self._objective = objective
        self.submodels = _submodels(compiled)
        requests = max(requests, int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")))
        self.queue = ov.AsyncInferQueue(compiled, requests if objective == "throughput" else 1)
        # A request with state begins anew each time: a cache that grows would make later turns slower.
        self._stateful = bool(self.queue[0].query_state())
        # The callback must not refer to this object: the queue holds it, and cycles through C++ are never freed.
        finished: list[float] = []
        self.queue.set_callback(lambda request, _: finished.append(time.perf_counter()))
        self._finished = finished
        for _ in range(_WARM_UP * len(self.queue)):
            self._start()
        self.queue.wait_all()

    def rate(self, seconds: float) -> float:
        """Inferences per second in a turn of about so many seconds. Raises RuntimeError where inference fails."""
        return self._throughput(seconds) if self._objective == "throughput" else 1 / self._latency(seconds)

    def outputs(self) -> list[NDArray[Any]]:
        """What it computes of its inputs, from its first state. Raises RuntimeError where inference fails."""
        import numpy as np

        request = self._compiled.create_infer_request()
        request.infer(self._inputs)
        return [np.array(request.get_output_tensor(port).data) for port in range(len(self._compiled.outputs))]

    def _throughput(self, seconds: float) -> float:
        """Inferences that end while requests are always under way, over the time that whole rounds of them take.

        The first to end tells that the pipeline is full; what ends after the last was started runs while it empties.
        Requests that share submodels end in bunches, each request once in a round: from the first end to one in the
        middle of a later bunch the rate would seem higher than it is.
        """
        finished, requests = self._finished, len(self.queue)
        finished.clear()
        while len(finished) <= requests or time.perf_counter() - finished[0] < seconds:
            self._start()
        last = (len(finished) - 1) // requests * requests
        self.queue.wait_all()
        return last / (finished[last] - finished[0])

    def _latency(self, seconds: float) -> float:
        """Median seconds of one request."""
        times: list[float] = []
        begin = time.perf_counter()
        while not times or _goes_on(len(times), begin, seconds):
            start = time.perf_counter()
            self._start()
            self.queue.wait_all()
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    def _start(self) -> None:
        if self._stateful:
            self.queue[self.queue.get_idle_request_id()].reset_state()
        self.queue.start_async(self._inputs)


def _goes_on(done: int, begin: float, seconds: float) -> bool:
    gone = time.perf_counter() - begin
    return gone < seconds or (done < _FEWEST and gone < _LONGEST * seconds)


class _Shop:
    """What a worker holds, and its answers to commands."""

    def __init__(self, folder: Path, objective: str, fault: Fault) -> None:
        import numpy as np
        import openvino as ov

        from ov_hsdag.devices import virtual

        self._objective, self._fault = objective, fault
        self._core = ov.Core()
        virtual.register(self._core)
        self._model = self._core.read_model(folder / MODEL)
        with np.load(folder / INPUTS) as data:
            self._inputs = [data[name] for name in data.files]
        self._runner: Runner | None = None

    def answer(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Raises whatever OpenVINO does."""
        if command["do"] == "compile":
            return self._compile(command)
        if self._runner is None:
            raise RuntimeError("nothing is compiled")
        seconds = self._fault("turn", command["seconds"])
        return {"rate": self._runner.rate(seconds)}

    def _compile(self, command: Mapping[str, Any]) -> dict[str, Any]:
        import numpy as np

        from ov_hsdag.devices import virtual
        from ov_hsdag.model.placement import remove_affinities, set_affinities

        self._runner = None  # frees its memory before the next is compiled
        self._fault("compile", command)
        begin = time.perf_counter()
        device = command["device"]
        config = virtual.compile_properties(device, command["properties"])
        try:
            if command["affinity"] is not None:
                set_affinities(self._model, json.loads(Path(command["affinity"]).read_text(encoding="utf-8")))
            compiled = self._core.compile_model(self._model, device, config)
        finally:
            remove_affinities(self._model)
        split = device.count(",") + 1 if device.startswith("HETERO:") else 1
        runner = Runner(compiled, self._inputs, self._objective, 2 * split)
        seconds = time.perf_counter() - begin
        if command["outputs"] is not None:
            arrays: list[NDArray[np.generic]] = self._fault("outputs", runner.outputs())
            # Texts would be pickles, and the pairs of outputs stay pairs without them.
            np.savez(command["outputs"], *(array for array in arrays if array.dtype.kind in "biuf"))
        self._runner = runner
        return {"submodels": runner.submodels, "seconds": seconds}


def _submodels(compiled: ov.CompiledModel) -> int:
    try:
        return int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS"))
    except RuntimeError:  # not HETERO
        return 1


def _listen(stream: IO[bytes], folder: Path, commands: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Hands commands on. Ends the process when told to, in whatever it is doing, and when its parent has gone: then
    nobody else is left to remove the folder."""
    try:
        while (command := read_frame(stream)) is not None:
            if command["do"] == "quit":
                os._exit(0)
            commands.put(command)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)


def _give_away(descriptor: int, to: int) -> int:
    """A private copy of a descriptor, which itself means something else from now on."""
    private = os.dup(descriptor)
    os.dup2(to, descriptor)
    return private


def _expendable() -> None:
    """Where memory runs out, Linux is to end this process before the one that works for the user."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def main(folder: str, objective: str, fault: str) -> None:
    """Works until it is told to quit.

    Args:
        folder: has the model and its inputs.
        objective: what `Runner` measures.
        fault: "module:function", a `Fault`; "" for none.
    """
    null = os.open(os.devnull, os.O_RDONLY)
    stdin, stdout = os.fdopen(_give_away(0, null), "rb"), os.fdopen(_give_away(1, 2), "wb")
    _expendable()
    commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(stdin, Path(folder), commands), daemon=True).start()
    inject: Fault = lambda point, value: value  # noqa: E731
    if fault:
        module, _, name = fault.partition(":")
        inject = getattr(import_module(module), name)
    inject("start", None)
    shop: _Shop | None = None
    while True:
        try:
            if shop is None:
                shop = _Shop(Path(folder), objective, inject)
                answer: dict[str, Any] = {}
            else:
                answer = shop.answer(commands.get())
        except Exception as error:
            answer = {"error": one_line(error)}
        told = inject("answer", answer)
        if isinstance(told, bytes):  # a fault
            stdout.write(told)
            stdout.flush()
        else:
            write_frame(stdout, told)
        if shop is None:
            raise SystemExit(1)
