"""Try an installed wheel where there is no compiler: `make demo`'s steps, and the library for programs without Python.

    python wheels/try_wheel.py [--sample PROGRAM]

Runs with the environment's interpreter; it needs onnx for the model. PROGRAM is samples/cpp's placed_inference for this
release of OpenVINO.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEVICES = "HETERO:CPU_A,CPU_B"
ONE_CORE = "INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT=f32"


def run(*command: object, quiet: bool = True, **environment: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stdout[-3000:]}")
    if not quiet:
        print(done.stdout.strip(), flush=True)
    return done.stdout


def submodels(text: str) -> int:
    found = re.search(r"(?:submodels|HETERO_NUMBER_OF_SUBMODELS): (\d+)", text)
    return int(found[1]) if found else 0


def demo(folder: Path, scripts: Path) -> Path:
    """What `make demo` does."""
    source, placed = folder / "resnet50.onnx", folder / "resnet50.xml"
    virtual = {"OV_HSDAG_VIRTUAL_DEVICES": f"CPU_A:{ONE_CORE};CPU_B:{ONE_CORE}"}
    run(sys.executable, ROOT / "samples/python/export_resnet50.py", source, **virtual)
    options = ("--placement", DEVICES, "--placement_objective", "throughput", "--output_model", placed)
    run(scripts / "ovc", source, *options, **virtual)
    throughput = ROOT / "samples/python/throughput.py"
    run(sys.executable, throughput, placed, DEVICES, "CPU_A", "CPU_B", quiet=False, **virtual)
    return placed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=Path)
    arguments = parser.parse_args()
    scripts = Path(sys.executable).parent  # those of this environment; Windows has them there, too
    library = run(scripts / "ov-hsdag", "extension").strip()
    with tempfile.TemporaryDirectory() as temporary:
        placed = demo(Path(temporary), scripts)
        # Measuring may prefer one device; the split to follow is one that has several submodels.
        split = Path(temporary) / "split.xml"
        virtual = {"OV_HSDAG_VIRTUAL_DEVICES": f"CPU_A:{ONE_CORE};CPU_B:{ONE_CORE}"}
        place = ("place", placed, "--device", DEVICES, "--objective", "throughput", "--no-measure")
        run(scripts / "ov-hsdag", *place, "--output", split, **virtual)
        run(scripts / "ov-hsdag", "verify", split, "--device", DEVICES, **virtual)
        program = ROOT / "wheels/benchmark_app.py"
        options = ("-m", split, "-d", DEVICES, "-hint", "none", "-niter", "2", "-nireq", "1")
        by_library = submodels(run(sys.executable, program, *options, "-extensions", library, OV_HSDAG_DEVICE=DEVICES))
        without = submodels(run(sys.executable, program, *options))
        print(f"benchmark_app: {by_library} submodels with {Path(library).name}, {without} without")
        if by_library < 2 or without != 1:
            sys.exit("the library does not follow the placement")
        if arguments.sample:
            libs = run(sys.executable, "-c", "import openvino; print(openvino.__path__[0])").strip() + "/libs"
            text = run(arguments.sample, split, DEVICES, library, LD_LIBRARY_PATH=libs, OV_HSDAG_DEVICE=DEVICES)
            print(f"C++ sample: {submodels(text)} submodels")
            if submodels(text) != by_library:
                sys.exit(f"the C++ sample does not follow the placement as benchmark_app does:\n{text}")


if __name__ == "__main__":
    main()
