"""A machine as a node of a Ray cluster, for as long as its command runs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec

from ov_hsdag.fleet.machines import RESOURCE
from ov_hsdag.fleet.site import FOLDER
from ov_hsdag.utils.errors import RunError, UserError

# Bytes of Ray's shared memory: pieces of files pass through it, and memory is what models are measured in.
_OBJECTS = 256 << 20

# Seconds in which Ray ends what it has started.
_GRACE = 15.0


def serve(address: str, labels: Mapping[str, str], cores: int) -> None:
    """Makes this machine a node that takes jobs; returns when the cluster has gone.

    Args:
        address: of the head: "10.0.0.1:6379".
        labels: of the node (`ov_hsdag.fleet.machines.announcement`).
        cores: that tasks of other kinds may use beside the jobs; what is measured is then disturbed.

    Raises:
        UserError: Ray is not installed.
        RunError: the node could not join, or Ray ended it.
        KeyboardInterrupt: it was told to end, and all that it had started has ended.
    """
    if find_spec("ray") is None:
        raise UserError(
            "a worker needs ray: install ov-hsdag with this extra, in its source folder with pip install '.[ray]'"
        )
    with tempfile.TemporaryDirectory(prefix="ov-hsdag-worker-", ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--address", address]
        command += ["--num-cpus", str(cores), "--num-gpus", "0", "--object-store-memory", str(_OBJECTS)]
        command += ["--resources", json.dumps({RESOURCE: 1}), "--labels", _joined(labels)]
        command += ["--disable-usage-stats", "--block"]
        # Without this Ray hides devices from what does not ask it for some.
        environment = {**os.environ, FOLDER: folder, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
        with _termination_interrupts():
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True
            )
            try:
                status = process.wait()
            except KeyboardInterrupt:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_GRACE)
                raise
            finally:
                # `ray start` leaves what it started where it is killed; all of it is in its session.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    if status:
        raise RunError(f"the node at {address} has ended with status {status}; its messages are above")


def _joined(labels: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in labels.items())


@contextlib.contextmanager
def _termination_interrupts() -> Iterator[None]:
    """SIGTERM, which services are ended with, is as Ctrl-C."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
