"""Compile the extension library for each release of OpenVINO that tools/wheels/releases.txt names.

    python tools/wheels/extension.py FOLDER

Takes each release's wheel from PyPI, whichever Python it is for: the library knows only C++ headers and libopenvino.
setup.py puts FOLDER into the package where OV_HSDAG_EXTENSION_DIR names it.
"""

from __future__ import annotations

import platform
import runpy
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RELEASES = (ROOT / "tools" / "wheels" / "releases.txt").read_text(encoding="utf-8").split()
CACHE = ROOT / "build" / "openvino"
NEEDED = ("openvino/include/", "openvino/libs/libopenvino.so", "openvino/libs/openvino.", "openvino/cmake/")
# manylinux2014 is that of OpenVINO 2025; on aarch64 their wheels ask for glibc 2.35.
PLATFORMS = {
    "linux": ("manylinux2014_{0}", "manylinux_2_28_{0}", "manylinux_2_31_{0}", "manylinux_2_35_{0}"),
    "win32": ("win_amd64",),
}

# Not imported: importing the package would install its hooks.
BUILD = runpy.run_path(str(ROOT / "ov_hsdag" / "integration" / "extension_build.py"))


def wheel_of(release: str) -> Path:
    """OpenVINO's wheel, downloaded where it is not there yet."""
    folder = CACHE / release
    if not list(folder.glob("*.whl")):
        names = (name.format(platform.machine()) for name in PLATFORMS[sys.platform])
        options = [f"--platform={name}" for name in names]
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        wheel = ["--no-deps", "--only-binary=:all:", "--python-version=3.12", *options, f"openvino=={release}"]
        subprocess.run([*pip, "download", f"--dest={folder}", *wheel], check=True)
    return next(folder.glob("*.whl"))


def compile_with_cmake(openvino: Path, target: Path) -> None:
    """Windows, where the compiler is Visual Studio's."""
    with tempfile.TemporaryDirectory() as build:
        source = ["-S", str(ROOT / "transformations"), "-B", build, f"-DOpenVINO_DIR={openvino / 'cmake'}"]
        subprocess.run(["cmake", *source], check=True)
        subprocess.run(["cmake", "--build", build, "--config", "Release", "--parallel"], check=True)
        for path in Path(build).rglob(f"{BUILD['LOADER']}*"):
            shutil.copy(path, target / path.name)


def main() -> None:
    target = Path(sys.argv[1]).resolve()
    target.mkdir(parents=True, exist_ok=True)
    parts = {release: target / f"{BUILD['LOADER']}.{release[2:].replace('.', '')}" for release in RELEASES}
    for path in set(target.iterdir()) - {*parts.values(), target / BUILD["LOADER"]}:
        path.unlink()
    made_of = [*BUILD["sources"](ROOT), Path(__file__), ROOT / "ov_hsdag/integration/extension_build.py"]
    newest = max(path.stat().st_mtime for path in made_of)
    stale = [release for release, part in parts.items() if not part.exists() or part.stat().st_mtime <= newest]
    if stale and RELEASES[0] not in stale:
        stale.insert(0, RELEASES[0])  # the loader is of the release that is compiled last: always the same one
    for release in reversed(stale):
        part = parts[release]
        print(f"extension library for OpenVINO {release}", flush=True)
        with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel_of(release)) as wheel:
            wheel.extractall(folder, [name for name in wheel.namelist() if name.startswith(NEEDED)])
            if sys.platform == "win32":
                compile_with_cmake(Path(folder) / "openvino", target)
            else:
                BUILD["build"](ROOT, Path(folder) / "openvino", target)
        if not part.exists():
            sys.exit(f"there is no {part}")


if __name__ == "__main__":
    main()
