"""Building the package from source."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
    done = subprocess.run(
        [sys.executable, "setup.py", command, *map(str, folders)],
        cwd=PROJECT,
        env=variables,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("error: ")
    for words in ("no C++ compiler", "apt-get install g++ python3-dev", "CXX", "nonexistent-g++" if compiler else ""):
        assert words in done.stderr
    assert set(done.stdout.splitlines()) <= {f"running {command}"}
    assert list(tmp_path.iterdir()) == []
