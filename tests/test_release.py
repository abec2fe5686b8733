"""`make release` ends in one line where something cannot be released, and names a step that fails."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.processes import ended
from tests.scripts import loaded

ROOT = Path(__file__).resolve().parent.parent
CHANGELOG = "# Changelog\n\n## Unreleased\n\n## 1.2.0 - 2026-11-25\n\n- A door.\n\n## 1.1.0 - 2026-01-01\n\n- One.\n"
COMMIT = "git add --all; git -c user.name=a -c user.email=a commit --quiet --message change"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    scripts = Path("tools", "wheels")
    shutil.copytree(ROOT / scripts, tmp_path / scripts, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    files = "echo 'test-all docs: ; false' > Makefile; echo __pycache__/ > .gitignore; mkdir ov_hsdag"
    version = "echo '__version__ = \"1.2.0\"' > ov_hsdag/_version.py"
    subprocess.run(["sh", "-ec", f"{files}; {version}; git init --quiet; {COMMIT}"], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("touch left.txt", "1 files are changed or not in git, such as left.txt"),
        ("git tag v1.2.0", "v1.2.0 is tagged already: ov_hsdag/_version.py needs a new version"),
        (f"sed -i s/1.2.0/1.3.0/ CHANGELOG.md; {COMMIT}", 'CHANGELOG.md has no section "## 1.2.0 - YYYY-MM-DD"'),
        (f"sed -i s/-25// CHANGELOG.md; {COMMIT}", 'CHANGELOG.md has no section "## 1.2.0 - YYYY-MM-DD"\n'),
        (f"sed -i /door/d CHANGELOG.md; {COMMIT}", 'CHANGELOG.md has no section "## 1.2.0 - YYYY-MM-DD" with entries'),
        (
            f"sed -i 's/Unreleased/&\\n- A window./' CHANGELOG.md; {COMMIT}",
            'CHANGELOG.md: what is under "Unreleased" belongs to',
        ),
        ("rm -r .git", "git status: "),
        ("", "python3.10-none cannot be run: name interpreters, make release PYTHONS=…"),
        ("true", "make test-all docs failed with exit status 2"),
    ],
)
def test_what_is_not_ready_is_told_in_a_line(tree: Path, change: str, line: str) -> None:
    subprocess.run(["sh", "-ec", change], cwd=tree, check=True)
    failing = change == "true"
    options = [sys.executable] if failing else ["--checked", "python3.10-none"]
    told = ended(sys.executable, "tools/wheels/release.py", *options, status=1 if failing else 2, cwd=tree).stderr
    assert told.splitlines(keepends=True)[-1].startswith(f"not released: {line}") and (failing or told.count("\n") == 1)


@pytest.mark.parametrize(("version", "status"), [("1.2.0", 0), ("1.1.0", 1), (None, 1)])
def test_wheels_have_a_bill_of_materials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, status: int
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "wheels"))
    (tmp_path / "ov_hsdag-1.2.0.tar.gz").touch()
    with zipfile.ZipFile(tmp_path / "ov_hsdag-1.2.0-cp310-cp310-manylinux_2_28_x86_64.whl", "w") as wheel:
        bill = json.dumps({"metadata": {"component": {"version": version}}})
        wheel.writestr("ov_hsdag-1.2.0.dist-info/sboms/ov-hsdag.cdx.json" if version else "a", bill)
    with loaded(ROOT / "tools/wheels/release.py") as release, pytest.raises(SystemExit) as ending:
        release.check_built(tmp_path, "1.2.0", 1)
        release.end(0, "not reached where the wheel is refused")
    assert ending.value.code == status
