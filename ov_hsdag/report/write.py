"""Writes a report in the format of the file's suffix.

As HTML it is one file without further files. page.html in this folder is built from tools/report_page/ (`npm ci && npm
run build` there) and has the scripts and styles; the title and the data of a placement replace two marks in it.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from importlib.util import find_spec
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from ov_hsdag.report.picture import picture
from ov_hsdag.storage import files
from ov_hsdag.utils.errors import RunError, UserError

SUFFIXES = (".html", ".svg", ".png")
"""Suffixes of reports: .html for the whole report, the others for the picture of the split."""

_FAMILIES = (
    "DejaVu Sans", "Liberation Sans", "Noto Sans", "Arial", "Helvetica", "Roboto", "Open Sans", "Segoe UI", "Ubuntu",
    "Cantarell", "FreeSans", "Nimbus Sans",
)  # fmt: skip
"""Font families for .png files, in the order in which they are tried."""

_PROBE = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20" font-family="sans-serif" font-size="16">'
    '<text x="2" y="16">Aa</text></svg>'
)

_PAGE = Path(__file__).with_name("page.html")

# Pixels of a PNG for each pixel of the SVG, so that it is sharp on screens of high resolution.
_ZOOM = 2


def page(data: Mapping[str, Any]) -> str:
    """Makes the text of the HTML file; `data` comes from `ov_hsdag.explaining.report_data.report_data`."""
    before, _, rest = _PAGE.read_text(encoding="utf-8").partition("__TITLE__")
    between, _, after = rest.partition("__DATA__")
    text = html.escape(f"{data['title']}: what runs where")
    return "".join((before, text, between, _script_json(data), after))


def _script_json(value: Any) -> str:
    """Writes JSON for a <script> element, with escapes for all characters that could end it.

    U+2028 and U+2029 are escaped as well, as they end lines in older versions of JavaScript.
    """
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    # Lone surrogates, which names of nodes may contain, cannot be written as UTF-8 and are replaced.
    return text.encode("utf-8", "replace").decode("utf-8")


def check_report(path: str | PathLike[str]) -> None:
    """Raises UserError where a report cannot be written: a wrong suffix, a missing package, or an unwritable file."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(f"a report is a .html, or its picture an .svg or .png: got '{fspath(path)}'")
    if suffix == ".png" and find_spec("resvg_py") is None:
        raise UserError("a picture as .png needs resvg-py: pip install resvg-py, or write an .svg")
    files.check_writable(path)


def write_report(path: str | PathLike[str], data: Mapping[str, Any]) -> None:
    """Writes a report, whole or not at all, in the format of its suffix.

    Args:
        path: the file; its suffix is one of `SUFFIXES`.
        data: from `ov_hsdag.explaining.report_data.report_data`, or, for pictures, from `picture_data`.

    Raises:
        UserError: see `check_report`.
        RunError: a .png cannot be drawn.
    """
    check_report(path)
    suffix = Path(path).suffix.lower()
    if suffix == ".png":
        files.write_bytes(path, [_png(picture(data))])
    else:
        files.write_text(path, page(data) if suffix == ".html" else picture(data))


def _png(svg: str) -> bytes:
    """Draws the text of an SVG file as PNG, with the first of `_FAMILIES` that this machine has.

    Raises:
        RunError: there is no such font, or the picture cannot be drawn.
    """
    import resvg_py

    # resvg-py has no default font and draws nothing for a family that is missing, so families are tried in turn.
    blank = bytes(resvg_py.svg_to_bytes(svg_string=_PROBE, sans_serif_family="no such family"))
    for family in _FAMILIES:
        if bytes(resvg_py.svg_to_bytes(svg_string=_PROBE, sans_serif_family=family)) != blank:
            break
    else:
        raise RunError(
            "a picture as .png needs a font, and this machine has none that is known: install one (Debian, Ubuntu:"
            " apt-get install fonts-dejavu-core), or write an .svg"
        )
    try:
        return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=_ZOOM, sans_serif_family=family))
    except ValueError as error:
        raise RunError(f"resvg-py cannot draw the picture: {error}") from error
