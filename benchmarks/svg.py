"""One kind of plot as SVG, without a plotting library: a row of dots for each name on a logarithmic axis."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

_WIDTH, _LEFT, _RIGHT, _ROW, _TOP, _BOTTOM = 860, 230, 30, 22, 46, 46
_COLOURS = ("#1f6f8b", "#c8553d", "#588157", "#6d597a", "#b08900", "#3d405b", "#8d99ae", "#9b2226")
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
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="12" y="22" font-size="15">{html.escape(title)}</text>',
    ]
    bottom, last = _TOP + _ROW * len(rows), -math.inf
    for tick in _TICKS:
        if low <= tick <= high and x(tick) - last > 38:
            last = x(tick)
            colour = "#999" if tick == 1 else "#e3e3e3"
            parts.append(f'<line x1="{last:.1f}" y1="{_TOP}" x2="{last:.1f}" y2="{bottom}" stroke="{colour}"/>')
            parts.append(f'<text x="{last:.1f}" y="{bottom + 15}" text-anchor="middle">{tick:g}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{bottom + 32}" text-anchor="middle">{html.escape(axis)}</text>')
    for number, (name, row) in enumerate(rows.items()):
        y = _TOP + _ROW * (number + 0.5)
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{html.escape(name)}</text>')
        for one, some in row.items():
            colour = _COLOURS[series.index(one) % len(_COLOURS)]
            for value in some:
                if math.isfinite(value):
                    parts.append(
                        f'<circle cx="{x(value):.1f}" cy="{y:.1f}" r="4" fill="{colour}" fill-opacity="0.65"/>'
                    )
    at = 12.0
    for number, one in enumerate(series):
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(f'<circle cx="{at + 5:.0f}" cy="{height - 12}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{at + 13:.0f}" y="{height - 8}">{html.escape(one)}</text>')
        at += 28 + 6.6 * len(one)
    return "\n".join([*parts, "</svg>", ""])
