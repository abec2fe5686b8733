"""Starts commands and services in new processes, and returns what they print."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

SAMPLES = Path(__file__).resolve().parents[1] / "samples" / "python"


def ended(
    *command: object,
    status: int | None = 0,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 600,
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, and asserts its exit status.

    Args:
        command: its words.
        status: the exit status that it must have; None for any.
        cwd: its folder; by default this process's.
        env: its environment; by default this process's.
        timeout: seconds after which it is killed.

    Returns:
        The ended command: its exit status, standard output and standard error.
    """
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=timeout)
    assert status in (None, done.returncode), f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done


def begun(*command: object, env: Mapping[str, str]) -> subprocess.Popen[str]:
    """Starts a command and returns its process, without waiting. Its output goes to pipes, for `communicate`."""
    pipe = subprocess.PIPE
    return subprocess.Popen([str(word) for word in command], env=env, stdout=pipe, stderr=pipe, text=True)


@contextlib.contextmanager
def serving(
    log: Path,
    env: Mapping[str, str],
    words: Sequence[str] = ("--app-dir", str(SAMPLES), "service:app"),
    cwd: Path | None = None,
) -> Iterator[tuple[int, int]]:
    """Runs the web service samples/python/service.py during the block, and yields its port and its process number.

    Args:
        log: file for what it prints.
        env: its environment.
        words: arguments of uvicorn.
        cwd: its folder; by default this process's.
    """
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    hook = [] if env.get("OV_HSDAG_DISABLE") else ["-m", "ov_hsdag"]
    command = [sys.executable, *hook, "-m", "uvicorn", *words, "--port", str(port), "--log-level", "warning"]
    with log.open("w") as output, subprocess.Popen(command, env=env, cwd=cwd, stdout=output, stderr=output) as process:
        try:
            until = time.monotonic() + 120
            while process.poll() is None and time.monotonic() < until:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.2)
            else:
                raise RuntimeError(f"the service does not start: {log.read_text()[-500:]}")
            yield port, process.pid
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
