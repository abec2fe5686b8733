"""Checks how often intervals of measured ratios contain the true ratio, on pairs of equal candidates, whose ratio is 1.

    python -m benchmarks.truth.measuring_noise [--cores 1|2] [--busy 0 1 2] [--seed N] [--models N] [--repeats N]

The devices are two one-core devices made of the CPU plugin, in f32, for throughput. They run on `--cores` cores, while
`--busy` other processes keep cores busy, for each of these numbers in turn. A split is compared with itself, and one
device with the other, by the rates of five seconds of interleaved trials. The split is also compared with itself by
five seconds of simultaneous trials, by the processor time of the submodel that takes longest. One of the two candidates
is compiled again each time.

Printed are how often the 95% interval of the ratio contains 1, its half-width, and how far medians are from 1.
Candidates that differ by a known factor need no trials: rates multiply, so that interval and truth move by the same
factor. The exit status is 1 if less than 90% of the intervals contain 1.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from unittest import mock

from benchmarks.common.counting import busy
from benchmarks.common.tables import markdown
from benchmarks.field.unseen import DEVICES, declared, drawn
from ov_hsdag.devices import virtual
from ov_hsdag.measuring import choice
from ov_hsdag.measuring.comparison import Comparison
from ov_hsdag.measuring.process import Candidate
from ov_hsdag.measuring.trials import SECONDS as TRIAL
from ov_hsdag.placers.contiguous import Contiguous
from ov_hsdag.problem.pricing import build_problem
from ov_hsdag.utils.errors import RunError
from ov_hsdag.utils.lazy import ov

SMOKE_ARGUMENTS = "--seed 2616 --models 1 --repeats 1 --busy 0"
"""The arguments with which this command is quickest, for `make figures-smoke`."""

SPLIT = ("once", "again")
"""The two names under which the split is a candidate."""

SECONDS = 5.0
"""Time of all trials of a comparison."""

FLOOR = 0.9
"""Least share of intervals that must contain 1. It is below 95%, as few intervals may miss it more often by chance."""


def in_turns(comparison: Comparison, names: Sequence[str]) -> choice.Ratio:
    """Measures two candidates in interleaved trials. Returns the ratio of the first rate to the second."""
    return choice.infer(comparison.trials(names, round(SECONDS / (2 * TRIAL)), TRIAL)).ratio(*names)


def at_the_same_time(comparison: Comparison, names: Sequence[str]) -> choice.Ratio:
    """Measures two candidates in simultaneous trials.

    Returns:
        The ratio of the processor times of the submodel that takes longest, the first candidate's to the second's.

    Raises:
        RunError: processor times are not known here.
    """
    trials = [comparison.busy_together(names, 1.0) for _ in range(round(SECONDS)) if comparison.compiled(names)]
    timed = [one for one in trials if one and all(one.values())]
    if not timed:
        raise RunError("processor times of submodels are not known here")
    submodels = range(len(timed[0][names[0]]))
    inferred = [choice.infer([[(name, us[n]) for name, us in one.items()] for one in timed]) for n in submodels]
    return max(inferred, key=lambda one: float(one.mean.mean())).ratio(*names)


WAYS = {
    "a split, in turns": (in_turns, SPLIT),
    "a split, at the same time": (at_the_same_time, SPLIT),
    "equal devices, in turns": (in_turns, DEVICES.names),
}


def ratios_of(
    model: ov.Model, core: ov.Core, busy_counts: Sequence[int], repeats: int
) -> list[tuple[str, str, choice.Ratio]]:
    """Makes the comparisons of a model.

    Args:
        model: the model.
        core: has the devices.
        busy_counts: numbers of busy processes that run at the same time.
        repeats: number of comparisons of each kind for each of these numbers.

    Returns:
        Number of busy processes, key of `WAYS` and ratio of each comparison.
    """
    problem = build_problem(model, DEVICES, objective="throughput", core=core)
    # A split is wanted even if the devices share a core, so that none is worth it.
    placement = Contiguous().place(replace(problem, core_share=None))
    split = Candidate.placed(DEVICES, problem.affinity(placement))
    candidates = {**dict.fromkeys(SPLIT, split), **{name: Candidate(name) for name in DEVICES}}
    found = []
    with Comparison(model, DEVICES, candidates, "throughput", core) as comparison:
        for processes in busy_counts:
            with busy(processes):
                for _, (label, (way, names)) in product(range(repeats), WAYS.items()):
                    comparison.evict(names[-1])
                    comparison.trials(names, 1, TRIAL)  # compiles it
                    found.append((str(processes), label, way(comparison, names)))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Makes the comparisons and prints the table. arguments: of the command line. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", type=int, choices=(1, 2), default=2)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--models", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=10)
    args = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    usable = sorted(os.sched_getaffinity(0))[-args.cores :]
    if len(usable) < args.cores:
        parser.error(f"{args.cores} cores were asked for, and {len(usable)} can be used here")
    os.sched_setaffinity(0, usable)
    found = []
    with mock.patch.dict("os.environ", {virtual.VIRTUAL_DEVICES_VARIABLE: declared()}):
        core = virtual.new_core()
        for one in drawn(args.seed, args.models):
            found += ratios_of(one.build(), core, args.busy, args.repeats)
    rows, held = [], []
    for processes, label in dict.fromkeys((processes, label) for processes, label, _ in found):
        ratios = [ratio for *of, ratio in found if of == [processes, label]]
        hit = [one.low <= 1 <= one.high for one in ratios]
        held += hit
        half = [(one.high / one.low) ** 0.5 - 1 for one in ratios]
        off = [abs(one.median - 1) for one in ratios]
        cells = (statistics.mean(hit), statistics.median(half), max(half), statistics.median(off), max(off))
        rows.append([processes, label, str(len(ratios)), *(f"{cell:.1%}" for cell in cells)])
    head = ["busy beside", "trials of", "comparisons", "hold 1", "half-width", "widest", "off by", "most"]
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    print(f"cores {args.cores}, seed {args.seed}, load averages at the end {load}", markdown(head, rows), sep="\n")
    return 0 if statistics.mean(held) >= FLOOR else 1


if __name__ == "__main__":
    sys.exit(main())
