"""Draws a split as SVG: the model in its order, one request in time, and the memory of each device.

In all functions `data` is the object that `ov_hsdag.explaining.report_data.picture_data` returns: times are in µs and
sizes in bytes. Positions (`top`, `x`, `y`) are pixels from the upper left corner of the picture.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ov_hsdag.report.drawing import Drawing
from ov_hsdag.utils.byte_sizes import format_bytes

# Pixels: width of the picture, which fits a page or a notebook, its margins (names of devices are on the left), height
# of a device's lane, and space between lanes.
_WIDTH, _LEFT, _RIGHT = 920, 110, 24
_LANE, _GAP = 34, 22

TEXT, QUIET, _LINE, _LANES, _CUT = "#1b1f27", "#5a6372", "#d5d9e0", "#f3f4f7", "#b3261e"
# Colours and patterns of the page (tools/report_page/src/page.css, patterns.js).
_COLOURS = ("#2f6db5", "#c9601a", "#2b8259", "#8a4bb0", "#97751a", "#b5386b", "#2c8294", "#5d6673")
_PATTERNS = (
    "", "M-2,2 l4,-4 M0,8 l8,-8 M6,10 l4,-4", "M3,4 h2", "M0,4 h8 M4,0 v8", "M0,2 h8 M0,6 h8",
    "M-2,6 l4,4 M0,0 l8,8 M6,-2 l4,4", "M2,0 v8 M6,0 v8", "M0,0 l8,8 M8,0 l-8,8",
)  # fmt: skip
_MEMORY = (("weights", "#4a5568"), ("states", "#7b8aa3"), ("tensors", "#c3ccda"))

_NARROW = 0.7  # pixels; narrower boxes are merged with their neighbours, as nobody could see them


def picture(data: Mapping[str, Any], *, title: bool = True) -> str:
    """Draws the picture; returns the text of an SVG file.

    Args:
        data: from `ov_hsdag.explaining.report_data.picture_data`.
        title: whether the picture begins with the model's name and the headline.
    """
    devices = data["devices"]
    lanes = len(devices) * (_LANE + _GAP)
    top = 58 if title else 8
    height = top + 70 + lanes + 62 + 30 * len(devices) + 34
    drawing = Drawing(_WIDTH, height)
    for number, (colour, pattern) in enumerate(zip(_COLOURS, _PATTERNS, strict=True)):
        if number < len(devices):
            drawing.pattern(f"device-{number}", colour, pattern, "#ffffff")
    if title:
        drawing.text(16, 26, _cut(data["title"], 80), font_size=17, font_weight="bold", fill=TEXT)
        drawing.text(16, 46, headline(data), font_size=12.5, fill=QUIET)
    _order(drawing, data, top + 14)
    _timeline(drawing, data, top + 92)
    _memory(drawing, data, top + 92 + lanes + 58)
    return drawing.svg()


def image(data: Mapping[str, Any]) -> str:
    """The picture as an HTML element: an <img>, so that ids of patterns do not collide with those of other pictures."""
    svg = b64encode(picture(data, title=False).encode("utf-8")).decode("ascii")
    return (
        f'<img alt="which part of the model runs where" style="max-width: 100%" src="data:image/svg+xml;base64,{svg}">'
    )


def headline(data: Mapping[str, Any]) -> str:
    """Writes one line with the devices, the number of submodels, the bytes between devices, and the gain of the split.

    Figures are measured ones where the placement was measured, else predictions.
    """
    throughput = data["objective"] == "throughput"
    record = data["record"]
    measured = (record["measured"] or {}).get(record["chosen"]) or {}
    real = measured.get("throughput_ips" if throughput else "latency_us")
    value = real or (1e6 / max(data["period_us"] or 0, 1e-9) if throughput else data["latency_us"])
    text = f"{value:,.1f} results/s" if throughput else f"{time_text(value)} for one request"
    gain = (record["gains"].get(record["chosen"]) or [None, None])[1 if real else 0]
    better = f", {gain:.2f}x the best single device" if gain else ""
    count, moved = len(data["submodels"]["device"]), sum(data["cuts"]["bytes"])
    crossing = f", {format_bytes(moved)} between devices" if moved else ""
    return (
        f"HETERO:{','.join(data['devices'])}: {count:,} submodel{'' if count == 1 else 's'}{crossing}; "
        f"{text}{better} ({'measured' if real else 'predicted'})"
    )


def _fill(device: int) -> str:
    """The SVG paint of a device's colour and pattern; `device` is its number."""
    return f"url(#device-{device % len(_COLOURS)})"


def _order(drawing: Drawing, data: Mapping[str, Any], top: float) -> None:
    """Draws the model as a bar of runs in its order, with the names of devices above; widths are times."""
    x = 16.0
    for number, name in enumerate(data["devices"]):
        text = f"{_cut(name, 24)}: {data['operations'][number]:,} operations, {time_text(data['busy_us'][number])}"
        drawing.rectangle(x, top - 10, 13, 13, _fill(number), rx=2)
        drawing.text(x + 19, top + 1, text, fill=TEXT)
        x += 44 + 6.8 * len(text)
    runs = data["runs"]
    total = sum(runs["us"])
    weights = runs["us"] if total else runs["operations"]
    scale = (_WIDTH - 32) / (sum(weights) or 1)
    at = 16.0
    for device, weight in _joined(list(zip(runs["device"], weights, strict=True)), scale):
        drawing.rectangle(at, top + 12, max(weight * scale, 0.4), 24, _fill(device))
        at += weight * scale
    drawing.text(16, top + 50, "first operation", font_size=11, fill=QUIET)
    drawing.text(_WIDTH / 2, top + 50, "width is time", font_size=11, fill=QUIET, text_anchor="middle")
    drawing.text(_WIDTH - 16, top + 50, "last", font_size=11, fill=QUIET, text_anchor="end")


def _joined(runs: Sequence[tuple[int, float]], scale: float) -> Iterator[tuple[int, float]]:
    """Merges runs of operations that are too narrow to be seen with their predecessors.

    Args:
        runs: device number and weight of each run; the weight is its time, or its number of operations.
        scale: pixels for a weight of 1.

    Yields:
        Device number and weight of each merged run.
    """
    device, weight = -1, 0.0
    for next_device, more in runs:
        if device < 0 or (next_device != device and weight * scale >= _NARROW):
            if device >= 0:
                yield device, weight
            device, weight = next_device, more
        else:
            weight += more
    if device >= 0:
        yield device, weight


def _timeline(drawing: Drawing, data: Mapping[str, Any], top: float) -> None:
    """Draws one request in time: a lane for each device, a block for each submodel, a line for each transfer."""
    begins, stages, owners = data["starts"]["one"], data["stages"], data["submodels"]["device"]
    end = (begins[-1] + stages["us"][-1]) if begins else 1.0
    scale = (_WIDTH - _LEFT - _RIGHT) / (end or 1.0)

    def y(device: int) -> float:
        """Upper edge of a device's lane, pixels."""
        return top + device * (_LANE + _GAP)

    for number, name in enumerate(data["devices"]):
        drawing.rectangle(_LEFT, y(number), _WIDTH - _LEFT - _RIGHT, _LANE, _LANES)
        drawing.text(
            _LEFT - 8, y(number) + 21, _cut(name, 14), text_anchor="end", font_weight="bold", font_size=13, fill=TEXT
        )
    place, drawn = 0, [-1.0] * len(data["devices"])
    for begin, us, submodel, cut in zip(begins, stages["us"], stages["submodel"], stages["cut"], strict=True):
        left, right = _LEFT + begin * scale, _LEFT + (begin + us) * scale
        if submodel >= 0:
            place += 1
            device = owners[submodel]
            if right <= drawn[device]:
                continue
            drawn[device] = max(right, left + _NARROW)
            drawing.rectangle(left, y(device) + 2, drawn[device] - left, _LANE - 4, _fill(device))
            label = next(
                (one for one in (f"{place} · {time_text(us)}", str(place)) if 7 * len(one) + 10 < right - left), ""
            )
            if label:
                width = 7 * len(label) + 8
                middle = (left + right) / 2
                drawing.rectangle(middle - width / 2, y(device) + 8, width, 18, "#ffffff", fill_opacity=0.88, rx=4)
                drawing.text(middle, y(device) + 21, label, text_anchor="middle", fill=TEXT)
            continue
        source, target = data["cuts"]["from"][cut], data["cuts"]["to"][cut]
        down = target > source
        start, stop = y(source) + (_LANE - 2 if down else 2), y(target) + (2 if down else _LANE - 2)
        drawing.line(left, start, right, stop, _CUT, stroke_width=1.6, stroke_dasharray="4 3")
        tip = -5 if down else 5
        points = f"{right:.1f},{stop:.1f} {right - 3.5:.1f},{stop + tip:.1f} {right + 3.5:.1f},{stop + tip:.1f}"
        drawing.element("polygon", {"points": points, "fill": _CUT})
    bottom = y(len(data["devices"])) - _GAP + 6
    for share in range(5):
        x = _LEFT + share / 4 * (_WIDTH - _LEFT - _RIGHT)
        drawing.line(x, top, x, bottom, _LINE, stroke_dasharray="2 4")
        anchor = "start" if share == 0 else "end" if share == 4 else "middle"
        drawing.text(x, bottom + 14, time_text(end * share / 4), font_size=11, fill=QUIET, text_anchor=anchor)


def _memory(drawing: Drawing, data: Mapping[str, Any], top: float) -> None:
    """Draws a bar of the memory of each device, with its limit."""
    memory = data["memory"]
    drawing.text(16, top - 10, "memory", font_size=13, font_weight="bold", fill=TEXT)
    x = float(_LEFT)
    for part, colour in _MEMORY:
        if any(one[part] for one in memory):
            drawing.rectangle(x, top - 20, 11, 11, colour)
            drawing.text(x + 16, top - 10, part, fill=QUIET)
            x += 36 + 7 * len(part)
    most = max((max(one["total"], min(one["limit"] or 0, 3 * one["total"])) for one in memory), default=0) or 1
    room = _WIDTH - _LEFT - _RIGHT - 210
    for number, figures in enumerate(memory):
        y = top + 30 * number
        name = _cut(data["devices"][number], 14)
        drawing.text(_LEFT - 8, y + 14, name, text_anchor="end", font_weight="bold", font_size=13, fill=TEXT)
        drawing.rectangle(_LEFT, y, room, 20, _LANES)
        at = float(_LEFT)
        for part, colour in _MEMORY:
            width = figures[part] / most * room
            if width:
                drawing.rectangle(at, y, width, 20, colour)
            at += width
        limit = figures["limit"]
        if limit is not None and limit <= most:
            drawing.rectangle(_LEFT + limit / most * room - 1.5, y - 2, 3, 24, _CUT)
        text = format_bytes(figures["total"]) + ("" if limit is None else f" of {format_bytes(limit)}")
        drawing.text(_LEFT + room + 10, y + 14, text, fill=TEXT)


def time_text(us: float | None) -> str:
    """Writes a time, given in µs, with a suitable unit: s, ms or µs; "–" for None."""
    if us is None:
        return "–"
    if us >= 1e6:
        return f"{us / 1e6:,.2f} s"
    return f"{us / 1e3:,.2f} ms" if us >= 1e3 else f"{us:,.0f} µs"


def _cut(text: str, most: int) -> str:
    """Shortens a text to `most` characters; the last one is then "…"."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
