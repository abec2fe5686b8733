"""Plots of values over two axes as SVG text, without a plotting library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ov_hsdag.report.drawing import COLOURS, Drawing

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP = 720, 420, 66, 24, 46
"""Of the axes with their labels, in pixels; the legend is below."""

_LABELS, _LEGEND_ROW = 52, 18

# Ticks of an axis, about.
_TICKS = 6

_GRID, _TEXT = "#e3e3e3", "#333"


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
    places = _legend([one.name for one in series])
    drawing = Drawing(_WIDTH, _HEIGHT + _LEGEND_ROW * (places[-1][1] + 1 if places else 0))
    drawing.text(12, 22, title, font_size=15)
    across = _Scale(x, [point[0] for one in series for point in one.points], _LEFT, _WIDTH - _RIGHT)
    upwards = _Scale(y, [point[1] for one in series for point in one.points], _HEIGHT - _LABELS, _TOP)
    for tick in upwards.ticks:
        drawing.line(_LEFT, upwards(tick), _WIDTH - _RIGHT, upwards(tick), _GRID)
        drawing.text(_LEFT - 8, upwards(tick) + 4, f"{tick:,g}", text_anchor="end", fill=_TEXT)
    for tick in across.ticks:
        drawing.line(across(tick), _HEIGHT - _LABELS, across(tick), _HEIGHT - _LABELS + 4, _TEXT)
        drawing.text(across(tick), _HEIGHT - _LABELS + 18, f"{tick:,g}", text_anchor="middle", fill=_TEXT)
    drawing.text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - _LABELS + 34, x.label, text_anchor="middle", fill=_TEXT)
    drawing.text(_LEFT, _TOP - 8, y.label, fill=_TEXT)
    for number, (one, (left, row)) in enumerate(zip(series, places, strict=True)):
        colour = COLOURS[number % len(COLOURS)]
        points = [(across(a), upwards(b)) for a, b in one.points]
        if len(points) > 1:
            told = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
            drawing.element("polyline", {"points": told, "fill": "none", "stroke": colour, "stroke_width": 2})
        elif points:
            drawing.element("circle", {"cx": points[0][0], "cy": points[0][1], "r": 3.5, "fill": colour})
        middle = _HEIGHT + _LEGEND_ROW * row
        drawing.line(left, middle, left + 14, middle, colour, stroke_width=2)
        drawing.text(left + 19, middle + 4, one.name, fill=_TEXT)
    return drawing.svg()


def _legend(names: Sequence[str]) -> list[tuple[float, int]]:
    """Where each name stands: pixels from the left, and the number of the row."""
    places, left, row = [], float(_LEFT), 0
    for name in names:
        width = 36 + 6.6 * len(name)
        if left > _LEFT and left + width > _WIDTH - _RIGHT:
            left, row = float(_LEFT), row + 1
        places.append((left, row))
        left += width
    return places


class _Scale:
    """Where values of an axis are drawn."""

    def __init__(self, axis: Axis, values: Sequence[float], begin: float, end: float) -> None:
        self._begin, self._end = begin, end
        low, high = min([*values, *axis.shown], default=0.0), max([*values, *axis.shown], default=1.0)
        low, high = (low, high) if low < high else (low - 0.5, high + 0.5)
        step = max(_step((high - low) / _TICKS), 1.0 if axis.whole else 0.0)
        self.ticks = [step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
        room = 0.04 * (high - low)
        self._low, self._high = low - room, high + room

    def __call__(self, value: float) -> float:
        share = (value - self._low) / (self._high - self._low)
        return self._begin + share * (self._end - self._begin)


def _step(least: float) -> float:
    """The next of 1, 2, 5, 10, 20, … that is not below."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
