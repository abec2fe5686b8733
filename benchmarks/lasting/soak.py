"""Tests whether ov-hsdag can run for long: measures what its processes hold after thousands of placements.

    python -m benchmarks.lasting.soak                     # both parts, the better part of an hour
    python -m benchmarks.lasting.soak cycles --share 0.1  # one part, a tenth of it

Parts:

    cycles   One process places a model, saves it, compiles it through the hook by an unchanged call, and infers, 2,000
             times. A second process makes the same calls to OpenVINO without ov-hsdag, in turns with the first. Its
             growth is that of OpenVINO, and does not count.
    service  samples/python/service.py answers, as fast as it can, as many requests as 8 clients send in an hour at one
             per second each, while `ov-hsdag place` replaces its model again and again. A second service of the same
             model, without a placement and without ov-hsdag, answers as many.

The exit status is 1 if something grows or an answer is wrong. With --output FILE.json results are added there by part,
with samples over time; the repository's file is benchmarks/results/soak.json. tests/test_lost_resources.py has workers
that are killed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from benchmarks.common.machine import about
from benchmarks.common.output import add_output, stored
from benchmarks.lasting.soak_cycle import DEVICES, HETERO, LIMITS, held
from ov_hsdag.devices import virtual
from ov_hsdag.model.inputs import random_inputs
from ov_hsdag.model.placement import Placement
from ov_hsdag.placing.place import place
from ov_hsdag.storage.files import save_model_atomically, write_json, write_text
from research.zoo.catalog import ZOO
from tests.processes import serving

SMOKE_ARGUMENTS = "cycles --share 0.002"
"""The arguments with which this command is quickest, for `make figures-smoke`."""

ROOT = Path(__file__).parents[2]

MODELS = ("lstm", "squeezenet", "vit-small")
CYCLES, REQUESTS, CLIENTS = 2000, 8 * 3600, 8

VARIABLES = {
    virtual.VIRTUAL_DEVICES_VARIABLE: ";".join(
        f"{name}:{','.join(f'{key}={value}' for key, value in LIMITS.items())}" for name in DEVICES
    ),
    "OV_HSDAG_DISABLE": "",
    "PYTHONPATH": str(ROOT),
}
WITHOUT = {virtual.VIRTUAL_DEVICES_VARIABLE: "", "OV_HSDAG_DISABLE": "1", "PYTHONPATH": str(ROOT)}

MOST = {"descriptors": 0.0, "threads": 0.0, "objects": 100.0, "allocated": 1.0, "resident": 12.0}
"""Largest growth beyond that of OpenVINO, by key of `held`: MiB for memory, else a number."""

Samples = list[dict[str, float]]
Tell = Callable[[str], None]


def growth(samples: Sequence[Mapping[str, float]], key: str) -> float:
    """The growth of a figure from its median in the second quarter of samples to that in the last.

    The first quarter is for warming up.

    Args:
        samples: figures of `held` over time.
        key: name of the figure.
    """
    quarter = max(len(samples) // 4, 1)
    values = [one[key] for one in samples]
    return statistics.median(values[-quarter:]) - statistics.median(values[quarter : 2 * quarter] or values[:1])


def grown(own: Samples, alone: Samples | None = None) -> dict[str, float]:
    """The figures that grow by more than `MOST` beyond OpenVINO's growth, and by how much.

    Args:
        own: samples of the process with ov-hsdag.
        alone: samples of the process with OpenVINO only; None to count all growth.
    """
    found = {}
    for key, most in MOST.items():
        if all(key in one for one in own):
            more = growth(own, key) - max(growth(alone, key) if alone else 0.0, 0.0)
            if more > most:
                found[key] = round(more, 3)
    return found


def models(folder: Path, names: Sequence[str]) -> None:
    """Writes the files that the processes of `cycles` read: models, their inputs, and a split of each.

    Raises:
        RuntimeError: `place` does not split a model.
    """
    for name in names:
        model = ZOO[name].build()
        placement = place(model, HETERO, objective="throughput")
        if len(placement.used()) < 2:
            raise RuntimeError(f"{name} is not split")
        np.savez(folder / f"{name}.npz", *random_inputs(model))
        write_json(folder / f"{name}.json", placement.affinity)
        Placement.strip(model)
        ov.save_model(model, folder / f"{name}.xml", compress_to_fp16=False)


class Process:
    """A process of soak_cycle.py."""

    def __init__(self, kind: str, folder: Path, names: Sequence[str]) -> None:
        """Starts the process.

        Args:
            kind: "ov-hsdag" or "openvino".
            folder: folder of `models`.
            names: names of the models.
        """
        hook = ["-m", "ov_hsdag"] if kind == "ov-hsdag" else []
        environment = {**os.environ, **(VARIABLES if hook else WITHOUT)}
        command = [sys.executable, *hook, "-m", "benchmarks.lasting.soak_cycle", kind, str(folder), *names]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
        )

    def go(self, cycles: int) -> dict[str, float]:
        """Runs a number of cycles. Returns the figures of `held` afterwards."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{cycles}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process ended with status {self._process.wait()}")
        return dict(json.loads(answer))

    def end(self) -> None:
        """Ends the process."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait(60)


def cycles(folder: Path, count: int, tell: Tell, names: Sequence[str] = MODELS) -> dict[str, Any]:
    """Runs cycles of ov-hsdag and of OpenVINO only, in turns.

    Args:
        folder: folder for models.
        count: number of cycles, which is rounded up.
        tell: called with a line about progress.
        names: names of models of the zoo.

    Returns:
        `cycles`, their number; `samples` of both processes; and what has `grown`.
    """
    models(folder, names)
    # Between two samples all models run equally often, as each adds to what a process holds.
    step = len(names) * -(-count // (100 * len(names)))
    count = step * -(-count // step)
    samples: dict[str, Samples] = {"ov-hsdag": [], "openvino": []}
    processes = {kind: Process(kind, folder, names) for kind in samples}
    try:
        for done in range(0, count, step):
            for kind, process in processes.items():
                samples[kind].append(process.go(step))
            tell(f"cycles: {done + step:,} of {count:,}")
    finally:
        for process in processes.values():
            process.end()
    return {"cycles": count, "samples": samples, "grown": grown(samples["ov-hsdag"], samples["openvino"])}


# The service


def ask(connection: http.client.HTTPConnection, body: bytes) -> Any:
    """Sends a request to the service. Returns its answer.

    Raises:
        RuntimeError: the status is not 200.
    """
    connection.request("POST", "/infer", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read()
    if response.status != 200:
        raise RuntimeError(f"status {response.status}: {text[:200]!r}")
    return json.loads(text)


def small_network() -> ov.Model:
    """A model of convolutions over images of 16 by 16, so small that the service's own work takes most of the time."""
    from openvino import opset13 as ops

    draw = np.random.default_rng(0)
    image = ops.parameter([1, 3, 16, 16], np.float32, name="image")
    value, channels = image, 3
    for _ in range(8):
        weights = draw.normal(size=(32, channels, 3, 3)) / np.sqrt(9 * channels)
        weights = ops.constant(weights.astype(np.float32))
        value = ops.relu(ops.convolution(value, weights, [1, 1], [1, 1], [1, 1], [1, 1]))
        channels = 32
    pooled = ops.reduce_mean(value, ops.constant(np.array([2, 3])), False)
    scores = ops.matmul(pooled, draw.normal(size=(32, 10)).astype(np.float32), False, False)
    return ov.Model([ops.result(scores)], [image])


def service(folder: Path, requests: int, tell: Tell) -> dict[str, Any]:
    """Runs clients of two services, with a placement and without, while the placed model is placed again and again.

    Args:
        folder: folder for models and logs.
        requests: number of requests to each service.
        tell: called with a line about progress.

    Returns:
        Numbers of `answers`, `wrong` answers and `placings`; `seconds`; `ms`, median, 99th percentile and maximum of
        the times of answers; `samples` of both services; and what has `grown`.
    """
    plain, placed = folder / "plain.xml", folder / "model.xml"
    model = small_network()
    ov.save_model(model, plain, compress_to_fp16=False)
    names = [node.get_friendly_name() for node in model.get_ordered_ops()]
    half = {name: DEVICES[number >= len(names) // 2] for number, name in enumerate(names)}
    place(model, HETERO, objective="throughput", affinity=half)
    save_model_atomically(model, placed, compress_to_fp16=False)
    images = np.random.default_rng(1).random((20, 1, 3, 16, 16)).round(3).astype(np.float32)
    bodies = [json.dumps({"inputs": [image.tolist()]}).encode() for image in images]
    expected = {}  # the second has the CPU's own precision
    for kind, precision in (("ov-hsdag", {"INFERENCE_PRECISION_HINT": "f32"}), ("openvino", {})):
        compiled = ov.Core().compile_model(plain, "CPU", precision)
        expected[kind] = [compiled([image])[0] for image in images]

    samples: dict[str, Samples] = {"ov-hsdag": [], "openvino": []}
    took: dict[str, list[float]] = {kind: [] for kind in samples}
    ended, placings, answered, wrong = threading.Event(), 0, 0, 0
    counting = threading.Lock()

    # Places the model again and again, for both objectives in turn, until the clients have ended.
    def replacing() -> None:
        nonlocal placings
        command = [sys.executable, "-c", "from ov_hsdag.cli import main; main()", "place", str(plain), "--no-measure"]
        environment = {**os.environ, **VARIABLES}
        while not ended.is_set():
            objective = ("latency", "throughput")[placings % 2]
            arguments = ["--device", HETERO, "--objective", objective, "--output", str(placed), "--quiet"]
            subprocess.run([*command, *arguments], env=environment, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
            placings += 1

    ours = {**os.environ, **VARIABLES, "MODEL": str(placed), "DEVICE": HETERO}
    theirs = {**os.environ, **WITHOUT, "MODEL": str(plain), "DEVICE": "CPU"}
    with (
        serving(folder / "placed.log", ours) as (port, pid),
        serving(folder / "plain.log", theirs) as (plain_port, plain_pid),
    ):
        ports, pids = {"ov-hsdag": port, "openvino": plain_port}, {"ov-hsdag": pid, "openvino": plain_pid}

        # Sends random requests to both services in turn, and checks and times the answers.
        def client(number: int) -> None:
            nonlocal answered, wrong
            draw = random.Random(number)
            connections = {kind: http.client.HTTPConnection("127.0.0.1", ports[kind], timeout=120) for kind in ports}
            for _ in range(requests // CLIENTS):
                one = draw.randrange(len(bodies))
                for kind, connection in connections.items():
                    begin = time.perf_counter()
                    (output,) = ask(connection, bodies[one])["outputs"]
                    seconds = time.perf_counter() - begin
                    right = np.allclose(np.array(output), expected[kind][one], rtol=1e-3, atol=1e-4)
                    with counting:
                        took[kind].append(seconds)
                        answered += 1
                        wrong += not right
            for connection in connections.values():
                connection.close()

        begin = time.monotonic()
        with ThreadPoolExecutor(CLIENTS + 1) as pool:
            placing = pool.submit(replacing)
            clients = [pool.submit(client, number) for number in range(CLIENTS)]
            try:
                while not all(one.done() for one in clients):
                    time.sleep(min(1.0, max(requests / 30_000, 0.05)))
                    for kind, number in pids.items():
                        samples[kind].append({"cycle": len(took[kind]), **held(number)})
                    tell(f"service: {answered:,} of {2 * requests:,} answers, {placings} placings")
                seconds = time.monotonic() - begin
            finally:
                ended.set()
            for one in (placing, *clients):
                one.result()
    # The last sample is left out, as clients may have ended before it; a hundred samples are enough for a curve.
    busy = {kind: (values[:-1] or values)[:: -(-len(values) // 100)] for kind, values in samples.items()}
    return {
        "answers": answered,
        "wrong": wrong,
        "placings": placings,
        "seconds": round(seconds, 1),
        "ms": {kind: [round(1e3 * float(q), 2) for q in np.quantile(took[kind], (0.5, 0.99, 1.0))] for kind in took},
        "samples": busy,
        "grown": grown(busy["ov-hsdag"], busy["openvino"]),
    }


# Results


def faults(part: str, found: Mapping[str, Any]) -> list[str]:
    """Returns a line for each fault of a part's result."""
    lines = [f"{part}: {name} grew by {more:g}" for name, more in found["grown"].items()]
    if found.get("wrong"):
        lines.append(f"{part}: {found['wrong']} wrong answers")
    return lines


def main() -> int:
    """Runs the parts, stores their results, and prints faults. Returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help="cycles, service (default: both)")
    parser.add_argument("--share", type=float, default=1.0, help="of the whole size")
    add_output(parser, "JSON of the results, to which parts are added")
    options = parser.parse_args()
    work: dict[str, Callable[[Path, Tell], dict[str, Any]]] = {
        "cycles": lambda folder, tell: cycles(folder, max(round(CYCLES * options.share), 4), tell),
        "service": lambda folder, tell: service(folder, max(round(REQUESTS * options.share), CLIENTS), tell),
    }
    unknown = set(options.parts) - set(work)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    os.environ.update(VARIABLES)
    results: dict[str, Any] = stored(options.output) or {}
    wrong: list[str] = []
    for part in options.parts or work:
        with tempfile.TemporaryDirectory() as folder:
            found = work[part](Path(folder), lambda text: print(text, file=sys.stderr, flush=True))
        results[part] = {"about": about(), **found}
        if options.output is not None:
            write_text(options.output, json.dumps(results) + "\n")
        print(json.dumps({key: value for key, value in found.items() if key != "samples"}))
        wrong += faults(part, found)
    print("\n".join(wrong) or "nothing grew")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
