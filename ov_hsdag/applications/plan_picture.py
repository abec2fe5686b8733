"""Draws a plan of several models as SVG: one run in time, the work of each device, and its memory.

A run is one pass of the application that the models belong to; each model is computed `count` times in it. The period
is the time between two results of runs with many in flight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ov_hsdag.report.drawing import COLOURS, Drawing
from ov_hsdag.report.picture import QUIET, TEXT, time_text
from ov_hsdag.utils.byte_sizes import format_bytes

# Pixels: width of the picture, which fits a page or a notebook, its margins (names of devices on the left, figures on
# the right), height of a device's lane, and space between lanes.
_WIDTH, _LEFT, _RIGHT, _LANE, _GAP = 920, 110, 140, 26, 8


def plan_picture(data: Mapping[str, Any], title: str) -> str:
    """Draws the picture of a plan.

    Args:
        data: the plan, as `ov_hsdag.applications.plan.Plan.to_dict` returns it.
        title: the heading.

    Returns:
        The text of an SVG file.
    """
    devices, models = data["devices"], data["models"]
    predicted = data["predicted"]
    rows = len(devices) * (_LANE + _GAP) + 44
    drawing = Drawing(_WIDTH, 70 + 3 * rows + 20 * len(models))
    drawing.text(16, 26, title, font_size=17, font_weight="bold", fill=TEXT)
    rate = f"{predicted['runs_per_second']:.4g} runs a second, {time_text(predicted['latency_us'])} for one run alone"
    drawing.text(16, 46, f"HETERO:{','.join(devices)}: {data['chosen']}, predicted {rate}", fill=QUIET)
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(models)}

    def lanes(
        top: float, heading: str, values: Mapping[str, Sequence[tuple[str, float, float]]], ends: Mapping[str, str]
    ) -> None:
        """Draws a lane for each device.

        Args:
            top: upper edge of the lanes with their heading, pixels.
            heading: text above the lanes.
            values: boxes of each device, by name: model, begin and end in any common unit.
            ends: text behind each lane, by device.
        """
        drawing.text(16, top + 14, heading, font_weight="bold", fill=TEXT)
        most = max((end for boxes in values.values() for _, _, end in boxes), default=1.0) or 1.0
        scale = (_WIDTH - _LEFT - _RIGHT) / most
        for number, device in enumerate(devices):
            y = top + 24 + number * (_LANE + _GAP)
            drawing.text(_LEFT - 8, y + 17, device, text_anchor="end", fill=TEXT)
            drawing.rectangle(_LEFT, y, _WIDTH - _LEFT - _RIGHT, _LANE, "#f3f4f7")
            for model, begin, end in values[device]:
                drawing.rectangle(_LEFT + begin * scale, y, max((end - begin) * scale, 0.5), _LANE, colours[model])
            drawing.text(_WIDTH - _RIGHT + 8, y + 17, ends[device], fill=QUIET)

    timeline = {
        device: [(name, one["begin_us"], one["end_us"]) for name, one in models.items() if device in one["devices"]]
        for device in devices
    }
    lanes(62, "one run alone", timeline, dict.fromkeys(devices, ""))
    busy = {device: _stacked(models, "busy_us", device) for device in devices}
    total = max(predicted["busy_us"].values()) or 1.0
    shares = {device: f"{predicted['busy_us'][device] / total:.0%} of the period" for device in devices}
    lanes(62 + rows, "work in a run, with many in flight", busy, shares)
    memory = {device: _stacked(models, "memory_bytes", device) for device in devices}
    needs = {device: format_bytes(predicted["memory_bytes"][device]) for device in devices}
    lanes(62 + 2 * rows, "memory", memory, needs)
    for number, (name, figures) in enumerate(models.items()):
        y = 62 + 3 * rows + 20 * number
        drawing.rectangle(_LEFT, y, 12, 12, colours[name])
        drawing.text(_LEFT + 20, y + 11, f"{name}: {figures['count']:g} in a run, {figures['where']}", fill=TEXT)
    return drawing.svg()


def _stacked(models: Mapping[str, Any], key: str, device: str) -> list[tuple[str, float, float]]:
    """Stacks the models' amounts on a device, one after the other.

    Args:
        models: figures of each model, by name.
        key: name of the figure that is stacked: "busy_us" or "memory_bytes", each by device.
        device: name of the device.

    Returns:
        Boxes: model, begin and end, in the unit of the figure; models without an amount have none.
    """
    boxes, end = [], 0.0
    for name, figures in models.items():
        amount = float(figures[key].get(device, 0.0))
        if amount:
            boxes.append((name, end, end + amount))
            end += amount
    return boxes
