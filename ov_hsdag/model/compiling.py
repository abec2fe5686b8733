"""Compiling in a process of its own.

Once a process has compiled anything and freed it, its forked children hang where they compile (docs/facts.md). So
whatever compiles to learn of a model, and not for its user, does it here: servers place a model and then start their
workers by fork.
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

_ENTRY = "ov_hsdag.model.compiling:main"

Result = TypeVar("Result")


class Here:
    """What functions have in the process that compiles."""

    def __init__(self, folder: Path, description: dict[str, Any], stream: IO[bytes]) -> None:
        self.core = same_core.like(description)  # as the caller's
        self.kept: dict[str, Any] = {}  # from one call to the next, whatever functions put there
        self._folder, self._stream = folder, stream
        self.model = cache(self._read)
        """Reads a model by the number that `Compiling.keep` returned, once."""

    def _read(self, number: int) -> ov.Model:
        return self.core.read_model(self._folder / f"{number}.xml")

    def report(self, text: str) -> None:
        """Tells the caller's `report` a few words."""
        write_frame(self._stream, {"report": text})

    def warn(self, message: Warning | str, *_: object, **__: object) -> None:
        """Hands a warning on."""
        write_frame(self._stream, {"warning": str(message)})


class Compiling(Child, AbstractContextManager["Compiling"]):
    """A process with a Core like the caller's, which calls functions. Ends with `close`, or where it is forgotten."""

    def __init__(self, core: ov.Core, names: Sequence[str]) -> None:
        """Starts it, still importing when this returns; names: of the devices that it is for.

        Raises RunError where no process can be started, or nothing temporary written.
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
        """Until it has imported OpenVINO. Raises ChildError where that fails."""
        if not self._ready:
            self._receive(None, "starting")
            self._ready = True

    def keep(self, model: ov.Model) -> int:
        """Writes a model, with unique friendly names, for functions to read; its placement is left out. Its number.

        Raises RunError where it cannot be written.
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
        """What `function(here, *arguments)` returns in that process.

        Args:
            function: of a module, called with a `Here`.
            arguments: what pickle takes; models by their numbers.
            doing: what it does, in a word, for messages.
            report: called with what the function reports.

        Raises:
            ChildError: the process has ended, by a crash or for lack of memory.
            Exception: whatever the function raises.
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
                warnings.warn(answer["warning"], stacklevel=3)
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
        path = self._folder / name
        path.write_bytes(pickle.dumps(value))
        return path


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # and not a fork of the process that it belongs to
        shutil.rmtree(folder, ignore_errors=True)


def main(folder: str) -> None:
    """In the process: does what it is asked for until its parent ends it, or is gone."""
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
    """The error, as it is where another process can have it."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return ChildError(one_line(error))
    return error
