"""Try wheels where there is no compiler: an installed one, or those of a folder, installed as users do.

    python tools/wheels/try_wheel.py [--sample PROGRAM]
    python tools/wheels/try_wheel.py --index FOLDER [--root ROOT] [PYTHON …]

The first: `make demo`'s steps, and the library for programs without Python. It runs with the environment's interpreter,
and needs onnx for the model. PROGRAM is samples/cpp's placed_inference for this release of OpenVINO.

The second: an index on this machine has the folder's wheels, PyPI the rest. In a new environment of each PYTHON: pip
install, ov-hsdag doctor and README's quick start, in five minutes. ROOT is a folder to chroot into, with PYTHON in it;
without one, PATH is the environment alone. It takes pypiserver (tools/wheels/release-requirements.txt).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import wsgiref.simple_server
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEVICES = "HETERO:CPU_A,CPU_B"
ONE_CORE = "INFERENCE_NUM_THREADS=1,INFERENCE_PRECISION_HINT=f32"
NO_COMPILER = "for name in cc c++ gcc g++ clang clang++; do ! command -v $name || exit 1; done"
LIMIT = 300  # seconds, from an environment without packages to the end of the quick start


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


def quick_start() -> tuple[str, str]:
    """README's line that installs, for an index in place of a clone, and the rest as one shell script."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Quick start\n")[2].partition("\n## ")[0]
    *shell, python = (textwrap.dedent(block) for block in re.findall(r"(?:^ {4}.*\n)+", section, re.MULTILINE))
    install, _, rest = "".join(shell).partition("\n")
    return install.partition("#")[0].replace(" . ", " ov-hsdag ", 1), f"{rest}python -c '{python}'"


def try_as_user(python: str, index: str, root: Path | None) -> None:
    with tempfile.TemporaryDirectory(dir=root and root / "tmp") as temporary:
        within = [shutil.which("chroot"), root] if root else []
        home = Path("/", Path(temporary).relative_to(root)) if root else Path(temporary)
        run(*within, python, "-m", "venv", home / "env")
        shutil.copytree(ROOT / "samples", Path(temporary) / "samples")
        path = f"{home}/env/bin{':/usr/bin:/bin' if root else ''}"
        variables = {"PATH": path, "HOME": str(home), "PIP_EXTRA_INDEX_URL": index, "PIP_NO_CACHE_DIR": "1"}
        (install, rest), begin = quick_start(), time.monotonic()
        for script in (f"{NO_COMPILER}; python --version; {install} --quiet", "pip list", "ov-hsdag doctor", rest):
            run(*within, "/bin/sh", "-ec", f"cd {home}; {script}", quiet=False, **variables)
            print(f"== after {time.monotonic() - begin:.0f} of {LIMIT} s", flush=True)
    if time.monotonic() - begin > LIMIT:
        sys.exit(f"it took more than {LIMIT} s")


def try_from_index(folder: Path, pythons: list[str], root: Path | None) -> None:
    import pypiserver

    for name in [name for name in os.environ if name.startswith(("OV_HSDAG", "PYTHON"))]:
        del os.environ[name]
    index = pypiserver.app(roots=[folder], disable_fallback=True)
    with wsgiref.simple_server.make_server("127.0.0.1", 0, index) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for python in pythons:
            try_as_user(python, f"http://127.0.0.1:{server.server_port}/simple/", root)
        server.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=Path)
    parser.add_argument("--index", type=Path, help="a folder of wheels")
    parser.add_argument("--root", type=Path, help="a folder to chroot into")
    parser.add_argument("python", nargs="*", default=[sys.executable])
    arguments = parser.parse_args()
    if arguments.index:
        return try_from_index(arguments.index.resolve(), arguments.python, arguments.root and arguments.root.resolve())
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
        program = ROOT / "tools/wheels/benchmark_app.py"
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
