"""What a notebook shows of a placement."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from ov_hsdag.report.picture import picture


def cell(summary: str, devices: Mapping[str, int], data: Mapping[str, Any] | None) -> str:
    """HTML for a cell's output.

    Args:
        summary: `Placement.summary`.
        devices: nodes of each device.
        data: as `ov_hsdag.explaining.report_data.picture_data` returns it; None where nothing but the devices is known.
    """
    if data is not None:
        # As an image: the patterns of several pictures in a notebook then do not get into each other's way.
        shown = _image(picture(data, title=False))
    else:
        counts = ", ".join(f"{name}: {count:,} nodes" for name, count in devices.items())
        shown = f"<p>{html.escape(counts)}</p>"
    return f"<div><p><code>{html.escape(summary)}</code></p>{shown}</div>"


def _image(svg: str) -> str:
    from base64 import b64encode

    told = b64encode(svg.encode("utf-8")).decode("ascii")
    return (
        f'<img alt="which part of the model runs where" style="max-width: 100%" src="data:image/svg+xml;base64,{told}">'
    )
