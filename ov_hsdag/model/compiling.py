"""Compiles models in a separate process, for code that compiles only to learn about a model.

Once a process has compiled a model and freed it, its forked children hang when they compile (docs/reference/facts.md).
Servers place a model and then start their workers by fork. So such code compiles in another process.

`Compiling` is the caller's side: it starts the process and calls functions there. Each function gets a `Here`, the
context in the process. Arguments, results and models are exchanged as files in a folder that both sides know.
"""

from __future__ import annotations

import os
import pickle
import shutil
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any, TypeVar

from ov_hsdag.devices import same_core
from ov_hsdag.model.placement import Placement
from ov_hsdag.storage.files import save_model
from ov_hsdag.storage.scratch import scratch_folder
from ov_hsdag.utils.child import Child, ChildError, serve, write_frame
from ov_hsdag.utils.errors import RunError, one_line
from ov_hsdag.utils.lazy import ov
from ov_hsdag.utils.warn import warn_caller

_ENTRY = "ov_hsdag.model.compiling:main"  # the function that the process runs

Result = TypeVar("Result")


class Here:
    """The context of a function that runs in the compiling process; its first argument.

    Attributes:
        core: a Core with the caller's devices and settings.
        kept: values that functions keep from one call to the next, by names of their choice.
        model: returns the model with a number that `Compiling.keep` returned. Each model is read once.
    """

    def __init__(self, folder: Path, description: dict[str, Any], stream: IO[bytes]) -> None:
        """Prepares the context in the compiling process.

        Args:
            folder: folder shared with the caller; models and arguments are exchanged through it.
            description: the caller's Core, as `same_core.describe` returns it.
            stream: stream to the caller, for reports and warnings.
        """
        self.core = same_core.like(description)
        self.kept: dict[str, Any] = {}
        self._folder, self._stream = folder, stream
        self.model = cache(self._read)

    def _read(self, number: int) -> ov.Model:
        """Reads a model by its number."""
        return self.core.read_model(self._folder / f"{number}.xml")

    def report(self, text: str) -> None:
        """Passes a short progress text to the caller's `report`."""
        write_frame(self._stream, {"report": text})

    def warn(self, message: Warning | str, *_: object, **__: object) -> None:
        """Passes a warning to the caller; it has the signature of `warnings.showwarning`.

        Args:
            message: the warning or its text.
            _: ignored arguments (category, file name, line).
            __: ignored keyword arguments.
        """
        write_frame(self._stream, {"warning": str(message)})


class Compiling(Child, AbstractContextManager["Compiling"]):
    """A child process that calls functions with a Core like the caller's, as the parent sees it.

    The process ends with `close`, with the end of a `with` block, or when the object is garbage collected.
    """

    def __init__(self, core: ov.Core, names: Sequence[str]) -> None:
        """Starts the process, which is still importing when this returns.

        Args:
            core: the Core whose devices and settings the process gets.
            names: names of the devices that it will compile for.

        Raises:
            RunError: the process cannot be started, or its temporary files cannot be written.
        """
        self._folder = scratch_folder()
        self._end = weakref.finalize(self, _remove, self._folder, os.getpid())
        self._written = self._calls = 0
        self._ready = False
        try:
            self._dump("core", same_core.describe(core, names))
            super().__init__(_ENTRY, [str(self._folder)], self._folder / "log")
        except OSError as error:
            self._end()
            raise RunError(f"cannot start a process for compiling: {one_line(error)}") from error

    def wait(self) -> None:
        """Waits until the process has imported OpenVINO.

        Raises:
            ChildError: importing failed.
        """
        if not self._ready:
            self._receive(None, "starting")
            self._ready = True

    def keep(self, model: ov.Model) -> int:
        """Writes a copy of a model, without its placement, for functions in the process to read.

        Args:
            model: a model with unique friendly names.

        Returns:
            The number by which functions ask for it (`Here.model`).

        Raises:
            RunError: the model cannot be written.
        """
        copy = model.clone()
        Placement.strip(copy)
        path = self._folder / f"{self._written}.xml"
        save_model(copy, path, False, path, sync=False)
        self._written += 1
        return self._written - 1

    def call(
        self,
        function: Callable[..., Result],
        *arguments: Any,
        doing: str,
        report: Callable[[str], None] | None = None,
    ) -> Result:
        """Calls `function(here, *arguments)` in the process.

        Args:
            function: a function of a module; its first argument is a `Here`.
            arguments: further arguments, which must be picklable; models are given by their numbers.
            doing: the activity in a word, for messages.
            report: called with the texts that the function reports.

        Returns:
            The value that the function returned, pickled and unpickled.

        Raises:
            ChildError: the process has ended, by a crash or for lack of memory.
            Exception: any error that the function raises.
        """
        self.wait()
        self._calls += 1
        arguments_path = self._dump(f"call-{self._calls}", (function.__module__, function.__qualname__, arguments))
        self._send({"call": arguments_path.name}, doing)
        while True:
            answer = self._receive(None, doing)
            if "report" in answer:
                if report is not None:
                    report(answer["report"])
            elif "warning" in answer:
                warn_caller(answer["warning"])
            else:
                returned, value = pickle.loads((self._folder / answer["result"]).read_bytes())
                if not returned:
                    raise value
                result: Result = value
                return result

    def close(self) -> None:
        """Ends the process and removes its folder."""
        if self.alive:
            self.end()
        self._end()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _dump(self, name: str, value: Any) -> Path:
        """Pickles a value into a file of the shared folder, and returns the file's path."""
        path = self._folder / name
        path.write_bytes(pickle.dumps(value))
        return path


def _remove(folder: Path, owner: int) -> None:
    """Removes the shared folder, if this is the process that made it; `owner` is the number of that process."""
    if os.getpid() == owner:  # a fork of the owner must not remove the folder
        shutil.rmtree(folder, ignore_errors=True)


def main(folder: str) -> None:
    """Runs in the compiling process: serves calls until the parent process ends it or is gone.

    Args:
        folder: path of the folder that is shared with the parent.
    """
    commands, stream = serve(lambda: shutil.rmtree(folder, ignore_errors=True))
    place = Path(folder)
    try:
        here = Here(place, pickle.loads((place / "core").read_bytes()), stream)
    except Exception as error:
        write_frame(stream, {"error": one_line(error)})
        raise SystemExit(1) from error
    write_frame(stream, {})
    while True:
        name = commands.get()["call"]
        try:
            module, function, arguments = pickle.loads((place / name).read_bytes())
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                warnings.showwarning = here.warn
                value: tuple[bool, Any] = True, getattr(import_module(module), function)(here, *arguments)
        except Exception as error:
            value = False, _portable(error)
        result = place / f"{name}-result"
        result.write_bytes(pickle.dumps(value))
        write_frame(stream, {"result": result.name})


def _portable(error: Exception) -> Exception:
    """Returns the error if it can be pickled, else a ChildError with its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return ChildError(one_line(error))
    return error
