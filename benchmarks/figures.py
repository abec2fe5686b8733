"""Checks that each table of docs/reference/results.md has a command that prints it, and each command a table.

    python -m benchmarks.figures                     # checks the page only
    python -m benchmarks.figures --run               # and runs each command with its quickest arguments: minutes
    python -m benchmarks.figures --run field.rivals  # runs one of them

A part of the page reaches from one heading to the next. A part with a table must name a command, as
`python -m benchmarks.…`, and a part with a command must have a table. The arguments with which a command is quickest
are in its module, `SMOKE_ARGUMENTS = "--count 1"`, or `--smoke` by default. With these it must print something, end
without a traceback, and write no file, as there is no --output. Exit status 1 is accepted, as a floor may be missed in
so short a run.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.workers import start
from ov_hsdag.devices.cpu import usable_cores

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "results.md"

LIMIT = 600.0
"""Seconds that a command may take with its quickest arguments, on a busy machine."""

HEADING = re.compile(r"^#{1,6} ", re.MULTILINE)

COMMAND = re.compile(r"python -m benchmarks\.([a-z_]+\.[a-z_]+)")

TABLE = re.compile(r"^ *\|[ :|-]+\|$", re.MULTILINE)
"""The line below a table's head."""


@dataclass(frozen=True)
class Part:
    """A part of the page."""

    heading: str  # its text
    tables: int  # number of tables
    commands: tuple[str, ...]  # modules below `benchmarks`, such as "field.rivals", each once


def parts(text: str) -> list[Part]:
    """Divides a page in Markdown into its parts."""
    result = []
    for part in HEADING.split(text)[1:]:
        commands = tuple(dict.fromkeys(COMMAND.findall(part)))
        result.append(Part(part.partition("\n")[0].strip(), len(TABLE.findall(part)), commands))
    return result


def smoke_arguments(command: str) -> list[str]:
    """The quickest arguments of a command, which is a module below `benchmarks`."""
    return shlex.split(getattr(importlib.import_module(f"benchmarks.{command}"), "SMOKE_ARGUMENTS", "--smoke"))


def faults(page: Sequence[Part]) -> list[str]:
    """Returns a line for each fault: a table without a command, a command without a table or module."""
    lines = []
    for part in page:
        if part.tables and not part.commands:
            lines.append(f"'{part.heading}' has a table, and no command that prints it")
        if part.commands and not part.tables:
            lines.append(f"'{part.heading}' names {', '.join(part.commands)}, and has no table")
        for command in part.commands:
            if importlib.util.find_spec(f"benchmarks.{command}") is None:
                lines.append(f"'{part.heading}' names {command}, which is not there")
    return lines


def run(command: str) -> str:
    """Runs a command with its quickest arguments.

    Returns:
        A line that says how it failed; "" if it did not.
    """
    arguments = smoke_arguments(command)
    words = [sys.executable, "-m", f"benchmarks.{command}", *arguments]
    said = shlex.join([command, *arguments])
    with tempfile.TemporaryDirectory() as folder:
        work, temporary = Path(folder) / "work", Path(folder) / "temporary"
        work.mkdir()
        temporary.mkdir()
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
        try:
            done = subprocess.run(
                words, cwd=work, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
            )
        except subprocess.TimeoutExpired:
            return f"{said}: not done after {LIMIT:.0f} s"
        written = sorted(path.name for path in (*work.iterdir(), *temporary.iterdir()))
    if done.returncode not in (0, 1) or "Traceback" in done.stderr or "error:" in done.stderr:
        last = (done.stderr.strip().splitlines() or ["nothing said why"])[-1]
        return f"{said}: exit status {done.returncode}: {last}"
    if written:
        return f"{said}: left {', '.join(written)} behind"
    return "" if done.stdout.strip() else f"{said}: printed nothing"


def files_of_tree() -> dict[Path, tuple[int, int]]:
    """Time of change, ns, and size, bytes, of each file that a benchmark could write by mistake."""
    folders = [ROOT / "benchmarks", ROOT / "docs", ROOT / "ov_hsdag"]
    paths = [*(path for folder in folders for path in folder.rglob("*")), *ROOT.iterdir()]
    return {
        path: (path.stat().st_mtime_ns, path.stat().st_size)
        for path in paths
        if path.is_file() and "__pycache__" not in path.parts
    }


def run_all(commands: Sequence[str]) -> list[str]:
    """Runs commands, as many at a time as there are cores, and prints how long each took.

    Returns:
        A line for each command that failed, and one if files of the tree were written.
    """

    def timed(command: str) -> tuple[str, float]:
        begin = time.monotonic()
        return run(command), time.monotonic() - begin

    wrong = []
    before = files_of_tree()
    with ThreadPoolExecutor(usable_cores()) as pool:
        for command, (reason, seconds) in zip(commands, pool.map(timed, commands), strict=True):
            print(f"{seconds:6.1f} s  {command}", flush=True)
            wrong += [reason] if reason else []
    changed = sorted(str(path.relative_to(ROOT)) for path, _ in before.items() ^ files_of_tree().items())
    return wrong + ([f"files of the tree were written: {', '.join(dict.fromkeys(changed))}"] if changed else [])


def main() -> int:
    """Checks the page, and runs its commands."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help="to run; default: those that the page names")
    parser.add_argument("--run", action="store_true", help="run the commands, too")
    options = parser.parse_args()
    page = parts(PAGE.read_text(encoding="utf-8"))
    wrong = faults(page)
    named = list(dict.fromkeys(command for part in page for command in part.commands))
    if options.run:
        wrong += run_all(options.commands or named)
    print(*wrong, sep="\n") if wrong else print(f"{len(page)} parts, {len(named)} commands: nothing is wrong")
    return int(bool(wrong))


if __name__ == "__main__":
    start(__spec__)
