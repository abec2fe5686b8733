"""Docstrings of the package: what has more than two parameters says what they are, what it returns and what it raises.

Ruff checks the form of docstrings (`[tool.ruff.lint.pydocstyle]`), but requires no section.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import dedent

import pytest

PACKAGE = Path(__file__).parents[1] / "ov_hsdag"

# Parameters that a summary alone can describe.
DESCRIBED_BY_SUMMARY = 2

# Decorators of functions whose docstring stands elsewhere.
DOCUMENTED_ELSEWHERE = {"overload", "override"}

_SECTION = re.compile(r"^(\w+):$")
_ARGUMENT = re.compile(r"^    \*{0,2}(\w+)(?: \([^)]*\))?:", re.MULTILINE)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def violations(source: str) -> Iterator[tuple[int, str, list[str]]]:
    """Yields the line and the qualified name of each function that lacks something, and what it lacks."""
    for name, function, is_method in public_functions(ast.parse(source).body):
        found = lacking(function, is_method)
        if found:
            yield function.lineno, name, found


def public_functions(
    body: Sequence[ast.stmt], prefix: str = "", is_method: bool = False
) -> Iterator[tuple[str, Function, bool]]:
    """Yields public functions, and those of public classes, with constructors, by their qualified names.

    Args:
        body: statements of a module or of a class.
        prefix: what precedes the qualified names in `body`: "" or "Class.".
        is_method: whether `body` is that of a class.

    Yields:
        The qualified name, the function, and whether it is a method.
    """
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public_functions(node.body, f"{prefix}{node.name}.", True)
        elif isinstance(node, Function) and (not node.name.startswith("_") or node.name == "__init__"):
            yield f"{prefix}{node.name}", node, is_method


def lacking(function: Function, is_method: bool) -> list[str]:
    """The sections that a function's docstring lacks, and as "Args: name" the parameters that Args leaves out.

    A function that a base class or an overload documents lacks nothing, nor does one with few parameters.
    """
    names = parameters(function, is_method)
    if len(names) <= DESCRIBED_BY_SUMMARY or decorators(function) & DOCUMENTED_ELSEWHERE:
        return []
    present = sections(ast.get_docstring(function) or "")
    found = []
    if "Args" not in present:
        found.append("Args")
    else:
        described = set(_ARGUMENT.findall(present["Args"]))
        found += [f"Args: {name}" for name in names if name not in described]
    if returns(function) and not {"Returns", "Yields"} & present.keys():
        found.append("Returns")
    if raises(function) and "Raises" not in present:
        found.append("Raises")
    return found


def parameters(function: Function, is_method: bool) -> list[str]:
    """Names of the parameters, without self or cls."""
    given = function.args
    listed = [*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs, given.kwarg]
    names = [one.arg for one in listed if one is not None]
    return names[1:] if is_method and names[:1] in (["self"], ["cls"]) else names


def decorators(function: Function) -> set[str]:
    """The last names of the decorators, such as "override" of `typing.override`."""
    return {ast.unparse(one).partition("(")[0].rpartition(".")[2] for one in function.decorator_list}


def sections(docstring: str) -> dict[str, str]:
    """The text of each section of a docstring, by the section's name."""
    found: dict[str, str] = {}
    name = ""
    for line in inspect.cleandoc(docstring).splitlines():
        heading = _SECTION.match(line)
        if heading:
            name = heading[1]
            found[name] = ""
        elif name:
            found[name] += f"{line}\n"
    return found


def returns(function: Function) -> bool:
    """Whether a function is annotated with a result other than None."""
    return function.returns is not None and ast.unparse(function.returns) not in ("None", "NoReturn", "Never")


def raises(function: Function) -> bool:
    """Whether a function, or one inside it, raises an error of its own; a bare `raise` passes on another's."""
    return any(isinstance(node, ast.Raise) and node.exc is not None for node in ast.walk(function))


def test_docstrings_of_the_package_are_complete() -> None:
    found = [
        f"{path.relative_to(PACKAGE.parent)}:{line} {name}: {', '.join(missing)}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, name, missing in violations(path.read_text(encoding="utf-8"))
    ]
    assert not found, "docstrings lack:\n" + "\n".join(found)


COMPLETE = '''
    class Store:
        def put(self, key: str, value: bytes, *rest: int) -> int:
            """Stores a value.

            Args:
                key: name of the value.
                value (bytes): the value.
                *rest: more numbers.

            Returns:
                The size, bytes.

            Raises:
                KeyError: there is no such key.
            """
            raise KeyError(key)
'''


@pytest.mark.parametrize(
    ("replaced", "by", "expected"),
    [
        ("", "", []),
        ("Args:", "Given:", ["Args"]),
        ("key: name of the value.", "a name, as in `key: value`.", ["Args: key"]),
        ("*rest: more numbers.", "", ["Args: rest"]),
        ("Returns:", "Gives:", ["Returns"]),
        ("Returns:", "Yields:", []),
        ("Raises:", "Fails:", ["Raises"]),
        ("raise KeyError(key)", "raise", []),
        ('"""Stores a value.', '"""Stores.""" and """', ["Args", "Returns", "Raises"]),
        ("def put", "def _put", []),
        ("class Store", "class _Store", []),
        ("def put", "@typing.override\n        def put", []),
    ],
)
def test_what_is_missing_is_found(replaced: str, by: str, expected: list[str]) -> None:
    source = dedent(COMPLETE.replace(replaced, by, 1) if replaced else COMPLETE)
    assert [missing for _, _, missing in violations(source)] == ([expected] if expected else [])


def test_few_parameters_need_no_section() -> None:
    assert not [*violations("def between(low: float, high: float) -> float:\n    raise ValueError(low)\n")]
