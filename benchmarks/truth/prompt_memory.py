"""Compares the memory that a prompt takes with what `fit` counts, on decoders with random weights and the CPU plugin.

    python -m benchmarks.truth.prompt_memory [--tokens 2000 3900]

Each row is a decoder and the length of a prompt that it reads at once, in f32. Printed are the states and tensors as
`fit` counts them; by how much the peak of memory of a child process exceeds its memory after compiling; and the ratio
of the two. It runs on Linux only. Exit status 1 if a prompt takes more than `MOST` times the counted memory plus `OWN`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np

from benchmarks.common.tables import markdown
from benchmarks.field.unseen import DEVICES, declared
from ov_hsdag.devices.virtual import VIRTUAL_DEVICES_VARIABLE, new_core
from ov_hsdag.kit.decoder import DecoderSize, decoder
from ov_hsdag.model.workload import Workload, decoder_shapes
from ov_hsdag.placing.memory_fit import Need, fit
from ov_hsdag.utils.lazy import ov
from tests.decoders import EXACT, RandomWeights, share_states

SMOKE_ARGUMENTS = "--tokens 100"
"""The arguments with which this command is quickest, for `make figures-smoke`."""

MOST = 1.1
"""Largest memory of a prompt, in addition to `OWN`, as a multiple of the counted memory."""

OWN = 20.0
"""MiB that OpenVINO itself needs in a first inference of such a model, and that `fit` does not count."""

DECODERS = {
    "64 logits": (DecoderSize(4, 4, 32, 256, 64, shared=2), False),
    "60,000 logits": (DecoderSize(4, 4, 32, 256, 60_000, shared=2), False),
    "64 logits, two of four layers share states": (DecoderSize(4, 4, 32, 256, 64, shared=2), True),
    "60,000 logits, two of four layers share states": (DecoderSize(4, 4, 32, 256, 60_000, shared=2), True),
}
"""Sizes, and whether the last two layers read the states of others."""


def build(size: DecoderSize, sharing: bool) -> ov.Model:
    """A decoder with random weights. sharing: whether its last two layers read the states of the two before them."""
    model = decoder(size, RandomWeights(0))
    if sharing:
        share_states(model)
    return model


def counted(model: ov.Model, tokens: int) -> tuple[Need, int]:
    """Returns the need of a prompt of some tokens on a CPU device as `fit` counts it, and the bytes of the outputs.

    States are in f32.
    """
    with mock.patch.dict("os.environ", {VIRTUAL_DEVICES_VARIABLE: declared()}):
        workload = Workload(tokens, 1)
        result = fit(model, DEVICES.names, workload=workload, kv_precision="f32", core=new_core())
    return result.singles[DEVICES.names[0]], result.output_bytes


def peak(model: ov.Model, tokens: int) -> int:
    """Bytes by which the first prompt raises the peak of memory of a child process above that after compiling."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "decoder.xml"
        ov.save_model(model, path, compress_to_fp16=False)
        # Blocks that are freed go back to the system at once (docs/reference/facts.md).
        environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
        command = [
            sys.executable,
            "-m",
            "benchmarks.truth.prompt_memory",
            "--peak-of",
            str(path),
            "--tokens",
            str(tokens),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return int(done.stdout)


def _peak_here(path: Path, tokens: int) -> int:
    """Measures `peak` in this process. path: IR of the model."""
    core = ov.Core()
    model = core.read_model(path)
    request = core.compile_model(model, "CPU", {**EXACT, "INFERENCE_NUM_THREADS": 1}).create_infer_request()
    shapes = decoder_shapes(model, 1, tokens, tokens)
    types = {port.get_any_name(): port.get_element_type().to_dtype() for port in model.inputs}
    feeds = {name: np.ones(shapes[name], element) for name, element in types.items()}
    feeds["beam_idx"][:] = 0
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _resident("VmRSS")
    request.start_async(feeds)  # `infer` would copy the outputs
    request.wait()
    return _resident("VmHWM") - before


def _resident(key: str) -> int:
    """Resident memory of this process in bytes. key: "VmRSS" for the present one, "VmHWM" for its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) * 1024


def rows(lengths: list[int]) -> Iterator[tuple[str, int, float, float]]:
    """Yields the rows of the table: name of the decoder, length of the prompt, counted MiB, MiB that it took."""
    for name, (size, sharing) in DECODERS.items():
        model = build(size, sharing)
        for tokens in lengths:
            need, _ = counted(model, tokens)
            yield name, tokens, (need.states + need.activations) / 2**20, peak(model, tokens) / 2**20


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[2000, 3900], help="lengths of prompts")
    parser.add_argument("--peak-of", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak_of:
        print(_peak_here(options.peak_of, options.tokens[0]))
        return
    found = list(rows(options.tokens))
    heads = ("decoder", "prompt", "counted, MiB", "took, MiB", "took / counted")
    lines = [
        (name, f"{tokens:,}", f"{most:.0f}", f"{took:.0f}", f"{took / most:.2f}") for name, tokens, most, took in found
    ]
    print(markdown(heads, lines))
    sys.exit(any(took > MOST * most + OWN for _, _, most, took in found))


if __name__ == "__main__":
    main()
