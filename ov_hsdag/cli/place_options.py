"""The options of placing (`ov_hsdag.placing.options`) as flags of commands."""

from __future__ import annotations

from dataclasses import field, make_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ov_hsdag.placing.options import Flag, default_of, flags


def option(name: str) -> Any:
    """The flag of an option, for an annotated parameter of a command."""
    flag = flags()[name]
    text = f"--{_name(name, flag)}"
    if flag.kind is bool:
        text = f"{text}/--no-{_name(name, flag)}"
    return typer.Option(text, metavar=flag.metavar or None, help=flag.help, min=flag.least)


def _name(name: str, flag: Flag) -> str:
    return (flag.name or name).replace("_", "-")


def _type(name: str, flag: Flag) -> Any:
    plain: Any = Path if flag.kind == "file" else flag.kind
    if flag.several:
        return list[plain] | None
    return plain if default_of(name) is not None else plain | None


Given: type[Any] = make_dataclass(
    "Given",
    [
        (name, Annotated[_type(name, flag), option(name)], field(default=default_of(name)))
        for name, flag in flags().items()
    ],
)
"""All options of placing as they are given, for `with_options_of`: texts, numbers and paths."""

ProfileFile = Annotated[Path | None, option("profile")]
AffinityFile = Annotated[Path | None, option("affinity")]
Objective = Annotated[str, option("objective")]
Memory = Annotated[str | None, option("memory")]
Shapes = Annotated[list[str] | None, option("shapes")]
WorkloadOption = Annotated[str | None, option("workload")]
Context = Annotated[int | None, option("context")]
KvPrecision = Annotated[str | None, option("kv_precision")]
