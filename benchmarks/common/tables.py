"""Tables of benchmarks: Markdown, printed and written beside the file of results."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ov_hsdag.storage.files import write_json, write_text

Result = Mapping[str, Any]


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are numbers."""
    lines = [list(head), ["---", *["---:"] * (len(head) - 1)], *map(list, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def values(cells: Sequence[Result], key: str) -> list[float]:
    """Figures of the cells that have one."""
    return [cell[key] for cell in cells if cell.get(key) is not None]


def middle(cells: Sequence[Result], key: str) -> float:
    """Median of a figure over seeds, inf where no cell has one."""
    found = values(cells, key)
    return statistics.median(found) if found else math.inf


def spread(cells: Sequence[Result], key: str, form: str = ".2f") -> str:
    """Median of a figure over seeds (least … most); where no cell has one, why."""
    found = values(cells, key)
    if not found:
        return f"*{next((cell['why'] for cell in cells if cell.get('why')), 'not run')}*"
    low, median, high = (format(value, form) for value in (min(found), statistics.median(found), max(found)))
    return median if low == high else f"{median} ({low} … {high})"


def publish(output: Path | None, result: Result, tables: Mapping[str, str]) -> None:
    """Writes a result as JSON, and then as `write` does, whose arguments it takes."""
    if output is not None:
        write_json(output, result)
    write(output, result, tables)


def write(output: Path | None, result: Result, tables: Mapping[str, str]) -> None:
    """Prints tables with their result's machine and settings, and writes them beside its file.

    Args:
        output: the result's file; the tables' has the suffix .md. None: they are only printed.
        result: has `about` and `settings`.
        tables: by what is said above each.
    """
    about = result["about"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items() if version)
    took = f"; {about['wall_seconds'] / 60:.0f} min" if "wall_seconds" in about else ""
    settings = ", ".join(f"{key} {value}" for key, value in result.get("settings", {}).items())
    commit = f", commit {about['commit']}" if about.get("commit") else ""
    parts = [f"{about['date']}, {about['machine']}{commit}; Python {about['python']}, {versions}{took}. {settings}"]
    for caption, table in tables.items():
        parts += [caption, table]
    text = "\n\n".join(parts) + "\n"
    if output is not None:
        write_text(output.with_suffix(".md"), text)
    print(text)
