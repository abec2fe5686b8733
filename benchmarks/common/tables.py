"""Makes tables of benchmarks in Markdown, prints them and writes them next to the file of results.

A cell is the result of one run: a dictionary of figures, which are None if there is none; `why` then has the reason.
"""

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
    """The figures of the cells that have one. key: name of the figure."""
    return [cell[key] for cell in cells if cell.get(key) is not None]


def middle(cells: Sequence[Result], key: str) -> float:
    """Median of a figure over cells, one for each seed; inf if no cell has one."""
    found = values(cells, key)
    return statistics.median(found) if found else math.inf


def spread(cells: Sequence[Result], key: str, form: str = ".2f") -> str:
    """Median of a figure over cells, one for each seed, as text: "median (least … most)".

    Args:
        cells: the cells.
        key: name of the figure.
        form: format of numbers.

    Returns:
        The text; the reason in italics if no cell has the figure.
    """
    found = values(cells, key)
    if not found:
        return f"*{next((cell['why'] for cell in cells if cell.get('why')), 'not run')}*"
    low, median, high = (format(value, form) for value in (min(found), statistics.median(found), max(found)))
    return median if low == high else f"{median} ({low} … {high})"


def publish(output: Path | None, result: Result, tables: Mapping[str, str]) -> None:
    """Writes a result as JSON to `output`, and prints and writes its tables by `write`, with the same arguments."""
    if output is not None:
        write_json(output, result)
    write(output, result, tables)


def write(output: Path | None, result: Result, tables: Mapping[str, str]) -> None:
    """Prints tables with the machine and settings of their result, and writes them next to its file.

    Args:
        output: the result's file; that of the tables has the suffix .md. None: they are only printed.
        result: the result, with `about` (`machine.about`) and perhaps `settings`.
        tables: the tables by caption.
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
