"""Memory that `ov-hsdag fit` predicts, against what compiled and running decoders take, in processes of their own.

    python -m benchmarks.truth.memory_prediction [--contexts 512 4096 16384] [--kv-precision u8]

Memory is what is anonymous: the file stays mapped and can be dropped. Weights are what compiling and the first token
add, less OpenVINO's own overhead as `fit` has it. States are what is added by going on from the context: the request is
given states of that length (from a file, which does not count) and generates some tokens. Activations of prompts are
left out.

By default glibc keeps freed blocks of up to 32 MiB, and states grow by doubling: then all of it takes up to 1.6 times
as much. The processes run with MALLOC_MMAP_THRESHOLD_, which makes glibc give such blocks back.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from benchmarks.common.tables import markdown
from ov_hsdag.placing.memory_fit import fit
from ov_hsdag.storage.files import write_json
from research.zoo.decoders import DecoderSize
from research.zoo.stored_decoders import write_decoder

MODELS = {
    "f32, 8 layers, 1,024 wide": (DecoderSize(8, 16, 64, 2816, 8000), "f32"),
    "u8, 12 layers, 1,024 wide": (DecoderSize(12, 16, 64, 2816, 8000), "u8"),
    "i4, 16 layers, 1,024 wide": (DecoderSize(16, 16, 64, 2816, 8000), "i4"),
}
PROMPT, TOKENS = 128, 8
RESULTS = Path(__file__).parents[1] / "results" / "memory_prediction.json"
MOST_ERROR = 0.1


def anonymous_bytes() -> int:
    """Anonymous resident memory of this process."""
    with open("/proc/self/status", encoding="ascii") as status:
        fields = dict(line.split(":", 1) for line in status)
    return int(fields["RssAnon"].split()[0]) * 1024


def run_child(path: str, context: int, precision: str) -> None:
    """Compiles and runs a decoder up to a context, and prints bytes of weights and states, and of all."""
    core = ov.Core()
    model = core.read_model(path)
    before = anonymous_bytes()
    options = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": precision}
    request = core.compile_model(model, "CPU", options).create_infer_request()

    def step(past: int, new: int) -> None:
        request.infer(
            {
                "input_ids": np.ones((1, new), np.int64),
                "attention_mask": np.ones((1, past + new), np.int64),
                "position_ids": np.arange(past, past + new)[None],
                "beam_idx": np.zeros(1, np.int32),
            }
        )

    step(0, 1)
    weights = anonymous_bytes() - before
    step(1, PROMPT)
    step(1 + PROMPT, 1)
    running = anonymous_bytes()
    past = context - TOKENS
    with tempfile.TemporaryFile() as file:
        for state in request.query_state():
            batch, heads, length, size = state.state.shape
            filled: np.memmap[Any, Any] = np.memmap(file, np.float32, "w+", shape=(batch, heads, past, size))
            state.state = ov.Tensor(filled, True)
            held = length
        for number in range(TOKENS):
            step(past + number, 1)
        last = anonymous_bytes()
    # What it held before was part of what ran.
    states = (last - running) * context // (context - held)
    print(json.dumps({"weights": weights, "states": states, "all": last - before}))


def measured(path: Path, tokens: int, precision: str) -> dict[str, int]:
    """What `run_child` prints in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.truth.memory_prediction", "--child", str(path), str(tokens), precision]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
    )
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    """Prints a table: predicted and measured MiB of weights and states. Returns 1 where they are too far apart."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 4096, 16384])
    parser.add_argument("--kv-precision", default="u8")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_child(options.child[0], int(options.child[1]), options.child[2])
        return 0
    rows, lines, missed = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        for name, (size, kind) in MODELS.items():
            path = write_decoder(size, Path(folder) / "decoder.xml", kind)
            for context in options.contexts:
                core = ov.Core()
                core.set_property("CPU", {"INFERENCE_PRECISION_HINT": "f32"})
                predicted = fit(
                    core.read_model(path),
                    "HETERO:GPU,CPU",
                    context=context,
                    kv_precision=options.kv_precision,
                    core=core,
                ).singles["CPU"]
                found = measured(path, context, options.kv_precision)
                weights, states = found["weights"] - predicted.overhead, found["states"]
                ratio = (predicted.weights + predicted.states) / (weights + states)
                missed += abs(ratio - 1) > MOST_ERROR
                columns = [
                    f"{of_prediction / 2**20:.1f} / {of_run / 2**20:.1f}"
                    for of_prediction, of_run in ((predicted.weights, weights), (predicted.states, states))
                ]
                print(name, context, *columns, f"{ratio:.3f}", file=sys.stderr, flush=True)
                lines.append([name, str(context), *columns, f"{ratio:.3f}"])
                rows.append(
                    {
                        "model": name,
                        "context": context,
                        "predicted": {"weights": predicted.weights, "states": predicted.states},
                        "measured": {"weights": weights, "states": states, "all": found["all"]},
                        "ratio": ratio,
                    }
                )
    write_json(RESULTS, {"openvino": ov.__version__, "kv_precision": options.kv_precision, "rows": rows})
    print("predicted / measured, MiB\n")
    print(markdown(["", "context", "weights", "states", "ratio of both"], lines))
    print(f"{missed} of {len(rows)} are off by more than {MOST_ERROR:.0%}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
