"""Tests models that are loaded by the device name HSDAG: they must compute what one device computes.

    python -m benchmarks.truth.loads_by_name [MODEL …] [--pairs cpu gpu]

Each model of the zoo is loaded by ``core.compile_model(model, "HSDAG:…")`` in three ways (WAYS): for latency, for
throughput, and with less memory on each device than the model needs, which forces a split. The devices are two one-core
CPU devices (cpu), and OpenVINO's GPU plugin in the rig of tests/rig with the CPU (gpu).

A load is right if no warning says that placing failed, the compiled model has as many submodels as the kept placement
predicts, and its outputs are those of one device (benchmarks.truth.legality_table has the tolerances). If a model does
not fit into the limits of the third way, the load must fail with one clear error, and does not count.

A process loads many models; one that crashes costs the row of that model. Exit status 1 unless all loads are right.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import openvino as ov
from numpy.typing import NDArray

from benchmarks.common.machine import about
from benchmarks.common.output import add_output
from benchmarks.common.tables import markdown, publish
from benchmarks.common.workers import start
from benchmarks.truth.legality_table import CPUS, ONE_CORE, PAIRS, REFERENCE, RIG, ROOT, new_core
from ov_hsdag.devices import virtual
from ov_hsdag.integration.device_name import LOG_VARIABLE
from ov_hsdag.measuring.agreement import quantised_tolerance
from ov_hsdag.model.placement import Placement
from ov_hsdag.placing.placement_cache import FOLDER_VARIABLE, PlacementCache
from ov_hsdag.utils.errors import one_line
from research.zoo.catalog import ZOO, select
from research.zoo.compare import infer, largest_difference

Inputs = Sequence[Mapping[str, NDArray[Any]]]
Outputs = Sequence[Sequence[NDArray[Any]]]

MODULE = "benchmarks.truth.loads_by_name"

SMOKE_ARGUMENTS = "lstm --pairs cpu"
"""The arguments with which this command is quickest, for `benchmarks.figures`."""

WAYS: Mapping[str, Mapping[str, str]] = {
    "latency": {"PERFORMANCE_HINT": "LATENCY"},
    "throughput": {"PERFORMANCE_HINT": "THROUGHPUT"},
    "little memory": {"PERFORMANCE_HINT": "LATENCY"},
}
"""Properties of a load, by the name of the way."""

SHARE = 0.7
"""Memory of each device in the third way, as a share of what the whole model needs. No device can hold the model. Two
devices have 0.4 of it more than it needs, for data that both need."""

LEAST_LIMIT = 2**20
"""Smallest possible limit, bytes. Models that would need a smaller one are not loaded in the third way."""


@dataclass
class Load:
    """The result of one load.

    Attributes:
        model: name in the zoo.
        pair: key of `PAIRS`, the devices.
        way: key of `WAYS`, or "any" for a process that crashed.
        counts: False if the model does not fit into the limits, so that the load counts neither as right nor wrong.
        devices: number of devices that the placement uses.
        submodels: number of submodels of the compiled model.
        predicted: number of submodels that the placement predicts.
        difference: largest difference of outputs, relative to each output's largest magnitude.
        failures: a line for each fault.
    """

    model: str
    pair: str
    way: str
    counts: bool = True
    devices: int = 0
    submodels: int = 0
    predicted: int = 0
    difference: float = 0.0
    failures: list[str] = field(default_factory=list)


def loads_of(name: str, pair: str) -> Iterator[Load]:
    """Loads a model of the zoo in all ways and yields each load.

    Args:
        name: name of the model.
        pair: key of `PAIRS`.
    """
    devices, core = PAIRS[pair].devices, new_core()
    model, inputs = ZOO[name].build(), ZOO[name].inputs(0)
    expected = infer(core.compile_model(model.clone(), REFERENCE), inputs)
    bytes_of_model = 0
    for way, properties in WAYS.items():
        load = Load(name, pair, way)
        limits = {}
        if way == "little memory":
            limit = int(SHARE * bytes_of_model)
            if limit < LEAST_LIMIT:
                continue
            limits = {"HSDAG_MEMORY": ",".join(f"{device}={limit}" for device in devices)}
        log = Path(os.environ[LOG_VARIABLE])
        log.unlink(missing_ok=True)
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always")
            try:
                device = f"HSDAG:{','.join(devices)}"
                compiled = core.compile_model(model.clone(), device, {**properties, **limits})
            except RuntimeError as error:
                # A model that does not fit is the only error that may be raised, and only with limits.
                load.counts = not (limits and one_line(error).startswith("ov_hsdag: no placement on "))
                load.failures += [one_line(error)] if load.counts else []
                yield load
                continue
        load.failures += [one_line(warning.message) for warning in raised if _is_ours(warning)]
        logged = json.loads(log.read_text(encoding="utf-8").splitlines()[-1])
        load.failures += [logged["failure"]] if "failure" in logged else []
        predicted = {} if load.failures else _kept(logged["file"]).predicted or {}
        bytes_of_model = bytes_of_model or sum(predicted.get("memory_bytes", {}).values())
        load.predicted = int(predicted.get("submodels", 0))
        load.devices = len(logged.get("used", ()))
        load.submodels = int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS"))
        if load.submodels != load.predicted:
            load.failures.append(f"{load.submodels} submodels, predicted {load.predicted}")
        load.difference = largest_difference(expected, infer(compiled, inputs))
        if load.difference > quantised_tolerance(model):
            alone = _alone(core, model, devices.names[0], expected, inputs)
            load.failures.append(f"outputs differ by {load.difference:.2g} ({alone})")
        yield load


def _is_ours(raised: warnings.WarningMessage) -> bool:
    """Whether a warning has a class of ov_hsdag."""
    return type(raised.message).__module__.startswith("ov_hsdag")


def _kept(file: str) -> Placement:
    """The placement that a load kept in a file."""
    cache = PlacementCache.default()
    entry = cache and cache.load(Path(file).name.partition(".")[0])
    assert entry
    return entry.placement


def _alone(core: ov.Core, model: ov.Model, device: str, expected: Outputs, inputs: Inputs) -> str:
    """Infers the whole model on one device. Returns in words by how much its outputs differ from `expected`."""
    difference = largest_difference(expected, infer(core.compile_model(model.clone(), device), inputs))
    return f"{device} alone by {difference:.2g}"


def in_processes(models: Sequence[str], pair: str) -> Iterator[Load]:
    """Loads models on a pair of devices in a child process, and yields each load.

    If the process crashes, the model that it was loading gets a failure, and another process loads the models after it.

    Args:
        models: names of models.
        pair: key of `PAIRS`.
    """
    left = list(models)
    while left:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", MODULE, "--child", pair, *left]
            environment = {
                **os.environ,
                virtual.VIRTUAL_DEVICES_VARIABLE: ";".join(f"{name}:{ONE_CORE}" for name in CPUS),
                FOLDER_VARIABLE: folder,
                LOG_VARIABLE: str(Path(folder) / "loads.log"),
            }
            command = [str(RIG), *command] if PAIRS[pair].rig else command
            errors, ended = Path(folder) / "errors", 0
            with errors.open("w") as file:
                child = subprocess.Popen(
                    command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=file
                )
            assert child.stdout is not None
            for line in child.stdout:
                if line.startswith("{"):
                    yield Load(**json.loads(line))
                ended += line.startswith("done ")
            status, message = child.wait(), errors.read_text(errors="replace")[-300:]
        left = left[ended:]
        if left:
            failure = f"the process ended with status {status}: {one_line(message)}"
            yield Load(left[0], pair, "any", failures=[failure])
            left = left[1:]


def summary(loads: Sequence[Load]) -> str:
    """A table with a row for each pair of devices and way."""
    rows = []
    for pair, way in dict.fromkeys((load.pair, load.way) for load in loads):
        chosen = [load for load in loads if (load.pair, load.way) == (pair, way) and load.counts]
        split = sum(load.devices > 1 for load in chosen)
        right = sum(not load.failures for load in chosen)
        most = max((load.submodels for load in chosen), default=0)
        worst = max((load.difference for load in chosen), default=0.0)
        name = f"HSDAG:{','.join(PAIRS[pair].devices)}, {way}"
        rows.append([name, *map(str, (len(chosen), split, most, right)), f"{worst:.0e}"])
    return markdown(["", "loads", "use both devices", "most submodels", "right", "largest difference"], rows)


def main() -> int:
    """Loads the models and prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("models", nargs="*", default=["quick"], metavar="MODEL", help="of the zoo (default: quick)")
    parser.add_argument("--pairs", nargs="+", choices=("cpu", "gpu"), default=("cpu", "gpu"))
    parser.add_argument("--count", type=int, help="load so many of the models alone, evenly spread")
    parser.add_argument("--child", choices=("cpu", "gpu"), help=argparse.SUPPRESS)
    add_output(parser, "JSON of all loads, and the table in Markdown beside it")
    options = parser.parse_args()
    if options.child:
        for name in options.models:
            for load in loads_of(name, options.child):
                print(json.dumps(asdict(load)), flush=True)
            print("done", name, flush=True)
        return 0
    names = [model.name for model in select(options.models)]
    if options.count:
        names = [names[index * len(names) // options.count] for index in range(min(options.count, len(names)))]
    begin, loads = time.perf_counter(), []
    for pair in options.pairs:
        for load in in_processes(names, pair):
            loads.append(load)
            for failure in load.failures:
                print(f"{pair} {load.model}, {load.way}: {failure}", file=sys.stderr, flush=True)
    result = {
        "about": {**about(), "wall_seconds": time.perf_counter() - begin},
        "settings": {"models": len(names)},
        "loads": [asdict(load) for load in loads],
    }
    publish(options.output, result, {"Models loaded by the device name HSDAG:": summary(loads)})
    return int(any(load.failures for load in loads))


if __name__ == "__main__":
    start(__spec__)
