"""Runs `ov-hsdag` and `ovc` as users do, in this process or in a new one, and returns what they print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import openvino as ov
import pytest

import ov_hsdag
from ov_hsdag.cli import app, console
from ov_hsdag.integration import converters as hook
from tests.conftest import ONE_CORE
from tests.processes import ended

DEVICE = "HETERO:CPU_A,CPU_B"
PACKAGE = str(Path(ov_hsdag.__file__).parents[1])
MAIN = "from ov_hsdag.cli import main; main()"

# Variables that a running process follows.
_READ_LATE = {"OV_HSDAG_VIRTUAL_DEVICES", "COLUMNS"}


def run(*arguments: object, code: str = MAIN, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `ov-hsdag ARGUMENTS` with the virtual devices CPU_A and CPU_B.

    Starting a process takes longer than what most commands do, so they run in this one. Only those that change what
    happens outside of a command, by `code` or by the environment, have a process of their own.

    Args:
        arguments: the words after "ov-hsdag".
        code: Python code of the process; by default it runs the command line.
        environment: variables to set, besides those of this process.

    Returns:
        The ended command: its exit status, standard output and standard error.
    """
    variables = {
        "PYTHONPATH": os.pathsep.join(filter(None, [PACKAGE, os.environ.get("PYTHONPATH")])),
        "OV_HSDAG_VIRTUAL_DEVICES": f"CPU_A:{ONE_CORE};CPU_B:{ONE_CORE}",
        **environment,
    }
    words = [*map(str, arguments)]
    if code == MAIN and environment.keys() <= _READ_LATE:
        return _run_here(words, variables, app.run)
    return ended(sys.executable, "-c", code, *words, status=None, env={**os.environ, **variables})


def ran(*arguments: object, code: str = MAIN, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command as `run` does, and asserts that it ends with status 0."""
    done = run(*arguments, code=code, **environment)
    assert done.returncode == 0, done.stderr
    return done


def ovc(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs `ovc ARGUMENTS` in this process, with the virtual devices CPU_A and CPU_B."""
    from openvino.tools.ovc import main

    def status() -> int:
        try:
            return int(main.main())
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else 1

    hook.patch(main)
    return _run_here([*map(str, arguments)], {"OV_HSDAG_VIRTUAL_DEVICES": f"CPU_A:{ONE_CORE};CPU_B:{ONE_CORE}"}, status)


def _run_here(words: list[str], variables: dict[str, str], main: Callable[[], int]) -> subprocess.CompletedProcess[str]:
    """Runs a command in this process, with the state that a new process would have, and restores the state.

    Args:
        words: the command's arguments; `sys.argv` has them while it runs.
        variables: environment variables to set while it runs.
        main: runs the command, and returns its exit status.
    """
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(), _streams() as (out, err):
        for name, value in variables.items():
            patch.setenv(name, value)
        for name, unset in (("debug", False), ("quiet", False), ("verbose", False), ("extension", None)):
            patch.setattr(console, name, unset)
        patch.setattr(sys, "argv", ["ov-hsdag", *words])
        # As Python has it: pytest shows more.
        warnings.resetwarnings()
        for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", category)
        status = main()
        sys.stdout.flush()
        sys.stderr.flush()
        found = (_text(out), _text(err))
    return subprocess.CompletedProcess(["ov-hsdag", *words], status, *found)


def _text(descriptor: int) -> str:
    """Reads the whole of an open file, wherever its position is."""
    size = os.lseek(descriptor, 0, os.SEEK_END)
    return os.pread(descriptor, size, 0).decode()


@contextmanager
def _streams() -> Iterator[tuple[int, int]]:
    """Redirects standard output and standard error to two temporary files during the block.

    Descriptors 1 and 2 are redirected as well as Python's streams, as plugins and frontends print from C++. Yields the
    descriptors of the two files.
    """
    before = sys.stdout, sys.stderr
    for stream in before:
        stream.flush()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        kept = os.dup(1), os.dup(2)
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        try:
            with (
                open(1, "w", encoding="utf-8", closefd=False) as sys.stdout,
                open(2, "w", encoding="utf-8", closefd=False) as sys.stderr,
            ):
                yield out.fileno(), err.fileno()
        finally:
            sys.stdout, sys.stderr = before
            for number, descriptor in enumerate(kept, 1):
                os.dup2(descriptor, number)
                os.close(descriptor)


def assert_one_error_line(done: subprocess.CompletedProcess[str], *words: str, status: int = 2) -> None:
    """Asserts that a command ended with `status` and printed one error line, with the words in it, and nothing else."""
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    # A slow machine also tells what takes long ("10 s: starting torch").
    lines = [line for line in done.stderr.splitlines() if not re.match(r"\d+ s: ", line)]
    assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    assert all(word in lines[0] for word in words), done.stderr


def verified(model: ov.Model, folder: Path, *options: str, status: int = 1) -> str:
    """Places a model on CPU_A and CPU_B, runs `verify` on it, and returns what that prints.

    Args:
        model: the model.
        folder: folder for its files.
        options: options of `place`.
        status: the exit status that `verify` must have.
    """
    source, output = folder / "source.xml", folder / "placed.xml"
    ov.save_model(model, source, compress_to_fp16=False)
    done = ran("place", source, "--device", DEVICE, "--no-measure", "--output", output, *options)
    done = run("verify", output, "--device", DEVICE)
    assert done.returncode == status, done.stderr
    return done.stdout
