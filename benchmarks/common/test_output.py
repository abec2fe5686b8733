"""Tests that benchmarks write only the file of --output, and leave nothing behind."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from benchmarks.common.output import folder_or_temporary, stored
from benchmarks.quality import placement_quality
from ov_hsdag.training.corpus import HELD_OUT_FAMILIES, HELD_OUT_SETS
from research.zoo.catalog import ZOO
from tests.processes import ended

ROOT = Path(__file__).resolve().parents[2]

COMMANDS = {
    "truth.legality_table": ("lstm", "--pairs", "cpu", "--placements", 1),
    "speed.continuous": ("--only", "import", "--rounds", 1),
    "quality.placement_quality": ("--models", "yolo-like-small", "--sets", next(iter(HELD_OUT_SETS)), "--rounds", 1),
    "lasting.soak": ("cycles", "--share", 0.002),
    "field.unseen": ("--seed", 1, "--models", 1, "--seconds", 2, "--rounds", 1),
    "field.several_models": ("--seed", 1, "--applications", 1, "--seconds", 5, "--rounds", 1, "--most", 10),
    "field.measured": ("lstm", "--settings", "latency", "--rounds", 1, "--measure-seconds", 2, "--budget", 0.5),
}
"""Runs of commands without --output, as small as they get."""


def files() -> dict[Path, tuple[int, int]]:
    """Files of the tree that a benchmark could write, with their times and sizes."""
    folders = [ROOT / "benchmarks", ROOT / "docs", ROOT / "ov_hsdag"]
    found = [*(path for folder in folders for path in folder.rglob("*")), *ROOT.iterdir()]
    return {
        path: (path.stat().st_mtime_ns, path.stat().st_size)
        for path in found
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_without_an_output_nothing_is_written_and_nothing_left(name: str, tmp_path: Path) -> None:
    work, temporary = tmp_path / "work", tmp_path / "temporary"
    work.mkdir()
    temporary.mkdir()
    before = files()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    done = ended(sys.executable, "-m", f"benchmarks.{name}", *COMMANDS[name], status=None, cwd=work, env=environment)
    # A figure may miss its floor in so short a run.
    assert done.returncode in (0, 1) and done.stdout and "Traceback" not in done.stderr, done.stderr
    assert files() == before
    assert not list(work.iterdir()) and not list(temporary.iterdir())


def test_what_is_held_out_is_listed() -> None:
    """Every model that `--models` names is one that pretraining does not see, and the defaults are marked."""
    listed = dict(line.partition(" ")[::2] for line in placement_quality.held_out().splitlines())
    assert {ZOO[name].family for name in listed} <= HELD_OUT_FAMILIES
    assert [name for name, text in listed.items() if text.strip() == "by default"] == sorted(placement_quality.MODELS)


def test_a_folder_stays_where_it_is_named(tmp_path: Path) -> None:
    with folder_or_temporary(tmp_path / "a" / "b") as folder:
        assert folder == tmp_path / "a" / "b" and folder.is_dir()
    assert folder.is_dir()
    with folder_or_temporary(None) as folder:
        (folder / "file").touch()
    assert not folder.exists()


def test_outputs_are_continued(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    assert stored(None) is None is stored(path)
    path.write_text(json.dumps({"a": 1}))
    assert stored(path) == {"a": 1}


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("truth.prediction_accuracy", ("report",), "--work DIR"),
        ("quality.placement_quality", ("--search-only",), "--output names the file"),
        ("field.measured", ("--place-only",), "--placements names the file"),
    ],
)
def test_what_only_a_file_would_keep_asks_for_the_file(name: str, arguments: tuple[str, ...], message: str) -> None:
    done = ended(sys.executable, "-m", f"benchmarks.{name}", *arguments, status=2, cwd=ROOT)
    assert message in done.stderr.splitlines()[-1]
