"""How long the policy takes: features, encoder, parsing, placer, candidates, simulation and refinement together.

A model of the zoo, and a generated graph of 20,000 nodes. The first call, which loads the policy and compiles its
networks once for the process, is told apart. Wall time is what a user waits; CPU time of all threads is what other work
on the machine does not change. The exit status is 1 when the least wall time is beyond the limit in the table.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

from benchmarks.features_speed import GENERATED_NODES, generated_problem
from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.policy.bundle import DEFAULT
from ov_hsdag.policy.features import policy_input
from ov_hsdag.policy.placer import HSDAGPlacer
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.problem.problem import OBJECTIVES, PlacementProblem
from ov_hsdag.utils.errors import UserError
from research.zoo.catalog import select

# Milliseconds.
LIMITS = {"swin-tiny": 60.0, "generated": 3000.0}


def times(work: object, repeats: int) -> tuple[list[float], list[float]]:
    """Wall and CPU milliseconds of calls."""
    assert callable(work)
    wall, cpu = [], []
    for _ in range(repeats):
        start, start_cpu = time.perf_counter(), time.process_time()
        work()
        wall.append(1e3 * (time.perf_counter() - start))
        cpu.append(1e3 * (time.process_time() - start_cpu))
    return wall, cpu


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["swin-tiny"], help="models of the zoo (default swin-tiny)")
    parser.add_argument("--policy", default=DEFAULT, help="a policy's name or folder (default %(default)s)")
    parser.add_argument("--device", default="HETERO:GPU,CPU", help="built-in profiles (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()

    problems: list[tuple[str, PlacementProblem]] = []
    try:
        devices = DeviceSet.parse(arguments.device)
        for model in select(arguments.models):
            for objective in OBJECTIVES:
                problems.append((model.name, build_problem(model.build(), devices, objective=objective)))
        placer = HSDAGPlacer(arguments.policy)
        wall, _ = times(lambda: placer.place(problems[0][1]), 1)
    except (UserError, ValueError) as error:
        parser.error(str(error))
    print(f"the first call, which loads the policy: {wall[0]:.0f} ms")
    problems.append(("generated", generated_problem(GENERATED_NODES)))

    print(
        f"{'model':12} {'objective':11} {'nodes':>6} {'groups':>6} {'features':>9} {'all, ms: wall':>14} {'least':>8}",
        end="",
    )
    print(f" {'CPU':>8} {'limit':>6}")
    failed = False
    for name, problem in problems:
        repeats = arguments.repeats if name != "generated" else 3
        features, _ = times(lambda problem=problem: policy_input(problem), repeats)  # type: ignore[misc]
        wall, cpu = times(lambda problem=problem: placer.place(problem), repeats)  # type: ignore[misc]
        limit = LIMITS.get(name)
        failed |= limit is not None and min(wall) > limit
        print(f"{name:12} {problem.objective:11} {problem.graph.nodes:6} {problem.group_count:6}", end="")
        print(f" {statistics.median(features):9.1f} {statistics.median(wall):14.1f} {min(wall):8.1f}", end="")
        print(f" {statistics.median(cpu):8.1f} {limit or '':>6}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
