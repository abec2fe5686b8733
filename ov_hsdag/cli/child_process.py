"""Runs the rest of a command in a child process, so that a crash of OpenVINO is reported like any other error."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from typing import NoReturn

import typer

from ov_hsdag.utils.errors import RunError

_PR_SET_PDEATHSIG = 1  # the constant of linux/prctl.h; Python has no name for it

_PATIENCE = 10.0  # seconds for an interrupted child to remove half-written files before it is killed

_forked = False  # whether this process is the child of `continue_in_child`


def continue_in_child(doing: str) -> None:
    """Forks; returns in the child only. Call it before OpenVINO is imported, as that starts threads.

    On Linux the child dies with its parent, however the parent ends. The function returns without forking where there
    is no os.fork (Windows), and where OpenVINO is imported already: it would hang in a child without its threads, and
    the process is then some program's that called the command.

    Args:
        doing: the work, for the message: "placing model.xml on HETERO:GPU,CPU".

    Raises:
        typer.Exit: in the parent, with the child's exit status.
        RunError: in the parent, where a signal ended the child.
    """
    if not hasattr(os, "fork") or "openvino" in sys.modules:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
        global _forked
        _forked = True
        return
    status = _wait(child)
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        why = "perhaps for lack of memory" if name == "SIGKILL" else "a fault of OpenVINO or of a device's plugin"
        raise RunError(f"{doing} ended with {name}, {why}")
    raise typer.Exit(os.WEXITSTATUS(status))


def leave(status: int) -> NoReturn:
    """Ends the process with an exit status.

    The child of `continue_in_child` skips the destructors of OpenVINO: its results are written, and a crash in a
    destructor would turn success into failure.
    """
    if _forked:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _wait(child: int) -> int:
    """Waits for the child and returns its wait status.

    A terminal interrupts both processes; KeyboardInterrupt is raised again after the child has ended.
    """
    try:
        return os.waitpid(child, 0)[1]
    except KeyboardInterrupt:
        end = time.monotonic() + _PATIENCE
        while not os.waitpid(child, os.WNOHANG)[0]:
            if time.monotonic() > end:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.05)
        raise
