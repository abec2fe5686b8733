"""The table of candidates that `place` and `bench` print: a row for each placer, and a legend under it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from ov_hsdag.cli import console
from ov_hsdag.measuring.evaluator import HETERO_DEFAULT, PIPELINE_HINT
from ov_hsdag.model.gains import BEST_SINGLE, out_of_time, placer_of, times
from ov_hsdag.problem.copies import COPIES

_PLACERS = {
    HETERO_DEFAULT: "HETERO's own rule",
    PIPELINE_HINT: "HETERO's hint PIPELINE_PARALLEL",
    COPIES: "the whole model on each device at once, without HETERO",
    "mincut": "minimum cut",
    "pipeline": "contiguous partition",
    "partitions": "contiguous partitions of several orders",
    "search": "multilevel search",
    "filling": "fills the devices' memory alike",
    "experts": "experts of some layers on another device, all else on the first",
    "hsdag": "learned policy and local search",
    "affinity": "the given placement",
    "whole": "each model on one device, the best of these assignments",
    "plan": "each model as it is placed",
}


@dataclass(frozen=True)
class Row:
    """One candidate."""

    name: str
    submodels: int | None = None  # that HETERO makes of it; None where that is not known
    predicted: float | None = None  # latency in ms, or inferences/s; None where it is not known
    measured: float | None = None  # the same
    gain: float | None = None  # over the best single device; None where it is not known
    interval: Sequence[float] | None = None  # the gain's 95% confidence interval
    note: str = ""  # why there is no figure; "" where there is one
    chosen: bool = False  # whether it is the chosen one


def candidates_table(rows: Sequence[Row], objective: str, *, measured: bool, what: str = "inferences") -> Table:
    """The table with its legend, rows in their order.

    Of several candidates of a placer ("hsdag (less on GPU)") one is shown: the chosen one, else the best. measured:
    whether anything was measured; otherwise gains are predicted ones. what: is counted for throughput.
    """
    families: dict[str, list[Row]] = {}
    for row in rows:
        families.setdefault(placer_of(row.name), []).append(row)
    shown = {
        name: max(family, key=lambda row: (row.chosen, row.gain is not None and not row.note, row.gain or 0.0))
        for name, family in families.items()
    }
    unit = "ms" if objective == "latency" else f"{what}/s"
    figures = [f"predicted\n{unit}", *([f"measured\n{unit}"] if measured else [])]
    table = console.table("", "submodels", *figures, "x the best\nsingle device", left=(0, 2 + len(figures)))
    columns = [row.predicted for row in shown.values()], [row.measured for row in shown.values()]
    for name, row in shown.items():
        values = [_number(row.predicted, columns[0]), *([_number(row.measured, columns[1])] if measured else [])]
        gain = row.note if row.note or row.gain is None else times(row.gain, row.interval).replace("x", "", 1)
        submodels = "-" if row.submodels is None else str(row.submodels)
        table.add_row(f"{'*' if row.chosen else ' '} {name}", submodels, *values, gain)
    table.caption = _legend(shown, {name: len(family) for name, family in families.items()}, measured=measured)
    return table


def why_no_figure(failed: str) -> str:
    """The note of a candidate that gave no figure, by the reason that measuring gives; "" where there is none."""
    return f"{'not measured' if out_of_time(failed) else 'failed'}: {failed}" if failed else ""


def _number(value: float | None, column: Sequence[float | None]) -> str:
    """With as many decimals as all of a column: four digits of its largest number, about."""
    largest = max((other for other in column if other is not None), default=0.0)
    return "-" if value is None else f"{value:.{1 if largest >= 100 else 2 if largest >= 10 else 3}f}"


def _legend(rows: dict[str, Row], variants: dict[str, int], *, measured: bool) -> str:
    parts = ["* chosen."] if any(row.chosen for row in rows.values()) else []
    how = "measured in turns, with its 95% interval" if measured else "predicted"
    parts.append(f"x {BEST_SINGLE}: {how}.")
    if any(row.interval and times(1.0, row.interval).endswith("(noise)") for row in rows.values()):
        parts.append("noise: rounds are too few, or differ too much, to tell.")
    for name in rows:
        if name in _PLACERS:
            several = f", the best of {variants[name]} proposals" if variants[name] > 1 else ""
            parts.append(f"{name}: {_PLACERS[name]}{several}.")
    if any(name.startswith("nodes-") for name in rows):
        parts.append("nodes-N: that share of the operations on the first device.")
    return " ".join(parts)
