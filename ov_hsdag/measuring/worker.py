"""What runs inside a worker process: one model compiled in one way, and trials of it on command.

A plugin that crashes, hangs or runs out of memory takes its process with it and nothing else.
`ov_hsdag.measuring.process` starts workers and talks to them: one JSON object for each command and each answer,
framed, over the two pipes that were the process's standard input and output. Those descriptors are then given away,
as OpenVINO's plugins print to them.

Commands, by "do": "compile" (device, properties, affinity: file or null, outputs: file or null), "trial" (seconds),
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
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ov_hsdag.devices.requests import requests_in_flight
from ov_hsdag.utils.errors import one_line

if TYPE_CHECKING:
    import openvino as ov
    from numpy.typing import NDArray

MODEL, INPUTS, BEFORE = "model.xml", "inputs.npz", "before.npz"
"""Files of the folder that all workers of a model share; the last where states are to be filled first."""

# A trial of latency lasts until so many inferences have ended; but where they are slow, not longer than so many times
# what was asked for.
_FEWEST = 4
_LONGEST = 4

_WARM_UP = 2

# Seconds of a warm-up that needs no second one: what is disturbed is a small part of inferences that slow.
_LONG = 2.0

_MAGIC = b"hsdg"
_HEADER = struct.Struct("<4sI")
_LARGEST_FRAME = 1 << 24


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
    """A compiled model that is ready to run.

    Attributes:
        submodels: that HETERO made of it; 1 on a single device.
        queue: of its requests.
        inference: seconds of an inference in the warm-up, with all requests in flight.
    """

    def __init__(
        self,
        compiled: ov.CompiledModel,
        inputs: list[NDArray[Any]],
        objective: str,
        requests: int,
        before: list[NDArray[Any]] | None = None,
    ) -> None:
        """Warms up.

        Args:
            compiled: the model.
            inputs: of each inference.
            objective: "latency" of one request, or "throughput" with several in flight.
            requests: in flight, at least.
            before: of an inference that fills the states with what each measured inference finds there; None: each
                begins with the states' first values.

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
        # A request with state begins from the same state each time: a cache that grows would make later trials slower.
        self._stateful = bool(self.queue[0].query_state())
        self._states = self._filled(before) if self._stateful and before is not None else {}
        # The callback must not refer to this object: the queue holds it, and cycles through C++ are never freed.
        finished: list[float] = []
        self.queue.set_callback(lambda request, _: finished.append(time.perf_counter()))
        self._finished = finished
        self._warm_up()

    def _warm_up(self) -> None:
        """Runs each request twice; where that takes long, once, which is when memory is allocated."""
        for _ in range(_WARM_UP):
            begin = time.perf_counter()
            for _ in range(len(self.queue)):
                self._start()
            self.queue.wait_all()
            self.inference = (time.perf_counter() - begin) / len(self.queue)
            if self.inference * len(self.queue) > _LONG:
                break

    @property
    def shortest_trial(self) -> float:
        """About how many seconds a trial takes at least, from the warm-up."""
        return self.inference * (2 * len(self.queue) + 1 if self._objective == "throughput" else 2)

    def rate(self, seconds: float) -> float:
        """Inferences per second in a trial of about so many seconds. Raises RuntimeError where inference fails."""
        return self._throughput(seconds) if self._objective == "throughput" else 1 / self._latency(seconds)

    def outputs(self) -> list[NDArray[Any]]:
        """What it computes of its inputs, from its first state. Raises RuntimeError where inference fails."""
        import numpy as np

        request = self._compiled.create_infer_request()
        self._begin(request)
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
            self._begin(self.queue[0])
            start = time.perf_counter()
            self.queue.start_async(self._inputs)
            self.queue.wait_all()
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    def _start(self) -> None:
        """Starts a request, which takes the time in which its states are set as well."""
        if self._stateful:
            self._begin(self.queue[self.queue.get_idle_request_id()])
        self.queue.start_async(self._inputs)

    def _begin(self, request: ov.InferRequest) -> None:
        """Gives a request the states that every inference begins with."""
        if not self._stateful:
            return
        request.reset_state()
        if self._states:
            for state in request.query_state():
                state.state = self._states[state.name]

    def _filled(self, before: list[NDArray[Any]]) -> dict[str, ov.Tensor]:
        """States after an inference, by name."""
        import numpy as np
        import openvino as ov

        request = self._compiled.create_infer_request()
        request.infer(before)
        return {state.name: ov.Tensor(np.array(state.state.data)) for state in request.query_state()}


def _goes_on(done: int, begin: float, seconds: float) -> bool:
    gone = time.perf_counter() - begin
    return gone < seconds or (done < _FEWEST and gone < _LONGEST * seconds)


class Station:
    """What a worker holds, and its answers to commands."""

    def __init__(self, folder: Path, objective: str) -> None:
        """Imports OpenVINO and reads the model. Raises whatever OpenVINO does."""
        import numpy as np

        from ov_hsdag.devices.virtual import new_core

        self._objective = objective
        self._core = new_core()
        self._model = self._core.read_model(folder / MODEL)
        with np.load(folder / INPUTS) as data:
            self._inputs = [data[name] for name in data.files]
        self._before: list[NDArray[Any]] | None = None
        if (folder / BEFORE).exists():
            with np.load(folder / BEFORE) as data:
                self._before = [data[name] for name in data.files]
        self._runner: Runner | None = None

    def answer(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Raises whatever OpenVINO does."""
        return self.compile(command) if command["do"] == "compile" else self.trial(command["seconds"])

    def compile(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Compiles, warms up and infers once."""
        import numpy as np

        from ov_hsdag.devices.runtime_options import compile_properties
        from ov_hsdag.model.placement import remove_affinities, set_affinities

        self._runner = None  # frees its memory before the next is compiled
        device = command["device"]
        config = compile_properties(self._core, self._model, device, command["properties"])
        try:
            if command["affinity"] is not None:
                set_affinities(self._model, json.loads(Path(command["affinity"]).read_text(encoding="utf-8")))
            compiled = self._core.compile_model(self._model, device, config)
        finally:
            remove_affinities(self._model)
        split = device.count(",") + 1 if device.startswith("HETERO:") else 1
        requests = requests_in_flight(2 * split, split, _submodels(compiled))
        runner = Runner(compiled, self._inputs, self._objective, requests, self._before)
        if command["outputs"] is not None:
            # Texts would be pickles, and the pairs of outputs stay pairs without them.
            np.savez(command["outputs"], *(array for array in self.outputs(runner) if array.dtype.kind in "biuf"))
        self._runner = runner
        return {"submodels": runner.submodels, "shortest_trial": runner.shortest_trial}

    def outputs(self, runner: Runner) -> list[NDArray[Any]]:
        """What the compiled model computes."""
        return runner.outputs()

    def trial(self, seconds: float) -> dict[str, Any]:
        """Runs what is compiled for about so many seconds."""
        if self._runner is None:
            raise RuntimeError("nothing is compiled")
        return {"rate": self._runner.rate(seconds)}


def _submodels(compiled: ov.CompiledModel) -> int:
    try:
        return int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS"))
    except RuntimeError:  # not HETERO
        return 1


def _listen(stream: IO[bytes], folder: Path, commands: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Hands commands on.

    Ends the process on "quit", whatever it is doing, and when its parent has gone: then nobody else is left to remove
    the folder.
    """
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


def main(folder: str, objective: str, station: Callable[[Path, str], Station] = Station) -> None:
    """Works until a command says quit.

    Args:
        folder: has the model and its inputs.
        objective: what `Runner` measures.
        station: makes what answers commands, from both.
    """
    null = os.open(os.devnull, os.O_RDONLY)
    stdin, stdout = os.fdopen(_give_away(0, null), "rb"), os.fdopen(_give_away(1, 2), "wb")
    _expendable()
    commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(stdin, Path(folder), commands), daemon=True).start()
    working: Station | None = None
    while True:
        try:
            if working is None:
                working = station(Path(folder), objective)
                answer: dict[str, Any] = {}
            else:
                answer = working.answer(commands.get())
        except Exception as error:
            answer = {"error": one_line(error)}
        write_frame(stdout, answer)
        if working is None:
            raise SystemExit(1)
