"""A plot as SVG: a row of dots for each name on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ov_hsdag.utils.svg import COLOURS, Drawing

_WIDTH, _LEFT, _RIGHT, _ROW, _TOP, _BOTTOM = 860, 230, 30, 22, 46, 46
_TICKS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100, 1e3, 1e4, 1e5)


def dots(title: str, axis: str, rows: Mapping[str, Mapping[str, Sequence[float]]], *, most: float | None = None) -> str:
    """A row of dots for each name, a colour for each series.

    Args:
        title: of the plot.
        axis: what is plotted.
        rows: name → series → values, all above 0; series have the same colour in all rows.
        most: larger values are drawn at this one.

    Returns:
        The text of an SVG file.
    """
    series = list(dict.fromkeys(name for row in rows.values() for name in row))
    values = [value for row in rows.values() for some in row.values() for value in some if math.isfinite(value)]
    low, high = min(values, default=1.0), min(max(values, default=2.0), most or math.inf)
    low, high = low / 1.02, max(high, low * 1.05) * 1.02
    height = _TOP + _ROW * len(rows) + _BOTTOM + 16

    def x(value: float) -> float:
        share = math.log(min(max(value, low), high) / low) / math.log(high / low)
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)

    drawing = Drawing(_WIDTH, height)
    drawing.text(12, 22, title, font_size=15)
    bottom, last = _TOP + _ROW * len(rows), -math.inf
    for tick in _TICKS:
        if low <= tick <= high and x(tick) - last > 38:
            last = x(tick)
            drawing.line(last, _TOP, last, bottom, "#999" if tick == 1 else "#e3e3e3")
            drawing.text(last, bottom + 15, f"{tick:g}", text_anchor="middle")
    drawing.text((_LEFT + _WIDTH - _RIGHT) / 2, bottom + 32, axis, text_anchor="middle")
    for number, (name, row) in enumerate(rows.items()):
        y = _TOP + _ROW * (number + 0.5)
        drawing.text(_LEFT - 8, y + 4, name, text_anchor="end")
        for one, some in row.items():
            colour = COLOURS[series.index(one) % len(COLOURS)]
            for value in some:
                if math.isfinite(value):
                    drawing.circle(x(value), y, 4, colour, fill_opacity=0.65)
    at = 12.0
    for number, one in enumerate(series):
        drawing.circle(at + 5, height - 12, 4, COLOURS[number % len(COLOURS)])
        drawing.text(at + 13, height - 8, one)
        at += 28 + 6.6 * len(one)
    return drawing.svg()
