"""Tests every operator of ONNX on real HETERO: each model of ONNX's node tests must be placed, split and compute right.

`onnx.backend.test.case.node` has 1,884 models of one operator each (or of the functions of which it consists), with
inputs and the outputs that they must give. Each model that OpenVINO runs on one device is placed with `place` and
compiled on HETERO with two virtual CPU devices in f32. If its colocation groups allow it, it is then split at random.
Outputs are compared with ONNX's by the tolerances of its test runner, the number of submodels with that of the native
splitting rule. If one device differs from ONNX, placements may agree with either. If one device differs from itself
(random numbers, first inferences), only submodels are compared.

Two cases have known faults that are not the placement's (KNOWN).

Cases run in worker processes, so that a plugin that crashes or hangs costs one case. Rows are stored as they come, and
a later call with the same file goes on. The exit status is 1 unless all rows are there and right.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import openvino as ov
from onnx import TensorProto, numpy_helper

from benchmarks.common.output import add_output, stored
from benchmarks.field.unseen import declared
from ov_hsdag.devices import virtual
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.model.placement import Placement
from ov_hsdag.placing.place import place
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.storage.files import atomic_file
from ov_hsdag.utils.errors import one_line

SMOKE_ARGUMENTS = "test_abs --placements 1"
"""The arguments with which this command is quickest, for `make figures-smoke`."""

DEVICES = DeviceSet(("CPU_A", "CPU_B"))
RELEASE = ov.__version__.split("-")[0]

# Element types that NumPy does not have, by their names in ml_dtypes.
_FOREIGN = {"bfloat16": ov.Type.bf16, "float8_e4m3fn": ov.Type.f8e4m3, "float8_e5m2": ov.Type.f8e5m2}

# Cases with faults that are not the placement's, and the fault.
KNOWN = {
    "test_reduce_log_sum_exp_empty_set_expanded": "-inf of an empty sum becomes -3.4e38 behind a partition boundary",
    "test_attention_local_window_gqa_rank4_mask_expanded": "rows that are masked whole: NaN on one device, 0 in ONNX",
}

# Largest number of draws of a placement until it still uses both devices after it has been made legal.
DRAWS = 20


@dataclass
class Row:
    """The results of a case.

    Attributes:
        case: its name in ONNX.
        release: release of OpenVINO.
        alone: what one device computes: "as ONNX", "differs" from ONNX, or "random"; otherwise why there is nothing to
            place: "not converted", or "not run" (compilation, inference or the types of inputs fail).
        groups: number of colocation groups.
        placed: number of submodels of the placement that `place` chose; 0 if it failed.
        submodels: number of submodels of each random placement that uses both devices; empty if there is none.
        failures: a line for each fault of a model that runs on one device.
    """

    case: str
    release: str = RELEASE
    alone: str = "not converted"
    groups: int = 0
    placed: int = 0
    submodels: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        """Whether there is no fault, or only a known one."""
        return not self.failures or self.case in KNOWN

    @property
    def runs(self) -> bool:
        """Whether one device runs it."""
        return self.alone in ("as ONNX", "differs", "random")


def collected() -> dict[str, Any]:
    """ONNX's cases by name, always with the same inputs."""
    from onnx.backend.test.case.node import collect_testcases

    np.random.seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: case for case in collect_testcases(None) if case.model is not None}


def check(case: Any, core: ov.Core, placements: int, seed: int = 0) -> Row:  # noqa: C901 each step may be the last
    """Runs a case on one device, as `place` places it, and split at random.

    Args:
        case: a case of `collected`.
        core: has the devices.
        placements: number of random placements.
        seed: seed of these.

    Returns:
        The row.
    """
    row = Row(case.name)
    data = case.model.SerializeToString()
    try:
        model = core.read_model(data)
    except RuntimeError:
        return row
    row.alone = "not run"
    try:
        sets = [
            ([_tensor(_array(value)) for value in inputs], [_array(value) for value in outputs])
            for inputs, outputs in case.data_sets
        ]
        compiled = core.compile_model(model, DEVICES.names[0])
        found, again = ([_infer(compiled, inputs) for inputs, _ in sets] for _ in range(2))
    except (RuntimeError, TypeError, ValueError):
        return row
    expected = [outputs for _, outputs in sets]
    if not _alike(found, again, case):
        row.alone, accepted = "random", []
    elif not _alike(found, expected, case):
        row.alone, accepted = "differs", [expected, found]
    else:
        row.alone, accepted = "as ONNX", [expected]
    inputs = [tensors for tensors, _ in sets]

    def compare(compiled: ov.CompiledModel, what: str) -> None:
        outputs = [_infer(compiled, tensors) for tensors in inputs]
        if accepted and not any(_alike(outputs, one, case) for one in accepted):
            row.failures.append(f"{what}: outputs differ")

    try:
        chosen = place(model, DEVICES.hetero, core=core)
        compiled = core.compile_model(model, DEVICES.hetero)
        row.placed = _submodels(compiled)
        if row.placed != (chosen.predicted or {})["submodels"]:
            row.failures.append(f"place: {row.placed} submodels, predicted {(chosen.predicted or {})['submodels']}")
        compare(compiled, "place")
    except Exception as error:  # what `place` cannot do is what this looks for
        row.failures.append(f"place: {type(error).__name__}: {one_line(error)}")
        return row

    random = np.random.default_rng(seed)
    model = core.read_model(data)
    problem = build_problem(model, DEVICES, core=core)
    row.groups = problem.group_count
    for number in range(placements):
        draws = (problem.random(random, 1)[0] for _ in range(DRAWS if row.groups > 1 else 0))
        placement = next((drawn for drawn in draws if drawn.min() != drawn.max()), None)
        if placement is None:
            break
        predicted = int(problem.evaluate(placement).submodels[0])
        try:
            split = model.clone()
            Placement(devices=DEVICES.names, affinity=problem.affinity(placement)).apply(split)
            compiled = core.compile_model(split, DEVICES.hetero)
            row.submodels.append(_submodels(compiled))
            if row.submodels[-1] != predicted:
                row.failures.append(f"split {number}: {row.submodels[-1]} submodels, predicted {predicted}")
            compare(compiled, f"split {number}")
        except RuntimeError as error:
            row.failures.append(f"split {number}: {one_line(error)}")
    return row


def _array(value: Any) -> np.ndarray:
    """Converts a value of ONNX's test data into an array.

    Raises:
        TypeError: it is a sequence, map or optional value, not a tensor.
    """
    if isinstance(value, TensorProto):
        value = numpy_helper.to_array(value)
    if not isinstance(value, (np.ndarray, np.generic)):
        raise TypeError(f"{type(value).__name__} is no tensor")
    return np.asarray(value)


def _tensor(array: np.ndarray) -> ov.Tensor:
    """Converts an array into a tensor, also of types that NumPy does not have."""
    if array.dtype.name in _FOREIGN:
        tensor = ov.Tensor(_FOREIGN[array.dtype.name], ov.Shape(array.shape))
        tensor.data.reshape(-1).view(np.uint8)[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return tensor
    return ov.Tensor(np.array(array.astype(str) if array.dtype.kind == "O" else array, order="C"))


def _infer(compiled: ov.CompiledModel, inputs: Sequence[ov.Tensor]) -> list[np.ndarray]:
    """Infers in a new request. Returns copies of the outputs."""
    request = compiled.create_infer_request()
    # Models declare more inputs than a case gives where an optional one is left out.
    request.infer(dict(enumerate(inputs)))
    return [_values(request.get_output_tensor(port)) for port in range(len(compiled.outputs))]


def _values(tensor: ov.Tensor) -> np.ndarray:
    """Copies a tensor into an array, also of types that NumPy does not have."""
    if tensor.element_type == ov.Type.string:
        return np.array(tensor.str_data)
    name = next((name for name, element in _FOREIGN.items() if element == tensor.element_type), None)
    return np.array(tensor.data) if name is None else np.array(tensor.data).view(getattr(ml_dtypes, name))


def _submodels(compiled: ov.CompiledModel) -> int:
    return int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS"))


def _alike(found: Sequence[Sequence[np.ndarray]], expected: Sequence[Sequence[np.ndarray]], case: Any) -> bool:
    """Whether all outputs agree by the tolerances of the case.

    Args:
        found: outputs for each input set.
        expected: the outputs to compare with.
        case: the case, whose tolerances are used.
    """
    return all(
        len(own) == len(other) and all(_agree(a, b, case.rtol, case.atol) for a, b in zip(own, other, strict=True))
        for own, other in zip(found, expected, strict=True)
    )


def _agree(found: np.ndarray, expected: np.ndarray, rtol: float, atol: float) -> bool:
    """Whether two arrays have the same shape and agree within tolerances; strings must be equal."""
    if found.shape != expected.shape:
        return False
    if found.dtype.kind in "OUS" or expected.dtype.kind in "OUS":
        return bool((found.astype(str) == expected.astype(str)).all())
    if expected.dtype.name == "bfloat16":
        rtol = max(rtol, 2**-6)  # two units in the last place, as ONNX's runner has it
    try:
        return bool(np.allclose(found.astype(np.float64), expected.astype(np.float64), rtol, atol, equal_nan=True))
    except (TypeError, ValueError):
        return False


# --- worker processes -------------------------------------------------------------------------------------------------


def work(placements: int) -> None:
    """Runs the cases whose names come on standard input, and prints each row as a line of JSON.

    Args:
        placements: number of random placements of each case.
    """
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what plugins print must not get between the rows
    cases = collected()
    core = virtual.new_core()
    for line in sys.stdin:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            row = check(cases[line.strip()], core, placements)
        print(json.dumps(asdict(row)), file=output, flush=True)


class Worker:
    """A process that runs cases, replaced by a new one where it ends or hangs."""

    def __init__(self, placements: int) -> None:
        self._command = [
            sys.executable,
            "-m",
            "benchmarks.truth.onnx_node_cases",
            "--worker",
            "--placements",
            str(placements),
        ]
        self._process: subprocess.Popen[str] | None = None

    def row(self, case: str, seconds: float) -> Row:
        """Runs a case in the process, which is started if necessary.

        Args:
            case: name of the case.
            seconds: largest time of the case; after it the process is killed.

        Returns:
            The row; if the process ended or was killed, a row with that failure.
        """
        if self._process is None:
            environment = {**os.environ, virtual.VIRTUAL_DEVICES_VARIABLE: declared(), "OV_HSDAG_DISABLE": "1"}
            self._process = subprocess.Popen(
                self._command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, text=True,
            )  # fmt: skip
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        late = threading.Timer(seconds, process.kill)
        late.start()
        try:
            print(case, file=process.stdin, flush=True)
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        hung = not late.is_alive()
        late.cancel()
        if line.endswith("\n"):
            return Row(**json.loads(line))
        self.end()
        reason = f"not done after {seconds:.0f} s" if hung else f"the process ended with status {process.returncode}"
        return Row(case, alone="as ONNX", failures=[reason])

    def end(self) -> None:
        """Ends the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


# --- results ----------------------------------------------------------------------------------------------------------


def load(path: Path | None) -> dict[str, Row]:
    """Rows of an earlier run, by case."""
    rows = [Row(**row) for row in (stored(path) or {"rows": []})["rows"]]
    return {row.case: row for row in rows}


def store(path: Path | None, rows: Iterable[Row]) -> None:
    """Writes rows as JSON, a line each; does nothing without a path."""
    if path is None:
        return
    rows = list(rows)
    lines = ",\n".join(json.dumps(asdict(row)) for row in rows)
    with atomic_file(path, "w") as file:
        file.write(f'{{"openvino": "{RELEASE}", "summary": {json.dumps(summary(rows))}, "rows": [\n{lines}\n]}}\n')


def summary(rows: Sequence[Row]) -> str:
    """A line with the numbers of cases, placements and faults."""
    ran = [row for row in rows if row.runs]
    agree = sum(row.alone == "as ONNX" for row in ran)
    splits = [row.submodels for row in ran if row.submodels]
    most = max(map(max, splits), default=0)
    return (
        f"{len(rows)} cases, {len(ran)} run on one device ({agree} as ONNX says): {sum(row.placed > 0 for row in ran)}"
        f" placed, {len(splits)} can be split ({sum(map(len, splits))} placements, up to {most} submodels);"
        f" {sum(not row.right for row in rows)} with a fault, {sum(row.right and bool(row.failures) for row in rows)}"
        " with a known one"
    )


def main() -> int:
    """Runs the cases that the file of --output lacks, and prints the summary. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="names of cases (default: all)")
    parser.add_argument("--placements", type=int, default=2, help="random placements of each case (default 2)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after that; run again to go on")
    parser.add_argument("--case-seconds", type=float, default=120, help="the most that a case may take (default 120)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--again", action="store_true", help="cases that failed are tried once more")
    add_output(parser, "JSON of the rows, from which a run that was interrupted goes on")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.placements)
        return 0

    names = sorted(collected())
    unknown = sorted(set(options.cases) - set(names))
    if unknown:
        parser.error(f"ONNX has no node test '{unknown[0]}'")
    names = options.cases or names
    rows = load(options.output)
    done = {row.case for row in rows.values() if row.release == RELEASE and not (options.again and row.failures)}
    end = time.monotonic() + options.seconds
    workers: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    for _ in range(options.jobs):
        workers.put(Worker(options.placements))

    def make(name: str) -> Row | None:
        """The row of a case; None if the time is over."""
        if time.monotonic() > end:
            return None
        worker = workers.get()
        try:
            return worker.row(name, options.case_seconds)
        finally:
            workers.put(worker)

    stored = time.monotonic()
    with ThreadPoolExecutor(options.jobs) as jobs:
        for row in jobs.map(make, [name for name in names if name not in done]):
            if row is None:
                continue
            rows[row.case] = row
            if row.failures:
                print(f"{row.case}: WRONG", *row.failures, sep="\n  ", flush=True)
            if time.monotonic() > stored + 10:
                store(options.output, rows.values())
                stored = time.monotonic()
    for _ in range(options.jobs):
        workers.get().end()
    rows = dict(sorted(rows.items()))
    store(options.output, rows.values())
    found = [rows[name] for name in names if name in rows]
    print(summary(found))
    return 0 if len(found) == len(names) and all(row.right for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
