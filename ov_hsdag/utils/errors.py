"""Errors and warnings for users, the exit status of each, and one-line descriptions of any error."""

from __future__ import annotations

import re
from collections.abc import Sequence

_LONGEST = 400  # characters of a message above which its first lines are left out

# Lines of OpenVINO's messages with a position in its sources.
_POSITION = re.compile(r"Exception from \S+:\d+:$|Check '.*' failed at \S+:$")


class UserError(Exception):
    """Bad input: says in one line what is wrong and what to do. Commands end with exit status 2."""


class RunError(Exception):
    """A device or OpenVINO failed on good input; the message has one line. Commands end with exit status 1."""


class DoesNotFitError(RunError):
    """No placement is within the devices' memory limits."""


class PlacementNotFollowedWarning(RuntimeWarning):
    """A model was compiled, but not as its placement says: on other devices, for a part of its nodes or not at all.

    ``Core.compile_model`` warns after the model is compiled, so a filter that turns the warning into an error does not
    change how the model is compiled. ``ov-hsdag verify`` ends with exit status 1 when it gets this warning.
    """


INTERRUPTED = 130
"""Exit status of a command that was interrupted (Ctrl-C), as in shells."""


def interrupted(error: BaseException | None) -> bool:
    """Whether an error comes from Ctrl-C, which arrives as an ImportError during an import of native code."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def shortened(text: str, most: int = 200) -> str:
    """Cuts the end of a long text, for messages that quote it."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def quoted(value: object) -> str:
    """Quotes a value of a file in a message; nested values are only named, as those of hostile files may be huge."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    return shortened(repr(value))


def listed(names: Sequence[str], most: int = 3) -> str:
    """Lists names for a message: "'a', 'b', 'c' and 4 more"."""
    shown = ", ".join(map(quoted, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def one_line(error: BaseException | str) -> str:
    """Formats an error, or its text, in one line; the name of the error's class if it has no text.

    OpenVINO puts positions in its sources, a line each, and long descriptions of nodes before the reason. Positions are
    removed, and if the text is still too long, only its last lines are kept, which have the reason. Our own errors have
    one line already and stay as they are.
    """
    lines = [" ".join(line.split()) for line in str(error).splitlines()]
    kept = [line for line in lines if line and not _POSITION.match(line)]
    while len(kept) > 1 and sum(map(len, kept)) + len(kept) > _LONGEST:
        kept.pop(0)
    return " ".join(kept) or (error if isinstance(error, str) else type(error).__name__)
