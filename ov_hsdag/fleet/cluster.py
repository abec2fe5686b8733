"""Runs jobs and tasks on a Ray cluster. Only this module and `ov_hsdag.fleet.node` import or start Ray.

A job (`ov_hsdag.jobs.job`) goes to a free machine of its kind, or waits for one. Where the machine of a job is lost,
the job starts again on another of its kind, from the files that it had saved. Tasks are functions that only compute, on
any node with a free core (`Cluster.map`).
"""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

from ov_hsdag.fleet.job_files import came_as, digest_of
from ov_hsdag.fleet.job_runner import JobRunner
from ov_hsdag.fleet.machines import KIND, OPENVINO, RESOURCE, VERSION, Machine, kinds, others
from ov_hsdag.fleet.node import check_ray
from ov_hsdag.jobs.job import OUT, Job
from ov_hsdag.jobs.machine_kind import Kind
from ov_hsdag.storage.files import write_bytes
from ov_hsdag.utils.errors import RunError, UserError, one_line

_PIECE = 8 << 20  # bytes of a file in one message: large files must fit into neither machine's memory as a whole

# Seconds between checks that a machine of the kind still exists while a job waits.
_LOOK = 2.0

_LIVES = 4  # machines on which a job is tried: after so many losses, the job itself may be what ends them

# Seconds until Ray's table of nodes shows that one is gone, or a restarted one is back.
_PATIENCE = 30.0

_ANSWER = 10.0  # seconds to wait for a connection to the cluster; Ray itself tries for a quarter of an hour

Item = TypeVar("Item")
Result = TypeVar("Result")


class Cluster(AbstractContextManager["Cluster"]):
    """A connection to a Ray cluster, until the end of a `with` block.

    Attributes:
        ray: the module `ray`, which is imported only where a cluster is used.
    """

    def __init__(self, address: str) -> None:
        """Connects to a cluster.

        Args:
            address: an address that `ray.init` takes: "10.0.0.1:6379", "auto", "ray://10.0.0.1:10001".

        Raises:
            UserError: Ray is not installed, or nothing answers at that address.
        """
        check_ray()
        import ray

        _check_reachable(address)
        self.ray: Any = ray
        try:
            ray.init(address, logging_level="error", log_to_driver=False)
        except Exception as error:  # Ray has several types: no connection, other versions, no token
            raise UserError(f"cannot use the Ray cluster at {address}: {one_line(error)}") from error

    def __exit__(self, *_: object) -> None:
        """Leaves the cluster, which ends all jobs and tasks of this connection."""
        self.ray.shutdown()

    def machines(self) -> list[Machine]:
        """The machines that take jobs, sorted by their names."""
        machines = [
            Machine.of(node["NodeID"], node["NodeManagerHostname"], node.get("Labels", {}))
            for node in self.ray.nodes()
            if node["Alive"]
        ]
        return sorted((one for one in machines if one), key=lambda one: (one.host, one.node))

    def kinds(self, devices: Sequence[str], openvino: str, on: Sequence[str]) -> tuple[list[Kind], list[Machine]]:
        """Groups the machines of the cluster into kinds, see `ov_hsdag.fleet.machines.kinds`.

        Args:
            devices: devices that a machine must have.
            openvino: release of OpenVINO on this machine, which the others must have as well.
            on: values of --on; none for all kinds.

        Returns:
            The kinds, and the machines that are left out because of their versions.
        """
        there = self.machines()
        return kinds(there, devices, openvino, on), others(there, devices, openvino)

    def run(
        self, jobs: Sequence[tuple[Kind, Job, Path]], tell: Callable[[str], None], log: Callable[[str], None]
    ) -> list[str | UserError | RunError]:
        """Runs jobs on machines of their kinds, all at once as far as there are machines, and waits for them.

        Args:
            jobs: each job with its kind of machine, and with the folder on this machine for the files that it leaves
                in `OUT`.
            tell: called with a line of progress, which the next one may replace.
            log: called with a line that should stay visible: a warning, or the loss of a machine.

        Returns:
            In the order of `jobs`, the standard output of each, or the error that ended it.
        """
        over = threading.Event()
        digests = {file: digest_of(file) for file in dict.fromkeys(f for _, job, _ in jobs for f in job.files.values())}
        workers = ThreadPoolExecutor(max(len(jobs), 1))

        def one(kind: Kind, job: Job, folder: Path) -> str | UserError | RunError:
            """Runs one job; returns its standard output, or the error that ended it."""
            try:
                return _RemoteJob(self, kind, job, folder, digests, over, tell, log).run()
            except (UserError, RunError) as error:
                return error

        pending = [workers.submit(one, *given) for given in jobs]
        try:
            return [future.result() for future in pending]
        finally:
            over.set()
            workers.shutdown(wait=True)

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """Calls a function for each item on the cluster's cores.

        A call whose node is lost is repeated elsewhere. Pending calls are not cancelled after a failure, and end with
        the connection: Ray 2.60 may end a process that cancels a call whose result is just arriving ("Tried to complete
        task that was not pending").

        Args:
            function: the function. It has no side effects, takes a second or so, and is in a module that all nodes
                have.
            items: its argument in each call.

        Yields:
            The results, in the order of the items.

        Raises:
            UserError: a call raised it.
            RunError: a call raised it or failed otherwise, or the cluster lost it.
        """
        remote = self.ray.remote(num_cpus=1, max_retries=-1)(_call)
        shared = self.ray.put(function)
        for reference in [remote.remote(shared, item) for item in items]:
            yield self._result(reference)

    def _result(self, reference: Any) -> Any:
        """Waits for the result of a task and returns it.

        Args:
            reference: Ray's reference to the result.

        Raises:
            UserError: the task raised it.
            RunError: the task raised it or failed otherwise, or the cluster lost the task.
        """
        exceptions = self.ray.exceptions
        try:
            return self.ray.get(reference)
        except exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, UserError | RunError):
                raise type(cause)(str(cause)) from error
            raise RunError(f"a task on the cluster failed: {one_line(cause or error)}") from error
        except exceptions.RayError as error:
            raise RunError(f"the cluster lost a task: {_reason(error)}") from error


def _check_reachable(address: str) -> None:
    """Checks that something listens at the address; Ray itself would retry for a quarter of an hour.

    Addresses without host and port, such as "auto", are not checked.

    Raises:
        UserError: the address is invalid, or nothing listens there.
    """
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UserError(f"invalid address of a Ray cluster '{address}': {error}") from error
    if host is None or port is None:
        return  # "auto" and similar, which only Ray can resolve
    try:
        socket.create_connection((host, port), timeout=_ANSWER).close()
    except OSError as error:
        raise UserError(f"cannot use the Ray cluster at {address}: {one_line(error)}") from error


def _call(function: Callable[[Item], Result], item: Item) -> Result:
    """Calls a function: the task of `Cluster.map`, which gets the function as an object stored in the cluster."""
    return function(item)


class _Lost(Exception):
    """The machine of a job was lost; the text is Ray's reason."""


@dataclass
class _RemoteJob:
    """Runs one job on a machine of its kind, and on another of the kind where that machine is lost."""

    cluster: Cluster  # the connection
    kind: Kind  # kind of machine that the job needs
    job: Job
    folder: Path  # folder on this machine for the files that the job leaves
    digests: Mapping[Path, str]  # SHA-256 of each file that is sent, by path on this machine
    over: threading.Event  # set where no result is wanted any more: waiting ends with RunError then
    tell: Callable[[str], None]  # called with a line of progress, which the next one may replace
    log: Callable[[str], None]  # called with a line that should stay visible
    where: str = ""  # the machine, as messages name it
    saved: dict[str, bytes] = field(default_factory=dict)  # files by path from which another machine can continue

    def run(self) -> str:
        """Runs the job and returns its standard output. Raises UserError or RunError where it fails."""
        self.where = self.kind.describe()
        ray, labels = self.cluster.ray, dict(self.kind.labels)
        runners = ray.remote(num_cpus=0, resources={RESOURCE: 1}, label_selector=labels, max_restarts=0)(JobRunner)
        for _ in range(_LIVES):
            runner = runners.remote()  # starts on the first free machine of the kind; Ray queues it until then
            try:
                return self._carry_out(runner)
            except _Lost as error:
                self.log(f"lost {self.where}: {error}; the job begins again on another machine of its kind")
                self._await_machine()
            except ray.exceptions.RayTaskError as error:
                raise RunError(f"{self.where}: {one_line(error.cause or error)}") from error
            finally:
                ray.kill(runner)
        raise RunError(f"{self.kind.describe()}: {_LIVES} machines were lost with this job, perhaps by what it does")

    def _await_machine(self) -> None:
        """Waits until the cluster has a machine of the kind, free or not, or the job is `over`.

        Raises:
            RunError: there is none within `_PATIENCE`.
        """
        end = time.monotonic() + _PATIENCE
        wanted = tuple(self.kind.labels[key] for key in (KIND, OPENVINO, VERSION))
        while not any((one.kind, one.openvino, one.version) == wanted for one in self.cluster.machines()):
            if time.monotonic() > end:
                raise RunError(f"the last machine of its kind is gone: {self.kind.describe()}")
            if self.over.wait(0.5):
                return

    def _ask(self, reference: Any, waiting: str = "") -> Any:
        """Waits for the result of a call of the job runner and returns it.

        Args:
            reference: Ray's reference to the result.
            waiting: line of progress while it waits; "" for none.

        Raises:
            _Lost: the machine of the job runner is gone.
            RunError: the job is `over`, or no machine of its kind exists any more.
            RayTaskError: the call raised an error.
        """
        ray, exceptions = self.cluster.ray, self.cluster.ray.exceptions
        while True:
            if self.over.is_set():
                raise RunError("interrupted")
            try:
                return ray.get(reference, timeout=_LOOK)
            except exceptions.GetTimeoutError:
                if waiting:
                    self.tell(waiting)
                self._await_machine()
            except exceptions.RayTaskError:
                raise
            except exceptions.RayError as error:
                raise _Lost(_reason(error)) from error

    def _carry_out(self, runner: Any) -> str:
        """Sends the files, runs the job and fetches its output files.

        Files that the job saves are copied to `folder` and kept in `saved` while it runs, for another attempt.

        Args:
            runner: Ray's handle of the `JobRunner` on the machine.

        Returns:
            The standard output of the job.

        Raises:
            _Lost: the machine is gone.
            UserError: the job ended with such an error.
            RunError: the job ended with another error.
        """
        job = self.job
        # Files saved by an earlier attempt replace those of the same names; `begin` sends their contents.
        sent = {name: path for name, path in job.files.items() if name not in self.saved}
        files = {name: self.digests[path] for name, path in sent.items()}
        paths = {self.digests[path]: path for path in sent.values()}
        host = self._ask(runner.host.remote(), f"{self.kind.describe()}: waiting for a machine that is free")
        self.where = f"{self.kind.describe()} on {host}"
        for digest in self._ask(runner.lacking.remote(list(paths))):
            self._send(runner, digest, paths[digest])
        self._ask(runner.begin.remote(list(job.resumed if self.saved else job.words), files, self.saved))
        tail = ""
        while True:
            events = self._ask(runner.events.remote(1.0, job.saved))
            for line in events["lines"]:
                text = job.translated(line)
                if line.startswith("warning:"):
                    self.log(f"{self.where}: {text}")
                elif line:
                    tail = text
                    self.tell(f"{self.where}: {text}")
            self.saved.update(events["saved"])
            for name, data in events["saved"].items():
                write_bytes(self.folder / came_as(name), [data])
            if events["status"] is not None:
                break
        if events["status"]:
            _raise(events["status"], tail, self.where)
        self._fetch(runner)
        self._ask(runner.end.remote())
        return str(events["out"])

    def _send(self, runner: Any, digest: str, path: Path) -> None:
        """Sends a file in pieces, so that neither machine holds all of it in memory.

        Args:
            runner: Ray's handle of the `JobRunner`.
            digest: SHA-256 of the file.
            path: the file on this machine.
        """
        size = path.stat().st_size
        with open(path, "rb") as file:
            for sent in range(0, max(size, 1), _PIECE):
                self.tell(f"{self.where}: sending {path.name}, {sent / max(size, 1):.0%}")
                self._ask(runner.take.remote(digest, sent, file.read(_PIECE), sent + _PIECE >= size))

    def _fetch(self, runner: Any) -> None:
        """Copies the output files of the job to its folder on this machine."""
        listings = [self._ask(runner.listing.remote(one)) for one in (OUT, *self.job.beside)]
        for name, size in itertools.chain.from_iterable(listing.items() for listing in listings):
            target = self.folder / came_as(name)
            self.tell(f"{self.where}: fetching {target.name}")
            offsets = range(0, size, _PIECE)
            write_bytes(target, (self._ask(runner.read.remote(name, offset, _PIECE)) for offset in offsets))


def _raise(status: int, text: str, where: str) -> NoReturn:
    """Raises the error that an exit status of the command means.

    Args:
        status: the exit status; negative for a signal.
        text: the last line on standard error; "" without any.
        where: the machine, as messages name it.

    Raises:
        UserError: the command ended with status 2 and a line "error: …".
        RunError: it ended in another way.
    """
    reason = text.removeprefix("error: ") if text.startswith("error: ") else ""
    if status == 2 and reason:
        raise UserError(f"{where}: {reason}")
    if status < 0:
        raise RunError(
            f"{where}: the command was ended by signal {-status}, a fault of OpenVINO or of a device's driver"
        )
    raise RunError(f"{where}: {reason or text or f'the command ended with status {status}'}")


def _reason(error: BaseException) -> str:
    """Returns the first line of an error of Ray, at most 200 characters, or its type; further lines are details."""
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
