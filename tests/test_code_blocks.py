"""Shell and Python blocks of the documentation run as they stand, and print what is shown.

The blocks of a page run from its top to its end in one shell, in a folder with `model.onnx`, the tutorial's ResNet-50,
and `samples`. A block of text right after one is what it prints. "Not run by the tests: …" before one leaves it out.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.commands import PACKAGE
from tests.processes import ended

ROOT = Path(__file__).resolve().parent.parent

# A test of its own runs it, on a model that is quicker to verify (test_docs.py).
ELSEWHERE = {"ci.md"}

# They measure, start torch, or place often.
SLOW = {
    "getting-started.md", "fine-tuning.md", "pretraining.md", "gpu-cpu.md", "writing-a-profile.md", "npu.md",
    "adding-a-legality-rule.md",
}  # fmt: skip

NOT_RUN = re.compile(r"^Not run by the tests: \S.*[.:]$", re.MULTILINE)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d[\d,]*(\.\d+)?(e[+-]?\d+)?")
BREAK = "\x1e"


@dataclass(frozen=True)
class Block:
    """Code that runs, and what it is shown to print; None where nothing is shown."""

    language: str
    code: str
    printed: str | None = None


def blocks(text: str) -> Iterator[Block]:
    """The blocks of a page that are to run. Python right after Python goes on in the same program."""
    found: list[Block] = []
    end, runs = 0, False
    for block in BLOCK.finditer(text):
        language, code = block.groups()
        before = text[end : block.start()].strip()
        end = block.end()
        if language == "text" and runs and not before and found[-1].printed is None:
            found[-1] = Block(found[-1].language, found[-1].code, code)
            continue
        marked = NOT_RUN.search(before.rpartition("\n\n")[2])
        goes_on = language == "python" and runs and found[-1].language == "python" and found[-1].printed is None
        runs = language in ("sh", "python") and not marked
        if runs and goes_on:
            found[-1] = Block("python", found[-1].code + code)
        elif runs:
            found.append(Block(language, code))
    yield from found


def script(of: list[Block]) -> str:
    """One shell script of all blocks, with a line before what each prints."""
    lines = ["set -e"]
    for block in of:
        lines.append(f"printf '{BREAK}\\n'")
        lines.append(block.code if block.language == "sh" else f"python - <<'END_OF_PYTHON'\n{block.code}END_OF_PYTHON")
    return "\n".join(lines)


def normalised(text: str) -> list[str]:
    """Lines without the figures of one machine and the breaks of one width."""
    joined = re.sub(r"\n {4}(?=\S)", " ", text)
    return [NUMBER.sub("0", " ".join(line.split())) for line in joined.splitlines() if line.strip()]


def prints(shown: str, printed: str) -> bool:
    """Whether what was printed is what is shown: "…" stands for a part of a line, or alone for any number of lines."""
    pattern = ""
    for line in normalised(shown):
        parts = map(re.escape, line.split("…"))
        pattern += r"(?:.*\n)*?" if line == "…" else ".*".join(parts) + r"\n"
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in normalised(printed))) is not None


def pages() -> list[Any]:
    found = []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        if page.name not in ELSEWHERE and list(blocks(page.read_text(encoding="utf-8"))):
            found.append(pytest.param(page, id=page.name, marks=[pytest.mark.slow] if page.name in SLOW else []))
    return found


@pytest.fixture(scope="module")
def resnet50(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    command = [sys.executable, ROOT / "samples/python/export_resnet50.py", path]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": PACKAGE}, check=True, timeout=120, capture_output=True)
    return path


@pytest.fixture
def folder(tmp_path: Path, resnet50: Path) -> Path:
    """Where blocks run: a model, the samples and the commands of this package."""
    work, commands = tmp_path / "work", tmp_path / "bin"
    work.mkdir()
    (work / "model.onnx").symlink_to(resnet50)
    (work / "samples").symlink_to(ROOT / "samples")
    commands.mkdir()
    for name, what in (("ov-hsdag", '-c "from ov_hsdag.cli import main; main()"'), ("python", "")):
        (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {what} "$@"\n')
        (commands / name).chmod(0o755)
    return work


@pytest.mark.parametrize("page", pages())
def test_blocks_run_and_print_what_is_shown(page: Path, folder: Path) -> None:
    found = list(blocks(page.read_text(encoding="utf-8")))
    variables = {name: value for name, value in os.environ.items() if not name.startswith("OV_HSDAG")}
    paths = [str(folder.parent / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    variables |= {"PATH": os.pathsep.join(paths), "PYTHONPATH": f"{PACKAGE}{os.pathsep}.", "LC_ALL": "C.UTF-8"}
    variables |= {"COLUMNS": "80"}
    done = ended("bash", "-c", script(found), status=None, cwd=folder, env=variables)
    printed = done.stdout.split(f"{BREAK}\n")[1:]
    assert done.returncode == 0, f"block {len(printed)}:\n{found[len(printed) - 1].code}\n{done.stderr}"
    for block, own in zip(found, printed, strict=True):
        if block.printed is not None:
            assert prints(block.printed, own), f"{block.code}\nis shown to print\n{block.printed}\nand printed\n{own}"


def test_what_is_shown_is_compared() -> None:
    printed = (
        "model.xml: two submodels,\n    predicted 1.98x\n  CPU_A   11.80   1.00\n  CPU_B   11.80\nnext: ov-hsdag\n"
    )
    assert prints(printed, printed)
    assert prints("model.xml: … predicted 1.7x\n…\nnext: ov-hsdag\n", printed)
    assert not prints("model.xml: … predicted 1.7x\nnext: ov-hsdag\n", printed)
    assert not prints("…\nnext: ov-hsdag verify\n", printed)
    assert not prints("", printed)


def test_blocks_are_found_with_what_they_print() -> None:
    page = (
        "# Page\n\n```sh\nls\n```\n\n```text\na\n```\n\nThen:\n\n"
        "```python\nx = 1\n```\n\nand\n\n```python\nprint(x)\n```\n\n"
        "```text\n1\n```\n\nNot run by the tests: it takes a GPU.\n\n```sh\nfalse\n```\n\n```text\nb\n```\n"
    )
    assert list(blocks(page)) == [Block("sh", "ls\n", "a\n"), Block("python", "x = 1\nprint(x)\n", "1\n")]
