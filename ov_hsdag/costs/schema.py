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
Check = Callable[["Checker", Schema, Any, str], "Violation | None"]


class Violation(Exception):
    """A value that breaks the schema. Its text names the JSON path, what is expected there and what was found."""

    def __init__(self, path: str, expected: str, got: str) -> None:
        super().__init__(f"{path}: expected {expected}, got {got}")


class Checker:
    """Checks values against one schema document."""

    def __init__(self, document: Schema) -> None:
        self._document = document

    def check(self, value: Any) -> None:
        """Raises Violation for the first place (in document order) where `value` breaks the schema."""
        violation = self.first(self._document, value, "$")
        if violation is not None:
            raise violation

    def first(self, schema: Schema, value: Any, path: str) -> Violation | None:
        """The first violation of a part of the schema, or None."""
        for keyword, check in _CHECKS.items():
            if keyword in schema and (violation := check(self, schema, value, path)) is not None:
                return violation
        return None

    def resolve(self, reference: str) -> Schema:
        """The part of the document that a "#/…" reference names."""
        part: Any = self._document
        for key in reference.removeprefix("#/").split("/"):
            part = part[key]
        return dict(part)


_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: _TYPES["number"](value) and value == value // 1,
}
_NAMES = {
    "object": "an object", "array": "an array", "string": "a string", "null": "null", "number": "a number",
    "integer": "a whole number",
}  # fmt: skip


def _is(value: Any, name: str) -> bool:
    return _TYPES[name](value)


def shown(value: Any) -> str:
    """A value as it stands in the file, shortened to fit a line."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def child_path(path: str, key: str) -> str:
    """JSON path of a key of the object at `path`."""
    return f"{path}.{key}" if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{,99}", key) else f"{path}[{shown(key)}]"


def _reference(checker: Checker, schema: Schema, value: Any, path: str) -> Violation | None:
    return checker.first(checker.resolve(schema["$ref"]), value, path)


def _type(checker: Checker, schema: Schema, value: Any, path: str) -> Violation | None:
    names = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    if any(_is(value, name) for name in names):
        return None
    return Violation(path, " or ".join(_NAMES[name] for name in names), shown(value))


def _equal(value: Any, other: Any) -> bool:
    # JSON tells true from 1, Python does not.
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


def _const(checker: Checker, schema: Schema, value: Any, path: str) -> Violation | None:
    return None if _equal(value, schema["const"]) else Violation(path, shown(schema["const"]), shown(value))


def _enum(checker: Checker, schema: Schema, value: Any, path: str) -> Violation | None:
    if any(_equal(value, choice) for choice in schema["enum"]):
        return None
    return Violation(path, "one of " + ", ".join(shown(choice) for choice in schema["enum"]), shown(value))


def _number_check(keyword: str, words: str, holds: Callable[[float, float], bool]) -> Check:
    def check(checker: Checker, schema: Schema, value: Any, path: str) -> Violation | None:
        bound = schema[keyword]
        if not _is(value, "number") or holds(value, bound):
            return None
        return Violation(path, f"a number {words} {bound:g}", shown(value))

    return check


def _length_check(keyword: str, type_name: str, words: str) -> Check:
    def check(checker: Checker, schema: Schema, value: Any, path: str) -> Violation | None:
        if not _is(value, type_name) or len(value) >= schema[keyword]:
            return None
        return Violation(path, words, shown(value))

    return check


def _pattern(checker: Checker, schema: Schema, value: Any, path: str) -> Violation | None:
    # "$" ends a JSON Schema pattern at the end of the text only, Python's also before a last newline.
    if not isinstance(value, str) or re.search(re.sub(r"\$$", r"\\Z", schema["pattern"]), value):
        return None
    return Violation(path, f"a name like {schema['pattern']}", shown(value))


def _format(checker: Checker, schema: Schema, value: Any, path: str) -> Violation | None:
    if schema["format"] == "regex" and isinstance(value, str):
        try:
            re.compile(value)
        except (re.error, OverflowError, RecursionError) as error:
            return Violation(path, f"a regular expression ({error})", shown(value))
    return None


def _required(checker: Checker, schema: Schema, value: Any, path: str) -> Violation | None:
    missing = [key for key in schema["required"] if key not in value] if _is(value, "object") else []
    return Violation(path, f'the key "{missing[0]}"', shown(sorted(value)) if value else "no keys") if missing else None


def _additional(checker: Checker, schema: Schema, value: Any, path: str) -> Violation | None:
    if not _is(value, "object"):
        return None
    allowed = schema.get("properties", {})
    rest = schema["additionalProperties"]
    for key in value:
        if key in allowed:
            continue
        if rest is False:
            return Violation(path, "only the keys " + ", ".join(allowed), f"the unknown key {shown(key)}")
        if (violation := checker.first(rest, value[key], child_path(path, key))) is not None:
            return violation
    return None


def _properties(checker: Checker, schema: Schema, value: Any, path: str) -> Violation | None:
    keys: Iterator[str] = iter(value if _is(value, "object") else ())
    for key in keys:
        part = schema["properties"].get(key)
        if part is not None and (violation := checker.first(part, value[key], child_path(path, key))) is not None:
            return violation
    return None


def _property_names(checker: Checker, schema: Schema, value: Any, path: str) -> Violation | None:
    for key in value if _is(value, "object") else ():
        if (violation := checker.first(schema["propertyNames"], key, f"{path} (key)")) is not None:
            return violation
    return None


def _items(checker: Checker, schema: Schema, value: Any, path: str) -> Violation | None:
    for index, item in enumerate(value if _is(value, "array") else ()):
        if (violation := checker.first(schema["items"], item, f"{path}[{index}]")) is not None:
            return violation
    return None


def _if(checker: Checker, schema: Schema, value: Any, path: str) -> Violation | None:
    holds = checker.first(schema["if"], value, path) is None
    return checker.first(schema.get("then" if holds else "else", {}), value, path)


def _all_of(checker: Checker, schema: Schema, value: Any, path: str) -> Violation | None:
    for part in schema["allOf"]:
        if (violation := checker.first(part, value, path)) is not None:
            return violation
    return None


# In the order in which a reader wants to hear of them: what the value is, then its keys, then what stands in it.
_CHECKS: dict[str, Check] = {
    "$ref": _reference,
    "type": _type,
    "const": _const,
    "enum": _enum,
    "minLength": _length_check("minLength", "string", "a text that is not empty"),
    "minProperties": _length_check("minProperties", "object", "at least one key"),
    "pattern": _pattern,
    "format": _format,
    "exclusiveMinimum": _number_check("exclusiveMinimum", "above", lambda value, bound: value > bound),
    "minimum": _number_check("minimum", "of at least", lambda value, bound: value >= bound),
    "maximum": _number_check("maximum", "of at most", lambda value, bound: value <= bound),
    "propertyNames": _property_names,
    "additionalProperties": _additional,
    "required": _required,
    "properties": _properties,
    "items": _items,
    "if": _if,
    "allOf": _all_of,
}
