"""Names the bottleneck of a placement for throughput that leaves devices empty or gains little from them.

The bottleneck is either one long co-location group, which no split can divide, or the costs of splitting itself. The
result is a line of text, which begins with "bound:".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ov_hsdag.explaining.explanation import Explanation
from ov_hsdag.model.graph import NodeKind
from ov_hsdag.problem.problem import PlacementProblem

FAR_BELOW = 0.75
"""Share of the highest possible gain, with all devices perfectly busy; a gain below it is explained to the user."""

DECIDES = 0.8
"""Share of the time between results; a colocation group that takes at least so much is named as the bottleneck."""

_LEAST_US = 1e-9  # µs; replaces a total of 0, by which nothing can be divided


def describe_bound(explained: Explanation) -> str:
    """A line that says why no split gains more; "" where all devices are used and the gain is near their number.

    Throughput is limited by the busiest device, whose work is at least that of the longest colocation group. Where
    that group is short, the line names the costs of the split itself. There is no line for latency: devices take turns
    in a single request, so that empty ones are normal.
    """
    problem = explained.problem
    if problem.objective != "throughput" or len(problem.devices) < 2 or explained.evaluation.infeasible[0]:
        return ""
    scores = problem.scores(problem.singles)
    singles = scores[np.isfinite(scores)]
    if not len(singles):
        return ""
    gain, possible = float(singles.min() / explained.score_us), float(singles.min() * (1 / singles).sum())
    empty = _empty_devices(explained)
    if gain >= FAR_BELOW * possible and not empty:
        return ""
    group, longest = _longest_group(problem)
    where = f"{', '.join(empty)} {'has' if len(empty) == 1 else 'have'} nothing: " if empty else ""
    if longest >= DECIDES * explained.score_us:
        most = float(singles.min() / longest)
        return (
            f"bound: {where}{_as_subject(explained, group)} {longest / explained.score_us:.0%} of the time between"
            " results on the fastest device for it, so that no split gives more than"
            f" {most:.2f}x the best single device"
        )
    return _bound_of_split(explained, where)


def _empty_devices(explained: Explanation) -> list[str]:
    """Lists the names of the devices that have no operation to compute; constants do not count."""
    problem = explained.problem
    operations = np.isin(problem.graph.kinds, (NodeKind.OP, NodeKind.SINK)) & ~problem.graph.legality.constant
    used = set(explained.device[operations].tolist())
    return [name for number, name in enumerate(problem.devices) if number not in used]


def _longest_group(problem: PlacementProblem) -> tuple[int, float]:
    """Finds the co-location group with the longest time on its fastest device; returns its number and that time, µs."""
    least: NDArray[np.float64] = problem.group_us.min(axis=1)
    group = int(least.argmax())
    return group, float(least[group])


def _as_subject(explained: Explanation, group: int) -> str:
    """Describes a co-location group as the subject of a sentence, followed by the verb "takes" or "take"."""
    graph = explained.problem.graph
    operations = (graph.kinds == NodeKind.OP) & ~graph.legality.constant
    members = np.flatnonzero((explained.problem.groups == group) & operations)
    if len(members) == 1:
        return f"{explained.called(int(members[0]))} alone takes"
    first, last = explained.called(int(members[0])), explained.called(int(members[-1]))
    return f"{len(members):,} operations that must share a device ({first} … {last}) take"


def _bound_of_split(explained: Explanation, where: str) -> str:
    """Writes the line for a placement without a long group: what splitting costs the busiest device.

    Args:
        explained: the placement.
        where: clause about empty devices, which the line begins with; "" without any.

    Returns:
        The line, with the shares of the device's time that calls, transfers and broken fusions take; "" where each of
        them takes less than 5%.
    """
    problem = explained.problem
    by_device = explained.breakdown.busy_us[0]
    total = by_device.sum(axis=1)
    busiest = int(total.argmax())
    _, fusions, submodels, transfers = by_device[busiest] / max(float(total[busiest]), _LEAST_US)
    shares = {"calls of submodels": submodels, "transfers": transfers, "broken fusions": fusions}
    named = [f"{share:.0%} in {what}" for what, share in shares.items() if share >= 0.05]
    if not named:
        return ""
    spends = f"{problem.devices[busiest]} spends of the time between results {' and '.join(named)}"
    return f"bound: {where}{spends}, and further cuts cost more than they save"
