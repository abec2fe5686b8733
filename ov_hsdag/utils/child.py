"""Processes of this Python that work for this one: asked by messages, within a time limit, and never left behind.

Messages are JSON objects, framed, over the two pipes that are the child's standard input and output. It gives those
descriptors away at once, as OpenVINO's plugins print to them. A child ends with the pipe from its parent, however the
parent ended. The script that the parent runs is not imported.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import queue
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from ov_hsdag.utils.errors import RunError
from ov_hsdag.utils.failures import Failure, FailureKind
from ov_hsdag.utils.reading import parse_json

# What a process that was killed may take to be gone, seconds.
_GRACE = 5.0

_MAGIC = b"hsdg"
_HEADER = struct.Struct("<4sI")
_LARGEST_FRAME = 1 << 24


# Of SIGKILL, which Python's `signal` does not have on every system.
_SIGKILL = 9


class ChildError(RunError):
    """A child could not do what it was asked for: why, in one line."""

    usual_kind = FailureKind.REFUSED

    def __init__(self, why: str, kind: FailureKind | None = None) -> None:
        """kind: what happened; `usual_kind` by default."""
        super().__init__(why)
        self.failure = Failure(why, kind or self.usual_kind)


class ChildTimeout(ChildError):
    """A child did not do it in time."""

    usual_kind = FailureKind.NO_ANSWER


def write_frame(stream: IO[bytes], message: Mapping[str, Any]) -> None:
    """Sends a message. Raises OSError where nobody reads any more."""
    data = json.dumps(message).encode()
    stream.write(_HEADER.pack(_MAGIC, len(data)) + data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> dict[str, Any] | None:
    """The next message, None at the end of the stream. Raises ValueError for what is no message."""
    header = stream.read(_HEADER.size)
    if not header:
        return None
    magic, length = _HEADER.unpack(header.ljust(_HEADER.size, b"\0"))
    if magic != _MAGIC or length > _LARGEST_FRAME:
        raise ValueError("no frame of ours")
    message = parse_json(stream.read(length).decode())
    if not isinstance(message, dict):
        raise ValueError("no message")
    return message


class Child:
    """A process, as its parent sees it."""

    error: type[ChildError] = ChildError
    """What is raised where it fails."""

    timeout: type[ChildError] = ChildTimeout
    """What is raised where it does not answer in time."""

    called = "its process"
    """What messages call it."""

    def __init__(self, entry: str, arguments: Sequence[str], log: Path) -> None:
        """Starts the process, which calls `entry` ("module:function") with these arguments.

        log: file for what it prints. Raises OSError where no process can be started.
        """
        self.alive = True  # it can be asked; once it cannot, that stays so
        self._log = open(log, "w+b")  # noqa: SIM115 closed by `end`
        # The parent's own search path: the package may be found there only, and the script that runs is not imported.
        module, _, function = entry.partition(":")
        rest = 1 + len(arguments)
        code = f"import sys; sys.path[:] = sys.argv[{rest}:]; from {module} import {function} as main"
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"{code}; main(*sys.argv[1:{rest}])", *arguments, *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                # What is compiled is exactly what is asked for: no placement is followed besides.
                env={**os.environ, "OV_HSDAG_DISABLE": "1"},
                # Ctrl-C is for the parent, who ends its children.
                start_new_session=True,
            )
        except OSError:
            self._log.close()
            raise
        self._answers: queue.SimpleQueue[dict[str, Any] | Exception | None] = queue.SimpleQueue()
        try:
            threading.Thread(target=_collect, args=(self._process.stdout, self._answers), daemon=True).start()
        except RuntimeError as error:  # the system gives no more threads
            self.end()
            if self._process.stdout is not None:
                self._process.stdout.close()
            raise OSError(errno.EAGAIN, str(error)) from error

    def end(self) -> None:
        """Ends the process, whatever it does. Nothing happens the second time."""
        self.alive = False
        self._process.kill()
        # A process that hangs in a device's driver is gone only when the driver lets it go.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE)
        for stream in (self._process.stdin, self._log):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _send(self, command: Mapping[str, Any], doing: str) -> None:
        """Sends a command. Raises `error` where the process has ended; doing: what it is asked for, in a word."""
        if not self.alive or self._process.stdin is None:
            raise self.error(f"{self.called} has ended")
        try:
            write_frame(self._process.stdin, command)
        except OSError:
            raise self._exit_error(doing) from None

    def _ask(self, command: Mapping[str, Any], limit: float, doing: str) -> dict[str, Any]:
        """The answer to a command. Raises as `_receive`."""
        self._send(command, doing)
        return self._receive(limit, doing)

    def _receive(self, limit: float | None, doing: str) -> dict[str, Any]:
        """The next answer. Raises `error` where there is none, or one that says why not.

        limit: seconds, after which it is ended and `timeout` raised; None: it may take as long as it wants.
        """
        try:
            answer = self._answers.get(timeout=None if limit is None else max(limit, 0.0))
        except queue.Empty:
            self.end()
            raise self.timeout(f"no answer within {limit:.0f} s of {doing}") from None
        if answer is None:
            raise self._exit_error(doing)
        if isinstance(answer, Exception):
            self.end()
            raise self.error(f"{self.called} answered with garbage while {doing}")
        if "error" in answer:
            raise self.error(str(answer["error"]))
        return answer

    def _exit_error(self, doing: str) -> ChildError:
        """Says why the process has ended by itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE)
        status = self._process.returncode
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        self.end()
        if status is None:
            how = "closed its pipe"
        elif status < 0:
            how = f"was ended by {_signal_name(-status)}"
        else:
            how = f"ended with status {status}"
        why = f"{self.called} {how} while {doing}" + (f": {lines[-1][:200]}" if lines else "")
        return self.error(why, FailureKind.KILLED if status == -_SIGKILL else FailureKind.CRASHED)


def _collect(stream: IO[bytes], answers: queue.SimpleQueue[dict[str, Any] | Exception | None]) -> None:
    """Hands a child's answers on, then None for the end of its pipe or the error that its answers are."""
    with stream:
        try:
            while (message := read_frame(stream)) is not None:
                answers.put(message)
            answers.put(None)
        except (ValueError, OSError) as error:
            answers.put(error)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def serve(leave: Callable[[], None]) -> tuple[queue.SimpleQueue[dict[str, Any]], IO[bytes]]:
    """In a child: the commands that come, and where answers are written.

    leave: called where the parent has gone, right before this process ends.
    """
    null = os.open(os.devnull, os.O_RDONLY)
    stdin, stdout = os.fdopen(_give_away(0, null), "rb"), os.fdopen(_give_away(1, 2), "wb")
    with contextlib.suppress(OSError):  # where memory runs out, Linux is to end this process before the user's
        Path("/proc/self/oom_score_adj").write_text("1000")
    commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(stdin, leave, commands), daemon=True).start()
    return commands, stdout


def _listen(stream: IO[bytes], leave: Callable[[], None], commands: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Hands commands on. Ends the process when its parent has gone."""
    try:
        while (command := read_frame(stream)) is not None:
            commands.put(command)
    finally:
        leave()
        os._exit(1)


def _give_away(descriptor: int, to: int) -> int:
    """A private copy of a descriptor, which itself means something else from now on."""
    private = os.dup(descriptor)
    os.dup2(to, descriptor)
    return private
