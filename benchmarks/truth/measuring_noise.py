"""Whether the intervals of measured ratios hold the truth: a split against itself, under two names.

    python -m benchmarks.truth.measuring_noise [--seed N] [--models N] [--repeats N]

Two one-core devices made of the CPU plugin, f32, throughput, with 0, 1 and 2 busy processes beside. Each comparison is
five seconds of trials in turns, of which rates count, and five of trials at the same time, of which the processor time
of the submodel that takes longest counts. In turns one compilation has both names, as two differ by 2%; at the same
time there are two. Printed: how often the 95% interval of the ratio holds 1, its half-width, and by how
much medians scatter. A placement that is slower by a known factor needs no trials of its own: rates multiply, so that
interval and truth move by the same amount. Exit status 1 where intervals hold the truth in less than 90% of all.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Sequence
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

ONE, TWO = "once", "again"
SECONDS = 5.0
FLOOR = 0.9


def in_turns(comparison: Comparison) -> choice.Ratio:
    """The ratio of the two rates, every second trial of one compilation being the other's."""
    rates = [rate for one in comparison.trials([ONE], 2 * int(SECONDS / (2 * TRIAL)), TRIAL) for _, rate in one]
    pairs = enumerate(zip(rates[::2], rates[1::2], strict=True))
    rounds = [[*zip(choice.in_order((ONE, TWO), number), pair, strict=True)] for number, pair in pairs]
    return choice.infer(rounds).ratio(ONE, TWO)


def at_the_same_time(comparison: Comparison) -> choice.Ratio:
    """The ratio of the two times of the submodel that takes longest. RunError: the times are not known."""
    trials = [
        comparison.busy_together((ONE, TWO), 1.0) for _ in range(round(SECONDS)) if comparison.compiled((ONE, TWO))
    ]
    told = [one for one in trials if one and all(one.values())]
    if not told:
        raise RunError("processor times of submodels are not known here")
    submodels = range(len(told[0][ONE]))
    inferred = [choice.infer([[(name, us[n]) for name, us in one.items()] for one in told]) for n in submodels]
    return max(inferred, key=lambda one: float(one.mean.mean())).ratio(ONE, TWO)


WAYS = {"in turns": in_turns, "at the same time": at_the_same_time}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--models", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=10)
    args = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    ratios: dict[tuple[int, str], list[choice.Ratio]] = {(beside, way): [] for beside in range(3) for way in WAYS}
    with mock.patch.dict("os.environ", {virtual.VIRTUAL_DEVICES_VARIABLE: declared()}):
        core = virtual.new_core()
        for one in drawn(args.seed, args.models):
            model = one.build()
            problem = build_problem(model, DEVICES, objective="throughput", core=core)
            split = Candidate.placed(DEVICES, problem.affinity(Contiguous().place(problem)))
            with Comparison(model, DEVICES, {ONE: split, TWO: split}, "throughput", core) as comparison:
                for (processes, way), found in ratios.items():
                    with busy(processes):
                        found.extend(WAYS[way](comparison) for _ in range(args.repeats))
    rows, held = [], []
    for (processes, way), found in ratios.items():
        hit = [one.low <= 1 <= one.high for one in found]
        held += hit
        half = [(one.high / one.low) ** 0.5 - 1 for one in found]
        off = [abs(one.median - 1) for one in found]
        cells = (statistics.mean(hit), statistics.median(half), max(half), statistics.median(off), max(off))
        rows.append([str(processes), way, str(len(found)), *(f"{cell:.1%}" for cell in cells)])
    head = ["busy beside", "trials", "comparisons", "hold 1", "half-width", "widest", "off by", "most"]
    print(f"seed {args.seed}", markdown(head, rows), sep="\n")
    return 0 if statistics.mean(held) >= FLOOR else 1


if __name__ == "__main__":
    sys.exit(main())
