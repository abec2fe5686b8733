"""The option --output of benchmarks: they write into its file, and nowhere without it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


def add_output(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds the option --output, a path, None by default. what: description of the file for the help text."""
    parser.add_argument("--output", type=Path, metavar="FILE", help=f"{what}; without it, nothing is written")


def stored(path: Path | None) -> Any:
    """Reads the JSON file of an earlier run, which is continued; None without a path or file."""
    return json.loads(path.read_text(encoding="utf-8")) if path is not None and path.exists() else None


@contextmanager
def folder_or_temporary(path: Path | None) -> Iterator[Path]:
    """Yields a folder for intermediate files: `path`, which is made and stays, or a temporary one for None."""
    if path is not None:
        path.mkdir(parents=True, exist_ok=True)
        yield path
        return
    with TemporaryDirectory() as temporary:
        yield Path(temporary)
