"""Compiles the extension library against an OpenVINO that is installed with pip.

It imports the standard library only, as setup.py uses it before the packages that ov_hsdag needs are installed; the
other user is ``ov-hsdag extension --build``. The CMake project in transformations/ builds the same for C++ users.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LOADER = "ov_hsdag_extension.dll" if sys.platform == "win32" else "libov_hsdag_extension.so"
"""File that programs load. The same folder has one part for each release of OpenVINO: LOADER + ".2641"."""

CORE_FILES = ("colocation", "complete", "experts", "graph", "groups", "hetero", "repair", "strong_components")
"""Files of the native core, cpp_ext, that the library contains."""

_LOADER_FILES = ("extension_loader", "platform_linux")
_NOT_IN_IT = ("platform_windows", "apply_placement", "compile_model")  # the last two: for C++ programs that link them


class BuildError(Exception):
    """The library cannot be built or found; the message is one line with the reason."""


def installed_openvino() -> Path | None:
    """The folder of the package openvino in the target environment, also from pip's isolated build; None without it."""
    for key in ("platlib", "purelib"):
        package = Path(sysconfig.get_paths()[key]) / "openvino"
        if (package / "__init__.py").exists():
            return package
    return None


def release(openvino: Path) -> str:
    """The release of an openvino package as in its libraries' names: "2641" for 2026.4.1. Raises BuildError."""
    if sys.platform == "win32":  # openvino.dll has no release in its name
        version = openvino / "cmake" / "OpenVINOConfig-version.cmake"
        text = version.read_text(encoding="utf-8") if version.exists() else ""
        numbers = re.findall(r"PACKAGE_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", text)
        if len(numbers) != 3:
            raise BuildError(f"there is no release of OpenVINO in {version}")
        return f"{int(numbers[0]) % 100}{numbers[1]}{numbers[2]}"
    return _library(openvino).name.rpartition(".")[2]


def sources(root: Path) -> list[Path]:
    """Lists the C++ files of the library, those of the core first.

    Args:
        root: the folder with cpp_ext/ and transformations/.
    """
    core = [root / "cpp_ext" / f"{name}.{kind}" for name in CORE_FILES for kind in ("cpp", "hpp")]
    own = [path for folder in ("include", "src") for path in (root / "transformations" / folder).rglob("*.[ch]pp")]
    return [*core, *sorted(own)]


def build(root: Path, openvino: Path, target: Path, options: Sequence[str] = ()) -> Path:
    """Compiles the library, which takes about half a minute.

    Args:
        root: the folder with cpp_ext/ and transformations/.
        openvino: the package's folder, whose headers and library are used.
        target: folder for the library; it is made if necessary, and unchanged where compiling fails.
        options: further options of the compiler.

    Returns:
        The path of the loader in ``target``.

    Raises:
        BuildError: another system than Linux, no compiler, no headers, or an error of the compiler.
        OSError: the library cannot be written.
    """
    if sys.platform != "linux":
        raise BuildError("it is built on Linux only; for Windows there is the CMake project in transformations/")
    compiler = shlex.split(os.environ.get("CXX", "")) or [shutil.which("g++") or shutil.which("c++") or ""]
    if not shutil.which(compiler[0]):
        raise BuildError("there is no C++ compiler (install g++, or name one in the variable CXX)")
    library = _library(openvino)
    if not (openvino / "include" / "openvino" / "openvino.hpp").exists():
        raise BuildError(f"the OpenVINO in {openvino} has no C++ headers")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        command = [
            *(*compiler, "-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", *options),
            f"-D_GLIBCXX_USE_CXX11_ABI={_abi(openvino)}",
            *(f"-I{root / part}" for part in ("cpp_ext", "transformations/include", "transformations/src")),
            *("-isystem", str(openvino / "include")),
            # The library then contains no path of this machine: the same sources make the same file anywhere.
            *(f"-ffile-prefix-map={path}={name}" for path, name in ((root, "."), (openvino, "openvino"))),
        ]
        units = [path for path in sources(root) if path.suffix == ".cpp" and path.stem not in _NOT_IN_IT]
        objects = {path: folder / f"{path.stem}.o" for path in units}
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda path: _run([*command, "-c", str(path), "-o", str(objects[path])]), units))
        loader_objects = [str(made) for path, made in objects.items() if path.stem in _LOADER_FILES]
        parts = [str(made) for path, made in objects.items() if path.stem != _LOADER_FILES[0]]
        link = [*compiler, "-shared", "-Wl,--no-undefined"]
        # The library gets no search path for OpenVINO: the program that loads it has OpenVINO loaded already.
        part = folder / f"{LOADER}.{release(openvino)}"
        _run([*link, *parts, str(library), f"-Wl,-rpath-link,{library.parent}", "-ldl", "-o", str(part)])
        _run([*link, *loader_objects, "-ldl", "-o", str(folder / LOADER)])
        target.mkdir(parents=True, exist_ok=True)
        for made in (part, folder / LOADER):  # the loader last, so that it is never there without its part
            descriptor, temporary_file = tempfile.mkstemp(prefix=f".{made.name}-", dir=target)
            os.close(descriptor)
            shutil.copy(made, temporary_file)  # copies the mode as well, which mkstemp restricts
            os.replace(temporary_file, target / made.name)
    return target / LOADER


def _library(openvino: Path) -> Path:
    """Finds OpenVINO's own library, libopenvino.so.RELEASE, in the folder of the package. Raises BuildError."""
    libraries = [path for path in (openvino / "libs").glob("libopenvino.so.*") if path.suffix[1:].isdigit()]
    if not libraries:
        raise BuildError(f"there is no OpenVINO library in {openvino / 'libs'} (install openvino with pip)")
    return libraries[0]


def _abi(openvino: Path) -> str:
    """Reads the value of the macro _GLIBCXX_USE_CXX11_ABI from OpenVINO's CMake files, "1" where they have none.

    It is "0" for older wheels, which use libstdc++'s old interface.
    """
    for config in (openvino / "cmake").glob("OpenVINOConfig.cmake"):
        match = re.search(r'OpenVINO_GLIBCXX_USE_CXX11_ABI "?([01])', config.read_text(encoding="utf-8"))
        if match:
            return match[1]
    return "1"


def _run(command: list[str]) -> None:
    """Runs the compiler. Raises BuildError with the first line of its errors where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or [""]
        raise BuildError(f"the compiler refuses: {lines[0].strip()[:300]}")
