"""A command goes on in a child process, so that a crash of OpenVINO ends as errors do: a line and exit status 1."""

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

_PR_SET_PDEATHSIG = 1  # linux/prctl.h

_PATIENCE = 10.0  # seconds that an interrupted child may take, which removes what it was writing

_forked = False


def continue_in_child(doing: str) -> None:
    """Return in a child process alone; to be called before OpenVINO is imported, which starts threads.

    The child ends with its parent, whatever ends that. Without os.fork (Windows) this process goes on. So it does where
    OpenVINO is imported already: without its threads it hangs in a child, and the process is not the command's own. In
    the parent it raises typer.Exit with the child's status, or RunError where a signal ended it.
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
    """Ends the process. A child does without taking OpenVINO apart: what it found stands, whatever becomes of that."""
    if _forked:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _wait(child: int) -> int:
    """Wait status of the child. Raises KeyboardInterrupt, after the child has gone: a terminal interrupts both."""
    try:
        return os.waitpid(child, 0)[1]
    except KeyboardInterrupt:
        end = time.monotonic() + _PATIENCE
        while not os.waitpid(child, os.WNOHANG)[0]:
            if time.monotonic() > end:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.05)
        raise
