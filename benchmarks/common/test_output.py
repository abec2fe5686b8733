"""Tests of the files that benchmarks read and write; benchmarks.figures tests that they write no others."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.common.output import folder_or_temporary, stored
from benchmarks.quality import placement_quality
from ov_hsdag.training.corpus import HELD_OUT_FAMILIES
from research.zoo.catalog import ZOO
from tests.processes import ended

ROOT = Path(__file__).resolve().parents[2]


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
