"""How many placements a second the simulator evaluates, exactly, on one core.

Three kinds of placements: "random" is a uniform random assignment of the colocation groups (the most submodels),
"cuts" divides the model into a few consecutive parts, "steps" moves a few groups of such a division, as a search does.
CPU time of the one thread is counted, which other work on the machine does not change much. The exit status is 1 when
the slowest kind is below the model's floor.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.devices.device_set import DeviceSet
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.problem.problem import PlacementProblem, topological_groups
from research.zoo.catalog import ZOO

FLOORS = {"resnet50": 10_000, "swin-tiny": 2_000}
BATCH = 256


def cuts(problem: PlacementProblem, random: np.random.Generator) -> NDArray[np.uint8]:
    """One to four cuts of the topological order, each part on another device than the one before. [BATCH, groups]"""
    position = np.empty(problem.group_count, np.int64)
    position[topological_groups(problem)] = np.arange(problem.group_count)
    batch = []
    for _ in range(BATCH):
        boundaries = np.sort(random.integers(0, problem.group_count, random.integers(1, 5)))
        batch.append(np.searchsorted(boundaries, position, side="right") % len(problem.devices))
    return np.array(batch, np.uint8)


def steps(problem: PlacementProblem, random: np.random.Generator) -> NDArray[np.uint8]:
    """`cuts` with three groups moved in each. [BATCH, groups]"""
    batch = cuts(problem, random)
    rows = np.arange(BATCH)[:, None]
    batch[rows, random.integers(0, problem.group_count, (BATCH, 3))] ^= 1
    return batch


def speed(problem: PlacementProblem, placements: NDArray[np.uint8], seconds: float) -> float:
    """Evaluations per second of CPU time."""
    problem.evaluate(placements)
    done, start = 0, time.process_time()
    while (spent := time.process_time() - start) < seconds:
        problem.evaluate(placements, threads=1)
        done += len(placements)
    return done / spent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--device", default="HETERO:GPU,CPU", help="device list; built-in profiles (default %(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="CPU time for each figure (default 2)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    slow = False
    titles = ("model", "nodes", "groups", "kind", "submodels", "infeasible", "per second", "floor")
    print("{:12} {:>6} {:>7} {:>6} {:>10} {:>11} {:>11} {:>7}".format(*titles))
    for name, floor in FLOORS.items():
        problem = build_problem(ZOO[name].build(), DeviceSet.parse(arguments.device))
        random = np.random.default_rng(arguments.seed)
        kinds = {
            "random": problem.random(random, BATCH),
            "cuts": cuts(problem, random),
            "steps": steps(problem, random),
        }
        for kind, placements in kinds.items():
            result = problem.evaluate(placements)
            rate = speed(problem, placements, arguments.seconds)
            slow |= rate < floor
            print(
                f"{name:12} {problem.graph.nodes:6} {problem.group_count:7} {kind:>6} {result.submodels.mean():10.1f}"
                f" {(result.infeasible > 0).mean():11.0%} {rate:11,.0f} {floor:7,}"
            )
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
