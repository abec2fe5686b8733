"""Drawings as SVG text, without a library."""

from __future__ import annotations

import html
from collections.abc import Mapping

COLOURS = ("#1f6f8b", "#c8553d", "#588157", "#6d597a", "#b08900", "#3d405b", "#8d99ae", "#9b2226")
"""Colours that are easy to distinguish on white, in the order in which they are taken."""

Attribute = str | int | float


class Drawing:
    """An SVG file under construction: elements are drawn in the order in which they are added.

    Coordinates are pixels from the upper left corner. Attributes are those of SVG, with `_` for `-`:
    `text_anchor="end"`. Floats are written with two decimals at most.
    """

    def __init__(self, width: int, height: int) -> None:
        """An empty drawing of so many pixels."""
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
            f' viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">'
        ]
        self.element("rect", {"width": width, "height": height, "fill": "white"})

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
