"""Building the package from source."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.processes import ended

PROJECT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("command", ["build", "build_ext"])
@pytest.mark.parametrize("compiler", ["nonexistent-g++ -m64", None], ids=["CXX", "PATH"])
def test_without_a_compiler_one_line_says_what_to_install(command: str, compiler: str | None, tmp_path: Path) -> None:
    """Whether CXX names one that is not there, or the system has none."""
    variables = {name: value for name, value in os.environ.items() if name not in ("CXX", "CC")}
    if compiler is None:
        variables["PATH"] = str(tmp_path / "empty")
    else:
        variables["CXX"] = compiler
    folders = ["--build-lib", tmp_path / "lib", "--build-temp", tmp_path / "temp"]
    done = ended(sys.executable, "setup.py", command, *folders, status=1, cwd=PROJECT, env=variables)
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("error: ")
    for words in ("no C++ compiler", "apt-get install g++ python3-dev", "CXX", "nonexistent-g++" if compiler else ""):
        assert words in done.stderr
    assert set(done.stdout.splitlines()) <= {f"running {command}"}
    assert list(tmp_path.iterdir()) == []


# Notes each call, and "compiles" anything.
COMPILER = """#!/bin/sh
[ "$1" = --version ] && echo "${COMPILER_VERSION:-1}" && exit
echo "$@" >> {calls}
while [ $# -gt 0 ]; do
    [ "$1" = -o ] && echo "$COMPILER_VERSION" > "$2"
    shift
done
"""


@pytest.mark.slow
def test_what_is_compiled_is_kept_until_something_changes(tmp_path: Path) -> None:
    """Sources, compiler and flags; a build whose warnings were errors is good for one without, not the other way."""
    for folder in ("cpp_ext", "transformations"):
        shutil.copytree(PROJECT / folder, tmp_path / folder)
    (tmp_path / "ov_hsdag" / "integration").mkdir(parents=True)
    files = ("ov_hsdag/__init__.py", "ov_hsdag/_version.py", "ov_hsdag/integration/extension_build.py")
    for name in ("setup.py", "pyproject.toml", "README.md", *files):
        shutil.copy(PROJECT / name, tmp_path / name)
    calls, compiler = tmp_path / "calls", tmp_path / "compiler"
    compiler.write_text(COMPILER.replace("{calls}", str(calls)))
    compiler.chmod(0o755)
    tools = dict.fromkeys(("CC", "CXX"), str(compiler)) | dict.fromkeys(
        ("LDSHARED", "LDCXXSHARED"), f"{compiler} -shared"
    )

    def compiled(**variables: str) -> tuple[int, int]:
        """How many files of the core, and of the library, were compiled."""
        calls.write_text("")
        command = (sys.executable, "setup.py", "-q", "build_ext", "--build-lib", "lib", "--build-temp", "temp")
        ended(*command, cwd=tmp_path, env={**os.environ, **tools, "OV_HSDAG_WERROR": "0", **variables})
        made = {
            path.relative_to(tmp_path / "lib" / "ov_hsdag").parts[0] for path in tmp_path.rglob("lib/ov_hsdag/**/*.so*")
        }
        assert len(made) == 2 and "lib" in made
        shutil.rmtree(tmp_path / "lib")
        lines = [line for line in calls.read_text().splitlines() if " -c " in f" {line} "]
        library = sum("-fvisibility=hidden -Wall" in line for line in lines)
        return len(lines) - library, library

    core, library = compiled()
    assert core == len(list((tmp_path / "cpp_ext").glob("*.cpp"))) and library > 5
    assert compiled() == (0, 0)
    assert compiled(COMPILER_VERSION="2") == (core, library)
    assert compiled(OV_HSDAG_WERROR="1") == (core, library)
    assert compiled(OV_HSDAG_WERROR="1") == compiled() == (0, 0)
    with (tmp_path / "cpp_ext" / "features.hpp").open("a") as header:  # the core's alone
        header.write("// changed\n")
    assert compiled() == (core, 0)
    assert len(list((tmp_path / "build" / "compiled").iterdir())) <= 12
