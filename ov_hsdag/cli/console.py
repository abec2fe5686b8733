"""Prints for the commands: results on standard output, everything else on standard error."""

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
    """Prints one line about an error on standard error; with --debug its traceback first.

    Args:
        error: the error.
        status: exit status of the program.
        hint: advice at the end of the line, in brackets; "" for none.

    Returns:
        `status`.
    """
    if debug:
        traceback.print_exception(error)
        hint = ""
    # Only a method of usage errors returns the message with the names of options.
    text = error.format_message().removesuffix(".") if hasattr(error, "format_message") else error
    # With some releases typer and click both append "Did you mean …?".
    reason = re.sub(r"( Did you mean .*?\?)\1", r"\1", one_line(text))
    print(printable(f"error: {reason}{f' ({hint})' if hint else ''}"), file=sys.stderr)
    return status


def prepare_streams() -> None:
    """Makes the standard streams usable: closed ones are opened on os.devnull, and no character raises an error.

    Services and `2>&-` close streams, and the next file that is opened would get the descriptor of one. A console in
    cp1252 or ASCII lacks characters that names of models and nodes have; they are printed as escapes.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, which is this one
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def broken_pipe() -> int:
    """Redirects standard output to os.devnull, after its reader has gone (`… | head`) or its disk is full.

    Flushing it at exit then raises no second error.

    Returns:
        The exit status of the program, 1.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def output_refused(error: Exception) -> bool:
    """Whether an error means that standard output cannot be written; if so, further output goes to os.devnull.

    A write to another file may fail with the same error number. So a newline is written to standard output as a trial.
    """
    if not isinstance(error, OSError) or error.filename is not None or error.errno not in _DISK_ERRORS:
        return False
    try:
        os.write(sys.stdout.fileno(), b"\n")
    except OSError:
        return bool(broken_pipe())
    return False


# Control characters except newline and tab, and those that change the direction of the text after them.
_CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Replaces control characters by escapes: names in a model's file could otherwise command the terminal."""
    return _CONTROL_CHARACTERS.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


# Errors of writing to a disk that is full, over quota or failing.
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def message(text: str) -> None:
    """Prints one line for people on standard error."""
    print(printable(text), file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """Prints a warning on standard error."""
    message(f"warning: {text}")


def one_line_warnings() -> None:
    """Makes Python print warnings as `warning: …`, and leave out those of the learning libraries about themselves."""

    def show(message: Warning | str, category: type[Warning], filename: str, *_: Any, **__: Any) -> None:
        """Takes the place of `warnings.showwarning`."""
        if debug or not _LIBRARY_FILES.search(filename):
            print(printable(f"warning: {message}"), file=sys.stderr)

    warnings.showwarning = show


_LIBRARY_FILES = re.compile(
    r"(?:site|dist)-packages[/\\](?:torch|torch_geometric|tensorboard|tensorflow|absl|google)\b"
)


@contextmanager
def progress(text: str) -> Iterator[Tell]:
    """Shows on standard error that the block is running. Yields a function that is told the block's steps.

    A terminal shows a spinner, and a bar where the share that is done is known; both vanish at the end. Elsewhere, and
    in a notebook, a line appears every ten seconds. --verbose adds a line for each step; --quiet shows nothing.

    text: the work: "reading model.xml".
    """
    if quiet:
        yield Work(text)
        return
    ended = (lambda step, seconds: message(f"took {seconds:.2f} s: {step}")) if verbose else None
    stderr = Console(stderr=True)
    # The `!` of a notebook gives a pseudo-terminal in which nothing can be erased. rich takes the variable FORCE_COLOR,
    # which notebooks and some CI set, for a terminal.
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
    """Draws the spinner, the bar and the text of the work in one line, cut to the terminal's width.

    There is no bar while the share of the work that is done is not known.
    """
    columns: list[RenderableType] = [_SPINNER]
    if work.done is not None:
        columns.append(ProgressBar(total=1.0, completed=work.done, width=_BAR))
    columns.append(Text(work.describe(), no_wrap=True, overflow="ellipsis"))
    line = Table.grid(padding=(0, 1))
    for _ in columns:
        line.add_column(no_wrap=True)
    line.add_row(*columns)
    return line


_BAR = 20  # columns of a progress bar: enough to see it move, and room for the text in 80 columns


_PIPED = 10_000
"""Width in columns of a table that goes to a file or another program; wider than any row, so that no cell wraps."""


class Show:
    """Prints the result of a command, for people or as JSON; `result` makes one."""

    def __init__(self, descriptor: int | None = None) -> None:
        """descriptor: the file descriptor for JSON; None prints texts for people on standard output instead."""
        self._descriptor = descriptor

    def __call__(self, data: Mapping[str, Any], text: str = "", table: Table | None = None) -> None:
        """Prints a result: `data` where JSON was asked for, else `text` and `table`."""
        self.json(data)
        self.text(text, table)

    def json(self, data: Mapping[str, Any]) -> None:
        """Prints an object where JSON was asked for; nothing otherwise."""
        if self._descriptor is not None:
            with open(self._descriptor, "w", encoding="utf-8", newline="\n", closefd=False) as out:
                out.write(json.dumps(plain(data), ensure_ascii=False, allow_nan=False) + "\n")

    def text(self, text: str, table: Table | None = None) -> None:
        """Prints a text, and a table with its caption below, unless JSON was asked for; --quiet omits the caption."""
        if self._descriptor is not None:
            return
        # Without a terminal the width is that of COLUMNS, or 80 for texts. Nothing is cut: long lines and cells wrap.
        # markup=False, as names of nodes and messages of errors may have square brackets.
        console = Console(highlight=False, markup=False)
        console.width = console.width or 80  # width is 0 with COLUMNS=0
        for line in text.splitlines():
            print(printable(line) if line.startswith(CODE) else wrapped(printable(line), console.width))
        if table is not None:
            caption, table.caption = table.caption, None
            if not (sys.stdout.isatty() or os.environ.get("COLUMNS")):
                console.width = _PIPED  # one row in one line, for `grep` and `awk`
            console.print(table)
            if caption and not quiet:
                print(wrapped(printable(str(caption)), console.width, indent=""))

    def hint(self, what: str, text: str) -> None:
        """Prints a line to be copied ("run with: …"); not where JSON was asked for, or with --quiet."""
        if self._descriptor is None and not quiet:
            print(printable(f"{what}: {text}"))

    def next(self, *words: object) -> None:
        """Prints the command that usually comes next, as the last line. words: those after "ov-hsdag"."""
        given = {} if "--extension" in words else {"--extension": extension}
        self.hint("next", command_line(*words, *options(given)))


@contextmanager
def result(as_json: bool) -> Iterator[Show]:
    """Yields the printer of a command's result. as_json: whether it prints JSON, or texts for people.

    For JSON, descriptor 1 is standard error inside the block, so that nothing that C++ prints mixes with the object.
    """
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
    """Formats a number with its noun in the singular or plural: "1 submodel", "2,000 submodels"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


CODE = "    "
"""Indentation that marks a line of code to be copied, which is not wrapped."""


def wrapped(line: str, width: int, indent: str = "    ") -> str:
    """Wraps a line; names and paths stay whole, even where they exceed the width.

    Args:
        line: the text, without line breaks.
        width: columns.
        indent: what all lines but the first begin with.

    Returns:
        The text with line breaks.
    """
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


class _Table(Table):
    """A table that replaces control characters in its cells by escapes, see `printable`."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        super().add_row(*(printable(cell) if isinstance(cell, str) else cell for cell in cells), **options)


def table(*columns: str, left: Collection[int] = (0,)) -> Table:
    """Makes an empty table for `Show`.

    Args:
        columns: titles of the columns.
        left: indices of the left-aligned columns (text); all others are right-aligned.
    """
    made = _Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, name in enumerate(columns):
        justify: Literal["left", "right"] = "left" if number in left else "right"
        made.add_column(name, justify=justify, overflow="fold", vertical="top")
    return made


@contextmanager
def quiet_native_errors() -> Iterator[None]:
    """Discards what C++ prints on standard error inside the block, except with --debug.

    OpenVINO tries its frontends in turn, and those that do not read the file complain at length.
    """
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
