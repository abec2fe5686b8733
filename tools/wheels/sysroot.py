"""A compiler for manylinux_2_28 without a container: this system's g++ with an older C library.

    python tools/wheels/sysroot.py FOLDER    makes FOLDER/g++

The C and C++ libraries are those of Ubuntu 18.04 (glibc 2.27, libstdc++ of GCC 8), which apt-get downloads and nothing
installs. What g++ wants of a newer libstdc++ comes from its static one and stays inside, as in the manylinux images'
gcc-toolset. ccache is used where it is there: most of the native core is the same for each Python.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGES = {
    "libc6=2.27-3ubuntu1.6": "5b813d4512491cd8fb30b2eb9192349ee75ffe3c9f21ae136cc7b2429f70c3b2",
    "libc6-dev=2.27-3ubuntu1.6": "96ae7d2cf38f0547ca3cccb3344c8802fdf5bcd71c4b6d9aed09558ac8cc87db",
    "libgcc1=1:8.4.0-1ubuntu1~18.04": "116dadf4ceaba7150eb46a6598dd3defa62b1b2a6578fb494f4c932878634994",
    "libstdc++6=8.4.0-1ubuntu1~18.04": "4dbd1ffa20011329608f584ff329a10507cfa78c3f76fa34e6f479f9680b64f4",
    "linux-libc-dev=4.15.0-213.224": "06d9f16644d3a1b2ab7dd01730e833d516b6f575d975855f496eea6463fef2f6",
}
# Checked by their hashes: Debian does not have Ubuntu's keys.
SOURCES = "".join(
    f"deb [trusted=yes arch=amd64] http://archive.ubuntu.com/ubuntu {suite} main\n"
    for suite in ("bionic", "bionic-updates")
)

# What g++ found in this system's C library and the older one lacks.
CONFIG = """#include_next <bits/c++config.h>
#undef _GLIBCXX_USE_PTHREAD_COND_CLOCKWAIT
#undef _GLIBCXX_USE_PTHREAD_MUTEX_CLOCKLOCK
#undef _GLIBCXX_USE_PTHREAD_RWLOCK_CLOCKLOCK
"""

# A variable of glibc 2.32 that the static libstdc++ reads: whether there is one thread, to save atomic instructions.
THREADS = 'char __libc_single_threaded __attribute__((visibility("hidden"))) = 0;\n'

# Its folders come first: Debian's Pythons name this system's libraries.
COMPILER = """#!/bin/sh
exec $(command -v ccache) g++ --sysroot={system} -B{libraries} -isystem {own}/include \\
    -L{own} -L{libraries} -L{system}/lib/x86_64-linux-gnu -Wl,--exclude-libs,libstdc++.a:libthreads.a "$@"
"""


def run(*command: object, cwd: Path | None = None, text: str | None = None) -> None:
    subprocess.run([str(part) for part in command], check=True, cwd=cwd, input=text, text=True)


def download(folder: Path) -> None:
    """The packages, with apt-get, whose own lists stay as they are."""
    apt = folder / "apt"
    for path in ("state/lists/partial", "cache/archives/partial"):
        (apt / path).mkdir(parents=True)
    (apt / "sources.list").write_text(SOURCES, encoding="utf-8")
    settings = (
        f"Dir::State={apt / 'state'}",
        f"Dir::Cache={apt / 'cache'}",
        f"Dir::Etc::sourcelist={apt / 'sources.list'}",
        "Dir::Etc::sourceparts=-",
        "Dir::State::status=/dev/null",
        "APT::Architecture=amd64",
        "APT::Sandbox::User=root",  # the folder need not be open to the user _apt
        "Acquire::Languages=none",
    )
    options = ["-qq", *(f"--option={setting}" for setting in settings)]
    run("apt-get", *options, "update")
    run("apt-get", *options, "download", *PACKAGES, cwd=folder)
    found = {hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.deb")}
    if found != set(PACKAGES.values()):
        sys.exit(f"packages with other hashes than those in {__file__}")


def make(folder: Path) -> Path:
    """Returns the compiler, made where it is not there yet."""
    compiler = folder / "g++"
    if compiler.exists():
        return compiler
    shutil.rmtree(folder, ignore_errors=True)
    system, libraries = folder / "system", folder / "system/usr/lib/x86_64-linux-gnu"
    (folder / "include/bits").mkdir(parents=True)
    download(folder)
    for package in folder.glob("*.deb"):
        run("dpkg-deb", "-x", package, system)
    for link in system.rglob("*"):
        if link.is_symlink() and (target := os.readlink(link)).startswith("/"):
            link.unlink()
            link.symlink_to(os.path.relpath(system / target[1:], link.parent))
    (folder / "include/bits/c++config.h").write_text(CONFIG, encoding="utf-8")
    run("gcc", "-c", "-O2", "-fPIC", "-xc", "-", "-o", folder / "threads.o", text=THREADS)
    run("ar", "rcD", folder / "libthreads.a", folder / "threads.o")
    (folder / "libstdc++.so").write_text(
        f"INPUT ( {libraries / 'libstdc++.so.6'} -l:libstdc++.a -l:libthreads.a )\n", encoding="utf-8"
    )
    compiler.write_text(COMPILER.format(system=system, libraries=libraries, own=folder), encoding="utf-8")
    compiler.chmod(0o755)
    return compiler


if __name__ == "__main__":
    print(make(Path(sys.argv[1]).resolve()))
