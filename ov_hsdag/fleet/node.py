"""Makes this machine a node of a Ray cluster for as long as `ov-hsdag worker` runs.

The node is a process `ray start` with the processes that it starts. All of them end with `ov-hsdag worker`, however it
ends.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from ov_hsdag.fleet.job_runner import FOLDER
from ov_hsdag.fleet.machines import RESOURCE
from ov_hsdag.utils.errors import RunError, UserError

# Bytes of Ray's shared memory. Only pieces of files pass through it, and models need the memory of the machine.
_OBJECTS = 256 << 20

_PREFIX = "ov-hsdag-worker-"
"""Prefix of the names of workers' folders."""

_GRACE = 15.0  # seconds for Ray to end the processes that it has started, before they are killed

_LOOK = 0.25  # seconds between checks of the process and of signals

# Runs `ray start`. When the pipe from its parent closes, it kills itself and all processes that it has started.
_PROGRAM = """
import os, runpy, signal, threading
pipe, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
os.dup2(nothing, 0)
threading.Thread(target=lambda: (os.read(pipe, 1), os.killpg(0, signal.SIGKILL)), daemon=True).start()
runpy.run_module("ray.scripts.scripts", run_name="__main__", alter_sys=True)
"""


def check_ray() -> None:
    """Raises UserError where Ray is not installed."""
    if find_spec("ray") is None:
        raise UserError(
            "this needs ray: install ov-hsdag with this extra, in its source folder with pip install '.[ray]'"
        )


def serve(address: str, labels: Mapping[str, str], cores: int) -> None:
    """Makes this machine a node of a Ray cluster; returns when the cluster has gone.

    Args:
        address: the head of the cluster, "HOST:6379".
        labels: labels of the node, from `machines.announcement`.
        cores: cores for tasks (`Cluster.map`) at the same time as jobs; they disturb measurements.

    Raises:
        UserError: Ray is not installed.
        RunError: the node could not join, or ended with an error.
        KeyboardInterrupt: a signal asked the worker to end, and all processes of the node have ended.
    """
    check_ray()
    remove_abandoned_folders()
    with _collect_signals() as signals, worker_folder() as folder:
        command = [sys.executable, "-c", _PROGRAM, "start", "--address", address]
        command += ["--num-cpus", str(cores), "--num-gpus", "0", "--object-store-memory", str(_OBJECTS)]
        listed = ",".join(f"{name}={value}" for name, value in labels.items())
        command += ["--resources", json.dumps({RESOURCE: 1}), "--labels", listed]
        command += ["--disable-usage-stats", "--block"]
        # Without this variable Ray hides accelerators from jobs that do not request them from Ray.
        environment = {**os.environ, FOLDER: folder, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=sys.stderr, start_new_session=True
        )
        try:
            _wait(process, math.inf, lambda: len(signals) > 0)
            status = process.poll()
            if status is None:
                process.terminate()
                _wait(process, _GRACE, lambda: len(signals) > 1)
        finally:
            # A killed `ray start` leaves its processes behind; all of them are in its session.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if signals:
        raise KeyboardInterrupt
    if status:
        raise RunError(f"the node at {address} has ended with status {status}; its messages are above")


def token_advice(environment: Mapping[str, str], home: Path) -> str:
    """Returns a warning where a node of Ray would run without an authentication token; "" where it demands one.

    Processes of Ray listen on all interfaces, and execute code from anyone who reaches their ports. Like Ray, this
    assumes that an existing token is used unless RAY_AUTH_MODE says otherwise (ray/_private/authentication).

    Args:
        environment: environment variables.
        home: the user's home directory.
    """
    given = any(environment.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    there = given or (home / ".ray/auth_token").is_file()
    mode = environment.get("RAY_AUTH_MODE", "")
    if mode.lower() == "token" or (not mode and there):
        return ""
    return (
        "Ray runs without a token: whoever reaches its ports, which are open on all interfaces, can run programs here."
        " On untrusted networks set RAY_AUTH_MODE=token on every machine (ray get-auth-token --generate makes a token)"
    )


@contextlib.contextmanager
def worker_folder() -> Iterator[str]:
    """Yields a folder for the files of jobs, locked while this process lives and removed at its end."""
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as folder:
        descriptor = _lock(Path(folder))
        try:
            yield folder
        finally:
            if descriptor is not None:
                os.close(descriptor)


def remove_abandoned_folders() -> None:
    """Removes the folders, models included, of this user's killed workers, whose locks nobody holds any more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        # Folders of other users, and symbolic links, which others may have planted, are left alone.
        if folder.is_symlink() or not folder.is_dir() or folder.stat().st_uid != os.getuid():
            continue
        descriptor = _lock(folder)
        if descriptor is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)


def _lock(folder: Path) -> int | None:
    """Locks a folder until the returned descriptor is closed, or this process ends.

    Returns:
        The open descriptor; None where another process has the lock, or the system cannot lock folders.
    """
    try:
        import fcntl

        descriptor = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _wait(process: subprocess.Popen[bytes], seconds: float, enough: Callable[[], bool]) -> None:
    """Waits until the process has ended, `seconds` are over, or `enough()` is true."""
    end = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < end and not enough():
        time.sleep(_LOOK)


@contextlib.contextmanager
def _collect_signals() -> Iterator[list[int]]:
    """Collects Ctrl-C, SIGTERM (services) and SIGHUP (a closing terminal) in the list that it yields.

    They raise no exception inside the block: one during the start of a process would leave that process behind.
    """
    signals: list[int] = []
    wanted = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    # Signals that are ignored stay ignored, as under `nohup` and in background jobs of a script.
    before = {number: signal.getsignal(number) for number in wanted}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, lambda number, _: signals.append(number))
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
