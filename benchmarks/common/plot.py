"""Plots of values over two axes as SVG text."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator


@dataclass(frozen=True)
class Axis:
    """An axis."""

    label: str  # of what, and in which unit
    shown: tuple[float, ...] = ()  # values that lie inside in any case
    whole: bool = False  # it counts: no ticks between whole numbers


@dataclass(frozen=True)
class Series:
    """Values that belong together."""

    name: str  # in the legend
    points: Sequence[tuple[float, float]]  # (x, y)


def plot(title: str, x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """Series over two axes, drawn in this order, with a legend below; the text of an SVG file."""
    figure, text = Figure(figsize=(8, 5), layout="constrained"), io.StringIO()
    axes = figure.add_subplot(title=title, xlabel=x.label, ylabel=y.label)
    for one in series:
        mark = "" if len(one.points) > 1 else "o"
        axes.plot(*zip(*one.points, strict=True), marker=mark, label=one.name, gid=one.name)
    axes.update_datalim([(a, b) for a in x.shown or axes.get_xlim() for b in y.shown or axes.get_ylim()])
    axes.autoscale_view()
    axes.xaxis.set_major_locator(MaxNLocator(integer=x.whole))
    axes.yaxis.set_major_locator(MaxNLocator(integer=y.whole))
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": title}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]
