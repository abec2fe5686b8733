"""What the commands print: results on standard output, everything else on standard error."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import textwrap
import traceback
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from ov_hsdag.cli.command_lines import command_line, options
from ov_hsdag.utils.errors import one_line
from ov_hsdag.utils.plain import plain
from ov_hsdag.utils.progress import Tell, Work, lines

debug = False
"""Whether --debug was given: errors come with their traceback, and OpenVINO's own chatter is not held back."""

quiet = False
"""Whether --quiet was given: no progress and no hints; results, warnings and errors alone."""

extension: list[str] | None = None
"""Values of --extension: libraries with operations of the model."""

verbose = False
"""Whether --verbose was given: each step is printed, with the time that it took."""


def fail(error: BaseException, status: int, hint: str = "") -> int:
    """Print one line about the error on standard error, with its traceback before it where --debug asks; the status."""
    if debug:
        traceback.print_exception(error)
        hint = ""
    # Usage errors of the command line have their message, option names included, in a method only.
    text = error.format_message().removesuffix(".") if hasattr(error, "format_message") else error
    # Some releases of typer and click both append what was meant.
    reason = re.sub(r"( Did you mean .*?\?)\1", r"\1", one_line(text))
    print(printable(f"error: {reason}{f' ({hint})' if hint else ''}"), file=sys.stderr)
    return status


def prepare_streams() -> None:
    """Make standard streams usable: those that are closed go nowhere, and no character is refused.

    A service or `2>&-` closes streams, and the next file that is opened would take the place of one. A console in
    cp1252 or ASCII lacks characters that names of models and nodes have: they are printed as escapes.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def broken_pipe() -> int:
    """Whoever read our standard output has gone (`… | head`): leave without a second error at interpreter exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def output_refused(error: Exception) -> bool:
    """Whether the error is that standard output's disk is full; if so, what is still to be written goes nowhere."""
    if not isinstance(error, OSError) or error.filename is not None or error.errno not in _FULL:
        return False
    try:
        os.write(sys.stdout.fileno(), b"\n")
    except OSError:
        return bool(broken_pipe())
    return False


# Control characters but the end of a line and tabs, and those that turn the direction of what follows.
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """A text without what would command a terminal, which names in files of others may have: shown as escapes."""
    return _COMMANDS.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


# Errors of a disk that takes no more.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def message(text: str) -> None:
    """One line for people, on standard error."""
    print(printable(text), file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """One line about what is not as it should be."""
    message(f"warning: {text}")


def one_line_warnings() -> None:
    """Print Python warnings as `warning: …`, without those of libraries about themselves."""

    def show(message: Warning | str, category: type[Warning], filename: str, *_: Any, **__: Any) -> None:
        if debug or not _OF_LIBRARY.search(filename):
            print(printable(f"warning: {message}"), file=sys.stderr)

    warnings.showwarning = show


_OF_LIBRARY = re.compile(r"(?:site|dist)-packages[/\\](?:torch|torch_geometric|tensorboard|tensorflow|absl|google)\b")


@contextmanager
def progress(text: str) -> Iterator[Tell]:
    """Show on standard error what the block ("reading model.xml") does while it runs. Yields what takes its steps.

    In a terminal with a spinner, and a bar where the share that is done is known, both of which vanish; without one,
    and in a notebook, by a line every ten seconds. --verbose adds a line for each step; --quiet shows nothing.
    """
    if quiet:
        yield Work(text)
        return
    ended = (lambda step, seconds: message(f"took {seconds:.2f} s: {step}")) if verbose else None
    stderr = Console(stderr=True)
    # What is printed cannot vanish again in a notebook, whose `!` gives a pseudo-terminal. rich takes FORCE_COLOR for a
    # terminal, which kernels of notebooks and some CI set.
    if not sys.stderr.isatty() or "JPY_PARENT_PID" in os.environ:
        with lines(text, message, ended) as work:
            yield work
        return
    work = Work(text, ended)
    with Live(get_renderable=lambda: _picture(work), console=stderr, transient=True, refresh_per_second=8):
        try:
            yield work
        finally:
            work.end()


_SPINNER = Spinner("dots")


def _picture(work: Work) -> RenderableType:
    """One line of a terminal: what the work does, cut where the line ends."""
    columns: list[RenderableType] = [_SPINNER]
    if work.done is not None:
        columns.append(ProgressBar(total=1.0, completed=work.done, width=_BAR))
    columns.append(Text(work.describe(), no_wrap=True, overflow="ellipsis"))
    line = Table.grid(padding=(0, 1))
    for _ in columns:
        line.add_column(no_wrap=True)
    line.add_row(*columns)
    return line


_BAR = 20  # columns of a bar


_PIPED = 10_000
"""Columns of a table that goes into a file or another program: no cell is that wide."""


class Show:
    """Prints what a command found: for people, or as JSON."""

    def __init__(self, descriptor: int | None = None) -> None:
        """`descriptor` takes JSON; None: standard output takes texts for people."""
        self._descriptor = descriptor

    def __call__(self, data: Mapping[str, Any], text: str = "", table: Table | None = None) -> None:
        """Print a command's result: `data` as JSON, or for people `text` and `table`."""
        self.json(data)
        self.text(text, table)

    def json(self, data: Mapping[str, Any]) -> None:
        """Print an object where JSON was asked for."""
        if self._descriptor is not None:
            with open(self._descriptor, "w", encoding="utf-8", newline="\n", closefd=False) as out:
                out.write(json.dumps(plain(data), ensure_ascii=False, allow_nan=False) + "\n")

    def text(self, text: str, table: Table | None = None) -> None:
        """Print a text and a table for people, the table's caption under it; that, a legend, not with --quiet."""
        if self._descriptor is not None:
            return
        # Where standard output is no terminal: of COLUMNS, or 80 for texts. Nothing is cut: words and cells go on in a
        # new line.
        # Names of nodes and messages of errors have square brackets, which are no markup.
        console = Console(highlight=False, markup=False)
        console.width = console.width or 80  # COLUMNS=0
        for line in text.splitlines():
            print(printable(line) if line.startswith(CODE) else wrapped(printable(line), console.width))
        if table is not None:
            caption, table.caption = table.caption, None
            if not (sys.stdout.isatty() or os.environ.get("COLUMNS")):
                console.width = _PIPED  # `grep` and `awk` want a row in a line
            console.print(table)
            if caption and not quiet:
                print(wrapped(printable(str(caption)), console.width, indent=""))

    def hint(self, what: str, text: str) -> None:
        """Print what people may want to do next ("run with: …"), a line to be copied; not as JSON, or with --quiet."""
        if self._descriptor is None and not quiet:
            print(printable(f"{what}: {text}"))

    def next(self, *words: object) -> None:
        """Print the command that usually comes next, as the last line of all; words: those after "ov-hsdag"."""
        given = {} if "--extension" in words else {"--extension": extension}
        self.hint("next", command_line(*words, *options(given)))


@contextmanager
def result(as_json: bool) -> Iterator[Show]:
    """Gives what prints a result. For JSON, descriptor 1 means standard error inside the block: C++ prints there."""
    if not as_json:
        yield Show()
        return
    sys.stdout.flush()
    real = os.dup(1)
    os.dup2(2, 1)
    try:
        yield Show(real)
    finally:
        sys.stdout.flush()
        os.dup2(real, 1)
        os.close(real)


def count(number: int, noun: str) -> str:
    """ "1 submodel", "2,000 submodels"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


CODE = "    "
"""What a line of a text begins with that is to be copied: it is not wrapped."""


def wrapped(line: str, width: int, indent: str = "    ") -> str:
    """A line in lines of so many columns, the next ones indented; names and paths stay whole."""
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


class _Table(Table):
    """A table whose texts cannot command a terminal."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        super().add_row(*(printable(cell) if isinstance(cell, str) else cell for cell in cells), **options)


def table(*columns: str, left: Collection[int] = (0,)) -> Table:
    """A table for `Show` without rows; `left` has the numbers of the columns of text, the others are of numbers."""
    made = _Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, name in enumerate(columns):
        justify: Literal["left", "right"] = "left" if number in left else "right"
        made.add_column(name, justify=justify, overflow="fold", vertical="top")
    return made


@contextmanager
def quiet_native_errors() -> Iterator[None]:
    """Hold back what C++ prints on standard error: frontends that OpenVINO tries in turn complain at length there."""
    if debug:
        yield
        return
    sys.stderr.flush()
    real, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)
    try:
        yield
    finally:
        os.dup2(real, 2)
        os.close(real)
