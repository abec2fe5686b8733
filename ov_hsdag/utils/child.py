"""Runs child processes of this Python that take commands as messages, within a time limit, and are never left behind.

The parent has a `Child`, and the function that runs in the process calls `serve`. Messages are JSON objects in frames,
over the two pipes that are the child's standard input and output. The child moves these descriptors away at once,
because OpenVINO's plugins print to them. A child ends when the pipe from its parent ends, however the parent ended. The
script that the parent runs is not imported.
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

# Seconds that a killed process may take to end.
_GRACE = 5.0

# A frame begins with a mark and the length of its message in bytes. A larger message is a mistake.
_MAGIC = b"hsdg"
_HEADER = struct.Struct("<4sI")
_LARGEST_FRAME = 1 << 24


# Number of SIGKILL, which Python's `signal` does not have on every system.
_SIGKILL = 9


class ChildError(RunError):
    """A child failed at its task; the message has the reason in one line.

    Attributes:
        failure: the reason with its kind.
    """

    usual_kind = FailureKind.REFUSED  # kind of the failure where none is given

    def __init__(self, why: str, kind: FailureKind | None = None) -> None:
        """Makes an error.

        Args:
            why: the reason in one line.
            kind: kind of the failure; by default `usual_kind`.
        """
        super().__init__(why)
        self.failure = Failure(why, kind or self.usual_kind)


class ChildTimeout(ChildError):
    """A child did not answer in time."""

    usual_kind = FailureKind.NO_ANSWER


def write_frame(stream: IO[bytes], message: Mapping[str, Any]) -> None:
    """Writes a message to a pipe in a frame: header, then JSON.

    Raises:
        OSError: the other end of the pipe is closed.
    """
    data = json.dumps(message).encode()
    stream.write(_HEADER.pack(_MAGIC, len(data)) + data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> dict[str, Any] | None:
    """Reads the next message; None at the end of the stream.

    Raises:
        ValueError: the data is not a message.
    """
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
    """A child process, as its parent sees it.

    Commands are sent and answers are received in order. A subclass has a method for each command, which calls `_send`,
    `_receive` or `_ask`.
    """

    error: type[ChildError] = ChildError
    """Class of the error that is raised when the process fails."""

    timeout: type[ChildError] = ChildTimeout
    """Class of the error that is raised when it does not answer in time."""

    called = "its process"
    """Its name in messages."""

    def __init__(self, entry: str, arguments: Sequence[str], log: Path) -> None:
        """Starts a process that calls a function with these arguments.

        Args:
            entry: the function, as "module:function".
            arguments: its arguments, which are texts.
            log: file for the output of the process.

        Raises:
            OSError: no process can be started.
        """
        self.alive = True  # whether it takes commands; False is final
        self._log = open(log, "w+b")  # noqa: SIM115 closed by `end`
        # The child gets the parent's search path, because the package may be found only there. The script that the
        # parent runs is not imported.
        module, _, function = entry.partition(":")
        path_begin = 1 + len(arguments)
        code = f"import sys; sys.path[:] = sys.argv[{path_begin}:]; from {module} import {function} as main"
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"{code}; main(*sys.argv[1:{path_begin}])", *arguments, *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                # Models are compiled exactly as commanded, so the hook must not apply placements.
                env={**os.environ, "OV_HSDAG_DISABLE": "1"},
                # Ctrl-C must only reach the parent, which ends its children.
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
        """Ends the process, whatever it does. Further calls have no effect."""
        self.alive = False
        self._process.kill()
        # A process that hangs in a device's driver ends only when the driver returns.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE)
        for stream in (self._process.stdin, self._log):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _send(self, command: Mapping[str, Any], doing: str) -> None:
        """Sends a command.

        Args:
            command: the message.
            doing: the activity in a word, for messages.

        Raises:
            ChildError: of class `error`, if the process has ended.
        """
        if not self.alive or self._process.stdin is None:
            raise self.error(f"{self.called} has ended")
        try:
            write_frame(self._process.stdin, command)
        except OSError:
            raise self._exit_error(doing) from None

    def _ask(self, command: Mapping[str, Any], limit: float, doing: str) -> dict[str, Any]:
        """Sends a command and returns the answer; arguments and errors are those of `_send` and `_receive`."""
        self._send(command, doing)
        return self._receive(limit, doing)

    def _receive(self, limit: float | None, doing: str) -> dict[str, Any]:
        """Returns the next answer.

        Args:
            limit: seconds after which the process is ended; None for no limit.
            doing: the activity in a word, for messages.

        Raises:
            ChildError: of class `error`, if there is no answer, or the answer is an error; of class `timeout`, if it is
                late.
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
        """Makes the error for a process that has closed its pipe, and ends it if it still runs.

        The message has its exit status or signal and the last line of its output; `doing` is the activity in a word.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE)
        status = self._process.returncode
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        self.end()
        if status is None:
            ending = "closed its pipe"
        elif status < 0:
            ending = f"was ended by {_signal_name(-status)}"
        else:
            ending = f"ended with status {status}"
        why = f"{self.called} {ending} while {doing}" + (f": {lines[-1][:200]}" if lines else "")
        return self.error(why, FailureKind.KILLED if status == -_SIGKILL else FailureKind.CRASHED)


def _collect(stream: IO[bytes], answers: queue.SimpleQueue[dict[str, Any] | Exception | None]) -> None:
    """Puts the answers of a child into a queue until its pipe ends; runs in a thread of the parent.

    Args:
        stream: the child's standard output.
        answers: the queue. Its last entry is None at the end of the pipe, or the error of an unreadable answer.
    """
    with stream:
        try:
            while (message := read_frame(stream)) is not None:
                answers.put(message)
            answers.put(None)
        except (ValueError, OSError) as error:
            answers.put(error)


def _signal_name(number: int) -> str:
    """Returns the name of a signal, such as "SIGKILL"."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def serve(leave: Callable[[], None]) -> tuple[queue.SimpleQueue[dict[str, Any]], IO[bytes]]:
    """Connects a child with its parent; the child's function calls it first.

    A thread receives the commands, and ends the process when the parent has gone.

    Args:
        leave: called right before this process ends because the parent has gone.

    Returns:
        (commands, stream): the queue of incoming commands, and the stream for answers.
    """
    null = os.open(os.devnull, os.O_RDONLY)
    stdin, stdout = os.fdopen(_replace_descriptor(0, null), "rb"), os.fdopen(_replace_descriptor(1, 2), "wb")
    with contextlib.suppress(OSError):  # if memory runs out, Linux shall end this process and not the user's
        Path("/proc/self/oom_score_adj").write_text("1000")
    commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(stdin, leave, commands), daemon=True).start()
    return commands, stdout


def _listen(stream: IO[bytes], leave: Callable[[], None], commands: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Puts incoming commands into a queue, and ends the process when its parent has gone; runs in a thread.

    Args:
        stream: the pipe from the parent.
        leave: called before the process ends.
        commands: the queue.
    """
    try:
        while (command := read_frame(stream)) is not None:
            commands.put(command)
    finally:
        leave()
        os._exit(1)


def _replace_descriptor(descriptor: int, to: int) -> int:
    """Returns a private copy of a descriptor, and makes the descriptor itself refer to `to`."""
    private = os.dup(descriptor)
    os.dup2(to, descriptor)
    return private
