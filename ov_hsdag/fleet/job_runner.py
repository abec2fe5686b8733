"""Runs jobs on the machine that has the devices, for `ov_hsdag.fleet.cluster`; does not use Ray itself.

The command runs in a process of its own, so that a crash of a device's driver ends only the job. That process ends with
this one, however this one ends. Files are stored by their digest as long as `ov-hsdag worker` runs, so that a model is
sent to a machine only once.

A job runs in a folder of its own, and paths of its files are relative to that folder. Files that it saves are copied
back while it runs, so that another machine can continue from them.
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

from ov_hsdag.fleet.job_files import safe
from ov_hsdag.jobs.job import OUT
from ov_hsdag.storage.files import PREFIX
from ov_hsdag.utils.reading import file_digest

FOLDER = "OV_HSDAG_WORKER_FOLDER"
"""Environment variable, set by `ov-hsdag worker`: the folder for files of jobs while it runs."""

_STORE, _JOB = "files", "job-"

_PRINTED = "printed"  # file in a job's folder with its standard output

_MOST = 64 << 30  # bytes of stored files; beyond it, those that no job has used for longest are removed

_DIGEST = re.compile(r"[0-9a-f]{64}")

# Largest file, in bytes, that is sent back while a job runs: checkpoints are smaller, and larger files are outputs.
_RECORD = 64 << 20

# Runs our command line with the search path of this process, and ends when the pipe from its parent closes.
_PROGRAM = """
import json, os, sys, threading
pipe, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
os.dup2(nothing, 0)
threading.Thread(target=lambda: (os.read(pipe, 1), os._exit(1)), daemon=True).start()
sys.path[:], sys.argv[0] = json.loads(sys.argv.pop(1)), "ov-hsdag"
from ov_hsdag.cli import main
main()
"""

# Variables that Ray sets in its workers because they share a machine; a job has the machine to itself.
_VARIABLES_OF_RAY = ("OMP_NUM_THREADS",)


class JobRunner:
    """Runs one job at a time.

    The caller sends files with `take`, starts the job with `begin`, calls `events` until there is an exit status, reads
    the outputs with `listing` and `read`, and calls `end`.
    """

    def __init__(self) -> None:
        """Opens the store in the folder that `FOLDER` names, and removes what earlier jobs left there."""
        self._root = Path(os.environ[FOLDER])
        self._store = self._root / _STORE
        self._store.mkdir(parents=True, exist_ok=True)
        for left in self._root.glob(f"{_JOB}*"):  # leftovers of a driver that has gone, as jobs do not overlap
            shutil.rmtree(left, ignore_errors=True)
        for left in self._store.glob("*.part"):
            left.unlink(missing_ok=True)
        self._job = self._root
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader: threading.Thread | None = None
        self._stamps: dict[str, tuple[int, int]] = {}  # modification time and inode of each file reported as saved

    def host(self) -> str:
        """The name of this machine."""
        return gethostname()

    def lacking(self, digests: Sequence[str]) -> list[str]:
        """Returns those of the digests (SHA-256, hexadecimal) whose files are not stored here, each once."""
        return [digest for digest in dict.fromkeys(digests) if not self._kept(digest).is_file()]

    def take(self, digest: str, offset: int, data: bytes, last: bool) -> None:
        """Stores a piece of a file; pieces come in order.

        Args:
            digest: SHA-256 of the whole file, in hexadecimal.
            offset: position of the piece in bytes.
            data: the piece.
            last: whether it is the last one.

        Raises:
            ValueError: `digest` is no SHA-256, or the whole file has another digest.
        """
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
        """Starts a command in a new folder.

        Args:
            words: the words after "ov-hsdag".
            files: path in the job's folder → digest of a stored file.
            saved: path in the job's folder → content, for files that `events` reported on another machine; None for
                none.

        Raises:
            ValueError: a path leads out of the job's folder.
            OSError: the files cannot be written, or the process cannot be started.
        """
        self._forget(set(files.values()))
        self._job, self._stamps = Path(tempfile.mkdtemp(prefix=_JOB, dir=self._root)), {}
        for name in {**files, **(saved or {})}:
            (self._job / safe(name)).parent.mkdir(parents=True, exist_ok=True)
        for name, digest in files.items():
            kept = self._kept(digest)
            os.utime(kept)
            # A file that is only read is a hard link to the stored one; files in `OUT` are copies, as they may change.
            _place(kept, self._job / safe(name), link=not safe(name).is_relative_to(OUT))
        for name, data in (saved or {}).items():
            (self._job / safe(name)).write_bytes(data)
        environment = {name: value for name, value in os.environ.items() if name not in _VARIABLES_OF_RAY}
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
        """Returns the events of the job since the last call; waits until there is a line or the job has ended.

        Args:
            seconds: longest time to wait, seconds.
            saved: file or folder in the job whose changed files are returned; "" for none.

        Returns:
            "lines", those of its standard error; "status", its exit status, negative for a signal, None while it runs;
            "saved", contents of the files below `saved` that have changed, by path; "out", its standard output once it
            has ended, "" before.
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
        """Returns the sizes of the files below a folder in the job, or of the one file of that name, bytes by path."""
        return {name: status.st_size for name, status in self._below(folder)}

    def read(self, name: str, offset: int = 0, size: int = -1) -> bytes:
        """Reads a piece of a file of the job.

        Args:
            name: path in the job.
            offset: position in bytes.
            size: bytes, at most; -1 for the rest of the file.

        Returns:
            The bytes; fewer than `size` at the end of the file.
        """
        with open(self._job / safe(name), "rb") as file:
            file.seek(offset)
            return file.read(size)

    def end(self) -> None:
        """Ends the process, if it still runs, and removes the job's folder."""
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
        """Yields path in the job and status of the regular files below a folder, or of the one file of that name."""
        base = self._job / safe(folder)
        for path in sorted(base.rglob("*")) or [base]:
            try:
                status = path.lstat()
            except OSError:  # the file does not exist, or was removed meanwhile
                continue
            if stat.S_ISREG(status.st_mode):
                yield path.relative_to(self._job).as_posix(), status

    def _kept(self, digest: str) -> Path:
        """Returns the path at which the file of a digest is stored. Raises ValueError for a text that is no digest."""
        if not _DIGEST.fullmatch(digest):
            raise ValueError("no digest")
        return self._store / digest

    def _forget(self, needed: set[str]) -> None:
        """Removes the stored files that were unused for longest until at most `_MOST` bytes are stored.

        Args:
            needed: digests of files that stay in any case.
        """
        kept = sorted(self._store.iterdir(), key=lambda path: path.stat().st_mtime)
        total = sum(path.stat().st_size for path in kept)
        for path in kept:
            if total <= _MOST:
                break
            if path.name not in needed:
                total -= path.stat().st_size
                path.unlink()

    def _read_lines(self, stream: IO[bytes]) -> None:
        """Puts the lines of the command's standard error into `_lines` until it ends, in a thread of its own."""
        for line in stream:
            self._lines.put(line.decode(errors="replace").rstrip())


def _place(kept: Path, target: Path, link: bool) -> None:
    """Puts a stored file into a job's folder, as a hard link or a copy.

    Args:
        kept: the stored file.
        target: its path in the job's folder.
        link: whether it becomes a hard link where the file system has them; a copy otherwise.
    """
    if link:
        with contextlib.suppress(OSError):
            os.link(kept, target)
            return
    shutil.copyfile(kept, target)
