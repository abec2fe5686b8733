"""Where a benchmark writes: into the file of `--output`, and nowhere without it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


def add_output(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds the option --output, a path, None by default. what: it is for, as its help says."""
    parser.add_argument("--output", type=Path, metavar="FILE", help=f"{what}; without it, nothing is written")


def stored(path: Path | None) -> Any:
    """The JSON of an earlier run's output, which is continued; None where there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path is not None and path.exists() else None


@contextmanager
def folder_or_temporary(path: Path | None) -> Iterator[Path]:
    """A folder for what a run makes on its way: the one that is named, or else one that goes when the run ends."""
    if path is not None:
        path.mkdir(parents=True, exist_ok=True)
        yield path
        return
    with TemporaryDirectory() as temporary:
        yield Path(temporary)
