"""Starts benchmark commands, and makes their runs in parallel processes of this machine."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from multiprocessing import get_context, parent_process
from typing import Any, NoReturn, TypeVar

from ov_hsdag.devices.cpu import usable_cores
from ov_hsdag.utils.errors import RunError, UserError

T = TypeVar("T")
R = TypeVar("R")

# Each run has one thread, as there are as many runs at a time as cores.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def start(spec: ModuleSpec | None) -> NoReturn:
    """Runs the `main` of a script that was started as `python -m benchmarks.NAME`, and exits with its status.

    `main` runs in the module benchmarks.NAME and not in `__main__`, so that other processes find pickled functions and
    classes by name.

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


def in_processes(function: Callable[[T], R], tasks: Collection[T], processes: int | None = None) -> Iterator[R]:
    """Makes runs in parallel processes.

    Args:
        function: makes a run of a task; a function of a module of this package. Arguments that are bound to it
            (`functools.partial`) are sent to each process once, and its caches stay for the next run there.
        tasks: the tasks.
        processes: number of processes; None for as many as there are usable cores.

    Yields:
        The results, in the order of the tasks.
    """
    os.environ.update(_ONE_THREAD)
    sent = pickle.dumps(function)
    with ProcessPoolExecutor(processes or usable_cores(), get_context("spawn"), _begin, (sent,)) as pool:
        yield from pool.map(_call, tasks)


@contextmanager
def on_pairs_of_cores(jobs: int, *, warnings_shown: bool = True) -> Iterator[ProcessPoolExecutor]:
    """Makes a pool of processes, each bound to two cores of its own; a single process may use all cores.

    Args:
        jobs: number of processes.
        warnings_shown: whether Python's warnings in the processes are shown.

    Yields:
        The pool. Its processes end when this one is gone.
    """
    context = get_context("spawn")
    cores = sorted(os.sched_getaffinity(0))
    shares = context.Queue()
    for number in range(jobs):
        shares.put(cores if jobs == 1 else cores[2 * number : 2 * number + 2])
    with ProcessPoolExecutor(jobs, context, _begin_on_cores, (shares, warnings_shown)) as pool:
        yield pool


def _begin_on_cores(shares: Any, warnings_shown: bool) -> None:
    """Binds this process to the next list of cores in a queue; see `on_pairs_of_cores`."""
    _end_with_parent()
    os.sched_setaffinity(0, shares.get())
    if not warnings_shown:
        warnings.simplefilter("ignore")


def _end_with_parent() -> None:
    """Ends this process when the process that started it is gone; a killed command leaves nothing running."""
    parent = parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


# The function that this process runs, if it is one of `in_processes`.
_function: Callable[[Any], Any] | None = None


def _begin(sent: bytes) -> None:
    """Sets the function of this process. sent: the pickled function."""
    global _function
    _end_with_parent()
    _function = pickle.loads(sent)


def _call(task: Any) -> Any:
    """Runs a task by the function of this process."""
    assert _function is not None
    return _function(task)
