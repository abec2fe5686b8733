"""The table of candidates that `place` and `bench` print: a row for each placement, and a legend under it.

A candidate is a placement, or a way to run the model without one. Its name is that of the placer that proposed it. A
placer's further proposals have a variant in brackets, such as "hsdag (less on GPU)"; `placer_of` removes that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.table import Table

from ov_hsdag.cli import console
from ov_hsdag.measuring.evaluator import HETERO_DEFAULT, PIPELINE_HINT
from ov_hsdag.model.gains import BEST_SINGLE, placer_of, times
from ov_hsdag.placers.registry import PHRASES
from ov_hsdag.problem.copies import COPIES
from ov_hsdag.utils.failures import out_of_time, read_failure

# What the legend says of each placer, by its name.
_PLACERS = {
    HETERO_DEFAULT: "HETERO's own rule",
    PIPELINE_HINT: "HETERO's hint PIPELINE_PARALLEL",
    COPIES: "the whole model on each device at once, without HETERO",
    **PHRASES,
    "hsdag": "learned policy and local search",
    "affinity": "the given placement",
    "whole": "each model on one device, the best of these assignments",
    "plan": "each model as it is placed",
}


@dataclass(frozen=True)
class Row:
    """The figures of one candidate, a row of the table."""

    name: str
    submodels: int | None = None  # number of submodels; None where it is not known
    predicted: float | None = None  # latency in ms, or inferences/s; None where it is not known
    measured: float | None = None  # measured value in the same unit
    gain: float | None = None  # ratio to the best single device; None where it is not known
    interval: Sequence[float] | None = None  # the gain's 95% confidence interval
    note: str = ""  # the reason why there is no figure; "" where there is one
    chosen: bool = False  # whether the candidate is chosen
    same_as: str = ""  # name of an earlier row with the same placement; "" where there is none


@dataclass(frozen=True)
class _Shown:
    """A row as it is printed.

    Attributes:
        row: the figures.
        name: the name that is printed: the placer, or with --verbose the candidate.
        others: further placers that found the same placement.
    """

    row: Row
    name: str
    others: tuple[str, ...] = ()


def candidates_table(
    rows: Sequence[Row], objective: str, *, measured: bool, what: str = "inferences", against: str = BEST_SINGLE
) -> Table:
    """Makes the table of candidates with its legend, in the order of `rows`.

    A placement has one row, however many placers found it. Of several candidates of one placer ("hsdag (less on GPU)")
    the chosen one is shown, else the best. With --verbose every candidate has a row.

    Args:
        rows: all candidates.
        objective: "latency" or "throughput".
        measured: whether anything was measured; otherwise gains are predicted ones.
        what: the unit of throughput is this word "/s".
        against: name of the reference of gains.

    Returns:
        The table; its caption is the legend.
    """
    shown = [_Shown(row, row.name) for row in rows] if console.verbose else _distinct(rows)
    variants = Counter(placer_of(row.name) for row in rows)
    unit = "ms" if objective == "latency" else f"{what}/s"
    figures = [f"predicted\n{unit}", *([f"measured\n{unit}"] if measured else [])]
    base = "x the best\nsingle device" if against == BEST_SINGLE else f"x\n{against}"
    table = console.table("", "submodels", *figures, base, left=(0, 2 + len(figures)))
    columns = [one.row.predicted for one in shown], [one.row.measured for one in shown]
    for shown_row in shown:
        row = shown_row.row
        values = [_number(row.predicted, columns[0]), *([_number(row.measured, columns[1])] if measured else [])]
        gain = row.note if row.note or row.gain is None else times(row.gain, row.interval).replace("x", "", 1)
        found_by = f"also found by {', '.join(shown_row.others)}" if shown_row.others else ""
        if console.verbose and row.same_as:
            found_by = f"same placement as {row.same_as}"
        submodels = "-" if row.submodels is None else str(row.submodels)
        text = "; ".join(part for part in (gain, found_by) if part)
        table.add_row(f"{'*' if row.chosen else ' '} {shown_row.name}", submodels, *values, text)
    names = [name for one in shown for name in (one.name, *one.others)]
    table.caption = _legend(shown, names, variants, measured=measured, against=against)
    return table


def _distinct(rows: Sequence[Row]) -> list[_Shown]:
    """Joins rows with the same placement, and names each placer once: at the best placement that it found.

    A placement is left out where every placer that found it is named at a better one. The chosen placement is the best,
    then the one with the largest gain.

    Returns:
        The rows to print, in the order in which their placers first occur in `rows`.
    """
    found_by: dict[str, list[Row]] = {}  # rows of each placement, by the name of the first one
    for row in rows:
        found_by.setdefault(row.same_as or row.name, []).append(row)

    def worth(same: list[Row]) -> tuple[bool, bool, float]:
        """The sort key of the rows of one placement: whether it is chosen, has a gain, and its largest gain."""
        gains = [row.gain for row in same if row.gain is not None and not row.note]
        return any(row.chosen for row in same), bool(gains), max(gains, default=0.0)

    place = {placer_of(row.name): number for number, row in reversed([*enumerate(rows)])}  # of first rows
    named: set[str] = set()
    shown = []
    for _, same in sorted(found_by.items(), key=lambda item: worth(item[1]), reverse=True):
        finders = sorted(same, key=lambda row: not row.chosen)  # the chosen one gives the row its name
        names = [name for name in dict.fromkeys(placer_of(row.name) for row in finders) if name not in named]
        if names:
            named.update(names)
            best = max(same, key=lambda row: worth([row]))
            shown.append(_Shown(replace(best, chosen=worth(same)[0]), names[0], tuple(names[1:])))
    return sorted(shown, key=lambda one: place[one.name])


def why_no_figure(figures: Mapping[str, Any]) -> str:
    """Says why a candidate has no measured figure; "" where it has one. figures: of its measurement, as in JSON."""
    failure = read_failure(figures)
    if failure is None:
        return ""
    return f"{'not measured' if out_of_time(failure) else 'failed'}: {failure}"


def _number(value: float | None, column: Sequence[float | None]) -> str:
    """Formats a number with the decimals that show about four digits of the largest number of its column.

    None, for a figure that is not known, becomes "-".
    """
    largest = max((other for other in column if other is not None), default=0.0)
    return "-" if value is None else f"{value:.{1 if largest >= 100 else 2 if largest >= 10 else 3}f}"


def _legend(
    rows: Sequence[_Shown], names: Sequence[str], variants: Counter[str], *, measured: bool, against: str
) -> str:
    """The text under the table: what the mark, the intervals and the names of placers mean.

    Args:
        rows: the rows that are printed.
        names: all names in the table, those of further placers among them.
        variants: number of candidates of each placer.
        measured: whether gains are measured; otherwise they are predicted.
        against: name of the reference of gains.
    """
    parts = ["* chosen."] if any(one.row.chosen for one in rows) else []
    how = "measured in turns, with its 95% interval" if measured else "predicted"
    parts.append(f"x {against}: {how}.")
    intervals = [one.row.interval for one in rows if one.row.interval]
    if any(times(1.0, interval).endswith("(noise)") for interval in intervals):
        parts.append("noise: rounds are too few, or differ too much, to tell.")
    for name in names:
        if name in _PLACERS:
            several = f", the best of {variants[name]} proposals" if variants[name] > 1 else ""
            parts.append(f"{name}: {_PLACERS[name]}{several}.")
    if any(name.startswith("nodes-") for name in names):
        parts.append("nodes-N: that share of the operations on the first device.")
    return " ".join(parts)
