"""Pieces of the pages that results_page.py writes: tables, paragraphs, why a cell has no figure."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.contestants import DEFAULT, LEARNED, SHIPPED

Result = Mapping[str, Any]

MEASURED = "place, measured"
"""The name of what users get who let `place` measure."""

LEARNED_NAMES = {contestant.name for contestant in LEARNED}

WITH_POLICY = (
    f"{SHIPPED} is `ov-hsdag place --policy base --no-measure`, in which the pretrained network proposes beside search;"
    f" *{DEFAULT}* is the same without `--policy`: no network takes part."
)


def named(row: str) -> str:
    """A row's name, in bold if it is ours."""
    return f"**{row}**" if row in (SHIPPED, DEFAULT, MEASURED) else row


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is text."""
    lines = [list(head), ["---", *["---:"] * (len(head) - 1)], *map(list, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def paragraph(text: str) -> str:
    """Text in lines of at most 120 characters."""
    return "\n".join(textwrap.wrap(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False))


def listed(names: Sequence[str]) -> str:
    """Names as people list them."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "none"


def made_on(result: Result) -> str:
    """Machine, versions, date and what it took."""
    about = result["about"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items() if version)
    took = ""
    if "wall_seconds" in about:
        took = f" It took {about['wall_seconds'] / 60:.0f} min"
        took += f", {about['processor_seconds'] / 60:.0f} min of processors." if "processor_seconds" in about else "."
    return f"{about['date']}, {about['machine']}; Python {about['python']}, {versions}.{took}"


def why(cells: Sequence[Result]) -> str:
    """Why there is no figure, for a table's cell."""
    return f"*{next((cell['why'] for cell in cells if cell['why']), 'not run')}*"


def values(cells: Sequence[Result], key: str) -> list[float]:
    """Figures of the cells that have one."""
    return [cell[key] for cell in cells if cell.get(key) is not None]


def middle(cells: Sequence[Result], key: str) -> float:
    """Median of a figure over seeds, inf where no cell has one."""
    found = values(cells, key)
    return statistics.median(found) if found else math.inf
