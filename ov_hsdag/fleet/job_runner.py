"""A job on the machine that has the devices: the other end of `ov_hsdag.fleet.cluster`, without Ray in it.

The command runs in a process of its own, so that a crash of a device's driver ends the job and nothing else. The
process ends with this one, whatever ends that. Files are kept by their content as long as `ov-hsdag worker` runs, so
that a model travels to a machine once.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from socket import gethostname
from typing import IO, Any

from ov_hsdag.fleet.job import OUT, safe
from ov_hsdag.storage.files import PREFIX
from ov_hsdag.utils.reading import file_digest

FOLDER = "OV_HSDAG_WORKER_FOLDER"
"""Environment variable: where files are kept while `ov-hsdag worker` runs, which sets it."""

_STORE, _JOB = "files", "job-"

_PRINTED = "printed"  # what a job prints, in its folder

_MOST = 64 << 30  # bytes of files that are kept beyond a job

_DIGEST = re.compile(r"[0-9a-f]{64}")

# Bytes of a file that is saved while a job runs: a larger one is no record of what has been done.
_RECORD = 64 << 20

# The process finds packages where this one does. It ends with the pipe from its parent.
_PROGRAM = """
import json, os, sys, threading
pipe, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
os.dup2(nothing, 0)
threading.Thread(target=lambda: (os.read(pipe, 1), os._exit(1)), daemon=True).start()
sys.path[:], sys.argv[0] = json.loads(sys.argv.pop(1)), "ov-hsdag"
from ov_hsdag.cli import main
main()
"""

# What Ray sets in its workers, for programs that share a machine; a job has the machine for itself.
_RAYS = ("OMP_NUM_THREADS",)


class JobRunner:
    """One job after the other; `begin` starts one."""

    def __init__(self) -> None:
        self._root = Path(os.environ[FOLDER])
        self._store = self._root / _STORE
        self._store.mkdir(parents=True, exist_ok=True)
        for left in self._root.glob(f"{_JOB}*"):  # of a driver that has gone: there is one job at a time
            shutil.rmtree(left, ignore_errors=True)
        for left in self._store.glob("*.part"):
            left.unlink(missing_ok=True)
        self._job = self._root
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader: threading.Thread | None = None
        self._stamps: dict[str, tuple[int, int]] = {}  # of the files that were reported as saved

    def host(self) -> str:
        """The name of this machine."""
        return gethostname()

    def lacking(self, digests: Sequence[str]) -> list[str]:
        """Those of the contents that are not kept here."""
        return [digest for digest in dict.fromkeys(digests) if not self._kept(digest).is_file()]

    def take(self, digest: str, offset: int, data: bytes, last: bool) -> None:
        """Take a piece of a content; pieces come in order. ValueError: the whole is not what its digest says."""
        kept = self._kept(digest)
        part = kept.with_suffix(".part")
        with open(part, "r+b" if offset else "wb") as file:
            file.seek(offset)
            file.write(data)
        if not last:
            return
        if file_digest(part) != digest:
            part.unlink()
            raise ValueError("a file did not arrive as it was sent")
        part.chmod(0o444)
        os.replace(part, kept)

    def begin(self, words: Sequence[str], files: Mapping[str, str], saved: Mapping[str, bytes] | None = None) -> None:
        """Start the command.

        files: path in the job's folder → digest of its content, which is kept here. saved: path → content, of what
        `events` has reported elsewhere.
        """
        self._forget(set(files.values()))
        self._job, self._stamps = Path(tempfile.mkdtemp(prefix=_JOB, dir=self._root)), {}
        for name in {**files, **(saved or {})}:
            (self._job / safe(name)).parent.mkdir(parents=True, exist_ok=True)
        for name, digest in files.items():
            kept = self._kept(digest)
            os.utime(kept)
            # What is only read may be the very file that is kept.
            _place(kept, self._job / safe(name), link=not safe(name).is_relative_to(OUT))
        for name, data in (saved or {}).items():
            (self._job / safe(name)).write_bytes(data)
        environment = {name: value for name, value in os.environ.items() if name not in _RAYS}
        with open(self._job / _PRINTED, "wb") as printed:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, json.dumps(sys.path), *words],
                stdin=subprocess.PIPE,
                stdout=printed,
                stderr=subprocess.PIPE,
                cwd=self._job,
                env={**environment, "PYTHONUNBUFFERED": "1", "COLUMNS": "100000"},
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read_lines, args=(self._process.stderr,), daemon=True)
        self._reader.start()

    def events(self, seconds: float, saved: str = "") -> dict[str, Any]:
        """What has happened since the last call; waits for something at most so many seconds.

        "lines": of its standard error; "status": of the exit, negative for a signal, None while it runs; "saved":
        contents of those files of what is saved that have changed; "out": its standard output, once it has ended.
        """
        assert self._process is not None and self._reader is not None
        end = time.monotonic() + seconds
        lines: list[str] = []
        status: int | None = None
        while status is None and not lines and time.monotonic() < end:
            with contextlib.suppress(queue.Empty):
                lines.append(self._lines.get(timeout=0.05))
            status = self._process.poll()
        if status is not None:
            self._reader.join(5)
        while not self._lines.empty():
            lines.append(self._lines.get())
        changed = {}
        for name, found in self._below(saved) if saved else ():
            stamp = found.st_mtime_ns, found.st_ino
            recorded = found.st_size <= _RECORD and not name.rpartition("/")[2].startswith(PREFIX)
            if recorded and self._stamps.get(name) != stamp:
                with contextlib.suppress(FileNotFoundError):
                    changed[name], self._stamps[name] = self.read(name), stamp
        out = "" if status is None else (self._job / _PRINTED).read_text("utf-8", "replace")
        return {"lines": lines, "status": status, "saved": changed, "out": out}

    def listing(self, folder: str) -> dict[str, int]:
        """Sizes of the files below a folder of the job, or of the file of that name; by their paths in the job."""
        return {name: status.st_size for name, status in self._below(folder)}

    def read(self, name: str, offset: int = 0, size: int = -1) -> bytes:
        """A piece of a file of the job."""
        with open(self._job / safe(name), "rb") as file:
            file.seek(offset)
            return file.read(size)

    def end(self) -> None:
        """Ends the process, if it still runs, and forgets the job."""
        if self._process is not None:
            if self._process.stdin is not None:
                with contextlib.suppress(OSError):
                    self._process.stdin.close()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._job != self._root:
            shutil.rmtree(self._job, ignore_errors=True)
            self._job = self._root

    def _below(self, folder: str) -> Iterator[tuple[str, os.stat_result]]:
        """The files below a folder of the job, or the file of that name: paths in the job, and what they are."""
        base = self._job / safe(folder)
        for one in sorted(base.rglob("*")) or [base]:
            try:
                status = one.lstat()
            except OSError:  # it is not there, or no longer
                continue
            if stat.S_ISREG(status.st_mode):
                yield one.relative_to(self._job).as_posix(), status

    def _kept(self, digest: str) -> Path:
        if not _DIGEST.fullmatch(digest):
            raise ValueError("no digest")
        return self._store / digest

    def _forget(self, needed: set[str]) -> None:
        """Removes what was not needed for longest, where more is kept than may be."""
        kept = sorted(self._store.iterdir(), key=lambda path: path.stat().st_mtime)
        total = sum(path.stat().st_size for path in kept)
        for path in kept:
            if total <= _MOST:
                break
            if path.name not in needed:
                total -= path.stat().st_size
                path.unlink()

    def _read_lines(self, stream: IO[bytes]) -> None:
        for line in stream:
            self._lines.put(line.decode(errors="replace").rstrip())


def _place(kept: Path, target: Path, link: bool) -> None:
    """Gives a job a file that is kept."""
    if link:
        with contextlib.suppress(OSError):
            os.link(kept, target)
            return
    shutil.copyfile(kept, target)
