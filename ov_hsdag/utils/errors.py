"""Errors that a user can meet, with the exit status that they end a command with, and how any error is told."""

from __future__ import annotations

import re

_LONGEST = 400
_POSITION = re.compile(r"Exception from \S+:\d+:$|Check '.*' failed at \S+:$")


class UserError(Exception):
    """Bad input: what is wrong and what to do, in one line. Commands end with exit status 2."""


class RunError(Exception):
    """A device or OpenVINO failed on good input, in one line. Commands end with exit status 1."""


def one_line(error: BaseException | str) -> str:
    """What an error says, in one line.

    OpenVINO puts positions in its sources before the reason, a line each, and long descriptions of nodes: positions
    go, and of a text that stays too long the last lines are kept, in which the reason is. Our own errors are one line
    already and stay whole.
    """
    lines = [" ".join(line.split()) for line in str(error).splitlines()]
    told = [line for line in lines if line and not _POSITION.match(line)]
    while len(told) > 1 and sum(map(len, told)) + len(told) > _LONGEST:
        told.pop(0)
    return " ".join(told) or (error if isinstance(error, str) else type(error).__name__)
