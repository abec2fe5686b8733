"""A report as one HTML file that needs nothing else.

page.html beside this file is made of report_page/ (`npm ci && npm run build` there) and holds scripts and styles; what
is of a placement goes into two places of it.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PAGE = Path(__file__).with_name("page.html")


def page(data: Mapping[str, Any]) -> str:
    """The text of the HTML file; data: as `ov_hsdag.explaining.report_data.report_data` returns it."""
    before, _, rest = _PAGE.read_text(encoding="utf-8").partition("__TITLE__")
    between, _, after = rest.partition("__DATA__")
    text = html.escape(f"{data['title']}: what runs where")
    return "".join((before, text, between, _script_json(data), after))


def _script_json(value: Any) -> str:
    """JSON that nothing inside can end the <script> around it with; U+2028 and U+2029 end lines of older scripts."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    # What no file in UTF-8 can hold: halves of pairs, which names of nodes may have.
    return text.encode("utf-8", "replace").decode("utf-8")
