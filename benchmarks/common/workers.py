"""Where runs are made: in this process, in processes of this machine, or on the cores of a Ray cluster (--ray)."""

from __future__ import annotations

import argparse
import importlib
import os
import pickle
import platform
import sys
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from importlib.machinery import ModuleSpec
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from benchmarks.common.machine import about, processor, versions
from ov_hsdag.devices.cpu import usable_cores
from ov_hsdag.utils.errors import RunError, UserError

if TYPE_CHECKING:
    from ov_hsdag.fleet.cluster import Cluster

T = TypeVar("T")
R = TypeVar("R")

# Each run has one thread of its own: machines have as many runs at a time as cores.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def add_ray(parser: argparse.ArgumentParser) -> None:
    """Adds the option --ray."""
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="make the runs on the cores of this Ray cluster, whose nodes need ov-hsdag and no benchmarks",
    )


def start(spec: ModuleSpec | None) -> NoReturn:
    """Runs the `main` of a script that was started as `python -m benchmarks.NAME`, and exits with its status.

    It runs in the module benchmarks.NAME and not in `__main__`: what travels to other processes is found there by name.

    Args:
        spec: the script's `__spec__`.
    """
    if spec is None:
        sys.exit("start it as a module, in the folder above benchmarks: python -m benchmarks.NAME")
    try:
        sys.exit(importlib.import_module(spec.name).main())
    except (UserError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UserError) else 1)


def brought() -> dict[str, Any]:
    """Ray's runtime environment with this package and `research`: nodes have ov-hsdag, and neither of them."""
    root = Path(__file__).resolve().parents[2]
    modules = [str(root / name) for name in ("benchmarks", "research")]
    return {"py_modules": modules, "excludes": ["results/", "__pycache__/"]}


class Workers:
    """Where runs are made; ends with a `with` block.

    Attributes:
        elsewhere: kinds of processors of other machines that made runs, and how many each made.
    """

    def __init__(self, ray: str | None = None, processes: int | None = None) -> None:
        """
        Args:
            ray: address of a cluster; None: this machine.
            processes: on this machine; None: as many as it has cores; 0: this one, for runs that measure their time.
        """
        self.elsewhere: dict[str, int] = {}
        self._ray, self._processes = ray, usable_cores() if processes is None else processes
        self._cluster: Cluster | None = None

    def __enter__(self) -> Workers:
        """Joins the cluster. Raises UserError where there is none."""
        if self._ray is not None:
            from ov_hsdag.fleet.cluster import Cluster

            self._cluster = Cluster(self._ray, {**brought(), "env_vars": _ONE_THREAD})
        return self

    def __exit__(self, *_: object) -> None:
        if self._cluster is not None:
            self._cluster.close()

    def map(self, function: Callable[[T], R], tasks: Iterable[T]) -> Iterator[tuple[T, R]]:
        """Tasks with their results, in their order.

        Args:
            function: a run, of a module of this package. What is bound to it (`functools.partial`) travels once, and
                what it caches stays for the next run in the same process.
            tasks: of the runs; on a cluster they are taken as they are needed.

        Raises:
            UserError, RunError: of a run on a cluster, or a node has other releases. Other exceptions of runs here.
        """
        if self._cluster is not None:
            return self._there(self._cluster, function, tasks)
        if self._processes == 0:
            return ((task, function(task)) for task in tasks)
        return _in_processes(function, list(tasks), self._processes)

    def about(self) -> dict[str, Any]:
        """`benchmarks.common.machine.about`, with the processors that made runs elsewhere."""
        found = about()
        if self.elsewhere:
            found["machine"] = f"{' and '.join(sorted(self.elsewhere))}, on a Ray cluster"
            found["runs_on"] = dict(sorted(self.elsewhere.items()))
        return found

    def _there(self, cluster: Cluster, function: Callable[[T], R], tasks: Iterable[T]) -> Iterator[tuple[T, R]]:
        asked: deque[T] = deque()

        def taken() -> Iterator[T]:
            for task in tasks:
                asked.append(task)
                yield task

        for kind, result in cluster.map(_Sent(function), taken()):
            self.elsewhere[kind] = self.elsewhere.get(kind, 0) + 1
            yield asked.popleft(), result


def _in_processes(function: Callable[[T], R], tasks: list[T], processes: int) -> Iterator[tuple[T, R]]:
    os.environ.update(_ONE_THREAD)
    if not tasks:
        return
    sent = pickle.dumps(function)
    with ProcessPoolExecutor(processes, get_context("spawn"), _begin, (sent,)) as pool:
        yield from zip(tasks, pool.map(_call, tasks), strict=True)


# The function of a process of `_in_processes`, or by its key the one that `_Sent` had last.
_function: Callable[[Any], Any] | None = None
_last: tuple[str, Callable[[Any], Any]] | None = None


def _begin(sent: bytes) -> None:
    global _function
    _function = pickle.loads(sent)


def _call(task: Any) -> Any:
    assert _function is not None
    return _function(task)


class _Sent:
    """A function for nodes of a cluster: a process unpickles it once, so that what it caches stays."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._key, self._function, self._versions = uuid.uuid4().hex, pickle.dumps(function), versions()

    def __call__(self, task: Any) -> tuple[str, Any]:
        """The kind of this machine's processor, and what the function returns."""
        global _last
        if _last is None or _last[0] != self._key:
            _same_versions(self._versions)
            _last = (self._key, pickle.loads(self._function))
        return processor(), _last[1](task)


def _same_versions(wanted: Mapping[str, str | None]) -> None:
    """Raises UserError where this machine has other releases: they place differently."""
    found = versions()
    for name, version in wanted.items():
        if found.get(name) != version:
            raise UserError(
                f"the node {platform.node()} has {_told(name, found.get(name))}, this machine {_told(name, version)}:"
                " install the same on both"
            )


def _told(name: str, version: str | None) -> str:
    return f"{name} {version}" if version else f"no {name}"
