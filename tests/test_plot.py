"""Plots as SVG, and those that runs of training leave."""

from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ov_hsdag.utils.plot import Axis, Series, plot

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_values_lie_where_the_ticks_say() -> None:
    root = ElementTree.fromstring(
        plot("T", Axis("x"), Axis("y"), [Series("a", [(0, 0), (8, 100)]), Series("b", [(4, 50)])])
    )
    (line,), (dot,) = root.findall(f"{SVG}polyline"), root.findall(f"{SVG}circle")  # one point is a dot
    first, last = ([float(part) for part in point.split(",")] for point in (line.get("points") or "").split())
    assert float(dot.get("cx") or 0) == pytest.approx((first[0] + last[0]) / 2, abs=0.2)
    assert float(dot.get("cy") or 0) == pytest.approx((first[1] + last[1]) / 2, abs=0.2)
    ticks = {text.text: float(text.get("y") or 0) - 4 for text in root.findall(f"{SVG}text")}
    assert ticks["100"] == pytest.approx(last[1], abs=0.2)
    assert ticks["20"] - ticks["40"] == pytest.approx(ticks["60"] - ticks["80"], abs=0.2)


def test_what_is_no_number_is_left_out_and_the_legend_breaks_into_rows() -> None:
    names = [f"a series with the number {number}" for number in range(8)]
    told = plot("T", Axis("x"), Axis("y"), [Series(name, [(0, math.inf), (1, 2)], "dots") for name in names])
    root = ElementTree.fromstring(told)
    assert len(root.findall(f"{SVG}circle")) == 2 * len(names)
    width, height = (float(root.get(key) or 0) for key in ("width", "height"))
    for text in root.findall(f"{SVG}text"):
        if text.text in names:
            assert float(text.get("x") or 0) + 6.6 * len(text.text or "") < width
            assert float(text.get("y") or 0) < height
    assert set(names) <= set(texts(told))
    assert "<svg" in plot("empty", Axis("x"), Axis("y"), [])


def test_plots_of_training_show_what_was_learned(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from ov_hsdag.training.finetune.closing import plot_of_finetuning
    from ov_hsdag.training.pretrain import plot_of_pretraining

    entries = [
        {"number": number, "source": source, "measurement": {"ratio": ratio, "error": error}}
        for number, source, ratio, error in (
            (None, "single", 1.0, None),
            (1, "policy", 1.1, None),
            (2, "search", 0.9, None),
            (3, "search", 0.0, "it did not compile"),
        )
    ]
    about = {"simulated": False}
    record = {"entries": entries, "best_so_far": [1.1, 1.1, 1.1], "reference": "CPU_A", "about": about}
    svg = plot_of_finetuning(record)
    assert {"0", "1", "2", "3"} <= set(texts(svg)) and "0.5" not in texts(svg)
    assert {"Fine-tuning", "x the best single device, measured", "policy", "search", "best so far"} <= set(texts(svg))
    assert svg.count("<circle") == 2 + 2  # the legend's, too

    history = [
        {"step": step, "gap": gap, "within_3": 0.5, "infeasible": 0.0} for step, gap in ((1, math.inf), (2, 0.5))
    ]
    record = {"history": history, "settings": {"imitation_steps": 1, "reinforce_steps": 1}}
    assert "gap to searched placements" in texts(plot_of_pretraining(record))
    assert "<svg" in plot_of_pretraining({**record, "history": []})
