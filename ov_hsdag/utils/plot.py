"""Drawings, and plots of values over two axes, as SVG text, without a plotting library."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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
    points: Sequence[tuple[float, float]]  # (x, y); those with a y that is no finite number are left out
    style: str = "line"  # or "dots" without a line
    colour: int | None = None  # number of the colour; those of the series in turn by default

    @property
    def finite(self) -> list[tuple[float, float]]:
        """The points that can be drawn."""
        return [point for point in self.points if all(map(math.isfinite, point))]


def plot(title: str, x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """Series over two axes, drawn in this order, with a legend below; the text of an SVG file."""
    places = _legend([one.name for one in series])
    drawing = Drawing(_WIDTH, _HEIGHT + _LEGEND_ROW * (places[-1][1] + 1 if places else 0))
    drawing.text(12, 22, title, font_size=15)
    across = _Scale(x, [point[0] for one in series for point in one.finite], _LEFT, _WIDTH - _RIGHT)
    upwards = _Scale(y, [point[1] for one in series for point in one.finite], _HEIGHT - _LABELS, _TOP)
    for tick in upwards.ticks:
        drawing.line(_LEFT, upwards(tick), _WIDTH - _RIGHT, upwards(tick), _GRID)
        drawing.text(_LEFT - 8, upwards(tick) + 4, f"{tick:,g}", text_anchor="end", fill=_TEXT)
    for tick in across.ticks:
        drawing.line(across(tick), _HEIGHT - _LABELS, across(tick), _HEIGHT - _LABELS + 4, _TEXT)
        drawing.text(across(tick), _HEIGHT - _LABELS + 18, f"{tick:,g}", text_anchor="middle", fill=_TEXT)
    drawing.text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - _LABELS + 34, x.label, text_anchor="middle", fill=_TEXT)
    drawing.text(_LEFT, _TOP - 8, y.label, fill=_TEXT)
    for number, (one, (left, row)) in enumerate(zip(series, places, strict=True)):
        colour = COLOURS[(number if one.colour is None else one.colour) % len(COLOURS)]
        points = [(across(a), upwards(b)) for a, b in one.finite]
        if one.style != "dots" and len(points) > 1:
            drawing.polyline(points, colour, stroke_width=2)
        else:
            for a, b in points:
                drawing.circle(a, b, 3.5, colour, fill_opacity=0.75)
        middle = _HEIGHT + _LEGEND_ROW * row
        if one.style == "dots":
            drawing.circle(left + 6, middle, 3.5, colour)
        else:
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


COLOURS = ("#1f6f8b", "#c8553d", "#588157", "#6d597a", "#b08900", "#3d405b", "#8d99ae", "#9b2226")
"""Colours that are easy to distinguish on white, in the order in which they are taken."""

Attribute = str | int | float


class Drawing:
    """An SVG file under construction: elements are drawn in the order in which they are added.

    Coordinates are pixels from the upper left corner. Attributes are those of SVG, with `_` for `-`:
    `text_anchor="end"`. Floats are written with two decimals at most.
    """

    def __init__(self, width: int, height: int, *, background: str = "white") -> None:
        """An empty drawing of so many pixels."""
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
            f' viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">'
        ]
        self.element("rect", {"width": width, "height": height, "fill": background})

    def element(self, name: str, attributes: Mapping[str, Attribute], text: str | None = None) -> None:
        """Add any element, with text inside where there is some; text and attributes are escaped."""
        phrase = "".join(f' {key.replace("_", "-")}="{_text(value)}"' for key, value in attributes.items())
        self._parts.append(f"<{name}{phrase}/>" if text is None else f"<{name}{phrase}>{html.escape(text)}</{name}>")

    def line(self, x1: float, y1: float, x2: float, y2: float, stroke: str, **attributes: Attribute) -> None:
        """Add a straight line from (x1, y1) to (x2, y2)."""
        self.element("line", {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "stroke": stroke, **attributes})

    def rectangle(self, x: float, y: float, width: float, height: float, fill: str, **attributes: Attribute) -> None:
        """Add a filled rectangle whose upper left corner is (x, y)."""
        self.element("rect", {"x": x, "y": y, "width": width, "height": height, "fill": fill, **attributes})

    def circle(self, x: float, y: float, radius: float, fill: str, **attributes: Attribute) -> None:
        """Add a filled circle around (x, y)."""
        self.element("circle", {"cx": x, "cy": y, "r": radius, "fill": fill, **attributes})

    def polyline(self, points: Iterable[tuple[float, float]], stroke: str, **attributes: Attribute) -> None:
        """Add a line through all points (x, y)."""
        text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.element("polyline", {"points": text, "fill": "none", "stroke": stroke, **attributes})

    def text(self, x: float, y: float, text: str, **attributes: Attribute) -> None:
        """Add a text whose baseline begins at (x, y), or ends or has its middle there (`text_anchor`)."""
        self.element("text", {"x": x, "y": y, **attributes}, text)

    def pattern(self, name: str, fill: str, path: str, stroke: str) -> None:
        """Define a pattern of 8 by 8 pixels, lines (`path`, see SVG) upon `fill`; `url(#name)` fills with it."""
        self._parts.append(
            f'<defs><pattern id="{html.escape(name)}" width="8" height="8" patternUnits="userSpaceOnUse">'
        )
        self.rectangle(0, 0, 8, 8, fill)
        if path:
            self.element("path", {"d": path, "stroke": stroke, "stroke_width": 1.6, "fill": "none"})
        self._parts.append("</pattern></defs>")

    def svg(self) -> str:
        """The text of the SVG file."""
        return "\n".join([*self._parts, "</svg>", ""])


def _text(value: Attribute) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else html.escape(str(value))
