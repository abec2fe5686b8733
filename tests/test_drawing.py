"""SVG as text: well-formed, escaped, short numbers."""

from __future__ import annotations

from xml.etree import ElementTree

from ov_hsdag.report.drawing import Drawing


def test_a_drawing_is_well_formed_and_escapes_what_names_hold() -> None:
    drawing = Drawing(100, 50)
    drawing.text(1.25, 2.0, 'a<b & "c"', text_anchor="end", fill='"red"')
    drawing.line(0, 1, 2.04, 3, "#123456", stroke_width=2)
    drawing.rectangle(0, 0, 3.14159, 1, "blue")
    root = ElementTree.fromstring(drawing.svg())
    assert root.get("viewBox") == "0 0 100 50"
    background, text, line, rectangle = root
    assert (background.get("width"), background.get("height"), background.get("fill")) == ("100", "50", "white")
    assert (text.text, text.get("text-anchor"), text.get("x"), text.get("y")) == ('a<b & "c"', "end", "1.25", "2")
    assert text.get("fill") == '"red"'
    assert (line.get("x2"), line.get("stroke-width")) == ("2.04", "2")
    assert rectangle.get("width") == "3.14"
