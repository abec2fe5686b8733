"""Memory that `ov-hsdag fit` predicts, against what compiled and running decoders take, in processes of their own.

    python benchmarks/memory_prediction.py [--contexts 512 4096 16384] [--device CPU]

Weights are what compiling and the first token add to a process, less OpenVINO's own overhead as `fit` has it: anonymous
memory, since the file stays mapped and can be dropped. States are what a run at the context has more than one at a
quarter of it, times 4/3: what does not grow falls out. Tokens are read in pieces, so that activations stay small.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import openvino as ov

from benchmarks.decoder_models import DecoderSize, write_decoder
from ov_hsdag.fit import fit

MODELS = {
    "f32, 8 layers, 1,024 wide": DecoderSize(8, 16, 64, 2816, 8000, "f32"),
    "u8, 12 layers, 1,024 wide": DecoderSize(12, 16, 64, 2816, 8000, "u8"),
    "i4, 16 layers, 1,024 wide": DecoderSize(16, 16, 64, 2816, 8000, "i4"),
}
PIECE = 128


def anonymous_bytes() -> int:
    """Anonymous resident memory of this process."""
    with open("/proc/self/status", encoding="ascii") as status:
        fields = dict(line.split(":", 1) for line in status)
    return int(fields["RssAnon"].split()[0]) * 1024


def run_child(path: str, tokens: int, precision: str) -> None:
    """Compiles and runs a decoder up to `tokens`, and prints bytes: compiled with a first token, and at the end."""
    core = ov.Core()
    model = core.read_model(path)
    before = anonymous_bytes()
    options = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": precision}
    request = core.compile_model(model, "CPU", options).create_infer_request()
    done, first = 0, 0
    while done < tokens:
        new = min(PIECE if done else 1, tokens - done)
        done += new
        request.infer(
            {
                "input_ids": np.ones((1, new), np.int64),
                "attention_mask": np.ones((1, done), np.int64),
                "position_ids": np.arange(done - new, done)[None],
                "beam_idx": np.zeros(1, np.int32),
            }
        )
        first = first or anonymous_bytes() - before
    print(json.dumps({"first": first, "last": anonymous_bytes() - before}))


def measured(path: Path, tokens: int, precision: str) -> dict[str, int]:
    """What `run_child` prints in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.memory_prediction", "--child", str(path), str(tokens), precision]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Prints a table: predicted and measured MiB of weights and states."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 4096, 16384])
    parser.add_argument("--kv-precision", default="u8")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_child(options.child[0], int(options.child[1]), options.child[2])
        return
    print(f"{'model':28}{'context':>9}{'weights':>22}{'states':>22}{'both':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for name, size in MODELS.items():
            path = write_decoder(size, Path(folder) / "decoder.xml")
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
                whole = measured(path, context, options.kv_precision)
                quarter = measured(path, context // 4, options.kv_precision)
                weights = whole["first"] - predicted.overhead
                states = (whole["last"] - quarter["last"]) * 4 // 3
                ratio = (weights + states) / (predicted.weights + predicted.states)
                columns = [
                    f"{of_prediction / 2**20:9.1f} / {of_run / 2**20:8.1f}"
                    for of_prediction, of_run in ((predicted.weights, weights), (predicted.states, states))
                ]
                print(f"{name:28}{context:9}{columns[0]:>22}{columns[1]:>22}{ratio:9.3f}", flush=True)


if __name__ == "__main__":
    main()
