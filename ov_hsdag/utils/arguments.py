"""Checks arguments by their declared types."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from ov_hsdag.utils.errors import UserError, shortened


def check_argument(name: str, value: object, kind: Any, *, least: float | None = None) -> None:
    """Checks the type of an argument, and that it is not too small.

    Args:
        name: name of the argument, for the message.
        value: its value.
        kind: a type, which may be a union or have type arguments, such as `Mapping[str, int]`.
        least: smallest number; no limit by default.

    Raises:
        UserError: the value has another type, or is smaller than `least`.
    """
    if not _fits(value, kind):
        raise UserError(f"{name} must be {described(kind)}, got {shortened(repr(value))}")
    if least is not None and isinstance(value, numbers.Real) and not float(value) >= least:
        raise UserError(f"{name} must be at least {least:g}, got {value}")


def check_in_memory(call: str, model: object) -> None:
    """Checks that an argument is a model in memory, and not the path of one.

    Args:
        call: name of the called function, for the message.
        model: the argument.

    Raises:
        UserError: it is not.
    """
    if not hasattr(model, "get_ops"):
        raise UserError(
            f"{call}() takes a model in memory and got {shortened(repr(model))}: read it with openvino.convert_model or"
            f" Core.read_model; ov-hsdag {call} takes files"
        )


def described(kind: Any) -> str:
    """Formats a type for messages: "int or None", "Mapping[str, int or str]"."""
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(map(described, get_args(kind)))
    if kind in (None, NoneType):
        return "None"
    inner = ", ".join(described(one) for one in get_args(kind))
    name = getattr(get_origin(kind) or kind, "__name__", str(kind))
    return f"{name}[{inner}]" if inner else name


def _fits(value: object, kind: Any) -> bool:
    """Whether a value is of a type, which may be a union or have type arguments.

    NumPy's numbers fit int and float; Boolean values do not. Elements of lists, and keys and values of mappings, are
    checked as well; elements of other iterables are not.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in inner)
    if kind in (int, float):
        number = numbers.Integral if kind is int else numbers.Real
        return isinstance(value, number) and not isinstance(value, bool)
    if kind is bool:
        return isinstance(value, bool)
    if origin is not None and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            _fits(key, inner[0]) and _fits(part, inner[1]) for key, part in value.items()
        )
    if origin is not None and issubclass(origin, Iterable):  # arrays and OpenVINO's shapes fit, too
        if not isinstance(value, Iterable) or isinstance(value, str | bytes):
            return False
        return origin is not list or all(_fits(part, inner[0]) for part in value)
    return isinstance(value, origin or kind)
