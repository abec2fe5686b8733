"""What the commands print: results on standard output, everything else on standard error."""

from __future__ import annotations

import json
import math
import os
import sys
import textwrap
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol, TextIO

from rich.console import Console
from rich.table import Table

from ov_hsdag.utils.errors import one_line
from ov_hsdag.utils.progress import lines

if TYPE_CHECKING:
    from rich.progress import Progress

debug = False
"""Whether --debug was given: errors come with their traceback, and OpenVINO's own chatter is not held back."""


def fail(error: BaseException, status: int, hint: str = "") -> int:
    """Print one line about the error on standard error, with its traceback before it where --debug asks; the status."""
    if debug:
        traceback.print_exception(error)
        hint = ""
    print(f"error: {_told(error)}{f' ({hint})' if hint else ''}", file=sys.stderr)
    return status


def _told(error: BaseException) -> str:
    """The error's message in one line."""
    # Usage errors of the command line tell their message, option names included, by a method only.
    return one_line(error.format_message() if hasattr(error, "format_message") else error)


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


def message(text: str) -> None:
    """One line for people, on standard error."""
    print(text, file=sys.stderr, flush=True)


def one_line_warnings() -> None:
    """Print Python warnings as `warning: …` instead of with the source line that raised them."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        del category, filename, lineno, line
        print(f"warning: {message}", file=file or sys.stderr)

    warnings.showwarning = show


@contextmanager
def progress(text: str) -> Iterator[Callable[[str], None]]:
    """A spinner on standard error while the block runs, which can tell more; lines now and then without a terminal."""
    stderr = Console(stderr=True)
    if not stderr.is_terminal:
        with lines(text, message) as tell:
            yield tell
        return
    with stderr.status(text) as status:
        yield lambda more: status.update(f"{text}: {more}")


def bar() -> Progress:
    """A progress bar on standard error, for use in a `with` block; disabled where that is no terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    stderr = Console(stderr=True)
    return Progress(*columns, console=stderr, disable=not stderr.is_terminal)


class Show(Protocol):
    def __call__(self, data: Mapping[str, Any], text: str = "", table: Table | None = None) -> None:
        """Print a command's result: `data` as JSON, or `text` and `table` (its caption under it) for people."""


@contextmanager
def result(as_json: bool) -> Iterator[Show]:
    """Gives the function that prints a command's result.

    For JSON, descriptor 1 means standard error inside the block, so that nothing that OpenVINO or a plugin prints from
    C++ gets into the object's way.
    """
    if not as_json:
        yield _for_people
        return
    sys.stdout.flush()
    real = os.dup(1)
    os.dup2(2, 1)

    def show(data: Mapping[str, Any], text: str = "", table: Table | None = None) -> None:
        _write(real, json.dumps(_plain(data), ensure_ascii=False, allow_nan=False) + "\n")

    try:
        yield show
    finally:
        sys.stdout.flush()
        os.dup2(real, 1)
        os.close(real)


def _for_people(data: Mapping[str, Any], text: str = "", table: Table | None = None) -> None:
    # Where standard output is no terminal: of COLUMNS, or 80. Nothing is cut: words and cells go on in a new line.
    # Names of nodes and messages of errors have square brackets, which are no markup.
    console = Console(highlight=False, markup=False)
    for line in text.splitlines():
        print(wrapped(line, console.width))
    if table is not None:
        caption, table.caption = table.caption, None
        console.print(table)
        if caption:
            print(wrapped(str(caption), console.width, indent=""))


def wrapped(line: str, width: int, indent: str = "    ") -> str:
    """A line in lines of so many columns, the next ones indented; names and paths stay whole."""
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def table(*columns: str, left: Collection[int] = (0,)) -> Table:
    """A table for `Show`, without rows. Cells go on in a new line where there are too few columns; nothing is cut.

    Args:
        columns: their headers.
        left: numbers of the columns of text; the others hold numbers, which stand on the right.
    """
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
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


def _write(descriptor: int, text: str) -> None:
    data = text.encode()
    while data:
        data = data[os.write(descriptor, data) :]


def _plain(value: Any) -> Any:
    """The value in JSON's own types: NumPy's as Python's, infinities (an infeasible baseline's time) as null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
