"""Errors and warnings that a user can meet, the exit status of each, and the one line that describes any error."""

from __future__ import annotations

import re
from collections.abc import Sequence

_LONGEST = 400
_POSITION = re.compile(r"Exception from \S+:\d+:$|Check '.*' failed at \S+:$")


class UserError(Exception):
    """Bad input: what is wrong and what to do, in one line. Commands end with exit status 2."""


class RunError(Exception):
    """A device or OpenVINO failed on good input, in one line. Commands end with exit status 1."""


class DoesNotFitError(RunError):
    """No placement keeps within the devices' memory."""


class PlacementNotFollowedWarning(RuntimeWarning):
    """A model was compiled, but not as its placement says: on other devices, for a part of its nodes or not at all.

    ``Core.compile_model`` warns once the model is compiled, so a filter that makes it an error costs the placement
    nothing. ``ov-hsdag verify`` ends with exit status 1 where it meets one.
    """


INTERRUPTED = 130
"""Exit status of a command that was interrupted (Ctrl-C), as shells have it."""


def interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C is what an error comes from: during an import of native code it arrives as an ImportError."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def shortened(text: str, most: int = 200) -> str:
    """A text of a file as a message quotes it: the end of a long one is left out."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def quoted(value: object) -> str:
    """A value of a file as a message quotes it: the nested ones of hostile files are long, or too deep to be shown."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    return shortened(repr(value))


def listed(names: Sequence[str], most: int = 3) -> str:
    """Some names as a message quotes them: "'a', 'b', 'c' and 4 more"."""
    shown = ", ".join(map(quoted, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def one_line(error: BaseException | str) -> str:
    """The message of an error (or its text) in one line; the name of the error's class where it has none.

    OpenVINO puts positions in its sources before the reason, a line each, and long descriptions of nodes: positions are
    removed, and of a text that stays too long the last lines are kept, in which the reason is. Our own errors are one
    line already and stay whole.
    """
    lines = [" ".join(line.split()) for line in str(error).splitlines()]
    kept = [line for line in lines if line and not _POSITION.match(line)]
    while len(kept) > 1 and sum(map(len, kept)) + len(kept) > _LONGEST:
        kept.pop(0)
    return " ".join(kept) or (error if isinstance(error, str) else type(error).__name__)
