"""Plots as SVG: values lie where the ticks say, and the legend fits."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from benchmarks.common.plot import Axis, Series, plot

SVG = "{http://www.w3.org/2000/svg}"


def test_values_lie_where_the_ticks_say() -> None:
    drawn = plot("T", Axis("x"), Axis("y"), [Series("a", [(0, 0), (8, 100)]), Series("b", [(4, 50)])])
    root = ElementTree.fromstring(drawn)
    (line,), (dot,) = root.findall(f"{SVG}polyline"), root.findall(f"{SVG}circle")  # one point is a dot
    first, last = ([float(part) for part in point.split(",")] for point in (line.get("points") or "").split())
    middle = [(a + b) / 2 for a, b in zip(first, last, strict=True)]
    assert [float(dot.get(key) or 0) for key in ("cx", "cy")] == pytest.approx(middle, abs=0.2)
    ticks = {text.text: float(text.get("y") or 0) - 4 for text in root.findall(f"{SVG}text")}
    assert ticks["100"] == pytest.approx(last[1], abs=0.2)
    assert ticks["20"] - ticks["40"] == pytest.approx(ticks["60"] - ticks["80"], abs=0.2)


def test_the_legend_breaks_into_rows() -> None:
    names = [f"a series with the number {number}" for number in range(8)]
    root = ElementTree.fromstring(plot("T", Axis("x"), Axis("y"), [Series(name, [(0, 1), (1, 2)]) for name in names]))
    width, height = (float(root.get(key) or 0) for key in ("width", "height"))
    told = [text for text in root.findall(f"{SVG}text") if text.text in names]
    assert len(told) == len(names)
    for text in told:
        assert float(text.get("x") or 0) + 6.6 * len(text.text or "") < width
        assert float(text.get("y") or 0) < height
