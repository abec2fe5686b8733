"""Runs in processes of this machine."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.machinery import ModuleSpec
from multiprocessing import get_context
from typing import Any, NoReturn, TypeVar

from ov_hsdag.devices.cpu import usable_cores
from ov_hsdag.utils.errors import RunError, UserError

T = TypeVar("T")
R = TypeVar("R")

# Each run has one thread of its own: there are as many runs at a time as cores.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def start(spec: ModuleSpec | None) -> NoReturn:
    """Runs the `main` of a script that was started as `python -m benchmarks.NAME`, and exits with its status.

    It runs in the module benchmarks.NAME and not in `__main__`: what travels to other processes is found there by name.

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
    """Results of runs, in the order of their tasks.

    function: a run, of a module of this package. What is bound to it (`functools.partial`) travels to each process
    once, and what it caches stays for the next run there. tasks: of the runs. processes: None: as many as this machine
    has cores.
    """
    os.environ.update(_ONE_THREAD)
    sent = pickle.dumps(function)
    with ProcessPoolExecutor(processes or usable_cores(), get_context("spawn"), _begin, (sent,)) as pool:
        yield from pool.map(_call, tasks)


# The function of a process of `in_processes`.
_function: Callable[[Any], Any] | None = None


def _begin(sent: bytes) -> None:
    global _function
    _function = pickle.loads(sent)


def _call(task: Any) -> Any:
    assert _function is not None
    return _function(task)
