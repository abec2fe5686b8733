"""Builds the native code and puts startup files at the top of site-packages; everything else is in pyproject.toml.

Native code is the core (ov_hsdag._native) and, where the environment has OpenVINO already, the extension library.
"""

import hashlib
import os
import runpy
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension
from pybind11.setup_helpers import build_ext as pybind11_build_ext
from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_py import build_py
from setuptools.errors import CompileError

# Python 3.15 and later read the .start file, and then leave the .pth file's line alone (PEP 829).
STARTUP = tuple(Path("startup", name) for name in ("ov_hsdag.pth", "ov_hsdag.start", "_ov_hsdag_start.py"))

# Warnings fail only our own builds (make test sets the variable): a newer compiler than ours warns of things that we
# could not see, and must not keep a user from installing this release.
WERROR = ["-Werror"] if os.environ.get("OV_HSDAG_WERROR") == "1" else []
WARNINGS = ["-Wall", "-Wextra", *WERROR]

# A folder with the extension library for each release of OpenVINO, which goes into wheels that are published (see
# tools/wheels/extension.py).
PREBUILT = os.environ.get("OV_HSDAG_EXTENSION_DIR")

# Not imported: importing the package would install its hooks.
NATIVE_BUILD = runpy.run_path("ov_hsdag/integration/extension_build.py")

# Pybind11Extension adds -fvisibility=hidden where the compiler knows it.
COMPILE_ARGS = ["/O2", "/W4", "/EHsc"] if os.name == "nt" else ["-O3", *WARNINGS]


# What was compiled, by what it depends on: installing again, with an extra for example, compiles nothing.
COMPILED = Path("build", "compiled")
COMPILED_MOST = 12

# Variables that compilers and setuptools read.
VARIABLES = ("CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "LDSHARED", "LDCXXSHARED", "ARCHFLAGS")


def compiler() -> str:
    return shlex.split(os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++")[0]


def require_compiler() -> None:
    """Raise CompileError, which setup() prints as one line, where there is no C++ compiler."""
    if os.name == "posix" and not shutil.which(compiler()):
        raise CompileError(
            f"ov-hsdag compiles its native code, and there is no C++ compiler '{compiler()}': install one (Debian,"
            " Ubuntu: apt-get install g++ python3-dev; Fedora: dnf install gcc-c++ python3-devel) or name one in"
            " the variable CXX"
        )


def compiled_folder(sources: Iterable[Path], *depends: str) -> Path:
    """Where files lie that these sources were compiled to, by this compiler with these variables; it may not exist."""
    told = ""
    if os.name == "posix":
        told = subprocess.run([compiler(), "--version"], capture_output=True, text=True, check=False).stdout
    settings = [told, *(f"{name}={os.environ.get(name)}" for name in VARIABLES), *depends]
    digest = hashlib.sha256("\0".join(settings).encode())
    for path in (Path("setup.py"), *sources):
        digest.update(b"\0" + str(path).encode() + b"\0" + path.read_bytes())
    folder = COMPILED / digest.hexdigest()[:32]
    without_warnings = folder.with_name(f"{folder.name}-Werror")
    return without_warnings if WERROR or without_warnings.exists() else folder


def keep(files: Iterable[Path], folder: Path) -> None:
    """Keep what was compiled in a folder of COMPILED, and the newest others."""
    COMPILED.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=COMPILED) as temporary:
        new = Path(temporary) / "new"
        new.mkdir()
        for path in files:
            shutil.copy(path, new)
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)
    others = sorted(COMPILED.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in others[COMPILED_MOST:]:
        shutil.rmtree(path, ignore_errors=True)


class BuildWithCompiler(build):
    """Looks for the compiler first: pip shows all that a failed build has printed, copied files included."""

    def run(self) -> None:
        require_compiler()
        # Of an earlier build: setuptools would pack modules that are gone.
        shutil.rmtree(Path(self.build_lib) / "ov_hsdag", ignore_errors=True)
        super().run()


class BuildPyWithStartup(build_py):
    """Also places startup files, which setuptools has no option for: site reads them only in site-packages itself."""

    def run(self) -> None:
        super().run()
        folder = self._site_packages()
        folder.mkdir(parents=True, exist_ok=True)
        for path in STARTUP:
            self.copy_file(str(path), str(folder / path.name))
        if not self.editable_mode:
            self._copy_sources()

    def _copy_sources(self) -> None:
        """For `ov-hsdag extension --build`: the library belongs to one release of OpenVINO, the user's."""
        inside = Path(self.build_lib) / "ov_hsdag" / "native_sources"
        for name in NATIVE_BUILD["CORE_FILES"]:
            for kind in ("cpp", "hpp"):
                self._copy(Path("cpp_ext") / f"{name}.{kind}", inside)
        for path in sorted(Path("transformations").rglob("*")):
            if path.is_file():
                self._copy(path, inside)

    def _copy(self, path: Path, folder: Path) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        self.copy_file(str(path), str(folder / path))

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [*super().get_outputs(include_bytecode), *(str(self._site_packages() / path.name) for path in STARTUP)]

    def get_source_files(self) -> list[str]:
        return [*super().get_source_files(), *(str(path) for path in STARTUP)]

    def _site_packages(self) -> Path:
        """The folder whose files an installer puts into site-packages."""
        if not self.editable_mode:
            return Path(self.build_lib)
        # An editable wheel takes nothing from build_lib, but it does take <name>.data/, whose "purelib" an installer
        # unpacks into site-packages. install_data is <name>.data/data there.
        return Path(self.get_finalized_command("install").install_data).with_name("purelib")


class BuildExtWithLibrary(pybind11_build_ext):
    """Also compiles the extension library. Without it the package works, and `ov-hsdag extension --build` makes it."""

    def run(self) -> None:
        require_compiler()
        super().run()
        target = Path(self.get_ext_fullpath("ov_hsdag._native")).parent / "lib"
        if PREBUILT:
            self._copy(sorted(Path(PREBUILT).glob(f"{NATIVE_BUILD['LOADER']}*")), target)
            return
        openvino = NATIVE_BUILD["installed_openvino"]()
        if openvino is None:
            print("ov_hsdag: no extension library for C++ programs: OpenVINO is not installed here yet")
            return
        try:
            root, release = Path.cwd(), NATIVE_BUILD["release"](openvino)
            sources = [path.relative_to(root) for path in NATIVE_BUILD["sources"](root)]
            folder = compiled_folder([*sources, Path("ov_hsdag/integration/extension_build.py")], release)
            if self.force or not folder.exists():
                NATIVE_BUILD["build"](root, openvino, target, WERROR)
                keep((target / f"{NATIVE_BUILD['LOADER']}{end}" for end in (f".{release}", "")), folder)
            self._copy(sorted(folder.iterdir(), reverse=True), target)  # the loader last: where it is, all is
        except NATIVE_BUILD["BuildError"] as error:
            if WERROR:
                raise
            print(f"ov_hsdag: no extension library for C++ programs: {error}")

    def build_extension(self, ext: Extension) -> None:
        made = Path(self.get_ext_fullpath(ext.name))
        python = f"{made.name} {sysconfig.get_config_var('CC')} {sysconfig.get_config_var('CFLAGS')}"
        folder = compiled_folder(map(Path, [*ext.sources, *ext.depends]), python, version("pybind11"))
        if PREBUILT or self.force or not folder.exists():
            made.unlink(missing_ok=True)  # other options may have made it
            super().build_extension(ext)
            if not PREBUILT:
                keep([made], folder)
        else:
            self._copy(folder.iterdir(), made.parent)

    def _copy(self, paths: Iterable[Path], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            shutil.copy(path, folder)  # setuptools would leave a newer file


ParallelCompile("OV_HSDAG_BUILD_JOBS", default=0).install()

setup(
    ext_modules=[
        Pybind11Extension(
            "ov_hsdag._native",
            sources=sorted(path.as_posix() for path in Path("cpp_ext").glob("*.cpp")),
            depends=sorted(path.as_posix() for path in Path("cpp_ext").glob("*.hpp")),
            include_dirs=["cpp_ext"],
            cxx_std=20,
            extra_compile_args=COMPILE_ARGS,
        )
    ],
    cmdclass={"build": BuildWithCompiler, "build_py": BuildPyWithStartup, "build_ext": BuildExtWithLibrary},
)
