"""Checks a JSON value against a JSON Schema and says in one line what is wrong.

The part of JSON Schema (draft 2020-12) that profile.schema.json uses, so that the published schema is the one place
that defines the format and no schema library is needed to read a profile.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

Schema = dict[str, Any]


class Violation(Exception):
    """A value that breaks the schema. Its text names the JSON path, what is expected there and what was found."""

    def __init__(self, path: str, expected: str, got: str) -> None:
        super().__init__(f"{path}: expected {expected}, got {got}")


def check(document: Schema, value: Any) -> None:
    """Raises Violation for the first place (in document order) where `value` breaks the schema."""
    for violation in _violations(document, document, value, "$"):
        raise violation


def shown(value: Any) -> str:
    """A value as it stands in the file, shortened to fit a line."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def child_path(path: str, key: str) -> str:
    """JSON path of a key of the object at `path`."""
    return f"{path}.{key}" if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{,99}", key) else f"{path}[{shown(key)}]"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TYPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "object": ("an object", lambda value: isinstance(value, dict)),
    "array": ("an array", lambda value: isinstance(value, list)),
    "string": ("a string", lambda value: isinstance(value, str)),
    "null": ("null", lambda value: value is None),
    "number": ("a number", _is_number),
    "integer": ("a whole number", lambda value: _is_number(value) and value == value // 1),
}

_BOUNDS: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "exclusiveMinimum": ("above", lambda value, bound: value > bound),
    "minimum": ("of at least", lambda value, bound: value >= bound),
    "maximum": ("of at most", lambda value, bound: value <= bound),
}


def _violations(document: Schema, schema: Schema, value: Any, path: str) -> Iterator[Violation]:
    """In the order in which a reader wants to hear of them: what the value is, its keys, then what stands in it."""

    def wrong(expected: str, got: str | None = None) -> Violation:
        return Violation(path, expected, shown(value) if got is None else got)

    def among(choices: list[Any]) -> bool:  # JSON tells true from 1, Python does not
        return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in choices)

    def within(part: Schema, item: Any, where: str) -> Iterator[Violation]:
        return _violations(document, part, item, where)

    if "$ref" in schema:
        part: Any = document
        for key in schema["$ref"].removeprefix("#/").split("/"):
            part = part[key]
        yield from within(part, value, path)
    if "type" in schema:
        names = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        if not any(_TYPES[name][1](value) for name in names):
            yield wrong(" or ".join(_TYPES[name][0] for name in names))
    if "const" in schema and not among([schema["const"]]):
        yield wrong(shown(schema["const"]))
    if "enum" in schema and not among(schema["enum"]):
        yield wrong("one of " + ", ".join(shown(choice) for choice in schema["enum"]))
    if isinstance(value, str):
        yield from _of_text(schema, value, wrong)
    if _is_number(value):
        for keyword, (words, holds) in _BOUNDS.items():
            if keyword in schema and not holds(value, schema[keyword]):
                yield wrong(f"a number {words} {schema[keyword]:g}")
    if isinstance(value, dict):
        if len(value) < schema.get("minProperties", 0):
            yield wrong("at least one key")
        for key in value if "propertyNames" in schema else ():
            yield from within(schema["propertyNames"], key, f"{path} (key)")
        known, rest = schema.get("properties", {}), schema.get("additionalProperties", {})
        for key in [key for key in value if key not in known]:
            if rest is False:
                yield wrong("only the keys " + ", ".join(known), f"the unknown key {shown(key)}")
            else:
                yield from within(rest, value[key], child_path(path, key))
        for key in [key for key in schema.get("required", ()) if key not in value][:1]:
            yield wrong(f'the key "{key}"', shown(sorted(value)) if value else "no keys")
        for key in [key for key in value if key in known]:
            yield from within(known[key], value[key], child_path(path, key))
    if isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from within(schema["items"], item, f"{path}[{index}]")
    if "if" in schema:
        broken = next(within(schema["if"], value, path), None)
        yield from within(schema.get("then" if broken is None else "else", {}), value, path)
    for part in schema.get("allOf", ()):
        yield from within(part, value, path)


def _of_text(schema: Schema, value: str, wrong: Callable[[str], Violation]) -> Iterator[Violation]:
    if len(value) < schema.get("minLength", 0):
        yield wrong("a text that is not empty")
    # "$" ends a JSON Schema pattern at the end of the text only, Python's also before a last newline.
    if "pattern" in schema and not re.search(re.sub(r"\$$", r"\\Z", schema["pattern"]), value):
        yield wrong(f"a name like {schema['pattern']}")
    if schema.get("format") == "regex":
        try:
            re.compile(value)
        except (re.error, OverflowError, RecursionError) as error:
            yield wrong(f"a regular expression ({error})")
