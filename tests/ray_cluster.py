"""Starts a Ray cluster on this machine: a head, and nodes of `ov-hsdag worker` or of Ray, which tests may kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from tests.conftest import ONE_CORE
from tests.processes import ended

ROOT = Path(__file__).resolve().parent.parent

DEVICES = f"CPU_A:{ONE_CORE};CPU_B:{ONE_CORE}"
"""Two virtual devices; OV_HSDAG_VIRTUAL_DEVICES of a worker."""

MAIN = "from ov_hsdag.cli import main; main()"

_JOINING = 120  # seconds in which a node has joined, on a machine that is busy

_TRIES = 4

Started = TypeVar("Started")


def environment(devices: str = "", package: Path = ROOT) -> dict[str, str]:
    """Makes the environment of processes that import ov_hsdag from a folder.

    Args:
        devices: virtual devices to declare; "" for none.
        package: the folder; by default the root of the source tree.
    """
    path = os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])
    kept = {"PYTHONPATH": path, "OV_HSDAG_VIRTUAL_DEVICES": devices}
    return {**os.environ, **kept, "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}


def command(*words: object, status: int = 0, devices: str = "") -> subprocess.CompletedProcess[str]:
    """Runs `ov-hsdag WORDS` in a new process, and asserts its exit status. devices: virtual devices to declare."""
    return ended(sys.executable, "-c", MAIN, *words, status=status, env=environment(devices))


class Nodes:
    """A cluster whose head computes nothing.

    Attributes:
        address: address of the head.
        started: processes of the nodes that have joined, in the order of joining; killed ones stay in the list.
    """

    def __init__(self, folder: Path) -> None:
        """Starts the head. folder: where nodes.log takes what the nodes print."""
        self._folder = folder
        self.started: list[subprocess.Popen[bytes]] = []
        self._log = open(folder / "nodes.log", "wb")  # noqa: SIM115 closed by `close`
        before = dict(os.environ)
        os.environ.update(environment())
        try:
            from ray.cluster_utils import Cluster

            self._cluster = _tried(lambda: Cluster(True, head_node_args={"num_cpus": 0, "include_dashboard": False}))
        finally:
            os.environ.clear()
            os.environ.update(before)
        self.address = str(self._cluster.address)

    def worker(self, devices: str = DEVICES, *options: str, package: Path = ROOT) -> subprocess.Popen[bytes]:
        """Starts a node by `ov-hsdag worker`, and returns its process when it has joined.

        Args:
            devices: virtual devices of the node.
            options: further options of `worker`.
            package: folder from which it imports ov_hsdag.
        """
        words = [sys.executable, "-c", MAIN, "worker", "--ray", self.address, *options]
        return self._joined(words, environment(devices, package))

    def computing(self, cores: int = 1) -> subprocess.Popen[bytes]:
        """Starts a node of Ray, which has cores for tasks and runs no jobs; returns its process when it has joined."""
        words = [sys.executable, "-m", "ray.scripts.scripts", "start", "--address", self.address, "--block"]
        words += ["--num-cpus", str(cores), "--object-store-memory", "100000000", "--disable-usage-stats"]
        return self._joined(words, environment())

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kills all processes of a node at once, as if its machine lost its power."""
        for child in descendants(process.pid):
            _kill(child)
        process.wait()

    def busy(self) -> list[subprocess.Popen[bytes]]:
        """Returns the nodes on which a job runs now."""
        return [one for one in self.started if any("/job-" in _folder_of(child) for child in descendants(one.pid))]

    def close(self) -> None:
        """Kills all nodes, and ends the head."""
        for process in self.started:
            if process.poll() is None:
                self.kill(process)
        self._cluster.shutdown()
        self._log.close()

    def _joined(self, words: list[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Starts a node as `_joins` does, several times where it fails."""
        return _tried(lambda: self._joins(words, environment))

    def _joins(self, words: list[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Starts a node, waits until it has joined, and adds it to `started`.

        Raises RuntimeError, with the end of the log, where it ends or has not joined after `_JOINING` seconds.
        """
        before = self._alive()
        process = subprocess.Popen(
            words, env=environment, stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL, start_new_session=True
        )
        end = time.monotonic() + _JOINING
        while self._alive() <= before:
            if process.poll() is not None or time.monotonic() > end:
                self.kill(process)
                raise RuntimeError((self._folder / "nodes.log").read_text(errors="replace")[-2000:])
            time.sleep(0.2)
        self.started.append(process)
        return process

    def _alive(self) -> int:
        """Asks the head for the number of nodes that are alive, itself among them."""
        from ray._private.state import GlobalState
        from ray._raylet import GcsClientOptions  # type: ignore[attr-defined]

        state = GlobalState()
        state._initialize_global_state(
            GcsClientOptions.create(self.address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)
        )
        try:
            return sum(node["Alive"] for node in state.node_table())
        finally:
            state.disconnect()


def _tried(start: Callable[[], Started]) -> Started:
    """Calls `start` until it raises nothing, `_TRIES` times at most, and returns its result.

    Ray gives a node half a minute to start, and a busy machine may need more than that.
    """
    for _ in range(_TRIES - 1):
        with suppress(Exception):
            return start()
    return start()


@contextmanager
def nodes(folder: Path) -> Iterator[Nodes]:
    """Yields a cluster that has only a head, and closes it at the end of the block."""
    there = Nodes(folder)
    try:
        yield there
    finally:
        there.close()


def descendants(pid: int) -> list[int]:
    """Lists a process and all that it has started, directly or not: process numbers, its own first."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def _folder_of(pid: int) -> str:
    """Returns the working folder of a process; "" where it has ended or is another user's."""
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""


def _kill(pid: int) -> None:
    """Kills a process, unless it has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
