"""The rule by which `place` chooses among measured candidates, and the one that it took the place of, on a shared host.

    python -m benchmarks.quality.choice_rules [--runs N] [--seconds S]

The host is simulated: two cores at 0.6 to 1.0 of their speed, each drawn anew every half second. Candidates are two
devices and six splits that are more or less in balance; predictions are off by 3, 5 or 14%. Both rules have the same
seconds of trials of the same candidates. Printed: the rate of what was chosen over the best, mean, share of runs within
2%, and worst; and the seconds that were used. Status 1 where the rule is behind the old one at some error.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.measuring.interleaving import in_order
from tests.simulated_machine import SharedHost, choose_on

SIMPLE = ("A", "B")
ERRORS = (0.03, 0.05, 0.14)


def interval(own: Sequence[float], other: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """Of the old rule: median, low and high of the ratio; Student's for few rounds, else Wilcoxon's."""
    from scipy.special import ndtri, stdtrit

    logs = np.log([a / b for a, b in zip(own, other, strict=False)])
    count, below, median = len(logs), (1 + confidence) / 2, float(np.median(logs))
    if count < 8:
        spread = 0.5 if count == 1 else max(float(logs.std(ddof=1)), 0.005)
        half = float(ndtri(below) if count == 1 else stdtrit(count - 1, below)) * spread / math.sqrt(count)
        low, high = float(logs.mean()) - half, float(logs.mean()) + half
    else:
        first, second = np.triu_indices(count)
        means = np.sort((logs[first] + logs[second]) / 2)
        middle, spread = count * (count + 1) / 4, math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
        outside = max(int(middle - float(ndtri(below)) * spread - 0.5), 0)
        low, high = float(means[outside]), float(means[-1 - outside])
    return math.exp(median), math.exp(low), math.exp(high)


def best(rates: Mapping[str, Sequence[float]]) -> str:
    """Of the old rule."""
    leader = next(iter(rates))
    for name in rates:
        if interval(rates[name], rates[leader])[0] > 1:
            leader = name
    return leader


def race(
    rate: Callable[[str], float], names: Sequence[str], rounds: int, over: Callable[[], bool], halving: bool
) -> dict[str, list[float]]:
    """Of the old rule: rounds of all; with halving without those that are measurably worse, until all is settled."""
    rates: dict[str, list[float]] = {name: [] for name in names}
    alive = list(names)
    for number in range(rounds):
        for name in in_order(alive, number):
            rates[name].append(rate(name))
        known = {name: rates[name] for name in alive}
        leader = best(known)
        others = {name: interval(known[name], known[leader]) for name in alive if name != leader}
        if halving:
            alive = [name for name in alive if name == leader or number == 0 or others[name][2] >= 1]
            ends = [others[name] for name in alive if name != leader]
            if not any(high >= 1.01 for *_, high in ends) and (
                leader == names[0] or all(low > 0.99 for _, low, _ in ends)
            ):
                break
        elif all(interval(known[name], known[leader], 0.995)[2] < 0.9 for name in others):
            break
        if over():
            break
    return rates


def old_rule(host: SharedHost, seconds: float) -> str:
    """A race with halving, a head-to-head of its best with the best simple one, which a split has to win."""
    rates = race(host.rate, list(host.busy), 12, lambda: host.now > seconds / 2, halving=True)
    leader, rival = best(rates), best({name: rates[name] for name in SIMPLE})
    if leader in SIMPLE:
        return leader
    final = race(host.rate, (rival, leader), 16, lambda: host.now > seconds, halving=False)
    median, low, _ = interval(final[leader], final[rival])
    return leader if low > 1 and median >= 1.01 else rival


def new_rule(host: SharedHost, seconds: float, error: float) -> str:
    """Of the package."""
    found = choose_on(host.rate, list(host.busy), SIMPLE, host.predicted, error, lambda: host.now > seconds)
    return found.chosen


def predicted(host: SharedHost) -> str:
    """Nothing is measured."""
    return max(host.predicted, key=lambda name: host.predicted[name])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30.0)
    args = parser.parse_args()
    behind = False
    print(f"{'error':>6} {'rule':>10} {'mean':>7} {'within 2%':>10} {'worst':>7} {'seconds':>8}")
    for error in ERRORS:
        rules: dict[str, Callable[[SharedHost], str]] = {
            "predicted": predicted,
            "old": lambda host: old_rule(host, args.seconds),
            "posterior": lambda host, error=error: new_rule(host, args.seconds, error),  # type: ignore[misc]
        }
        means = {}
        for name, rule in rules.items():
            hosts = [SharedHost.drawn(seed, error) for seed in range(args.runs)]
            shares: NDArray[np.float64] = np.array([host.true[rule(host)] / max(host.true.values()) for host in hosts])
            means[name] = shares.mean()
            used = np.mean([host.now for host in hosts])
            print(
                f"{error:6.0%} {name:>10} {shares.mean():7.3f} {(shares >= 0.98).mean():10.0%}"
                f" {shares.min():7.3f} {used:8.1f}",
                flush=True,
            )
        behind |= means["posterior"] < means["old"]
    return int(behind)


if __name__ == "__main__":
    sys.exit(main())
