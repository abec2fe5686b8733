"""What asking the policy adds to placing, IR to IR: processor time and memory, against `--policy none`.

    python -m benchmarks.speed.policy_cost [--sizes 300 2000 6000 22000 110000] [--rounds 9]

Each run is a process of its own, which reads an IR, places it on HETERO:CPU_A,CPU_B without measuring and writes it;
with and without the policy they take turns. Added time is that of loading and asking in such a process, the least of
the rounds; whole processes differ by more on a shared machine, and their difference stands beside it. Memory is the
median: peaks of equal runs differ by 20 MiB at times. Exit status 1 where a limit is exceeded: 30 ms up to 250 coarse
groups and 60 ms above, 5% of the whole, 10 MiB; 10 ms to load and check the policy.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import openvino as ov

from benchmarks.common.machine import about
from benchmarks.common.placing import in_child, place_ir
from benchmarks.common.tables import markdown
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.placing import candidates, place
from ov_hsdag.policy.bundle import DEFAULT, PolicyFolder
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.storage.files import write_json
from research.zoo.deep import FAMILIES, build, operations

RESULTS = Path(__file__).parents[1] / "results" / "policy_cost.json"
OBJECTIVE = "throughput"
SMALL, MS_SMALL, MS, SHARE, MIB, MS_LOAD = 250, 30.0, 60.0, 0.05, 10.0, 10.0


def load_policy() -> None:
    """Loads the policy that ships; prints the seconds of a processor as JSON. In a process of its own."""
    begin = time.process_time()
    PolicyFolder.load()
    print(json.dumps({"cpu_seconds": time.process_time() - begin}))


def place_asking(path: str, objective: str, policy: str) -> None:
    """`place_ir`, with the processor time of loading and asking the policy, ms. In a process of its own."""
    asking = 0.0

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal asking
            begin = time.process_time()
            try:
                return function(*arguments)
            finally:
                asking += time.process_time() - begin

        return call

    for module, name in ((place, "policy_placers"), (candidates, "_learned_candidates")):
        setattr(module, name, timed(getattr(module, name)))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        place_ir(path, objective, policy)
    print(json.dumps({**json.loads(printed.getvalue()), "asking_ms": 1e3 * asking}))


def measure(family: str, size: int, rounds: int) -> dict[str, Any]:
    """A row of the table: a model of about `size` operations."""
    model = build(family, size)
    row: dict[str, Any] = {"family": family, "operations": operations(model)}
    child = "benchmarks.speed.policy_cost:place_asking"
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.xml")
        ov.save_model(model, path, compress_to_fp16=False)
        problem = build_problem(model, DeviceSet.parse("HETERO:GPU,CPU"), objective=OBJECTIVE)
        row["coarse"] = int(problem.coarse.max()) + 1
        del model, problem
        runs: dict[str, list[dict[str, Any]]] = {"none": [], DEFAULT: []}
        for _ in range(rounds):
            for policy, found in runs.items():
                found.append(in_child(child, path, OBJECTIVE, policy))
    without, asked = (
        {"cpu_seconds": min(run["cpu_seconds"] for run in found), "gib": median(run["gib"] for run in found)}
        for found in runs.values()
    )
    row["ms"] = min(run["asking_ms"] for run in runs[DEFAULT])
    row["whole_ms"] = 1e3 * (asked["cpu_seconds"] - without["cpu_seconds"])
    row["share"] = row["ms"] / (1e3 * without["cpu_seconds"])
    row["mib"] = 1024 * (asked["gib"] - without["gib"])
    return {**row, "without_s": without["cpu_seconds"], "chosen": runs[DEFAULT][0]["chosen"]}


def failures(rows: list[dict[str, Any]], load_ms: float) -> list[str]:
    """Which limits are exceeded."""
    found = [f"loading takes {load_ms:.1f} ms"] if load_ms > MS_LOAD else []
    for row in rows:
        over = row["ms"] > (MS_SMALL if row["coarse"] <= SMALL else MS) or row["share"] > SHARE or row["mib"] > MIB
        if over:
            found.append(f"{row['family']}, {row['operations']:,} operations: {_cells(row)}")
    return found


def _cells(row: dict[str, Any]) -> str:
    return f"{row['ms']:.0f} ms, {row['share']:.1%}, {row['mib']:.1f} MiB"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=tuple(FAMILIES), default=tuple(FAMILIES))
    parser.add_argument("--sizes", nargs="+", type=int, default=[300, 2000, 6000, 22_000, 110_000])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    load = "benchmarks.speed.policy_cost:load_policy"
    load_ms = 1e3 * min(in_child(load)["cpu_seconds"] for _ in range(arguments.rounds))
    rows = [measure(family, size, arguments.rounds) for family in arguments.families for size in arguments.sizes]
    write_json(arguments.output, {"about": about(), "rounds": arguments.rounds, "load_ms": load_ms, "rows": rows})
    head = ["", "operations", "coarse groups", "without, CPU s", "added", "whole processes differ by"]
    lines = [
        [
            row["family"],
            f"{row['operations']:,}",
            f"{row['coarse']:,}",
            f"{row['without_s']:.2f}",
            _cells(row),
            f"{row['whole_ms']:.0f} ms",
        ]
        for row in rows
    ]
    print(markdown(head, lines), f"loading: {load_ms:.1f} ms", sep="\n")
    exceeded = failures(rows, load_ms)
    print(*exceeded, sep="\n")
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
