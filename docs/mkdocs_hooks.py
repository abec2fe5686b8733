"""What MkDocs does not do by itself: links out of docs/, lists as GitHub reads them, the reference of the command line.

Pages are written for GitHub, where `../README.md` and `../samples/` exist. What they link to outside of docs/ joins the
site under `repository/`, Markdown as pages and the rest as files.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
ELSEWHERE = "repository/"
COMMANDS = "<!-- commands -->"
"""Where command-line.md has the reference of all commands."""

_LINK = re.compile(r"(\]\()([^)\s#]+)([^)\s]*\))")
_FENCED = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)
_IN_A_LIST = re.compile(r"^ {2,3}(?=\|)", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds to the site what its pages link to outside of docs/, and what those pages link to."""
    from mkdocs.structure.files import File, InclusionLevel

    ahead = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    while ahead:
        page = ahead.pop()
        for target in _targets(page):
            if target.startswith("docs/") or files.get_file_from_path(ELSEWHERE + target) is not None:
                continue
            files.append(
                File.generated(
                    config, ELSEWHERE + target, abs_src_path=str(ROOT / target), inclusion=InclusionLevel.NOT_IN_NAV
                )
            )
            if target.endswith(".md"):
                ahead.append(target)
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """A page as MkDocs reads it."""
    if COMMANDS in markdown:
        markdown = markdown.replace(COMMANDS, command_line_reference())
    uri = page.file.src_uri
    path = uri.removeprefix(ELSEWHERE) if uri.startswith(ELSEWHERE) else f"docs/{uri}"
    # Markdown of Python wants four spaces in a list where GitHub takes two.
    return _prose(markdown, lambda text: _IN_A_LIST.sub("    ", _relinked(text, path, uri)))


def _prose(markdown: str, change: Callable[[str], str]) -> str:
    """The page with all that is not in fenced code changed."""
    parts = _FENCED.split(markdown)
    return "".join(part if number % 2 else change(part) for number, part in enumerate(parts))


def _in_repository(path: str, target: str) -> str | None:
    """The file that a link of a page means, both by their paths in the repository; None where it is no file there."""
    if re.match(r"\w+:", target):
        return None
    found = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return found if (ROOT / found).is_file() else None


def _targets(path: str) -> Iterator[str]:
    for _, target, _ in _LINK.findall((ROOT / path).read_text(encoding="utf-8")):
        found = _in_repository(path, target)
        if found is not None:
            yield found


def _relinked(markdown: str, path: str, uri: str) -> str:
    def replaced(link: re.Match[str]) -> str:
        begin, target, end = link.groups()
        found = _in_repository(path, target)
        if found is None:
            return link.group()
        new = found.removeprefix("docs/") if found.startswith("docs/") else ELSEWHERE + found
        return f"{begin}{posixpath.relpath(new, posixpath.dirname(uri) or '.')}{end}"

    return _LINK.sub(replaced, markdown)


def command_line_reference() -> str:
    """All commands with their arguments and options, as Markdown, read from the program itself."""
    import typer.main

    from ov_hsdag.cli.app import COMMANDS, app

    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    sections = []
    for described in COMMANDS:
        if described.hidden:
            continue
        name, command = described.name, commands[described.name]
        context = command.context_class(command, info_name=f"ov-hsdag {name}")
        records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
        rows = [f"| {_code(record[0])} | {_cell(record[1])} |" for record in records if record]
        usage = command.get_usage(context).removeprefix("Usage: ")
        sections.append(
            f"## {name}\n\n{(command.help or '').strip()}\n\n```text\n{usage}\n```\n\n"
            f"For example `{described.example}`.\n\n| argument or option | |\n|---|---|\n" + "\n".join(rows)
        )
    return "\n\n".join(sections)


def _code(text: str) -> str:
    return f"`{' '.join(text.split())}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
