"""Checks a JSON value against a JSON Schema and explains in one line what is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import reduce
from itertools import islice
from typing import Any

from ov_hsdag.utils.errors import shortened

# Errors among which the one nearest to the root is chosen. A hostile file may have millions.
_MOST_ERRORS = 1000


class Violation(Exception):
    """A value that breaks the schema. Its text has the JSON path, the expected and the found value."""


def check(schema: dict[str, Any], value: Any) -> None:
    """Raises Violation for the place nearest to the root where `value` breaks the schema."""
    from jsonschema import Draft202012Validator, FormatChecker  # takes 0.1 s, and built-in profiles need no check

    formats = FormatChecker(())
    formats.checks("regex", (re.error, OverflowError, RecursionError))(
        lambda text: not isinstance(text, str) or re.compile(text)
    )
    errors = Draft202012Validator(schema, format_checker=formats).iter_errors(value)
    violation = min(islice(errors, _MOST_ERRORS), key=lambda error: len(error.absolute_path), default=None)
    if violation is None:
        return
    path = reduce(child_path, violation.absolute_path, "$") + (
        " (key)" if "propertyNames" in violation.schema_path else ""
    )
    got = shown(violation.instance)
    if violation.validator == "additionalProperties":
        properties = violation.schema["properties"]
        got = f"the unknown key {shown(next(key for key in violation.instance if key not in properties))}"
    elif violation.validator == "required":
        got = shown(sorted(violation.instance))
    raise Violation(
        f"{path}: expected {_EXPECTED[violation.validator](violation.validator_value, violation)}, got {got}"
    )


def shown(value: Any) -> str:
    """Formats a value as it stands in the file, shortened to fit a line."""
    return shortened(json.dumps(value, ensure_ascii=False), 60)


def child_path(path: str, key: str | int) -> str:
    """JSON path of a key of the object, or of an item of the array, at `path`."""
    named = isinstance(key, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{,99}", key)
    return f"{path}.{key}" if named else f"{path}[{shown(key)}]"


# Functions that say what a keyword of the schema expects, from the keyword's value and the error.
_EXPECTED: dict[str, Callable[[Any, Any], str]] = {
    "type": lambda types, _: f"type {types if isinstance(types, str) else ' or '.join(types)}",
    "const": lambda value, _: shown(value),
    "enum": lambda values, _: f"one of {', '.join(map(shown, values))}",
    "required": lambda keys, error: f"the key {shown(next(key for key in keys if key not in error.instance))}",
    "additionalProperties": lambda _, error: f"only the keys {', '.join(error.schema['properties'])}",
    "minProperties": lambda *_: "at least one key",
    "minLength": lambda *_: "a text that is not empty",
    # Python's "$" also matches before a last newline, so patterns end with a condition that no newline follows.
    "pattern": lambda pattern, _: "a name like " + pattern.removesuffix(r"(?!\n)"),
    "format": lambda _, error: f"a regular expression ({error.cause})",
    "minimum": lambda bound, _: f"a number of at least {bound:g}",
    "maximum": lambda bound, _: f"a number of at most {bound:g}",
}
