"""A decoder of 7 billion int4 parameters with random weights: `fit`, `place --no-measure`, and runs on two devices.

    python -m benchmarks.truth.large_decoder [--layers 32] [--keep DIR]

Needs 4 GB of disk for the model (8 while it is built) and 8 GiB of memory. Memory of the commands is what is anonymous:
weights stay mapped from the file. The placed folder is written by `place`, and shares the weights by a hard link.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from ov_hsdag.devices import virtual
from ov_hsdag.storage.files import write_json
from research.zoo.stored_decoders import SEVEN_BILLION, write_decoder

MAIN = "import sys; from ov_hsdag.cli import main; sys.exit(main())"
RUN = "import sys; from benchmarks.truth.large_decoder import run; run(*sys.argv[1:])"
NAMES = ("CPU_A", "CPU_B")
DECLARED = ";".join(f"{name}:INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT=f32" for name in NAMES)
HETERO = f"HETERO:{','.join(NAMES)}"
CONTEXT, SHARE = 4096, 0.6
PROMPT, TOKENS = 16, 8
RESULTS = Path(__file__).parents[1] / "results" / "large_decoder.json"

# Seconds, and MiB beside the mapped weights.
LIMITS = {"fit": (5.0, 1024.0), "place": (20.0, 1536.0)}


def cpu_seconds() -> float:
    """Seconds on cores of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def watched(command: list[str]) -> tuple[int, float, float, str]:
    """Exit status, seconds, most anonymous memory in MiB, and standard output of a command."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
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


def run(path: str, device: str) -> None:
    """Compiles a model and generates; prints tokens, submodels and seconds as JSON. In a process of its own."""
    import ov_hsdag.integration.core  # noqa: F401 follows placements

    core = ov.Core()
    virtual.register(core)
    begin = time.perf_counter()
    compiled = core.compile_model(core.read_model(path), device, virtual.compile_properties(device))
    compiling = time.perf_counter() - begin
    request = compiled.create_infer_request()
    tokens: list[int] = []
    ids, done, seconds = np.arange(PROMPT)[None] * 97 % 32000, 0, []
    while len(tokens) < TOKENS:
        done += ids.shape[1]
        begin = time.perf_counter()
        request.infer(
            {
                "input_ids": ids,
                "attention_mask": np.ones((1, done), np.int64),
                "position_ids": np.arange(done - ids.shape[1], done)[None],
                "beam_idx": np.zeros(1, np.int32),
            }
        )
        seconds.append(time.perf_counter() - begin)
        tokens.append(int(request.get_output_tensor(0).data[0, -1].argmax()))
        ids = np.array([[tokens[-1]]])
    submodels = int(compiled.get_property("HETERO_NUMBER_OF_SUBMODELS")) if device.startswith("HETERO") else 1
    found = {
        "compiling_seconds": compiling,
        "first_seconds": seconds[0],
        "token_seconds": float(np.median(seconds[2:])),
    }
    print(json.dumps({"tokens": tokens, "submodels": submodels, **found}))


def main() -> int:
    """Builds the decoder, and prints what each command took. Returns 1 where one misses its limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=SEVEN_BILLION.layers)
    parser.add_argument("--keep", type=Path, help="folder for the decoder, which is used again where it is there")
    options = parser.parse_args()
    os.environ[virtual.VIRTUAL_DEVICES_VARIABLE] = DECLARED
    holder = nullcontext(str(options.keep)) if options.keep else tempfile.TemporaryDirectory()
    missed: list[str] = []
    found: dict[str, Any] = {"openvino": ov.__version__, "layers": options.layers}
    with holder as name, tempfile.TemporaryDirectory(dir=name) as out:
        folder = Path(name) / "decoder"
        path = folder / "openvino_model.xml"
        if not path.exists():
            folder.mkdir(exist_ok=True)
            start = time.perf_counter()
            write_decoder(replace(SEVEN_BILLION, layers=options.layers), path, "i4")
            print(f"built in {time.perf_counter() - start:.0f} s", flush=True)
        found["weights_bytes"] = path.with_suffix(".bin").stat().st_size
        print(f"weights: {found['weights_bytes'] / 1e9:.2f} GB")

        def command(name: str, *more: str) -> dict[str, Any]:
            shared = [str(folder), "--device", HETERO, "--context", str(CONTEXT), "--json"]
            before = cpu_seconds()
            status, seconds, most, output = watched([sys.executable, "-c", MAIN, name, *shared, *more])
            on_cores = cpu_seconds() - before
            print(
                f"{name}: {seconds:.1f} s ({on_cores:.1f} s on cores), {most:.0f} MiB, exit status {status}", flush=True
            )
            found[name] = {"seconds": seconds, "cpu_seconds": on_cores, "mib": most}
            if status or seconds > LIMITS[name][0] or most > LIMITS[name][1]:
                missed.append(name)
            told: dict[str, Any] = json.loads(output) if output else {}
            return told

        need = command("fit", "--memory", ",".join(f"{name}=1000GiB" for name in NAMES))
        limit = int(need["singles"][NAMES[0]]["needed"] * SHARE)
        memory = ("--memory", f"{NAMES[0]}={limit},{NAMES[1]}={limit}")
        placed = Path(out) / "placed"
        told = command("place", *memory, "--no-measure", "--output", str(placed))
        if told:
            model = told["models"][path.name]
            own = sum(os.path.getsize(file) for file in placed.iterdir() if file.stat().st_nlink == 1)
            found["place"] |= {"phases": model["seconds"], "predicted": model["predicted"], "own_bytes": own}
            print(f"place: {model['seconds']}; disk beside shared weights: {own / 1e6:.1f} MB", flush=True)
            runs = {}
            for device, of in ((HETERO, placed / path.name), (NAMES[0], path)):
                status, _, most, output = watched([sys.executable, "-c", RUN, str(of), device])
                runs[device] = {**(json.loads(output.splitlines()[-1]) if not status else {}), "mib": most}
                print(f"{device}: {runs[device]}", flush=True)
            found["runs"] = runs
            if runs[HETERO].get("submodels") != len(NAMES) or runs[HETERO]["tokens"] != runs[NAMES[0]]["tokens"]:
                missed.append("run")
    write_json(RESULTS, found)
    for name in missed:
        print(f"missed: {name}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
