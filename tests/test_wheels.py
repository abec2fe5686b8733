"""What is published: one list of Pythons and releases everywhere, and files that are the same whenever made."""

from __future__ import annotations

import os
import re
import runpy
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_one_list_of_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "tools" / "wheels"), *sys.path])
    minors = [name.removeprefix("python3.") for name in runpy.run_path(str(ROOT / "tools/wheels/build.py"))["PYTHONS"]]
    assert re.findall(r'"Programming Language :: Python :: 3\.(\d+)"', PROJECT) == minors
    assert re.findall(r'"cp3(\d+)-\*"', PROJECT) == minors


def test_workflow_tries_releases_that_wheels_are_made_for() -> None:
    releases = (ROOT / "tools/wheels/releases.txt").read_text(encoding="utf-8").split()
    workflow = (ROOT / ".github/workflows/wheels.yml").read_text(encoding="utf-8")
    tried = re.findall(r'"(20\d\d\.\d\.\d)"', workflow)
    assert tried and set(tried) <= set(releases)
    assert releases == sorted(set(releases))


def test_source_distribution_does_not_depend_on_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "tools" / "wheels"), *sys.path])
    normalize = runpy.run_path(str(ROOT / "tools/wheels/build.py"))["normalize"]
    made = []
    for number, names in enumerate((["a", "b/c"], ["b/c", "a"])):
        folder = tmp_path / str(number)
        archive = tmp_path / f"{number}.tar.gz"
        with tarfile.open(archive, "w:gz") as packed:
            for name in names:
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(name, encoding="utf-8")
                path.chmod(0o600 if number else 0o644)
                os.utime(path, (number, number))
                packed.add(path, name)
        normalize(archive, 1_700_000_000)
        made.append(archive.read_bytes())
    assert made[0] == made[1]
    with tarfile.open(tmp_path / "0.tar.gz") as packed:
        assert packed.extractfile("b/c").read() == b"b/c"
        assert {member.mtime for member in packed} == {1_700_000_000}


def test_library_has_no_path_of_the_machine_that_made_it() -> None:
    """Built where pip unpacked the package, against an OpenVINO in site-packages."""
    from ov_hsdag.integration import extension, extension_build

    library = extension.extension_path()
    for part in library.parent.glob(f"{extension_build.LOADER}*"):
        text = part.read_bytes()
        for path in (os.fsencode(ROOT), os.fsencode(sys.prefix), b"site-packages"):
            assert path not in text, part.name
