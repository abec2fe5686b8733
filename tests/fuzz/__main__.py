"""Fuzzes the readers of files for long: `python -m tests.fuzz --seconds 600 profile problem`.

With Atheris (`pip install atheris`) mutations follow the lines that they reach; without it they are random. A file that
is read badly is kept in build/fuzz, and `python -m tests.fuzz KIND --file FILE` reads it again.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOUND = Path("build/fuzz")

SLOWEST = 20
"""Seconds that reading one file of this size may take, under sanitizers and coverage."""

LARGEST = 1_000_000
"""Bytes of a file."""


def main() -> int:
    """Returns the exit status: 1 where a file was read badly."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="of files, see tests/fuzz/readers.py; default: all")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each kind")
    parser.add_argument("--jobs", type=int, default=1, help="kinds at once")
    parser.add_argument("--file", type=Path, help="read this file once")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # in this process
    options = parser.parse_args()
    FOUND.mkdir(parents=True, exist_ok=True)
    if options.file or options.here:
        (kind,) = options.kinds
        return read_once(kind, options.file) if options.file else fuzz(kind, options.seconds)
    kinds = options.kinds or all_kinds()
    command = [sys.executable, "-m", "tests.fuzz", "--here", "--seconds", str(options.seconds)]

    def run(kind: str) -> int:
        return subprocess.run([*command, kind], check=False).returncode

    with ThreadPoolExecutor(options.jobs) as pool:
        states = dict(zip(kinds, pool.map(run, kinds), strict=True))
    bad = [kind for kind, state in states.items() if state]
    print(f"read badly: {', '.join(bad)}; see {FOUND}" if bad else f"{len(kinds)} kinds of files, nothing found")
    return 1 if bad else 0


def all_kinds() -> list[str]:
    from tests.fuzz.readers import READERS

    return list(READERS)


def read_once(kind: str, file: Path) -> int:
    from tests.fuzz.readers import READERS, attempt

    print("read" if attempt(READERS[kind], file.read_bytes()) else "refused in one line")
    return 0


def fuzz(kind: str, seconds: float) -> int:
    """Fuzzes one kind of files in this process."""
    warnings.simplefilter("ignore")
    if importlib.util.find_spec("atheris") is None:
        return at_random(kind, seconds)
    import atheris

    with atheris.instrument_imports(include=["ov_hsdag"]):
        from tests.fuzz.readers import READERS, attempt

        for content in READERS[kind].seeds():
            attempt(READERS[kind], content)  # imports the rest: followed as well, and no time of the first file
    from tests.fuzz.mutation import mutated

    corpus = FOUND / kind
    corpus.mkdir(exist_ok=True)
    for content in READERS[kind].seeds():
        (corpus / hashlib.sha256(content).hexdigest()[:16]).write_bytes(content)

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        draw = random.Random(seed)
        changed = mutated(data, draw) if draw.random() < 0.5 else atheris.Mutate(data, most)
        return changed[:most]

    limits = [f"-max_total_time={int(seconds)}", f"-max_len={LARGEST}", f"-timeout={SLOWEST}", "-rss_limit_mb=6000"]
    files = [f"-artifact_prefix={FOUND}/{kind}-", str(corpus)]
    atheris.Setup([sys.argv[0], *limits, *files], lambda data: attempt(READERS[kind], data), custom_mutator=mutate)
    atheris.Fuzz()  # ends the process
    return 0


def at_random(kind: str, seconds: float) -> int:
    """Fuzzes one kind of files without feedback."""
    from tests.fuzz.mutation import mutated
    from tests.fuzz.readers import READERS, attempt

    signal.signal(signal.SIGALRM, _too_slow)
    seeds, begin, rounds, taken = READERS[kind].seeds(), time.monotonic(), 0, 0
    draw = random.Random(os.urandom(8))
    while time.monotonic() - begin < seconds:
        content = mutated(draw.choice(seeds), draw)[:LARGEST]
        signal.alarm(SLOWEST)
        try:
            taken += attempt(READERS[kind], content)
        except BaseException as error:
            _keep(kind, content, error)
            raise
        finally:
            signal.alarm(0)
        rounds += 1
    print(f"{kind}: {rounds:,} files, {taken:,} of them read")
    return 0


def _too_slow(number: int, frame: object) -> None:
    raise TimeoutError(f"reading took more than {SLOWEST} s")


def _keep(kind: str, content: bytes, error: BaseException) -> None:
    path = FOUND / f"{kind}-crash-{hashlib.sha256(content).hexdigest()[:16]}"
    path.write_bytes(content)
    print(f"{kind}: {type(error).__name__}; the file is {path}", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
