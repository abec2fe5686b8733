"""Makes drawings as SVG text, without a library."""

from __future__ import annotations

import html
from collections.abc import Mapping

COLOURS = ("#1f6f8b", "#c8553d", "#588157", "#6d597a", "#b08900", "#3d405b", "#8d99ae", "#9b2226")
"""Colours that are easy to distinguish on white, in the order of use."""

Attribute = str | int | float


class Drawing:
    """An SVG file under construction: elements are drawn in the order in which they are added.

    Coordinates are pixels from the upper left corner. Attributes are those of SVG, with `_` for `-`:
    `text_anchor="end"`. Floats are written with two decimals at most.
    """

    def __init__(self, width: int, height: int) -> None:
        """Makes an empty drawing; width and height in pixels."""
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
            f' viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">'
        ]
        self.element("rect", {"width": width, "height": height, "fill": "white"})

    def element(self, name: str, attributes: Mapping[str, Attribute], text: str | None = None) -> None:
        """Adds any element.

        Args:
            name: the element's name.
            attributes: its attributes; values are escaped.
            text: text inside of it, escaped; None for an empty element.
        """
        phrase = "".join(f' {key.replace("_", "-")}="{_text(value)}"' for key, value in attributes.items())
        self._parts.append(f"<{name}{phrase}/>" if text is None else f"<{name}{phrase}>{html.escape(text)}</{name}>")

    def line(self, x1: float, y1: float, x2: float, y2: float, stroke: str, **attributes: Attribute) -> None:
        """Adds a straight line.

        Args:
            x1: horizontal position of one end, pixels.
            y1: vertical position of that end.
            x2: horizontal position of the other end.
            y2: vertical position of that end.
            stroke: colour.
            attributes: further attributes of SVG.
        """
        self.element("line", {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "stroke": stroke, **attributes})

    def rectangle(self, x: float, y: float, width: float, height: float, fill: str, **attributes: Attribute) -> None:
        """Adds a filled rectangle.

        Args:
            x: left edge, pixels.
            y: upper edge, pixels.
            width: pixels.
            height: pixels.
            fill: colour or pattern.
            attributes: further attributes of SVG.
        """
        self.element("rect", {"x": x, "y": y, "width": width, "height": height, "fill": fill, **attributes})

    def text(self, x: float, y: float, text: str, **attributes: Attribute) -> None:
        """Adds a text.

        Args:
            x: begin of the text, or its end or middle where `text_anchor` says so, pixels.
            y: baseline, pixels.
            text: the text; it is escaped.
            attributes: further attributes of SVG.
        """
        self.element("text", {"x": x, "y": y, **attributes}, text)

    def pattern(self, name: str, fill: str, path: str, stroke: str) -> None:
        """Defines a pattern of 8 by 8 pixels; "url(#name)" fills with it.

        Args:
            name: id of the pattern.
            fill: background colour.
            path: lines on it, as SVG writes paths; "" for none.
            stroke: colour of the lines.
        """
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
    """Writes the value of an attribute: floats with two decimals at most, texts escaped."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else html.escape(str(value))
