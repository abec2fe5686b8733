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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from ov_hsdag.devices.requests import requests_in_flight
from ov_hsdag.model.inputs import TimedInputs
from ov_hsdag.model.replay import Replay, as_timed, mean_rate
from ov_hsdag.utils.errors import one_line

if TYPE_CHECKING:
    import openvino as ov
    from numpy.typing import NDArray

MODEL, INPUTS = "model.xml", "inputs.npz"
"""Files of the folder that all workers of a model share."""

# Of larger outputs so many last values are compared: logits of a prompt have hundreds of megabytes.
_COMPARED = 1 << 22

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


def write_inputs(path: Path, phases: Sequence[TimedInputs]) -> None:
    """Writes what is timed as .npz, no pickles. Raises OSError."""
    arrays: dict[str, Any] = {}
    about = []
    for number, one in enumerate(phases):
        about.append({"name": one.name, "count": one.count, "past": one.past})
        for kind, inferences in (("before", one.before), ("steps", one.steps)):
            for inference, inputs in enumerate(inferences):
                arrays |= {f"{number}.{kind}.{inference}.{port}": array for port, array in enumerate(inputs)}
    np.savez(path, about=np.array(json.dumps(about)), **arrays)


def read_inputs(path: Path) -> list[TimedInputs]:
    """What `write_inputs` wrote."""
    with np.load(path) as data:
        about = json.loads(str(data["about"]))
        found: dict[tuple[int, str], dict[int, dict[int, NDArray[Any]]]] = {}
        for key in data.files:
            if key != "about":
                number, kind, inference, port = key.split(".")
                steps = found.setdefault((int(number), kind), {})
                steps.setdefault(int(inference), {})[int(port)] = data[key]

    def inferences(number: int, kind: str) -> list[list[NDArray[Any]]]:
        steps = found.get((number, kind), {})
        return [[steps[step][port] for port in sorted(steps[step])] for step in sorted(steps)]

    return [TimedInputs(inferences(n, "steps") or [[]], inferences(n, "before"), **one) for n, one in enumerate(about)]


class Runner:
    """A compiled model that is ready to run.

    Attributes:
        submodels: that HETERO made of it; 1 on a single device.
        queue: of its requests.
        rates: of each phase in the last trial, inferences per second, by name.
    """

    def __init__(
        self,
        compiled: ov.CompiledModel,
        inputs: Sequence[NDArray[Any]] | Sequence[TimedInputs],
        objective: str,
        requests: int,
    ) -> None:
        """Warms up.

        Args:
            compiled: the model.
            inputs: of each inference, or what is timed, the phases of a workload one after the other.
            objective: "latency" of one request, or "throughput" with several in flight.
            requests: in flight, at least.

        Raises:
            RuntimeError: inference fails.
        """
        import openvino as ov

        self._compiled = compiled
        self._timed = phases_of(inputs)
        self._objective = objective
        self.submodels = _submodels(compiled)
        self.rates: dict[str, float] = {}
        requests = max(requests, int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")))
        self.queue = ov.AsyncInferQueue(compiled, requests if objective == "throughput" else 1)
        # The callback must not refer to this object: the queue holds it, and cycles through C++ are never freed.
        finished: list[float] = []
        self.queue.set_callback(lambda request, _: finished.append(time.perf_counter()))
        self._phases = [_Phase(self.queue, timed, finished) for timed in self._timed]

    @property
    def shortest_trial(self) -> float:
        """About how many seconds a trial takes at least, from the warm-up."""
        times = 2 * len(self.queue) + 1 if self._objective == "throughput" else 2
        return sum(phase.inference * times for phase in self._phases)

    def rate(self, seconds: float) -> float:
        """Inferences per second in a trial of about so many seconds. Raises RuntimeError where inference fails.

        Of a workload it is that of all its inferences: their number over the sum of their times.
        """
        for phase in self._phases:
            share = seconds / len(self._phases)
            rate = phase.throughput(share) if self._objective == "throughput" else 1 / phase.latency(share)
            self.rates[phase.timed.name] = rate
        return mean_rate(self.rates, self._timed)

    def outputs(self) -> list[NDArray[Any]]:
        """What it computes in the first inference of each phase. Raises RuntimeError where inference fails."""
        found = []
        for phase in self._phases:
            request = self._compiled.create_infer_request()
            phase.replay.first.set(request)
            request.infer(phase.timed.steps[0])
            for port in range(len(self._compiled.outputs)):
                array = np.array(request.get_output_tensor(port).data)
                found.append(array if array.size <= _COMPARED else array.reshape(-1)[-_COMPARED:])
        return found


def phases_of(inputs: Sequence[NDArray[Any]] | Sequence[TimedInputs]) -> list[TimedInputs]:
    """What is timed: the phases, or one of an inference with these inputs."""
    phases = [one for one in inputs if isinstance(one, TimedInputs)]
    return phases or [as_timed([one for one in inputs if not isinstance(one, TimedInputs)])]


class _Phase:
    """One kind of inferences on the requests of a queue.

    Attributes:
        timed: what is timed.
        replay: of the first request.
        inference: seconds of an inference in the warm-up, with all requests in flight.
    """

    def __init__(self, queue: ov.AsyncInferQueue, timed: TimedInputs, finished: list[float]) -> None:
        """Warms up. finished: when inferences ended, of all phases."""
        self.timed = timed
        self._queue, self._finished = queue, finished
        self.replay = Replay(queue[0], timed)
        others = [Replay(request, timed, self.replay.first) for request in list(queue)[1:]]
        self._replays = [self.replay, *others]
        self.inference = 0.0
        self._warm_up()

    def _warm_up(self) -> None:
        """Runs each request twice; where that takes long, once, which is when memory is allocated."""
        self._rewind()
        for _ in range(_WARM_UP):
            begin = time.perf_counter()
            for _ in self._replays:
                self._start()
            self._queue.wait_all()
            self.inference = (time.perf_counter() - begin) / len(self._replays)
            if self.inference * len(self._replays) > _LONG:
                break

    def throughput(self, seconds: float) -> float:
        """Inferences that end while requests are always under way, over the time that whole rounds of them take.

        The first to end tells that the pipeline is full; what ends after the last was started runs while it empties.
        Requests that share submodels end in bunches, each request once in a round: from the first end to one in the
        middle of a later bunch the rate would seem higher than it is.
        """
        self._rewind()
        finished, requests = self._finished, len(self._replays)
        finished.clear()
        while len(finished) <= requests or time.perf_counter() - finished[0] < seconds:
            self._start()
        last = (len(finished) - 1) // requests * requests
        self._queue.wait_all()
        return last / (finished[last] - finished[0])

    def latency(self, seconds: float) -> float:
        """Median seconds of one request."""
        self._rewind()
        times: list[float] = []
        begin = time.perf_counter()
        while not times or _goes_on(len(times), begin, seconds):
            inputs = self.replay.next()
            start = time.perf_counter()
            self._queue.start_async(inputs)
            self._queue.wait_all()
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    def _rewind(self) -> None:
        """Sets all requests back, untimed; what is one step sets them back itself."""
        if len(self.timed.steps) > 1:
            for replay in self._replays:
                replay.rewind()

    def _start(self) -> None:
        """Starts a request, which takes the time in which its states are set as well."""
        self._queue.start_async(self._replays[self._queue.get_idle_request_id()].next())


def _goes_on(done: int, begin: float, seconds: float) -> bool:
    gone = time.perf_counter() - begin
    return gone < seconds or (done < _FEWEST and gone < _LONGEST * seconds)


class Station:
    """What a worker holds, and its answers to commands."""

    def __init__(self, folder: Path, objective: str) -> None:
        """Imports OpenVINO and reads the model. Raises whatever OpenVINO does."""
        from ov_hsdag.devices.virtual import new_core

        self._objective = objective
        self._core = new_core()
        self._model = self._core.read_model(folder / MODEL)
        self._inputs = read_inputs(folder / INPUTS)
        self._runner: Runner | None = None

    def answer(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Raises whatever OpenVINO does."""
        return self.compile(command) if command["do"] == "compile" else self.trial(command["seconds"])

    def compile(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Compiles, warms up and infers once."""
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
        runner = Runner(compiled, self._inputs, self._objective, requests)
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
        return {"rate": self._runner.rate(seconds), "rates": self._runner.rates}


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
