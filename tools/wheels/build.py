"""Build the wheels on this machine, without containers: `make wheels`.

    python tools/wheels/build.py [PYTHON …] [--output dist]

PYTHON is an interpreter; without one, those of python3.10 to python3.14 that run here. It takes Linux on x86-64,
apt-get (Debian, Ubuntu) and g++ 11 or newer; elsewhere cibuildwheel does the same (pyproject.toml). The wheels are made
of the source distribution, and are the same whenever they are built of the same commit with the same compiler.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import sysroot

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "wheels"
PYTHONS = [f"python3.{minor}" for minor in range(10, 15)]


def run(*command: object, **environment: str) -> None:
    subprocess.run([str(part) for part in command], check=True, cwd=ROOT, env={**os.environ, **environment})


def runs(python: str) -> bool:
    if shutil.which(python) is None:
        return False
    return subprocess.run([python, "-c", ""], stderr=subprocess.DEVNULL, check=False).returncode == 0


def normalize(archive: Path, seconds: int) -> None:
    """The same files make the same archive: in order, of nobody, and of one time."""
    with tarfile.open(archive) as old:
        members = [(member, old.extractfile(member)) for member in sorted(old, key=lambda member: member.name)]
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as new:
            for member, content in members:
                member.uid = member.gid = 0
                member.uname = member.gname = ""
                member.mtime, member.pax_headers = seconds, {}
                member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
                new.addfile(member, content)
    with archive.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=seconds) as packed:
        packed.write(data.getvalue())


def source_distribution(output: Path, seconds: int) -> Path:
    """Of what git has, so that nothing else of this folder gets into it."""
    source = WORK / "checkout"
    shutil.rmtree(source, ignore_errors=True)
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in files.split("\0")[:-1]:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    run(WORK / "tools/bin/python", "-m", "build", "--quiet", "--sdist", "--outdir", output, source)
    archive = next(output.glob("ov_hsdag-*.tar.gz"))
    normalize(archive, seconds)
    return archive


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", nargs="*", help="an interpreter")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    arguments = parser.parse_args()
    pythons = arguments.python or [name for name in PYTHONS if runs(name)]
    for name in sorted(set(PYTHONS) - set(pythons)) if not arguments.python else ():
        print(f"no wheel for {name}, which is not here", file=sys.stderr)
    output = arguments.output.resolve()
    shutil.rmtree(output, ignore_errors=True)
    shutil.rmtree(WORK / "built", ignore_errors=True)
    WORK.mkdir(parents=True, exist_ok=True)

    epoch = (
        os.environ.get("SOURCE_DATE_EPOCH")
        or subprocess.run(
            ["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
    )
    tools = WORK / "tools/bin/python"
    if not tools.exists():
        run(sys.executable, "-m", "venv", WORK / "tools")
    files = ("-r", ROOT / "tools/wheels/requirements.txt", "-r", ROOT / "tools/wheels/release-requirements.txt")
    run(tools, "-m", "pip", "--quiet", "install", *files)
    compiler = str(sysroot.make(WORK / "toolchain"))
    common = {
        "SOURCE_DATE_EPOCH": epoch,
        "CC": compiler,
        "CXX": compiler,
        "PATH": f"{WORK / 'tools/bin'}{os.pathsep}{os.environ['PATH']}",
        "PIP_BUILD_CONSTRAINT": str(ROOT / "constraints.txt"),
        "OV_HSDAG_EXTENSION_DIR": str(WORK / "extension"),
        "PYTHONHASHSEED": "0",
    }
    run(tools, ROOT / "tools/wheels/extension.py", WORK / "extension", **common)
    archive = source_distribution(output, int(epoch))
    for python in pythons:
        built = WORK / "built" / Path(python).name
        pip = (tools, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", shutil.which(python) or python)
        run(*pip, "wheel", "--no-deps", "--wheel-dir", built, archive, **common)
        run(tools, ROOT / "tools/wheels/repair.py", next(built.glob("*.whl")), output, **common)
    for path in sorted(output.iterdir()):
        print(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}")


if __name__ == "__main__":
    main()
