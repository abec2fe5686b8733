"""Writes the page docs/reference/python.md from the docstrings.

The command is python docs/python_reference.py. GitHub and MkDocs both show the page as it is. A test compares the page
with what this writes.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "python.md"

INTRODUCTION = """\
# Python

What `import ov_hsdag` has for programs. Importing it is cheap, and makes `compile_model` follow placements
([how](../concepts/design.md#how-a-python-program-follows-a-placement)); the names load when they are used.

`python docs/python_reference.py` writes this page from the docstrings; `help(ov_hsdag.place)` prints the same text.
"""

SECTIONS: dict[str, tuple[str, Sequence[str]]] = {
    "Placing": (
        "",
        (
            "ov_hsdag.place", "ov_hsdag.Placement", "ov_hsdag.PlaceOptions", "ov_hsdag.HSDAGPlacement",
            "ov_hsdag.place_together", "ov_hsdag.ModelOf", "ov_hsdag.Plan",
        ),
    ),
    "Running": (
        "",
        ("ov_hsdag.Copies", "ov_hsdag.extension_path", "ov_hsdag.PlacementNotFollowedWarning"),
    ),
    "Checking": (
        "",
        (
            "ov_hsdag.fit", "ov_hsdag.verify", "ov_hsdag.measuring.verification.Verification", "ov_hsdag.explain",
            "ov_hsdag.where", "ov_hsdag.explaining.where.Where", "ov_hsdag.explaining.where.Operation",
            "ov_hsdag.calibrate",
        ),
    ),
    "Errors": ("What all of these raise.", ("ov_hsdag.UserError", "ov_hsdag.RunError")),
    "For placers": (
        "What [a placer](../contributing/adding-a-placer.md) gets and returns. These names are inside the package and"
        " may change between releases.",
        (
            "ov_hsdag.placers.base.Placer", "ov_hsdag.problem.problem.PlacementProblem",
            "ov_hsdag.problem.problem.Evaluation", "ov_hsdag.problem.pricing.build_problem",
        ),
    ),
}  # fmt: skip
"""Headings of the page: what is said below each, and the names that it describes."""

CONSTRUCTED = ("HSDAGPlacement", "PlaceOptions", "ModelOf", "Copies")
"""Classes that programs make objects of; those of the others are returned by functions."""

LINE = 100
"""Characters that a signature may have on one line."""

WIDTH = 120
"""Characters that a line of text may have."""

NOT_RUN = "Not run by the tests: it takes a model that is loaded already."
"""What stands before an example, see tests/test_code_blocks.py."""

_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Yields|Example|Examples):$")
_ITEM = re.compile(r"^(\*{0,2}\w[\w.]*): (.*)$", re.DOTALL)
_CODE = re.compile(r"(`[^`]*`)")


def page() -> str:
    """The whole page, as Markdown."""
    parts = [INTRODUCTION, _contents()]
    for heading, (text, names) in SECTIONS.items():
        parts += [
            f"## {heading}",
            *([textwrap.fill(text, WIDTH)] if text else []),
            *(part for name in names for part in described(name)),
        ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _contents() -> str:
    """A list of all names with the first sentence about each."""
    rows = []
    for _, names in SECTIONS.values():
        for path in names:
            first = _prose(inspect.getdoc(_resolved(path)) or "").split("\n\n")[0]
            link = f"[`{_short(path)}`](#{_heading(path).lower().replace(' ', '-')})"
            rows.append(_list_item(f"{link}: {' '.join(first.split())}"))
    return "\n".join(rows)


def _heading(path: str) -> str:
    """A name's heading; `where` and `Where` need different anchors, which have no capitals."""
    return f"class {_short(path)}" if inspect.isclass(_resolved(path)) else _short(path)


def described(path: str) -> Iterator[str]:
    """Parts of the page about one name: heading, signature, docstring, and of a class its members."""
    value = _resolved(path)
    yield f"### {_heading(path)}"
    yield f"`{path}`" if inspect.isclass(value) and _short(path) not in CONSTRUCTED else _signature(path, value)
    yield from described_text(inspect.getdoc(value) or "")
    if inspect.isclass(value):
        for name, member in _members(value):
            yield f"#### {_short(path)}.{name}"
            if not isinstance(member, property):
                yield _signature(name, member)
            yield from described_text(inspect.getdoc(member) or "")


def described_text(text: str) -> Iterator[str]:
    """A docstring in Google's style as Markdown: paragraphs, and a list for each section with items."""
    for heading, lines in _sections(text):
        content = inspect.cleandoc("\n" + "\n".join(lines))
        if not content:
            continue
        if heading:
            yield f"{heading}:"
        if heading.startswith("Example"):
            yield NOT_RUN
            yield content
        elif heading in ("Args", "Attributes", "Raises"):
            # A line that is not indented begins an item, and those below it belong to it.
            yield "\n".join(_item(item) for item in re.split(r"\n(?=\S)", content))
        else:
            yield _prose(content)


def _sections(text: str) -> Iterator[tuple[str, list[str]]]:
    """Headings of a docstring with the lines below; "" is the heading of what stands before and between sections."""
    heading, lines = "", list[str]()
    for line in text.splitlines():
        match = _SECTION.match(line)
        if match or (heading and line and not line[0].isspace()):
            yield heading, lines
            heading, lines = (match.group(1), []) if match else ("", [line])
        else:
            lines.append(line)
    yield heading, lines


def _item(text: str) -> str:
    joined = " ".join(text.split())
    match = _ITEM.match(joined)
    return _list_item(f"`{match.group(1)}`: {_prose(match.group(2))}" if match else _prose(joined))


def _list_item(text: str) -> str:
    """An item of a list, with lines that are not too long; code in the text stays on one line."""
    held = _CODE.sub(lambda code: code.group().replace(" ", "\0"), text)
    lines = textwrap.wrap(held, WIDTH - 2, break_long_words=False, break_on_hyphens=False)
    return "- " + "\n  ".join(lines).replace("\0", " ")


def _prose(text: str) -> str:
    """Text of a docstring, with what Markdown would take for markup escaped, but for code."""
    plain = re.sub(r":\w+:(?=`)", "", text.replace("``", "`"))
    parts = _CODE.split(plain)
    return "".join(part if number % 2 else _escaped(part) for number, part in enumerate(parts))


def _escaped(text: str) -> str:
    return re.sub(r"(?<![\w])([*_])|([*_])(?![\w])", lambda found: "\\" + found.group(), text).replace("<", "&lt;")


def _signature(name: str, value: Any) -> str:
    """A Python block with the parameters of a function, of a method without `self`, or of a class."""
    signature = inspect.signature(value)
    parameters = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    written = [*_parameters(parameters)]
    returned = "" if inspect.isclass(value) else f" -> {_annotation(signature.return_annotation)}"
    line = f"{name}({', '.join(written)}){returned}"
    if len(line) > LINE:
        line = f"{name}(\n" + "".join(f"    {parameter},\n" for parameter in written) + f"){returned}"
    return f"```text\n{line}\n```"


def _parameters(parameters: Sequence[inspect.Parameter]) -> Iterator[str]:
    starred = False
    for parameter in parameters:
        kind = parameter.kind
        if kind is parameter.KEYWORD_ONLY and not starred:
            yield "*"
        starred = starred or kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(kind, "")
        default = "" if parameter.default is parameter.empty else f" = {_default(parameter.default)}"
        yield f"{star}{parameter.name}: {_annotation(parameter.annotation)}{default}"


def _annotation(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _default(value: Any) -> str:
    if inspect.isroutine(value) or inspect.isclass(value):
        return f"{value.__module__.lstrip('_')}.{value.__name__}"
    if value == math.inf:
        return "math.inf"
    text = repr(value)
    return "…" if text.startswith("<") else text


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that a class itself defines and describes, in the order of its source."""
    for name, member in vars(cls).items():
        if name.startswith("_"):
            continue
        function = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        if (inspect.isfunction(function) or isinstance(function, property)) and inspect.getdoc(function):
            yield name, function


def _short(path: str) -> str:
    return path.rpartition(".")[2]


def _resolved(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)} is written")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
