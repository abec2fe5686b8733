"""Tests random changes of random and real models: each must still be placed, compile on HETERO and compute the same.

Each example is a generated model (branches, shape arithmetic, shared constants, states, sub-graphs) or a small model of
the zoo, changed by one to four random mutations (nodes inserted, removed, renamed, shapes freed or fixed, precisions,
constants shared or fed, results and inputs added, …). It is placed at random twice and by `place`; a placed model is
then changed once more, as users do with models that they have read. Every placement is compiled on HETERO with two
virtual CPU devices in f32 and compared with one device. Examples that OpenVINO itself cannot run on one device do not
count. An interrupted run goes on from the file of --output. Exit status 1 unless all are right.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from benchmarks.common.output import add_output, stored
from benchmarks.common.workers import start
from benchmarks.field.unseen import declared
from ov_hsdag.devices import virtual
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.storage.files import write_json
from ov_hsdag.utils.errors import one_line
from research.zoo.catalog import ZOO
from research.zoo.generated import Case, generate
from research.zoo.mutations import MUTATIONS, Wrong, check, mutated, runs

SMOKE_ARGUMENTS = "--count 1"
"""The arguments with which this command is quickest, for `make figures-smoke`."""

DEVICES = DeviceSet(("CPU_A", "CPU_B"))
RELEASE = ov.__version__.split("-")[0]
REAL = (
    "bert-small", "bert-dynamic", "gpt2-past", "llama-stateful", "t5-encoder-dynamic", "vit-small", "lstm",
    "lstm-stateful", "gru", "dlrm", "branching", "mixture-of-experts-small", "looped-cell", "unet-small",
)  # fmt: skip


def example(seed: int) -> tuple[str, Case, list[str], list[str]]:
    """Makes an example.

    Args:
        seed: decides the model and the mutations.

    Returns:
        Name of the model, the changed case, the names of its mutations, and the names of mutations to apply after
        placing.
    """
    random = np.random.default_rng(seed)
    if random.random() < 0.15:
        name = REAL[random.integers(0, len(REAL))]
        model = ZOO[name].build()
        ports = model.inputs
        sets = [[arrays[port.any_name] for port in ports] for arrays in ZOO[name].inputs(seed)]
        case = Case(model, sets)
    else:
        name = "generated"
        case = generate(seed, int(random.integers(3, 25)))
    before, after = ([str(m) for m in random.choice(list(MUTATIONS), random.integers(1, 5))] for _ in range(2))
    case, done = mutated(case, before, seed)
    return name, case, done, after


def run(seed: int, core: ov.Core) -> dict[str, Any] | None:
    """Checks an example.

    Args:
        seed: seed of the example.
        core: has the devices.

    Returns:
        The row of the output, with the key "wrong" if there is a fault; None if the example does not count.
    """
    name, case, done, after = example(seed)
    expected = runs(case, core, DEVICES.names[0]) if done else None
    if expected is None:
        return None
    row: dict[str, Any] = {"seed": seed, "model": name, "mutations": done, "after": after}
    try:
        checked = check(case, expected, core, DEVICES, seed, after)
    except Exception as error:  # a crash of ours is what this looks for
        kind = "" if isinstance(error, Wrong) else f"{type(error).__name__}: "
        return row | {"wrong": kind + one_line(error)}
    return row | {"nodes": checked.nodes, "groups": checked.groups, "submodels": checked.submodels}


_core: ov.Core | None = None


def run_here(seed: int) -> dict[str, Any] | None:
    """Calls `run` with the Core of this process, which is made by the first call."""
    global _core
    if _core is None:
        _core = _new_core()
    return run(seed, _core)


_worker = threading.local()


def run_apart(seed: int) -> dict[str, Any] | None:
    """Calls `run` in a child process, one for each thread. If it crashes, the row has the fault."""
    if getattr(_worker, "process", None) is None:
        _worker.process = ProcessPoolExecutor(1, get_context("spawn"))
    try:
        return _worker.process.submit(run_here, seed).result()
    except BrokenProcessPool:
        _worker.process = None
        name, _, done, after = example(seed)
        return {"seed": seed, "model": name, "mutations": done, "after": after, "wrong": "the process crashed"}


def _new_core() -> ov.Core:
    """Makes a Core with the two virtual devices."""
    os.environ[virtual.VIRTUAL_DEVICES_VARIABLE] = declared()
    return virtual.new_core()


def main() -> int:
    """Runs examples until there are enough that count."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=500, help="examples (default 500)")
    parser.add_argument("--seed", type=int, default=0, help="of the first example")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--only", type=int, help="run the example of this seed alone, with its traceback")
    add_output(parser, "JSON of the examples, from which a run that was interrupted goes on")
    options = parser.parse_args()
    if options.only is not None:
        return _only(options.only)
    state = _earlier(options.output, options.seed)
    rows = state["examples"]
    with ThreadPoolExecutor(options.jobs) as threads:
        while len(rows) < options.count:
            first = state["next_seed"]
            state["next_seed"] += 4 * options.jobs
            for row in threads.map(run_apart, range(first, state["next_seed"])):
                if row is not None:
                    rows.append(row)
                if row is not None and "wrong" in row:
                    print(f"{row['seed']} ({row['model']}, {', '.join(row['mutations'])}): {row['wrong']}", flush=True)
            if options.output is not None:
                write_json(options.output, state)
    wrong = sum("wrong" in row for row in rows)
    submodels = [count for row in rows for count in row.get("submodels", ())]
    print(f"{len(rows)} examples, {len(rows) - wrong} right, {wrong} wrong; {len(submodels)} placements ", end="")
    print(f"of 1 to {max(submodels, default=0)} submodels, OpenVINO {RELEASE}")
    print(", ".join(f"{name} {n}" for name, n in Counter(m for row in rows for m in row["mutations"]).most_common()))
    return int(bool(wrong))


def _only(seed: int) -> int:
    """Runs one example here; returns the exit status."""
    name, case, done, after = example(seed)
    print(name, done, after)
    core = _new_core()
    expected = runs(case, core, DEVICES.names[0])
    if expected is None:
        print("OpenVINO cannot run this example on one device", file=sys.stderr)
        return 2
    print(check(case, expected, core, DEVICES, seed, after))
    return 0


def _earlier(output: Path | None, seed: int) -> dict[str, Any]:
    """Reads the state of an earlier run of the same seed and release; a new state without one."""
    fresh = {"openvino": RELEASE, "seed": seed, "next_seed": seed, "examples": []}
    state = stored(output)
    return dict(state) if state and all(state.get(key) == fresh[key] for key in ("openvino", "seed")) else fresh


if __name__ == "__main__":
    start(__spec__)
