"""Renders the results of `ov-hsdag bench --kit` as a page, an HTML file without further files.

The page has a table for each device list. A row of it is one comparison: a model and an objective, with the figures of
all ways to run the model.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1b1b1b }
table { border-collapse: collapse; margin: 1rem 0 2rem; width: 100% }
th, td { border-bottom: 1px solid #ddd; padding: .3rem .6rem; text-align: left; vertical-align: top }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
td.best { font-weight: 600 } td.failed { color: #a33 } small { color: #666 }
@media (prefers-color-scheme: dark) {
  body { background: #16181c; color: #e4e4e4 } th, td { border-color: #3a3d44 } td.failed { color: #f08a8a }
}
"""

_LEGEND = (
    "Figures are times the best single device: rates where the objective is throughput, one request's speed where it"
    " is latency. All ways of a row ran in turns; brackets hold 95% intervals. <i>HETERO alone</i> is OpenVINO's own"
    " choice for the list of devices, <i>copies</i> the whole model on each device at once, <i>HSDAG: by prediction</i>"
    " what a program gets that names the devices so, and <i>predicted</i> what it was promised."
)

COLUMNS = ("one device", "HETERO alone", "copies", "HSDAG: by prediction", "predicted", "best of all measured")
"""Headings of the columns of figures; these are ratios to the best single device."""

Cell = tuple[str, str]
"""The HTML of a cell and its CSS class."""


def kit_page(document: Mapping[str, Any], *, predicted: str) -> str:
    """Makes the text of the HTML file.

    Args:
        document: results from `ov_hsdag.kit.measure.run_kit`.
        predicted: name, under "placer" in the results, of the placement that was chosen by prediction.
    """
    machine, comparisons = document["machine"], document["comparisons"]
    where = f"{machine['system']}, {machine['architecture']}, {machine['cores']} cores"
    releases = f"OpenVINO {document['openvino']}, ov-hsdag {document['ov_hsdag']}"
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>ov-hsdag on this machine</title>",
        f"<style>{_STYLE}</style><h1>What placing gains on this machine</h1>",
        f"<p>{_escaped(where)}; {_escaped(releases)}.</p>",
        _table(("device", "name", "driver", "memory", "precision"), map(_device_row, document["devices"])),
        f"<p>{_LEGEND}</p>",
    ]
    for device in dict.fromkeys(one["device"] for one in comparisons):
        parts.append(f"<h2>{_escaped(device)}</h2>")
        rows = (_row(one, predicted) for one in comparisons if one["device"] == device)
        parts.append(_table(("model", "objective", *COLUMNS), rows, figures_from=2))
    return "\n".join(parts) + "\n"


def _row(comparison: Mapping[str, Any], predicted: str) -> list[Cell]:
    """Makes the cells of a row: the model, the objective, and `COLUMNS`.

    Args:
        comparison: one of the "comparisons" of `run_kit`.
        predicted: see `kit_page`.
    """
    title = f"{comparison['model']} <small>{comparison['operations']} operations</small>"
    head: list[Cell] = [(title, ""), (comparison["objective"], "")]
    if comparison["failed"]:
        return [*head, (_escaped(comparison["failed"]), "failed"), *[("", "")] * (len(COLUMNS) - 1)]
    rows = {row["placer"]: row for row in comparison["rows"]}
    devices = comparison["device"].partition(":")[2].split(",")
    ran = [row for row in rows.values() if not row["failed"]]
    single = max((row for row in ran if row["placer"] in devices), key=lambda row: row["ratio"], default=None)
    copies = max((row for row in ran if row["placer"] in _COPIES), key=lambda row: row["ratio"], default=None)
    best = max(ran, key=lambda row: row["ratio"], default=None)
    gain = comparison["predicted_gain"]
    return [
        *head,
        (_escaped(single["placer"]) if single else "none runs it", ""),
        _figure(rows.get("hetero")),
        _figure(copies),
        _figure(rows.get(predicted)),
        ("" if gain is None else f"{gain:.2f}", "n"),
        _figure(best, name=True),
    ]


_COPIES = ("copies", "auto-cumulative")
"""Names, in results, of the ways to run the whole model on each device at once."""


def _figure(row: Mapping[str, Any] | None, *, name: bool = False) -> Cell:
    """Makes the cell of a measured ratio to the best single device, with its interval.

    Args:
        row: a result as of `ov_hsdag.placing.rivals.Result.to_dict`; None for an empty cell.
        name: whether the name of the placement follows.
    """
    if row is None:
        return "", "n"
    if row["failed"]:
        return _escaped(row["failed"]), "failed"
    text = f"{row['ratio']:.2f}"
    if row["ratio_low"] != row["ratio_high"]:
        text += f" <small>[{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]</small>"
    return (f"{text} {_escaped(row['placer'])}", "n best") if name else (text, "n")


def _device_row(device: Mapping[str, Any]) -> list[Cell]:
    """Makes the cells of a device: name, full name and threads, driver, memory and precision."""
    memory = device["memory_bytes"]
    size = "" if memory is None else f"{memory / 2**30:.1f} GiB"
    threads = "" if device["threads"] is None else f" <small>{device['threads']} threads</small>"
    name = f"{_escaped(device['full_name'] or '')}{threads}"
    return [(_escaped(device["name"]), ""), (name, ""), (_escaped(device["driver"]), ""), (size, ""),
            (_escaped(device["precision"] or ""), "")]  # fmt: skip


def _table(head: Sequence[str], rows: Iterable[Sequence[Cell]], figures_from: int | None = None) -> str:
    """Makes the HTML of a table.

    Args:
        head: headings of the columns, as HTML.
        rows: cells of each row.
        figures_from: index of the first column whose heading is right-aligned; None for no such column.
    """
    right = len(head) if figures_from is None else figures_from
    heading = "".join(f"<th{' class=n' if at >= right else ''}>{text}</th>" for at, text in enumerate(head))
    lines = ["".join(f'<td class="{kind}">{text}</td>' for text, kind in row) for row in rows]
    return f"<table><tr>{heading}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _escaped(text: object) -> str:
    """Escapes the text of an object for HTML."""
    return html.escape(str(text))
