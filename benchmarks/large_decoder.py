"""Time and memory of `fit` and `place --no-measure` for a decoder of 7 billion int4 parameters with random weights.

    python benchmarks/large_decoder.py [--layers 32] [--keep DIR]

Writes about 4 GB for a while (8 while it builds). Memory is what is anonymous: weights stay mapped from the file.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from benchmarks.decoder_models import SEVEN_BILLION, write_decoder

MAIN = "import sys; from ov_hsdag.cli import main; sys.exit(main())"
DEVICES = "HETERO:GPU.0,GPU.1"


def watched(command: list[str]) -> tuple[int, float, float, str]:
    """Exit status, seconds, most anonymous memory in MiB, and output of a command."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    most = 0.0

    def watch() -> None:
        nonlocal most
        while process.poll() is None:
            try:
                status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
            except OSError:
                return
            anonymous = next((line for line in status.splitlines() if line.startswith("RssAnon")), None)
            most = max(most, int(anonymous.split()[1]) / 1024 if anonymous else 0.0)
            time.sleep(0.01)

    watcher = threading.Thread(target=watch)
    watcher.start()
    output = process.communicate()[0]
    seconds = time.perf_counter() - start
    watcher.join()
    return process.returncode, seconds, most, output


def main() -> None:
    """Builds the decoder, and prints what each command took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=SEVEN_BILLION.layers)
    parser.add_argument("--keep", type=Path, help="folder for the decoder, which is used again where it is there")
    options = parser.parse_args()
    holder = nullcontext(str(options.keep)) if options.keep else tempfile.TemporaryDirectory()
    with holder as folder, tempfile.TemporaryDirectory() as out:
        path = Path(folder) / "decoder.xml"
        if not path.exists():
            start = time.perf_counter()
            write_decoder(replace(SEVEN_BILLION, layers=options.layers), path)
            print(f"built in {time.perf_counter() - start:.0f} s", flush=True)
        print(f"weights: {path.with_suffix('.bin').stat().st_size / 1e9:.2f} GB")
        limit = int(path.with_suffix(".bin").stat().st_size * 0.7)
        shared = [str(path), "--device", DEVICES, "--context", "4096", "--memory", f"GPU.0={limit},GPU.1={limit}"]
        for name, more in {"fit": [], "place": ["--no-measure", "--output", f"{out}/placed.xml"]}.items():
            status, seconds, most, output = watched([sys.executable, "-c", MAIN, name, *shared, *more])
            first = output.splitlines()[0] if output else ""
            print(f"{name}: {seconds:.1f} s, {most:.0f} MiB, exit status {status}: {first}", flush=True)


if __name__ == "__main__":
    main()
